"""The whole reproduction: run what is missing, then write page, figures and tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fedmom.reports.html import Verdict
from fedmom.reproduction import findings, page, runner
from fedmom.reproduction.plan import Scale

DIRECTIONS = "probes"  # the folder's name in earlier versions, too


@dataclass(frozen=True)
class Made:
    """The page's path, the verdicts on the paper's claims, and how much is still missing."""

    page: Path
    verdicts: Sequence[Verdict]
    progress: str


def make(
    folder: Path,
    scale: Scale,
    parts: Sequence[str],
    console: Console,
    *,
    train: bool = True,
    runtime: str = "local",
) -> Made:
    """Make the parts of the paper that are asked for.

    Args:
        folder: Where runs, page, figures and tables are.
        scale: The plan's numbers.
        parts: Names of ``plan.PARTS``.
        console: Where progress is shown.
        train: Whether to run what is missing; otherwise the runs that have ended are shown.
        runtime: Where they are run.
    """
    cache = runner.Cache(folder / "runs", scale)
    if train:
        runner.complete(cache, scale, parts, console, runtime)
    gathered = findings.gather(cache, scale, parts, folder / DIRECTIONS, console, replay=train)
    data = {task.name: cache.data(task) for task in scale.tasks}
    context = page.Context(scale, data, runner.missing_text(cache, scale, parts))
    built = page.build(context, gathered, parts)
    page.draw(folder, built, console)
    return Made(page.write(folder, built), built.verdicts, context.progress)
