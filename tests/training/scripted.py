"""A runtime whose clients say what a test tells them to, and one round of the loop with it."""

from collections.abc import Callable
from functools import lru_cache

import jax.numpy as jnp
import numpy as np

import fedmom
from fedmom.data.federated import Features, FederatedData, Split
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
    is raised. What it does not yield is under way forever. ``rounds`` gives it the workload.
    """

    splits = ("train",)
    workload = None
    runs_method = True  # its answers are what any method's clients might say

    def __init__(self, answers: Callable = one_by_one):
        self.answers = answers
        self.prepared: list[tuple[int, bool]] = []
        self.asked: list[tuple[int, list[int]]] = []
        self.cancelled: list[list[tuple[int, int]]] = []
        self.commits = 0
        self.news: tuple = ()  # the broadcast of a question that is not answered yet
        self.queue: list = []
        self.waiting: list[tuple[int, int]] = []

    def prepare(self, cohort, *, sums):
        self.prepared.append((cohort, sums))

    def block_sizes(self, round_, clients, broadcast):  # noqa: ARG002
        return ()

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


def everybody(_seed, _round, size, _samples):
    """A sampler of the first ``size`` clients, in every round."""
    return np.arange(size)


WORK = fedmom.LocalWork(lr=0.1, steps=1)


@lru_cache  # one object for all tests, which then share compiled programs
def fedavg(weighting="population", rate=1.0, **parts):
    server = fedmom.servers.fedavg(rate)
    return fedmom.Algorithm(server, WORK, **({"rule": fedmom.mean(weighting)} | parts))


def workload(algorithm=None, params=None, samples=SIZES):
    """What is run: clients with these numbers of samples, and a model that is a vector."""
    algorithm = algorithm or fedavg()
    if algorithm.work is None:
        algorithm = algorithm._replace(work=WORK)
    model = fedmom.Model(
        lambda _key: jnp.zeros(3) if params is None else params, apply=lambda *_: None
    )
    split = Split(np.cumsum(samples) - samples, np.asarray(samples))
    nothing = Split(np.zeros_like(samples), np.zeros_like(samples))
    users = range(len(samples))
    features = Features("vector", (3,), 2)
    return fedmom.Workload(
        FederatedData("scripted", users, features, {}, split, nothing), model, algorithm
    )


def begin(algorithm, params=None):
    """The state before the first round, of a model that is a vector."""
    return fedmom.start(workload(algorithm, params))


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
    runtime.workload = workload(algorithm, params, samples)
    state = state or fedmom.start(runtime.workload)
    return list(
        fedmom.train(
            runtime,
            pace=pace or fedmom.synchronous(len(samples), everybody),
            rounds=state.round + count,
            state=state,
            bad_replies=bad_replies,
        )
    )


def one_round(runtime, algorithm=None, **options):
    return rounds(runtime, algorithm, **options)[0]


def weights_of(weighting, clients):
    """What each client's update is multiplied with, by the formulas of the docs."""
    n = SIZES[clients].astype(float)
    return {
        "population": n / SIZES.sum(),
        "cohort": n / n.sum() if len(n) else n,
        "uniform": np.full(len(n), 1 / max(len(n), 1)),
    }[weighting]


__all__ = ["Block", "Failure", "State"]
