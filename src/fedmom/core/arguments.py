"""Arguments of public functions, checked against their annotations before anything is done.

An annotation says the type, ``Annotated[int, Between(1, 9)]`` the range, and
``Callable[[A, B], R]`` how many arguments a function must take. What an annotation cannot say is
checked by the function itself.
"""

import functools
import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from numpy.typing import ArrayLike

from fedmom.core.errors import FedMomError
from fedmom.core.validation import check_number

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)
LETTERS = 60  # of a value, in a message
# How JAX shows what stands for an array while it compiles a function; its versions differ.
TRACED = re.compile(
    r"\b(?:Traced|[A-Za-z]{0,30}Tracer)[<(](?:ShapedArray\()?(\w+\[[\d,]*\])[^>)]*\)?[>)]"
    r"(?:with<[^>]*>)?"
)
ARRAYS = "an array"


class Kind(NamedTuple):
    """What an annotation allows: a test, and the words for it in a message."""

    test: Callable[[Any], bool]
    words: str


ANYTHING = Kind(lambda _: True, "anything")


def checked(function: F) -> F:
    """Return a function that refuses arguments that its annotations do not allow.

    Examples:
        >>> @checked
        ... def repeated(text: str, times: int = 2) -> str:
        ...     return text * times
        >>> repeated("ab", "3")
        Traceback (most recent call last):
        fedmom.core.errors.FedMomError: repeated: times is '3'. It must be a whole number.
    """
    arguments = _Arguments(function, function.__qualname__)

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        arguments.check(args, given)
        return function(*args, **given)

    return call  # type: ignore[return-value]


def checked_class(kind: C) -> C:
    """Let a class refuse arguments that the annotations of its fields do not allow."""
    made_by = "__new__" if issubclass(kind, tuple) else "__init__"
    plain: Any = getattr(kind, made_by)
    arguments = _Arguments(plain, kind.__name__, kind)

    @functools.wraps(plain)
    def make(self: Any, *args: Any, **given: Any) -> Any:
        arguments.check((self, *args), given)
        return plain(self, *args, **given)

    setattr(kind, made_by, make)
    return kind


class _Arguments:
    """The kinds of a function's arguments, read from its annotations at the first call."""

    def __init__(self, function: Callable[..., Any], name: str, home: type | None = None) -> None:
        self._function, self._name, self._home = function, name, home
        parameters = inspect.signature(function).parameters.values()
        plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._positional = [p.name for p in parameters if p.kind in plain]
        self._named = {
            p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        }

    @functools.cached_property
    def _hints(self) -> dict[str, Any]:
        found = (_hints_of(self._home) if self._home else {}) | _hints_of(self._function)
        return {name: hint for name, hint in found.items() if name in self._named}

    @functools.cached_property
    def _kinds(self) -> dict[str, Kind]:
        return {name: kind_of(hint) for name, hint in self._hints.items()}

    def check(self, args: Sequence[Any], given: Mapping[str, Any]) -> None:
        """Refuse the first argument that is not allowed."""
        for name, value in zip(self._positional, args, strict=False):
            self._one(name, value)
        for name, value in given.items():
            self._one(name, value)

    def _one(self, name: str, value: Any) -> None:
        kind = self._kinds.get(name, ANYTHING)
        if not kind.test(value):
            raise FedMomError(f"{self._name}: {name} is {short(value)}. It must be {kind.words}.")
        number = value.item() if isinstance(value, np.number) else value
        allowed = _range_of(self._hints.get(name))
        if isinstance(number, int) or allowed:
            check_number(f"{self._name}: {name}={number}", number, allowed)


def _hints_of(owner: Any) -> dict[str, Any]:
    """Return annotations; those with names that only type checkers import are left out."""
    try:
        return get_type_hints(owner, include_extras=True)
    except NameError:
        found = dict(getattr(owner, "__annotations__", {}))
        return {name: hint for name, hint in found.items() if not isinstance(hint, str)}


def _range_of(hint: Any) -> Any:
    """Return the part of an annotation that has the range, if any has one."""
    parts = [hint, *get_args(hint)] if get_origin(hint) in (Union, types.UnionType) else [hint]
    return next((part for part in parts if get_origin(part) is Annotated), None)


@functools.lru_cache(maxsize=512)
def kind_of(hint: Any) -> Kind:
    """Return what an annotation allows."""
    origin, inside = get_origin(hint), get_args(hint)
    if hint is inspect.Parameter.empty or isinstance(hint, TypeVar | str) or hint is Any:
        return ANYTHING
    if origin is Annotated:
        return kind_of(inside[0])
    if origin in (Union, types.UnionType):
        if set(get_args(ArrayLike)) <= set(inside):  # what NumPy takes, the function looks at
            return ANYTHING
        return _either([kind_of(part) for part in inside])
    if origin is Literal:
        words = _either_of([repr(choice) for choice in inside])
        return Kind(lambda value: isinstance(value, str) and value in inside, words)
    if origin is not None:
        return _of_generic(origin, inside)
    return _PLAIN.get(hint) or _of_class(hint)


def _either(kinds: Sequence[Kind]) -> Kind:
    if ANYTHING in kinds:
        return ANYTHING
    words = _either_of(list(dict.fromkeys(kind.words for kind in kinds)))
    return Kind(lambda value: any(kind.test(value) for kind in kinds), words)


