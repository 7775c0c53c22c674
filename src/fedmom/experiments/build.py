"""Settings -> the parts of an experiment: checked against each other, with nothing left open."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from fedmom import data as datasets
from fedmom import models
from fedmom.algorithms import SCHEDULES, schedules
from fedmom.algorithms import named as algorithms
from fedmom.algorithms.base import Algorithm
from fedmom.algorithms.forms import Form
from fedmom.algorithms.local_work import LocalWork
from fedmom.algorithms.workload import Workload
from fedmom.core.errors import FedMomError, ServerDivergedError
from fedmom.core.registry import joined, options, options_of
from fedmom.core.types import Schedule
from fedmom.core.validation import MOST, check_memory
from fedmom.data.federated import Features, FederatedData
from fedmom.experiments import decided, defaults, object_names
from fedmom.experiments.settings import AUTO, RunConfig, kebab
from fedmom.models import adapters, base, precision
from fedmom.models.base import Model
from fedmom.models.rewriting.notices import notices
from fedmom.runtimes import RUNTIMES
from fedmom.runtimes.base import Runtime
from fedmom.training import PACES, SAMPLERS, diagnostics, loop
from fedmom.training.diagnostics import Diagnostics
from fedmom.training.loop import Record, State
from fedmom.training.pace import Pace
from fedmom.training.samplers import Sampler
from fedmom.world.runtime import WorldRuntime, in_world

LOOKS = 12  # rounds between the first and the last in which a schedule is looked at


@dataclass(frozen=True)
class Experiment:
    """Settings with nothing left open, and the objects they stand for."""

    config: RunConfig
    workload: Workload
    pace: Pace
    notes: tuple[str, ...]  # what the user should know before the run

    @property
    def data(self) -> FederatedData:
        """The population."""
        return self.workload.data

    @property
    def model(self) -> Model:
        """The model."""
        return self.workload.model

    @property
    def work(self) -> LocalWork:
        """The local work."""
        return self.workload.work

    @property
    def slow_parts(self) -> list[str]:
        """What of a net of the user's own will be slow on this machine, and what to do."""
        if RUNTIMES.check(self.config.runtime) == "torch":
            return []
        x = adapters.example(self.data)
        return notices(self.model, np.repeat(x, self.work.batch_size or base.ROWS, axis=0))

    def start(self) -> State:
        """Return the state before the first round."""
        return loop.start(self.workload)

    def runtime(
        self, work: LocalWork | None = None, spec: str | None = None, **defaults: Any
    ) -> Runtime:
        """Return where the clients live.

        Args:
            work: Other local work than the run's.
            spec: Another runtime than that of the settings.
            **defaults: Options of the runtime, where the settings do not give them.
        """
        workload = self.workload
        if work is not None:
            workload = replace(workload, algorithm=workload.algorithm._replace(work=work))
        world = self.config.world
        if world is None:
            return RUNTIMES.build(spec or self.config.runtime, workload, **defaults)
        _check_simulated(spec or self.config.runtime)
        inside = RUNTIMES.build(spec or self.config.runtime, in_world(workload, world), **defaults)
        return WorldRuntime(inside, self.pace, world)

    def diagnostics(self) -> Diagnostics | None:
        """Return the diagnostics of the run, if the settings ask for them."""
        every = self.config.diagnostics_every
        return None if every is None else Diagnostics(self.workload, every=every)

    def train(
        self, state: State, runtime: Runtime, rounds: int | None = None, **how: Any
    ) -> Iterator[tuple[State, Record]]:
        """Yield (state, record) after every round, until the run's last or another one.

        Args:
            state: Where to resume from.
            runtime: Where the clients live.
            rounds: The last round, if it is not the run's.
            **how: ``commit`` and ``watch``, as in ``fedmom.train``.
        """
        steps = loop.train(
            runtime,
            pace=runtime.pace if isinstance(runtime, WorldRuntime) else self.pace,
            rounds=self.config.rounds if rounds is None else rounds,
            state=state,
            bad_replies=self.config.bad_replies,
            norm_limit=self.config.norm_limit,
            **how,
        )
        del state  # or the first model would be kept until the last round
        try:
            yield from steps
        except ServerDivergedError as error:  # the loop does not know how the server was made
            if self.config.server_lr == AUTO or decided.is_decided(self.config.server_lr):
                raise
            rate = schedules.at(schedules.parse(self.config.server_lr), error.round)
            raise ServerDivergedError(error.round, f"server-lr {rate:g}") from None


