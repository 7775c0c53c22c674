"""A column of texts and a tokenizer -> tokens of one length, and the next tokens as labels.

Tokenizers of the libraries ``tokenizers`` and ``transformers`` are known by what they can do;
neither library is imported.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmom.core.arguments import short
from fedmom.core.errors import FedMomError
from fedmom.data.federated import FederatedData, Task, Tokens
from fedmom.data.rows.assembly import Division
from fedmom.data.rows.columns import Names, Table, from_table, text_values
from fedmom.data.rows.padding import padded
from fedmom.data.rows.values import COUNTED, IGNORED

if TYPE_CHECKING:
    import pyarrow as pa

AT_ONCE = 1024  # texts
PADDING = ("[PAD]", "<pad>")  # what tokenizers call it, unless they say it
NEXT = "next token"  # the column of labels, where there is no other
Ids = list[list[int]]


class Encoder(NamedTuple):
    """A tokenizer as a function.

    Args:
        tokens: What it is.
        encode: ``encode(texts, most) ->`` the tokens of every text, at most so many; None: all.
    """

    tokens: Tokens
    encode: Callable[[list[str], int | None], Ids]


def encoder(tokenizer: Any) -> Encoder:
    """Return what a tokenizer is, and a function that applies it without padding."""
    inner = getattr(tokenizer, "backend_tokenizer", tokenizer)  # of transformers
    if hasattr(inner, "encode_batch") and hasattr(inner, "to_str"):
        plain = type(inner).from_str(inner.to_str())  # the user's own is left as it is
        plain.no_padding()
        plain.no_truncation()
        content, vocabulary = plain.to_str(), plain.get_vocab()
        kind = type(plain.model).__name__

        def encode(texts: list[str], most: int | None) -> Ids:
            plain.no_truncation() if most is None else plain.enable_truncation(most)
            return [found.ids for found in plain.encode_batch(texts)]

    elif callable(tokenizer) and hasattr(tokenizer, "get_vocab"):
        vocabulary = tokenizer.get_vocab()
        content, kind = json.dumps(vocabulary, sort_keys=True), type(tokenizer).__name__

        def encode(texts: list[str], most: int | None) -> Ids:
            return [ids[:most] for ids in _called(tokenizer, texts)]

    else:
        raise FedMomError(
            f"tokenizer is {short(tokenizer)}. Give one of the libraries tokenizers or"
            " transformers, or a function of a list of texts that has get_vocab() and pad_token_id."
        )
    digest = hashlib.sha256(content.encode()).hexdigest()
    count = max(vocabulary.values(), default=-1) + 1
    return Encoder(Tokens(_padding(tokenizer, vocabulary), kind, count, digest), encode)


def _called(tokenizer: Any, texts: list[str]) -> Ids:
    """Return what a function makes of texts, without the padding that it marks."""
    found = tokenizer(texts)
    if not hasattr(found, "keys"):
        return [list(ids) for ids in found]
    masks = dict(found).get("attention_mask")
    rows = [list(ids) for ids in found["input_ids"]]
    if masks is None:
        return rows
    pairs = zip(rows, masks, strict=True)
    return [[t for t, real in zip(ids, mask, strict=True) if real] for ids, mask in pairs]


def _padding(tokenizer: Any, vocabulary: Mapping[str, int]) -> int:
    said = getattr(tokenizer, "padding", None)
    known = [
        getattr(tokenizer, "pad_token_id", None),
        said.get("pad_id") if isinstance(said, dict) else None,
        *map(vocabulary.get, PADDING),
    ]
    for found in known:
        if found is not None:
            return int(found)
    raise FedMomError(
        "The tokenizer has no token for padding. Say which it is: tokenizer.pad_token ="
        " tokenizer.eos_token (transformers), or tokenizer.enable_padding(pad_id=...)"
        " (tokenizers)."
    )


def encoded_texts(how: Encoder, texts: Sequence[str], most: int | None, what: str) -> Ids:
    """Return the tokens of texts, refusing one that has none.

    Args:
        how: The tokenizer.
        texts: The texts.
        most: How many tokens of a text to take; None: all.
        what: What the texts are called in messages.
    """
    found: Ids = []
    for first in range(0, len(texts), AT_ONCE):
        found += how.encode(list(texts[first : first + AT_ONCE]), most)
    for row, ids in enumerate(found):
        if not ids:
            raise FedMomError(
                f"{what}: the text of row {row} is {short(texts[row])} {COUNTED}, which has no"
                " tokens. Leave it out."
            )
    return found


def first_tokens(
    how: Encoder, texts: Sequence[str], length: int, what: str, *, cut: bool
) -> NDArray[np.int64]:
    """Return the first tokens of texts, in rows of a length.

    The arguments are those of ``encoded_texts``; ``cut`` says whether the tokenizer cuts long
    texts, so that tokens which end them stay, or the tokens beyond are left out.
    """
    ids = encoded_texts(how, texts, length if cut else None, what)
    return padded(what, [row[:length] for row in ids], how.tokens.padding, length).values


def from_text_column(
    table: Table,
    text: str,
    tokenizer: Any,
    length: int,
    label: Names | None,
    client: str | None,
    test: str | None,
    division: Division,
    task: Task | None,
    is_test: NDArray[np.bool_] | None,
    class_names: Sequence[str] | None,
) -> FederatedData:
    """Build a population of a table's texts.

    Args:
        table: The table.
        text: Its column of texts.
        tokenizer: What makes tokens of them.
        length: How many tokens an input has.
        label: The column of labels: then texts are cut to the length. None: texts are taken apart
            into inputs, and the label of every place is the next token.
        client: As for ``from_table``, and so are the others.
        test: The column of test marks.
        division: How rows are divided.
        task: What the labels are, where it does not show.
        is_test: The test marks themselves, instead of a column.
        class_names: The names of classes, where the table knows them.
    """
    marked = test is not None or is_test is not None
    division.check(table.name, ids=client is not None, marked=marked)
    how, what = encoder(tokenizer), f"{table.name}: column {text!r}"
    texts = text_values(table, text)
    made: dict[str, NDArray[np.int64]] = {}
    if label is None:
        made[text], made[NEXT], rows = _pieces(how, texts, length, what)
        label, task = NEXT, "sequence"
    else:
        made[text] = first_tokens(how, texts, length, what, cut=True)
        rows = np.arange(len(texts))

    def read(name: str) -> "pa.ChunkedArray":
        import pyarrow as pa

        if name not in made:
            return table.read(name).take(pa.array(rows))
        lists = pa.FixedSizeListArray.from_arrays(pa.array(made[name].reshape(-1)), length)
        return pa.chunked_array([lists])

    columns = [*table.columns, *(name for name in made if name != text)]
    marks = None if is_test is None else is_test[rows]
    given = client, text, test, division, task, marks
    data = from_table(Table(table.name, columns, len(rows), read), label, *given, None, class_names)
    if label == NEXT:
        assert how.tokens.vocabulary is not None
        data = replace(data, features=data.features._replace(classes=how.tokens.vocabulary))
    return replace(data, columns=None, tokens=how.tokens)


def _pieces(
    how: Encoder, texts: Sequence[str], length: int, what: str
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Take texts apart: every token is predicted once, from those before it in its piece."""
    pieces: Ids = []
    rows: list[int] = []
    for row, ids in enumerate(encoded_texts(how, texts, None, what)):
        if len(ids) < 2:
            raise FedMomError(
                f"{what}: the text of row {row} is {short(texts[row])} {COUNTED}, which has one"
                " token, and so none to predict. Leave it out."
            )
        firsts = range(0, len(ids) - 1, length)
        pieces += [ids[first : first + length + 1] for first in firsts]
        rows += [row] * len(firsts)
    x = padded(what, [piece[:-1] for piece in pieces], how.tokens.padding, length)
    y = padded(what, [piece[1:] for piece in pieces], IGNORED, length)
    return x.values, y.values, np.array(rows)
