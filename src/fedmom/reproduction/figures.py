"""The paper's figures, as charts."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedmom.data.federated import FederatedData
from fedmom.data.sources.glyphs import CHARACTERS
from fedmom.data.sources.shakespeare import SYMBOLS
from fedmom.data.summary import counts, label_mix
from fedmom.experiments.results import Result
from fedmom.experiments.seed_statistics import FEWEST, interval
from fedmom.reports.charts import Area, Bars, Chart, Figure, Heat, Line, Mark
from fedmom.reproduction.findings import Findings, RunsByChoice
from fedmom.reproduction.measures import Contest, Measures, final_loss, positive, windows
from fedmom.reproduction.plan import NAMES, RIVALS

PANELS = (
    ("train", "loss", "training loss"),
    ("test", "accuracy", "test accuracy"),
    ("test", "accuracy_p10", "10th percentile"),
)
ENOUGH = 20  # samples: the labels of a client with fewer are chance, and would set the scale
WIDE = 8  # times the smallest value: too far apart for a plain scale
CLIENTS, LABELS, BINS = 12, 16, 24  # what is shown of a dataset
BAND = "Lines are means over seeds, bands their 95 % intervals."


def heterogeneity(tasks: Mapping[str, FederatedData]) -> Figure:
    """Figure 2: which labels clients have, and how many samples."""
    charts = [draw(name, data) for name, data in tasks.items() for draw in (_label_shares, _sizes)]
    return Figure(
        "fig2",
        "Figure 2. Clients differ in labels and in size",
        charts,
        columns=2,
        note=f"Left: what share of a client's samples has which label, for {CLIENTS} clients from"
        f" small ones (of {ENOUGH} samples or more) to the largest, and the {LABELS} labels that"
        " are commonest in the data.",
    )


def _label_shares(name: str, data: FederatedData) -> Chart:
    by_size = np.argsort(data.train.size, kind="stable")
    by_size = by_size[data.train.size[by_size] >= min(ENOUGH, data.train.size.max())]
    shown = by_size[np.linspace(0, len(by_size) - 1, min(CLIENTS, len(by_size))).astype(int)]
    some = range(0, data.clients, max(1, data.clients // 200))
    total = np.sum([label_mix(data, k) for k in some], axis=0)
    labels = np.argsort(-total, kind="stable")[:LABELS]
    mixes = [label_mix(data, int(k)) for k in shown]
    heat = Heat(
        "share",
        [f"{k} ({data.train.size[k]})" for k in shown],
        [_label(data, int(label)) for label in labels],
        [(mix[labels] / mix.sum()).tolist() for mix in mixes],
    )
    return Chart(f"{name}: labels", "label", "client (samples)", [heat])


def _label(data: FederatedData, label: int) -> str:
    symbols = SYMBOLS if data.features.kind == "text" else CHARACTERS
    if data.features.classes != len(symbols):
        return str(label)
    return {" ": "␣", "\n": "↵"}.get(symbols[label], symbols[label])


def _sizes(name: str, data: FederatedData) -> Chart:
    clients, edges = np.histogram(counts(data), BINS)
    centres = ((edges[:-1] + edges[1:]) / 2).tolist()
    bars = Bars("clients", centres, clients.tolist())
    return Chart(f"{name}: sizes", "samples of a client", "clients", [bars])


def direction(findings: Findings) -> Figure:
    """Figure 3: <g, w - w*> of FedAvg."""
    length = findings.scale.window
    charts = []
    for name, products in findings.directions.items():
        marks = [Line(NAMES["fedavg"], *windows(products.fedavg, length), markers=True)]
        if products.elsewhere is not None:
            label = "FedAvg, w* of another run"
            marks.append(Line(label, *windows(products.elsewhere, length), markers=True))
        share = f"{positive(products.fedavg):.0%} positive"
        charts.append(Chart(f"{name}: {share}", "round", "<g, w - w*>", marks))
    return Figure(
        "fig3",
        "Figure 3. FedAvg's step seen from the target",
        charts,
        columns=2,
        note=f"Means over every {length} rounds of one run at the equal γ, w* its last model; above"
        " the share of rounds in which it is positive. Towards the run's own"
        " last model, FedAvg's sum over all rounds is (|w₀ - w*|² + Σ|w' - w|²) / 2η, since its"
        " step is -ηg: positive whatever the path. (With momentum the step is another than -ηg, and"
        " the sum may be negative.) The other line aims at a model off the path: the last one of"
        " FedAvg with the next best γ, from the same start.",
    )


def against_fedsgd(findings: Findings) -> Figure:
    """Figure 4: FedAvg and FedSGD on FEMNIST."""
    name, length = findings.scale.femnist.name, findings.scale.window
    charts = []
    products = findings.directions.get(name)
    if products is not None and products.fedsgd is not None:
        both = {"fedavg": products.fedavg, "fedsgd": products.fedsgd}
        lines = [Line(NAMES[m], *windows(each, length)) for m, each in both.items()]
        charts.append(_with_gap("inner product", "<g, w - w*>", lines))
    if name in findings.equal:
        shown = _by_name(findings.equal[name], ("fedavg", "fedsgd"))
        for split, key, title in PANELS[:2]:
            lines = [curve(label, m.runs, split, key) for label, m in shown.items()]
            charts.append(_with_gap(title, title, lines))
    return Figure(
        "fig4",
        f"Figure 4. FedAvg and FedSGD on {name}",
        charts,
        note=f"Both inner products at the models of FedAvg's run, means over every {length} rounds."
        f" The shaded region is the gap. {BAND}",
    )


def _with_gap(title: str, y: str, lines: Sequence[Line]) -> Chart:
    """Return a chart of lines; the gap between two is shaded as far as both go."""
    marks: list[Mark] = [*lines]
    if len(lines) == 2:
        pairs = list(zip(lines[0].y, lines[1].y, strict=False))
        x, low, high = lines[0].x[: len(pairs)], [*map(min, pairs)], [*map(max, pairs)]
        marks.append(Area("gap", x, low, high))
    return Chart(title, "round", y, marks)


def _by_name(contest: Contest, methods: Iterable[str] | None = None) -> dict[str, Measures]:
    """Return the measures of a contest's methods, by the names that they are shown by."""
    found = contest.measures
    return {NAMES[m]: found[m] for m in methods or found if m in found}


