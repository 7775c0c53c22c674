"""The one round loop, shared by every method, every pace and every runtime."""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedmom.algorithms.aggregation import mean
from fedmom.algorithms.base import Algorithm, as_server, encoded
from fedmom.algorithms.client import LOCAL_TRAINING
from fedmom.core.errors import BadReplyError, DivergedError, FedMomError
from fedmom.core.prng import init_key, stages_key
from fedmom.core.types import Params
from fedmom.models.base import Model
from fedmom.runtimes.base import Block, Failure, Runtime
from fedmom.training.admission import (
    Form,
    Rejected,
    malformed,
    members_of,
    rows_of,
    unusable,
)
from fedmom.training.aggregate import Aggregate, compile_programs, empty, finite_rows, norms_of
from fedmom.training.pace import Pace

BadReplies = Literal["stop", "skip"]


class State(NamedTuple):
    """All that a run carries from round to round.

    Args:
        round: Rounds done.
        params: The model that the next round starts from.
        server: The server's state.

    Examples:
        >>> State(round=0, params={"w": np.zeros(3)}, server=()).round
        0
    """

    round: int
    params: Params
    server: Any


@dataclass(frozen=True)
class Record:
    """One round, as it is logged.

    Args:
        round: Rounds done after it.
        cohort: The clients that were asked.
        replies: How many updates count.
        train_loss: Their mean local loss, weighted as the updates are; None without replies.
        update_norm: The norm of the aggregate.
        seconds: The time of the round.
        bytes_up: The size of the updates that count.
        bytes_down: The size of what was sent to the cohort.
        rejected: The clients whose replies do not count, with the reason.

    Examples:
        >>> record = Record(1, [4, 7], 2, 0.5, 0.1, seconds=0.2, bytes_up=80, bytes_down=80)
        >>> record.row()["cohort"]
        [4, 7]
    """

    round: int
    cohort: list[int]
    replies: int
    train_loss: float | None
    update_norm: float
    seconds: float
    bytes_up: int
    bytes_down: int
    rejected: tuple[Rejected, ...] = ()

    def row(self) -> dict[str, Any]:
        """Return the line of ``rounds.jsonl``."""
        row = asdict(self)
        rejected = row.pop("rejected")
        return row | ({"rejected": [list(r) for r in rejected]} if rejected else {})


def start(model: Model, algorithm: Algorithm, seed: int = 0) -> State:
    """Return the state before the first round.

    Args:
        model: The model, whose first parameters are drawn.
        algorithm: The method.
        seed: The seed of the run.

    Returns:
        The first parameters, and the server's first state.

    Examples:
        >>> import fedmom
        >>> data = fedmom.load_data("synthetic:clients=4")
        >>> model = fedmom.build_model("logreg", data.features)
        >>> algorithm = fedmom.Algorithm(fedmom.fedmom(learning_rate=2.0))
        >>> start(model, algorithm).round
        0
    """
    # Bound to its device like what comes out of a round, or the second round compiles again.
    params = jax.device_put(model.init(init_key(seed)), jax.devices()[0])
    return State(0, params, jax.jit(as_server(algorithm.server).init)(params))


def model_of(algorithm: Algorithm, state: State) -> Params:
    """Return the model to evaluate and to keep: for most methods ``state.params``.

    Args:
        algorithm: The method.
        state: The state after a round.

    Returns:
        The model's parameters.

    Examples:
        >>> import fedmom
        >>> data = fedmom.load_data("synthetic:clients=4")
        >>> model = fedmom.build_model("logreg", data.features)
        >>> algorithm = fedmom.Algorithm(fedmom.fedmom(learning_rate=2.0))
        >>> state = start(model, algorithm)
        >>> model_of(algorithm, state) is state.params
        True
    """
    return as_server(algorithm.server).model(state.params, state.server)


def broadcast_of(algorithm: Algorithm, state: State) -> Any:
    """Return what clients receive: for most methods ``state.params``."""
    return as_server(algorithm.server).broadcast(state.params, state.server)


