"""What a model was trained on, as far as its predictions depend on it, and what fits to that.

A schema is kept in the run's folder and next to an exported model. Inputs that come later are
brought into its form or refused: columns go by their names, characters by the model's alphabet,
and bytes are scaled as they were in training.
"""

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedmom.core.errors import FedMomError
from fedmom.core.files import parse_json
from fedmom.data.federated import Columns, Features, FederatedData, Task, Tokens
from fedmom.data.rows.values import is_whole, listed, refuse_row
from fedmom.data.sources.shakespeare import SYMBOLS

BYTES: Literal[255] = 255  # what bytes are divided by
Size = Annotated[int, Field(ge=1, le=2**31 - 1, strict=True)]


class Schema(BaseModel):
    """What inputs and labels are.

    Args:
        kind: As in ``Features``, and so are ``shape``, ``task`` and ``classes``.
        dtype: What a model is given: whole numbers or floats.
        divided_by: 255 where inputs were bytes, which a model is given as floats in [0, 1].
        class_names: What classes, labels or symbols are called; None where they are numbers.
        columns: The columns of the table; None where they have no names.
        tokens: How sequences of different lengths became inputs; None where they had one length.
    """

    model_config = ConfigDict(frozen=True)

    kind: Literal["vector", "image", "text"]
    shape: tuple[Size, ...]
    dtype: Literal["int32", "float32"]
    divided_by: Literal[1, 255] = 1
    task: Task = "classes"
    classes: Size
    class_names: tuple[str, ...] | None = None
    columns: Columns | None = None
    tokens: Tokens | None = None

    @classmethod
    def of(cls, data: FederatedData) -> "Schema":
        """Return the schema of data."""
        kind, shape, classes, task = data.features
        names = data.class_names
        if kind == "text":
            given: np.dtype[Any] = np.dtype(np.int32)
            names = SYMBOLS if names is None and classes == len(SYMBOLS) else names
        else:
            given = data.arrays["x"].dtype if "x" in data.arrays else np.dtype(np.float32)
        return cls(
            kind=kind,
            shape=shape,
            dtype="int32" if given.kind in "iu" and given != np.uint8 else "float32",
            divided_by=BYTES if given == np.uint8 else 1,
            task=task,
            classes=classes,
            class_names=None if names is None else tuple(names),
            columns=data.columns,
            tokens=data.tokens,
        )

    def to_json(self) -> bytes:
        """Return the file's content."""
        found = self.model_dump(mode="json", exclude={"columns", "tokens"})
        columns = self.columns and self.columns.plain()
        tokens = self.tokens and self.tokens._asdict()
        return json.dumps({**found, "columns": columns, "tokens": tokens}, indent=1).encode()

    @classmethod
    def from_json(cls, content: bytes, where: str) -> "Schema":
        """Return the schema in a file.

        Args:
            content: The file's content.
            where: The file, for messages.
        """
        try:
            found = cls.model_validate(parse_json(content))
            if found.columns is not None:
                check_columns(found.columns, found.shape)
            if found.class_names is not None and len(found.class_names) != found.classes:
                raise ValueError(f"it names {len(found.class_names)} of {found.classes} classes")
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise FedMomError(f"{where} is damaged: {place}: {first['msg']}.") from None
        except (ValueError, FedMomError) as error:
            raise FedMomError(f"{where} is damaged: {error}.") from None
        return found

    @property
    def features(self) -> Features:
        """What a model must accept."""
        return Features(self.kind, self.shape, self.classes, self.task)

    def no_inputs(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of data that has none of its inputs, of their type."""
        if self.kind == "text":
            return {}
        dtype = np.uint8 if self.divided_by == BYTES else np.dtype(self.dtype)
        return {"x": np.empty((0, *self.shape), dtype)}

    def facts(self) -> dict[str, Any]:
        """Return what a resumed run's data must have in common with the data before."""
        columns, tokens = self.columns, self.tokens
        return {
            "kind": self.kind,
            "shape": self.shape,
            "type": self.dtype,
            "task": self.task,
            "classes": self.class_names or self.classes,
            "columns": columns and ", ".join(column.name for column in columns.inputs),
            "types of the columns": columns and ", ".join(c.kind for c in columns.inputs),
            "categories of the columns": columns
            and "; ".join(
                f"{c.name}: {', '.join(c.categories)}" for c in columns.inputs if c.width > 1
            ),
            "label columns": columns and ", ".join(columns.label),
            "padding": tokens and tokens.padding,
            "tokenizer": tokens and tokenizer_of(tokens),
        }

    def has_class(self, name: str) -> bool:
        """Return whether a class is called so; those without names are called by their numbers."""
        if self.class_names is not None:
            return name in self.class_names
        return is_whole(name) and 0 <= int(name) < self.classes

    def number(self, name: str) -> int:
        """Return the number of a class, -1 for none; see ``has_class``."""
        if not self.has_class(name):
            return -1
        return int(name) if self.class_names is None else self.class_names.index(name)

    def scaled(self, x: NDArray[Any], what: str, *, in_table: bool = False) -> NDArray[Any]:
        """Return numbers as a model is given them.

        Args:
            x: Inputs, one per row: bytes, whole numbers of 32 bits, or floats.
            what: What they are called in messages.
            in_table: They stand in a table, where bytes are numbers like all others.
        """
        x = self.stored(x, what, in_table=in_table)
        return x.astype(np.float32) / BYTES if x.dtype == np.uint8 else x

    def stored(self, x: NDArray[Any], what: str, *, in_table: bool = False) -> NDArray[Any]:
        """Return numbers as the training data has them; the arguments are those of ``scaled``."""
        is_float = x.dtype.kind == "f"
        if self.divided_by == BYTES:
            if is_float and not in_table:
                allowed = "from 0 to 1, as the model was trained on bytes divided by 255"
                self._refuse(what, (x < 0) | (x > 1), x, allowed)
                return x
            if x.dtype == np.uint8:
                return x
            wrong = (x < 0) | (x > BYTES) | (x != np.rint(x))
            self._refuse(what, wrong, x, "a whole number from 0 to 255, as in training")
            return x.astype(np.uint8)
        if self.dtype == "int32":
            if is_float:
                wrong = (x != np.rint(x)) | (abs(x) >= 2**31)
                self._refuse(what, wrong, x, "a whole number, as all were in training")
            symbol, count = self._symbols()
            if symbol:
                wrong = (x < 0) | (x >= count)
                self._refuse(what, wrong, x, f"the number of a {symbol}, from 0 to {count - 1}")
            return x.astype(np.int32)
        if x.dtype == np.uint8 and not in_table:
            raise FedMomError(
                f"{what}: the inputs are bytes (uint8), and the model was trained on floats. Give"
                " floats in the range that the training data has, such as x / 255."
            )
        return x.astype(np.float32)

    def _symbols(self) -> tuple[str, int]:
        """Return what inputs are numbers of, and how many there are; "" of none."""
        if self.kind == "text":
            return "character", self.classes
        vocabulary = self.tokens and self.tokens.vocabulary
        return ("token", vocabulary) if vocabulary else ("", 0)

    def _refuse(self, what: str, wrong: NDArray[np.bool_], x: NDArray[Any], allowed: str) -> None:
        if not wrong.any():
            return
        columns = self.columns.inputs if self.columns else ()
        names = [column.name for column in columns for _ in range(column.width)]
        for place, name in enumerate(names if len(names) > 1 else ()):
            values = f"{what}, column {name!r}: the value"
            refuse_row(values, wrong[:, place], x[:, place], allowed)
        refuse_row(f"{what}: the value", wrong, x, allowed)


def tokenizer_of(tokens: Tokens) -> str:
    """Return what is said of a tokenizer in messages."""
    if tokens.fingerprint is None:
        return "no tokenizer"
    return f"{tokens.tokenizer} of {tokens.vocabulary:,} tokens ({tokens.fingerprint[:12]})"


def common(schemas: Mapping[str, Schema]) -> Schema:
    """Return what a model must accept to serve several owners of data.

    Classes and characters are those that any of them has.

    Args:
        schemas: The schema of every owner's data, by name.
    """
    (first, schema), *others = schemas.items()
    for name, other in others:
        both = f"The data of {first} and of {name}"
        if schema.columns is not None and other.columns is not None:
            here = [column.name for column in other.columns.inputs]
            kinds = other.columns.kinds()
            matched_columns(schema.columns, here, kinds, f"The data of {name}")
        forms = [_form(s) for s in (schema, other)]
        if forms[0] != forms[1]:
            what = " and ".join(str(form) for form in forms)
            raise FedMomError(f"{both} do not look alike: {what}. Prepare them in one way.")
    found = list(schemas.values())
    return schema.model_copy(update={**_common_type(found), **_common_classes(found)})


def _form(schema: Schema) -> tuple[Any, ...]:
    """Return what must be the same everywhere, apart from the order of columns."""
    counts = ("classes", "sequence")
    labels = sorted(schema.columns.label) if schema.columns else []
    inputs = schema.columns.inputs if schema.columns else ()
    names = sorted(schema.class_names or ())
    return (
        *(schema.kind, schema.shape, schema.task),
        *([] if schema.task in counts else [schema.classes, *labels, *names]),
        "names of columns" if schema.columns else "no names of columns",
        *sorted(f"{c.name}: {', '.join(c.categories)}" for c in inputs if c.categories),
        *([] if schema.tokens is None else schema.tokens),
    )


def _common_type(schemas: Sequence[Schema]) -> dict[str, Any]:
    """Return the type of inputs that all can be given in; see ``Schema.stored``."""
    in_bytes = [schema.divided_by == BYTES for schema in schemas]
    if all(in_bytes) or (any(in_bytes) and schemas[0].columns is None):
        return {"dtype": "float32", "divided_by": BYTES}
    plain = [schema.dtype for schema in schemas if schema.divided_by != BYTES]
    return {"dtype": "float32" if "float32" in plain else "int32", "divided_by": 1}


def _common_classes(schemas: Sequence[Schema]) -> dict[str, Any]:
    """Return the classes of all together, called as one reader of all data would call them."""
    lists = [schema.class_names for schema in schemas]
    if lists[0] is not None and (len(set(lists)) == 1 or schemas[0].task == "multilabel"):
        return {}
    most = max((schema.classes for schema in schemas if schema.class_names is None), default=0)
    names = {name for found in lists for name in found or ()}
    if not all(map(is_whole, names)):
        if most:
            raise FedMomError(
                f"Some data has the classes 0 to {most - 1}, other data {listed(sorted(names))}."
                " Give all classes names, or all of them numbers."
            )
        return {"classes": len(names), "class_names": tuple(sorted(names))}
    others = sorted(number for number in map(int, names) if not 0 <= number < most)
    count = most + len(others)
    if others == list(range(most, count)):
        return {"classes": count, "class_names": None}
    numbers = sorted([*range(most), *others])
    return {"classes": count, "class_names": tuple(map(str, numbers))}


def check_columns(columns: Columns, shape: tuple[int, ...]) -> None:
    """Refuse columns that do not make inputs of a shape."""
    inputs = columns.inputs
    alone = len(inputs) == 1 and inputs[0].kind in ("list", "image")
    if not alone and shape != (sum(column.width for column in inputs),):
        raise FedMomError(f"{len(inputs)} columns do not make inputs of shape {shape}")


def matched_columns(
    wanted: Columns, here: Sequence[str], kinds: Mapping[str, str], what: str
) -> list[int]:
    """Return where the columns that a model was trained on are in a table.

    Columns called as those of labels or clients were may be there, too.

    Args:
        wanted: The columns in training.
        here: The columns of the table.
        kinds: What the columns hold, where that is known already.
        what: What the table is called.
    """
    names = [column.name for column in wanted.inputs]
    places = {name: place for place, name in enumerate(here)}
    known = {*names, *wanted.label, *wanted.others}
    missing = [name for name in names if name not in places]
    extra = [name for name in here if name not in known]
    if missing:
        lowered = {name.lower(): name for name in extra}
        close = difflib.get_close_matches(missing[0].lower(), lowered, n=1)
        hint = f" Did you mean {lowered[close[0]]!r}? Rename it." if close else ""
        raise FedMomError(
            f"{what} has no column {listed(missing)}, which the model was trained on.{hint}"
        )
    if extra:
        raise FedMomError(
            f"{what} has the column {listed(extra)}, which the model was not trained on. Leave it"
            f" out: the inputs are {listed(names)}."
        )
    for column in wanted.inputs:
        kind = kinds.get(column.name, column.kind)
        if kind != column.kind:
            raise FedMomError(
                f"{what}: column {column.name!r} holds {_HOLDS[kind]}, and in training it held"
                f" {_HOLDS[column.kind]}. Change its type."
            )
    return [places[name] for name in names]


_HOLDS = {
    "number": "numbers",
    "bool": "true or false",
    "list": "lists of numbers",
    "image": "images",
    "category": "categories",
}
