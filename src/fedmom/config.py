"""A run's settings: read from TOML or options, checked, completed, and turned into objects."""

import difflib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import optax
import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from fedmom import data as datasets
from fedmom import diagnostics, models, schedules, specs
from fedmom.algorithms import ALGORITHMS
from fedmom.clients import SOLVERS, LocalWork, full_gradient
from fedmom.data import FederatedData
from fedmom.errors import FedMomError
from fedmom.models import Model
from fedmom.rounds import Weighting
from fedmom.server import averaged

DEFAULT_MODEL = {"text": "char_lstm", "picture": "lenet5", "vector": "logreg"}
DEFAULT_STEPS = 10


def _number_or_schedule(value: Any) -> Any:
    """Accept a number greater than 0, or a schedule such as exponential:start=1,rate=0.99."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        schedules.parse(str(value))
        return str(value)
    if not 0 < number < math.inf:
        raise FedMomError("must be a number greater than 0, or a schedule over rounds")
    return number


def _rate_or_auto(value: Any) -> Any:
    return value if value in (None, "auto") else _number_or_schedule(value)


def _whole_or_schedule(value: Any) -> Any:
    value = value if value is None else _number_or_schedule(value)
    if isinstance(value, float) and value != int(value):
        raise FedMomError("must be a whole number of 1 or more, or a schedule over rounds")
    return int(value) if isinstance(value, float) else value


def _optional_number_or_schedule(value: Any) -> Any:
    return value if value is None else _number_or_schedule(value)


def _count_or_all(value: Any) -> Any:
    if value == "all":
        return value
    try:
        count = int(str(value))
    except ValueError:
        count = 0
    if count < 1:
        raise FedMomError("must be a whole number of 1 or more, or all")
    return count


def _known(table: Mapping[str, Any], what: str) -> BeforeValidator:
    def check(value: Any) -> Any:
        specs.pick(table, str(value), what)
        return value

    return BeforeValidator(check)


Rate = Annotated[float | str, BeforeValidator(_number_or_schedule)]
OptionalRate = Annotated[float | str | None, BeforeValidator(_optional_number_or_schedule)]
OptionalCount = Annotated[int | str | None, BeforeValidator(_whole_or_schedule)]
RateOrAuto = Annotated[float | str, BeforeValidator(_rate_or_auto)]
CountOrAll = Annotated[int | str, BeforeValidator(_count_or_all)]


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class RunConfig(BaseModel):
    """All settings of a run, under the names of the command line."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=_kebab,
        validate_by_name=True,
        validate_by_alias=True,
        allow_inf_nan=False,
    )

    data: str = Field("shakespeare", description="Dataset: a name, with options, or an .npz file.")
    model: str = Field(
        "auto", description="Model, with options; auto takes one that fits the data."
    )
    algorithm: Annotated[str, _known(ALGORITHMS, "algorithm")] = Field(
        "fedmom", description="Algorithm; `fedmom list` tells what each one does."
    )
    rounds: int = Field(100, ge=1, description="Communication rounds, T.")
    clients_per_round: int = Field(2, ge=1, description="Clients in a round, M.")
    batch_size: CountOrAll = Field(10, description="Samples in a local batch, B, or all.")
    local_steps: OptionalCount = Field(
        None, description=f"Local steps in a round, H [default: {DEFAULT_STEPS}]."
    )
    local_epochs: OptionalRate = Field(
        None, description="Local passes over the client's data, instead of local steps."
    )
    batches: Literal["random", "shuffled"] | None = Field(
        None,
        description="Batches drawn with replacement, or shuffled epochs"
        " [default: random for steps, shuffled for epochs].",
    )
    solver: Annotated[str, _known(SOLVERS, "solver")] = Field(
        "sgd", description=f"Local solver: {', '.join(SOLVERS)}."
    )
    lr: Rate = Field(0.1, description="Local step size γ: a number or a schedule over rounds.")
    prox: float = Field(0.0, ge=0, description="FedProx's μ: pull towards the server's model.")
    server_lr: RateOrAuto = Field(
        "auto",
        description="Server step size η: a number, a schedule, or auto"
        " (K/M for population weights, else 1; 0.01 for the adaptive algorithms).",
    )
    momentum: float | None = Field(
        None, ge=0, lt=1, description="Server momentum β, in [0, 1) [default: 0.9]."
    )
    weighting: Weighting = Field(
        "population",
        description="Weights of the updates: n_k over all clients' samples (the paper's),"
        " over the cohort's, or 1/M.",
    )
    average: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Evaluate a mean of the models, each round's weight this times the next one's:"
        " 0.99 averages about the last 100 [default: the last model alone].",
    )
    seed: int = Field(0, ge=0, lt=2**32, description="Seed of the cohorts, batches and model.")
    eval_every: int = Field(10, ge=1, description="Rounds between evaluations.")
    eval_samples: CountOrAll = Field(
        10_000,
        description="Samples per evaluation and split, spread over all clients; all: every one.",
    )
    tensorboard: bool = Field(False, description="Also write TensorBoard files (an extra).")
    diagnostics: bool = Field(
        False,
        description="Also log alignment with the full gradient, client drift, dissimilarity and"
        " effective step (docs/theory.md).",
    )
    diagnostics_every: int | None = Field(
        None,
        ge=1,
        description="Rounds between diagnostics [default: so many that they take less than a"
        " tenth of the run's time].",
    )

    @model_validator(mode="before")
    @classmethod
    def _no_booleans(cls, values: Any) -> Any:
        """Refuse `rounds = true`, which would count as 1."""
        for key, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, bool) and key not in ("tensorboard", "diagnostics"):
                raise FedMomError(f"{_kebab(key)} = {str(value).lower()} is not a value for it")
        return values

    @model_validator(mode="after")
    def _consistent(self) -> "RunConfig":
        algorithm = ALGORITHMS[self.algorithm]
        if self.local_steps is not None and self.local_epochs is not None:
            raise FedMomError(
                f"local-steps {self.local_steps} and local-epochs {self.local_epochs} are both"
                " given; local work is measured in one of them. Leave one out"
            )
        if self.momentum is not None and algorithm.momentum is None:
            raise FedMomError(
                f"{self.algorithm} has no momentum; leave momentum {self.momentum} out,"
                " or take fedmom or fedavgm"
            )
        if algorithm.full_gradient and (self.local_steps or self.local_epochs):
            raise FedMomError(
                f"{self.algorithm} takes one step on all of a client's data; leave local-steps"
                " and local-epochs out, or take fedavg"
            )
        if self.diagnostics_every is not None and not self.diagnostics:
            raise FedMomError(
                f"diagnostics-every {self.diagnostics_every} is given, but no diagnostics are"
                " asked for. Add --diagnostics (diagnostics = true), or leave it out"
            )
        return self

    def toml(self) -> str:
        """Return the settings as TOML that ``read`` gives back unchanged."""
        return tomli_w.dumps(self.model_dump(by_alias=True, exclude_none=True))


