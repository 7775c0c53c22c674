"""Names with options, as one string: ``synthetic:alpha=0.5,clients=100``.

Datasets, models, solvers and schedules are all chosen this way, so that one value in a
config file or on the command line says everything.
"""

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from fedmom.errors import FedMomError

T = TypeVar("T")


def pick(table: Mapping[str, T], name: str, what: str) -> T:
    """Return ``table[name]``, or raise a sentence that names what the table has."""
    if name in table:
        return table[name]
    close = difflib.get_close_matches(name, table, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise FedMomError(f"There is no {what} {name!r}.{hint} Choose one of: {', '.join(table)}.")


def split(spec: str) -> tuple[str, dict[str, str]]:
    """Split ``name:key=value,...`` into the name and its options, still as text."""
    name, _, rest = spec.partition(":")
    options: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            raise FedMomError(
                f"{part!r} in {spec!r} is not an option. Write name:key=value,key=value."
            )
        options[key.strip()] = value.strip()
    return name.strip(), options


def options_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the keyword-only parameters of a table's function: its options."""
    parameters = inspect.signature(function).parameters
    return {n: p for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY}


def bind(function: Callable[..., T], spec: str, *args: Any) -> T:
    """Call ``function(*args, **options)`` with the options of ``spec`` in their own types."""
    name, given = split(spec)
    known = options_of(function)
    hints = get_type_hints(function)
    options: dict[str, Any] = {}
    for key, text in given.items():
        if key not in known:
            allowed = ", ".join(known) or "none"
            raise FedMomError(f"{name} has no option {key!r}. Its options: {allowed}.")
        try:
            options[key] = TypeAdapter(hints[key]).validate_python(text)
        except ValidationError:
            kind = getattr(hints[key], "__name__", str(hints[key]))
            raise FedMomError(f"{name}: {key}={text!r} is not of type {kind}.") from None
    missing = [k for k, p in known.items() if p.default is p.empty and k not in options]
    if missing:
        example = ",".join(f"{key}=..." for key in missing)
        raise FedMomError(f"{name} needs {', '.join(missing)}. Write {name}:{example}.")
    return function(*args, **options)


def described(table: Mapping[str, Callable[..., Any]]) -> Iterator[tuple[str, str]]:
    """Yield (spec with its defaults, what it is) for every row of a table, to be listed."""
    for name, function in table.items():
        options = [
            f"{k}={'...' if p.default is p.empty else p.default}"
            for k, p in options_of(function).items()
        ]
        about = (function.__doc__ or "").strip().splitlines()[0]
        yield f"{name}:{','.join(options)}" if options else name, about
