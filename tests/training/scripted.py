"""A runtime whose clients say what a test tells them to, and one round of the loop with it."""

from collections.abc import Callable
from functools import lru_cache

import jax.numpy as jnp
import numpy as np

import fedmom
from fedmom.runtimes.base import Block, Failure, Scores, Snapshot
from fedmom.training.loop import State

SIZES = np.array([10, 20, 30, 40, 100])
UPDATES = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
LOSSES = np.arange(5, dtype=np.float32)


def block(clients, updates=None, samples=None, losses=None, version=0, members=None, **metrics):
    """Replies of clients: their rows of UPDATES, SIZES and LOSSES, or what is given instead."""
    clients = np.asarray(clients)
    real = clients % len(SIZES) if clients.dtype.kind == "i" else np.zeros(clients.shape, int)
    return Block(
        clients,
        jnp.asarray(UPDATES[real]) if updates is None else updates,
        SIZES[real] if samples is None else np.asarray(samples),
        {"loss": LOSSES[real] if losses is None else losses, **metrics},
        version,
        members,
    )


def one_by_one(_round, clients, _broadcast):
    """Everybody answers, in the order of the question."""
    return [block([k], version=_round) for k in clients]


class Scripted:
    """A runtime that answers a round's question with what a function says.

    ``answers(round, clients, broadcast)`` gives the blocks and failures; an exception among them
    is raised. What it does not yield is under way for ever.
    """

    splits = ("train",)

    def __init__(self, answers: Callable = one_by_one):
        self.answers = answers
        self.asked: list[tuple[int, list[int]]] = []
        self.cancelled: list[list[tuple[int, int]]] = []
        self.commits = 0
        self.news: tuple = ()  # the broadcast of a question that is not answered yet
        self.queue: list = []
        self.waiting: list[tuple[int, int]] = []

    def ask(self, round_, clients, broadcast):
        """Note the question; a round may ask its cohort in parts."""
        if self.news and self.asked[-1][0] == round_:
            self.asked[-1][1].extend(clients.tolist())
        else:
            self.asked.append((round_, clients.tolist()))
        self.news = (broadcast,)
        self.waiting += [(k, round_) for k in clients.tolist()]

    def replies(self, timeout=None):  # noqa: ARG002
        if self.news:
            self.queue += self.answers(*self.asked[-1], *self.news)
            self.news = ()
        while self.queue:
            answer = self.queue.pop(0)
            if isinstance(answer, BaseException):
                raise answer
            names = [answer.client] if isinstance(answer, Failure) else answer.clients.tolist()
            self.waiting = [pair for pair in self.waiting if pair[0] not in names]
            yield answer

    def under_way(self):
        return list(self.waiting)

    def cancel(self):
        self.cancelled.append(self.waiting)
        self.queue, self.waiting = [], []

    def evaluate(self, params, split, budget=None):  # noqa: ARG002
        return Scores(SIZES, SIZES, {"loss": SIZES * 0.0, "accuracy": SIZES * 0.0})

    def commit(self):
        self.commits += 1

    def snapshot(self):
        return Snapshot({})

    def restore(self, snapshot, broadcast):
        pass

    def close(self):
        pass


def everybody(size):
    """A sampler of the first so many clients, in every round."""
    return lambda _seed, _round: np.arange(size)


@lru_cache  # one object for all tests, which then share compiled programs
def fedavg(weighting="population", rate=1.0, **parts):
    return fedmom.Algorithm(fedmom.fedavg(rate), **({"rule": fedmom.mean(weighting)} | parts))


def begin(algorithm, params=None):
    """The state before the first round, of a model that is a vector."""
    model = fedmom.Model(lambda _key: jnp.zeros(3) if params is None else params, apply=None)
    return fedmom.start(model, algorithm)


def rounds(
    runtime,
    algorithm=None,
    count=1,
    *,
    pace=None,
    samples=SIZES,
    bad_replies="stop",
    params=None,
    state=None,
):
    """The states and records of some rounds; everybody is asked, unless a pace says otherwise."""
    algorithm = algorithm or fedavg()
    state = state or begin(algorithm, params)
    return list(
        fedmom.train(
            state,
            runtime,
            algorithm,
            pace=pace or fedmom.synchronous(everybody, len(samples)),
            samples=samples,
            rounds=state.round + count,
            bad_replies=bad_replies,
        )
    )


def one_round(runtime, algorithm=None, **options):
    return rounds(runtime, algorithm, **options)[0]


def uniform(samples, size):
    """The usual pace: M clients drawn uniformly."""
    return fedmom.synchronous(fedmom.uniform(samples), size)


def weights_of(weighting, clients):
    """What each client's update is multiplied with, by the formulas of the docs."""
    n = SIZES[clients].astype(float)
    return {
        "population": n / SIZES.sum(),
        "cohort": n / n.sum() if len(n) else n,
        "uniform": np.full(len(n), 1 / max(len(n), 1)),
    }[weighting]


__all__ = ["Block", "Failure", "State"]