def train(
    state: State,
    runtime: Runtime,
    algorithm: Algorithm,
    *,
    pace: Pace,
    samples: NDArray[np.int64],
    rounds: int,
    seed: int = 0,
    bad_replies: BadReplies = "stop",
) -> Iterator[tuple[State, Record]]:
    """Yield (state, record) after every round until ``rounds`` rounds are done.

    What happens between rounds (evaluation, checkpoints, stopping) is the caller's own ``for``.

    Args:
        state: Where to go on from; ``start`` makes the first one.
        runtime: Where the clients live.
        algorithm: The method.
        pace: Whom to ask and when to step, such as ``synchronous(...)``.
        samples: n_k of every client of the population.
        rounds: T.
        seed: The seed of the run.
        bad_replies: What a reply that cannot be used does: ``stop`` the run, or ``skip`` it.

    Yields:
        The state after a round, and the round's record.

    Examples:
        >>> import fedmom
        >>> data = fedmom.load_data("synthetic:clients=4")
        >>> model = fedmom.build_model("logreg", data.features)
        >>> algorithm = fedmom.Algorithm(fedmom.fedmom(learning_rate=2.0))
        >>> work = fedmom.LocalWork(lr=0.01, steps=2)
        >>> runtime = fedmom.LocalRuntime(data, model, work, algorithm)
        >>> pace = fedmom.synchronous(fedmom.uniform(data.train.size), 2)
        >>> first, options = start(model, algorithm), {"samples": data.train.size, "rounds": 3}
        >>> for state, record in train(first, runtime, algorithm, pace=pace, **options):
        ...     print(record.round, record.replies)
        1 2
        2 2
        3 2
    """
    if bad_replies not in ("stop", "skip"):
        raise FedMomError(f"bad-replies {bad_replies!r} is neither stop nor skip.")
    device = jax.devices()[0]
    state = jax.device_put(state, device)._replace(round=state.round)
    rounds_of = _Rounds(runtime, algorithm, pace, samples, seed, bad_replies, state)
    following = rounds_of.draw(state.round)
    while state.round < rounds:
        state, record, following = rounds_of.play(state, following)
        yield state, record


