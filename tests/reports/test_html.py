"""The page: what is in its file, and what a real browser makes of it."""

import http.client
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import sync_playwright

from fedmom.core.errors import FedMomError
from fedmom.experiments import results
from fedmom.experiments.folder import RunFolder
from fedmom.reports import live, run_page
from fedmom.reports.charts import Area, Bars, Chart, Figure, Grid, Heat, Line
from fedmom.reports.html import (
    Section,
    Settings,
    Status,
    Verdict,
    Words,
    content,
    for_script,
    render,
    write_page,
)
from tests.reports.runs import accuracy, eval_rows, make_run, round_row

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
EVIL = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>&amp;$title %{y} <b>"
    " {{ 7 * 7 }} {% raise %} \"quoted' "
)


def every_part(label="FedMom"):
    """A page with every kind of part, every text of which is ``label``."""
    x = [1, 2, 3]
    charts = [
        Chart(
            label, label, label, [Line(label, x, [1, math.nan, 3]), Line("b", x, [2, 2, math.inf])]
        ),
        Chart(label, label, label, [Line(label, x, [1, 2, 3], [0, 1, 2], [2, 3, 4])], log_y=True),
        Chart(label, label, label, [Area(label, x, [0, 0, 0], [1, 2, 1])]),
        Chart(label, label, label, [Bars(label, [label, "q"], [1, 2]), Bars("b", ["q"], [3])]),
        Chart(label, label, label, [Heat(label, [label], ["c", label + "2"], [[1, -math.inf]])]),
    ]
    return [
        Section(label, [Words(f"{label}\n\nSecond paragraph."), Figure("f", label, charts)]),
        Section("Tables", [Grid("g", label, ["run", "x"], [[label, "1.5"], ["b", "–"]], label)]),
        Section("Claims", [Verdict(label, status, label) for status in Status]),
        Section("Settings", [Settings(label, {label: label})]),
    ]  # fmt: skip


# ---- the file


@given(st.text(max_size=40))
def test_any_label_arrives_whole_and_ends_no_script(label):
    text = for_script(content(every_part(label)))
    assert "<" not in text
    legend = json.loads(text)["figures"]["part-0-1"]["legend"]
    assert [name for name, _ in legend] == list(dict.fromkeys([label, "b"]))


def test_markup_in_any_text_does_no_harm():
    page = render(EVIL, every_part(EVIL), EVIL).decode()
    plain = render("t", every_part("x"), "about").decode()
    for tag in ("<script", "</script", "<img", "<b>"):
        assert page.count(tag) == plain.count(tag)
    assert "alert(1)" in page
    assert "{{ 7 * 7 }}" in page  # no text is a template


def test_numbers_that_are_not_finite_are_gaps():
    charts = content(every_part())["figures"]["part-0-1"]["charts"]
    assert charts[0]["marks"][0]["y"] == [1, None, 3]
    assert charts[0]["marks"][1]["y"] == [2, 2, None]
    assert charts[4]["marks"][0]["shades"] == [[1, None]]


def test_one_label_has_one_colour_on_the_whole_page():
    x = [1, 2]
    figures = [
        Figure("one", "", [Chart("", "", "", [Line("a", x, x), Line("b", x, x)])]),
        Figure("two", "", [Chart("", "", "", [Line("c", x, x), Line("b", x, x)])]),
    ]
    data = content([Section("s", figures)])["figures"]
    assert data["part-0-0"]["legend"] == [["a", 0], ["b", 1]]
    assert data["part-0-1"]["legend"] == [["c", 2], ["b", 1]]


def test_contents_come_with_many_sections():
    assert content(every_part())["body"].count('href="#section-') == 4
    assert "href" not in content(every_part()[:2])["body"]


def test_tables_set_numbers_right():
    body = content(every_part())["body"]
    assert '<td>FedMom</td><td class="number">1.5</td>' in body
    assert '<td class="number">–</td>' in body


def test_the_file_is_written_whole(tmp_path):
    path = write_page(tmp_path / "new" / "p.html", "T", every_part())
    assert path.read_text().rstrip().endswith("</html>")
    assert [p.name for p in path.parent.iterdir()] == ["p.html"]


# ---- in a browser


