"""Settings -> the parts of an experiment: checked against each other, with nothing left open."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedmom import data as datasets
from fedmom import models
from fedmom.algorithms import build as algorithms
from fedmom.algorithms import schedules
from fedmom.algorithms.base import Algorithm
from fedmom.algorithms.client import LocalWork, full_gradient
from fedmom.core.errors import FedMomError, ServerDivergedError
from fedmom.core.registry import options
from fedmom.core.types import Schedule
from fedmom.core.validation import MOST
from fedmom.data.federated import Features, FederatedData
from fedmom.experiments import limits
from fedmom.experiments.settings import AUTO, DEFAULT_STEPS, RunConfig, kebab
from fedmom.experiments.step_sizes import default_lr
from fedmom.models import adapters, base
from fedmom.models.base import Model
from fedmom.runtimes import RUNTIMES
from fedmom.runtimes.base import Runtime, Workload
from fedmom.training import PACES, SAMPLERS, diagnostics, loop
from fedmom.training.loop import Record, State
from fedmom.training.pace import Pace

DEFAULT_MODEL = {"text": "char_lstm", "image": "lenet5", "vector": "logreg"}
# What a step on the gradient of all of a client's data has no use for.
LOCAL_WORK = ("local_steps", "local_epochs", "batch_size", "batches", "solver", "prox")


@dataclass(frozen=True)
class Experiment:
    """Settings with nothing left open, and the objects they stand for."""

    config: RunConfig
    data: FederatedData
    model: Model
    algorithm: Algorithm
    work: LocalWork
    pace: Pace
    notes: tuple[str, ...]  # what the user should know before the run

    def start(self) -> State:
        """Return the state before the first round."""
        return loop.start(self.model, self.algorithm, self.config.seed)

    @property
    def takes_sums(self) -> bool:
        """Whether updates may come added up: no reply is looked at, or waited for, by itself."""
        waits_for_all = self.pace.keeps_late or not self.pace.enough(MOST)
        is_patient = self.pace.timeout is None
        return waits_for_all and is_patient and self.config.diagnostics_every is None

    def runtime(
        self, work: LocalWork | None = None, spec: str | None = None, **defaults: Any
    ) -> Runtime:
        """Return where the clients live.

        Args:
            work: Other local work than the run's own.
            spec: Another runtime than that of the settings.
            **defaults: Options of the runtime, where the settings do not give them.
        """
        workload = Workload(
            self.data,
            self.model,
            work or self.work,
            self.algorithm,
            self.config.seed,
            cohort=self.pace.rows,
        )
        spec = spec or self.config.runtime
        if options(RUNTIMES.find(spec), spec).get("sums") and not self.takes_sums:
            raise FedMomError(
                f"runtime {spec}: this run looks at each reply, for its pace or its diagnostics, so"
                " actors cannot add replies up. Leave sums out."
            )
        runtime: Runtime = RUNTIMES.build(spec, workload, **defaults)
        return runtime

    def train(
        self, state: State, runtime: Runtime, rounds: int | None = None, *, commit: bool = True
    ) -> Iterator[tuple[State, Record]]:
        """Yield (state, record) after every round, until the run's last or another one.

        Args:
            state: Where to go on from.
            runtime: Where the clients live.
            rounds: The last round, if it is not the run's.
            commit: As in ``fedmom.train``: whether a round counts as soon as it is done.
        """
        steps = loop.train(
            state,
            runtime,
            self.algorithm,
            pace=self.pace,
            samples=self.data.train.size,
            rounds=self.config.rounds if rounds is None else rounds,
            seed=self.config.seed,
            bad_replies=self.config.bad_replies,
            commit=commit,
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

    FedSGD has no local steps, and only some algorithms have momentum.
    """
    spec = str(values.get("algorithm", RunConfig.model_fields["algorithm"].default))
    foreign = set()
    if algorithms.algorithm(spec).full_gradient:
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
            f" clients of {data.name}. Take at most {data.clients}."
        )
    config = _complete(config, data)
    integers = adapters.has_integers(data)
    model, algorithm, work = parts(config, data.features, integers=integers)
    if "@" in config.model:  # a user's own
        base.check(model, data.features, adapters.example(data))
    limits.check(config, work, data)
    draw = SAMPLERS.build(config.sampler, data.train.size)
    pace: Pace = PACES.build(config.pace, draw, config.clients_per_round)
    _check_together(config, algorithm, pace)
    if config.diagnostics and config.diagnostics_every is None:
        every = diagnostics.plan(work, data.train.size, config.rounds)
        config = config.model_copy(update={"diagnostics_every": every})
    return Experiment(
        config=config,
        data=data,
        model=model,
        algorithm=algorithm,
        work=work,
        pace=pace,
        notes=tuple(_eta_notes(config, data.clients)),
    )


