"""The paper's claims against what was measured: each status follows from a rule on numbers."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from fedmom.experiments.seed_statistics import Finding
from fedmom.reports.charts import Grid
from fedmom.reports.html import Status, Verdict
from fedmom.reproduction.directions import Directions
from fedmom.reproduction.findings import Findings, RunsByChoice
from fedmom.reproduction.measures import Contest, Duel, duels, final_loss, positive, windows
from fedmom.reproduction.plan import PaperTask

MOST = 0.9  # the share of stretches of rounds that "most of the time" means
HALF = 0.5  # the same, towards a model that the run did not end at
LARGE = 2  # times as many rounds: what "a large margin" means
FACTORS = (1.25, 1.5, 2.0)  # of the lowest loss: what still counts as a good choice
NOISE = (
    "Methods are compared by their differences within each seed (same cohorts, same first model)."
    " Intervals are of 95 %, of Student's t. A value is higher or lower if its p-value is below"
    " 0.05 after Holm's correction over the settings in which the claim is judged; two accuracies"
    " are equal if the interval of their difference lies within ±0.01; else it is not settled. With"
    " fewer than three seeds there is no verdict. γ was chosen on other seeds than those reported."
    " Final values are means of the last five evaluations. Rounds are counted to 95 % of the better"
    " mean final test accuracy of the two."
)


class Claim(NamedTuple):
    """What is claimed, and by which rule it is judged."""

    text: str
    rule: str


CLAIMS = {
    "direction": Claim(
        "FedAvg's biased gradient points to the target.",
        "holds: the mean of <g, w - w*> is positive in 90 % of the stretches of rounds for the"
        " paper's w*, the run's own last model, and in more than half of them for the last model"
        " of another run; in part: for the paper's w* only. (Towards its own last model, the sum"
        " over all rounds is positive whatever FedAvg does: Figure 3.)",
    ),
    "closer": Claim(
        "FedAvg moves in a better direction to the target than FedSGD.",
        "At the models of FedAvg's run. holds: both <g, w - w*> and its cosine are larger for"
        " FedAvg in 90 % of the stretches of rounds; in part: the inner product only, which also"
        " grows with the length of g.",
    ),
    "fedsgd": Claim(
        "FedAvg converges faster than FedSGD by a large margin.",
        "holds: lower final loss and higher final accuracy, and FedSGD takes at least twice the"
        " rounds to the target, or never gets there; in part: only better.",
    ),
    "faster": Claim(
        "FedMom converges faster than FedAvg at equal γ.",
        "holds: fewer rounds to the target, a smaller area under the training loss, and a final"
        " loss that is not higher; in part: fewer rounds or the smaller area.",
    ),
    "lr": Claim(
        "FedMom is more robust to the step size γ.",
        "Counted are the γ of the grid whose mean final training loss is within 1.25, 1.5 and 2"
        " times the lowest of both methods; there is no test of significance. holds: FedMom has no"
        " fewer at each factor and more at one; in part: more at one factor and fewer at another.",
    ),
    "epochs": Claim(
        "FedMom is more robust to the local work H.",
        "The same count, over multiples of an epoch.",
    ),
    "wins": Claim(
        "FedMom also wins when each method has its own best γ (our question).",
        "holds: higher final accuracy and a final loss that is not higher; in part: higher"
        " accuracy and higher loss; does not hold: equal or lower accuracy.",
    ),
}


class Row(NamedTuple):
    """One claim in one place."""

    claim: str  # a key of CLAIMS
    where: str
    status: Status
    numbers: str


def judge(findings: Findings) -> list[Row]:
    """Judge every claim everywhere it was measured."""
    scale, length = findings.scale, findings.scale.window
    equal, own = list(findings.equal.values()), list(findings.own.values())
    rows = [_direction(t, d, length) for t, d in findings.directions.items()]
    for task, found in findings.directions.items():
        rows += _closer(task, found, length)
    rows += _judged("fedsgd", [*equal, *own], "fedavg", "fedsgd", large_margin)
    rows += _judged("faster", equal, "fedmom", "fedavg", faster)
    for t in scale.tasks:
        rows += _at_same_lr(findings, t)
    for t in scale.tasks:
        rows += _robust("lr", f"{t.name}, over γ", findings.over_lr[t.name], len(t.lrs))
    for which, curves in findings.over_epochs.items():
        rows += _robust("epochs", f"FEMNIST, over H, {which}", curves, len(scale.epochs))
    return [*rows, *_judged("wins", own, "fedmom", "fedavg", wins)]


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
    """Return the status of a claim from its places; those with too few seeds do not count."""
    counted = set(statuses) - {Status.FEW} or set(statuses)
    if len(counted) < 2:
        return next(iter(counted), Status.UNKNOWN)
    return Status.PART if {Status.HOLDS, Status.PART} & counted else Status.OPEN


def large_margin(duel: Duel) -> Status:
    """Whether the first method beats the second by a large margin."""
    if duel.is_("accuracy", Finding.TOO_FEW):
        return Status.FEW
    if duel.is_("loss", Finding.LOWER) and duel.is_("accuracy", Finding.HIGHER):
        ours, theirs = duel.a.median_rounds, duel.b.median_rounds
        large = math.isfinite(ours) and theirs >= LARGE * ours
        return Status.HOLDS if large else Status.PART
    if duel.is_("loss", Finding.HIGHER) or not _better_or_open(duel):
        return Status.FAILS
    return Status.OPEN


def faster(duel: Duel) -> Status:
    """Whether the first method converges faster."""
    if duel.is_("area", Finding.TOO_FEW):
        return Status.FEW
    quick = [duel.is_(name, Finding.LOWER) for name in ("rounds", "area")]
    if all(quick) and not duel.is_("loss", Finding.HIGHER):
        return Status.HOLDS
    if any(quick):
        return Status.PART
    slow = [duel.is_(name, Finding.HIGHER) for name in ("rounds", "area")]
    return Status.FAILS if any(slow) else Status.OPEN


def wins(duel: Duel) -> Status:
    """Whether the first method ends ahead."""
    if duel.is_("accuracy", Finding.TOO_FEW):
        return Status.FEW
    if duel.is_("accuracy", Finding.HIGHER):
        return Status.PART if duel.is_("loss", Finding.HIGHER) else Status.HOLDS
    return Status.OPEN if _better_or_open(duel) else Status.FAILS


def _better_or_open(duel: Duel) -> bool:
    return duel.found["accuracy"].finding in (Finding.HIGHER, Finding.OPEN)


def robust(ours: Mapping[float, float], theirs: Mapping[float, float]) -> Status:
    """Whether more choices are good ones for us, whatever "good" means."""
    pairs = counts(ours, theirs)
    if all(a <= b for a, b in pairs):
        return Status.FAILS
    return Status.HOLDS if all(a >= b for a, b in pairs) else Status.PART


def counts(ours: Mapping[float, float], theirs: Mapping[float, float]) -> list[tuple[int, int]]:
    """Return, for each factor, how many choices keep both methods' losses near the lowest one."""
    lowest = min((*ours.values(), *theirs.values()))
    near = [
        [sum(loss <= factor * lowest for loss in side.values()) for factor in FACTORS]
        for side in (ours, theirs)
    ]
    return list(zip(*near, strict=True))


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
        stretches = f"{positive(windows(products, length)[1]):.0%} of stretches"
        return f"{stretches} of {length} rounds, {positive(products):.0%} of rounds"

    numbers = f"positive in {shares(directions.fedavg)}"
    if directions.elsewhere is not None:
        numbers += f"; to another run's model {shares(directions.elsewhere)}"
    return Row("direction", f"{task}, one run", pointing(directions, length), numbers)


