"""The convergence theory of what is run: the paper's theorems, and theorems that hold.

``paper_theorems`` has the theorems as published, ``theorems`` those that hold if clients differ
(docs/theory.md has the proofs), and ``counterexample`` a case that tells them apart.
``expected_loss`` has exact expectations on quadratic clients, and ``momentum_map`` says when
momentum wins on them (docs/momentum.md).
"""

from fedmom.theory.constants import Constants, Setting
from fedmom.theory.expected_loss import expected_excess
from fedmom.theory.momentum_map import best_lr, best_momentum, duels
from fedmom.theory.paper_theorems import (
    COROLLARY_2,
    THEOREM_1,
    THEOREM_2,
    corollary1_applies,
    corollary2_display,
    lemma1,
    theorem2_constant,
    theorem2_display,
)
from fedmom.theory.quadratic import Plan, QuadraticClients, random_clients
from fedmom.theory.theorems import (
    CORRECTED_FEDAVG,
    CORRECTED_FEDMOM,
    Theorem,
    power_schedule,
    power_vanishes,
)

__all__ = [
    "COROLLARY_2",
    "CORRECTED_FEDAVG",
    "CORRECTED_FEDMOM",
    "THEOREM_1",
    "THEOREM_2",
    "Constants",
    "Plan",
    "QuadraticClients",
    "Setting",
    "Theorem",
    "best_lr",
    "best_momentum",
    "corollary1_applies",
    "corollary2_display",
    "duels",
    "expected_excess",
    "lemma1",
    "power_schedule",
    "power_vanishes",
    "random_clients",
    "theorem2_constant",
    "theorem2_display",
]
