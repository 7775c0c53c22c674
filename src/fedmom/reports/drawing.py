"""Charts -> image files for print, at the size of a paper's page."""

import io
import itertools
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmom.core.files import make_folder, write_atomic
from fedmom.reports.charts import LIGHT, Area, Bars, Chart, Figure, Heat, Line, colours_of

if TYPE_CHECKING:  # loading it takes a second that `fedmom run` need not wait for
    from matplotlib.figure import Figure as Image

FIGURE_FORMATS = ("png", "svg", "pdf")
PANEL_INCHES = (2.5, 2.05)
TITLE_LETTERS = 36  # that fit above a panel
HEADLINE_LETTERS = 30  # the same of a figure's title, which is larger
LEGEND_LINES, LINE_INCHES = 2, 0.17  # that a figure has room for, and the height of each
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 8,
    "figure.titlesize": 9.5,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#555555",
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "pdf.fonttype": 42,  # letters stay letters, which journals ask for
    "svg.hashsalt": "fedmom",  # the same figure is the same file
}
# Without the dates: the same figure is the same file.
METADATA: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def draw(figure: Figure, colours: Mapping[str, int] | None = None) -> "Image":
    """Draw a figure; ``colours`` are those of the page it belongs to, by default its own."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Image

    colours = colours or colours_of([figure])
    columns = figure.across
    rows = -(-len(figure.charts) // columns)
    with matplotlib.rc_context(STYLE):
        width, height = PANEL_INCHES
        single = 1.35 if columns == 1 else 1.0
        image = Image((columns * width * single, rows * height + 0.5), layout="constrained")
        FigureCanvasAgg(image)
        panels = list(image.subplots(rows, columns, squeeze=False).flat)
        handles: dict[str, Any] = {}
        for axes, chart in zip(panels, figure.charts, strict=False):
            handles |= _draw_chart(axes, chart, colours)
        for axes in panels[len(figure.charts) :]:
            axes.set_axis_off()
        if figure.title:
            fit = textwrap.TextWrapper(
                int(HEADLINE_LETTERS * image.get_figwidth() / width), break_long_words=False
            )
            lines = map(fit.fill, plain(figure.title).split("\n"))
            image.suptitle("\n".join(lines), x=0.01, ha="left", fontweight="bold")
        if len(handles) > 1:
            _draw_legend(image, handles, columns)
    return image


def save(
    figure: Figure,
    folder: Path,
    formats: Sequence[str] = FIGURE_FORMATS,
    colours: Mapping[str, int] | None = None,
) -> list[Path]:
    """Write the figure as ``<name>.png`` and so on; return the paths."""
    import matplotlib

    image = draw(figure, colours)
    make_folder(folder)
    paths = [folder / f"{figure.name}.{kind}" for kind in formats]
    with matplotlib.rc_context(STYLE):
        for path, kind in zip(paths, formats, strict=True):
            content = image_bytes(image, format=kind, dpi=300, metadata=METADATA.get(kind))
            write_atomic(path, content)
    return paths


def image_bytes(image: "Image", **how: Any) -> bytes:
    """Return a file's content; a letter that the font lacks is a box, without a warning."""
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        image.savefig(content, **how)
    return content.getvalue()


def _draw_chart(axes: Any, chart: Chart, colours: Mapping[str, int]) -> dict[str, Any]:
    """Draw one pair of axes; return the legend's handles by label."""
    handles: dict[str, Any] = {}
    bars = [m for m in chart.marks if isinstance(m, Bars)]
    for mark in chart.marks:
        if isinstance(mark, Heat):
            _draw_heat(axes, mark)
            continue
        number = colours[mark.label]
        look = {"color": LIGHT[number % len(LIGHT)]}
        if isinstance(mark, Line):
            handle = _draw_line(axes, mark, number, look)
        elif isinstance(mark, Area):
            handle = axes.fill_between(mark.x, mark.low, mark.high, alpha=0.25, linewidth=0, **look)
        else:
            handle = _draw_bars(axes, mark, bars.index(mark), len(bars), look)
        handles[mark.label] = handle
    if chart.log_x:
        axes.set_xscale("log")
    if chart.log_y:
        axes.set_yscale("log")
    axes.set_title(textwrap.fill(plain(chart.title), TITLE_LETTERS), loc="left")
    axes.set(xlabel=plain(chart.x), ylabel=plain(chart.y))
    if not any(isinstance(m, Heat) for m in chart.marks):
        axes.grid(axis="y" if bars else "both")
    axes.margins(x=0.02)
    return handles


