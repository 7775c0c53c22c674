"""The convergence theory of what is run: the paper's bounds, and bounds that hold.

``bounds_paper`` has the statements as published, ``bounds_corrected`` those that hold if clients
differ, ``counterexample`` a case that tells them apart. docs/theory.md has the proofs.
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
    theorem2,
    theorem2_applies,
    theorem2_at,
    theorem2_constant,
    theorem2_max_lr,
)
from fedmom.theory.constants import Constants, Setting

__all__ = [
    "Constants",
    "Setting",
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
    "lemma1",
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
