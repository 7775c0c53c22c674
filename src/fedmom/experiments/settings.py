"""A run's settings: the schema, read from TOML or options and checked."""

import difflib
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from fedmom.algorithms import ALGORITHMS, ATTACKS, SOLVERS
from fedmom.core.errors import FedMomError
from fedmom.core.files import LARGEST_TOML, read_file, read_named
from fedmom.core.registry import Registry, is_object, joined
from fedmom.core.types import Weighting
from fedmom.core.validation import LEAST_FLOAT, MOST, MOST_FLOAT
from fedmom.models import ADAPTATIONS
from fedmom.runtimes import RUNTIMES
from fedmom.training import PACES, SAMPLERS
from fedmom.world import WORLDS

# A name with 99 dots: no setting has one.
DEEP = re.compile(rb"""(?:(?:[\w-]{1,99}|"[^"\n]{0,99}"|'[^'\n]{0,99}')[ \t]*\.[ \t]*){99}""")

DEFAULT_STEPS = 10
AUTO = "auto"


def _number_or_schedule(value: Any) -> Any:
    """Accept a number greater than 0, or a schedule such as exponential:start=1,rate=0.99."""
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        # A name with @ is code, which is loaded to run, not to read a folder that somebody sent.
        if "@" in str(value).partition(":")[0]:
            return str(value)
        from fedmom.algorithms import schedules  # loads JAX, which plain numbers do not need

        schedules.parse(str(value))
        return str(value)
    if not 0 < number < math.inf:
        raise FedMomError("must be a number greater than 0, or a schedule over rounds")
    return number


def _rate_or_auto(value: Any) -> Any:
    if value == AUTO:
        return value
    rate = _number_or_schedule(value)
    if isinstance(rate, float) and not LEAST_FLOAT <= rate <= MOST_FLOAT:  # 0 or inf in programs
        raise FedMomError(
            f"must be a number from {LEAST_FLOAT:.2g} to {MOST_FLOAT:.2g}, or a schedule"
        )
    return rate


def _whole_or_schedule(value: Any) -> Any:
    value = _number_or_schedule(value)
    if isinstance(value, float) and not (value == int(value) and value <= MOST):
        raise FedMomError(f"must be a whole number from 1 to {MOST}, or a schedule over rounds")
    return int(value) if isinstance(value, float) else value


def _count_or_all(value: Any) -> Any:
    if value == "all":
        return value
    try:
        count = int(str(value))
    except ValueError:
        count = 0
    if not 1 <= count <= MOST:
        raise FedMomError(f"must be a whole number from 1 to {MOST}, or all")
    return count


def _none_or_known(table: Registry) -> BeforeValidator:
    known = _known(table)

    def check(value: Any) -> Any:
        return None if value in (None, "none") else known.func(value)  # type: ignore[call-arg]

    return BeforeValidator(check)


def _known(table: Registry) -> BeforeValidator:
    def check(value: Any) -> Any:
        if not is_object(str(value)):  # of another process: its run can be read, not resumed
            table.check(str(value))
        return value

    return BeforeValidator(check)


def _known_joined(table: Registry) -> BeforeValidator:
    def check(value: Any) -> Any:
        for spec in joined(value) if isinstance(value, str) else ():
            table.check(spec)
        return value

    return BeforeValidator(check)


OptionalRate = Annotated[float | str | None, BeforeValidator(_number_or_schedule)]
OptionalCount = Annotated[int | str | None, BeforeValidator(_whole_or_schedule)]
RateOrAuto = Annotated[float | str, BeforeValidator(_rate_or_auto)]
CountOrAll = Annotated[int | str, BeforeValidator(_count_or_all)]


def kebab(name: str) -> str:
    """Return a setting's name as it is written on the command line and in files."""
    return name.replace("_", "-")


