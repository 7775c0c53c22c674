"""Plain text for character models: a text per client, or texts to be dealt."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.core.files import user_path
from fedmom.core.validation import Seed, check_memory
from fedmom.data.federated import Features, FederatedData, Split, aligned
from fedmom.data.partition import client_names, dealt
from fedmom.data.rows.assembly import Division, Owners, owners
from fedmom.data.rows.values import Rows, as_array, numbers_or_texts
from fedmom.data.source_files import check_splits, file_identity, read_text
from fedmom.data.store.writer import cached, save_store

WINDOW = 80
BETWEEN = "\n"  # the texts of one client
CODES = 0x110000  # Unicode has no more characters
READER = 1  # counts changes in what is made of a folder, so that no cache hands out the former


def from_texts(
    texts: str | Path | Mapping[str, str] | Sequence[str],
    client_ids: Rows | None = None,
    *,
    window: int = WINDOW,
    test_fraction: float | None = None,
    partition: str | None = None,
    seed: int = 0,
    name: str | None = None,
) -> FederatedData:
    """Build a population for character models: after ``window`` characters, which comes next?

    Args:
        texts: A folder of UTF-8 files, ``client.txt`` or ``client/any.txt``; a mapping of
            clients to their texts; or a list of texts.
        client_ids: The client of every text of a list. Texts of one client are joined by a new
            line, in their order.
        window: How many characters a model sees.
        test_fraction: The share at the end of every client's text that is for testing. The
            ``window - 1`` samples before it are left out, so that no test window shares a
            character with a training window (LEAF's rule). A text too short for that is all
            for training.
        partition: Instead of ``client_ids``, for a list or files ``any.txt``: how whole texts are
            dealt to clients, ``iid:clients=10`` or ``quantity``.
        seed: The seed of ``partition``.
        name: What the data is called. By default the folder's name, or "texts".

    Returns:
        The population. ``class_names`` are the characters of all texts, sorted.

    Examples:
        >>> data = from_texts({"ann": "so it goes " * 9, "bob": "and so on " * 9}, window=20)
        >>> list(data.users), data.train.size.tolist(), "".join(data.class_names)
        (['ann', 'bob'], [79, 70], ' adeginost')
    """
    if window < 1:
        raise FedMomError(f"texts: window={window} must be at least 1.")
    ids = None if client_ids is None else as_array("texts: client ids", client_ids)
    if isinstance(texts, str | Path):
        top = user_path(str(texts), "folder")
        name = name or top.resolve().name
        texts, ids = _read_folder(top, partition is None)
    name = name or "texts"
    if isinstance(texts, Mapping):
        if ids is not None:
            raise FedMomError(f"{name}: a mapping has clients already. Leave client_ids out.")
        texts, ids = list(texts.values()), np.array(list(texts), object)
    Division(test_fraction, partition, seed).check(name, ids=ids is not None)
    joined = _joined(name, list(texts), ids, partition, seed)
    return _windows(name, joined, window, test_fraction)


def is_texts(path: Path) -> bool:
    """Return whether a path is a folder of .txt files, or of folders of them."""
    return path.is_dir() and bool(_files(path))


def load_texts(
    path: Path,
    *,
    window: int = WINDOW,
    test_fraction: float | None = None,
    seed: Seed = 0,
    partition: str | None = None,
) -> FederatedData:
    """Open a folder of texts; the first time it is packed, later only mapped."""
    options = {name: value for name, value in locals().items() if name != "path"}
    return cached(
        path.name,
        ["texts", READER, file_identity(_files(path)), [*options.values()]],
        lambda folder: save_store(from_texts(path, **options), folder, {"folder": str(path)}),
    )


def _files(top: Path) -> list[Path]:
    return sorted(
        file
        for pattern in ("*.txt", "*/*.txt")
        for file in top.glob(pattern)
        if file.is_file() and not file.name.startswith(".")
    )


def _read_folder(top: Path, as_clients: bool) -> tuple[list[str], NDArray[np.generic] | None]:
    """Return the texts of a folder, and the clients that its files or folders stand for."""
    files = _files(top) if top.is_dir() else []
    if not files:
        raise FedMomError(f"{top} is not a folder with .txt files, or with folders of them.")
    in_folders = {file.parent != top for file in files}
    if len(in_folders) > 1:
        raise FedMomError(
            f"{top} has .txt files both of its own and in folders. Give client.txt for every"
            " client, or client/any.txt."
        )
    check_splits(top, {f.parent.name if f.parent != top else f.stem for f in files})
    size = sum(file.stat().st_size for file in files)
    check_memory(str(top), 8 * size, "Use fewer files.")
    texts = [read_text(file).replace("\r\n", "\n") for file in files]
    if in_folders == {True}:
        return texts, numbers_or_texts([file.parent.name for file in files])
    return texts, numbers_or_texts([file.stem for file in files]) if as_clients else None


def _joined(
    name: str, texts: list[str], ids: NDArray[np.generic] | None, partition: str | None, seed: int
) -> dict[str, str]:
    """Return one text for every client."""
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise FedMomError(f"{name}: text {row} is a {type(text).__name__}, not a text.")
    if not texts:
        raise FedMomError(f"{name} has no texts.")
    if ids is None:
        assert partition is not None
        rows = dealt(partition, None, np.zeros(len(texts), bool), seed)
        clients = Owners(client_names(rows), rows)
    else:
        clients = owners(name, ids)
    if len(clients.rows) != len(texts):
        raise FedMomError(
            f"{name}: there are {len(texts)} texts and {len(clients.rows)} client ids. Give one"
            " for each text."
        )
    own: list[list[str]] = [[] for _ in clients.users]
    for text, k in zip(texts, clients.rows, strict=True):
        own[k].append(text)
    return dict(zip(clients.users, map(BETWEEN.join, own), strict=True))


def _windows(
    name: str, texts: dict[str, str], window: int, test_fraction: float | None
) -> FederatedData:
    """Lay the texts end to end, and split each."""
    for user, text in texts.items():
        if len(text) <= window:
            raise FedMomError(
                f"{name}: the text of client {user!r} has {len(text)} characters, and a sample has"
                f" window={window} and the one after. Use a smaller window, or leave it out."
            )
    codes = [_codes(name, user, text) for user, text in texts.items()]
    symbols = np.unique(np.concatenate([np.unique(own) for own in codes]))
    number = np.zeros(CODES, np.min_scalar_type(len(symbols) - 1))
    number[symbols] = np.arange(len(symbols))
    lengths = np.array([len(own) for own in codes], np.int64)
    begin = np.cumsum(lengths) - lengths
    samples = lengths - window
    test = np.zeros_like(samples)
    if test_fraction is not None:
        last = np.maximum(1, ((1 - test_fraction) * samples).astype(np.int64))
        test = np.maximum(0, samples - last - (window - 1))
    train = np.where(test > 0, samples - test - (window - 1), samples)
    features = Features("text", (window,), len(symbols))
    arrays = {"text": aligned(np.concatenate([number[own] for own in codes]))}
    parts = Split(begin, train), Split(begin + samples - test, test)
    characters = tuple(map(chr, symbols))
    return FederatedData(name, list(texts), features, arrays, *parts, class_names=characters)


def _codes(name: str, user: str, text: str) -> NDArray[np.uint32]:
    try:
        return np.frombuffer(text.encode("utf-32-le"), np.uint32)
    except UnicodeEncodeError as error:
        raise FedMomError(
            f"{name}: character {error.start} of the text of client {user!r} is half a character"
            " (a lone surrogate). Mend the text."
        ) from None
