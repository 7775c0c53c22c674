"""The one type that reads a run: how far it came, why it stopped, curves and final numbers."""

import contextlib
import functools
import itertools
import json
import math
import os
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedmom.core.arguments import checked
from fedmom.core.errors import FedMomError
from fedmom.core.files import inner_folder, parse_json, read_file, slug
from fedmom.core.types import LOWER_IS_BETTER, PERCENTILE, SIMULATED, UNRANKED
from fedmom.experiments import run_labels
from fedmom.experiments.checkpoints import check_lines
from fedmom.experiments.folder import RunFolder
from fedmom.experiments.logs import EVALS, ROUNDS
from fedmom.experiments.settings import RunConfig
from fedmom.runtimes.devices.journal import EVENTS

Points = list[tuple[int, float]]
THEORY = "theory.json"  # what `fedmom theory check` has said of a run
COMPARE_LIST, SWEEP_LIST = LISTS = "compare.json", "sweep.json"
NO_METRICS = ("round", "split", "loss", "clients", "samples")  # of the numbers of a line
REASONS_NAMED = 3  # of rejected replies
NOT_NAMING = ("seed", "tensorboard", "runtime")


@dataclass(frozen=True)
class Result:
    """A run that is finished, stopped or still running.

    Args:
        path: Its folder.
        config: Its settings.
        evals: The lines of its evaluations, ``{"round", "split", "loss", ...}`` and the metrics.
        rounds: The lines of its rounds.
        versions: The versions that made it.
        stop: "diverged" or "stopped" if it ended before its last round, else "".
        why: The reason, a sentence.
        error: What was raised when it ended, if this process ran it; None if a callback ended it.
    """

    path: Path
    config: RunConfig
    evals: Sequence[Mapping[str, Any]]
    rounds: Sequence[Mapping[str, Any]] = ()
    versions: Mapping[str, str] | None = None
    stop: str = ""
    why: str = ""
    error: FedMomError | None = field(default=None, compare=False, repr=False)

    @functools.cached_property
    def given_name(self) -> str:
        """The name that the user gave the run in a comparison; "" if it is its algorithm's."""
        place = self.path.absolute() if self.path else Path()
        try:
            names = read_names(place.parent / COMPARE_LIST)
        except FedMomError:  # it is in no comparison
            names = []
        has_seeds = all(re.search(r"_seed\d+$", each) for each in names)
        name = place.name.removesuffix(f"_seed{self.config.seed}") if has_seeds else place.name
        return name if place.name in names and name != slug(self.config.algorithm) else ""

    @property
    def label(self) -> str:
        """What tables and messages call the run: its given name, or its algorithm."""
        return self.given_name or self.config.algorithm

    @property
    def done(self) -> int:
        """How many rounds are done."""
        logged = self.rounds or self.evals
        return int(logged[-1]["round"]) if logged else 0

    @property
    def finished(self) -> bool:
        """Whether all rounds are done, the last evaluation included."""
        return self.done >= self.config.rounds and not self.stop

    @property
    def diverged(self) -> bool:
        """Whether it ended because its numbers were no longer finite."""
        return self.stop == "diverged"

    @property
    def status(self) -> str:
        """``finished``, ``diverged``, ``stopped`` or ``unfinished``."""
        return "finished" if self.finished else self.stop or "unfinished"

    def curve(self, split: str, key: str) -> Points:
        """Return a curve of the evaluations as points (round, value).

        Runs of earlier versions have fewer keys: no points, where theirs have not this one.
        """
        rows = (row for row in self.evals if row["split"] == split)
        return [(row["round"], row[key]) for row in rows if key in row]

    @checked
    def last(self, split: Literal["train", "test"], key: str) -> float | None:
        """Return a number of the last evaluation, such as ``last("test", "accuracy")``.

        Returns:
            The number; None before the first evaluation, or without test samples.

        Raises:
            FedMomError: No evaluation has a number of this name.
        """
        names = dict.fromkeys(name for row in self.evals for name in row)
        if names and key not in names:
            numbers = [name for name in names if name not in ("split", LOWER_IS_BETTER, UNRANKED)]
            raise FedMomError(f"last: key is {key!r}. It must be one of: {', '.join(numbers)}.")
        return self.last_if_any(split, key)

    def last_if_any(self, split: str, key: str) -> float | None:
        """Return a number of the last evaluation; None where there is no such number."""
        return next((r.get(key) for r in reversed(self.evals) if r["split"] == split), None)

    def logged(self, key: str) -> Points:
        """Return a curve of the rounds; a round without replies has no loss."""
        return [(r["round"], r[key]) for r in self.rounds if r[key] is not None]

    def noted(self, key: str, name: str) -> Points:
        """Return a curve of the numbers under "diagnostics" or "metrics", where rounds have it."""
        values = ((r["round"], (r.get(key) or {}).get(name)) for r in self.rounds)
        return [(round_, value) for round_, value in values if value is not None]

    @property
    def metrics(self) -> list[str]:
        """The metrics of the model, in its order."""
        return metrics_of(max(self.evals, key=len, default={"accuracy": 0.0}))

    @property
    def metric(self) -> str:
        """What to rank by: the first metric that says which values are better, or the loss."""
        return next((name for name in self.metrics if self.better(name)), "loss")

    def better(self, metric: str) -> int:
        """Return 1 if higher is better in a metric, -1 if lower is, 0 if that is unknown."""
        lower, unranked = (
            {name for row in self.evals for name in row.get(key, ())}
            for key in (LOWER_IS_BETTER, UNRANKED)
        )
        return 0 if metric in unranked else -1 if metric in {"loss", *lower} else 1

    def rounds_to(self, goal: float) -> int | None:
        """Return the first evaluated round whose test metric is this good; None: never."""
        sign = self.better(self.metric)
        reached = (r for r, v in self.curve("test", self.metric) if sign * v >= sign * goal)
        return next(reached, None)

    def simulated(self) -> dict[int, float]:
        """Return the simulated time after each round, in seconds; nothing without a world."""
        rows = [r for r in self.rounds if "simulated_seconds" in r]
        ends = itertools.accumulate(row["simulated_seconds"] for row in rows)
        found = {row["round"]: end for row, end in zip(rows, ends, strict=True)}
        return {0: 0.0, **found} if found else {}

    def seconds_to(self, goal: float) -> float | None:
        """Return the simulated time to a test metric, in seconds; None: never, or no world."""
        reached = self.rounds_to(goal)
        return None if reached is None else self.simulated().get(reached)

    def best(self) -> float:
        """Return the best value of the test metric so far."""
        sign = self.better(self.metric)
        found = (sign * value for _, value in self.curve("test", self.metric))
        values = (value for value in found if not math.isnan(value))
        return sign * max(values, default=0.0 if sign > 0 else -math.inf)

    def until(self, rounds: int) -> "Result":
        """Return the run as it was after a number of rounds."""
        evals = [row for row in self.evals if row["round"] <= rounds]
        reached = any(row["round"] == rounds for row in evals)
        stop, why = ("", "") if reached else (self.stop, self.why)
        kept = [row for row in self.rounds if row["round"] <= rounds]
        return replace(self, evals=evals, rounds=kept, stop=stop, why=why)

    def risen(self) -> str:
        """Return from where to where the training loss rose; nothing if it did not rise."""
        losses = self.curve("train", "loss")
        if len(losses) < 2 or losses[0][0] != 0 or losses[-1][1] <= losses[0][1]:
            return ""
        return f"from {losses[0][1]:.4g} to {losses[-1][1]:.4g}"

    def rejected(self) -> str:
        """Return how many replies were rejected, and why, as sentences; nothing if none was."""
        reasons = Counter(why for row in self.rounds for _, why in faults_of(row))
        if not reasons:
            return ""
        count = reasons.total() + sum(row.get("replies", 0) for row in self.rounds)
        fruitless = sum(bool(faults_of(row)) and not row.get("replies") for row in self.rounds)
        named = [f"{why} ({n:,})" for why, n in reasons.most_common(REASONS_NAMED)]
        more = len(reasons) - len(named)
        text = (
            f"{reasons.total():,} of {count:,} replies were rejected: {'; '.join(named)}"
            f"{f'; and {more} more reasons' if more else ''}."
        )
        if not fruitless:
            return text
        return f"{text} In {fruitless:,} of {self.done:,} rounds none was left: no step was taken."

    def theory(self) -> str:
        """Return what `fedmom theory check` has found about the run, if it was called."""
        # Earlier versions' "sentence" is left out: it certified runs that no theorem covers.
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            return str(parse_json(read_file(self.path / THEORY))["verdict"])
        return ""

    @property
    def seconds(self) -> float:
        """The time that rounds took, without evaluations."""
        return float(sum(r["seconds"] for r in self.rounds))

    @property
    def megabytes(self) -> float:
        """What was sent, both ways."""
        return float(sum(r["bytes_up"] + r["bytes_down"] for r in self.rounds)) / 1e6

    @property
    def changed(self) -> float:
        """When the folder last changed, in seconds since the epoch."""
        # The last is of a deployed run, which has news while it waits for devices.
        files = (self.path / name for name in ("config.toml", ROUNDS, EVALS, EVENTS))
        return max(file.stat().st_mtime for file in files if file.exists())

    def settings(self) -> dict[str, str]:
        """Return the settings as texts, without the seed."""
        values = self.config.model_dump(by_alias=True, exclude_none=True)
        return {k: _text(v) for k, v in values.items() if k not in NOT_NAMING}


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed, shown as one."""

    label: str
    runs: Sequence[Result]

    @property
    def steady(self) -> Sequence[Result]:
        """The runs that did not diverge, which means are over; all of them if all did."""
        return [run for run in self.runs if not run.diverged] or self.runs

    def best(self) -> float:
        """Return the best value of the test metric that all seeds reached."""
        sign = self.runs[0].better(self.runs[0].metric)
        return sign * min(sign * run.best() for run in self.runs)

    def rounds_to(self, goal: float) -> float | None:
        """Return the rounds to a test metric, a mean over seeds; None if one never gets there."""
        reached = [r for run in self.runs if (r := run.rounds_to(goal)) is not None]
        return statistics.fmean(reached) if len(reached) == len(self.runs) else None

    def seconds_to(self, goal: float) -> list[float | None]:
        """Return the simulated time of each run to a test metric."""
        return [run.seconds_to(goal) for run in self.runs]


def faults_of(row: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Return the rejected replies of a round, except those that a simulated world has lost."""
    return [(k, why) for k, why in row.get("rejected", ()) if not why.startswith(SIMULATED)]


