"""Flower's clients of the published task. A worker maps the data once."""

import functools
import json
import os

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@functools.cache
def setup():
    """Return the samples, their labels, and where those of every client begin and how many."""
    folder = json.loads(os.environ["BENCHMARK_WORK"])["folder"]
    splits = np.load(f"{folder}/splits.npz")
    arrays = (np.load(f"{folder}/{name}.npy", mmap_mode="r") for name in "xy")
    return (*arrays, splits["train"], splits["test"])


def logits(params, x):
    return x @ params[0] + params[1]


@app.train()
def train(message, context):
    work = json.loads(os.environ["BENCHMARK_WORK"])
    x, y, splits, _ = setup()
    start, size = splits[:, context.node_config["partition-id"]]
    weights, bias = (array.copy() for array in message.content["arrays"].to_numpy_ndarrays())
    order = start + np.random.default_rng().permutation(size)
    for first in range(0, size, work["batch"]):
        rows = order[first : first + work["batch"]]
        z = logits((weights, bias), x[rows])
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        p[np.arange(len(rows)), y[rows]] -= 1
        weights -= work["lr"] * (x[rows].T @ p) / len(rows)
        bias -= work["lr"] * p.mean(0)
    content = RecordDict(
        {
            "arrays": ArrayRecord([weights, bias]),
            "metrics": MetricRecord({"num-examples": int(size)}),
        }
    )
    return Message(content=content, reply_to=message)
