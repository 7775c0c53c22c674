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


def main():
    options = torch_nets.options()
    torch.set_num_threads(1)
    x, y = tensors(options.work)
    server = flatten(build(options.work)).share_memory_()
    context = multiprocessing.get_context("fork")  # workers share the data
    workers = []
    for _ in range(os.cpu_count() or 1):
        total = torch.zeros_like(server).share_memory_()
        ours, theirs = context.Pipe()
        process = context.Process(
            target=serve, args=(options, x, y, server, total, theirs), daemon=True
        )
        process.start()
        workers.append((ours, total))
    rng = np.random.default_rng(1)

    def round_():
        clients = w.cohort(rng, options.work, options.clients_per_round)
        for i, (pipe, _) in enumerate(workers):
            pipe.send(clients[i :: len(workers)].tolist())
        for pipe, _ in workers:
            pipe.recv()
        torch.sum(torch.stack([total for _, total in workers]), 0, out=server)
        server.div_(options.clients_per_round)

    w.measure(round_, options)
    for pipe, _ in workers:
        pipe.send(None)


if __name__ == "__main__":
    main()
