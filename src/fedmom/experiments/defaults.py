"""Settings that were left open, filled in from the data and the algorithm."""

from collections.abc import Mapping
from typing import Any

from fedmom import data as datasets
from fedmom.algorithms import named as algorithms
from fedmom.data.federated import FederatedData
from fedmom.experiments import decided
from fedmom.experiments.settings import AUTO, DEFAULT_STEPS, RunConfig, kebab
from fedmom.models import identified

MODELS = {"text": "char_lstm", "image": "lenet5", "vector": "logreg"}
# Settings of the local work, which some algorithms bring along.
LOCAL_WORK = (
    "local_steps",
    "local_epochs",
    "batch_size",
    "batches",
    "solver",
    "prox",
    "accumulate",
)
# The client learning rates γ that ``lr = "auto"`` takes. Made by benchmarks/step_sizes.py, with 100
# rounds of the default settings (M=2, B=10, H=10, population weights) on synthetic, glyphs and
# shakespeare:roles=100,samples=1000.
STEP_SIZES = {
    kind: dict(zip(("fedsgd", "fedavg", "fedmom", "fedavgm"), plain, strict=True))
    | dict(zip(("fedadagrad", "fedadam", "fedyogi"), adaptive, strict=True))
    for kind, plain, adaptive in (
        ("vector", (0.1, 0.01, 0.001, 0.001), (0.1, 0.1, 0.1)),
        ("image", (0.3, 0.1, 0.01, 0.01), (0.03, 0.03, 0.03)),
        ("text", (3.0, 1.0, 0.3, 0.3), (0.1, 1.0, 1.0)),
    )
}


def default_lr(kind: str, algorithm: str) -> float:
    """Return the γ for a kind of data and an algorithm.

    Args:
        kind: "vector", "image" or "text".
        algorithm: A name, with options or without; what the table does not know has a default of
            its own, or is taken for FedAvg.

    Examples:
        >>> default_lr("vector", "fedmom:") < default_lr("vector", "fedavg")
        True
    """
    row = STEP_SIZES[kind]
    name = algorithm.partition(":")[0]
    own = None if name in row else algorithms.default_of(algorithm, "lr")
    return row.get(name, row["fedavg"] if own is None else float(own))


def fitting(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what an algorithm has no use for, of settings that several share.

    FedSGD brings its own local work, an object its own server learning rate, and only some
    algorithms have momentum.
    """
    spec = str(values.get("algorithm", RunConfig.model_fields["algorithm"].default))
    has_work = algorithms.algorithm(spec).work is not None
    foreign = {kebab(name) for name in LOCAL_WORK} if has_work else set()
    if has_work and not decided.takes_lr(spec):
        foreign |= {"lr"}
    if not decided.has_rate(spec):
        foreign |= {"server-lr"}
    if algorithms.default_of(spec, "momentum") is None:
        foreign |= {"momentum"}
    return {key: value for key, value in values.items() if key not in foreign}


def complete(config: RunConfig, data: FederatedData) -> RunConfig:
    """Fill in what follows from the data and the algorithm."""
    filled: dict[str, Any] = {"data": datasets.locate(config.data)}
    if config.momentum is None:
        filled["momentum"] = algorithms.default_of(config.algorithm, "momentum")
    if config.model == "auto":
        filled["model"] = MODELS[data.features.kind]
    if config.adapt is not None:
        filled["adapt"] = identified(config.adapt)
    if config.lr == AUTO:
        filled["lr"] = default_lr(data.features.kind, config.algorithm)
    if config.server_lr == AUTO and decided.has_rate(config.algorithm):
        filled["server_lr"] = decided.server_lr(config, data.clients)
    work = algorithms.made(config.algorithm).work
    if work is None and config.local_steps is None and config.local_epochs is None:
        filled["local_steps"] = DEFAULT_STEPS
    return config.model_copy(update=filled | decided.settings(config))
