"""Flower: its simulation of logistic regression on MNIST, in NumPy, a worker for each core."""

import json
import logging
import os
import sys

os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0", OMP_NUM_THREADS="1")

import flwr
import numpy as np
from flower_published_client import app as client
from flower_published_client import logits, setup
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

WORK = json.loads(os.environ["BENCHMARK_WORK"])
CLASSES = 10


def evaluate(server_round, arrays):
    """Evaluate the model on all test samples, where that is due."""
    if server_round % WORK["every"]:
        return None
    x, y, _, test = setup()
    rows = np.concatenate([np.arange(s, s + n) for s, n in test.T])
    hits = logits(arrays.to_numpy_ndarrays(), x[rows]).argmax(1) == y[rows]
    return MetricRecord({"accuracy": float(hits.mean())})


server = ServerApp()


@server.main()
def main(grid, _context):
    # It looks for replies ten times a second by default: longer than a small round lasts.
    grid.pull_interval = 0.002
    x, _, train, _ = setup()
    strategy = FedAvg(
        fraction_train=WORK["per_round"] / train.shape[1],
        fraction_evaluate=0.0,
        min_train_nodes=WORK["per_round"],
    )
    zero = [np.zeros((x.shape[1], CLASSES), np.float32), np.zeros(CLASSES, np.float32)]
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(zero),
        num_rounds=WORK["rounds"],
        evaluate_fn=evaluate,
    )
    metrics = result.evaluate_metrics_serverapp
    accuracy = metrics[max(metrics)]["accuracy"]
    sys.stdout.write(json.dumps({"accuracy": accuracy, "version": flwr.__version__}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    run_simulation(
        server,
        client,
        num_supernodes=int(setup()[2].shape[1]),
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": os.cpu_count() or 1},
        },
    )
