"""The command line's front: names and help, without loading what the commands need."""

import importlib
import signal
import sys

import click

from fedmom.core.errors import FedMomError

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
        "Go on with a run, comparison or sweep that was stopped, as if it never had been.",
    ),
    "list": (
        "fedmom.cli.listing:list_",
        "Show the algorithms, models, datasets and all else that has a name, with options.",
    ),
    "report": (
        "fedmom.cli.report:report",
        "Write one page about runs, comparisons and sweeps, in any mix, and its figures.",
    ),
    "watch": (
        "fedmom.cli.report:watch",
        "Show a run, comparison or sweep while it goes on, until Ctrl-C.",
    ),
    "data": (
        "fedmom.cli.data:data_commands",
        "Look at datasets, check them, and prepare them for training.",
    ),
    "paper": (
        "fedmom.cli.paper:paper",
        "Make the paper's tables and figures, or those of WHAT, and judge its claims.",
    ),
    "theory": (
        "fedmom.cli.theory:theory_commands",
        "Ask the convergence theory: constants of a task, bounds, a step size, a counterexample.",
    ),
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
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="fedmom")
def cli() -> None:
    """Federated learning with server momentum.

    \b
    Start here:
      fedmom compare                       FedSGD, FedAvg and FedMom on Shakespeare's roles
      fedmom list                          algorithms, models, data, schedules, runtimes
      fedmom data --help                   look at datasets, and prepare them
      fedmom run --data synthetic          one run, with FedMom
      fedmom sweep --help                  a grid of settings, on all cores
      fedmom paper                         the paper's tables and figures, and its claims judged
      fedmom theory --help                 what the convergence theory says of a task
      fedmom resume runs/synthetic-fedmom  go on after Ctrl-C or a crash
      fedmom report runs/compare           a page about runs, with curves and tables
      fedmom watch runs/compare            the same page while they go on
    """


def main() -> None:
    """Run the command line; a user's mistake is a sentence, not a traceback."""
    from fedmom.core.compilation import prepare_process

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill is a Ctrl-C
    prepare_process()
    try:
        cli(standalone_mode=False)
    except FedMomError as error:
        from fedmom.cli.output import failed

        failed(f"error: {error}")
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
