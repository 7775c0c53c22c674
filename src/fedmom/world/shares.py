"""Who replies: shares by size and speed, and the probability of a reply."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import bdtr

from fedmom.algorithms.workload import Workload
from fedmom.core.prng import hashed_uniform
from fedmom.training.samplers import cohort
from fedmom.world.base import Clients, Moment, Task, Values
from fedmom.world.conditions import Conditions

MOST = 4096  # clients of a larger population that stand for it
QUARTERS = 4
TINY = 1e-12
TIES = 0x7135  # a stream: clients of one size are in quarters at random


class Crowd:
    """Clients that stand for the population: all, or as many as a round may cost.

    Args:
        conditions: The world.
        workload: What is run.
    """

    def __init__(self, conditions: Conditions, workload: Workload) -> None:
        samples = workload.data.train.size
        count = len(samples)
        self._clients = np.arange(count) if count <= MOST else cohort(0, 0, count, MOST)
        self._samples = samples[self._clients]
        self._conditions, self._work = conditions, workload.work
        self._task: tuple[int, Task] = (-1, self.task(0))
        ties = ties_of(conditions.seed, self._clients)
        seconds = conditions.seconds(0, self.task(0))
        sized = self._samples.astype(np.float64)
        self._edges = {
            name: quarter_edges(values, ties)
            for name, values in (("size", sized), ("speed", -seconds))
            if values.min() < values.max()
        }

    def task(self, round_: int) -> Task:
        """Return what these clients would be asked to do."""
        sizes, place = np.unique(self._samples, return_inverse=True)
        steps = np.array([self._work.count(round_, int(size)) for size in sizes], np.int64)[place]
        return self._conditions.task(self._clients, self._samples, steps)

    def places(self, round_: int, task: Task) -> dict[str, list[int]]:
        """Return the quarters of clients by size and by speed, from 0 (smallest, slowest) to 3."""
        ties = ties_of(self._conditions.seed, task.clients)
        values = {"size": task.samples.astype(np.float64)}
        if "speed" in self._edges:
            values["speed"] = -self._conditions.seconds(round_, task)
        return {name: quarters(values[name], ties, edges) for name, edges in self._edges.items()}

    def factors(self, moment: Moment, task: Task, counted: int) -> dict[int, float]:
        """Return what to multiply the reply of each client with, given how many replies count.

        The mean of the factors over the clients that reply is 1.
        """
        if self._task[0] != moment.round:
            scheduled = callable(self._work.steps) or callable(self._work.epochs)
            again = self.task(moment.round) if scheduled or self._task[0] < 0 else self._task[1]
            self._task = moment.round, again
        world, crowd, asked = self._conditions, self._task[1], len(task.clients)
        there = world.chance(moment, crowd.clients, present=True)
        replies = world.chance(moment, crowd.clients, present=False)
        others = world.seconds(moment.round, crowd)

        def chance(task: Task) -> Values:
            first = among_first(
                world.seconds(moment.round, task),
                others,
                there * replies / there.mean(),
                asked,
                counted,
            )
            return first * world.chance(moment, task.clients)

        of_crowd, most = chance(crowd), world.reweighs
        mean = of_crowd.mean()

        def factor(chances: Values) -> Values:
            return np.minimum(mean / np.maximum(chances, TINY), most)

        # Over the clients that reply, which do so with their chances.
        usual = (of_crowd * factor(of_crowd)).sum() / max(of_crowd.sum(), TINY)
        found = factor(chance(task)) / max(usual, TINY)
        return dict(zip(task.clients.tolist(), found.tolist(), strict=True))


def quarter_edges(values: Values, ties: Values) -> list[tuple[float, float]]:
    """Return the three ends between quarters, where ties are in a random order."""
    order = np.lexsort((ties, values))
    places = [math.ceil(len(order) * part / QUARTERS) - 1 for part in range(1, QUARTERS)]
    return [(float(values[order[p]]), float(ties[order[p]])) for p in places]


def quarters(values: Values, ties: Values, edges: Sequence[tuple[float, float]]) -> list[int]:
    """Return the quarter of each value, from 0 to 3."""
    pairs = zip(values.tolist(), ties.tolist(), strict=True)
    return [sum(pair > edge for edge in edges) for pair in pairs]


def ties_of(seed: int, clients: Clients) -> Values:
    """Return what orders clients that are equal."""
    return hashed_uniform(seed, TIES, 0, clients)


def among_first(
    seconds: Values, others: Values, chances: Values, asked: int, counted: int
) -> Values:
    """Return the probability that a reply is among the first of those that come.

    Each of the other clients that are asked is one of a crowd at random, and replies with its
    chance. So the number of those that are quicker is binomial.

    Args:
        seconds: How long the clients take whose probability is asked for.
        others: How long the clients of the crowd take.
        chances: The probability that each of them replies.
        asked: How many clients are asked.
        counted: How many replies count.

    Examples:
        >>> crowd = np.array([1.0, 2.0, 3.0, 4.0])
        >>> among_first(np.array([1.0, 4.0]), crowd, np.ones(4), asked=2, counted=1).tolist()
        [1.0, 0.25]
    """
    order = np.argsort(others)
    reached = np.concatenate([[0.0], np.cumsum(chances[order])]) / len(others)
    quicker = reached[np.searchsorted(others[order], seconds, "left")]
    return np.asarray(bdtr(counted - 1, asked - 1, np.clip(quicker, 0, 1)))
