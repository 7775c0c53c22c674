"""How far above the truth are the corrected bounds? Run: python benchmarks/bounds_search.py

Two answers, for a constant γ and for one that falls (1/√t, cosine):

- Random problems whose constants are known exactly, like those of tests/theory/test_reality.py:
  quadratics and waves of 2 to 8 clients, every γ of them allowed. Σ (γ_t/Γ_T) E|∇f(w_t)|², with
  E the mean over 64 simulated runs, as a part of the bound, largest over T = 1 ... 60. Problems
  whose bound is 0 (a start at the minimum, no noise, equal clients) are left out.
- The worst case that a search finds among one-dimensional quadratics, with exact expectations.

`--problems 200 --restarts 2` is quick. The numbers in docs/theory.md are those of the defaults.
"""

import argparse

import bad_cases
import numpy as np
from problems import gradient_squares, random_quadratics, random_waves, simulate
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fedmom.theory import CORRECTED_FEDMOM, Setting

ERR = Console(stderr=True)
ROUNDS, RUNS = 60, 64
TIMES = np.arange(ROUNDS)
SHAPES = {
    "constant": [np.ones(ROUNDS)],
    "falling": [1 / np.sqrt(TIMES + 1), (1 + np.cos(np.pi * TIMES / ROUNDS)) / 2],
}


def draw(rng: np.random.Generator):
    """Return a problem, how it is trained, a start (the minimum itself among them) and a γ."""
    clients, dimension = int(rng.integers(2, 9)), int(rng.integers(1, 5))
    variance = float(rng.choice([0.0, 0.1, 10.0]))
    kind = rng.choice(["waves", "same curvature", "any curvature"])
    if kind == "waves":
        problem, centre = random_waves(rng, clients, dimension, variance=variance), 0.0
    else:
        problem = random_quadratics(
            rng,
            clients,
            dimension,
            variance=variance,
            spread=float(rng.choice([0.0, 1.0, 5.0])),
            same_curvature=kind == "same curvature",
        )
        centre = problem.minimizer
    per_round = int(rng.integers(1, clients + 1))
    setting = Setting(
        clients,
        per_round,
        local_steps=int(rng.integers(1, 9)),
        server_lr=1 + (clients / per_round - 1) * float(rng.choice([0.0, 0.5, 1.0])),
        momentum=float(rng.choice([0.0, 0.5, 0.9])),
        largest_weight=float(problem.weights.max()),
    )
    start = centre + rng.choice([0.0, 0.5, 5.0]) * rng.normal(size=dimension)
    constants = problem.constants(start)
    lr = CORRECTED_FEDMOM.max_lr(constants, setting) * rng.choice([1.0, 0.3, 0.05])
    return problem, constants, setting, start, lr


def part_of_bound(training, shape: np.ndarray, seed: int) -> float | None:
    """Return the largest part of its bound that a problem reaches; None if the bound is 0."""
    problem, constants, setting, start, lr = training
    steps = lr * shape
    bounds = CORRECTED_FEDMOM.schedule_bounds(constants, setting, steps)
    if not bounds[-1] > 1e-12:
        return None
    models = simulate(problem, setting, steps, ROUNDS, start, runs=RUNS, seed=seed)[:-1]
    squares = gradient_squares(problem, models).mean(axis=1)
    return float(np.max(np.cumsum(steps * squares) / np.cumsum(steps) / bounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=4000)
    parser.add_argument("--restarts", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    found: dict[str, list[float]] = {name: [] for name in SHAPES}
    for i in track(range(options.problems), console=ERR, disable=not ERR.is_terminal):
        training = draw(rng)
        for name, shapes in SHAPES.items():
            part = part_of_bound(training, shapes[i % len(shapes)], seed=i)
            found[name] += [] if part is None else [part]
    view = Table("γ", "problems", "median", "largest", "worst case searched for", box=None)
    for name, decays in (
        ("constant", bad_cases.DECAYS[:1]),
        ("falling", bad_cases.DECAYS[1:]),
    ):
        worst, _ = bad_cases.search(
            options.seed, restarts=options.restarts, climbs=2500, rounds=100, decays=decays
        )
        parts = found[name]
        cells = (np.median(parts), max(parts), worst)
        view.add_row(name, f"{len(parts):,}", *(f"{cell:.3f}" for cell in cells))
    Console(width=100).print("Measured |∇f|² as a part of the corrected bound", view, sep="\n")


if __name__ == "__main__":
    main()