def prepare(config: RunConfig, data: FederatedData | None = None) -> Experiment:
    """Load the data, fill in what was left open, and build the run's parts.

    Args:
        config: The settings.
        data: The dataset, if it is loaded already.
    """
    object_names.user_functions(config.model_dump())  # if one was loaded again, forget the old one
    _check_algorithm(config)
    data = data or datasets.load(config.data)
    if config.clients_per_round > data.clients:
        raise FedMomError(
            f"clients-per-round {config.clients_per_round} is more than the {data.clients}"
            f" clients of {data.name}. Use at most {data.clients}."
        )
    config = defaults.complete(config, data)
    integers = adapters.has_integers(data)
    model, algorithm = parts(config, data.features, integers=integers)
    attack = None if config.attack is None else algorithms.attack(config.attack)
    workload = Workload(data, model, algorithm, config.seed, attack)
    workload.try_parts()
    _check_numbers(config, workload.work, data)
    sampler = _sampler(config.sampler)
    pace: Pace = PACES.build(config.pace, config.clients_per_round, sampler)
    pace.ask(config.seed, 0, data.train.size, frozenset())  # before the run has a folder
    _check_together(config, workload, pace)
    if config.diagnostics and config.diagnostics_every is None:
        every = diagnostics.plan(workload.work, data.train.size, config.rounds)
        config = config.model_copy(update={"diagnostics_every": every})
    notes = *_eta_notes(config, data.clients), *_bytes_notes(workload), *_precision_notes(config)
    return Experiment(config, workload, pace, notes)


def parts(
    config: RunConfig, features: Features, *, integers: bool = False
) -> tuple[Model, Algorithm]:
    """Build what both ends of a run need, from settings with nothing left open.

    Args:
        config: The settings.
        features: What the model must accept.
        integers: Whether its inputs are whole numbers.
    """
    algorithm = algorithms.algorithm(
        config.algorithm,
        1.0 if decided.is_decided(config.server_lr) else config.server_lr,
        config.momentum,
        config.average,
        decided.own_aggregate(config.aggregate),
        decided.asked_weighting(config),
    )
    in_torch = RUNTIMES.check(config.runtime) == "torch"
    model = models.build(config.model, features, integers=integers, convert=not in_torch)
    if config.adapt is not None:
        model = models.adapted(model, config.adapt)
    work = algorithm.work
    if work is None:
        work = LocalWork(
            lr=schedules.parse(config.lr),
            steps=None if config.local_steps is None else schedules.parse(config.local_steps),
            epochs=None if config.local_epochs is None else schedules.parse(config.local_epochs),
            batch_size=None if config.batch_size == "all" else int(config.batch_size),
            batches=config.batches,
            solver=algorithms.solver(config.solver),
            prox=config.prox,
            accumulate=config.accumulate,
        )
    elif decided.takes_lr(config.algorithm):
        work = replace(work, lr=schedules.parse(config.lr))
    return model, algorithm._replace(work=work)


def _sampler(spec: str) -> Sampler:
    """Return the sampler of a spec such as ``weighted``, with its options."""
    function = SAMPLERS.find(spec)
    given = options(function, spec)
    # A user's own, named by its module, is not trusted to work.
    return partial(SAMPLERS.call, spec, **given) if spec[0] == "@" else partial(function, **given)