def _draw_line(axes: Any, line: Line, number: int, look: dict[str, Any]) -> Any:
    dash = DASHES[1] if line.dashed else DASHES[number // len(LIGHT) % len(DASHES)]
    if line.low is not None and line.high is not None:
        axes.fill_between(line.x, line.low, line.high, alpha=0.18, linewidth=0, **look)
    marker = {"marker": "o", "markersize": 3.5} if line.markers or len(line.x) == 1 else {}
    (handle,) = axes.plot(line.x, line.y, linewidth=1.3, linestyle=dash, **look, **marker)
    return handle


def _draw_bars(axes: Any, bars: Bars, place: int, count: int, look: dict[str, Any]) -> Any:
    """Draw one of ``count`` sets of bars, side by side at each place."""
    names = [plain(x) for x in bars.x if isinstance(x, str)]
    centres = [float(x) for x in (range(len(names)) if names else bars.x)]
    if names:
        axes.set_xticks(centres, names)
    gap = min((b - a for a, b in itertools.pairwise(sorted(set(centres)))), default=1.0)
    width = 0.85 * gap / count
    left = [c + width * (place - (count - 1) / 2) for c in centres]
    return axes.bar(left, bars.height, width, **look)


def _draw_heat(axes: Any, heat: Heat) -> None:
    if heat.texts is None:
        shades = axes.imshow(heat.shades, cmap="cividis", aspect="auto")
        axes.figure.colorbar(shades, ax=axes, label=plain(heat.label))
    else:
        _draw_written(axes, heat, heat.texts)
    axes.set_xticks(range(len(heat.columns)), [plain(c) for c in heat.columns])
    axes.set_yticks(range(len(heat.rows)), [plain(r) for r in heat.rows])


def _draw_written(axes: Any, heat: Heat, texts: Sequence[Sequence[str]]) -> None:
    """Draw cells with their texts: blue above 0, orange below, white at 0."""
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    shades = LinearSegmentedColormap.from_list("", [LIGHT[1], "#ffffff", LIGHT[0]])
    axes.imshow(heat.shades, cmap=shades, vmin=-1, vmax=1, aspect="auto")
    for row, values in enumerate(heat.shades):
        for column, value in enumerate(values):
            colour = "#ffffff" if abs(value) > 0.6 else "#222222"
            cell = plain(texts[row][column])
            axes.text(column, row, cell, ha="center", va="center", color=colour, fontsize=7)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for row, column in heat.framed:
        look: Any = {"fill": False, "edgecolor": "#000000", "linewidth": 2, "clip_on": False}
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **look))


def _draw_legend(image: Any, handles: Mapping[str, Any], columns: int) -> None:
    """One legend for all panels, below them: equal labels look alike in each."""
    longest = max(map(len, handles))
    fitting = max(1, int(columns * PANEL_INCHES[0] * 14 / (longest + 6)))
    lines = -(-len(handles) // fitting)
    # A legend of many lines would leave the panels no room.
    image.set_figheight(image.get_figheight() + LINE_INCHES * max(0, lines - LEGEND_LINES))
    image.legend(
        list(handles.values()),
        list(map(plain, handles)),
        loc="outside lower center",
        ncols=min(len(handles), fitting),
        frameon=False,
    )


def plain(text: str) -> str:
    """Return text that matplotlib draws literally: no formula, and no leading underscore."""
    shown = text.replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown
