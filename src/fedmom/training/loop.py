"""The one round loop, shared by every method, every pace and every runtime."""

import math
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedmom.algorithms.forms import Form
from fedmom.algorithms.hostile import hostile_clients
from fedmom.algorithms.workload import Method, Workload
from fedmom.core.arguments import checked
from fedmom.core.compilation import give_memory_back
from fedmom.core.errors import FedMomError, ServerDivergedError
from fedmom.core.prng import stages_key
from fedmom.core.types import Params
from fedmom.core.validation import Count
from fedmom.runtimes.base import Block, Clocked, Failure, Runtime
from fedmom.training import aggregate
from fedmom.training.admission import Admission, BadReplies, Rejected, diverged
from fedmom.training.aggregate import Carried, Collected, Stepped
from fedmom.training.pace import Pace
from fedmom.training.samplers import checked_cohort


class State(NamedTuple):
    """All that a run carries from round to round.

    Args:
        round: Rounds done.
        params: The model that the next round starts from.
        server: The server's state.
        stages: The states of the stages on the server.
        rule: The rule's state.

    Examples:
        >>> State(round=0, params={"w": np.zeros(3)}, server=()).round
        0
    """

    round: int
    params: Params
    server: Any
    stages: tuple[Any, ...] = ()
    rule: Any = ()


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
        simulated_seconds: How long the round took in a simulated world; None without one.
        world: In a simulated world, who was asked and replied, by quarters of the clients.

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
    simulated_seconds: float | None = None
    world: Mapping[str, float] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """Return the line of ``rounds.jsonl``."""
        row = asdict(self)
        more = {name: row.pop(name) for name in ("rejected", "metrics", "world")}
        more["rejected"] = [list(pair) for pair in more["rejected"]]
        if self.simulated_seconds is None:
            del row["simulated_seconds"]
        return row | {name: value for name, value in more.items() if value}


@runtime_checkable
class Watch(Protocol):
    """Watches the questions and replies of a run, without a part in it."""

    def asked(self, round_: int, broadcast: Any) -> None:
        """Clients are being asked."""

    def reply(self, block: Block) -> None:
        """Replies have come; whether they count is not known yet."""


@checked
def start(workload: Workload) -> State:
    """Return the state before the first round.

    Args:
        workload: What is run.

    Returns:
        The first parameters, and the first states of server, stages and rule.

    Examples:
        >>> import fedmom
        >>> data = fedmom.load_data("synthetic:clients=4")
        >>> model = fedmom.build_model("logreg", data.features)
        >>> work = fedmom.LocalWork(lr=0.01, steps=2)
        >>> workload = fedmom.Workload(data, model, fedmom.Algorithm(fedmom.servers.fedmom(), work))
        >>> start(workload).round
        0
    """
    first = workload.params()
    numbers = map(np.asarray, jax.tree.leaves(first))
    if not all(np.isfinite(x).all() for x in numbers if x.dtype.kind == "f"):
        raise FedMomError(
            "The model's first parameters are not finite: its init returned NaN or infinity."
        )
    # Bound to its device like what comes out of a round, or the second round compiles again.
    params = jax.device_put(first, jax.devices()[0])
    init = workload.method.first_states
    # Nothing to compile for a server that keeps no numbers, such as FedAvg's.
    if jax.tree.leaves(jax.eval_shape(init, params)):
        init = partial(_first_states, workload.method)
    return State(0, params, *init(params))


_first_states = jax.jit(Method.first_states, static_argnums=0)  # runs of one process share it


@checked
def model_of(workload: Workload, state: State) -> Params:
    """Return the model to evaluate and to keep: for most methods ``state.params``.

    Args:
        workload: What is run.
        state: The state after a round.

    Returns:
        The model's parameters.

    Examples:
        >>> import fedmom
        >>> data = fedmom.load_data("synthetic:clients=4")
        >>> model = fedmom.build_model("logreg", data.features)
        >>> work = fedmom.LocalWork(lr=0.01, steps=2)
        >>> workload = fedmom.Workload(data, model, fedmom.Algorithm(fedmom.servers.fedmom(), work))
        >>> state = start(workload)
        >>> model_of(workload, state) is state.params
        True
    """
    return workload.method.server.model(state.params, state.server)


def broadcast_of(workload: Workload, state: State) -> Any:
    """Return the broadcast to clients: for most methods ``state.params``."""
    return workload.method.broadcast(state.params, state.server, state.stages)


