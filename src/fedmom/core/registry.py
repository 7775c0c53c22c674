"""Names with options, as one string: ``synthetic:alpha=0.5,clients=100``.

Datasets, models, algorithms, solvers, schedules, aggregation rules, stages, samplers, paces and
runtimes are all chosen this way, so that one value in a config file or on the command line says
everything. Each kind has one ``Registry``. Its rows are functions; a function's keyword-only
parameters are the options, and the first line of its docstring is what ``fedmom list`` shows.
"""

import difflib
import importlib
import importlib.metadata
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, TypeVar, get_type_hints

from fedmom.core.errors import FedMomError
from fedmom.core.name_caches import forget
from fedmom.core.validation import check_number

T = TypeVar("T")
NAMED = "named"  # in the place of digits, of an object that the user has named
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_BROKEN = (ImportError, AttributeError, SyntaxError)  # what a row of another package may raise

_found: dict[str, Callable[..., Any]] = {}  # what @module.function was last


class Registry(Mapping[str, Callable[..., Any]]):
    """Functions by name: those of this package, those registered, and those of other packages.

    Args:
        what: The word for one of them in messages, such as "model".
        rows: Built-in names with ``"module:function"``. A module is imported when its function
            is asked for, so that listing names is quick.
        returns: The type that its functions return, as ``"module:type"``, where a user's own
            function can be told from others by it; "function" if they return functions.
        takes: The arguments that its functions are called with, next to options by keyword; None
            if they are not checked.
        elsewhere: Names that users may look for here, with what to use instead.

    A package of a user's adds rows by entry points in the group ``fedmom.<what>s``; they work
    on the command line, in run folders and in ``fedmom resume``::

        [project.entry-points."fedmom.algorithms"]
        scaffold = "my_package.scaffold:scaffold"

    Examples:
        >>> sizes = Registry("size", {})
        >>> def box(*, side: float = 1.0) -> float:
        ...     "A cube."
        ...     return side**3
        >>> sizes.register("box", box)
        >>> sizes.build("box:side=2")
        8.0
    """

    def __init__(
        self,
        what: str,
        rows: Mapping[str, str],
        returns: str = "",
        takes: Sequence[str] | None = None,
        elsewhere: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.what, self._returns, self._takes, self._elsewhere = what, returns, takes, elsewhere
        self._rows: dict[str, str | Callable[..., Any]] = dict(rows)
        self._adopted: dict[str, Callable[..., Any]] = {}  # objects, which are not listed
        self._digits: dict[str, str] = {}  # theirs, of which their names have a few
        self._searched = False

    def register(self, name: str, function: Callable[..., Any]) -> None:
        """Add a row for this process."""
        self._check_name(name)
        if name in self and self[name] is not function:
            raise FedMomError(f"The {self.what} {name!r} already exists. Choose another name.")
        self.check_function(name, function)
        self._rows[name] = function

    def _check_name(self, name: Any) -> None:
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            from fedmom.core.arguments import short  # loads NumPy

            raise FedMomError(
                f"The {self.what} name {short(name)} cannot be used. It must be letters, digits, _,"
                " - and ., the first a letter or _."
            )

    def check_function(self, name: str, function: Any) -> None:
        """Refuse what cannot be called as a row is."""
        if self._takes is None:
            return
        plain = [p for p in parameters_of(function).values() if p.kind is not p.KEYWORD_ONLY]
        try:
            if callable(function):
                inspect.Signature(plain).bind(*self._takes)
                return
        except TypeError:
            pass
        from fedmom.core.arguments import short  # loads NumPy

        raise FedMomError(
            f"The {self.what} {name} is {short(function)}. It must be a function of"
            f" ({', '.join(self._takes)}), with options by keyword, after a *."
        )

    def adopt(self, name: str, digits: str, function: Callable[..., Any]) -> str:
        """Add a row for an object, under a name that no other object has.

        Args:
            name: What to call it.
            digits: A fingerprint of the object.
            function: What the row holds: a function that returns the object.

        Returns:
            The row's name. Another process knows it once it has adopted an equal object.

        Examples:
            >>> Registry("size", {}).adopt("box", "5f3a9c0172", lambda: 8.0)
            'box@5f3a9c01'
        """
        row = f"{name}@{digits[:8]}"
        if self._digits.setdefault(row, digits) != digits:
            raise FedMomError(
                f"Two different {self.what}s would be called {row}. Give one of them a name:"
                ' fedmom.named(obj, "my-name").'
            )
        if digits == NAMED and row in self._adopted:
            forget()  # whatever its content was
        self._adopted[row] = function
        return row

    def __getitem__(self, name: str) -> Callable[..., Any]:
        if name in self._adopted:
            return self._adopted[name]
        if name.startswith("@"):
            return _imported(name)
        if name not in self._rows:
            self._search()
        row = self._rows[name]
        if isinstance(row, str):
            module, _, function = row.partition(":")
            row = self._rows[name] = getattr(importlib.import_module(module), function)
        return row

    def __iter__(self) -> Iterator[str]:
        self._search()
        return iter(self._rows)

    def __len__(self) -> int:
        self._search()
        return len(self._rows)

    def __contains__(self, name: object) -> bool:
        if isinstance(name, str) and (name in self._adopted or name.startswith("@")):
            return True
        if name not in self._rows:
            self._search()
        return name in self._rows

    def check(self, spec: str) -> str:
        """Return the name in a spec, or raise an error that lists the known names."""
        name, _ = split(spec)
        if name not in self and name.lower() in self._elsewhere:
            raise FedMomError(f"There is no {self.what} {name!r}. {self._elsewhere[name.lower()]}")
        return pick_name(self, name, self.what)

    def find(self, spec: str) -> Callable[..., Any]:
        """Return the function that a spec names."""
        name = self.check(spec)
        try:
            function = self[name]
        except _BROKEN as error:
            raise FedMomError(f"The {self.what} {name} cannot be loaded: {error}.") from None
        if name.startswith("@"):
            self.check_function(name, function)
        return function

    def build(self, spec: str, *args: Any, **defaults: Any) -> Any:
        """Call the function that a spec names, with the spec's options.

        Args:
            spec: ``name:key=value,...``.
            *args: Positional arguments of the function.
            **defaults: Options that count where the spec does not give them. Those that the
                function does not have are left out.

        Returns:
            What the function returns.
        """
        function = self.find(spec)
        given = options(function, spec)
        known = options_of(function)
        return self.call(spec, *args, **{k: v for k, v in defaults.items() if k in known} | given)

    def call(self, spec: str, *args: Any, **values: Any) -> Any:
        """Call the function that a spec names; an error in a user's function is reported."""
        function = self.find(spec)
        if not (is_object(spec) or spec.startswith("@")):
            return function(*args, **values)
        name = split(spec)[0]
        try:
            made = function(*args, **values)
        except FedMomError:
            raise
        except Exception as error:  # of the user's code, whatever it is
            raise FedMomError(f"{name} failed: {_where(error)}.") from error
        if not self._fits(made):
            raise FedMomError(
                f"{name} returns a {type(made).__name__}. It must return a {self.what};"
                " CONTRIBUTING.md shows what one is."
            )
        return made

    def _fits(self, made: Any) -> bool:
        if self._returns in ("", "function"):
            return not self._returns or callable(made)
        return isinstance(made, resolve_name(self._returns))

    def described(self) -> Iterator[tuple[str, str]]:
        """Yield (spec with its defaults, what it is) for every row, to be listed."""
        from fedmom.core import row_texts

        for name in self:
            row = self._rows[name]
            try:
                given, about = (
                    row_texts.read(row) if isinstance(row, str) else row_texts.inspected(row)
                )
            except _BROKEN as error:
                given, about = {}, f"cannot be loaded: {error}"
            text = ",".join(f"{key}={default}" for key, default in given.items())
            yield f"{name}:{text}" if text else name, about

    def _search(self) -> None:
        """Look once for entry points of other packages."""
        if self._searched:
            return
        found: dict[str, str] = {}
        for point in _entry_points().select(group=f"fedmom.{self.what}s"):
            if point.name in self._rows or point.name in found:
                raise FedMomError(
                    f"{point.value} is registered as the {self.what} {point.name!r}, which already"
                    " exists. Rename the entry point."
                )
            self._check_name(point.name)
            found[point.name] = point.value
        self._rows |= found
        self._searched = True


def is_object(spec: str) -> bool:
    """Return whether a spec names an object that was given from Python.

    Examples:
        >>> is_object("box@5f3a9c01"), is_object("@shapes.box"), is_object("box")
        (True, False, False)
    """
    return "@" in spec.partition(":")[0][1:]


def _imported(name: str) -> Callable[..., Any]:
    """Return the function that ``@module.function`` names, also from the working folder."""
    module, _, function = name[1:].rpartition(".")
    if not module:
        raise FedMomError(f"{name} does not name a function. Write @module.function.")
    sys.path.append(str(Path.cwd()))  # last: what is installed goes first
    try:
        found = getattr(importlib.import_module(module), function)
    except _BROKEN as error:
        raise FedMomError(f"{name} cannot be imported: {error}.") from None
    finally:
        sys.path.pop()
    if not callable(found):
        raise FedMomError(f"{name} is not a function. Give the name of a function that returns it.")
    if _found.setdefault(name, found) is not found:  # its module was loaded again
        _found[name] = found
        forget()
    return found


def _where(error: Exception) -> str:
    """Return what was raised, and the line of the user's file that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    said = str(error).strip().partition("\n")[0].removesuffix(".")
    return f"{type(error).__name__}: {said} ({last.filename}, line {last.lineno})"


@lru_cache(maxsize=1)  # looking through all installed packages takes a while
def _entry_points() -> Any:
    return importlib.metadata.entry_points()


def pick_name(table: Mapping[str, Any], name: str, what: str) -> str:
    """Return ``name`` if the table has it, or raise an error that lists what the table has."""
    if name in table:
        return name
    if is_object(name):
        raise FedMomError(
            f"The {what} {name} is an object that was given from Python. Give it again:"
            " fedmom.load(folder, ...) takes it under the name that its setting has."
        )
    close = difflib.get_close_matches(name, table, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise FedMomError(f"There is no {what} {name!r}.{hint} Choose one of: {', '.join(table)}.")


def pick(table: Mapping[str, T], name: str, what: str) -> T:
    """Return ``table[name]``, or raise an error that lists what the table has."""
    return table[pick_name(table, name, what)]


def split(spec: str) -> tuple[str, dict[str, str]]:
    """Split a spec into its name and its options, still as text.

    Examples:
        >>> split("synthetic:alpha=0.5,clients=100")
        ('synthetic', {'alpha': '0.5', 'clients': '100'})
    """
    name, _, rest = spec.partition(":")
    given: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            raise FedMomError(
                f"{part!r} in {spec!r} is not an option. Write name:key=value,key=value."
            )
        if key.strip() in given:
            raise FedMomError(f"{key.strip()}= is given twice in {spec!r}. Leave one of them out.")
        given[key.strip()] = value.strip()
    return name.strip(), given


def joined(specs: str) -> list[str]:
    """Return the specs of a text that joins several by +.

    Examples:
        >>> joined("clip:norm=1e+3+mean")
        ['clip:norm=1e+3', 'mean']
    """
    return re.split(r"\+(?=[A-Za-z_@])", specs)


def options_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the keyword-only parameters of a function: its options."""
    return {n: p for n, p in parameters_of(function).items() if p.kind is p.KEYWORD_ONLY}


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function; none of one that does not tell (some of Python's)."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def options(function: Callable[..., Any], spec: str) -> dict[str, Any]:
    """Return the options that a spec gives to a function, in the function's own types."""
    name, given = split(spec)
    known = options_of(function)
    hints = _types(function, known)
    values: dict[str, Any] = {}
    for key, text in given.items():
        if key not in known:
            allowed = ", ".join(known) or "none"
            raise FedMomError(f"{name} has no option {key!r}. Its options: {allowed}.")
        values[key] = _value(f"{name}: {key}", text, hints[key])
        check_number(f"{name}: {key}={text}", values[key], hints[key])
    missing = [k for k, p in known.items() if p.default is p.empty and k not in values]
    if missing:
        example = ",".join(f"{key}=..." for key in missing)
        raise FedMomError(f"{name} needs {', '.join(missing)}. Write {name}:{example}.")
    return values


def _value(what: str, text: str, hint: Any) -> Any:
    """Return the value that a text stands for."""
    from pydantic import TypeAdapter, ValidationError  # slow to load: not for specs without options

    try:
        return TypeAdapter(hint).validate_python(text)
    except ValidationError:
        raise FedMomError(f"{what}={text!r} is not of type {_kind(hint)}.") from None


def _types(function: Callable[..., Any], known: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """Return the types of a function's options: as annotated, else those of their defaults."""
    made_by = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    try:
        hints = get_type_hints(made_by, include_extras=True)
    except (NameError, TypeError):  # of a name that only type checkers import; of a partial
        hints = {}
    return {
        key: hints.get(key, str if p.default in (None, p.empty) else type(p.default))
        for key, p in known.items()
    }


def _kind(hint: Any) -> str:
    """Return a type as it is called in a message."""
    plain = hint.__origin__ if hasattr(hint, "__metadata__") else hint
    return plain.__name__ if isinstance(plain, type) else str(plain).replace("typing.", "")