def parts(
    config: RunConfig, features: Features, *, integers: bool = False
) -> tuple[Model, Algorithm, LocalWork]:
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
    return model, algorithm, _work(config, algorithm)


def _check_algorithm(config: RunConfig) -> None:
    """Refuse settings that the algorithm does not have."""
    if config.momentum is not None and algorithms.default_of(config.algorithm, "momentum") is None:
        raise FedMomError(
            f"{config.algorithm} has no momentum; leave momentum {config.momentum} out,"
            " or take fedmom or fedavgm."
        )
    if config.server_lr != AUTO and not _has_rate(config.algorithm):
        raise FedMomError(
            f"{config.algorithm} has a step size of its own; leave server-lr {config.server_lr}"
            " out."
        )
    if algorithms.algorithm(config.algorithm).full_gradient:
        for name in LOCAL_WORK:
            plain = "all" if name == "batch_size" else RunConfig.model_fields[name].default
            if name in config.model_fields_set and getattr(config, name) != plain:
                raise FedMomError(
                    f"{config.algorithm} takes one step on the gradient of all of a client's data:"
                    f" it has no use for {kebab(name)} {getattr(config, name)}. Leave it out, or"
                    " take fedavg."
                )


def _has_rate(algorithm: str) -> bool:
    """Whether an algorithm is made for a server step size; an object is made already."""
    return algorithms.default_of(algorithm, "learning_rate") is not None


def _check_together(config: RunConfig, algorithm: Algorithm, pace: Pace) -> None:
    """Refuse parts that make no sense together."""
    if config.sampler.partition(":")[0] == "weighted" and config.weighting != "uniform":
        raise FedMomError(
            f"sampler weighted draws clients in proportion to their samples, so {config.weighting}"
            " weights would count samples twice. Add --weighting uniform."
        )
    options(RUNTIMES.find(config.runtime), config.runtime)  # before the run has a folder
    rule = algorithm.rule
    if pace.keeps_late and rule is not None and rule.needs == "each":
        raise FedMomError(
            f"aggregate {config.aggregate} counts every reply alike, but pace {config.pace} has"
            " stale replies count less. Take --aggregate mean or --pace synchronous."
        )
    comparable = algorithm.client is None and not algorithm.stages and not pace.keeps_late
    if config.diagnostics and not (comparable and rule is not None and rule.needs == "sum"):
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
    if config.lr == AUTO:
        filled["lr"] = default_lr(data.features.kind, config.algorithm)
    if config.server_lr == AUTO and _has_rate(config.algorithm):
        filled["server_lr"] = _auto_server_lr(config, data.clients)
    if algorithms.algorithm(config.algorithm).full_gradient:
        filled["batch_size"] = "all"
    elif config.local_steps is None and config.local_epochs is None:
        filled["local_steps"] = DEFAULT_STEPS
    return config.model_copy(update=filled)


def _auto_server_lr(config: RunConfig, clients: int) -> float:
    """Return the algorithm's own η if it has one, else the one that its weights ask for."""
    own = algorithms.default_of(config.algorithm, "learning_rate")
    if own is not None and own != 1.0:
        return own
    return clients / config.clients_per_round if config.weighting == "population" else 1.0


def _work(config: RunConfig, algorithm: Algorithm) -> LocalWork:
    lr = schedules.parse(config.lr)
    if algorithm.full_gradient:
        return full_gradient(lr)
    return LocalWork(
        lr=lr,
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