@dataclass(frozen=True)
class Experiment:
    """A checked configuration with nothing left open, and the objects it stands for."""

    config: RunConfig
    data: FederatedData
    model: Model
    server: optax.GradientTransformation
    work: LocalWork
    notes: tuple[str, ...]  # what the user should know before the run


def parse(values: Mapping[str, Any]) -> RunConfig:
    """Check settings given by name; raise one sentence for the first thing that is wrong."""
    try:
        return RunConfig.model_validate(dict(values))
    except ValidationError as error:
        raise FedMomError(_sentence(error)) from None


def read(path: Path) -> dict[str, Any]:
    """Return the settings in a TOML file, unchecked."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FedMomError(f"{path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FedMomError(f"{path} is not valid TOML: {error}.") from None


def fitting(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what an algorithm has no use for, of settings that several share.

    FedSGD has no local steps, and only some algorithms have momentum.
    """
    algorithm = specs.pick(ALGORITHMS, str(values.get("algorithm", "fedmom")), "algorithm")
    foreign = set()
    if algorithm.full_gradient:
        foreign |= {"local-steps", "local-epochs"}
    if algorithm.momentum is None:
        foreign |= {"momentum"}
    return {key: value for key, value in values.items() if key not in foreign}


def prepare(config: RunConfig, data: FederatedData | None = None) -> Experiment:
    """Load the data, fill in what was left open, and build the run's parts."""
    data = data or datasets.load(config.data)
    if config.clients_per_round > data.clients:
        raise FedMomError(
            f"clients-per-round {config.clients_per_round} is more than the {data.clients}"
            f" clients of {data.name}. Take at most {data.clients}."
        )
    config = _complete(config, data)
    algorithm = ALGORITHMS[config.algorithm]
    work = _work(config)
    if config.diagnostics and config.diagnostics_every is None:
        every = diagnostics.plan(work, data.train.size, config.rounds)
        config = config.model_copy(update={"diagnostics_every": every})
    eta = schedules.parse(config.server_lr)
    beta = {} if config.momentum is None else {"beta": config.momentum}
    server = algorithm.optimizer(eta, **beta)
    return Experiment(
        config=config,
        data=data,
        model=models.build(config.model, data.features),
        server=server if config.average is None else averaged(server, config.average),
        work=work,
        notes=tuple(_eta_notes(config, eta, data.clients)),
    )


