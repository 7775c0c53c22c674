"""The round loop, whom it asks and when, and what is measured on the way."""

from fedmom.core.registry import Registry

SAMPLERS = Registry(
    "sampler",
    {name: f"fedmom.training.samplers:{name}" for name in ("uniform", "poisson", "weighted")},
    takes=("seed", "round", "size", "samples"),
)
PACES = Registry(
    "pace",
    {name: f"fedmom.training.pace:{name}" for name in ("synchronous", "over_selected", "buffered")},
    returns="fedmom.training.pace:Pace",
    takes=("clients_per_round", "sampler"),
)
