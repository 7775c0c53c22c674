"""Samplers draw the cohort of a round: functions of (seed, round, size, samples).

``size`` is M, the clients to draw, and ``samples`` has n_k of every client. A draw from a million
clients costs no more than one from ten thousand.
"""

from collections.abc import Callable
from functools import lru_cache, partial, wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmom.core.arguments import checked, short
from fedmom.core.errors import FedMomError
from fedmom.core.validation import Count, Seed

Cohort = NDArray[np.int64]
Sampler = Callable[[int, int, int, NDArray[np.int64]], Cohort]
Pick = Callable[[np.random.Generator], Cohort]
LARGE = 10_000  # clients: larger populations are not sorted for every draw


@checked
def uniform(seed: Seed, round_: Count, size: int, samples: NDArray[np.int64]) -> Cohort:
    """Uniformly, without replacement (the paper's).

    Args:
        seed: The run's seed.
        round_: Rounds done.
        size: M, the clients of a round.
        samples: n_k of every client; only their number counts here.

    Returns:
        The clients' numbers.

    Examples:
        >>> samples = np.ones(100, np.int64)
        >>> len(uniform(0, 1, 3, samples))
        3
    """
    _check(len(samples), size)
    return cohort(seed, round_, len(samples), size)


@checked
def poisson(seed: Seed, round_: Count, size: int, samples: NDArray[np.int64]) -> Cohort:
    """Each client by itself with probability M/K, so that the cohort's size varies.

    Privacy accounting often assumes it. A cohort may be empty; the round's aggregate is then 0.

    Args:
        seed: The run's seed.
        round_: Rounds done.
        size: M, the mean number of clients.
        samples: n_k of every client; only their number counts here.

    Returns:
        The clients' numbers.

    Examples:
        >>> samples = np.ones(100, np.int64)
        >>> sizes = [len(poisson(0, round_, 10, samples)) for round_ in range(1000)]
        >>> bool(9 < np.mean(sizes) < 11)
        True
    """
    clients = len(samples)
    _check(clients, size)
    rng = generator(seed, round_)
    # Given its size, such a cohort is a uniform one.
    return _without_replacement(rng, clients, int(rng.binomial(clients, size / clients)))


@checked
def weighted(seed: Seed, round_: Count, size: int, samples: NDArray[np.int64]) -> Cohort:
    """A client is in with probability M n_k/n.

    By systematic sampling in a random order; by Sampford's method from a large population, so that
    a draw does not touch all of it. Use it with uniform weights: the mean of the drawn updates is
    then, in expectation, the mean of all clients weighted by their samples. A client that has more
    than n/M samples is in every cohort, and the rest of the cohort is drawn from the others by the
    same rule; it then counts less than its share.

    Args:
        seed: The run's seed.
        round_: Rounds done.
        size: M, the clients of a round.
        samples: n_k of every client.

    Returns:
        The clients' numbers.

    Examples:
        >>> samples = np.array([1, 1, 998])
        >>> drawn = [int(weighted(0, round_, 1, samples)[0]) for round_ in range(100)]
        >>> drawn.count(2) > 90
        True
    """
    always, others, pick = _weighted(_Identity(samples), size)
    if pick is None:
        return always
    drawn = others[pick(generator(seed, round_))]
    return np.sort(np.concatenate([always, drawn]))


class _Identity:
    """An array as a key: equal to itself only, so that it is not read."""

    def __init__(self, array: NDArray[np.int64]) -> None:
        self.array = array

    def __hash__(self) -> int:
        return id(self.array)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.array is self.array


@lru_cache(maxsize=8)  # a pace may ask for several sizes in turn
def _weighted(population: _Identity, size: int) -> tuple[Cohort, Cohort, Pick | None]:
    """Return who is in every cohort, the others, and what picks among them."""
    samples = np.asarray(population.array)
    _check(int(np.count_nonzero(samples)), size)
    always, others = _certain(samples, size)
    left = size - len(always)
    if not left:
        return always, others, None
    pick = (len(others) > LARGE and _sampford(samples[others], left)) or (
        lambda rng: _systematic(rng, samples[others], left)
    )
    return always, others, pick


def _systematic(rng: np.random.Generator, samples: NDArray[np.int64], size: int) -> Cohort:
    """One in every n/M samples, from a random first: no client is as long as that."""
    order = rng.permutation(len(samples))
    ends = np.cumsum(samples[order])
    points = (rng.random() + np.arange(size)) * (ends[-1] / size)
    return order[np.searchsorted(ends, np.minimum(points, ends[-1] - 1), side="right")]


