"""What is given to a trained model -> inputs as it was trained on them, or a refusal.

``inputs_for`` takes arrays, lists, tables and texts; ``conformed`` takes a whole dataset.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmom.core.arguments import short
from fedmom.core.errors import FedMomError
from fedmom.core.types import Say
from fedmom.data.federated import Columns, FederatedData, Tokens
from fedmom.data.rows.assembly import inputs
from fedmom.data.rows.categories import in_order
from fedmom.data.rows.padding import padded
from fedmom.data.rows.values import IGNORED, as_array, as_plain
from fedmom.data.schema import Schema, matched_columns, tokenizer_of

AT_ONCE = 2**22  # characters


def inputs_for(schema: Schema, x: Any, say: Say, tokenizer: Any = None) -> NDArray[Any]:
    """Return inputs as a model takes them: floats, or whole numbers where it was given such.

    Args:
        schema: What the model was trained on.
        x: Inputs, one per row: an array or a list; a DataFrame where the model was trained on a
            table; texts where it was trained on text.
        say: Told what could not be checked.
        tokenizer: That of the training data, for texts.
    """
    if hasattr(x, "to_pandas"):  # a table or series of Arrow, polars, xarray
        x = x.to_pandas()
    if hasattr(x, "columns") and hasattr(x, "iloc"):
        return _of_frame(schema, x, say)
    _refuse_named_values(x)
    texts = _texts(x) if schema.kind == "text" or schema.tokens is not None else None
    if texts and schema.tokens is not None:
        return _tokens_of(schema, texts, tokenizer)
    if texts:
        return np.stack([_window(schema, text, f"text {row}") for row, text in enumerate(texts)])
    if schema.tokens is not None and getattr(x, "shape", ())[1:] != schema.shape:
        x = padded("x", x, schema.tokens.padding, *schema.shape).values
    array = as_array("x", x)
    _check_rows(schema, x, array.shape)
    return schema.scaled(inputs("predict", as_plain("predict", array)), "x")


def _tokens_of(schema: Schema, texts: Sequence[str], tokenizer: Any) -> NDArray[np.int32]:
    """Return the tokens of texts, as many as the model takes."""
    from fedmom.data.rows.tokenized import encoder, first_tokens

    assert schema.tokens is not None
    if tokenizer is None:
        raise FedMomError(
            f"x holds texts, and the model was trained with {tokenizer_of(schema.tokens)}. Give it,"
            " too: predict(x, tokenizer=...); or give the numbers of tokens."
        )
    how, (length,) = encoder(tokenizer), schema.shape
    check_tokens(how.tokens, schema, "tokenizer")
    cut = schema.task != "sequence"  # as in training
    return first_tokens(how, texts, length, "x", cut=cut).astype(np.int32)


def _refuse_named_values(x: Any) -> None:
    """Refuse values that have names where these would be ignored."""
    rows = x if isinstance(x, list | tuple) else ()
    for row, each in enumerate(rows):
        if isinstance(each, Mapping) or hasattr(each, "_fields") or hasattr(each, "iloc"):
            raise FedMomError(
                f"x: the values of row {row} have names. Give a DataFrame, in which columns are"
                " matched by name: pandas.DataFrame(x)."
            )
    if hasattr(x, "coords") or hasattr(x, "column_names"):
        raise FedMomError(
            f"x is a {type(x).__name__}, whose names would be ignored. Give a DataFrame."
        )


def _check_rows(schema: Schema, x: Any, shape: tuple[int, ...]) -> None:
    wanted = [schema.shape, ()] if schema.shape == (1,) else [schema.shape]
    if not shape or shape[1:] not in wanted:
        form = ", ".join(map(str, schema.shape))
        texts_too = ", or a list of texts" if schema.kind == "text" else ""
        found = f"has the shape {shape}" if shape else f"is {short(x)}"
        raise FedMomError(f"x {found}. Give one input per row: (inputs, {form}){texts_too}.")


def encoded(schema: Schema, text: str, what: str) -> NDArray[np.int32]:
    """Return the numbers of a text's characters in the model's alphabet.

    Args:
        schema: What the model was trained on.
        text: The text.
        what: What it is called in messages.
    """
    symbols = schema.class_names
    if symbols is None:
        raise FedMomError(
            "The data that the model was trained on does not name its characters. Give their"
            " numbers."
        )
    places = _places(symbols)
    for place, character in enumerate(text):
        if character not in places:
            raise FedMomError(
                f"Character {place} of {what}, {character!r}, is none of the {len(symbols)}"
                f" characters that the model was trained on: {short(''.join(symbols))}."
            )
    return np.array([places[character] for character in text], np.int32)


@lru_cache(maxsize=8)
def _places(symbols: tuple[str, ...]) -> dict[str, int]:
    return {symbol: place for place, symbol in enumerate(symbols)}


def conformed(data: FederatedData, schema: Schema) -> FederatedData:
    """Return data in the form of what a model was trained on.

    Columns are put in order by their names, characters are numbered by the model's alphabet, and
    whole numbers and floats are made alike. Labels stay as they are, except the next character of
    a text.

    Args:
        data: The data.
        schema: What the model was trained on.
    """
    given, name = Schema.of(data), data.name
    if schema.kind == given.kind == "text":
        _check_shape(given, schema, name)
        return _translated(data, given.class_names, schema)
    if given.kind != schema.kind:
        _check_shape(given, schema, name)
    data = _lengthened(data, schema)
    given, x = Schema.of(data), data.arrays["x"]
    wanted, named = schema.columns, given.columns
    if wanted is not None and named is not None:
        here = [column.name for column in named.inputs]
        order = matched_columns(wanted, here, named.kinds(), name)
        if order != list(range(len(here))) or named.inputs != wanted.inputs:
            x = in_order(name, x, named, wanted, order)
            given = given.model_copy(update={"shape": x.shape[1:]})
    _check_shape(given, schema, name)
    if (given.dtype, given.divided_by) != (schema.dtype, schema.divided_by):
        in_table = None not in (wanted, named)
        x = schema.stored(x, f"{name}, rows by client", in_table=in_table)
    if x is not data.arrays["x"]:
        features = data.features._replace(shape=schema.shape)
        data = replace(data, features=features, arrays={**data.arrays, "x": x})
    return _labels_in_order(data, schema)


def check_tokens(tokens: Tokens | None, schema: Schema, name: str) -> None:
    """Refuse sequences that were not made as those that a model was trained on."""
    if tokens == schema.tokens:
        return
    own, wanted = (
        "no padding" if made is None else f"padding {made.padding} and {tokenizer_of(made)}"
        for made in (tokens, schema.tokens)
    )
    raise FedMomError(
        f"{name} has {own}, but the model was trained with {wanted}. Make the data as in training."
    )


def _lengthened(data: FederatedData, schema: Schema) -> FederatedData:
    """Return data whose sequences are filled up to the length of a model's."""
    check_tokens(data.tokens, schema, data.name)
    if schema.tokens is None or data.features.shape >= schema.shape:
        return data
    more = [(0, 0), (0, schema.shape[0] - data.features.shape[0])]
    x = np.pad(data.arrays["x"], more, constant_values=schema.tokens.padding)
    y = data.arrays["y"]
    if data.features.task == "sequence":
        y = np.pad(y, more, constant_values=IGNORED)
    features = data.features._replace(shape=schema.shape)
    return replace(data, features=features, arrays={**data.arrays, "x": x, "y": y})


