"""A fingerprint of a Python object: to know it again in another process, without storing it."""

import contextlib
import copyreg
import dataclasses
import dis
import functools
import hashlib
import importlib.util
import inspect
import operator
import pickle
import re
import sys
import sysconfig
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedmom.core.arguments import checked
from fedmom.core.errors import FedMomError

Seen = dict[int, tuple[int, Any]]  # by id: the place where an object was first met, and itself
_READS = ("LOAD_GLOBAL", "LOAD_NAME")
PLAIN = (str, bytes, int, float, complex, bool, type(None), type(...))
_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
_BUILT_IN = sys.stdlib_module_names
_FEDMOM = Path(__file__).parents[1]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,59}")
_names: dict[int, tuple[Callable[[], Any], str]] = {}  # by id: objects and the names they got
_met: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()  # with their digests
# Of a field of a dataclass: it was added later, and counts only where it is not the default. So
# what has been written before finds its objects again.
LATER = types.MappingProxyType({"later": True})
_CONTAINERS = (dict, list, tuple, set, frozenset, types.CodeType, np.ndarray)
_holders: dict[str, int] = {}  # by name: the id of the object that got it last


class UnidentifiedError(FedMomError):
    """An object that holds something whose content cannot be compared."""

    def __init__(self, part: Any) -> None:
        kind = f"{type(part).__module__}.{type(part).__qualname__}".removeprefix("builtins.")
        super().__init__(
            f"it holds a {kind}, which cannot be told from others by its content. Give the object"
            ' a name: fedmom.named(obj, "my-name").'
        )


@checked
def named(value: Any, name: str) -> Any:
    """Give an object a name, by which runs know it again instead of by its content.

    Needed for objects with content that cannot be compared, such as generators and open files.
    Give another object another name: two objects of one name count as the same.

    Args:
        value: A schedule, model, dataset, rule or any other object, or a part of one.
        name: Letters, digits, ``_``, ``-`` and ``.``, at most 60, of which the first is a letter.

    Returns:
        The same object.

    Examples:
        >>> rates = (0.1 / (1 + t) for t in range(100))
        >>> falling = named(lambda t: next(rates), "falling")
        >>> fingerprint(falling) == fingerprint(named([], "falling"))
        True
    """
    if not _NAME.fullmatch(name):
        raise FedMomError(
            f"named: name is {name!r}. It must be a letter and up to 59 letters, digits, _, - or ."
        )
    if type(value) in PLAIN:
        raise FedMomError(f"named: value is {value!r}. Numbers and texts need no name.")
    try:
        held: Callable[[], Any] = weakref.ref(value)
    except TypeError:  # kept, or its id would soon be another object's
        held = functools.partial(_same, value)
    _names[id(value)] = held, name
    _holders[name] = id(value)
    return value


def _same(value: Any) -> Any:
    return value


def given_name(value: Any) -> str | None:
    """Return the name that an object got by ``named``; None if it has none."""
    held, name = _names.get(id(value), (None, ""))
    if held is None or held() is not value:
        return None
    if _holders[name] != id(value):
        raise FedMomError(
            f"Two objects are named {name!r}, so they would count as one. Give each its own name."
        )
    return name


def fingerprint(value: Any) -> str:
    """Return a checksum of what an object is made of.

    Functions count with their code, defaults and all that they refer to; arrays and containers
    with their content; other objects with what they would be pickled as. What is imported from an
    installed package counts by its name alone, as does what was ``named``.

    Args:
        value: Any object, such as a function, a flax module or an optax transformation.

    Returns:
        64 hexadecimal digits. Equal programs and numbers give equal digits, in every process
        with the same version of Python.

    Raises:
        UnidentifiedError: It holds something whose content cannot be compared, such as a generator.

    Examples:
        >>> def scaled(rate):
        ...     return lambda t: rate / (1 + t)
        >>> fingerprint(scaled(0.1)) == fingerprint(scaled(0.1))
        True
        >>> fingerprint(scaled(0.1)) == fingerprint(scaled(0.2))
        False
    """
    try:
        return _digest(value, {})
    except RecursionError:
        raise UnidentifiedError(value) from None