@checked
def train(
    runtime: Runtime,
    *,
    pace: Pace,
    rounds: Count,
    state: State | None = None,
    bad_replies: BadReplies = "stop",
    norm_limit: float | None = None,
    commit: bool = True,
    watch: Watch | None = None,
) -> Iterator[tuple[State, Record]]:
    """Yield (state, record) after every round until ``rounds`` rounds are done.

    What happens between rounds (evaluation, checkpoints, stopping) is the caller's own ``for``.

    Args:
        runtime: Where the clients live; its workload says what is run.
        pace: Whom to ask and when to step, such as ``synchronous(10)``.
        rounds: T.
        state: Where to resume from; by default ``start(runtime.workload)``.
        bad_replies: What a reply that cannot be used does: ``stop`` the run, or ``skip`` it.
        norm_limit: How many times the median of the replies' norms an update may be large before
            it counts as bad; 0: any. None: 1000, where replies are looked at one by one anyway,
            with ``skip`` or a rule that needs them all.
        commit: Call ``runtime.commit()`` at the end of every round. Where it is False, the
            caller does so once it has kept the round: until then, ``runtime.snapshot()`` is of the
            round before.
        watch: Is shown every question and every block of replies.

    Yields:
        The state after a round, and the round's record.

    Examples:
        >>> import fedmom
        >>> data = fedmom.load_data("synthetic:clients=4")
        >>> model = fedmom.build_model("logreg", data.features)
        >>> work = fedmom.LocalWork(lr=0.01, steps=2)
        >>> server = fedmom.servers.fedmom(learning_rate=2.0)
        >>> workload = fedmom.Workload(data, model, fedmom.Algorithm(server, work), seed=0)
        >>> runtime = fedmom.LocalRuntime(workload)
        >>> for state, record in train(runtime, pace=fedmom.synchronous(2), rounds=3):
        ...     print(record.round, record.replies)
        1 2
        2 2
        3 2
    """
    _check_runtime(runtime)
    state = start(runtime.workload) if state is None else state
    state = jax.device_put(state, jax.devices()[0])._replace(round=state.round)
    rounds_of = _Rounds(runtime, pace, bad_replies, norm_limit, state, watch)
    following = rounds_of.draw(state.round)
    first = state.round
    while state.round < rounds:
        state, record, following = rounds_of.play(state, following)
        if commit:
            runtime.commit()
        if state.round == first + 1:  # by now all is compiled
            give_memory_back()
        yield state, record


def check_replies(method: Method, replies: int) -> None:
    """Refuse a rule, or a stage before it, that needs more replies than a round has."""
    if not method.makes_sense_with(replies):
        names = [stage.name for stage in method.stages if stage.mix] + [method.rule.name]
        raise FedMomError(
            f"{' with '.join(names)} needs at least {method.least} replies in a round to do what it"
            f" promises, and a round has {replies}. Use more clients per round, or fewer attackers."
        )


def _check_runtime(runtime: Runtime) -> None:
    """Refuse a runtime that would leave a part of the method out."""
    if not (runtime.runs_method or runtime.workload.method.is_plain):
        raise FedMomError(
            f"{type(runtime).__name__} does not run the algorithm's own client or stages, so they"
            " would silently not apply. Use fedmom.LocalRuntime, or an algorithm without."
        )


