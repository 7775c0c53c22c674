"""A runtime of one's own: the clients train with PyTorch, the server stays as it is.

    pip install torch
    python examples/own_runtime.py

The loop asks clients and takes their replies in blocks; it does not care what computed them.
"""

from collections import deque

import numpy as np
import torch

import fedmom


class TorchRuntime:
    """Trains a linear softmax classifier by SGD in PyTorch, one client after another."""

    splits = ("train", "test")

    def __init__(self, data, *, lr, steps, batch_size, seed=0):
        self._data, self._lr, self._steps, self._batch = data, lr, steps, batch_size
        self._seed = seed
        self._asked = deque()  # (client, round, parameters)

    def ask(self, round_, clients, broadcast):
        self._asked.extend((client, round_, broadcast) for client in clients.tolist())

    def replies(self, timeout=None):  # noqa: ARG002
        while self._asked:
            client, round_, params = self._asked.popleft()
            update, loss = self._train(client, round_, params)
            rows = [{name: array[None] for name, array in update.items()}]  # stacked: one row
            samples = self._data.train.size[[client]]
            yield fedmom.Block(
                np.array([client]), rows, samples, {"loss": np.array([loss])}, round_
            )

    def under_way(self):
        return [(client, round_) for client, round_, _ in self._asked]

    def cancel(self):
        self._asked.clear()

    def evaluate(self, params, split, budget=None):  # noqa: ARG002
        sizes = self._data.split(split).size
        present = np.flatnonzero(sizes)
        sums = {"loss": [], "accuracy": []}
        for client in present:
            x, y = self._samples(client, split)
            logits = self._logits(x, *self._tensors(params))
            loss = torch.nn.functional.cross_entropy(logits, y, reduction="sum")
            sums["loss"].append(loss.item())
            sums["accuracy"].append((logits.argmax(1) == y).sum().item())
        totals = {name: np.array(values, float) for name, values in sums.items()}
        return fedmom.Scores(sizes[present], sizes[present], totals)

    def commit(self):
        """Clients keep no state."""

    def snapshot(self):
        return fedmom.Snapshot({})

    def restore(self, snapshot, broadcast):
        """There is nothing to restore."""

    def close(self):
        """There is nothing to release."""

    def _train(self, client, round_, params):
        w, b = self._tensors(params)
        start = w.clone(), b.clone()
        x, y = self._samples(client, "train")
        rng = np.random.default_rng((self._seed, round_, client))  # as every client must draw
        optimizer = torch.optim.SGD([w.requires_grad_(), b.requires_grad_()], lr=self._lr)
        losses = []
        for _ in range(self._steps):
            rows = torch.from_numpy(rng.integers(0, len(y), self._batch))
            loss = torch.nn.functional.cross_entropy(self._logits(x[rows], w, b), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        update = {"w": start[0] - w.detach(), "b": start[1] - b.detach()}
        return {name: tensor.numpy() for name, tensor in update.items()}, np.mean(losses)

    def _samples(self, client, split):
        part = self._data.split(split)
        rows = slice(part.start[client], part.start[client] + part.size[client])
        x, y = self._data.arrays["x"][rows], self._data.arrays["y"][rows]
        return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.long)

    @staticmethod
    def _tensors(params):
        return (torch.tensor(np.asarray(params[0][name])) for name in ("w", "b"))

    @staticmethod
    def _logits(x, w, b):
        return x @ w + b


if __name__ == "__main__":
    torch.set_num_threads(1)  # a model this small gains nothing from more
    data = fedmom.load_data("synthetic:clients=30")
    model = fedmom.build_model("logreg", data.features)  # only its first parameters are used
    method = fedmom.Algorithm(fedmom.fedmom(learning_rate=data.clients / 10, momentum=0.9))
    runtime = TorchRuntime(data, lr=0.005, steps=10, batch_size=10)
    pace = fedmom.synchronous(fedmom.uniform(data.train.size), 10)
    start, options = fedmom.start(model, method), {"samples": data.train.size, "rounds": 50}
    for state, record in fedmom.train(start, runtime, method, pace=pace, **options):
        if record.round % 25 == 0:
            print(record.round, fedmom.evaluate(runtime, state.params, "test"))
