"""What a row of a registry has as options and as its first line, as ``fedmom list`` shows it."""

import ast
import importlib
import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedmom.core.registry import options_of


def inspected(function: Callable[..., Any]) -> tuple[dict[str, str], str]:
    """Return a function's options with their defaults, and the first line of its docstring."""
    given = {
        key: "..." if p.default is p.empty else str(p.default)
        for key, p in options_of(function).items()
    }
    return given, inspect.cleandoc(function.__doc__ or "").partition("\n")[0]


def read(row: str) -> tuple[dict[str, str], str]:
    """Return the same of a function that is not imported, from its source.

    Importing all models or algorithms would load JAX, which takes a second.
    """
    module, _, name = row.partition(":")
    found = importlib.util.find_spec(module)
    origin = (found.origin if found else None) or ""
    source = Path(origin).read_text(encoding="utf-8") if origin.endswith(".py") else ""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            inside = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)}
            made_by = inside["__init__"] if isinstance(node, ast.ClassDef) else node
            pairs = zip(made_by.args.kwonlyargs, made_by.args.kw_defaults, strict=True)
            given = {a.arg: "..." if d is None else _literal(d) for a, d in pairs}
            return given, (ast.get_docstring(node) or "").partition("\n")[0]
    return inspected(getattr(importlib.import_module(module), name))


def _literal(node: ast.expr) -> str:
    """Return a default as it is written in a spec."""
    return str(node.value) if isinstance(node, ast.Constant) else ast.unparse(node)
