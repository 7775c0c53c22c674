"""Evaluation on this machine: the samples of many clients in one product."""

import copy
import itertools
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedmom.algorithms.forms import Form
from fedmom.algorithms.workload import Workload
from fedmom.core.arguments import short
from fedmom.core.errors import FedMomError
from fedmom.core.types import Params
from fedmom.data.batches import Arrays, Reader, reader, thinned
from fedmom.data.federated import Split
from fedmom.models.adapters import example
from fedmom.models.base import Model, first_form
from fedmom.models.metrics import Metric, accuracy
from fedmom.models.rewriting import fast
from fedmom.models.variables import whole
from fedmom.runtimes.base import Scores

CHUNK = 1024  # samples in a call
CHUNKS = (CHUNK, 256, 64, 16)  # where every client has a model of its own; each is compiled
DRAW = 0x6576616C  # the seed of which samples are evaluated, whatever the run's seed
WHOLE = 2**63  # in place of a client's number: the split as a whole
ClientRange = tuple[int, int]  # the first client of a plan, and the one after the last
Score = Callable[..., tuple[Any, ...]]
BATCH_ON_CPU = 128  # samples in a product: larger ones leave the cache


class Scorer:
    """Evaluates models on the splits of a dataset.

    A budget bounds the samples of a split. When there are more, every client is thinned to a
    random draw of its samples, the largest clients first, and keeps its full weight n_k. With
    fewer samples than clients, the samples are drawn from the split as a whole.

    Args:
        workload: What is run.
        arrays: Its data, as ``place`` returns it.
        workers: Threads; by default one per core.
        score: ``score(params, arrays, positions)`` returns losses and metrics of samples; by
            default a program of JAX.
    """

    def __init__(
        self,
        workload: Workload,
        arrays: dict[str, jax.Array],
        workers: int | None = None,
        score: Score | None = None,
    ) -> None:
        self._data, self._arrays, model = workload.data, arrays, workload.model
        self._metrics, self._workers = model.metrics, workers or os.cpu_count()
        self._score = score or _compile_score(model, reader(self._data.features))
        self._plans: dict[tuple[str, int | None], _Plan] = {}
        self._workload, self._fitting = workload, set[Form]()

    def check(self, params: Params) -> None:
        """Refuse parameters that are not this model's."""
        if not self._fitting:  # the model's own: if it fails with them, that is not their fault
            self._fitting.add(Form.of(first_form(self._workload.model)))
        try:
            form = Form.of(params)
            if form not in self._fitting:
                apply, given = self._workload.model.apply, whole(params, self._workload.frozen)
                jax.eval_shape(apply, given, example(self._data), None)
        except Exception as error:
            raise FedMomError(
                f"evaluate: params is {short(params)}. It must be parameters of the model, such as"
                f" fedmom.model_of returns: {str(error).partition(chr(10))[0]}."
            ) from error
        self._fitting.add(form)

    @property
    def splits(self) -> list[str]:
        """The splits that have samples."""
        return [name for name in ("train", "test") if self._data.split(name).size.any()]

    def plan(self, split: str, budget: int | None) -> "_Plan":
        """Return which samples are evaluated."""
        if split not in self.splits:
            raise FedMomError(
                f"{self._data.name} has no {short(split)} samples to evaluate: split must be one of"
                f" {', '.join(self.splits)}."
            )
        if (split, budget) not in self._plans:
            self._plans[split, budget] = _Plan(self._data.split(split), budget)
        return self._plans[split, budget]

    def __call__(
        self, params: Params, split: str, budget: int | None, part: ClientRange | None = None
    ) -> Scores:
        """Evaluate one model on all clients, or on some of the plan's."""
        plan = self.plan(split, budget).within(part)
        firsts = range(0, len(plan.positions), CHUNK)
        return self._scores(plan, lambda first: [self._chunk(params, plan, first)], firsts)

    def personal(
        self,
        model_of: Callable[[int], Params],
        split: str,
        budget: int | None,
        part: ClientRange | None = None,
    ) -> Scores:
        """Evaluate every client, or some of the plan's, with a model of its own."""
        plan = self.plan(split, budget).within(part)
        ends = np.cumsum(plan.taken)

        def one(client: int, first: int, end: int) -> list[list["_Column"]]:
            params = model_of(client)
            return [self._chunk(params, plan, *piece) for piece in _pieces(first, end)]

        places = plan.clients.tolist(), (ends - plan.taken).tolist(), ends.tolist()
        return self._scores(plan, one, *places)

    def _chunk(
        self, params: Params, plan: "_Plan", first: int, count: int = CHUNK, room: int = CHUNK
    ) -> list["_Column"]:
        """Evaluate some samples in one call with room for more; return losses and metrics."""
        here = slice(first, first + count)
        rows = plan.positions[here]
        padded = np.pad(rows, (0, room - len(rows)), mode="edge")
        found = self._score(whole(params, self._workload.frozen), self._arrays, padded)
        values = (np.asarray(each)[: len(rows)] for each in found)
        return [v if v.ndim == 1 else _RowSums.of(v, plan.owner[here]) for v in values]

    def _scores(
        self, plan: "_Plan", one: Callable[..., list[list["_Column"]]], *places: Iterable[int]
    ) -> Scores:
        """Evaluate the places on threads; return the sums per client."""
        with ThreadPoolExecutor(self._workers) as pool:
            parts = itertools.chain.from_iterable(pool.map(one, *places))
            columns = [_joined(values) for values in zip(*parts, strict=True)]
        return plan.scores(*columns, metrics=self._metrics)


