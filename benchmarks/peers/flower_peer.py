"""Flower: its simulation on Ray, with PyTorch, a worker for each core."""

import logging
import os
import tempfile

import numpy as np
import work as w

os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0", OMP_NUM_THREADS="1")

from flower_client import app as client
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch_nets import build, flatten


class Timed(FedAvg):
    def __init__(self, options, **settings):
        super().__init__(**settings)
        self.options = options

    def aggregate_train(self, server_round, replies):
        result = super().aggregate_train(server_round, replies)
        if server_round == 1:
            self.clock = w.Clock(self.options)
        elif server_round == self.options.rounds + 1:
            self.clock.stop()
        return result


def serve(options):
    server = ServerApp()

    @server.main()
    def main(grid, _context):
        # It looks for replies ten times a second by default: longer than a small round lasts.
        grid.pull_interval = 0.002
        m = options.clients_per_round
        strategy = Timed(
            options,
            fraction_train=m / w.WORKS[options.work].clients,
            fraction_evaluate=0.0,
            min_train_nodes=m,
        )
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord([flatten(build(options.work)).numpy()]),
            num_rounds=options.rounds + 1,
        )

    return server


def save(name, folder):
    """Write the data for the workers to map, so that they share it."""
    x, y = w.samples(name)
    np.save(f"{folder}/x.npy", w.texts(w.WORKS[name]) if name == "lstm" else x)
    np.save(f"{folder}/y.npy", y)


def main():
    options = w.arguments()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        save(options.work, folder)
        os.environ.update(BENCHMARK_DATA=folder, BENCHMARK_WORK=options.work)
        run_simulation(
            serve(options),
            client,
            num_supernodes=w.WORKS[options.work].clients,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {"num_cpus": os.cpu_count() or 1},
            },
        )


if __name__ == "__main__":
    main()