class RunConfig(BaseModel):
    """All settings of a run, under the names of the command line."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=kebab,
        validate_by_name=True,
        validate_by_alias=True,
        allow_inf_nan=False,
    )

    data: str = Field(
        "shakespeare",
        description="Dataset: a name with options, or a path with options (`fedmom data list`),"
        " such as table.csv:client=user,label=y.",
    )
    model: str = Field(
        "auto", description="Model, with options; auto takes one that fits the data."
    )
    adapt: Annotated[str | None, _known_joined(ADAPTATIONS)] = Field(
        None,
        description="What becomes of the model before training, joined by +, such as"
        " pretrained:file=model.safetensors+lora:rank=8 [default: nothing].",
    )
    algorithm: Annotated[str, _known(ALGORITHMS)] = Field(
        "fedmom", description="Algorithm, with options; `fedmom list` tells what each one does."
    )
    rounds: int = Field(100, ge=1, le=MOST, description="Communication rounds, T.")
    clients_per_round: int = Field(2, ge=1, le=MOST, description="Clients in a round, M.")
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
    solver: Annotated[str, _known(SOLVERS)] = Field(
        "sgd", description="Client optimizer, with options, such as sgd:momentum=0.9 or adam."
    )
    lr: RateOrAuto = Field(
        AUTO,
        description="Local step size γ: a number, a schedule over rounds, or auto (a default for"
        " the algorithm and the kind of data).",
    )
    prox: float = Field(
        0.0, ge=0, le=1e9, description="FedProx's μ: pull towards the server's model."
    )
    accumulate: int = Field(
        1,
        ge=1,
        le=MOST,
        description="Parts in which a batch's gradient is computed, for nets that do not fit.",
    )
    server_lr: RateOrAuto = Field(
        "auto",
        description="Server step size η: a number, a schedule, or auto"
        " (K/M for population weights, else 1; 0.01 for the adaptive algorithms).",
    )
    momentum: float | None = Field(
        None, ge=0, lt=1, description="Server momentum β, in [0, 1) [default: 0.9]."
    )
    weighting: Weighting | Literal["own"] = Field(
        "population",
        description="Weights of the updates: population (n_k over all clients' samples, the"
        " paper's), cohort (over the cohort's) or uniform (1/M).",
    )
    average: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Evaluate an exponential moving average of the models with this decay; 0.99"
        " averages about the last 100 rounds [default: no average].",
    )
    aggregate: str = Field(
        "mean",
        description="How updates are combined: stages and a rule, joined by +, such as"
        " clip:norm=1+mean or trimmed_mean:share=0.1.",
    )
    attack: Annotated[str | None, _none_or_known(ATTACKS)] = Field(
        None,
        description="What a share of the clients does to harm the model, simulated, such as"
        " sign_flip:share=0.2,scale=10; none [default: none].",
    )
    sampler: Annotated[str, _known(SAMPLERS)] = Field(
        "uniform", description="How cohorts are drawn: uniform, poisson or weighted."
    )
    pace: Annotated[str, _known(PACES)] = Field(
        "synchronous",
        description="Synchronous or asynchronous rounds: synchronous, over_selected:extra=0.3 or"
        " buffered:in_flight=40.",
    )
    world: Annotated[str | None, _known_joined(WORLDS)] = Field(
        None,
        description="A simulated world, in parts joined by +: who is there, how fast and how"
        " reliable, such as diurnal:zones=4+speed+dropout:rate=0.1 [default: none].",
    )
    runtime: Annotated[str, _known(RUNTIMES)] = Field(
        "local",
        description="Where clients run, with options, such as local:workers=2, or"
        " ray:address=auto for a cluster.",
    )
    bad_replies: Literal["stop", "skip"] = Field(
        "stop", description="A reply that cannot be used stops the run, or is left out."
    )
    norm_limit: float | None = Field(
        None,
        ge=0,
        le=1e30,
        description="How many times the median of the replies' norms an update may be large before"
        " it counts as bad; 0: any [default: 1000, where replies are looked at one by one anyway].",
    )
    seed: int = Field(0, ge=0, lt=2**32, description="Seed of the cohorts, batches and model.")
    eval_every: int = Field(10, ge=1, le=MOST, description="Rounds between evaluations.")
    eval_samples: CountOrAll = Field(
        10_000,
        description="Samples per evaluation and split, spread over all clients; all: every one.",
    )
    tensorboard: bool = Field(False, description="Also write TensorBoard files (an extra).")
    diagnostics: bool = Field(
        False,
        description="Also log alignment with the full gradient, client drift, dissimilarity and"
        " effective step (docs/runs.md).",
    )
    diagnostics_every: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="Rounds between diagnostics [default: at least 15, and such that they cost"
        " about 5 % of the run].",
    )

    @model_validator(mode="before")
    @classmethod
    def _no_booleans(cls, values: Any) -> Any:
        """Refuse `rounds = true`, which would count as 1."""
        flags = {name for name, field in cls.model_fields.items() if field.annotation is bool}
        for key, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, bool) and key.replace("-", "_") not in flags:
                raise FedMomError(f"{kebab(key)} = {str(value).lower()} is not a value for it")
        return values

    @model_validator(mode="after")
    def _consistent(self) -> "RunConfig":
        if self.local_steps is not None and self.local_epochs is not None:
            raise FedMomError(
                f"local-steps {self.local_steps} and local-epochs {self.local_epochs} are both"
                " given; local work is measured in one of them. Leave one out"
            )
        if self.norm_limit is not None and 0 < self.norm_limit < 1:
            raise FedMomError(f"norm-limit {self.norm_limit} must be at least 1, or 0 for no limit")
        if self.diagnostics_every is not None and not self.diagnostics:
            raise FedMomError(
                f"diagnostics-every {self.diagnostics_every} is given, but no diagnostics are"
                " asked for. Add --diagnostics (diagnostics = true), or leave it out"
            )
        return self

    def toml(self) -> str:
        """Return the settings as TOML that ``read`` gives back unchanged."""
        return tomli_w.dumps(self.model_dump(by_alias=True, exclude_none=True))


def parse(values: Mapping[str, Any]) -> RunConfig:
    """Check settings given by name; raise one sentence for the first thing that is wrong."""
    try:
        return RunConfig.model_validate(dict(values))
    except ValidationError as error:
        raise FedMomError(_sentence(error)) from None


def read(path: Path) -> dict[str, Any]:
    """Return the settings in a run's TOML file, unchecked."""
    return _toml(path, partial(read_file, path, LARGEST_TOML))