def _pieces(first: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Cut samples into calls: for each the first sample, how many, and the room for them.

    More than half of the room is used, unless there is no smaller one.
    """
    while first < end:
        room = next((room for room in CHUNKS if room < 2 * (end - first)), CHUNKS[-1])
        count = min(room, end - first)
        yield first, count, room
        first += count


class _RowSums(NamedTuple):
    """Rows of numbers, added up by client: those of single samples would fill the memory."""

    owners: NDArray[np.int64]
    sums: NDArray[np.float64]

    @classmethod
    def of(cls, rows: NDArray[Any], owners: NDArray[np.int64]) -> "_RowSums":
        firsts = np.flatnonzero(np.diff(owners, prepend=-1))
        return cls(owners[firsts], np.add.reduceat(rows.astype(np.float64), firsts))


_Column = NDArray[Any] | _RowSums  # a number of every sample, or rows of numbers


def _joined(parts: Sequence[Any]) -> _Column:
    if isinstance(parts[0], _RowSums):
        return _RowSums(*(np.concatenate(each) for each in zip(*parts, strict=True)))
    return np.concatenate(parts)


class _Plan:
    """Which positions of a split are evaluated, and whose they are.

    Samples are drawn at random, by a seed that is not the run's: all runs on one dataset are
    evaluated on the same samples.
    """

    def __init__(self, split: Split, budget: int | None, seed: int = DRAW) -> None:
        clients = np.flatnonzero(split.size)
        start, size = split.start[clients], split.size[clients]
        if budget is None or budget >= len(size):
            # Every client has its part, and counts by all of its samples.
            taken, weight = np.minimum(size, cap(size, budget)), size
            places = _places(size, taken, clients, seed)
            owner = np.repeat(np.arange(len(size)), taken)
        else:
            # There are more clients than samples to evaluate. Every sample of the split is as
            # likely as any other, so clients count by what was drawn of them.
            drawn = thinned(int(size.sum()), budget, WHOLE, seed)
            ends = np.cumsum(size)
            owner = np.searchsorted(ends, drawn, side="right")
            places = drawn - (ends - size)[owner]
            taken = weight = np.bincount(owner, minlength=len(size))
        seen = taken > 0
        self.clients, self.taken, self.samples = clients[seen], taken[seen], weight[seen]
        self.owner = (np.cumsum(seen) - 1)[owner]
        self.positions = (start[owner] + places).astype(np.int32)

    def parts(self, most: int) -> list[ClientRange]:
        """Cut the clients into at most so many parts of about as many samples each."""
        count = min(most, -(-len(self.positions) // CHUNK))
        ends = np.cumsum(self.taken)
        cuts = np.searchsorted(ends, np.arange(1, count) * ends[-1] / count) + 1
        bounds = [0, *cuts.tolist(), len(ends)]
        return [(a, b) for a, b in itertools.pairwise(bounds) if a < b]

    def within(self, part: ClientRange | None) -> "_Plan":
        """Return the plan of some of its clients."""
        if part is None:
            return self
        some, own, rows = copy.copy(self), slice(*part), slice(*np.searchsorted(self.owner, part))
        some.clients, some.taken, some.samples = (
            each[own] for each in (self.clients, self.taken, self.samples)
        )
        some.owner, some.positions = self.owner[rows] - part[0], self.positions[rows]
        return some

    def scores(self, *columns: _Column, metrics: tuple[Metric, ...] = (accuracy(),)) -> Scores:
        """Return the sums per client of losses and of metrics."""
        names = ("loss", *(metric.name for metric in metrics))
        sums = {name: self._sum(column) for name, column in zip(names, columns, strict=True)}
        return Scores(self.samples, self.taken, sums, metrics)

    def _sum(self, column: _Column) -> NDArray[np.float64]:
        if isinstance(column, _RowSums):
            total = np.zeros((len(self.taken), column.sums.shape[1]))
            np.add.at(total, column.owners, column.sums)
            return total
        return np.bincount(self.owner, column, len(self.taken)).astype(np.float64)


def _places(
    size: NDArray[np.int64], taken: NDArray[np.int64], clients: NDArray[np.int64], seed: int
) -> NDArray[np.int64]:
    """Return, client after client, which of its samples are taken, counted from its first."""
    if (taken == size).all():  # most often, and quick for millions of clients
        return np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
    each = zip(size.tolist(), taken.tolist(), clients.tolist(), strict=True)
    return np.concatenate([thinned(n, t, k, seed) for n, t, k in each])


def cap(sizes: NDArray[np.int64], budget: int | None) -> int:
    """Return the largest c such that Σ min(size, c) keeps to the budget, which has room for 1."""
    most = int(sizes.max(initial=1))
    if budget is None:
        return most
    caps = range(1, most + 1)
    return max(1, bisect_right(caps, budget, key=lambda c: int(np.minimum(sizes, c).sum())))


@lru_cache(maxsize=16)  # runs of one process share it
def _compile_score(model: Model, read: Reader) -> Score:
    batch = BATCH_ON_CPU if jax.default_backend() == "cpu" else CHUNK

    def score(params: Params, arrays: Arrays, positions: jax.Array) -> tuple[jax.Array, ...]:
        def one_batch(rows: jax.Array) -> tuple[jax.Array, ...]:
            x, y = read(arrays, rows)
            outputs = model.apply(params, x, None)

            def seen(metric: Metric) -> jax.Array:
                changed = metric.inputs
                return outputs if changed is None else model.apply(params, changed(x), None)

            return _measures(model, outputs, y, seen)

        found = jax.lax.map(one_batch, positions.reshape(-1, min(batch, len(positions))))
        return tuple(each.reshape(-1, *each.shape[2:]) for each in found)

    return jax.jit(fast(score, model))


@lru_cache(maxsize=16)
def compile_measures(model: Model, read: Reader) -> Score:
    """Return ``measures(outputs, arrays, positions)``: losses and metrics of given outputs."""
    for metric in model.metrics:
        if metric.inputs is not None:
            raise FedMomError(
                f"The metric {metric.name} is measured on other inputs than the samples', which"
                " this runtime cannot do. Use --runtime local."
            )

    @jax.jit
    def measures(outputs: jax.Array, arrays: Arrays, positions: jax.Array) -> tuple[jax.Array, ...]:
        return _measures(model, outputs, read(arrays, positions)[1], lambda _: outputs)

    return measures


def _measures(
    model: Model, outputs: jax.Array, y: jax.Array, seen: Callable[[Metric], jax.Array]
) -> tuple[jax.Array, ...]:
    """Return losses and metrics; ``seen(metric)`` are the outputs that it is measured on."""
    losses, counts = model.loss_sums(outputs, y)
    losses = losses if counts is None else jnp.stack([losses, counts], axis=-1)
    return losses, *(_measured(m, seen(m), y) for m in model.metrics)


def _measured(metric: Metric, outputs: jax.Array, labels: jax.Array) -> jax.Array:
    found = metric.per_sample(outputs, labels)
    if found.ndim != 1 + (metric.value is not None) or len(found) != len(labels):
        wanted = "a row of numbers" if metric.value is not None else "one number"
        raise FedMomError(
            f"The metric {metric.name} has shape {found.shape} for {len(labels)} samples. Its"
            f" per_sample returns {wanted} per sample."
        )
    return found
