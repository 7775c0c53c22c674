"""Your own runtime: the clients train with PyTorch, the server stays as it is.

    pip install torch
    python examples/own_runtime.py

The loop asks clients and takes their replies in blocks; it does not care what computed them. These
clients do plain local training by SGD. `runs_method = False` says so: the loop then refuses an
algorithm with a client or stages of its own, instead of leaving them out silently. (To train your
PyTorch module, you need no runtime of your own: docs/torch_runtime.md.)
"""

from collections import deque

import numpy as np
import torch

import fedmom


class TorchRuntime:
    """Trains a linear softmax classifier by SGD in PyTorch, one client after another."""

    runs_method = False
    splits = ("train", "test")

    def __init__(self, workload):
        self.workload = workload
        self._asked = deque()  # (client, round, parameters)

    def prepare(self, cohort, *, sums):
        """Nothing is compiled, and replies are sent one by one."""

    def block_sizes(self, round_, clients, broadcast):  # noqa: ARG002
        return [1] * len(clients)

    def ask(self, round_, clients, broadcast):
        self._asked.extend((client, round_, broadcast) for client in clients.tolist())

    def replies(self, timeout=None):  # noqa: ARG002
        while self._asked:
            client, round_, params = self._asked.popleft()
            update, loss = self._train(client, round_, params)
            rows = [{name: array[None] for name, array in update.items()}]  # stacked: one row
            samples, metrics = self._sizes("train")[[client]], {"loss": np.array([loss])}
            yield fedmom.Block(np.array([client]), rows, samples, metrics, round_)

    def under_way(self):
        return [(client, round_) for client, round_, _ in self._asked]

    def cancel(self):
        self._asked.clear()

    def evaluate(self, params, split, budget=None):  # noqa: ARG002
        sizes = self._sizes(split)
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
        rng = np.random.default_rng((self.workload.seed, round_, client))  # as clients must draw
        work = self.workload.work
        optimizer = torch.optim.SGD([w.requires_grad_(), b.requires_grad_()], lr=work.lr)
        losses = []
        for _ in range(work.count(round_, len(y))):
            rows = torch.from_numpy(rng.integers(0, len(y), work.batch_size))
            loss = torch.nn.functional.cross_entropy(self._logits(x[rows], w, b), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        update = {"w": start[0] - w.detach(), "b": start[1] - b.detach()}
        return {name: tensor.numpy() for name, tensor in update.items()}, np.mean(losses)

    def _sizes(self, split):
        return self.workload.data.split(split).size

    def _samples(self, client, split):
        data = self.workload.data
        part = data.split(split)
        rows = slice(part.start[client], part.start[client] + part.size[client])
        x, y = data.arrays["x"][rows], data.arrays["y"][rows]
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
    server = fedmom.servers.fedmom(learning_rate=data.clients / 10, momentum=0.9)
    method = fedmom.Algorithm(server, fedmom.LocalWork(lr=0.005, steps=10, batch_size=10))
    runtime = TorchRuntime(fedmom.Workload(data, model, method))
    for state, record in fedmom.train(runtime, pace=fedmom.synchronous(10), rounds=50):
        if record.round % 25 == 0:
            print(record.round, fedmom.evaluate(runtime, state.params, "test"))
