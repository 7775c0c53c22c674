"""Printed figures: colours, bands, legend, files."""

import itertools
import re

import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

from fedmom.reports import charts, drawing
from fedmom.reports.charts import Area, Bars, Chart, Figure, Heat, Line

X = [0, 10, 20]


def figure(*charts, **more):
    return Figure("test", "", charts, **more)


def chart(*marks, **more):
    return Chart("Title", "x", "y", marks, **more)


def line(label, **more):
    return Line(label, X, [1.0, 0.5, 0.2], **more)


def colours(axes):
    return [to_hex(drawn.get_color()).upper() for drawn in axes.lines]


def test_equal_labels_have_equal_colours_in_all_charts():
    first, second = drawing.draw(
        figure(chart(line("a"), line("b"), line("c")), chart(line("c"), line("a")))
    ).axes
    assert colours(first) == list(charts.LIGHT[:3])
    assert colours(second) == [charts.LIGHT[2], charts.LIGHT[0]]


def test_a_page_may_say_which_colours():
    (axes,) = drawing.draw(figure(chart(line("a"))), {"a": 3}).axes
    assert colours(axes) == [charts.LIGHT[3]]


def test_more_labels_than_colours_stay_apart(tmp_path):
    labels = [f"run {i}" for i in range(len(charts.LIGHT) * len(drawing.DASHES))]
    (path,) = drawing.save(figure(chart(*map(line, labels))), tmp_path, ["svg"])
    # Colour and dashes of every line, the only strokes of this width.
    looks = re.findall(r'style="(fill: none;[^"]*stroke-width: 1\.3[^"]*)"', path.read_text())
    assert len(set(looks)) == len(labels)


def test_the_legend_comes_once_and_only_if_there_is_a_choice():
    shared = drawing.draw(figure(chart(line("a"), line("b")), chart(line("a"))))
    (legend,) = shared.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]
    assert all(axes.get_legend() is None for axes in shared.axes)
    assert drawing.draw(figure(chart(line("a")))).legends == []


def test_a_band_covers_low_to_high():
    (axes,) = drawing.draw(figure(chart(line("a", low=[0.9, 0.4, 0.1], high=[2, 1.5, 1])))).axes
    (band,) = [c for c in axes.collections if isinstance(c, PolyCollection)]
    heights = band.get_paths()[0].vertices[:, 1]
    assert heights.min() == 0.1
    assert heights.max() == 2


def test_bars_of_several_labels_stand_side_by_side():
    both = [Bars("a", ["p", "q"], [1, 2]), Bars("b", ["p", "q"], [3, 4])]
    (axes,) = drawing.draw(figure(chart(*both))).axes
    edges = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["p", "q"]
    for (_, right), (left, _) in itertools.pairwise(edges):
        assert right <= left + 1e-9


def test_every_kind_of_mark_and_empty_places_can_be_drawn():
    image = drawing.draw(
        figure(
            chart(line("a", dashed=True, markers=True), log_x=True, log_y=True),
            chart(Area("gap", X, [0, 0, 0], [1, 2, 1])),
            chart(Bars("a", [1.0, 2.0], [3.0, 4.0])),
            chart(Heat("accuracy", ["r"], ["c", "d"], [[0.1, 0.2]])),
            chart(Line("empty", [], [])),
            columns=3,
        )
    )
    # Five charts, one empty place, one scale of shades.
    assert [axes.axison for axes in image.axes] == [True] * 5 + [False] + [True]


HARD = ["$x", "$\\frac{1$", "_hidden", "<b>", "ж \U0001f600", "a" * 200, "%s {0}"]


@pytest.mark.parametrize("text", HARD)
def test_any_text_is_shown_as_it_is(tmp_path, text):
    hard = Figure("hard", text, [Chart(text, text, text, [line(text), line("other")])])
    (path,) = drawing.save(hard, tmp_path, ["svg"])
    assert path.stat().st_size > 0
    (legend,) = drawing.draw(hard).legends
    shown = legend.get_texts()[0].get_text().strip().replace(r"\$", "$")
    assert shown == text


def test_files_are_what_their_names_say_and_the_same_again(tmp_path):
    paths = drawing.save(figure(chart(line("a"), line("b"))), tmp_path / "new")
    assert [p.name for p in paths] == ["test.png", "test.svg", "test.pdf"]
    contents = [p.read_bytes() for p in paths]
    assert contents[0].startswith(b"\x89PNG")
    assert b"<svg" in contents[1]
    assert contents[2].startswith(b"%PDF")
    again = drawing.save(figure(chart(line("a"), line("b"))), tmp_path / "again")
    assert [p.read_bytes() for p in again] == contents


@pytest.mark.parametrize("panels", [1, 2, 3])
def test_a_long_title_is_not_cut(panels):
    words = "lr 0.01 (fedavg), 0.001 (fedmom), " * 4
    drawn = drawing.draw(Figure("test", words, [chart(line("a"))] * panels, columns=panels))
    drawn.canvas.draw()
    box = drawn._suptitle.get_window_extent()
    assert box.x1 <= drawn.bbox.x1
    assert drawn._suptitle.get_text().split() == words.split()
