"""Federated methods: what clients do, how updates are combined, what the server does with them.

The tables hold names only, so that listing them needs no JAX. ``base`` has the types, ``server``
the optimizers, ``local_work`` and ``client`` what clients do, ``rules`` and ``stages`` the rest.
"""

from fedmom.core.registry import Registry

_SERVER = "fedmom.algorithms.server"
ALGORITHMS = Registry(
    "algorithm",
    {
        name: f"{_SERVER}:{name}"
        for name in (
            *("fedsgd", "fedavg", "fedmom", "fedmom_zero_start"),
            *("fedavgm", "fedadagrad", "fedadam", "fedyogi"),
        )
    }
    | {"diloco": "fedmom.algorithms.methods.diloco:diloco"},
    takes=(),
    elsewhere={"fedprox": "FedProx is fedavg with a setting: --algorithm fedavg --prox 0.1."},
)
SOLVERS = Registry(
    "solver",
    {
        name: f"fedmom.algorithms.solvers:{name}"
        for name in ("sgd", "momentum", "rmsprop", "adam", "adamw")
    },
    returns="optax:GradientTransformation",
    takes=("lr",),
)
SCHEDULES = Registry(
    "schedule",
    {
        name: f"fedmom.algorithms.schedules:{name}"
        for name in ("linear", "cosine", "exponential", "inverse", "inverse_sqrt", "step")
    },
    returns="function",
    takes=(),
)
RULES = Registry(
    "rule",
    {name: f"fedmom.algorithms.rules:{name}" for name in ("mean", "trimmed_mean", "median")}
    | {
        name: f"fedmom.algorithms.robust:{name}"
        for name in ("krum", "multi_krum", "geometric_median", "centered_clipping", "norm_bound")
    },
    returns="fedmom.algorithms.base:Rule",
    takes=("weighting",),
)
STAGES = Registry(
    "stage",
    {name: f"fedmom.algorithms.stages:{name}" for name in ("clip", "noise", "quantize")}
    | {
        name: f"fedmom.algorithms.mixing:{name}"
        for name in ("bucketing", "nearest_neighbour_mixing")
    },
    returns="fedmom.algorithms.base:Stage",
    takes=(),
)
ATTACKS = Registry(
    "attack",
    {
        name: f"fedmom.algorithms.attacks:{name}"
        for name in ("sign_flip", "gaussian", "label_flip", "backdoor", "alie", "ipm")
    },
    returns="fedmom.algorithms.base:Attack",
    takes=(),
)
