"""What the theory's bounds are for given constants, and the case that breaks a published one."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedmom.cli.output import OUT
from fedmom.cli.theory_tables import plain_table, statements_table
from fedmom.core.errors import FedMomError
from fedmom.core.files import parse_json
from fedmom.reports import drawing
from fedmom.theory import advice
from fedmom.theory import counterexample as broken_case
from fedmom.theory.constants import Constants, Setting
from fedmom.theory.estimate import from_row


def bounds(
    estimates: Path | None, lr: float | None, rounds: int, options: Mapping[str, Any]
) -> None:
    """Print every bound and its condition on the step size."""
    constants, setting = _given(estimates, options)
    OUT.print(statements_table(constants, setting, rounds, lr))
    for algorithm in ("fedavg", "fedmom"):
        best, least = advice.best(constants, setting, rounds, algorithm)
        OUT.print(f"{algorithm}: γ = {best:.3g} makes the corrected bound least, {least:.3g}.")


def counterexample(out: Path) -> None:
    """Print and draw the case that breaks the paper's Theorem 1."""
    rounds = [10**power for power in range(6)]
    found = broken_case.compare(rounds)
    view = plain_table("min |∇f(w_t)|² of FedAvg on f₁ = w²/2, f₂ = -w", "rounds T")
    for column in ("measured", "paper,\nTheorem 1", "corrected,\nTheorem 1'", "paper's bound"):
        view.add_column(column, justify="right")
    for t, *values in zip(rounds, found.measured, found.paper, found.corrected, strict=True):
        broken = "is broken" if values[1] < values[0] else "holds"
        view.add_row(f"{t:,}", *(f"{v:.3g}" for v in values), broken)
    OUT.print(view)
    figure = broken_case.figure()
    OUT.print(figure.note)
    for path in drawing.save(figure, out):
        OUT.print(f"Figure: {path}")


def _given(file: Path | None, options: Mapping[str, Any]) -> tuple[Constants, Setting]:
    """Return the constants and setting of a file, overridden by the options."""
    constants: dict[str, Any] = {}
    setting: dict[str, Any] = {}
    if file is not None:
        constants, setting = _read(file)
    for name, value in options.items():
        if value is not None:
            (setting if name in Setting.__dataclass_fields__ else constants)[name] = value
    needed = {
        "smoothness": "--L",
        "variance": "--sigma2",
        "gap": "--gap",
        "clients": "--clients",
        "per_round": "--clients-per-round",
        "local_steps": "--local-steps",
    }
    missing = [flag for name, flag in needed.items() if name not in {**constants, **setting}]
    if missing:
        raise FedMomError(
            f"{', '.join(missing)} missing. Give them, or --estimates with a file of"
            " `fedmom theory estimate --out`."
        )
    return Constants(**constants), Setting(**setting)


def _read(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        row = parse_json(file.read_bytes())
        return asdict(from_row(row["estimates"]).constants()), asdict(Setting(**row["setting"]))
    except OSError as error:
        raise FedMomError(f"{file} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, FedMomError):
            raise
        raise FedMomError(
            f"{file} is no file of estimates. Make one with `fedmom theory estimate --out {file}`."
        ) from None
