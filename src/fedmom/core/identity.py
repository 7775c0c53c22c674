"""A fingerprint of a Python object: to know it again in another process, without storing it."""

import dataclasses
import dis
import functools
import hashlib
import inspect
import re
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

Seen = dict[int, tuple[int, Any]]  # by id: the place where an object was first met, and itself
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_READS = ("LOAD_GLOBAL", "LOAD_NAME")
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platlib", "purelib")})


def fingerprint(value: Any) -> str:
    """Return a checksum of what an object is made of.

    Functions count with their code, defaults and all that they refer to; arrays and containers
    with their content; other objects with their class and attributes. What is imported from an
    installed package counts by its name alone.

    Args:
        value: Any object, such as a function, a flax module or an optax transformation.

    Returns:
        64 hexadecimal digits. Equal programs and numbers give equal digits, in every process
        with the same version of Python.

    Examples:
        >>> def scaled(rate):
        ...     return lambda t: rate / (1 + t)
        >>> fingerprint(scaled(0.1)) == fingerprint(scaled(0.1))
        True
        >>> fingerprint(scaled(0.1)) == fingerprint(scaled(0.2))
        False
    """
    digest = hashlib.sha256()
    for part in _parts(value, {}):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def label(value: Any) -> str:
    """Return a short name for an object: a function's own, else that of its class.

    Examples:
        >>> label(label), label(0.5)
        ('label', 'float')
    """
    while isinstance(value, functools.partial):
        value = value.func
    name = getattr(value, "__name__", None) or type(value).__name__
    return re.sub(r"\W+", "_", str(name)).strip("_") or "object"


def importable(value: Any) -> str | None:
    """Return ``module.name`` if a function or class can be imported by it, else None.

    Examples:
        >>> importable(importable)
        'fedmom.core.identity.importable'
        >>> importable(lambda: 0) is None
        True
    """
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}.{name}" if found is value else None


def _parts(value: Any, seen: Seen) -> Iterator[bytes]:
    """Yield the bytes that make an object what it is; an object met again counts by its place."""
    if isinstance(value, str | bytes | int | float | complex | bool | type(None) | type(...)):
        yield f"{type(value).__name__} {value!r}".encode(errors="surrogatepass")
        return
    if id(value) in seen:
        yield f"again {seen[id(value)][0]}".encode()
        return
    seen[id(value)] = (len(seen), value)  # kept, or its id would soon be another object's
    if isinstance(value, types.ModuleType):
        yield f"module {value.__name__}".encode()
    elif _is_installed(value):
        yield f"import {importable(value)}".encode()
    elif isinstance(value, np.ndarray | np.generic | _jax_array()):
        yield from _array(value)
    else:
        yield from _made_of(value, seen)


def _made_of(value: Any, seen: Seen) -> Iterator[bytes]:
    yield f"{type(value).__module__}.{type(value).__qualname__}".encode()
    for kind, inner in _KINDS:
        if isinstance(value, kind):
            for item in inner(value):
                yield from _parts(item, seen)
            return
    for item in _attributes(value).items():
        yield from _parts(item, seen)


# What objects of a kind are made of. The first kind that fits is taken.
_KINDS: tuple[tuple[Any, Callable[[Any], Iterable[Any]]], ...] = (
    (types.CodeType, lambda c: (c.co_code, c.co_consts, c.co_names, c.co_varnames)),
    (types.FunctionType, lambda f: (f.__code__, f.__defaults__, f.__kwdefaults__, _referred(f))),
    (types.MethodType, lambda m: (m.__self__, m.__func__)),
    (functools.partial, lambda p: (p.func, p.args, p.keywords)),
    (Mapping, lambda mapping: [*mapping.items()]),
    (list | tuple, lambda items: items),
    (set | frozenset, lambda items: sorted(items, key=repr)),
    (type, lambda c: [(k, v) for k, v in vars(c).items() if inspect.isroutine(v) or k[:1] != "_"]),
)


def _attributes(value: Any) -> dict[str, Any]:
    """Return an object's class and attributes; the text of one that has none."""
    if dataclasses.is_dataclass(value):
        found = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
    else:
        found = dict(getattr(value, "__dict__", {}))
    if not found:
        return {"class": type(value), "text": _ADDRESS.sub("", repr(value))}
    return {"class": type(value), **found}


def _referred(function: types.FunctionType) -> dict[str, Any]:
    """Return what a function's code takes from around it: closed over, and global."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    closed = {name: getattr(cell, "cell_contents", None) for name, cell in cells}
    names = sorted(_global_names(function.__code__) & function.__globals__.keys())
    return {**closed, **{name: function.__globals__[name] for name in names}}


def _global_names(code: types.CodeType) -> set[str]:
    """Return the globals that code and the functions inside it read; attributes are not among them.

    ``inspect.getclosurevars`` takes an attribute for a global of the same name before Python 3.13.
    """
    names = {step.argval for step in dis.get_instructions(code) if step.opname in _READS}
    inside = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return names.union(*map(_global_names, inside))


def _array(value: Any) -> Iterator[bytes]:
    """Yield an array's form and content; a JAX key counts with its data."""
    if not isinstance(value, np.ndarray | np.generic):
        import jax

        if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
    array = np.ascontiguousarray(value)
    yield f"{array.dtype} {array.shape}".encode()
    yield repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()


def _jax_array() -> Any:
    """Return the class of JAX's arrays; none can be met where JAX is not loaded."""
    jax = sys.modules.get("jax")
    return getattr(jax, "Array", np.ndarray)


def _is_installed(value: Any) -> bool:
    """Return whether a function or class comes from an installed package and has a name there."""
    if importable(value) is None:
        return False
    module = sys.modules.get(getattr(value, "__module__", ""))
    file = getattr(module, "__file__", None)
    return file is None or file.startswith(_LIBRARIES)