def read(path: Path) -> Result:
    """Read the run in a folder."""
    folder = RunFolder.open(path)
    pointer = folder.pointer()  # before the logs, which grow in the meantime
    evals, rounds = folder.rows(EVALS), folder.rows(ROUNDS)
    if pointer is not None:
        try:
            check_lines(path, pointer, {EVALS: len(evals), ROUNDS: len(rounds)})
        except FedMomError as error:
            raise FedMomError(f"{error}. `fedmom resume {path}` runs these rounds again.") from None
    return Result(path, folder.settings(), evals, rounds, folder.versions(), *folder.stop())


def find(folders: Iterable[Path]) -> list[Result]:
    """Read the runs in folders of runs, comparisons and sweeps, each once."""
    paths = [path for folder in folders for path in _runs_in(folder)]
    each = {path.resolve(): path for path in paths}
    return [read(path) for path in each.values()]


def group_by_seed(results: Sequence[Result]) -> list[Group]:
    """Return runs in groups with different names. Repeated seeds are shown apart."""
    groups: dict[tuple[str, int], list[Result]] = {}
    seen: Counter[tuple[str, int]] = Counter()
    for run in results:
        settings = json.dumps([run.given_name, run.settings()])
        times = seen[settings, run.config.seed]
        seen[settings, run.config.seed] += 1
        groups.setdefault((settings, times), []).append(run)
    firsts = [runs[0] for runs in groups.values()]
    labels = run_labels.apart([run.label for run in firsts], [run.settings() for run in firsts])
    return [Group(label, runs) for label, runs in zip(labels, groups.values(), strict=True)]


