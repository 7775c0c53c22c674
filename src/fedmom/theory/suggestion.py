"""Which step sizes to try: a small grid to begin with, and what to try after the runs at hand.

Best step sizes lie far above what the theorems allow, so experiments decide. Of the estimated
constants only L is of use here. On a quadratic with curvature L, SGD moves away from the minimum
for γ > 2/L; a loss whose curvature changes may still train a little above. So a grid begins one
step above 2/L and goes down from there.
"""

import shlex
from typing import Any

from fedmom.algorithms import build as algorithms
from fedmom.experiments.settings import DEFAULT_STEPS, RunConfig, kebab
from fedmom.theory.advice import BestLr

SPACING = 3.0  # between neighbours: a best γ is seldom sharper than that
COUNT = 4  # one of them above 2/L
SHARED = (
    *("data", "model", "algorithm", "rounds", "clients_per_round", "batch_size"),
    *("local_steps", "local_epochs", "server_lr", "momentum"),
)
GAP = 1.2 * SPACING  # neighbours farther apart than this have room for one between


def first_grid(smoothness: float, momentum: float = 0.0) -> list[float]:
    """Return the step sizes of a grid to begin with, smallest first.

    Args:
        smoothness: L.
        momentum: β. FedMom's updates add up to 1/(1-β) of one, so its γ is (1-β) of FedAvg's.

    Returns:
        γ from 3·(1-β)·2/L down, each a third of the next, with two digits.
    """
    top = SPACING * (1 - momentum) * 2 / smoothness
    return [_rounded(top / SPACING**i) for i in reversed(range(COUNT))]


def next_lrs(best: BestLr) -> list[float]:
    """Return the step sizes to try after these; none if the best has near neighbours."""
    below, above = best.neighbours
    found = []
    if below is None:
        found.append(best.lr / SPACING)
    elif best.lr / below > GAP:
        found.append((best.lr * below) ** 0.5)
    if above is None:
        found.append(best.lr * SPACING)
    elif above / best.lr > GAP:
        found.append((best.lr * above) ** 0.5)
    return [_rounded(lr) for lr in found]


def verdict(best: BestLr) -> str:
    """Say where among the step sizes tried the best one lies."""
    below, above = best.neighbours
    if below is None and above is None:
        return "no other γ was tried, so nothing says that it is a good one"
    if below is None:
        return "it is the smallest γ tried, so the best may be smaller"
    if above is None:
        return "it is the largest γ tried, so the best may be larger"
    if next_lrs(best):
        return f"it lies between {below:g} and {above:g}, far apart"
    return f"it lies between {below:g} and {above:g}, both worse: there is no need to try others"


def sweep_command(config: RunConfig, clients: int, lrs: list[float], out: str) -> str:
    """Return a `fedmom sweep` of these step sizes, ready to paste.

    Args:
        config: What all runs share, complete.
        clients: K.
        lrs: The grid of γ; each is run with two seeds.
        out: The folder of the sweep.

    Returns:
        One line for a shell.
    """
    words = ["fedmom", "sweep"]
    usual = _usual(config, clients)
    for name in SHARED:
        value = getattr(config, name)
        if value is not None and value != usual.get(name):
            words += [f"--{kebab(name)}", str(value)]
    grid = " ".join(f"{lr:g}" for lr in lrs)
    return shlex.join([*words, "--grid", f"lr={grid}", "--grid", "seed=0 1", "--out", out])


def differences(best: RunConfig, task: RunConfig) -> list[str]:
    """Return the settings in which the best runs differ from the task, as texts."""
    names = [name for name in SHARED if name not in ("data", "model", "algorithm", "rounds")]
    if best.algorithm != task.algorithm:
        names.remove("momentum")  # only one of the two has it
    pairs = [(name, getattr(best, name), getattr(task, name)) for name in names]
    return [f"{kebab(name)} {b} (here {t})" for name, b, t in pairs if b != t]


def _usual(config: RunConfig, clients: int) -> dict[str, Any]:
    """Return what a command need not say, as it is what would be taken."""
    fields = RunConfig.model_fields
    return {
        "clients_per_round": fields["clients_per_round"].default,
        "batch_size": fields["batch_size"].default,
        "local_steps": DEFAULT_STEPS,
        "server_lr": clients / config.clients_per_round,
        "momentum": algorithms.default_of(config.algorithm, "momentum"),
    }


def _rounded(lr: float) -> float:
    return float(f"{lr:.2g}")
