"""The paper's claims against what was measured: each status follows from a rule on numbers."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedmom.report.charts import Grid
from fedmom.report.html import Status, Verdict
from fedmom.reproduction.directions import Directions
from fedmom.reproduction.findings import Contest, Findings, RunsByChoice
from fedmom.reproduction.measures import (
    Measures,
    Values,
    final_loss,
    higher,
    lower,
    measure,
    positive,
    values,
    windows,
)
from fedmom.reproduction.plan import NAMES, Task

Comparison = Callable[[Measures, Measures], Status]

MOST = 0.9  # the share of stretches of rounds that "most of the time" means
HALF = 0.5  # the same, towards a model that the run did not end at
LARGE = 2  # times as many rounds: what "a large margin" means
FACTORS = (1.25, 1.5, 2.0)  # of the lowest loss: what still counts as a good choice
NOISE = (
    "A difference is clear if it is larger than the larger of the two spreads over seeds (largest"
    " less smallest), and with one seed only if it is more than 5 % of the larger value."
    " Final values are means of the last five evaluations. Rounds are counted to 95 % of the"
    " best mean final test accuracy in the comparison, and are medians over seeds."
)


@dataclass(frozen=True)
class Claim:
    """What is claimed, and by which rule it is judged."""

    text: str
    rule: str


CLAIMS = {
    "direction": Claim(
        "FedAvg's biased gradient points to the target.",
        "holds: the mean of <g, w - w*> is positive in 90 % of the stretches of rounds for the"
        " paper's w*, the run's own last model, and in more than half of them for the last model"
        " of another run; in part: for the paper's w* only. (Towards its own last model, the sum"
        " over all rounds is positive for any method: Figure 3.)",
    ),
    "fedsgd": Claim(
        "FedAvg converges faster than FedSGD by a large margin.",
        "holds: final loss and final accuracy are clearly better, and FedSGD takes at least twice"
        " the rounds to the target, or never gets there; in part: only clearly better.",
    ),
    "faster": Claim(
        "FedMom converges faster than FedAvg at equal γ.",
        "holds: fewer rounds to the target, a clearly smaller area under the training loss, and a"
        " final loss that is not clearly worse; in part: fewer rounds or the smaller area.",
    ),
    "lr": Claim(
        "FedMom is more robust to the step size γ.",
        "Counted are the γ of the grid whose final training loss is within 1.25, 1.5 and 2 times"
        " the lowest of both methods. holds: FedMom has no fewer at each factor and more at one;"
        " in part: more at one factor and fewer at another.",
    ),
    "epochs": Claim(
        "FedMom is more robust to the local work H.",
        "The same count, over multiples of an epoch.",
    ),
    "wins": Claim(
        "FedMom also wins when each method has its own best γ (our question).",
        "holds: clearly higher final accuracy and a final loss that is not clearly worse; in"
        " part: no clear difference in accuracy, but fewer rounds and a clearly smaller area.",
    ),
}


@dataclass(frozen=True)
class Row:
    """One claim in one place."""

    claim: str  # a key of CLAIMS
    where: str
    status: Status
    numbers: str


def judge(findings: Findings) -> list[Row]:
    """Judge every claim everywhere it was measured."""
    scale, length = findings.scale, findings.scale.window
    contests = [*findings.equal.values(), *findings.own.values()]
    return [
        *(_direction(t, d, length) for t, d in findings.directions.items()),
        *(row for c in contests for row in _duel("fedsgd", c, "fedavg", "fedsgd", large_margin)),
        *(row for c in findings.equal.values() for row in _rivals("faster", c, faster)),
        *(row for t in scale.tasks for row in _at_same_lr(findings, t)),
        *(row for t in scale.tasks for row in _over_lr(findings, t)),
        *(
            row
            for which, curves in findings.over_epochs.items()
            for row in _robust("epochs", f"FEMNIST, over H, {which}", curves, len(scale.epochs))
        ),
        *(row for c in findings.own.values() for row in _rivals("wins", c, wins)),
    ]


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """Return one verdict for each claim: what holds in some places only holds in part."""
    judged = []
    for key, claim in CLAIMS.items():
        own = [row for row in rows if row.claim == key]
        numbers = " ".join(f"{row.where}: {row.status}; {row.numbers}." for row in own)
        judged.append(Verdict(claim.text, overall([row.status for row in own]), numbers or "–"))
    return judged


def table(rows: Sequence[Row]) -> Grid:
    """Return the verdicts, place by place, as a table."""
    return Grid(
        "verdicts",
        "The paper's claims, judged",
        ("claim", "where", "verdict", "measured"),
        [(CLAIMS[row.claim].text, row.where, str(row.status), row.numbers) for row in rows],
        NOISE,
    )


def overall(statuses: Sequence[Status]) -> Status:
    """Return the status of a claim from its places."""
    if not statuses:
        return Status.UNKNOWN
    return statuses[0] if len(set(statuses)) == 1 else Status.PART


def large_margin(ours: Measures, theirs: Measures) -> Status:
    """Whether FedAvg beats FedSGD by a large margin."""
    if lower(ours.loss, theirs.loss) < 1 or higher(ours.accuracy, theirs.accuracy) < 1:
        return Status.FAILS
    large = math.isfinite(ours.rounds) and theirs.rounds >= LARGE * ours.rounds
    return Status.HOLDS if large else Status.PART


def faster(ours: Measures, theirs: Measures) -> Status:
    """Whether FedMom converges faster."""
    rounds, area = ours.rounds < theirs.rounds, lower(ours.area, theirs.area) == 1
    if rounds and area and lower(ours.loss, theirs.loss) >= 0:
        return Status.HOLDS
    return Status.PART if rounds or area else Status.FAILS


def wins(ours: Measures, theirs: Measures) -> Status:
    """Whether FedMom ends ahead."""
    accuracy = higher(ours.accuracy, theirs.accuracy)
    if accuracy == 1 and lower(ours.loss, theirs.loss) >= 0:
        return Status.HOLDS
    quicker = ours.rounds < theirs.rounds and lower(ours.area, theirs.area) == 1
    return Status.PART if accuracy == 0 and quicker else Status.FAILS


def robust(ours: Mapping[float, Values], theirs: Mapping[float, Values]) -> Status:
    """Whether more choices are good ones for us, whatever "good" means."""
    pairs = counts(ours, theirs)
    if all(a <= b for a, b in pairs):
        return Status.FAILS
    return Status.HOLDS if all(a >= b for a, b in pairs) else Status.PART


def counts(ours: Mapping[float, Values], theirs: Mapping[float, Values]) -> list[tuple[int, int]]:
    """Return, for each factor, how many choices keep both methods' losses near the lowest one."""
    lowest = min(v.mean for v in (*ours.values(), *theirs.values()))
    return [
        (
            sum(v.mean <= factor * lowest for v in ours.values()),
            sum(v.mean <= factor * lowest for v in theirs.values()),
        )
        for factor in FACTORS
    ]