def group_by_name(results: Mapping[str, Result]) -> list[Group]:
    """Return the runs of a sweep by name, seeds taken together."""
    together: dict[str, list[Result]] = {}
    for name, run in results.items():
        parts = (part for part in name.split("_") if part != f"seed{run.config.seed}")
        together.setdefault("_".join(parts) or "run", []).append(run)
    return [Group(label, runs) for label, runs in together.items()]


def as_groups(results: Mapping[str, Result]) -> list[Group]:
    """Return runs by label, or seeds taken together if there are any; early stops are marked."""
    groups = group_by_seed(list(results.values()))
    if len(groups) == len(results):
        groups = [Group(label, [run]) for label, run in results.items()]
    return [Group(group.label + _early(group.runs), group.runs) for group in groups]


def target(groups: Sequence[Group]) -> float | None:
    """Return the best test metric of the runner-up: what shows who was faster; None of one run."""
    if len(groups) < 2:
        return None
    best = sorted((group.best() for group in groups), reverse=ranked_by(groups).better > 0)
    return best[min(1, len(best) - 1)]


class RankedBy(NamedTuple):
    """The metric that runs are ranked by, and whether higher (1) or lower (-1) is better."""

    metric: str
    better: int

    @property
    def form(self) -> str:
        """How values are shown: shares to three decimals, errors to four digits."""
        return "{:.3f}" if self.better > 0 else "{:.4g}"

    def text(self, value: float) -> str:
        """Return a value as tables show it."""
        return self.form.format(value)