def _check_algorithm(config: RunConfig) -> None:
    """Refuse settings that the algorithm does not have."""
    if config.momentum is not None and algorithms.default_of(config.algorithm, "momentum") is None:
        raise FedMomError(
            f"{config.algorithm} has no momentum; leave momentum {config.momentum} out,"
            " or use fedmom or fedavgm."
        )
    _check_rule(config)
    made, fixed = algorithms.made(config.algorithm), decided.settings(config)
    if "server_lr" in fixed and config.server_lr not in (AUTO, fixed["server_lr"]):
        raise FedMomError(
            f"{config.algorithm} has its own learning rate; leave server-lr {config.server_lr} out."
        )
    if made.work is not None:
        if decided.takes_lr(config.algorithm):  # FedSGD, whose one step is no setting
            fields = RunConfig.model_fields
            fixed = {name: fields[name].default for name in defaults.LOCAL_WORK} | fixed
        work = {"lr", *defaults.LOCAL_WORK}
        for name in (name for name in _given(config, fixed) if name in work):
            raise FedMomError(
                f"{config.algorithm} brings its own local work: leave {kebab(name)}"
                f" {getattr(config, name)} out, or use fedavg."
            )


def _check_rule(config: RunConfig) -> None:
    """Refuse a rule or weighting where an object has its own."""
    has_rule = algorithms.made(config.algorithm).rule is not None
    spec = config.aggregate
    if has_rule and "aggregate" in config.model_fields_set and algorithms.names_rule(spec):
        raise FedMomError(
            f"{config.algorithm} has its own rule; leave the rule of aggregate {spec} out."
        )
    fixed = decided.settings(config)
    if "weighting" in _given(config, fixed):
        owner, own = config.algorithm if has_rule else spec, fixed["weighting"] == "own"
        raise FedMomError(
            f"The rule of {owner} has {'its ' if own else ''}{fixed['weighting']} weights; leave"
            f" weighting {config.weighting} out."
        )


def _given(config: RunConfig, fixed: Mapping[str, Any]) -> list[str]:
    """Return the settings that were given, and are other ones than those that are fixed."""
    given = config.model_fields_set
    return [n for n in fixed if n in given and getattr(config, n) not in (fixed[n], AUTO, None)]


def _check_together(config: RunConfig, workload: Workload, pace: Pace) -> None:
    """Refuse parts that make no sense together."""
    by_samples = config.weighting in ("population", "cohort")
    if config.sampler.partition(":")[0] == "weighted" and by_samples:
        raise FedMomError(
            f"sampler weighted draws clients in proportion to their samples, so {config.weighting}"
            " weights would count samples twice. Add --weighting uniform."
        )
    options(RUNTIMES.find(config.runtime), config.runtime)  # before the run has a folder
    _check_world(config)
    method = workload.method
    if workload.attack is not None and config.runtime.partition(":")[0] == "flower":
        raise FedMomError(
            f"attack {config.attack} is simulated, and runtime flower trains on real devices. Leave"
            " attack out."
        )
    loop.check_replies(method, pace.rows)
    comparable = method.is_plain and not method.stages and not pace.keeps_late
    if config.diagnostics and (method.needs_rows or not comparable):
        raise FedMomError(
            "diagnostics compare the mean of plain updates with the gradient, in rounds that wait"
            f" for all clients; algorithm {config.algorithm} with aggregate {config.aggregate} and"
            f" pace {config.pace} is not such a case. Leave --diagnostics out."
        )


def _check_world(config: RunConfig) -> None:
    if config.world is None:
        return
    _check_simulated(config.runtime)
    if config.diagnostics:
        raise FedMomError(
            "diagnostics compare with rounds in which all clients reply, which a simulated world"
            f" {config.world} does not promise. Leave --diagnostics out."
        )


def _check_simulated(runtime: str) -> None:
    """Refuse a simulated world around devices."""
    if runtime.partition(":")[0] == "flower":
        raise FedMomError(
            "A simulated world is for simulated clients; devices are as fast and as reliable as"
            " they are. Leave --world out."
        )


