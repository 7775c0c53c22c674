"""The commands of the theory and their options, without loading what they need."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fedmom.cli.options import FOLDER, Command, setting_option
from fedmom.theory.budgets import Budget, Look

CONSTANT = click.FloatRange(max=1e100)  # products of them stay finite
OUT_FOLDER = click.option(
    "--out", type=FOLDER, default=Path("theory"), show_default=True, help="For figures."
)
ROUNDS = click.option(
    "--rounds", type=click.IntRange(min=1), default=100, show_default=True, help="Rounds, T."
)
# Settings of a run that the theory speaks of.
TASK = (
    *("data", "model", "algorithm", "clients_per_round", "batch_size", "local_steps"),
    *("lr", "server_lr", "momentum", "seed"),
)
MOMENTUM_TASK = (
    *("model", "rounds", "clients_per_round", "batch_size", "local_steps", "local_epochs"),
    *("batches", "lr", "server_lr", "weighting", "sampler", "average", "seed"),
)


def with_settings(names: tuple[str, ...]) -> Callable[[Command], Command]:
    """Give a command the options of some settings."""

    def decorated(command: Command) -> Command:
        for name in reversed(names):
            command = setting_option(name)(command)
        return command

    return decorated


def count(flag: str, default: int, text: str, most: int = 10_000) -> Callable[[Command], Command]:
    """Return an option that is a number of things to look at."""
    kind = click.IntRange(1, most)
    return click.option(flag, type=kind, default=default, show_default=True, help=text)


def task_options(command: Command) -> Command:
    """Give a command the options of a run that the theory speaks of, and those of the estimates."""
    for option in (
        count("--models", Budget.models, "Models for L and σ²."),
        count("--samples", Budget.samples, "Samples of each client."),
        count("--clients", Budget.clients, "Clients looked at."),
        count("--short-run", 50, "Rounds of the run along which the models lie.", 100_000),
    ):
        command = option(command)
    return with_settings(TASK)(command)


@click.command(name="estimate")
@task_options
@click.option("--out", type=FOLDER, help="A JSON file for the estimates, for `bounds`.")
def estimate_(out: Path | None, **options: Any) -> None:
    """Estimate L, σ², G², B² and f(w_0) - f_inf on a task, along a short run.

    \b
    fedmom theory estimate --data synthetic --lr 0.01 --out constants.json
    fedmom theory bounds --estimates constants.json --rounds 2000
    """
    from fedmom.cli import theory_task

    theory_task.estimate(out, options)


@click.command()
@click.option("--estimates", type=FOLDER, help="A file of `fedmom theory estimate --out`.")
@click.option("--L", "smoothness", type=CONSTANT, help="L, the smoothness of every client's loss.")
@click.option("--sigma2", "variance", type=CONSTANT, help="σ², the variance of a batch gradient.")
@click.option("--gap", type=CONSTANT, help="f(w_0) - f_inf.")
@click.option("--G2", "dissimilarity", type=CONSTANT, help="G² of the dissimilarity [default: 0].")
@click.option("--B2", "similarity", type=CONSTANT, help="B² of the dissimilarity [default: 1].")
@click.option("--clients", type=int, help="K, the clients there are.")
@click.option("--clients-per-round", "per_round", type=int, help="Clients in a round, M.")
@click.option("--local-steps", type=int, help="Local steps in a round, H.")
@click.option("--server-lr", type=float, help="Server step size η [default: 1].")
@click.option("--momentum", type=float, help="Server momentum β [default: 0].")
@click.option("--largest-weight", type=float, help="The largest p_k [default: 1, always true].")
@click.option("--lr", type=click.FloatRange(min=0, min_open=True), help="A step size γ to judge.")
@ROUNDS
def bounds(estimates: Path | None, lr: float | None, rounds: int, **options: Any) -> None:
    """Print every bound on |∇f|² and its condition on γ. Options override the file.

    \b
    fedmom theory bounds --L 1 --sigma2 1 --gap 2 --G2 0.5 --clients 100 --clients-per-round 10 \\
        --local-steps 10 --server-lr 10 --momentum 0.9 --rounds 2000 --lr 0.001
    """
    from fedmom.cli import theory_bounds

    theory_bounds.bounds(estimates, lr, rounds, options)


@click.command()
@task_options
@ROUNDS
@click.option(
    "--experiments",
    type=FOLDER,
    help="A sweep, or any folder of runs: their best γ is shown [default: runs, if it is there].",
)
@OUT_FOLDER
def advise(rounds: int, experiments: Path | None, out: Path, **options: Any) -> None:
    """Advise a step size: what experiments found or which to run, then what is proven.

    \b
    fedmom theory advise --data synthetic --rounds 2000 --lr 0.01
    fedmom theory advise --data femnist_writers.npz --model lenet5 --rounds 2000 \\
        --experiments runs/sweep
    """
    from fedmom.cli import theory_task

    theory_task.advise(rounds, experiments, out, options)


@click.command(name="counterexample")
@OUT_FOLDER
def counterexample_(out: Path) -> None:
    """Show the case that breaks the paper's Theorem 1, with the corrected bound beside it."""
    from fedmom.cli import theory_bounds

    theory_bounds.counterexample(out)


@click.command(name="momentum")
@click.option("--data", metavar="DATA", help="Your task; without it, the general map is drawn.")
@with_settings(MOMENTUM_TASK)
@click.option(
    "--momentum",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.9,
    show_default=True,
    help="FedMom's β.",
)
@count("--short-run", 50, "Rounds of FedAvg from each of the two models looked at.", 100_000)
@click.option(
    "--short-lr",
    type=click.FloatRange(min=0, min_open=True),
    help="Constant γ of the short run [default: the first γ of --lr].",
)
@click.option(
    "--lowest-loss", type=float, default=0.0, show_default=True, help="f_inf of your task."
)
@count("--clients", Look.clients, "Clients looked at.")
@click.option("--no-map", is_flag=True, help="Print the prediction only.")
@OUT_FOLDER
def momentum_(data: str | None, momentum: float, no_map: bool, out: Path, **options: Any) -> None:
    """Predict whether FedMom beats FedAvg, each at its own best γ, and draw the map.

    On quadratic clients the expected loss after T rounds is computed exactly, for every γ. Your
    task enters with its curvatures, noise and differences of clients, measured at its first model
    and after a short run of FedAvg. --lr says whether γ is constant or decays along a cosine, and
    gives the short run its γ; the best γ of each method is part of the prediction.

    \b
    fedmom theory momentum
    fedmom theory momentum --data synthetic --lr 0.01 --rounds 200
    fedmom theory momentum --data femnist_writers.npz --model lenet5 --local-epochs 1 \\
        --clients-per-round 10 --weighting cohort --lr cosine:start=0.03,rounds=200 --rounds 200
    """
    from fedmom.cli import theory_momentum

    theory_momentum.momentum(data, momentum, out, options, draw=not no_map)
