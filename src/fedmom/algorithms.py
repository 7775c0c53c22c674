"""The by-name table of algorithms: a server optimizer, and what its clients do."""

from collections.abc import Callable
from typing import NamedTuple

import optax

from fedmom import server


class Algorithm(NamedTuple):
    """One row: the optimizer, a line for the user, and how it departs from FedAvg."""

    optimizer: Callable[..., optax.GradientTransformation]
    about: str
    momentum: float | None = None  # default β; None: the algorithm has no momentum
    full_gradient: bool = False  # clients send one step on their whole data
    step: float | None = None  # η for `auto`; None: what the weighting asks for


ALGORITHMS: dict[str, Algorithm] = {
    "fedsgd": Algorithm(server.fedavg, "one full gradient per client", full_gradient=True),
    "fedavg": Algorithm(server.fedavg, "model averaging (Algorithm 1)"),
    "fedmom": Algorithm(server.fedmom, "Nesterov momentum on the server (Algorithm 3)", 0.9),
    "fedmom_zero_start": Algorithm(
        server.fedmom_zero_start, "FedMom with v_0 = 0, as in its author's code", 0.9
    ),
    "fedavgm": Algorithm(server.fedavgm, "heavy-ball momentum (Hsu et al. 2019)", 0.9),
    "fedadagrad": Algorithm(server.fedadagrad, "Adagrad (Reddi et al. 2021)", 0.0, step=0.01),
    "fedadam": Algorithm(server.fedadam, "Adam (Reddi et al. 2021)", 0.9, step=0.01),
    "fedyogi": Algorithm(server.fedyogi, "Yogi (Reddi et al. 2021)", 0.9, step=0.01),
}