def _sampford(samples: NDArray[np.int64], size: int) -> Pick | None:
    """Sampford's method (1967): draw with replacement until all are different.

    The first by p_k = n_k/n, the others by p_k/(1 - M p_k): a client is then in with probability
    M p_k exactly. Each draw costs M log K. None where every second one would be in vain.
    """
    first = samples / samples.sum()
    others = first / (1 - size * first)
    others /= others.sum()
    clashes = (size - 1) * (first @ others) + (size - 1) * (size - 2) / 2 * (others @ others)
    if clashes > 0.5:
        return None
    ends = [np.cumsum(first), *[np.cumsum(others)] * (size - 1)]

    def pick(rng: np.random.Generator) -> Cohort:
        while True:
            points = rng.random(size)
            drawn = [
                np.searchsorted(e, p * e[-1], "right") for e, p in zip(ends, points, strict=True)
            ]
            cohort = np.minimum(drawn, len(samples) - 1)  # a point may be rounded up to the end
            if len(set(cohort.tolist())) == size:
                return cohort

    return pick


def _certain(samples: NDArray[np.int64], size: int) -> tuple[Cohort, Cohort]:
    """Return who is in every weighted cohort, and the others that have samples."""
    others = np.flatnonzero(samples)
    always = np.zeros(0, np.int64)
    while size > len(always):
        share = samples[others] * (size - len(always))
        whole = share >= samples[others].sum()
        if not whole.any():
            break
        always, others = np.concatenate([always, others[whole]]), others[~whole]
    return np.sort(always), others


def cohort(seed: int, round_: int, clients: int, size: int) -> Cohort:
    """Draw ``size`` of ``clients`` uniformly without replacement, sorted."""
    return _without_replacement(generator(seed, round_), clients, size)


def _without_replacement(rng: np.random.Generator, clients: int, size: int) -> Cohort:
    """Floyd's algorithm: as many draws as there are clients to pick, whatever the population."""
    chosen: set[int] = set()
    for top, draw in enumerate(
        rng.integers(0, np.arange(clients - size, clients), endpoint=True), clients - size
    ):
        chosen.add(top if int(draw) in chosen else int(draw))
    return np.array(sorted(chosen), np.int64)


def checked_cohort(drawn: Any, round_: int, clients: int) -> Cohort:
    """Return what a sampler drew for a round as an array; refuse what is not a cohort."""
    try:
        found = np.asarray(drawn)
    except (TypeError, ValueError):  # lists of several lengths, random keys
        found = np.array(None)
    whole = found.ndim == 1 and (found.dtype.kind in "iu" or not found.size)
    whole = whole and not np.ma.is_masked(drawn)
    names = set(found.tolist()) if whole else {-1}
    if len(names) < found.size or not all(0 <= name < clients for name in names):
        raise FedMomError(
            f"The sampler drew {short(drawn)} for round {round_ + 1}. A cohort is a list or"
            f" array of different clients, whole numbers from 0 to {clients - 1}."
        )
    return found.astype(np.int64)


def in_random_order(sampler: Sampler) -> Sampler:
    """Return a sampler of the same cohorts, not sorted: where the first to answer count.

    Otherwise a runtime that answers in order would always drop the highest numbers.
    """

    @wraps(sampler)
    def shuffled(seed: int, round_: int, size: int, samples: NDArray[np.int64]) -> Cohort:
        drawn = checked_cohort(sampler(seed, round_, size, samples), round_, len(samples))
        return generator(seed, round_, stream=1).permutation(drawn)

    return shuffled


def is_uniform(sampler: Sampler) -> bool:
    """Return whether a sampler is ``uniform``, in whatever order."""
    inside: Any = sampler
    while inside is not None and inside is not uniform:
        inside = (
            inside.func if isinstance(inside, partial) else getattr(inside, "__wrapped__", None)
        )
    return inside is uniform


def generator(seed: int, round_: int, stream: int = 0) -> np.random.Generator:
    """A counter-based generator, keyed by (seed, round) as they are, at no cost of seeding."""
    key = np.array([seed, round_], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=stream << 192))


def _check(clients: int, size: int) -> None:
    if not 1 <= size <= clients:
        raise FedMomError(f"clients-per-round {size} is not between 1 and the {clients} clients.")
