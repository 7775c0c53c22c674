"""What a user's function is made of, part by part, so that a change can be named."""

import inspect
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
    pending = [(importable(function) or "function", function)]
    while pending:
        name, value = pending.pop()
        value = inspect.unwrap(value) if callable(value) else value
        name = importable(value) or name
        if name in found or isinstance(value, types.ModuleType) or is_installed(value):
            continue
        if text := _text(value):
            found[name] = text
        if isinstance(value, types.FunctionType):
            pending += _around(value)
    return dict(sorted(found.items()))


def _around(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for key, value in referred(function).items():
        yield f"{function.__module__}.{key}", value


def _text(value: Any) -> str:
    if type(value) in PLAIN:
        return repr(value)
    if isinstance(value, types.FunctionType):  # what is around it is a part by itself
        value = (value.__code__, value.__defaults__, value.__kwdefaults__)
    try:
        return f"{DIGITS}{fingerprint(value)}"
    except UnidentifiedError:
        return ""
