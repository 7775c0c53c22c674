"""The command line's front: names and help, without loading what the commands need."""

import click

from fedmom.cli.lazy import LazyGroup
from fedmom.cli.start import main  # noqa: F401  # where an older console script looks for it

# A command's home, and its line in `fedmom --help`.
COMMANDS = {
    "run": ("fedmom.cli.run:run", "Train one model with one algorithm."),
    "compare": (
        "fedmom.cli.run:compare",
        "Train with several algorithms, from the same model, on the same cohorts and batches.",
    ),
    "sweep": (
        "fedmom.cli.run:sweep",
        "Run a grid of settings, on all cores, and rank the results.",
    ),
    "resume": (
        "fedmom.cli.run:resume",
        "Resume a stopped run, comparison or sweep; the result is the same as without the stop.",
    ),
    "list": (
        "fedmom.cli.main:list_",
        "List all built-in algorithms, models, datasets and other components, with options.",
    ),
    "report": (
        "fedmom.cli.report:report",
        "Write one page about runs, comparisons and sweeps, in any mix, and its figures.",
    ),
    "watch": (
        "fedmom.cli.report:watch",
        "Show a run, comparison or sweep in the browser while it runs, until Ctrl-C.",
    ),
    "predict": (
        "fedmom.cli.trained:predict",
        "Predict the labels of DATA with a run's model, and write them to a CSV file.",
    ),
    "sample": ("fedmom.cli.trained:sample", "Write text with a run's character model."),
    "export": (
        "fedmom.cli.trained:export",
        "Write a run's model as a safetensors file, with a model card.",
    ),
    "deploy": (
        "fedmom.cli.deploy:deploy_commands",
        "Train on real devices, through Flower.",
    ),
    "data": (
        "fedmom.cli.data:data_commands",
        "Inspect datasets, check them, and prepare them for training.",
    ),
    "paper": (
        "fedmom.cli.paper:paper",
        "Make the paper's tables and figures, or those of WHAT, and judge its claims.",
    ),
    "theory": (
        "fedmom.cli.theory:theory_commands",
        "Convergence bounds and learning-rate advice.",
    ),
}


@click.group(
    cls=LazyGroup,
    homes=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="fedmom")
def cli() -> None:
    """Federated learning with server momentum.

    \b
    Start here:
      fedmom compare                       FedSGD, FedAvg and FedMom on Shakespeare's roles
      fedmom list                          algorithms, models, data, schedules, runtimes
      fedmom data --help                   inspect datasets, and prepare them
      fedmom run --data synthetic          one run, with FedMom
      fedmom sweep --help                  a grid of settings, on all cores
      fedmom paper                         the paper's tables and figures, and its claims judged
      fedmom theory --help                 convergence bounds and learning-rate advice
      fedmom deploy --help                 the same training on real devices
      fedmom resume runs/synthetic-fedmom  resume after Ctrl-C or a crash
      fedmom report runs/compare           a page about runs, with curves and tables
      fedmom watch runs/compare            the same page while they run
    """


@click.command(name="list")
def list_() -> None:
    """List all built-in algorithms, models, datasets and other components, with options."""
    from rich.table import Table

    from fedmom.algorithms import ALGORITHMS, RULES, SCHEDULES, SOLVERS, STAGES
    from fedmom.cli.output import OUT
    from fedmom.data import DATASETS
    from fedmom.models import MODELS
    from fedmom.runtimes import RUNTIMES
    from fedmom.training import PACES, SAMPLERS

    view = Table(box=None, pad_edge=False)
    for column in ("", "name:options", "what it is"):
        view.add_column(column, style="bold" if not column else "", overflow="fold")
    registries = (
        *(ALGORITHMS, MODELS, DATASETS, SOLVERS, SCHEDULES),
        *(RULES, STAGES, SAMPLERS, PACES, RUNTIMES),
    )
    for registry in registries:
        for spec, about in registry.described():
            # A narrow terminal folds after a comma, not within a word.
            view.add_row(registry.what, spec.replace(",", ", "), about.replace("``", ""))
    OUT.print(view)