@pytest.fixture(scope="module")
def browser():
    """One browser for all tests here; closed with them, since it brings an event loop."""
    path = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no browser on this machine: none of {', '.join(BROWSERS)}")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def visit(browser):
    """Opens a page, and fails the test if it complains or asks for anything but itself."""
    contexts, complaints = [], []

    def opened(address, **options):
        context = browser.new_context(**{"color_scheme": "light", **options})
        contexts.append(context)
        context.set_default_timeout(120_000)  # a machine with much else to do
        page = context.new_page()
        page.on("console", lambda m: complaints.append(m.text))
        page.on("pageerror", lambda e: complaints.append(str(e)))
        page.on("dialog", lambda d: complaints.append(d.message))
        allowed = (address, "data:", "blob:")
        page.on(
            "request", lambda r: None if r.url.startswith(allowed) else complaints.append(r.url)
        )
        page.goto(address)
        page.wait_for_selector("html[data-drawn=yes]")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A report of two algorithms with three seeds each."""
    folder = tmp_path_factory.mktemp("runs")
    for algorithm in ("fedavg", "fedmom"):
        for seed in (0, 1, 2):
            make_run(folder / f"{algorithm}-{seed}", algorithm=algorithm, seed=seed)
    return run_page.write(
        run_page.overview(results.find([folder])), folder / "report.html"
    ).as_uri()


def traces(page, place=0):
    """What a chart shows: (label, number of points) of its lines, and which are visible."""
    return page.evaluate(
        """place => document.querySelectorAll(".plot")[place].data
             .map(t => [t.legendgroup, t.name || "", t.x.length, t.visible])""",
        place,
    )


def shown(page, place=0):
    return {group for group, _, _, visible in traces(page, place) if visible}


def test_curves_are_drawn_and_can_be_toggled_and_zoomed(visit, written):
    page = visit(written)
    assert [(name, points) for _, name, points, _ in traces(page) if name] == [
        ("fedavg", 5),
        ("fedmom", 5),
    ]
    # A line and the two edges of its band each, as paths on the screen.
    assert page.locator(".plot").first.locator(".scatterlayer path.js-line").count() == 6

    page.locator(".plot .nsewdrag").first.hover()
    box = page.locator(".hoverlayer").first
    box.get_by_text("fedmom").wait_for()
    assert " to " in box.text_content()  # the band's ends

    button = page.locator(".legend").first.get_by_role("button", name="fedavg")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    for place in range(3):  # all charts of the figure, with the bands
        assert shown(page, place) == {"fedmom"}
    assert shown(page, 3) == {"fedavg", "fedmom"}  # the next figure has a legend of its own
    button.click()
    assert shown(page) == {"fedavg", "fedmom"}
    button.dblclick()
    assert shown(page) == {"fedavg"}

    axis = "document.querySelector('.plot').layout.xaxis.range"
    low, high = page.evaluate(axis)
    area = page.locator(".plot .nsewdrag").first.bounding_box()
    middle = area["y"] + area["height"] / 2
    page.mouse.move(area["x"] + area["width"] * 0.3, middle)
    page.mouse.down()
    page.mouse.move(area["x"] + area["width"] * 0.7, middle, steps=4)
    page.mouse.up()
    page.wait_for_function(f"() => {axis}[0] > {low} && {axis}[1] < {high}")


def test_light_dark_and_paper(visit, written):
    page = visit(written)
    ground = "getComputedStyle(document.body).backgroundColor"
    theme = "document.documentElement.dataset.theme"
    last = "[...document.querySelectorAll('.plot')].at(-1).data.at(-1).line.color"

    def brightness():
        return sum(map(int, re.findall(r"\d+", page.evaluate(ground))[:3])) / 3

    light = page.evaluate(last)
    assert brightness() > 128
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"() => {last} !== {light!r}")  # curves change with the ground
    assert brightness() < 128

    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(theme) == "light"
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(theme) == "dark"
    assert page.locator("details[open]").count() == 0

    page.locator("#theme").click()
    page.wait_for_function(f"() => {last} === {light!r}")
    assert brightness() > 128


def test_evil_and_endless_texts_stay_text_on_a_phone(visit, tmp_path):
    text = EVIL + "a-name-without-any-place-to-break" * 5
    address = write_page(tmp_path / "p.html", text, every_part(text), text).as_uri()
    page = visit(address, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    assert page.locator("h1").text_content() == text
    assert page.locator(".legend button").first.text_content() == text
    assert text in page.locator(".plot .xtitle").first.text_content().replace("\xa0", " ")
    assert page.locator("main img, main b, main script").count() == 0
    for part in page.locator("details").all():
        part.evaluate("e => { e.open = true; }")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    sides = """[...document.querySelectorAll("main section > *")]
        .map(e => e.getBoundingClientRect().right)"""
    assert max(page.evaluate(sides)) <= 390


def test_fifty_curves_are_told_apart(visit, tmp_path):
    x = list(range(200))
    lines = [Line(f"run {i}", x, [math.sin(i + t / 20) for t in x]) for i in range(50)]
    sections = [Section("s", [Figure("f", "", [Chart("c", "x", "y", lines)])])]
    page = visit(write_page(tmp_path / "p.html", "t", sections).as_uri())
    assert page.locator(".legend button").count() == 50
    assert page.locator(".scatterlayer path.js-line").count() == 50


# ---- live


@pytest.fixture
def begun(tmp_path):
    """A run before its first round and evaluation."""
    run = make_run(tmp_path / "live", done=0, rounds=10)
    (run.path / "evals.jsonl").unlink()
    return RunFolder(run.path)  # one that knows of no lines, as in another process


def test_new_points_appear_without_a_reload_until_ctrl_c(visit, begun):
    with subprocess.Popen(
        [sys.executable, "-m", "fedmom", "watch", str(begun.path), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        try:
            address = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())[0]
            page = visit(address)
            follow_a_run(page, begun)
            page.close()
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0
    assert errors == ""


def follow_a_run(page, run):
    page.evaluate("window.sameDocument = true")
    page.locator("#news").wait_for()
    assert [t[2] for t in traces(page)] == [0]

    run.append("rounds.jsonl", [round_row(r) for r in range(1, 6)])
    run.append("evals.jsonl", [*eval_rows(0), *eval_rows(5)])
    page.locator("#news", has_text="5 of 10 rounds").wait_for()
    points = "() => document.querySelector('.plot').data[0].x.length === {}"
    page.wait_for_function(points.format(2))
    page.locator(".settings summary").first.click()
    page.evaluate("Plotly.relayout(document.querySelector('.plot'), {'xaxis.range': [1, 3]})")

    run.append("rounds.jsonl", [round_row(r) for r in range(6, 11)])
    run.append("evals.jsonl", eval_rows(10))
    page.get_by_text("Finished: 1 run, 10 rounds.").wait_for()
    page.wait_for_function(points.format(3))
    assert page.evaluate("window.sameDocument")
    assert page.locator("td", has_text=f"{accuracy(10):.3f}").first.is_visible()
    # What the reader has opened and zoomed stays so.
    assert page.locator(".settings[open]").count() == 1
    assert page.evaluate("document.querySelector('.plot').layout.xaxis.range") == [1, 3]


@pytest.fixture
def served(begun):
    """The server of ``begun``, in a thread of this process."""
    with live.open_server(partial(run_page.live_view, begun.path), 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server, path="/", host="127.0.0.1"):
    """Return the status and body that a request gets."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    try:
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_only_this_machine_and_only_two_paths(served):
    assert served.server_address[0] == "127.0.0.1"
    status, body = ask(served)
    assert status == 200
    assert b'class="live"' in body
    status, body = ask(served, "/data.json?x")
    assert status == 200
    assert {"state", "text", "body", "figures"} == json.loads(body).keys()
    assert ask(served, host="localhost:9999")[0] == 200  # through a tunnel
    for path in ("/config.toml", "/../live/config.toml", "/[", "/data.json/"):
        assert ask(served, path)[0] == 404
    for host in ("evil.example", "127.0.0.1.evil.example:80", "", "[", "localhost.evil.example"):
        assert ask(served, "/data.json", host=host)[0] == 403


def test_a_folder_that_goes_away_is_told(served, begun, monkeypatch):
    monkeypatch.setattr(live, "SECONDS_KEPT", 0.0)
    monkeypatch.setattr(live, "SHARE_OF_TIME", math.inf)
    shutil.rmtree(begun.path)
    news = json.loads(ask(served, "/data.json")[1])
    assert news["state"] == "lost"
    assert str(begun.path) in news["text"]


def test_a_port_that_is_taken_is_told_and_the_usual_one_has_a_fallback(served, monkeypatch):
    port = served.server_port
    with pytest.raises(FedMomError, match=f"--port {port} cannot be used"):
        live.open_server(served.view, port)
    with pytest.raises(FedMomError, match="--port 99999999 cannot be used"):
        live.open_server(served.view, 99999999)
    monkeypatch.setattr(live, "USUAL_PORT", port)
    with live.open_server(served.view, None) as other:
        assert other.server_port not in (0, port)
