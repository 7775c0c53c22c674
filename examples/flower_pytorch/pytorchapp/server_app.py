"""The server: Flower's own layout; only the strategy is FedMom's."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedmom.flower import FedMom
from pytorchapp.task import net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    torch.manual_seed(0)
    strategy = FedMom(
        momentum=0.9,
        clients_per_round=int(config["clients-per-round"]),
        min_available_nodes=int(config["nodes"]),
        seed=0,
        folder=str(config["folder"]),
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(net().state_dict()),
        num_rounds=int(config["rounds"]),
        train_config=ConfigRecord({"lr": config["lr"], "local-steps": config["local-steps"]}),
    )
    for round_, metrics in result.evaluate_metrics_clientapp.items():
        print(f"round {round_}: accuracy {metrics['accuracy']:.3f}")