def read_given(path: Path) -> dict[str, Any]:
    """Return the settings in a TOML file that the user names, which may be a link or a pipe."""
    return _toml(path, partial(read_named, path, "a file of settings", LARGEST_TOML))


def _toml(path: Path, read_bytes: Callable[[], bytes]) -> dict[str, Any]:
    try:
        content = read_bytes()
        if DEEP.search(content):  # tomllib takes minutes for it
            raise FedMomError(f"{path} is not a file of settings: a name in it has 100 parts.")
        return tomllib.loads(content.decode())
    except FedMomError:
        raise
    except OSError as error:
        raise FedMomError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, a number too long
        raise FedMomError(f"{path} is not valid TOML: {error}.") from None


def _sentence(error: ValidationError) -> str:
    from fedmom.core.arguments import short  # loads NumPy

    first = error.errors()[0]
    key = kebab(str(first["loc"][0])) if first["loc"] else ""
    known = [kebab(name) for name in RunConfig.model_fields]
    if first["type"] == "extra_forbidden":
        close = difflib.get_close_matches(key, known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        return f"There is no setting {key!r}.{hint} Settings: {', '.join(known)}."
    text = first["msg"].removeprefix("Value error, ").removesuffix(".")
    if not key:
        return f"{text}."
    return f"{key} = {short(first['input'])}: {text[0].lower() + text[1:]}."
