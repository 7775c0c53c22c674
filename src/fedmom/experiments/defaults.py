"""Settings that were left open, filled in from the data and the algorithm."""

from collections.abc import Mapping
from typing import Any

from fedmom import data as datasets
from fedmom.algorithms import named as algorithms
from fedmom.algorithms.local_work import LocalWork
from fedmom.data.federated import FederatedData
from fedmom.experiments.settings import AUTO, DEFAULT_STEPS, RunConfig, kebab

MODELS = {"text": "char_lstm", "image": "lenet5", "vector": "logreg"}
# Settings of the local work, which some algorithms bring along.
LOCAL_WORK = ("local_steps", "local_epochs", "batch_size", "batches", "solver", "prox")
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
        algorithm: A name, with options or without; what the table does not know is taken for
            FedAvg.

    Examples:
        >>> default_lr("vector", "fedmom:") < default_lr("vector", "fedavg")
        True
    """
    row = STEP_SIZES[kind]
    return row.get(algorithm.partition(":")[0], row["fedavg"])


def fitting(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what an algorithm has no use for, of settings that several share.

    FedSGD brings its own local work, and only some algorithms have momentum.
    """
    spec = str(values.get("algorithm", RunConfig.model_fields["algorithm"].default))
    has_work = algorithms.algorithm(spec).work is not None
    foreign = {kebab(name) for name in LOCAL_WORK} if has_work else set()
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
    work = algorithms.algorithm(config.algorithm).work
    if work is not None and not takes_lr(config.algorithm):
        filled |= settings_of(work)
    elif config.lr == AUTO:
        filled["lr"] = default_lr(data.features.kind, config.algorithm)
    if config.server_lr == AUTO and has_rate(config.algorithm):
        filled["server_lr"] = _server_lr(config, data.clients)
    if work is not None:
        filled["batch_size"] = work.batch_size or "all"
    elif config.local_steps is None and config.local_epochs is None:
        filled["local_steps"] = DEFAULT_STEPS
    return config.model_copy(update=filled)


def _server_lr(config: RunConfig, clients: int) -> float:
    """Return the algorithm's own η if it has one, else the one that its weights ask for."""
    own = algorithms.default_of(config.algorithm, "learning_rate")
    if own is not None and own != 1.0:
        return own
    return clients / config.clients_per_round if config.weighting == "population" else 1.0


def settings_of(work: LocalWork) -> dict[str, Any]:
    """Return the settings that say what an algorithm's own work does, as far as they can."""
    numbers = {"local_steps": work.steps, "local_epochs": work.epochs}
    return {
        **{name: None if callable(n) else n for name, n in numbers.items()},
        "lr": AUTO if callable(work.lr) else work.lr,
        "batches": work.batches,
        "prox": work.prox,
        "batch_size": work.batch_size or "all",
        "solver": RunConfig.model_fields["solver"].default,
    }


def takes_lr(algorithm: str) -> bool:
    """Whether an algorithm that brings its own local work takes γ from the settings."""
    return algorithms.default_of(algorithm, "lr") is not None


def has_rate(algorithm: str) -> bool:
    """Whether an algorithm is made for a server step size; an object is made already."""
    return algorithms.default_of(algorithm, "learning_rate") is not None
