"""Options that several commands share, made from the settings of a run."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from fedmom.cli.output import FOLDER
from fedmom.core.errors import FedMomError
from fedmom.experiments import settings
from fedmom.experiments.settings import RunConfig, kebab

Command = Callable[..., Any]


def setting_option(name: str, default: Any = None) -> Callable[[Command], Command]:
    """Return the option of one setting; ``default`` is shown instead of the setting's own."""
    field = RunConfig.model_fields[name]
    flag = field.annotation is bool
    shown = field.default if default is None else default
    text = (field.description or "") + ("" if shown is None else f" [default: {shown}]")
    metavar = None if flag else name.split("_")[-1].upper()
    return click.option(
        f"--{kebab(name)}", name, is_flag=flag, default=None, metavar=metavar, help=text
    )


def setting_options(
    *, leave_out: Iterable[str] = (), defaults: Mapping[str, Any] | None = None
) -> Callable[[Command], Command]:
    """Give a command one option for every setting of a run, and --config."""

    def decorate(command: Command) -> Command:
        for name in reversed([n for n in RunConfig.model_fields if n not in set(leave_out)]):
            command = setting_option(name, (defaults or {}).get(kebab(name)))(command)
        return click.option(
            "--config",
            "file",
            type=FOLDER,
            help="TOML file of settings, named as these options. Options override it.",
        )(command)

    return decorate


def gather(
    file: Path | None, options: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return defaults, overridden by the file, overridden by the options given."""
    given = {kebab(n): v for n, v in options.items() if v is not None}
    return {**defaults, **(settings.read(file) if file else {}), **given}


def parse_grid(options: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the lists of values in texts such as 'lr=0.1 0.3'."""
    lists = {}
    for text in options:
        name, equals, values = text.partition("=")
        if not equals or not values.split():
            raise FedMomError(f"--grid {text!r} is not a setting with values. Write 'lr=0.1 0.3'.")
        lists[name.strip()] = values.split()
    return lists


def split_names(text: str) -> list[str]:
    """Return the algorithms in a list with commas, whose options have commas, too."""
    names: list[str] = []
    for part in (p.strip() for p in text.split(",")):
        if "=" in part and ":" not in part and names:
            names[-1] += f",{part}"
        elif part:
            names.append(part)
    if not names or len(set(names)) < len(names):
        raise FedMomError(f"--algorithms {text!r} must name one or more algorithms, none twice.")
    return names