def relabelled(data: FederatedData, schema: Schema) -> FederatedData:
    """Return data whose labels have the numbers that a model has for them, to be trained on.

    Args:
        data: The data, as ``conformed`` returns it.
        schema: What the model is trained on.
    """
    given = Schema.of(data)
    if given.task != schema.task:
        raise FedMomError(f"{data.name} is for {given.task}, and the model for {schema.task}.")
    if schema.task in ("multilabel", "regression"):
        labels, wanted = (s.columns.label if s.columns else () for s in (given, schema))
        if given.classes != schema.classes or (len(wanted) > 1 and labels != wanted):
            raise FedMomError(
                f"{data.name} has other labels than the {schema.classes} that the model has."
            )
        return data
    if (given.classes, given.class_names) == (schema.classes, schema.class_names):
        return data
    changed = replace(data, features=schema.features, class_names=schema.class_names)
    if schema.kind == "text":  # its labels are characters
        return changed
    y = data.arrays["y"]
    counted = y != IGNORED
    found, places = np.unique(y[counted], return_inverse=True)
    names = found.tolist() if given.class_names is None else [given.class_names[n] for n in found]
    numbers = [schema.number(str(name)) for name in names]
    if -1 in numbers:
        raise FedMomError(
            f"{data.name} has the class {names[numbers.index(-1)]!r}, which the model does not"
            " have. Leave such rows out, or start another run."
        )
    y = np.full(y.shape, IGNORED, np.int32)
    y[counted] = np.array(numbers, np.int32)[places]
    return replace(changed, arrays={**data.arrays, "y": y})


