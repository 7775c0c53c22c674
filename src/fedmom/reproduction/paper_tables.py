"""The paper's tables, and those of what was measured here."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from fedmom.data.federated import FederatedData
from fedmom.data.summary import PAPER_TABLE_2, Statistics
from fedmom.data.summary import statistics as describe
from fedmom.experiments.seed_statistics import Finding
from fedmom.reports.charts import Grid
from fedmom.reproduction import plan, verdicts
from fedmom.reproduction.findings import Findings
from fedmom.reproduction.measures import Contest, Duel, Measures, duels
from fedmom.reproduction.plan import NAMES, RIVALS

MEASURES = (
    *("T", "seeds", "final training loss", "final test accuracy", "10th percentile of clients"),
    *("if clients were identical", "rounds to target", "area under loss / T"),
)
HOW = (
    "Means over seeds with their 95 % intervals; final: the last five evaluations. The target is"
    " 95 % of the best mean final accuracy in the same comparison; rounds to it are medians."
)


def settings() -> Grid:
    """Table 1, in our words."""
    return Grid(
        "table1",
        "Table 1. Distributed and federated optimization",
        ("", "distributed", "federated"),
        [
            ("data of two clients", "drawn alike (IID)", "each of its own kind (not IID)"),
            ("samples of a client", "the same for all (balanced)", "few or many (unbalanced)"),
            ("where clients are", "in one cluster", "everywhere, and very many"),
            ("their connection", "stable", "limited"),
        ],
    )


def data_statistics(tasks: Mapping[str, FederatedData]) -> Grid:
    """Table 2: the data used here, and the paper's."""
    rows = []
    for name, data in tasks.items():
        kind = data.features.kind
        rows.append((f"{name}, here: {data.name}", *_numbers(describe(data))))
        if kind in PAPER_TABLE_2:
            rows.append((PAPER_TABLE_2[kind].name, *_numbers(PAPER_TABLE_2[kind].statistics)))
    return Grid(
        "table2",
        "Table 2. Samples and clients",
        ("dataset", "samples", "clients", "mean per client", "standard deviation"),
        rows,
    )


def _numbers(row: Statistics) -> tuple[str, str, str, str]:
    return f"{row.samples:,}", f"{row.clients:,}", f"{row.mean:.2f}", f"{row.std:.2f}"


def results(contests: Sequence[Contest]) -> Grid:
    """What Figure 5 shows, in numbers."""
    rows = [row for contest in contests for row in _methods(contest, contest.where)]
    targets = "; ".join(f"{c.where} {c.target:.3f}" for c in contests)
    return Grid(
        "results",
        "The three methods in numbers",
        ("where", "method", "γ", *MEASURES),
        rows,
        f"{HOW} Targets: {targets}. * γ is the first or last that was tried: a better one may lie"
        " beyond.",
    )


def _methods(contest: Contest, where: str) -> Iterator[tuple[str, ...]]:
    """Yield a row for every method."""
    for m, measures in contest.measures.items():
        choice = contest.choices[m]
        rate = f"{choice.lr:g}{'*' if choice.at_edge else ''}"
        yield where, NAMES[m], rate, *_measured(measures)


def _measured(m: Measures) -> tuple[str, ...]:
    names = ("loss", "accuracy", "p10", "p10_identical", "rounds", "area")
    return f"{m.length:,}", m.seeds_text(), *map(m.text, names)


def same_lr(findings: Findings) -> Grid:
    """FedAvg and FedMom at every γ of their grids."""
    briefly = ("accuracy", "rounds", "area")
    rows = []
    for task in findings.scale.tasks:
        name = task.name
        for lr, duel in findings.at_same_lr(task).items():
            texts = [*map(duel.b.text, briefly), *map(duel.a.text, briefly)]
            rows.append((name, f"{lr:g}", *texts, str(verdicts.faster(duel))))
            name = ""  # once for each dataset
    columns = [f"{NAMES[m]}: {what}" for m in RIVALS for what in briefly]
    return Grid(
        "same_lr",
        "FedAvg and FedMom at the same γ",
        ("dataset", "γ", *columns, "FedMom is faster"),
        rows,
        "Final test accuracy, rounds to 95 % of the better one's, and area under the training loss"
        " over T: means over seeds with their 95 % intervals (medians, for rounds). Faster: fewer"
        " rounds, a smaller area, and a final loss that is not higher, after Holm's correction.",
    )


def beyond(findings: Findings) -> Grid:
    """FedAvg and FedMom in every variant, each at its own best γ."""
    rows = [
        (variant if first else "", *row, f"{wobble(measures):.3f}")
        for variant, contest in findings.beyond.items()
        for first, (_, *row), measures in zip(
            (True, False), _methods(contest, variant), contest.measures.values(), strict=False
        )
    ]
    targets = "; ".join(f"{v}: {c.target:.3f}" for v, c in findings.beyond.items())
    return Grid(
        "beyond",
        f"FedAvg and FedMom in other settings, {findings.scale.femnist.name}",
        ("setting", "method", "γ", *MEASURES, "wobble"),
        rows,
        f"{HOW} Targets: {targets}. {_tuned(findings.scale.femnist)}"
        " Wobble: the standard deviation of the test accuracy over the last quarter of a run."
        " With M=10 a run has a fifth of the rounds, and the same work of clients.",
    )