def _check_numbers(config: RunConfig, work: LocalWork, data: FederatedData) -> None:
    """Refuse a run whose numbers will leave what can be computed, in any of its rounds."""
    rounds = sorted({int(t) for t in np.linspace(0, config.rounds - 1, LOOKS + 2)})
    for name in ("lr", "server_lr", "local_steps", "local_epochs"):
        value = getattr(config, name)
        if isinstance(value, str) and value != AUTO and not decided.is_decided(value):
            _check_schedule(f"{kebab(name)} {value}", value, rounds)
    _check_steps(config, work, int(data.train.size.max(initial=1)), rounds)
    size = 4 * math.prod(data.features.shape) * (work.batch_size or 0)
    check_memory(f"batch-size {work.batch_size}", size, "Take a smaller one.")


def _check_schedule(what: str, spec: str, rounds: Sequence[int]) -> None:
    function, schedule = SCHEDULES.find(spec), schedules.parse(spec)
    end = options_of(function).get("end")  # a cosine, say, is meant to come down to 0
    ends_in_zero = end is not None and options(function, spec).get("end", end.default) == 0
    for t in rounds:
        value = schedules.at(schedule, t)
        if not (0 if ends_in_zero else math.ulp(0)) <= value < math.inf:
            raise FedMomError(
                f"{what} is {value:g} in round {t + 1} of {rounds[-1] + 1}; it must stay a number"
                " greater than 0. Give it a milder rate, or the run fewer rounds."
            )


def _check_steps(config: RunConfig, work: LocalWork, most: int, rounds: Sequence[int]) -> None:
    """Refuse more local steps than a program can count, of a client with the most samples."""
    name, amount, batches = "local_steps", work.steps, 1
    if amount is None:
        name, amount, batches = "local_epochs", work.epochs, -(-most // (work.batch_size or most))
    assert amount is not None
    for t in rounds if callable(amount) else (0,):
        steps = schedules.at(amount, t) * batches
        if steps > MOST:
            raise FedMomError(
                f"{kebab(name)} {getattr(config, name)} means {steps:.3g} local steps in"
                f" round {t + 1}, more than the {MOST:,} that can be counted. Take fewer."
            )


def _bytes_notes(workload: Workload) -> list[str]:
    """Say how much of a model that is trained in part is sent."""
    if workload.model.adapted is None:
        return []
    sent, plain = (
        Form.of(base.first_form(model)) for model in (workload.model, workload.model.plain)
    )
    return [
        f"{sent.numbers:,} numbers are trained, of a model of {plain.numbers:,}. A client is sent"
        f" {sent.bytes / 1e6:.3g} MB in a round and returns as much, instead of"
        f" {plain.bytes / 1e6:.3g} MB."
    ]


def _precision_notes(config: RunConfig) -> list[str]:
    """Say where fewer bits will be slower."""
    if "bfloat16" not in joined(config.adapt or "") or not precision.is_slow_here():
        return []
    return [
        "This processor has no matrix unit for bfloat16 (AMX), so training is slower than without."
        " Leave bfloat16 out, unless it is for memory."
    ]


def _eta_notes(config: RunConfig, clients: int) -> list[str]:
    """Say when η leaves the paper's [1, K/M]. The adaptive methods scale g_t themselves."""
    own = algorithms.default_of(config.algorithm, "learning_rate")
    top = clients / config.clients_per_round
    if config.weighting == "population" and own is None:
        return [
            f"population weights of a cohort add up to M/K = {1 / top:g} on average, and"
            f" {config.algorithm} has a step size of its own. Give it one of K/M = {top:g}, or take"
            " cohort weights."
        ]
    if config.weighting != "population" or own != 1.0:
        return []
    eta: float | Schedule = schedules.parse(config.server_lr)
    ends = [schedules.at(eta, 0), schedules.at(eta, config.rounds - 1)]
    outside = [e for e in ends if not 1 <= e <= top * (1 + 1e-9)]
    if not outside:
        return []
    return [
        f"server-lr {outside[0]:g} is outside [1, K/M] = [1, {top:g}], where the paper's theory"
        " holds for population weights (docs/theory.md). `--server-lr auto` takes K/M."
    ]