def _labels_in_order(data: FederatedData, schema: Schema) -> FederatedData:
    """Put several labels in the order that the model has them, if they are the same."""
    if schema.columns is None or data.columns is None:
        return data
    wanted, here = schema.columns.label, data.columns.label
    if here == wanted or sorted(here) != sorted(wanted) or data.features.task != schema.task:
        columns = data.columns._replace(inputs=schema.columns.inputs)
        return data if columns == data.columns else replace(data, columns=columns)
    y = data.arrays["y"][:, [here.index(name) for name in wanted]]
    names = None if data.class_names is None else wanted
    return replace(data, arrays={**data.arrays, "y": y}, class_names=names, columns=schema.columns)


def _of_frame(schema: Schema, frame: Any, say: Say) -> NDArray[Any]:
    """Return the rows of a DataFrame; columns of labels and clients may be in it."""
    from fedmom.data.rows.columns import table_inputs
    from fedmom.data.sources.table import table_of

    table = table_of(frame, "x")
    if not table.rows:
        raise FedMomError("x has no rows.")
    if twice := [name for name, count in Counter(table.columns).items() if count > 1]:
        raise FedMomError(f"x has two columns called {twice[0]!r}. Rename one.")
    if schema.columns is None:
        say("The model was trained on data whose columns have no names: they are taken in order.")
        names = list(table.columns)
    else:
        places = matched_columns(schema.columns, table.columns, {}, "x")
        names = [table.columns[place] for place in places]
    trained = () if schema.columns is None else schema.columns.inputs
    x, columns = table_inputs(table, names, {c.name: c.categories for c in trained if c.categories})
    if schema.columns is not None:
        matched_columns(schema.columns, names, Columns(columns, ()).kinds(), "x")
    _check_rows(schema, x, x.shape)
    return schema.scaled(x, "x", in_table=schema.columns is not None)


def _texts(x: Any) -> Sequence[str] | None:
    """Return texts, where these are some; None for numbers of characters."""
    if not isinstance(x, list | tuple):
        array = as_array("x", x)
        if array.ndim != 1 or array.dtype.kind not in "UTO":
            return None
        x = array.tolist()
    if not any(isinstance(text, str) for text in x):
        return None
    for row, text in enumerate(x):
        if not isinstance(text, str):
            raise FedMomError(f"x: row {row} is {short(text)}. All rows must be texts.")
    return x


def _window(schema: Schema, text: str, what: str) -> NDArray[np.int32]:
    """Return the last characters of a text as numbers; a short one is filled up in front."""
    (length,) = schema.shape
    codes = encoded(schema, text[-length:], f"the last {length} of {what}")
    return np.pad(codes, (length - len(codes), 0))


def _check_shape(given: Schema, schema: Schema, name: str) -> None:
    if (given.kind, given.shape) != (schema.kind, schema.shape):
        raise FedMomError(
            f"{name} has {given.kind} inputs of shape {given.shape}, but the model was trained on"
            f" {schema.kind} inputs of shape {schema.shape}."
        )


def _translated(data: FederatedData, given: Sequence[str] | None, schema: Schema) -> FederatedData:
    """Return a text whose characters have the numbers that the model has for them."""
    if given == schema.class_names and data.features.classes <= schema.classes:
        return data
    if given is None or schema.class_names is None:
        raise FedMomError(
            f"{data.name}: the characters cannot be compared with those that the model was trained"
            " on, as one of the two has no names for them. Give the texts themselves (fedmom.from_"
            "texts)."
        )
    known = {symbol: place for place, symbol in enumerate(schema.class_names)}
    numbers = np.array([known.get(symbol, -1) for symbol in given], np.int32)
    text = data.arrays["text"]
    found = np.empty(len(text), np.min_scalar_type(schema.classes - 1))
    for first in range(0, len(text), AT_ONCE):
        part = numbers[text[first : first + AT_ONCE]]
        if (part < 0).any():
            _refuse_character(data, given, schema, first + int(np.argmax(part < 0)))
        found[first : first + AT_ONCE] = part
    return replace(
        data,
        features=schema.features,
        arrays={**data.arrays, "text": found},
        class_names=schema.class_names,
    )


def _refuse_character(
    data: FederatedData, given: Sequence[str], schema: Schema, place: int
) -> None:
    symbol, where = given[data.arrays["text"][place]], f"place {place}"
    if "at" not in data.arrays:  # the texts of clients lie side by side
        client = int(np.argmax(np.where(data.train.start <= place, data.train.start, -1)))
        begin = int(data.train.start[client])
        where = f"place {place - begin} of the text of client {data.users[client]!r}"
    raise FedMomError(
        f"{data.name}: the character {symbol!r} at {where} is none of the {schema.classes}"
        f" characters that the model was trained on: {short(''.join(schema.class_names or ()))}."
    )