def _digest(value: Any, seen: Seen) -> str:
    digest = hashlib.sha256()
    for part in _parts(value, seen):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def has_changed(value: Any) -> bool:
    """Return whether a function or object, or a part of it, had other content when last met.

    What was compiled with it then is out of date, such as after a change of a global number.

    Examples:
        >>> rates = [0.1]
        >>> schedule = (lambda inside: lambda t: inside[0])(rates)
        >>> first, rates[0] = has_changed(schedule), 0.2
        >>> first, has_changed(schedule), has_changed(schedule)
        (False, True, False)
    """
    seen: Seen = {}
    _digest(value, seen)
    changed = False
    for _, part in seen.values():
        if type(part) in _CONTAINERS or isinstance(part, type | types.ModuleType):
            continue
        if isinstance(part, _torch("Tensor")):  # compares element by element
            continue
        try:
            before, now = _met.get(part), _digest(part, {})
            _met[part] = now
        except TypeError:  # it has no hash, or cannot be referred to
            continue
        changed |= before not in (None, now)
    return changed


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


def _parts(value: Any, seen: Seen, *, in_list: bool = False) -> Iterator[bytes]:
    """Yield the bytes that make an object what it is; an object met again counts by its place.

    In a list its end counts too: ``[[1], 2]`` is not ``[[1, 2]]``.
    """
    if type(value) in PLAIN:
        yield f"{type(value).__name__} {value!r}".encode(errors="surrogatepass")
        return
    if id(value) in seen:
        yield f"again {seen[id(value)][0]}".encode()
        return
    seen[id(value)] = (len(seen), value)  # kept, or its id would soon be another object's
    if name := given_name(value):
        yield f"named {name}".encode()
    elif isinstance(value, types.ModuleType):
        yield f"module {value.__name__}".encode()
    elif is_installed(value):
        yield f"import {importable(value)}".encode()
    elif type(value) is np.ndarray or isinstance(value, np.generic | _jax_array()):
        yield from _array(value, seen)
    elif isinstance(value, _torch("Tensor")):
        yield from _tensor(value)
    else:
        yield f"{type(value).__module__}.{type(value).__qualname__}".encode()
        is_list = isinstance(value, list | tuple)
        yield from (
            p for item in _made_of(value, seen) for p in _parts(item, seen, in_list=is_list)
        )
        yield from [b"end"] * in_list


