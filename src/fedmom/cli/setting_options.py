"""Options that several commands share, made from the settings of a run."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import click

from fedmom.cli.output import FOLDER
from fedmom.core.errors import FedMomError
from fedmom.experiments import settings
from fedmom.experiments.settings import RunConfig, kebab

Command = Callable[..., Any]


CONFIG = click.option(
    "--config",
    "file",
    type=FOLDER,
    help="TOML file of settings, named as these options. Options override it.",
)


def options_of(
    names: Iterable[str], defaults: Mapping[str, Any] = MappingProxyType({})
) -> Callable[[Command], Command]:
    """Give a command the options of some settings; ``defaults`` are shown instead of their own."""

    def decorate(command: Command) -> Command:
        for name in reversed(list(names)):
            field = RunConfig.model_fields[name]
            flag, shown = field.annotation is bool, defaults.get(kebab(name), field.default)
            text = (field.description or "") + ("" if shown is None else f" [default: {shown}]")
            metavar = None if flag else "|".join(_words(field.annotation))
            as_option = click.option(
                f"--{kebab(name)}", name, is_flag=flag, default=None, metavar=metavar, help=text
            )
            command = as_option(command)
        return command

    return decorate


def _words(annotation: Any) -> list[str]:
    """Return what a setting may be, in the words of a help text."""
    if get_origin(annotation) is Literal:
        return [word for word in get_args(annotation) if word != "own"]  # no choice of the user's
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else [annotation]
    if list(kinds) == [annotation]:
        return [_KINDS[annotation]] if annotation in _KINDS else []
    return [word for kind in kinds for word in _words(kind)]


_KINDS = {int: "INTEGER", float: "NUMBER", str: "TEXT"}


def setting_options(
    *, leave_out: Iterable[str] = (), defaults: Mapping[str, Any] = MappingProxyType({})
) -> Callable[[Command], Command]:
    """Give a command one option for every setting of a run, and --config."""
    names = [name for name in RunConfig.model_fields if name not in leave_out]
    return lambda command: CONFIG(options_of(names, defaults)(command))


def gather(file: Path | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a file, overridden by the options given."""
    given = {kebab(n): v for n, v in options.items() if v is not None}
    return {**(settings.read_given(file) if file else {}), **given}


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