def pointing(directions: Directions, length: int) -> Status:
    """Whether FedAvg's steps point to the target most of the time."""
    own = positive(windows(directions.fedavg, length)[1])
    if own < MOST:
        return Status.FAILS
    if directions.elsewhere is None:
        return Status.PART
    aside = positive(windows(directions.elsewhere, length)[1])
    return Status.HOLDS if aside > HALF else Status.PART


def _direction(task: str, directions: Directions, length: int) -> Row:
    def shares(products: Sequence[float]) -> str:
        stretches = positive(windows(products, length)[1])
        return (
            f"{stretches:.0%} of stretches of {length} rounds, {positive(products):.0%} of rounds"
        )

    numbers = f"positive in {shares(directions.fedavg)}"
    if directions.elsewhere is not None:
        numbers += f"; to another run's model {shares(directions.elsewhere)}"
    return Row("direction", f"{task}, one run", pointing(directions, length), numbers)


def _rivals(claim: str, contest: Contest, rule: Comparison) -> Iterator[Row]:
    return _duel(claim, contest, "fedmom", "fedavg", rule)


def _duel(claim: str, contest: Contest, ours: str, theirs: str, rule: Comparison) -> Iterator[Row]:
    """Judge two methods of a contest, if both were measured."""
    if ours in contest.entries and theirs in contest.entries:
        sides = [contest.entries[m].measures for m in (ours, theirs)]
        length = min(side.length for side in sides)
        where = contest.where
        if any(side.length > length for side in sides):
            where += f", first {length} rounds"
        # With a target of their own: no third method sets it.
        runs = {
            m: [r.until(length) for r in contest.entries[m].measures.runs] for m in (ours, theirs)
        }
        a, b = measure(runs).values()
        numbers = ", ".join(
            (
                f"{NAMES[ours]} against {NAMES[theirs]}: accuracy {_pair(a.accuracy, b.accuracy)}",
                f"loss {_pair(a.loss, b.loss)}",
                f"area {_pair(a.area, b.area)}",
                f"rounds to {a.target:.3f} {a.rounds_text()} vs {b.rounds_text()}",
                _seeds(a, b),
            )
        )
        yield Row(claim, where, rule(a, b), numbers)


def _at_same_lr(findings: Findings, task: Task) -> Iterator[Row]:
    """Judge who is faster at every γ: the paper does not say which one it used."""
    measured = findings.at_same_lr(task)
    if len(measured) == len(task.lrs):
        statuses = {lr: faster(m["fedmom"], m["fedavg"]) for lr, m in measured.items()}
        parts = (
            f"{status} at γ {', '.join(f'{lr:g}' for lr in statuses if statuses[lr] == status)}"
            for status in Status
            if status in statuses.values()
        )
        seeds = min(measures.seeds for m in measured.values() for measures in m.values())
        numbers = f"{'; '.join(parts)}; seeds {seeds}"
        where = f"{task.name}, at every γ"
        yield Row("faster", where, overall(list(statuses.values())), numbers)


def _over_lr(findings: Findings, task: Task) -> Iterator[Row]:
    curves = findings.over_lr[task.name]
    return _robust("lr", f"{task.name}, over γ", curves, len(task.lrs))


def _robust(claim: str, where: str, methods: RunsByChoice, choices: int) -> Iterator[Row]:
    """Judge FedMom against FedAvg once both have been run with all choices."""
    ours, theirs = (
        {x: values(final_loss(run) for run in runs) for x, runs in methods.get(method, {}).items()}
        for method in ("fedmom", "fedavg")
    )
    if len(ours) == len(theirs) == choices:
        pairs = counts(ours, theirs)
        near = ", ".join(
            f"within {factor:g} times {a} vs {b}"
            for factor, (a, b) in zip(FACTORS, pairs, strict=True)
        )
        signs = [lower(ours[x], theirs[x]) for x in ours]
        numbers = (
            f"of {choices} choices, FedMom vs FedAvg {near}; at the same choice FedMom is"
            f" clearly lower at {signs.count(1)} and clearly higher at {signs.count(-1)};"
            f" seeds {min(len(v.of_seeds) for v in (*ours.values(), *theirs.values()))}"
        )
        yield Row(claim, where, robust(ours, theirs), numbers)


def _pair(ours: Values, theirs: Values) -> str:
    return f"{ours.text()} vs {theirs.text()}"


def _seeds(a: Measures, b: Measures) -> str:
    count = f"{a.seeds}" if a.seeds == b.seeds else f"{a.seeds} vs {b.seeds}"
    return f"seeds {count}"
