"""A case that meets every assumption of the paper's Theorem 1 and breaks its bound.

Two clients of equal weight, both in every round, without noise:

    f_1(w) = w²/2,   f_2(w) = -w,   so f(w) = w²/4 - w/2, least at w = 1, and L = 1.

A round multiplies client 1's model by q = (1-γ)^H and adds γH to client 2's, so FedAvg with
η = 1 ends where w = (qw + w + γH)/2, at w = γH/(1 - q) > 1. There ∇f is not 0, whatever T.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedmom.reports.charts import Chart, Figure, Line
from fedmom.theory.constants import Array, Constants, Setting
from fedmom.theory.paper_theorems import THEOREM_1
from fedmom.theory.theorems import CORRECTED_FEDAVG

CURVATURES, SLOPES = np.array([1.0, 0.0]), np.array([0.0, 1.0])  # ∇f_k(w) = h_k w - a_k
# From below the optimum the path would cross it, and the minimum over t would hide the bias.
START = 3.0
SETTING = Setting(clients=2, per_round=2, local_steps=50, largest_weight=0.5)
# B² = 4 is the largest that leaves Theorem 1' the paper's γ; G² = 1 + 1/(B² - 2) goes with it.
CONSTANTS = Constants(smoothness=1.0, variance=0.0, gap=1.0, dissimilarity=1.5, similarity=4.0)
LR = float(THEOREM_1.max_lr(CONSTANTS, SETTING))  # 1/(4LH)
ROUNDS = 100_000


@dataclass(frozen=True)
class Comparison:
    """After T rounds: min_{t<T} |∇f(w_t)|² as measured, and the two bounds on it."""

    rounds: Array
    measured: Array
    paper: Array
    corrected: Array

    @property
    def crossing(self) -> float:
        """The first T at which the paper's bound is below the truth; infinite if it never is."""
        below = self.rounds[self.paper < self.measured]
        return float(below[0]) if below.size else np.inf


def limit() -> float:
    """Return where FedAvg ends: w = γH/(1 - (1-γ)^H)."""
    steps = SETTING.local_steps
    return LR * steps / (1 - (1 - LR) ** steps)


def measured(rounds: int) -> Array:
    """Return |∇f(w_t)|² for t < rounds, by running FedAvg.

    Nothing here is random: once a round leaves the model as it is, so do all that follow.
    """
    w, squares = START, np.zeros(rounds)
    for t in range(rounds):
        squares[t] = ((w - 1) / 2) ** 2
        local = np.full(2, w)
        for _ in range(SETTING.local_steps):
            local = local - LR * (CURVATURES * local - SLOPES)
        before, w = w, w - float(np.mean(w - local))
        if w == before:
            squares[t:] = squares[t]
            break
    return squares


def compare(rounds: ArrayLike | None = None) -> Comparison:
    """Measure, and evaluate both bounds, after each of the given rounds (all up to 100,000)."""
    counts = np.arange(1, ROUNDS + 1) if rounds is None else np.asarray(rounds, int)
    least = np.minimum.accumulate(measured(int(counts.max())))
    return Comparison(
        rounds=counts.astype(float),
        measured=least[counts - 1],
        paper=np.asarray(THEOREM_1.bound(CONSTANTS, SETTING, LR, counts)),
        corrected=np.asarray(CORRECTED_FEDAVG.bound(CONSTANTS, SETTING, LR, counts)),
    )


def figure() -> Figure:
    """Return the picture: both bounds and the truth over T, on logarithmic axes."""
    rounds = np.unique(np.geomspace(1, ROUNDS, 200).astype(int))
    found = compare(rounds)
    lines = (
        Line("measured", found.rounds.tolist(), found.measured.tolist()),
        Line("paper, Theorem 1", found.rounds.tolist(), found.paper.tolist(), dashed=True),
        Line("corrected, Theorem 1'", found.rounds.tolist(), found.corrected.tolist()),
    )
    title, axes = "f₁ = w²/2, f₂ = -w, H = 50", ("rounds T", "min |∇f(w_t)|²")
    chart = Chart(title, *axes, marks=lines, log_x=True, log_y=True)
    note = (
        f"FedAvg ends at w = {limit():.5f}, where |∇f|² = {found.measured[-1]:.5f}."
        f" The paper's bound falls below that after {compare().crossing:,.0f} rounds."
    )
    return Figure(
        "counterexample", "FedAvg on two clients that differ", (chart,), columns=1, note=note
    )
