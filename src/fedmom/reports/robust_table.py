"""The tables of attacks and rules: for each algorithm and share, how accurate each rule stays."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedmom.core.files import write_atomic
from fedmom.experiments.results import Result
from fedmom.experiments.robustness import NO_ATTACK, run_name
from fedmom.experiments.seed_statistics import Interval, interval
from fedmom.reports.charts import Grid

SUCCESS = "attack_success"
COLUMNS = ("algorithm", "share", "rule", "attack", "metric", "mean", "low", "high", "seeds")
NOTE = (
    "Test accuracy after the last round, and for a backdoor how often its trigger works. Means over"
    " seeds, with 95 % intervals where there are three seeds or more; diverged: a run did."
)


class RobustTable:
    """The numbers of all runs, by algorithm, share, rule, attack and metric.

    Args:
        found: The results by the runs' names.
        axes: Algorithms, attacks, rules and shares, as in ``experiments.robustness.runs``.
        seeds: The seeds.
    """

    def __init__(
        self,
        found: Mapping[str, Result],
        axes: tuple[Sequence[str], Sequence[str], Sequence[str], Sequence[float]],
        seeds: Sequence[int],
    ) -> None:
        self._found, self._seeds = found, seeds
        self.algorithms, attacks, self.rules, self.shares = axes
        self.attacks = (NO_ATTACK, *attacks)

    def grids(self) -> list[Grid]:
        """Return a table for each algorithm and share."""
        places = [(a, s) for a in self.algorithms for s in self.shares]
        return [self._grid(algorithm, share) for algorithm, share in places]

    def markdown(self) -> str:
        """Return the tables for a page."""
        parts = []
        for grid in self.grids():
            lines = [
                f"**{grid.title}**",
                "",
                _line(grid.columns),
                _line(["---"] * len(grid.columns)),
            ]
            parts.append("\n".join([*lines, *map(_line, grid.rows)]))
        return "\n\n".join([*parts, NOTE, ""])

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write the tables as Markdown, and all numbers as CSV; return their paths."""
        page, numbers = folder / "robust.md", folder / "robust.csv"
        write_atomic(page, self.markdown().encode())
        file = io.StringIO()
        rows = [
            (algorithm, share, rule, attack, metric, *self._numbers(place, metric))
            for algorithm in self.algorithms
            for share in self.shares
            for rule in self.rules
            for attack in self.attacks
            for place in [(algorithm, rule, attack, share)]
            for metric in self._metrics(place)
        ]
        csv.writer(file).writerows([COLUMNS, *rows])
        write_atomic(numbers, file.getvalue().encode())
        return page, numbers

    def _grid(self, algorithm: str, share: float) -> Grid:
        measured = [
            (attack, metric)
            for attack in self.attacks
            for metric in self._metrics((algorithm, self.rules[0], attack, share))
        ]
        columns = [
            attack if metric != SUCCESS else f"{attack} success" for attack, metric in measured
        ]
        rows = [
            [rule, *(self._of((algorithm, rule, a, share), m).text() for a, m in measured)]
            for rule in self.rules
        ]
        title = f"{algorithm}, {share:.0%} hostile"
        return Grid("robust", title, ["rule", *columns], rows)

    def _runs(self, place: tuple[str, str, str, float]) -> list[Result]:
        names = (run_name(*place, seed) for seed in self._seeds)
        return [self._found[name] for name in names if name in self._found]

    def _metrics(self, place: tuple[str, str, str, float]) -> list[str]:
        """Return the model's first metric, and the attack's own."""
        runs = self._runs(place)
        if not runs:
            return []
        has_goal = runs[0].last_if_any("test", SUCCESS) is not None
        return [runs[0].metric, *([SUCCESS] if has_goal else [])]

    def _of(self, place: tuple[str, str, str, float], metric: str) -> Interval:
        values = [
            float("inf") if run.diverged else run.last_if_any("test", metric)
            for run in self._runs(place)
        ]
        return interval([value for value in values if value is not None])

    def _numbers(self, place: tuple[str, str, str, float], metric: str) -> list[object]:
        found = self._of(place, metric)
        return [found.mean, found.low, found.high, found.seeds]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
