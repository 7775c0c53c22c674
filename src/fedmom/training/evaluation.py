"""Loss and accuracy over all clients: means weighted by samples, percentiles over clients."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr

from fedmom.core.errors import DivergedError
from fedmom.core.types import Params
from fedmom.runtimes.base import Runtime, Scores

PERCENTILES = (10, 50, 90)
HALVINGS = 32  # of [0, 1], to find a percentile


@dataclass(frozen=True)
class Metrics:
    """One split of one model. Means weigh clients by samples; percentiles weigh them alike.

    A client with few samples has a high or a low accuracy by chance. So beside every percentile
    stands the one that identical clients would show: each with the samples it has, and each
    sample right with the same probability, the mean accuracy. Clients differ where the two do.

    Args:
        loss: The mean loss.
        accuracy: The mean accuracy.
        accuracy_p10: The 10th percentile of the clients' accuracies.
        accuracy_p50: The median.
        accuracy_p90: The 90th percentile.
        accuracy_p10_identical: The 10th percentile that identical clients would show.
        accuracy_p50_identical: Their median.
        accuracy_p90_identical: Their 90th percentile.
        clients: How many clients were evaluated.
        samples: How many samples were evaluated.

    Examples:
        >>> scores = Scores(
        ...     samples=np.array([10, 30]),
        ...     evaluated=np.array([10, 30]),
        ...     sums={"loss": np.array([9.0, 30.0]), "accuracy": np.array([5.0, 19.0])},
        ... )
        >>> metrics = summarize(scores)
        >>> metrics.accuracy, metrics.clients, metrics.samples
        (0.6, 2, 40)
        >>> metrics.row(10, "test")["round"]
        10
    """

    loss: float
    accuracy: float
    accuracy_p10: float
    accuracy_p50: float
    accuracy_p90: float
    accuracy_p10_identical: float
    accuracy_p50_identical: float
    accuracy_p90_identical: float
    clients: int
    samples: int

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
    p10, p50, p90 = np.percentile(per_client["accuracy"], PERCENTILES).tolist()
    i10, i50, i90 = (identical_percentile(scores.evaluated, accuracy, p) for p in PERCENTILES)
    clients, samples = len(scores.evaluated), int(scores.evaluated.sum())
    return Metrics(loss, accuracy, p10, p50, p90, i10, i50, i90, clients, samples)


def identical_percentile(samples: NDArray[np.int64], accuracy: float, percent: float) -> float:
    """Return a percentile of the accuracies that clients show by chance alone.

    Client k is right on a binomial number of its m_k samples. The percentile is that of the
    mixture of these distributions, which is what many clients come near to.

    Args:
        samples: m_k, the evaluated samples of every client.
        accuracy: The probability to be right on a sample, for all clients the same.
        percent: Which percentile, from 0 to 100.

    Examples:
        >>> round(identical_percentile(np.full(100, 20), 0.5, 10), 6)  # 7 of 20
        0.35
    """
    sizes, counts = np.unique(samples, return_counts=True)
    low, high = -1.0 / sizes[-1], 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        below = bdtr(np.floor(middle * sizes + 1e-9), sizes, accuracy)  # 0 below no hit at all
        share = counts @ np.where(middle < 0, 0.0, below) / counts.sum()
        low, high = (low, middle) if share >= percent / 100 else (middle, high)
    return round(float(max(0.0, high)), 9)
