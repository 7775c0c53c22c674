"""The one round loop, shared by every method, every pace and every runtime."""

import math
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedmom.algorithms.aggregation import mean
from fedmom.algorithms.base import Algorithm
from fedmom.algorithms.model_state import forms_of, server_of
from fedmom.core.compilation import give_memory_back
from fedmom.core.errors import FedMomError, ServerDivergedError
from fedmom.core.prng import init_key, stages_key
from fedmom.core.types import Params
from fedmom.models.base import Model
from fedmom.runtimes.base import Failure, Runtime
from fedmom.training.admission import Admission, BadReplies, Form, Rejected, diverged
from fedmom.training.aggregate import Aggregate, compile_programs, empty
from fedmom.training.ahead import compile_ahead, compiling
from fedmom.training.pace import Pace


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
        metrics: Numbers that the method reports, such as ``client/drift`` or ``noise/std``.

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
    metrics: Mapping[str, float] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """Return the line of ``rounds.jsonl``."""
        row = asdict(self)
        rejected, metrics = row.pop("rejected"), row.pop("metrics")
        more = {"rejected": [list(r) for r in rejected], "metrics": metrics}
        return row | {name: value for name, value in more.items() if value}


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
    init = server_of(algorithm, params).init
    # Nothing to compile for a server that keeps no numbers, such as FedAvg's.
    has_numbers = bool(jax.tree.leaves(jax.eval_shape(init, params)))
    return State(0, params, (jax.jit(init) if has_numbers else init)(params))


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
    return server_of(algorithm, state.params).model(state.params, state.server)


def broadcast_of(algorithm: Algorithm, state: State) -> Any:
    """Return the broadcast to clients: for most methods ``state.params``."""
    return server_of(algorithm, state.params).broadcast(state.params, state.server)


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
    commit: bool = True,
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
        commit: Call ``runtime.commit()`` at the end of every round. Where it is False, the
            caller does so once it has kept the round: until then, ``runtime.snapshot()`` is of the
            round before.

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
    first = state.round
    while state.round < rounds:
        state, record, following = rounds_of.play(state, following)
        if commit:
            runtime.commit()
        if state.round == first + 1:  # by now all is compiled
            give_memory_back()
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
        self._samples, self._seed = samples, seed
        self._population = int(samples.sum())
        self._rule = algorithm.rule or mean()
        server = server_of(algorithm, state.params)
        self._programs = compile_programs(server, self._rule, algorithm.stages)
        broadcast = broadcast_of(algorithm, state)
        form, encoded = forms_of(algorithm, broadcast)
        self._zero = empty(form)
        self._encoded = encoded
        sent = Form.of(encoded)
        self._bytes_up, self._bytes_down = sent.bytes, Form.of(broadcast).bytes
        self._key = stages_key(seed) if algorithm.stages else None
        self._first = state.round
        self._ahead: threading.Thread | None = None
        if not pace.keeps_late:
            runtime.cancel()  # what an earlier loop left behind when it was interrupted
        self._admission = Admission(
            sent,
            samples,
            pace,
            bad_replies=bad_replies,
            look_at_each=bad_replies == "skip" or self._rule.each is not None,
            asked=dict(runtime.under_way()),  # a restored runtime may know some
        )

    def draw(self, round_: int) -> NDArray[np.int64]:
        cohort = np.asarray(self._pace.ask(self._seed, round_, self._admission.busy), np.int64)
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
        if state.round == self._first:
            self._compile_ahead(state, cohort)
        self._ask(state, cohort)
        aggregate = self._collect(state.round)
        new = self._step(state, aggregate)
        # Drawn while the step is computed: a draw takes a fifth of the quickest rounds' time.
        following = self.draw(state.round + 1)
        new, loss, norm = _checked(state, aggregate, new)
        replies = aggregate.replies
        record = Record(
            round=new.round,
            cohort=cohort.tolist(),
            replies=replies,
            train_loss=aggregate.mean_loss(loss),
            update_norm=norm,
            seconds=time.perf_counter() - began,
            bytes_up=self._bytes_up * replies,
            bytes_down=self._bytes_down * len(cohort),
            rejected=tuple(self._admission.rejected),
        )
        return new, record, following

    def _ask(self, state: State, cohort: NDArray[np.int64]) -> None:
        """Send the model, in parts of a round's replies: a runtime may answer a part at once."""
        self._admission.begin(state.round, cohort.tolist())
        broadcast = broadcast_of(self._algorithm, state)
        for first in range(0, len(cohort), self._pace.rows):
            part = cohort[first : first + self._pace.rows]
            self._runtime.ask(state.round, part, broadcast)

    def _compile_ahead(self, state: State, cohort: NDArray[np.int64]) -> None:
        """Compile the server's programs meanwhile, where it shows what they will be given."""
        foresee = getattr(self._runtime, "block_sizes", None)
        if foresee is None or not 0 < len(cohort) <= self._pace.rows:
            return
        self._ahead = compile_ahead(
            Aggregate(self._rule, compiling(self._programs), self._pace.rows, self._zero),
            self._encoded,
            foresee(state.round, cohort, broadcast_of(self._algorithm, state)),
            (state.params, state.server, self._population, self._stages_key(state.round)),
        )

    def _collect(self, round_: int) -> Aggregate:
        """Take replies until the round has enough."""
        aggregate = Aggregate(self._rule, self._programs, self._pace.rows, self._zero)
        for answer in self._runtime.replies(self._pace.timeout):
            if isinstance(answer, Failure):
                self._admission.fail(answer)
                continue
            admitted = self._admission.admit(answer, round_)
            if self._ahead is not None:  # or the same would be compiled twice
                self._ahead.join()
                self._ahead = None
            if admitted is not None:
                aggregate.add(answer, admitted)
            if self._pace.enough(self._admission.replies):
                break
        if not self._pace.keeps_late:
            self._runtime.cancel()
        self._admission.end()
        return aggregate

    def _step(self, state: State, aggregate: Aggregate) -> Any:
        key = self._stages_key(state.round)
        return aggregate.step(state.params, state.server, self._population, key)

    def _stages_key(self, round_: int) -> jax.Array | None:
        return None if self._key is None else jax.random.fold_in(self._key, round_)


def _checked(state: State, aggregate: Aggregate, new: Any) -> tuple[State, float, float]:
    """Return the new state with the sum of losses and the norm, if all is finite."""
    params, server, numbers = new
    loss, norm, server_finite = np.asarray(numbers).tolist()
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise diverged(state.round, f"{aggregate.not_finite() or 'the update'} is")
    if not server_finite:
        raise ServerDivergedError(state.round)
    return State(state.round + 1, params, server), loss, norm