class _Rounds:
    """What the rounds of a run have in common."""

    def __init__(
        self,
        runtime: Runtime,
        algorithm: Algorithm,
        pace: Pace,
        samples: NDArray[np.int64],
        seed: int,
        bad_replies: BadReplies,
        state: State,
    ) -> None:
        self._runtime, self._algorithm, self._pace = runtime, algorithm, pace
        self._samples, self._seed, self._bad = samples, seed, bad_replies
        self._population = int(samples.sum())
        self._rule = algorithm.rule or mean()
        server = as_server(algorithm.server)
        self._programs = compile_programs(server, self._rule, algorithm.stages)
        form = (algorithm.client or LOCAL_TRAINING).form(broadcast_of(algorithm, state))
        self._form, self._zero = Form.of(encoded(form, algorithm.stages)), empty(form)
        # A sum shows by itself that a reply was not finite; to leave that reply out, or where a
        # rule would hide it, each has to be looked at, which waits for it.
        self._look_at_each = bad_replies == "skip" or self._rule.each is not None
        self._key = stages_key(seed) if algorithm.stages else None
        if not pace.keeps_late:
            runtime.cancel()  # what an earlier loop left behind when it was interrupted
        # Who was asked and has not answered, with the round; a restored runtime may know some.
        self._asked = dict(runtime.under_way())

    def draw(self, round_: int) -> NDArray[np.int64]:
        cohort = np.asarray(self._pace.ask(self._seed, round_, self._asked.keys()), np.int64)
        names = cohort.tolist()
        known = all(0 <= name < len(self._samples) for name in names)
        if not known or len(set(names)) < len(names):
            raise FedMomError(
                f"The sampler drew {names} for round {round_ + 1}. A cohort names different"
                f" clients, from 0 to {len(self._samples) - 1}."
            )
        return cohort

    def play(self, state: State, cohort: NDArray[np.int64]) -> Any:
        """Play a round; return the new state, its record and the next cohort."""
        began = time.perf_counter()
        broadcast = broadcast_of(self._algorithm, state)
        self._runtime.ask(state.round, cohort, broadcast)
        self._asked |= dict.fromkeys(cohort.tolist(), state.round)
        aggregate, rejected = self._collect(state.round)
        new = self._step(state, aggregate)
        # Drawn while the step is computed: a draw takes a fifth of the quickest rounds' time.
        following = self.draw(state.round + 1)
        new, loss, norm = self._checked(state, aggregate, new)
        self._runtime.commit()
        replies = aggregate.replies
        record = Record(
            round=new.round,
            cohort=cohort.tolist(),
            replies=replies,
            train_loss=aggregate.mean_loss(loss),
            update_norm=norm,
            seconds=time.perf_counter() - began,
            bytes_up=self._form.bytes * replies,
            bytes_down=sum(leaf.nbytes for leaf in jax.tree.leaves(broadcast)) * len(cohort),
            rejected=tuple(rejected),
        )
        return new, record, following

    def _collect(self, round_: int) -> tuple[Aggregate, list[Rejected]]:
        """Take replies until the round has enough."""
        aggregate = Aggregate(self._rule, self._programs, self._pace.rows, self._zero)
        rejected: list[Rejected] = []
        replies = 0
        for answer in self._runtime.replies(self._pace.timeout):
            if isinstance(answer, Failure):
                self._forget([answer.client], answer.version)
                rejected.append(Rejected(answer.client, answer.reason))
                continue
            replies += self._take(answer, round_, aggregate, rejected, replies)
            if self._pace.enough(replies):
                break
        if not self._pace.keeps_late:
            self._runtime.cancel()
            self._asked.clear()
        return aggregate, rejected

    def _take(
        self,
        block: Block,
        round_: int,
        aggregate: Aggregate,
        rejected: list[Rejected],
        replies: int,
    ) -> int:
        """Check a block and add it to so many replies; return how many clients of it count."""
        fault = malformed(block, self._form)
        if fault:
            named = [c for c in np.ravel(block.clients).tolist() if isinstance(c, int)]
            self._forget(named, block.version)
            rejected += self._refused([Rejected(c, fault) for c in named or [-1]])
            return 0
        names = block.clients.tolist()
        another = f"it trained the model of round {block.version}, not of {round_}"
        if block.version > round_:
            rejected += self._refused([Rejected(client, another) for client in names])
            return 0
        factor = self._pace.weight(round_ - block.version)
        if not factor > 0:  # late is not bad: it does not stop a run
            rejected += [Rejected(client, another) for client in names]
            return 0
        asked = {c for c in names if self._asked.get(c) == block.version}
        found = unusable(block, self._samples, asked)
        bad = self._refused([rejected for _, rejected in found])
        self._forget(names, block.version)
        members = members_of(block)
        keep = np.ones(len(members), bool)
        keep[rows_of(members)[[place for place, _ in found]]] = False
        if self._look_at_each:
            infinite = ~finite_rows(block.metrics["loss"], norms_of(block)) & keep
            keep &= ~infinite
            clients = block.clients[np.repeat(infinite, members)].tolist()
            if clients and self._bad == "stop":
                raise _diverged(round_, f"client {clients[0]} sent back a model that is")
            bad += [Rejected(client, "its update is not finite") for client in clients]
        rejected += bad
        if not self._pace.keeps_late:  # also within a block, those after enough are dropped
            counts = np.where(keep, members, 0)
            before = replies + np.cumsum(counts) - counts
            keep &= [not self._pace.enough(number) for number in before.tolist()]
        aggregate.add(block, keep, factor)
        return int(members[keep].sum())

    def _forget(self, clients: list[int], version: int) -> None:
        """Note that clients have answered what they were asked in a round."""
        for client in clients:
            if self._asked.get(client) == version:
                del self._asked[client]

    def _refused(self, bad: list[Rejected]) -> list[Rejected]:
        if bad and self._bad == "stop":
            client, reason = bad[0]
            raise BadReplyError(
                f"The reply of client {client} cannot be used: {reason}. Mend the client, or"
                " leave such replies out with --bad-replies skip."
            )
        return bad

    def _step(self, state: State, aggregate: Aggregate) -> Any:
        key = self._key if self._key is None else jax.random.fold_in(self._key, state.round)
        return aggregate.step(state.params, state.server, self._population, key)

    def _checked(self, state: State, aggregate: Aggregate, new: Any) -> tuple[State, float, float]:
        """Return the new state with the sum of losses and the norm, if all is finite."""
        params, server, numbers = new
        loss, norm, server_finite = np.asarray(numbers).tolist()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            client = aggregate.not_finite()
            whose = "the update is"
            if client is not None:
                whose = f"client {client} sent back a model that is"
            raise _diverged(state.round, whose)
        if not server_finite:
            raise _diverged(state.round, "the model after the server's step is")
        return State(state.round + 1, params, server), loss, norm


def _diverged(round_: int, what: str) -> DivergedError:
    return DivergedError(
        f"Round {round_ + 1}: {what} not finite. Training diverged: take a smaller --lr or"
        " --server-lr, or fewer local steps."
    )
