"""A client that knows nothing of FedMom: it receives arrays, trains them and sends them back."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from pytorchapp.task import accuracy, net, samples, train_net

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    config = message.content["config"]
    torch.manual_seed(int(config["server-round"]))
    model = net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y, _, _ = samples(int(context.node_config["client"]))
    loss = train_net(model, x, y, float(config["lr"]), int(config["local-steps"]))
    content = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": len(y), "loss": loss}),
    }
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    model = net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    _, _, x, y = samples(int(context.node_config["client"]))
    metrics = MetricRecord({"num-examples": len(y), "accuracy": accuracy(model, x, y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