def _either_of(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _of_generic(origin: Any, inside: tuple[Any, ...]) -> Kind:
    if origin is Callable or origin is types.FunctionType:
        return _of_function(inside)
    if origin is np.ndarray:
        return _of_array(inside)
    if origin is type:
        return Kind(lambda value: isinstance(value, type), "a class")
    if issubclass(origin, Mapping):
        of_key, of_value = (kind_of(part) for part in inside)
        return Kind(
            lambda value: (
                isinstance(value, Mapping)
                and all(of_key.test(k) and of_value.test(v) for k, v in value.items())
            ),
            f"a dict from {_several(of_key.words)} to {_several(of_value.words)}",
        )
    if issubclass(origin, tuple) and inside[-1:] != (...,):
        return _of_tuple([kind_of(part) for part in inside])
    if issubclass(origin, Sequence) or origin in (set, frozenset):
        return _of_items(origin, kind_of(inside[0]))
    return _of_class(origin)


def _of_function(inside: tuple[Any, ...]) -> Kind:
    wanted = inside[0] if inside else ...
    if not isinstance(wanted, list):
        return Kind(callable, "a function")
    count = len(wanted)
    plural = "" if count == 1 else "s"
    words = f"a function of {count} argument{plural}" if count else "a function without arguments"
    return Kind(lambda value: callable(value) and takes(value, count), words)


def takes(function: Callable[..., Any], count: int) -> bool:
    """Return whether a function can be called with this number of positional arguments.

    Examples:
        >>> takes(lambda a, b=1: 0, 2), takes(lambda a: 0, 2)
        (True, False)
    """
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # some of Python's own do not tell
        return not isinstance(function, type)
    return True


def _of_array(inside: tuple[Any, ...]) -> Kind:
    types_inside = get_args(inside[1])[:1] if len(inside) > 1 else ()
    whole = bool(types_inside) and _is_integer_type(types_inside[0])
    kinds = "iu" if whole else "biufcUSTOV"

    def fits(value: Any) -> bool:
        return _is_array(value) and getattr(value.dtype, "kind", "-") in kinds

    return Kind(fits, "an array of whole numbers" if whole else ARRAYS)


def _is_integer_type(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, np.integer)


def _of_tuple(kinds: Sequence[Kind]) -> Kind:
    return Kind(
        lambda value: (
            isinstance(value, tuple)
            and len(value) == len(kinds)
            and all(kind.test(item) for kind, item in zip(kinds, value, strict=True))
        ),
        f"a tuple of {', '.join(kind.words for kind in kinds)}",
    )


def _of_items(origin: Any, of_item: Kind) -> Kind:
    word = "tuple" if issubclass(origin, tuple) else "set" if origin is set else "list"
    allowed = origin if origin in (tuple, set, frozenset) else (Sequence, np.ndarray)

    def fits(value: Any) -> bool:
        if isinstance(value, str | bytes) or not isinstance(value, allowed):
            return False
        if hasattr(value, "_fields"):  # a named tuple is one thing, such as an optimizer
            return False
        return of_item is ANYTHING or all(map(of_item.test, value))

    return Kind(fits, f"a {word} of {_several(of_item.words)}")


def _of_class(kind: Any) -> Kind:
    if not isinstance(kind, type):
        return ANYTHING
    if getattr(kind, "_is_protocol", False) and not getattr(kind, "_is_runtime_protocol", False):
        return ANYTHING
    if kind.__module__.partition(".")[0] in ("jax", "jaxlib") and kind.__name__ == "Array":
        return Kind(_is_array, ARRAYS)
    home = "fedmom." if kind.__module__.startswith("fedmom.") else ""
    words = f"a {home}{kind.__name__}"
    if getattr(kind, "_is_protocol", False):
        members = sorted(name for name in vars(kind) if not name.startswith("_"))
        words += f", which has {', '.join(members)}"
    return Kind(lambda value: isinstance(value, kind), words)


def _is_array(value: Any) -> bool:
    return isinstance(getattr(value, "shape", None), tuple) and hasattr(value, "dtype")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_real(value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return False
    if isinstance(value, int | float | np.integer | np.floating):
        return True
    # A number of JAX's, which may be traced.
    return _is_array(value) and value.shape == () and getattr(value.dtype, "kind", "-") in "iuf"


def _is_path(value: Any) -> bool:
    return isinstance(value, Path)


_PLAIN: dict[Any, Kind] = {
    types.NoneType: Kind(lambda value: value is None, "None"),
    bool: Kind(lambda value: isinstance(value, bool | np.bool_), "True or False"),
    int: Kind(_is_whole, "a whole number"),
    float: Kind(_is_real, "a number"),
    str: Kind(lambda value: isinstance(value, str), "a text"),
    Path: Kind(_is_path, "a path"),
    Callable: Kind(callable, "a function"),
}


def _several(words: str) -> str:
    """Return the words for several things of a kind.

    Examples:
        >>> _several("a whole number"), _several("a text or a function of 2 arguments")
        ('whole numbers', 'texts or functions of 2 arguments')
    """
    if words == ANYTHING.words:
        return "values"
    return re.sub(r"\ban? (whole number|[\w.]+)", r"\1s", words)


def short(value: Any) -> str:
    """Return a value as a message shows it: in few letters, with its type where that is not plain.

    Examples:
        >>> short("lenet"), short([1, 2]), short(np.zeros(3))
        ("'lenet'", '[1, 2]', 'a float64 array of shape (3,)')
    """
    if isinstance(value, np.ndarray | np.generic) and value.shape == ():
        value = value.item()
    if _is_array(value):
        return f"a {value.dtype} array of shape {tuple(value.shape)}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value):
        return f"the function {getattr(value, '__name__', type(value).__name__)}"
    try:
        text = repr(value)
    except Exception:  # of a user's class
        text = ""
    plain = isinstance(
        value, str | bytes | int | float | complex | list | tuple | dict | set | None
    )
    if not plain or not text or text.startswith("<"):
        return f"of type {type(value).__name__}"
    text = TRACED.sub(r"\1", text)
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 3]}..."