def _panels(task: str, shown: Mapping[str, Measures]) -> list[Chart]:
    """Return loss, accuracy and its 10th percentile over rounds."""
    return [
        _chart(f"{task}{y}", y, [curve(label, m.runs, split, key) for label, m in shown.items()])
        for split, key, y in PANELS
    ]


def comparison(contests: Mapping[str, Contest], name: str, title: str) -> Figure:
    """Figure 5: loss, accuracy and its 10th percentile, for all methods and both datasets."""
    charts = [c for task, each in contests.items() for c in _panels(f"{task}: ", _by_name(each))]
    rates = [
        f"γ on {contest.where}: "
        + ", ".join(
            f"{NAMES[m]} {contest.choices[m].lr:g} ({each.seeds_text()}"
            f"{', edge of its grid' if contest.choices[m].at_edge else ''})"
            for m, each in contest.measures.items()
        )
        for contest in contests.values()
    ]
    note = f"{' '.join(f'{text}.' for text in rates)} {BAND}"
    return Figure(name, title, charts, note=note)


def _chart(title: str, y: str, lines: Sequence[Line]) -> Chart:
    """Return curves over rounds; losses on a log scale where one dwarfs the others."""
    ends = [v for line in lines for v in line.y]
    wide = "loss" in y and bool(ends) and max(ends) > WIDE * min(ends) > 0
    return Chart(title, "round", y, lines, log_y=wide)


def sensitivity(findings: Findings) -> Figure:
    """Figure 6: final training loss over step sizes and over local work."""
    name = findings.scale.femnist.name
    charts = [_final_losses("over step sizes", "γ", findings.over_lr[name], log_x=True)]
    for which, curves in findings.over_epochs.items():
        title = f"over local work, {which}"
        charts.append(_final_losses(title, "H, in epochs", curves, log_x=False))
    note = f"{BAND} A choice at which a seed diverged has no point."
    return Figure("fig6", f"Figure 6. Final training loss, {name}", charts, note=note)


def _final_losses(title: str, x: str, methods: RunsByChoice, *, log_x: bool) -> Chart:
    lines = []
    for method in RIVALS:
        losses = {
            place: [final_loss(run) for run in runs]
            for place, runs in methods.get(method, {}).items()
            if not any(run.diverged for run in runs)
        }
        if losses:
            lines.append(_banded(NAMES[method], list(losses), list(losses.values()), markers=True))
    chart = _chart(title, "final training loss", lines)
    return replace(chart, x=x, log_x=log_x and bool(lines))


def beyond(findings: Findings) -> Figure:
    """Test accuracy in every variant, each method at its own best γ."""
    split, key, y = PANELS[1]
    charts = []
    for variant, contest in findings.beyond.items():
        lines = [curve(label, m.runs, split, key) for label, m in _by_name(contest).items()]
        charts.append(Chart(variant, "round", y, lines))
    title = f"Beyond the paper: {findings.scale.femnist.name}"
    return Figure("beyond", title, charts, note=f"Each method at its own best γ. {BAND}")


def author(findings: Findings) -> Figure:
    """FedMom of the paper and of its first author's code."""
    title = f"The first author's code: {findings.scale.femnist.name}"
    note = f"At FedMom's own best γ. {BAND}"
    return Figure("author", title, _panels("", findings.author), note=note)


def curve(label: str, runs: Sequence[Result], split: str, key: str) -> Line:
    """Return the mean over seeds with its band, as far as all seeds go."""
    curves = [dict(run.curve(split, key)) for run in runs]
    rounds = sorted(set.intersection(*(set(c) for c in curves)))
    most = 1.0 if key.startswith("accuracy") else math.inf
    return _banded(label, rounds, [[c[r] for c in curves] for r in rounds], most=most)


def _banded(
    label: str,
    x: Sequence[float],
    columns: Sequence[Sequence[float]],
    *,
    markers: bool = False,
    most: float = math.inf,
) -> Line:
    """Return a line of means over seeds; with enough seeds, between the ends of their intervals.

    The band is cut where no loss or accuracy can be, below 0 and above ``most``: an interval of
    Student's t knows of no bounds.
    """
    found = [interval(column) for column in columns]
    means = [each.mean for each in found]
    ends = [(f.low, f.high) for f in found if f.low is not None and f.high is not None]
    if len(ends) < len(found) or min(map(len, columns), default=0) < FEWEST:
        return Line(label, x, means, markers=markers)
    low, high = ([max(0.0, low) for low, _ in ends], [min(most, high) for _, high in ends])
    return Line(label, x, means, low, high, markers)
