"""The tables of docs/momentum.md: FedAvg's expected excess loss over FedMom's, exactly.

Run it with `python benchmarks/momentum_tables.py`. Nothing is simulated or timed.
"""

from collections.abc import Sequence

from fedmom.core.progress import track
from fedmom.theory.momentum_map import best_lr, best_momentum, duels
from fedmom.theory.quadratic import Plan, QuadraticClients, random_clients

ROUNDS = (200, 1000)
PER_ROUND = (2, 10, 50)
SPREADS = (0.3, 0.05)
COHORT = {"weighting": "cohort"}
WAYS = {
    "population weights": {},
    "cohort weights": COHORT,
    "drawn by size": {"weighting": "uniform", "sampler": "weighted"},
    "cohort weights, cosine γ": {**COHORT, "decay": "cosine"},
    "cohort weights, average 0.99": {**COHORT, "average": 0.99},
    "cohort weights, one local step": {**COHORT, "steps": 1},
}
# K, H and the noise of batches, each alone.
OTHERS = {
    "K=200, H=10, noise as the spread": {},
    "K=60": {"clients": 60},
    "K=1,000": {"clients": 1000},
    "H=1": {"steps": 1},
    "H=100": {"steps": 100},
    "no noise of batches": {"noise": 0.0},
    "noise of batches 10 times the spread": {"noise": 10.0},
}


def population(spread: float, *, clients: int = 200, noise: float = 1.0) -> QuadraticClients:
    """Ill-conditioned clients; ``noise`` is in units of the spread."""
    return random_clients(
        clients=clients, dimension=15, condition=3000, spread=spread, noise=noise * spread
    )


def ratios(clients: QuadraticClients, plan: Plan) -> str:
    """Return FedAvg's loss over FedMom's after all numbers of rounds."""
    return " / ".join(f"{duel.ratio:.2f}" for duel in duels(clients, plan, rounds=ROUNDS))


def table(first: str, rows: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Print a table as Markdown."""
    columns = [f"spread {s:g}: M={m}" for s in SPREADS for m in PER_ROUND]
    print("|".join(["", first, *columns, ""]))
    print("|---" * (len(columns) + 1) + "|")
    for name, cells in rows:
        print("| " + " | ".join([name, *cells]) + " |")
    print(flush=True)


def main() -> None:
    """Print all tables."""
    settings = [(spread, m) for spread in SPREADS for m in PER_ROUND]
    rows = []
    for name, options in track(list(WAYS.items()), "ways to train"):
        plans = [Plan(m, **{"steps": 10, **options}) for _, m in settings]
        cells = [ratios(population(s), p) for (s, _), p in zip(settings, plans, strict=True)]
        rows.append((name, cells))
    table(f"after {' / '.join(map(str, ROUNDS))} rounds", rows)
    rows = []
    for name, changed in track(list(OTHERS.items()), "K, H and noise"):
        steps = changed.get("steps", 10)
        drawn = {key: value for key, value in changed.items() if key != "steps"}
        plans = [Plan(m, steps=steps, **COHORT) for _, m in settings]
        cells = [
            ratios(population(s, **drawn), p) for (s, _), p in zip(settings, plans, strict=True)
        ]
        rows.append((name, cells))
    table("cohort weights", rows)
    worse = total = 0
    for spread, m in settings:
        clients = population(spread)
        for rounds in ROUNDS:
            plain = best_lr(clients, Plan(m, 10, **COHORT), rounds).loss
            longer = [
                best_lr(clients, Plan(m, 10, server_lr=eta, **COHORT), rounds).loss
                for eta in (2.0, 3.0, 5.0, 10.0)
            ]
            total += 1
            worse += plain < min(longer)
            best = best_momentum(clients, Plan(m, 10, **COHORT), rounds)
            ours = best_lr(clients, Plan(m, 10, **COHORT), rounds, momentum=0.9).loss
            print(
                f"spread {spread:g}, M={m}, T={rounds}: η of 2, 3, 5, 10 give"
                f" {', '.join(f'{loss / plain:.2f}' for loss in longer)} times FedAvg's loss at 1;"
                f" best β {best.momentum:g}, {ours / best.loss:.2f} times better than 0.9"
            )
    print(f"η = 1 is best in {worse} of {total} cases.")


if __name__ == "__main__":
    main()
