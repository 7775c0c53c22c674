"""Loss and accuracy over all clients: means weighted by samples, percentiles over clients."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedmom.core.errors import DivergedError
from fedmom.core.types import Params
from fedmom.runtimes.base import Runtime, Scores


@dataclass(frozen=True)
class Metrics:
    """One split of one model. Means weigh clients by samples; percentiles weigh them alike.

    Args:
        loss: The mean loss.
        accuracy: The mean accuracy.
        accuracy_p10: The 10th percentile of the clients' accuracies.
        accuracy_p50: The median.
        accuracy_p90: The 90th percentile.

    Examples:
        >>> metrics = Metrics(1.2, 0.6, accuracy_p10=0.4, accuracy_p50=0.6, accuracy_p90=0.8)
        >>> metrics.row(10, "test")["accuracy"]
        0.6
    """

    loss: float
    accuracy: float
    accuracy_p10: float
    accuracy_p50: float
    accuracy_p90: float

    def row(self, round_: int, split: str) -> dict[str, Any]:
        """Return the line of ``evals.jsonl``."""
        return {"round": round_, "split": split, **asdict(self)}


def evaluate(runtime: Runtime, params: Params, split: str, budget: int | None = None) -> Metrics:
    """Ask the clients of a runtime to evaluate a model.

    Args:
        runtime: Where the clients live.
        params: The model's parameters.
        split: ``train`` or ``test``.
        budget: The most samples to evaluate; None evaluates all.

    Returns:
        Means weighted by samples, and percentiles over clients.

    Examples:
        >>> import fedmom
        >>> data = fedmom.load_data("synthetic:clients=4")
        >>> model = fedmom.build_model("logreg", data.features)
        >>> runtime = fedmom.LocalRuntime(data, model, fedmom.LocalWork(lr=0.01, steps=2))
        >>> state = fedmom.start(model, fedmom.Algorithm(fedmom.fedavg()))
        >>> 0 <= evaluate(runtime, state.params, "test").accuracy <= 1
        True
    """
    return summarize(runtime.evaluate(params, split, budget))


def summarize(scores: Scores) -> Metrics:
    """Return means and percentiles of what clients measured."""
    per_client = {name: sums / scores.evaluated for name, sums in scores.sums.items()}
    loss, accuracy = (
        float(np.average(per_client[name], weights=scores.samples)) for name in ("loss", "accuracy")
    )
    if not math.isfinite(loss):
        raise DivergedError("The model's loss is not finite. Take a smaller --lr.")
    percentiles = np.percentile(per_client["accuracy"], (10, 50, 90))
    return Metrics(loss, accuracy, *(float(p) for p in percentiles))
