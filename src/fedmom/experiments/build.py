"""Settings -> the parts of an experiment: checked against each other, with nothing left open."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fedmom import data as datasets
from fedmom import models
from fedmom.algorithms import named as algorithms
from fedmom.algorithms import schedules
from fedmom.algorithms.base import Algorithm
from fedmom.algorithms.local_work import LocalWork
from fedmom.algorithms.workload import Workload
from fedmom.core.errors import FedMomError, ServerDivergedError
from fedmom.core.registry import options
from fedmom.core.types import Schedule
from fedmom.data.federated import Features, FederatedData
from fedmom.experiments import limits
from fedmom.experiments.settings import AUTO, DEFAULT_STEPS, RunConfig, kebab
from fedmom.experiments.step_sizes import default_lr
from fedmom.models import adapters, base
from fedmom.models.base import Model
from fedmom.runtimes import RUNTIMES
from fedmom.runtimes.base import Runtime
from fedmom.training import PACES, SAMPLERS, diagnostics, loop
from fedmom.training.diagnostics import Diagnostics
from fedmom.training.loop import Record, State
from fedmom.training.pace import Pace
from fedmom.training.samplers import Sampler

DEFAULT_MODEL = {"text": "char_lstm", "image": "lenet5", "vector": "logreg"}
# Settings of the local work, which some algorithms bring along.
LOCAL_WORK = ("local_steps", "local_epochs", "batch_size", "batches", "solver", "prox")


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
        runtime: Runtime = RUNTIMES.build(spec or self.config.runtime, workload, **defaults)
        return runtime

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
            pace=self.pace,
            rounds=self.config.rounds if rounds is None else rounds,
            state=state,
            bad_replies=self.config.bad_replies,
            **how,
        )
        try:
            yield from steps
        except ServerDivergedError as error:  # the loop does not know how the server was made
            if self.config.server_lr == AUTO:
                raise
            rate = schedules.at(schedules.parse(self.config.server_lr), error.round)
            raise ServerDivergedError(error.round, f"server-lr {rate:g}") from None


class Loaded(dict[str, FederatedData]):
    """Datasets by their spec, each loaded once."""

    def __missing__(self, spec: str) -> FederatedData:
        self[spec] = datasets.load(spec)
        return self[spec]


def fitting(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what an algorithm has no use for, of settings that several share.

    FedSGD brings its own local work, and only some algorithms have momentum.
    """
    spec = str(values.get("algorithm", RunConfig.model_fields["algorithm"].default))
    foreign = set()
    if algorithms.own_work(spec) is not None:
        foreign |= {kebab(name) for name in LOCAL_WORK}
    if algorithms.default_of(spec, "momentum") is None:
        foreign |= {"momentum"}
    return {key: value for key, value in values.items() if key not in foreign}


def prepare(config: RunConfig, data: FederatedData | None = None) -> Experiment:
    """Load the data, fill in what was left open, and build the run's parts.

    Args:
        config: The settings.
        data: The dataset, if it is loaded already.
    """
    _check_algorithm(config)
    data = data or datasets.load(config.data)
    if config.clients_per_round > data.clients:
        raise FedMomError(
            f"clients-per-round {config.clients_per_round} is more than the {data.clients}"
            f" clients of {data.name}. Use at most {data.clients}."
        )
    config = _complete(config, data)
    integers = adapters.has_integers(data)
    model, algorithm = parts(config, data.features, integers=integers)
    workload = Workload(data, model, algorithm, config.seed)
    if "@" in config.model:  # a user's own
        base.check(model, data.features, adapters.example(data))
    limits.check(config, workload.work, data)
    sampler = _sampler(config.sampler)
    pace: Pace = PACES.build(config.pace, config.clients_per_round, sampler)
    pace.ask(config.seed, 0, data.train.size, frozenset())  # before the run has a folder
    _check_together(config, workload, pace)
    if config.diagnostics and config.diagnostics_every is None:
        every = diagnostics.plan(workload.work, data.train.size, config.rounds)
        config = config.model_copy(update={"diagnostics_every": every})
    return Experiment(config, workload, pace, tuple(_eta_notes(config, data.clients)))


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
        config.server_lr,
        config.momentum,
        config.average,
        config.aggregate,
        config.weighting,
    )
    model = models.build(config.model, features, integers=integers)
    work = algorithm.work
    if work is None:
        work = _work(config)
    elif _takes_lr(config.algorithm):
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
    if config.server_lr != AUTO and not _has_rate(config.algorithm):
        raise FedMomError(
            f"{config.algorithm} has its own learning rate; leave server-lr {config.server_lr} out."
        )
    work = algorithms.own_work(config.algorithm)
    if work is not None:
        fixed = _settings_of(work)
        if _takes_lr(config.algorithm):  # FedSGD, whose one step is no setting
            fixed = {name: RunConfig.model_fields[name].default for name in LOCAL_WORK}
            fixed["batch_size"] = work.batch_size or "all"
        for name, value in fixed.items():
            if name in config.model_fields_set and getattr(config, name) not in (value, AUTO, None):
                raise FedMomError(
                    f"{config.algorithm} brings its own local work: leave {kebab(name)}"
                    f" {getattr(config, name)} out, or use fedavg."
                )


