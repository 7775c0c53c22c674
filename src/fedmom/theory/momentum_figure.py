"""The map of momentum as a picture."""

from collections.abc import Sequence

import numpy as np

from fedmom.reports.charts import Chart, Figure, Heat
from fedmom.theory.momentum_map import MomentumMap

FULL = 3.0  # the factor of the deepest shade
NOTE = (
    "Numbers: FedAvg's expected excess loss over FedMom's, each at its own best γ."
    " Blue, above 1: FedMom ahead. Orange, below 1: FedAvg ahead."
)


def figure(
    panels: Sequence[tuple[str, MomentumMap]],
    *,
    title: str = "Blue: FedMom ahead. Orange: FedAvg.",
    task: tuple[int, int] | None = None,
) -> Figure:
    """Return the picture of some maps.

    Args:
        panels: A title and a map for each.
        title: That of the whole.
        task: The cell of the user's own task, as (row, column), framed in every map.

    Returns:
        A figure for ``fedmom.reports.drawing``.

    Examples:
        >>> from fedmom.theory.momentum_map import momentum_map
        >>> from fedmom.theory.quadratic import Plan, random_clients
        >>> cases = [("2", random_clients(clients=9, dimension=2), Plan(per_round=2))]
        >>> figure([("few", momentum_map(cases, [10]))]).charts[0].title
        'few'
    """
    charts = [_chart(name, found, task) for name, found in panels]
    mark = " The frame: your task." if task is not None else ""
    return Figure(name="momentum", title=title, charts=charts, note=NOTE + mark)


def _chart(title: str, found: MomentumMap, task: tuple[int, int] | None) -> Chart:
    shades = np.clip(np.log(found.ratios) / np.log(FULL), -1, 1)
    heat = Heat(
        label="ratio",
        rows=found.rows,
        columns=[f"{t:,}" for t in found.rounds],
        shades=shades.tolist(),
        texts=[[_short(ratio) for ratio in row] for row in found.ratios],
        framed=[] if task is None else [task],
    )
    return Chart(title=title, x="rounds T", y="clients per round M", marks=[heat])


def _short(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 9.95 else f"{ratio:.0f}"