def _closer(task: str, found: Directions, length: int) -> Iterator[Row]:
    """Judge whether FedAvg's direction is better than FedSGD's, where both were taken."""
    if found.fedsgd is None:
        return
    products = _larger(found.fedavg, found.fedsgd, length)
    numbers = f"<g, w - w*> of FedAvg is larger in {products:.0%} of stretches of {length} rounds"
    status = Status.PART if products >= MOST else Status.FAILS
    if found.fedavg_cosine is not None and found.fedsgd_cosine is not None:
        cosines = _larger(found.fedavg_cosine, found.fedsgd_cosine, length)
        means = [statistics.fmean(c) for c in (found.fedavg_cosine, found.fedsgd_cosine)]
        numbers += f", its cosine in {cosines:.0%} (means {means[0]:.3f} and {means[1]:.3f})"
        status = Status.HOLDS if min(products, cosines) >= MOST else status
    yield Row("closer", f"{task}, one run", status, numbers)


def _larger(ours: Sequence[float], theirs: Sequence[float], length: int) -> float:
    """Return the share of stretches in which our mean is the larger one."""
    gaps = [a - b for a, b in zip(ours, theirs, strict=True)]
    return positive(windows(gaps, length)[1])


def _judged(
    claim: str, contests: Sequence[Contest], ours: str, theirs: str, rule: Callable[[Duel], Status]
) -> list[Row]:
    """Judge two methods in all contests, as one family."""
    family = duels(contests, ours, theirs)
    return [Row(claim, duel.where, rule(duel), duel.text()) for duel in family]


def _at_same_lr(findings: Findings, task: PaperTask) -> Iterator[Row]:
    """Judge who is faster at every γ: the paper does not say which one it used."""
    found = findings.at_same_lr(task)
    if task.lrs and len(found) == len(task.lrs):
        statuses = [faster(duel) for duel in found.values()]
        parts = []
        for status in [each for each in Status if each in statuses]:
            lrs = [f"{lr:g}" for lr, each in zip(found, statuses, strict=True) if each == status]
            parts.append(f"{status} at γ {', '.join(lrs)}")
        numbers = f"{'; '.join(parts)}; seeds {min(duel.seeds for duel in found.values())}"
        yield Row("faster", f"{task.name}, at every γ", overall(statuses), numbers)


def _robust(claim: str, where: str, methods: RunsByChoice, choices: int) -> Iterator[Row]:
    """Judge FedMom against FedAvg once both have been run with all choices."""
    ours, theirs = (methods.get(method, {}) for method in ("fedmom", "fedavg"))
    if choices and len(ours) == len(theirs) == choices:
        losses = [
            {x: statistics.fmean(final_loss(run) for run in runs) for x, runs in side.items()}
            for side in (ours, theirs)
        ]
        near = ", ".join(
            f"within {factor:g} times {a} vs {b}"
            for factor, (a, b) in zip(FACTORS, counts(*losses), strict=True)
        )
        seeds = min(len(runs) for side in (ours, theirs) for runs in side.values())
        numbers = f"of {choices} choices, FedMom vs FedAvg {near}; seeds {seeds}"
        yield Row(claim, where, robust(*losses), numbers)