def _settings_of(work: LocalWork) -> dict[str, Any]:
    """Return the settings that say what an algorithm's own work does, as far as they can."""
    numbers = {"lr": work.lr, "local_steps": work.steps, "local_epochs": work.epochs}
    plain: dict[str, Any] = {name: None if callable(n) else n for name, n in numbers.items()}
    if callable(work.lr):
        plain["lr"] = AUTO
    more = {"batches": work.batches, "prox": work.prox, "batch_size": work.batch_size or "all"}
    return plain | more | {"solver": RunConfig.model_fields["solver"].default}


def _takes_lr(algorithm: str) -> bool:
    """Whether an algorithm that brings its own local work takes γ from the settings."""
    return algorithms.default_of(algorithm, "lr") is not None


def _has_rate(algorithm: str) -> bool:
    """Whether an algorithm is made for a server step size; an object is made already."""
    return algorithms.default_of(algorithm, "learning_rate") is not None


def _check_together(config: RunConfig, workload: Workload, pace: Pace) -> None:
    """Refuse parts that make no sense together."""
    if config.sampler.partition(":")[0] == "weighted" and config.weighting != "uniform":
        raise FedMomError(
            f"sampler weighted draws clients in proportion to their samples, so {config.weighting}"
            " weights would count samples twice. Add --weighting uniform."
        )
    options(RUNTIMES.find(config.runtime), config.runtime)  # before the run has a folder
    method = workload.method
    comparable = method.is_plain and not method.stages and not pace.keeps_late
    if config.diagnostics and not (comparable and method.rule.needs == "sum"):
        raise FedMomError(
            "diagnostics compare the mean of plain updates with the gradient, in rounds that wait"
            f" for all clients; algorithm {config.algorithm} with aggregate {config.aggregate} and"
            f" pace {config.pace} is not such a case. Leave --diagnostics out."
        )


def _complete(config: RunConfig, data: FederatedData) -> RunConfig:
    """Fill in what follows from the data and the algorithm."""
    filled: dict[str, Any] = {"data": datasets.locate(config.data)}
    if config.momentum is None:
        filled["momentum"] = algorithms.default_of(config.algorithm, "momentum")
    if config.model == "auto":
        filled["model"] = DEFAULT_MODEL[data.features.kind]
    work = algorithms.own_work(config.algorithm)
    if work is not None and not _takes_lr(config.algorithm):
        filled |= _settings_of(work)
    elif config.lr == AUTO:
        filled["lr"] = default_lr(data.features.kind, config.algorithm)
    if config.server_lr == AUTO and _has_rate(config.algorithm):
        filled["server_lr"] = _auto_server_lr(config, data.clients)
    if work is not None:
        filled["batch_size"] = work.batch_size or "all"
    elif config.local_steps is None and config.local_epochs is None:
        filled["local_steps"] = DEFAULT_STEPS
    return config.model_copy(update=filled)


def _auto_server_lr(config: RunConfig, clients: int) -> float:
    """Return the algorithm's own η if it has one, else the one that its weights ask for."""
    own = algorithms.default_of(config.algorithm, "learning_rate")
    if own is not None and own != 1.0:
        return own
    return clients / config.clients_per_round if config.weighting == "population" else 1.0


def _work(config: RunConfig) -> LocalWork:
    return LocalWork(
        lr=schedules.parse(config.lr),
        steps=None if config.local_steps is None else schedules.parse(config.local_steps),
        epochs=None if config.local_epochs is None else schedules.parse(config.local_epochs),
        batch_size=None if config.batch_size == "all" else int(config.batch_size),
        batches=config.batches,
        solver=algorithms.solver(config.solver),
        prox=config.prox,
    )


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