def _made_of(value: Any, seen: Seen) -> Iterable[Any]:
    """Return what an object is made of: as its kind says, else what it would be pickled as."""
    if type(value) in (set, frozenset):
        return sorted(_digest(item, dict(seen)) for item in value)
    if type(value) in _KINDS:
        return _KINDS[type(value)](value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        own = () if is_installed(type(value)) else (type(value), _attributes(value))
        return (*value, *own)
    if isinstance(value, type):
        return _class(value)
    if isinstance(value, _torch("nn.Module")):
        return _torch_module(value)
    if dataclasses.is_dataclass(value):
        values = [(f, getattr(value, f.name, None)) for f in dataclasses.fields(value)]
        fields = {f.name: v for f, v in values if not ("later" in f.metadata and v == f.default)}
        # Modules of linen keep a number of their own and what they are just doing.
        others = {} if isinstance(value, _linen_module()) else _attributes(value)
        return ({"class": type(value), **fields, **others}).items()
    return _pickled(value)


def _code(code: types.CodeType) -> Iterator[Any]:
    yield from (code.co_code, code.co_consts, code.co_names, code.co_varnames)
    flags = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    more = (code.co_posonlyargcount, code.co_kwonlyargcount, flags, code.co_exceptiontable)
    if any(more):
        yield more


def _function(function: types.FunctionType) -> Iterator[Any]:
    yield from (function.__code__, function.__defaults__, function.__kwdefaults__)
    yield referred(function)
    if own := {k: v for k, v in vars(function).items() if k != "__wrapped__"}:
        yield own


def _class(kind: type) -> Iterator[Any]:
    """Yield what a class defines, and the bases and class of it that are the user's as well."""
    for name, value in vars(kind).items():
        if (name[:2] != "__" or callable(value) or inspect.isroutine(value)) and name != _ABC:
            yield name, value
    yield from (base for base in (*kind.__bases__, type(kind)) if not is_installed(base))


_ABC = "_abc_impl"  # a cache
# What objects of a type are made of. Others are what they would be pickled as.
_KINDS: dict[Any, Callable[[Any], Iterable[Any]]] = {
    types.CodeType: _code,
    types.FunctionType: _function,
    types.MethodType: lambda method: (method.__self__, method.__func__),
    types.MappingProxyType: lambda mapping: [*mapping.items()],
    functools.partial: lambda p: (p.func, p.args, p.keywords, *([vars(p)] if vars(p) else [])),
    type(functools.lru_cache(_same)): lambda cached: (cached.__wrapped__,),
    staticmethod: lambda method: (method.__func__,),
    classmethod: lambda method: (method.__func__,),
    property: lambda p: (p.fget, p.fset, p.fdel),
    memoryview: lambda view: (view.format, view.shape, view.tobytes()),
    dict: lambda mapping: [*mapping.items()],
    list: lambda items: items,
    tuple: lambda items: items,
}


def _pickled(value: Any) -> Iterable[Any]:
    """Return what pickle would store of an object."""
    reduce = copyreg.dispatch_table.get(type(value))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of iterators
            found = reduce(value) if reduce else value.__reduce_ex__(4)
    except Exception:  # of whatever class it is
        raise UnidentifiedError(value) from None
    if isinstance(found, str):  # the name of a global
        module = sys.modules.get(pickle.whichmodule(value, found))  # type: ignore[attr-defined]
        if getattr(module, found, None) is not value or not _is_library(module):
            raise UnidentifiedError(value)
        return (module, found)
    make, args, state, items, pairs = (*found, None, None, None)[:5]
    state = _with_attributes(value, state)
    if make is copyreg.__newobj__ and len(args) == 1 and type(state) is dict:  # type: ignore[attr-defined]
        return ({"class": type(value), **state}).items()
    return (make, args, state, [*(items or ())], [*(pairs or ())])


def _with_attributes(value: Any, state: Any) -> Any:
    """Add the attributes that pickle leaves out, as it does of arrays of a class of the user's."""
    kind, found = type(value), _attributes(value)
    known = state[0] if isinstance(state, tuple) and state else state
    if is_installed(kind) or isinstance(known, dict) or not found:
        return state
    own = {name for base in kind.__mro__ if not is_installed(base) for name in vars(base)}
    return state if own & {"__reduce__", "__reduce_ex__", "__getstate__"} else (state, found)


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes that an object has next to the fields of its class."""
    fields = [f.name for f in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
    return {k: v for k, v in getattr(value, "__dict__", {}).items() if k not in fields}


def referred(function: types.FunctionType) -> dict[str, Any]:
    """Return what a function's code takes from around it: closed over, and global.

    Of a module of the user's own, it is what the code takes from it.
    """
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    closed = {name: getattr(cell, "cell_contents", None) for name, cell in cells}
    around = function.__globals__
    names = sorted(_global_names(function.__code__) & around.keys())
    is_library = _is_library(sys.modules.get(around.get("__name__", "")))
    if is_library:
        known = types.ModuleType | type | types.FunctionType | types.BuiltinFunctionType
        names = [name for name in names if isinstance(around[name], known)]
    found = {**closed, **{name: around[name] for name in names}}
    for name, value in [*found.items()]:
        if isinstance(value, types.ModuleType):
            found |= _taken_from(value, name, _attribute_names(function.__code__))
    for module in () if is_library else _imported(function.__code__, around):
        found |= _taken_from(module, module.__name__, _attribute_names(function.__code__))
    return found


def _imported(code: types.CodeType, around: dict[str, Any]) -> Iterator[types.ModuleType]:
    """Yield the modules of the user's own that code imports when it is called."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    for level, names, step in zip(steps, steps[1:], steps[2:], strict=False):
        if step.opname == "IMPORT_NAME":
            with contextlib.suppress(Exception):  # it fails where it is called, or is caught there
                top = step.argval.partition(".")[0]
                if level.argval or not _is_installed_module(top):
                    yield __import__(step.argval, around, None, names.argval, level.argval)
    for inner in _codes_in(code):
        yield from _imported(inner, around)


def _is_installed_module(name: str) -> bool:
    """Return whether a module is Python's or an installed package's, without importing it."""
    if name in sys.modules:
        return _is_library(sys.modules[name])
    spec = importlib.util.find_spec(name)
    return name in _BUILT_IN or spec is None or _is_library_file(spec.origin or "")


def _taken_from(module: types.ModuleType, name: str, taken: set[str]) -> dict[str, Any]:
    """Return what code takes from a module, unless it is an installed one."""
    if _is_library(module):
        return {}
    found = {f"{name}.{key}": vars(module)[key] for key in sorted(taken & vars(module).keys())}
    for key, value in [*found.items()]:
        if isinstance(value, types.ModuleType):
            found |= _taken_from(value, key, taken)
    return found


def _global_names(code: types.CodeType) -> set[str]:
    """Return the globals that code and the functions inside it read; attributes are not among them.

    ``inspect.getclosurevars`` takes an attribute for a global of the same name before Python 3.13.
    """
    names = {step.argval for step in dis.get_instructions(code) if step.opname in _READS}
    return names.union(*map(_global_names, _codes_in(code)))


def _attribute_names(code: types.CodeType) -> set[str]:
    return {*code.co_names}.union(*map(_attribute_names, _codes_in(code)))


def _codes_in(code: types.CodeType) -> list[types.CodeType]:
    return [const for const in code.co_consts if isinstance(const, types.CodeType)]


def _array(value: Any, seen: Seen) -> Iterator[bytes]:
    """Yield an array's form and content; a JAX key counts with its data."""
    yield f"{value.dtype} {value.shape}".encode()
    if not isinstance(value, np.ndarray | np.generic):
        import jax

        if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
    array = np.ascontiguousarray(value)
    if array.dtype.names:  # one by one: there may be anything between them
        for name in array.dtype.names:
            yield from _array(array[name], seen)
    elif array.dtype.hasobject:
        yield from _parts(array.tolist(), seen)
    else:
        yield array.tobytes()


def _tensor(value: Any) -> Iterator[bytes]:
    """Yield the form and content of a PyTorch tensor."""
    found = value.detach().cpu().contiguous()
    yield f"{found.dtype} {tuple(found.shape)} {value.requires_grad}".encode()
    flat = found.reshape(-1).view(sys.modules["torch"].uint8)  # some types NumPy has not
    yield memoryview(flat.numpy()).tobytes()


def _torch_module(module: Any) -> Iterable[Any]:
    """Return what a PyTorch module is made of: its class, settings and weights.

    Whether it was last trained or evaluated does not count.
    """
    made_of = {"class": type(module), **module.__getstate__()}
    return [(name, value) for name, value in made_of.items() if name != "training"]


def _torch(name: str) -> Any:
    """Return a class of PyTorch; none can be met where it is not loaded."""
    torch = sys.modules.get("torch")
    return () if torch is None else operator.attrgetter(name)(torch)


def _jax_array() -> Any:
    """Return the class of JAX's arrays; none can be met where JAX is not loaded."""
    return getattr(sys.modules.get("jax"), "Array", np.generic)


def _linen_module() -> Any:
    return getattr(sys.modules.get("flax.linen"), "Module", ())


def is_installed(value: Any) -> bool:
    """Return whether a function or class comes from an installed package and has a name there."""
    if importable(value) is None:
        return False
    return _is_library(sys.modules.get(getattr(value, "__module__", "")))


def _is_library(module: types.ModuleType | None) -> bool:
    """Return whether a module is Python's, an installed package's or FedMom's."""
    if module is None or module.__name__ == "__main__":
        return False
    if file := getattr(module, "__file__", None):
        return _is_library_file(file)
    outer = module.__name__.rpartition(".")[0]  # parts of compiled packages have no file
    return _is_library(sys.modules.get(outer)) if outer else module.__name__ in _BUILT_IN


@functools.cache
def _is_library_file(file: str) -> bool:
    path = Path(file)
    inside = {"site-packages", "dist-packages"} & {*path.parts}
    return bool(inside) or any(path.is_relative_to(at) for at in (_STANDARD_LIBRARY, _FEDMOM))