def _tuned(task: plan.PaperTask) -> str:
    """Say how γ was chosen."""
    first = "; ".join(
        f"{NAMES[m]} {', '.join(f'{lr:g}' for lr in lrs)}" for m, lrs in task.first_lrs.items()
    )
    return (
        f"γ has the lowest final training loss on {len(task.tuning)} tuning seeds, which are not"
        f" reported, of a search that begins with {first} and continues by factors of three while"
        " the best is the first or last."
    )


def differences(findings: Findings) -> Grid:
    """FedMom less FedAvg in every variant: one family of comparisons."""
    contests = _with_both(findings)
    family = duels([*contests.values()])
    rows = []
    for variant, duel in zip(contests, family, strict=True):
        apart = map(duel.difference, ("accuracy", "loss"))
        rows.append((variant, f"{duel.b.length:,}", str(duel.seeds), *apart, winner(duel)))
    return Grid(
        "differences",
        f"FedMom less FedAvg, each at its own best γ, {findings.scale.femnist.name}",
        ("setting", "T", "seeds", "final test accuracy", "final training loss", "who is ahead"),
        rows,
        "Differences within each seed: mean, 95 % interval, and p-value after Holm's correction"
        " over the settings. Equal: the interval lies within ±0.01.",
    )


def _with_both(findings: Findings) -> dict[str, Contest]:
    """Return the variants in which both methods have ended."""
    return {v: found for v, found in findings.beyond.items() if found.measures.keys() >= {*RIVALS}}


def winner(duel: Duel) -> str:
    """Return who ends with the higher accuracy."""
    finding = duel.found["accuracy"].finding
    names = {Finding.HIGHER: NAMES[duel.ours], Finding.LOWER: NAMES[duel.theirs]}
    return names.get(finding, str(finding))


def wobble(measures: Measures) -> float:
    """Return how much the test accuracy goes up and down late in a run, in the mean over seeds."""
    curves = ([a for _, a in run.curve("test", "accuracy")] for run in measures.runs)
    late = (accuracies[-max(2, math.ceil(len(accuracies) / 4)) :] for accuracies in curves)
    return statistics.fmean(map(statistics.pstdev, late))


def author(findings: Findings) -> Grid:
    """The deviations of the first author's code."""
    return Grid(
        "author",
        f"The paper's FedMom and its first author's code, {findings.scale.femnist.name}",
        ("variant", *MEASURES),
        [(label, *_measured(m)) for label, m in findings.author.items()],
        HOW,
    )


def advice(findings: Findings) -> Iterator[str]:
    """Yield what a user may take from the variants, each with its numbers."""
    contests = _with_both(findings)
    if contests:
        ratios = ", ".join(
            f"{c.choices['fedmom'].lr / c.choices['fedavg'].lr:.2g} ({variant})"
            for variant, c in contests.items()
        )
        yield (
            "Which γ for FedMom: momentum multiplies the effective step by 1/(1-β), 10 for β=0.9,"
            f" so begin with (1-β) = 0.1 times FedAvg's. Found here, best γ of FedMom over best γ"
            f" of FedAvg: {ratios}."
        )
    base = contests.get(plan.PAPER.name)
    for changed, contest in contests.items():
        if base and changed != plan.PAPER.name:
            yield f"With {changed}, {_change(base, contest)}."
    wins: dict[str, list[str]] = defaultdict(list)
    for variant, duel in zip(contests, duels([*contests.values()]), strict=True):
        wins[winner(duel)].append(variant)
    for who, variants in wins.items():
        said = f"{who} ends ahead" if who in NAMES.values() else f"accuracies are {who}"
        said = said.removeprefix("accuracies are ") if who.startswith("not") else said
        yield f"At each method's own best γ, {said}: {'; '.join(variants)}."


def _change(before: Contest, after: Contest) -> str:
    sides = [(NAMES[m], before.measures[m], after.measures[m]) for m in RIVALS]
    return "; ".join(
        f"{name} goes from accuracy {a.mean('accuracy'):.3f} to {b.mean('accuracy'):.3f}"
        f" and from wobble {wobble(a):.3f} to {wobble(b):.3f}"
        for name, a, b in sides
    )


def markdown(grid: Grid) -> str:
    """Return a table as Markdown."""
    lines = [f"**{grid.title}**", "", _line(grid.columns), _line(["---"] * len(grid.columns))]
    lines += [_line(row) for row in grid.rows]
    return "\n".join([*lines, *(["", grid.note] if grid.note else []), ""])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"
