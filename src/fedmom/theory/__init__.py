"""The convergence theory of what is run: the paper's bounds, and bounds that hold.

``bounds_paper`` and ``bounds_paper_fedmom`` have the statements as published, ``bounds_corrected``
those that hold if clients differ, ``bounds_decreasing`` the same for a step size that falls,
``counterexample`` a case that tells them apart. docs/theory.md has the proofs. ``moments`` has
exact expectations on quadratic clients, and ``momentum_map`` says when momentum wins on them
(docs/momentum.md).
"""

from fedmom.theory.bounds_corrected import (
    corrected_applies,
    corrected_best_lr,
    corrected_fedavg,
    corrected_fedavg_max_lr,
    corrected_fedmom,
    corrected_fedmom_max_lr,
    corrected_floor,
)
from fedmom.theory.bounds_decreasing import (
    decreasing_applies,
    decreasing_fedavg,
    decreasing_fedmom,
    decreasing_power,
    decreasing_power_vanishes,
)
from fedmom.theory.bounds_paper import (
    corollary1,
    corollary1_applies,
    corollary2,
    corollary2_applies,
    corollary2_max_lr,
    lemma1,
    theorem1,
    theorem1_applies,
    theorem1_max_lr,
    theorem1_schedule,
)
from fedmom.theory.bounds_paper_fedmom import (
    theorem2,
    theorem2_applies,
    theorem2_at,
    theorem2_constant,
    theorem2_max_lr,
)
from fedmom.theory.constants import Constants, Setting
from fedmom.theory.moments import expected_excess
from fedmom.theory.momentum_map import best_lr, best_momentum, duels
from fedmom.theory.quadratic import Plan, QuadraticClients, random_clients

__all__ = [
    "Constants",
    "Plan",
    "QuadraticClients",
    "Setting",
    "best_lr",
    "best_momentum",
    "corollary1",
    "corollary1_applies",
    "corollary2",
    "corollary2_applies",
    "corollary2_max_lr",
    "corrected_applies",
    "corrected_best_lr",
    "corrected_fedavg",
    "corrected_fedavg_max_lr",
    "corrected_fedmom",
    "corrected_fedmom_max_lr",
    "corrected_floor",
    "decreasing_applies",
    "decreasing_fedavg",
    "decreasing_fedmom",
    "decreasing_power",
    "decreasing_power_vanishes",
    "duels",
    "expected_excess",
    "lemma1",
    "random_clients",
    "theorem1",
    "theorem1_applies",
    "theorem1_max_lr",
    "theorem1_schedule",
    "theorem2",
    "theorem2_applies",
    "theorem2_at",
    "theorem2_constant",
    "theorem2_max_lr",
]