def ranked_by(groups: Sequence[Group]) -> RankedBy:
    """Return the metric that runs are ranked by, which is that of the first run that has any."""
    runs = [run for group in groups for run in group.runs]
    run = next((run for run in runs if run.evals), runs[0])
    return RankedBy(run.metric, run.better(run.metric))


def metrics_of(row: Mapping[str, Any]) -> list[str]:
    """Return the metrics in a line of ``evals.jsonl``, without their percentiles."""
    numbers = (name for name, value in row.items() if isinstance(value, int | float))
    return [name for name in numbers if name not in NO_METRICS and not PERCENTILE.search(name)]


def common_settings(values: Sequence[Mapping[str, str]]) -> tuple[dict[str, str], list[str]]:
    """Return the settings that all have in common, and the names of those that differ."""
    names = dict.fromkeys(name for each in values for name in each)
    common = {n: values[0][n] for n in names if len({v.get(n) for v in values}) == 1}
    return common, [name for name in names if name not in common]


def read_names(file: Path) -> list[str]:
    """Return the names of the runs of a comparison or sweep."""
    try:
        names = parse_json(read_file(file))
    except OSError as error:
        raise FedMomError(f"{file} cannot be read: {error.strerror}.") from None
    except ValueError:
        names = None
    plain = isinstance(names, list) and all(
        isinstance(name, str) and name not in ("", "..") and Path(name).name == name
        for name in names
    )
    if not plain or not names or len(set(names)) < len(names):
        raise FedMomError(
            f"{file} is damaged: it must hold a list of the names of its runs' folders. Write it"
            ' again, such as ["fedavg", "fedmom"].'
        )
    return list(names)


def _runs_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise FedMomError(f"There is no folder {folder}. Name the folder of a run, or of several.")
    if os.path.lexists(folder / "config.toml"):
        return [folder]
    for name in LISTS:
        if os.path.lexists(folder / name):
            return [inner_folder(folder / run) for run in read_names(folder / name)]
    # A link to another of these, such as "latest", is one that is found anyway.
    below = sorted(
        inner_folder(file.parent)
        for file in folder.glob("*/config.toml")
        if file.parent.resolve().parent != folder.resolve() or not file.parent.is_symlink()
    )
    if not below:
        raise FedMomError(
            f"{folder} holds no run: there is no config.toml in it or in the folders below it."
            " Name a folder that fedmom run, compare or sweep has made."
        )
    return below


def _early(runs: Sequence[Result]) -> str:
    """Return a mark such as " (2 of 5 diverged)"; nothing if no run stopped early."""
    counts = Counter(run.stop for run in runs if run.stop)
    texts = [s if len(runs) == 1 else f"{n} of {len(runs)} {s}" for s, n in counts.items()]
    return f" ({', '.join(texts)})" if texts else ""


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.10g}" if isinstance(value, float) else str(value)
