"""The command line's front: names and help, without loading what the commands need."""

import ast
import functools
import importlib
from pathlib import Path

import click

from fedmom.cli.start import main  # noqa: F401  # where an older console script looks for it

# Where each command is: its line in `fedmom --help` is the first of its docstring.
COMMANDS = {
    "run": "run:run",
    "compare": "run:compare",
    "sweep": "run:sweep",
    "robust": "robust:robust",
    "resume": "run:resume",
    "list": "main:list_",
    "report": "report:report",
    "watch": "report:watch",
    "predict": "trained:predict",
    "sample": "trained:sample",
    "export": "trained:export",
    "deploy": "deploy:deploy_commands",
    "data": "data:data_commands",
    "paper": "paper:paper",
    "theory": "theory:theory_commands",
}


class LazyGroup(click.Group):
    """A group that loads a command when it is used, and lists all without loading any."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the commands' names."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        return getattr(importlib.import_module(f"fedmom.cli.{module}"), name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _line(*home.split(":"))) for name, home in COMMANDS.items()])


def _line(module: str, name: str) -> str:
    """Return the first line of a docstring, from the source: loading a module may take a second."""
    functions = (node for node in _parsed(module).body if isinstance(node, ast.FunctionDef))
    found = next(function for function in functions if function.name == name)
    return (ast.get_docstring(found) or "").partition("\n")[0]


@functools.cache
def _parsed(module: str) -> ast.Module:
    return ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8"))


@click.group(
    cls=LazyGroup,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
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
    from fedmom.algorithms import ALGORITHMS, ATTACKS, RULES, SCHEDULES, SOLVERS, STAGES
    from fedmom.cli.output import OUT, listing
    from fedmom.data import DATASETS
    from fedmom.models import ADAPTATIONS, MODELS
    from fedmom.runtimes import RUNTIMES
    from fedmom.training import PACES, SAMPLERS
    from fedmom.world import WORLDS

    view = listing("", "name:options", "what it is")
    registries = (
        *(ALGORITHMS, MODELS, ADAPTATIONS, DATASETS, SOLVERS, SCHEDULES),
        *(RULES, STAGES, ATTACKS, SAMPLERS, PACES, WORLDS, RUNTIMES),
    )
    for registry in registries:
        for spec, about in registry.described():
            # A narrow terminal folds after a comma, not within a word.
            view.add_row(registry.what, spec.replace(",", ", "), about.replace("``", ""))
    OUT.print(view)
