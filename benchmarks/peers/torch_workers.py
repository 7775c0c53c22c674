"""PyTorch by hand: a worker process for each core, models in shared memory."""

import multiprocessing
import os

import numpy as np
import torch
import torch_nets
import work as w
from torch_nets import build, flatten, step_of, tensors, train_client


def serve(options, x, y, server, total, pipe):
    """Train the clients that come through the pipe; leave the sum of their models."""
    torch.set_num_threads(1)
    torch.manual_seed(os.getpid())
    net = build(options.work)
    local = flatten(net)
    step = step_of(net, compiled=options.compile)
    while (clients := pipe.recv()) is not None:
        total.zero_()
        for k in clients:
            local.copy_(server)
            train_client(options.work, step, x[k], y[k])
            total.add_(local)
        pipe.send(True)


class Loop:
    """The server, and a process for each core."""

    def __init__(self, options, workers):
        torch.set_num_threads(1)
        self.size = options.clients_per_round
        x, y = tensors(options.work)
        self.server = flatten(build(options.work)).share_memory_()
        context = multiprocessing.get_context("fork")  # workers share the data
        self.workers = []
        for _ in range(workers):
            total = torch.zeros_like(self.server).share_memory_()
            ours, theirs = context.Pipe()
            process = context.Process(
                target=serve, args=(options, x, y, self.server, total, theirs), daemon=True
            )
            process.start()
            self.workers.append((ours, total))

    def round(self, clients):
        """Deal the clients to the workers, and take the mean of their models."""
        for i, (pipe, _) in enumerate(self.workers):
            pipe.send(clients[i :: len(self.workers)].tolist())
        for pipe, _ in self.workers:
            pipe.recv()
        torch.sum(torch.stack([total for _, total in self.workers]), 0, out=self.server)
        self.server.div_(self.size)

    def close(self):
        """Let the workers end."""
        for pipe, _ in self.workers:
            pipe.send(None)


def main():
    options = torch_nets.options()
    loop = Loop(options, os.cpu_count() or 1)
    rng = np.random.default_rng(1)
    w.measure(lambda: loop.round(w.cohort(rng, options.work, options.clients_per_round)), options)
    loop.close()


if __name__ == "__main__":
    main()