class _Rounds:
    """What the rounds of a run have in common."""

    def __init__(
        self,
        runtime: Runtime,
        pace: Pace,
        bad_replies: BadReplies,
        norm_limit: float | None,
        state: State,
        watch: Watch | None,
    ) -> None:
        self._runtime, self._pace, self._watch = runtime, pace, watch
        self._clock = runtime if isinstance(runtime, Clocked) else None
        self._workload = runtime.workload
        self._samples, self._seed = self._workload.data.train.size.view(), self._workload.seed
        self._samples.flags.writeable = False  # samplers and paces are given them
        self._population = int(self._samples.sum())
        self._method = method = self._workload.method
        check_replies(method, pace.rows)
        attack, clients = self._workload.attack, self._workload.data.clients
        self._hostile = attack and hostile_clients(self._seed, clients, attack.share)
        broadcast = broadcast_of(self._workload, state)
        trees = method.forms(broadcast)
        forms = tuple(map(Form.of, trees))
        self._sent = sent = forms[-1]
        self._programs = aggregate.compile_programs(method, forms)
        self._zero = partial(aggregate.empty, method.decoded(trees))
        self._bytes_down = Form.of(broadcast).bytes
        self._key = stages_key(self._seed)
        self._first = state.round
        self._ahead: threading.Thread | None = None
        sums = method.adds_up and pace.takes_sums and watch is None
        runtime.prepare(pace.rows, sums=sums)
        if not pace.keeps_late:
            runtime.cancel()  # what an earlier loop left behind when it was interrupted
        self._admission = Admission(sent, runtime, pace, bad_replies, norm_limit)

    def draw(self, round_: int) -> NDArray[np.int64]:
        busy = self._admission.busy
        drawn = self._pace.ask(self._seed, round_, self._samples, busy)
        return checked_cohort(drawn, round_, len(self._samples))

    def play(
        self, state: State, cohort: NDArray[np.int64]
    ) -> tuple[State, Record, NDArray[np.int64]]:
        """Play a round; return the new state, its record and the next cohort."""
        began = time.perf_counter()
        self._ask(state, cohort)
        collected = self._collect(state.round)
        stepped = self._step(state, collected)
        # Drawn while the step is computed: a draw takes a fifth of the quickest rounds' time.
        following = self.draw(state.round + 1)
        while not _is_finite(stepped) and self._admission.blame(collected):
            stepped = self._step(state, collected)
        loss, norm = _checked(state.round, collected, stepped)
        replies = collected.replies
        record = Record(
            round=state.round + 1,
            cohort=cohort.tolist(),
            replies=replies,
            train_loss=loss / collected.weight if collected.weight else None,
            update_norm=norm,
            seconds=time.perf_counter() - began,
            bytes_up=self._sent.bytes * replies,
            bytes_down=self._bytes_down * len(cohort),
            rejected=tuple(self._admission.rejected),
            metrics=self._metrics(collected, stepped, cohort),
        )
        if self._clock is not None:
            simulated, counts = self._clock.simulated_seconds, self._clock.counts
            record = replace(record, simulated_seconds=simulated, world=counts)
        return State(state.round + 1, *stepped.carried), record, following

    def _step(self, state: State, collected: Collected) -> Stepped:
        """Let the server step, if there is enough to step with."""
        carried = Carried(*state[1:])
        if self._is_unusable(collected.replies):
            return Stepped(carried, jnp.array([0.0, 0.0, True]), {})
        return collected.step(carried, state.round, self._population, self._key)

    def _is_unusable(self, replies: int) -> bool:
        """Return whether all replies were rejected, or too few are left for a robust rule."""
        if not replies:
            return bool(self._admission.rejected)
        return not self._method.makes_sense_with(replies)

    def _metrics(
        self, collected: Collected, stepped: Stepped, cohort: NDArray[np.int64]
    ) -> dict[str, float]:
        """Return what the parts of the method report; a number that is not finite is left out."""
        found = collected.client_metrics(self._method)
        if twice := found.keys() & stepped.metrics.keys():
            raise FedMomError(
                f"{', '.join(sorted(twice))} is reported by clients and on the server, too. Give"
                " the metrics of encode and after different names."
            )
        found |= {name: float(value) for name, value in stepped.metrics.items()}
        if collected.replies and self._is_unusable(collected.replies):
            found["server/too_few_replies"] = 1.0
        if self._hostile is not None:
            found["attack/clients"] = float(self._hostile[cohort].sum())
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def _ask(self, state: State, cohort: NDArray[np.int64]) -> None:
        """Send the model, in parts of a round's replies: a runtime may answer a part at once."""
        broadcast = broadcast_of(self._workload, state)
        if state.round == self._first:
            self._compile_ahead(state, cohort, broadcast)
        self._admission.begin(state.round, cohort.tolist())
        if self._watch is not None:
            self._watch.asked(state.round, broadcast)
        for first in range(0, len(cohort), self._pace.rows):
            part = cohort[first : first + self._pace.rows]
            self._runtime.ask(state.round, part, broadcast)

    def _compile_ahead(self, state: State, cohort: NDArray[np.int64], broadcast: Any) -> None:
        """Compile the server's programs meanwhile, where it is known what they will be given."""
        if not 0 < len(cohort) <= self._pace.rows:
            return
        sizes = self._runtime.block_sizes(state.round, cohort, broadcast)
        if sizes:
            collected = self._collected(aggregate.compiling(self._programs))
            rest = (Carried(*state[1:]), state.round, self._population, self._key)
            self._ahead = aggregate.precompile(collected, self._sent.tree, sizes, *rest)

    def _collected(self, programs: Any, *, hold: bool = False) -> Collected:
        return Collected(self._method, programs, self._pace.rows, self._zero, hold=hold)

    def _collect(self, round_: int) -> Collected:
        """Take replies until the round has enough."""
        collected = self._collected(self._programs, hold=self._admission.holds)
        for answer in self._runtime.replies(self._pace.timeout):
            if isinstance(answer, Failure):
                self._admission.fail(answer)
                continue
            if self._watch is not None:
                self._watch.reply(answer)
            admitted = self._admission.admit(answer, round_)
            if self._ahead is not None:  # or the same would be compiled twice
                self._ahead.join()
                self._ahead = None
            if admitted is not None:
                collected.add(answer, admitted)
            if self._admission.enough(self._admission.replies):
                break
        if not self._pace.keeps_late:
            self._runtime.cancel()
        self._admission.end()
        self._admission.judge(collected)
        return collected


def _is_finite(stepped: Stepped) -> bool:
    loss, norm, is_usable = np.asarray(stepped.numbers).tolist()
    return math.isfinite(loss) and math.isfinite(norm) and bool(is_usable)


def _checked(round_: int, collected: Collected, stepped: Stepped) -> tuple[float, float]:
    """Return the sum of losses and the norm, if all that the step returned is finite."""
    loss, norm, is_usable = np.asarray(stepped.numbers).tolist()
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise diverged(round_, f"{collected.not_finite() or 'the update'} is")
    if not is_usable:
        raise ServerDivergedError(round_)
    return loss, norm
