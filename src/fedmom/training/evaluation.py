"""Loss and metrics over all clients: means weighted by samples, percentiles over clients."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr

from fedmom.core.arguments import checked
from fedmom.core.errors import DivergedError
from fedmom.core.types import LOWER_IS_BETTER, UNRANKED, Params
from fedmom.models.metrics import Metric, ratio
from fedmom.runtimes.base import Budget, Runtime, Scores

PERCENTILES = (10, 50, 90)
HALVINGS = 32  # of [0, 1], to find a percentile


@dataclass(frozen=True, repr=False)
class Metrics:
    """One split of one model. Means weigh clients by samples; percentiles weigh them alike.

    Every metric of the model is an attribute, such as ``accuracy``, and so are its percentiles over
    clients, ``accuracy_p10``, ``accuracy_p50`` and ``accuracy_p90``. What has no finite value, such
    as the AUC of samples of one class, is NaN. Clients without a value are left out of percentiles,
    which are not there if no client has one.

    A client with few samples has a high or a low accuracy by chance. So beside every percentile
    stands the one that identical clients would show, ``accuracy_p10_identical``: each with the
    samples it has, and each sample right with the same probability, the mean accuracy. Clients
    differ where the two do. Metrics that are no share of samples have no such number.

    Args:
        loss: The mean loss.
        values: All metrics and percentiles, by name.
        clients: How many clients were evaluated.
        samples: How many samples were evaluated.
        lower_is_better: The metrics of which a lower value is better.
        unranked: The metrics of which it is unknown whether higher or lower is better.

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
    values: Mapping[str, float]
    clients: int
    samples: int
    lower_is_better: tuple[str, ...] = ()
    unranked: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> float:
        values = self.__dict__.get("values", {})
        if name not in values:
            raise AttributeError(f"There is no metric {name!r}; there are {', '.join(values)}.")
        return float(values[name])

    def __repr__(self) -> str:
        numbers = {"loss": self.loss, **self.values}
        texts = [f"{name}={value:.6g}" for name, value in numbers.items()]
        return f"Metrics({', '.join(texts)}, clients={self.clients}, samples={self.samples})"

    def row(self, round_: int, split: str) -> dict[str, Any]:
        """Return the line of ``evals.jsonl``.

        Args:
            round_: Rounds done.
            split: ``train`` or ``test``.

        Returns:
            What is written, by name.
        """
        counts = {"clients": self.clients, "samples": self.samples}
        lists = {LOWER_IS_BETTER: self.lower_is_better, UNRANKED: self.unranked}
        row = {"round": round_, "split": split, "loss": self.loss, **self.values, **counts}
        return row | {name: list(metrics) for name, metrics in lists.items() if metrics}


@checked
def evaluate(runtime: Runtime, params: Params, split: str, budget: Budget = None) -> Metrics:
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
        >>> work = fedmom.LocalWork(lr=0.01, steps=2)
        >>> workload = fedmom.Workload(data, model, fedmom.Algorithm(fedmom.servers.fedavg(), work))
        >>> state, runtime = fedmom.start(workload), fedmom.LocalRuntime(workload)
        >>> 0 <= evaluate(runtime, state.params, "test").accuracy <= 1
        True
    """
    return summarize(runtime.evaluate(params, split, budget))


def summarize(scores: Scores) -> Metrics:
    """Return means and percentiles of what clients measured."""
    loss = loss_per_client(scores)[1]
    if not math.isfinite(loss):
        raise DivergedError("The model's loss is not finite. Use a smaller --lr.")
    values = {k: v for metric in scores.metrics for k, v in _numbers(metric, scores)}
    lower, unranked = (
        tuple(metric.name for metric in scores.metrics if metric.higher_is_better is said)
        for said in (False, None)
    )
    clients, samples = len(scores.evaluated), int(scores.evaluated.sum())
    return Metrics(loss, values, clients, samples, lower, unranked)


def _numbers(metric: Metric, scores: Scores) -> Iterator[tuple[str, float]]:
    """Yield a metric and its percentiles over clients, by name."""
    name = metric.name
    each, whole = per_client(metric, scores)
    yield name, whole if math.isfinite(whole) else math.nan
    known = each[np.isfinite(each)]
    if not len(known):
        return
    for p, value in zip(PERCENTILES, np.percentile(known, PERCENTILES).tolist(), strict=True):
        yield f"{name}_p{p}", value
    if metric.hits and math.isfinite(whole):
        for p in PERCENTILES:
            yield f"{name}_p{p}_identical", identical_percentile(scores.evaluated, whole, p)


def per_client(metric: Metric, scores: Scores) -> tuple[NDArray[np.float64], float]:
    """Return a metric of every client, and of all; those that were thinned have full weight."""
    return _combined(scores, metric.name, metric.value)


def loss_per_client(scores: Scores) -> tuple[NDArray[np.float64], float]:
    """Return the loss of every client, and of all: of terms, such as positions, if it has some."""
    return _combined(scores, "loss", ratio if scores.sums["loss"].ndim > 1 else None)


def _combined(
    scores: Scores, name: str, value: Callable[[Any], Any] | None
) -> tuple[NDArray[np.float64], float]:
    sums = scores.sums[name]
    if value is None:
        each = sums / scores.evaluated
        return each, float(np.average(each, weights=scores.samples))
    full = scores.samples / scores.evaluated
    return np.asarray(value(sums)), float(value(full @ sums))


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
