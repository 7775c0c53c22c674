"""Flower's clients. In a module of its own, so that a worker sets up its net and data once."""

import functools
import os

import numpy as np
import torch
import work as w
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch_nets import build, flatten, plain_step, train_client

app = ClientApp()


@functools.cache
def setup(name):
    torch.set_num_threads(1)
    net = build(name)
    folder = os.environ["BENCHMARK_DATA"]
    x, y = (torch.from_numpy(np.load(f"{folder}/{n}.npy", mmap_mode="c")) for n in "xy")
    if name == "lstm":
        x = x.unfold(1, w.LENGTH, 1)  # the text, as overlapping windows
    return plain_step(net), flatten(net), x, y


@app.train()
def train(message, context):
    name = os.environ["BENCHMARK_WORK"]
    step, local, x, y = setup(name)
    (server,) = message.content["arrays"].to_numpy_ndarrays()
    local.copy_(torch.from_numpy(server))
    k = context.node_config["partition-id"]
    train_client(name, step, x[k], y[k])
    content = RecordDict(
        {
            "arrays": ArrayRecord([local.numpy()]),
            "metrics": MetricRecord({"num-examples": y.shape[1]}),
        }
    )
    return Message(content=content, reply_to=message)