def _complete(config: RunConfig, data: FederatedData) -> RunConfig:
    algorithm = ALGORITHMS[config.algorithm]
    filled: dict[str, Any] = {"momentum": config.momentum or algorithm.momentum}
    if config.momentum == 0:
        filled["momentum"] = 0.0
    if config.model == "auto":
        filled["model"] = DEFAULT_MODEL[data.features.kind]
    if config.server_lr == "auto":
        paper = data.clients / config.clients_per_round
        filled["server_lr"] = algorithm.step or (paper if config.weighting == "population" else 1.0)
    if algorithm.full_gradient:
        filled["batch_size"] = "all"
    elif config.local_steps is None and config.local_epochs is None:
        filled["local_steps"] = DEFAULT_STEPS
    filled["data"] = str(datasets.locate(config.data))
    return config.model_copy(update=filled)


def _work(config: RunConfig) -> LocalWork:
    lr = schedules.parse(config.lr)
    if ALGORITHMS[config.algorithm].full_gradient:
        return full_gradient(lr)
    return LocalWork(
        lr=lr,
        steps=None if config.local_steps is None else schedules.parse(config.local_steps),
        epochs=None if config.local_epochs is None else schedules.parse(config.local_epochs),
        batch_size=None if config.batch_size == "all" else int(config.batch_size),
        batches=config.batches,
        solver=SOLVERS[config.solver],
        prox=config.prox,
    )


def _eta_notes(config: RunConfig, eta: float | schedules.Schedule, clients: int) -> list[str]:
    """Say when η leaves the paper's [1, K/M]. The adaptive methods scale g_t themselves."""
    if config.weighting != "population" or ALGORITHMS[config.algorithm].step is not None:
        return []
    top = clients / config.clients_per_round
    ends = [schedules.at(eta, 0), schedules.at(eta, config.rounds - 1)]
    outside = [e for e in ends if not 1 <= e <= top * (1 + 1e-9)]
    if not outside:
        return []
    return [
        f"server-lr {outside[0]:g} is outside [1, K/M] = [1, {top:g}], where the paper's theory"
        " holds for population weights (docs/theory.md). `--server-lr auto` takes K/M."
    ]


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    key = _kebab(str(first["loc"][0])) if first["loc"] else ""
    known = [_kebab(name) for name in RunConfig.model_fields]
    if first["type"] == "extra_forbidden":
        close = difflib.get_close_matches(key, known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        return f"There is no setting {key!r}.{hint} Settings: {', '.join(known)}."
    text = first["msg"].removeprefix("Value error, ").removesuffix(".")
    if not key:
        return f"{text}."
    return f"{key} = {first['input']!r}: {text[0].lower() + text[1:]}."
