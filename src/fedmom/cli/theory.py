"""The command line of the theory: names and help of its commands."""

import click

from fedmom.cli.lazy import LazyGroup

COMMANDS = {
    "estimate": (
        "fedmom.cli.theory_commands:estimate_",
        "Estimate L, σ², G², B² and f(w_0) - f_inf on a task, along a short run.",
    ),
    "bounds": (
        "fedmom.cli.theory_commands:bounds",
        "Print every bound on |∇f|² and its condition on γ.",
    ),
    "advise": (
        "fedmom.cli.theory_commands:advise",
        "Advise a step size: what experiments found or which to run, then what is proven.",
    ),
    "check": (
        "fedmom.cli.theory_check:check_",
        "Say whether a run's lr keeps the condition of the corrected theorem.",
    ),
    "counterexample": (
        "fedmom.cli.theory_commands:counterexample_",
        "Show the case that breaks the paper's Theorem 1, with the corrected bound beside it.",
    ),
    "momentum": (
        "fedmom.cli.theory_commands:momentum_",
        "Predict whether FedMom beats FedAvg, each at its own best γ, and draw the map.",
    ),
}


@click.group(name="theory", cls=LazyGroup, homes=COMMANDS)
def theory_commands() -> None:
    """Ask the convergence theory: constants of a task, bounds, a step size, a counterexample."""
