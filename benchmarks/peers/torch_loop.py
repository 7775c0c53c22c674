"""PyTorch by hand: one process, one thread, one client after another."""

import numpy as np
import torch
import torch_nets
import work as w
from torch_nets import build, flatten, step_of, tensors, train_client


def main():
    options = torch_nets.options()
    torch.set_num_threads(1)
    net = build(options.work)
    local = flatten(net)
    step = step_of(net, compiled=options.compile)
    x, y = tensors(options.work)
    server, total = local.clone(), torch.zeros_like(local)
    rng = np.random.default_rng(1)

    def round_():
        total.zero_()
        for k in w.cohort(rng, options.work, options.clients_per_round):
            local.copy_(server)
            train_client(options.work, step, x[k], y[k])
            total.add_(local)
        torch.div(total, options.clients_per_round, out=server)

    w.measure(round_, options)


if __name__ == "__main__":
    main()
