"""Folders of runs, comparisons and sweeps -> their runs, with short names, seeds together."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmom import report
from fedmom.config import RunConfig
from fedmom.errors import FedMomError
from fedmom.report import Curves, Group
from fedmom.runs import RunFolder

LISTS = ("compare.json", "sweep.json")
# After the algorithm, these settings name a run first, if they differ.
NAMING = ("data", "model", "lr", "local-steps", "local-epochs", "clients-per-round")
NOT_NAMING = ("seed", "tensorboard")


@dataclass(frozen=True)
class Found:
    """A run, as its folder has it."""

    path: Path
    config: RunConfig
    versions: dict[str, str]
    curves: Curves

    @property
    def done(self) -> int:
        """How many rounds are done."""
        return self.curves.rounds[-1]["round"] if self.curves.rounds else 0

    @property
    def finished(self) -> bool:
        """Whether all rounds are done."""
        return self.done >= self.config.rounds

    @property
    def changed(self) -> float:
        """When the folder had news, in seconds as the system counts them."""
        files = (self.path / name for name in ("config.toml", "rounds.jsonl", "evals.jsonl"))
        return max(file.stat().st_mtime for file in files if file.exists())

    def settings(self) -> dict[str, str]:
        """Return the settings as texts, without the seed."""
        values = self.config.model_dump(by_alias=True, exclude_none=True)
        return {k: _text(v) for k, v in values.items() if k not in NOT_NAMING}


@dataclass(frozen=True)
class Kind:
    """Runs that differ in nothing but their seed."""

    label: str
    runs: Sequence[Found]

    def group(self) -> Group:
        """Return the curves to be shown as one."""
        return Group(self.label, [run.curves for run in self.runs])


def find(folders: Iterable[Path]) -> list[Found]:
    """Return the runs in the folders, each once."""
    paths = [path for folder in folders for path in _runs_in(folder)]
    each = {path.resolve(): path for path in paths}
    return [_read(path) for path in each.values()]


def sort_out(found: Sequence[Found]) -> list[Kind]:
    """Return the runs by kind, each with a name of its own. Repeated seeds are shown apart."""
    kinds: dict[tuple[str, int], list[Found]] = {}
    seen: Counter[tuple[str, int]] = Counter()
    for run in found:
        settings = json.dumps(run.settings())
        times = seen[settings, run.config.seed]
        seen[settings, run.config.seed] += 1
        kinds.setdefault((settings, times), []).append(run)
    labels = _labels([runs[0].settings() for runs in kinds.values()])
    return [Kind(label, runs) for label, runs in zip(labels, kinds.values(), strict=True)]


def split(values: Sequence[Mapping[str, str]]) -> tuple[dict[str, str], list[str]]:
    """Return what all have in common, and the names of what differs."""
    names = dict.fromkeys(name for each in values for name in each)
    common = {n: values[0][n] for n in names if len({v.get(n) for v in values}) == 1}
    return common, [name for name in names if name not in common]


def _runs_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise FedMomError(f"There is no folder {folder}. Give the folder of a run, or of several.")
    if (folder / "config.toml").is_file():
        return [folder]
    for name in LISTS:
        if (folder / name).is_file():
            return [folder / run for run in _names(folder / name)]
    below = sorted(file.parent for file in folder.glob("*/config.toml"))
    if not below:
        raise FedMomError(
            f"{folder} holds no run: there is no config.toml in it or in the folders below it."
            " Give a folder that fedmom run, compare or sweep has made."
        )
    return below


def _names(file: Path) -> list[str]:
    try:
        names = json.loads(file.read_bytes())
        return [os.fspath(Path(name)) for name in names]
    except (ValueError, TypeError):
        raise FedMomError(f"{file} is damaged: it must hold a list of names.") from None


def _read(path: Path) -> Found:
    opened = RunFolder.open(path)
    try:
        config = opened.settings()
    except FedMomError as error:
        raise FedMomError(f"{path / 'config.toml'}: {error}") from None
    return Found(path, config, _versions(path), report.read(path, path.name))


def _versions(path: Path) -> dict[str, str]:
    """Return the versions, which a folder copied by hand may lack."""
    try:
        found = json.loads((path / "versions.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def _labels(kinds: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the algorithms, each with as many settings as it takes to tell the kinds apart."""
    labels = [kind["algorithm"] for kind in kinds]
    for name in dict.fromkeys([*NAMING, *(n for kind in kinds for n in kind)]):
        alike: dict[str, set[str | None]] = {}
        for label, kind in zip(labels, kinds, strict=True):
            alike.setdefault(label, set()).add(kind.get(name))
        labels = [
            label if len(alike[label]) == 1 else f"{label}, {_said(name, kind.get(name))}"
            for label, kind in zip(labels, kinds, strict=True)
        ]
        if len(set(labels)) == len(labels):
            break
    times: Counter[str] = Counter()
    for place, label in enumerate(labels):
        times[label] += 1
        labels[place] = label if times[label] == 1 else f"{label} ({times[label]})"
    return labels


def _said(name: str, value: str | None) -> str:
    if value is None:
        return f"no {name}"
    if name == "data":  # a path is long, and its end says most
        return Path(value).name
    return f"{name} {value}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.10g}" if isinstance(value, float) else str(value)
