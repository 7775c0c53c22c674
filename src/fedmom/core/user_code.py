"""What a user's function is made of, part by part, so that a change can be named."""

import types
from collections.abc import Callable, Iterator
from typing import Any

from fedmom.core.identity import (
    PLAIN,
    UnidentifiedError,
    fingerprint,
    importable,
    is_installed,
    referred,
)

DIGITS = "sha256:"  # before the fingerprint of what is not a number or text


def parts(function: Callable[..., Any]) -> dict[str, str]:
    """Return what a function runs: itself and, transitively, what it calls and reads.

    Args:
        function: A function or class. What is imported from an installed package has no parts.

    Returns:
        By name: functions, classes and global values that are the user's own, each as a number,
        text or fingerprint. Values that cannot be compared are left out.
    """
    found: dict[str, str] = {}
    met: dict[int, Any] = {}
    pending = [(importable(function) or "function", function)]
    while pending:
        name, value = pending.pop()
        place = value.__name__ if isinstance(value, types.ModuleType) else importable(value)
        if place and place != name:
            found[name] = place
        if isinstance(value, types.ModuleType) or is_installed(value):
            continue
        name = place or name
        *wrappers, value = _layers(value)
        if name in found or id(value) in met:
            continue
        if isinstance(value, types.FunctionType):
            met[id(value)] = value
        codes = {name: value}
        codes |= {f"decorator {k} of {name}": each for k, each in enumerate(wrappers, 1)}
        found |= {key: text for key, each in codes.items() if (text := _text(each))}
        pending += [pair for each in codes.values() for pair in _around(name, each)]
    return dict(sorted(found.items()))


def _layers(value: Any) -> Iterator[Any]:
    """Yield what decorators have made of a function, the last first, and the function itself."""
    yield value
    if "__wrapped__" in getattr(value, "__dict__", {}):
        yield from _layers(value.__wrapped__)


def _around(name: str, function: Any) -> Iterator[tuple[str, Any]]:
    found = referred(function) if isinstance(function, types.FunctionType) else {}
    for key, value in found.items():
        is_closed_over = key in function.__code__.co_freevars
        yield f"{name if is_closed_over else function.__globals__['__name__']}.{key}", value


def _text(value: Any) -> str:
    if type(value) in PLAIN:
        return repr(value)
    if isinstance(value, types.FunctionType):  # what is around it is a part by itself
        value = (value.__code__, value.__defaults__, value.__kwdefaults__)
    try:
        return f"{DIGITS}{fingerprint(value)}"
    except UnidentifiedError:
        return ""
