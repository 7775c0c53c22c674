"""Datasets in LEAF's JSON: a folder with ``train/`` and ``test/``, in any number of files.

They are packed one train file at a time, together with the test samples of its users, which
LEAF writes to a twin of that file; any other distribution over test files works too, and takes
longer. Windows of text are laid where they overlap, so that they cost the text they are from.
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.data.federated import Features, FederatedData, Integers
from fedmom.data.source_files import file_identity
from fedmom.data.sources.leaf_json import IMAGE_CLASSES, NOTHING, Samples, read_shard, refusal
from fedmom.data.sources.shakespeare import SYMBOLS, WINDOW
from fedmom.data.store.writer import Packer, cached

if TYPE_CHECKING:
    from rich.progress import Progress

LONGEST_TEXT = 2**31 - 1  # positions are 32-bit numbers
LEAST_OVERLAP = WINDOW // 2  # less is not worth a search

Shard = dict[str, Samples]


class Layout(NamedTuple):
    """What the first train file decides for all: the features, and the type of ``x``."""

    features: Features
    dtype: np.dtype[Any]


class Files:
    """The files of a LEAF folder; the last one read of either part is kept."""

    def __init__(self, path: Path, progress: "Progress") -> None:
        self.train, self.test = _files(path)
        self._progress = progress
        self.read_train, self.read_test = (
            functools.lru_cache(maxsize=1)(functools.partial(read_shard, part=part))
            for part in ("train", "test")
        )

    def each(self, part: str, what: str) -> Iterator[tuple[Path, Shard]]:
        """Read one file of a part after another, on a progress bar."""
        of_train = (self.train, self.read_train)
        files, read = of_train if part == "train" else (self.test, self.read_test)
        return ((file, read(file)) for file in self._progress.track(files, description=what))


def is_leaf(path: Path) -> bool:
    """Return whether a folder, or its folder ``data``, has JSON files in ``train`` and ``test``."""
    return bool(_files(path)[0])


def load_leaf(path: Path) -> FederatedData:
    """Open a LEAF folder of images, vectors or text; the first time, it is packed.

    784 numbers are an image of 28 x 28 with FEMNIST's 62 labels; any other count is a vector,
    with as many labels as the largest needs; text is 80 characters and the one after them.
    """
    train, test = _files(path)
    identity = ["leaf", file_identity(train), file_identity(test)]
    return cached(path.resolve().name, identity, functools.partial(pack_leaf, path))


def pack_leaf(path: Path, folder: Path) -> None:
    """Pack a LEAF folder into a store, with the memory of one train file and one test file."""
    if not is_leaf(path):
        raise FedMomError(
            f"{path} is not a LEAF dataset: it needs .json or .json.gz files in {path / 'train'}"
            f" and in {path / 'test'}."
        )
    from fedmom.core.progress import bars

    with bars() as progress:
        files = Files(path, progress)
        test_file = _index(files)
        layout = _layout(files)
        name, every = path.resolve().name, [*files.train, *files.test]
        source = {"format": "LEAF JSON", "files": file_identity(every)}
        with Packer(folder, name, layout.features, _columns(layout), source) as packer:
            _add_all(packer, layout, files, test_file)


def lay(windows: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], Integers]:
    """Write windows, one a row, as text in which they overlap; also return where each begins.

    Windows that follow one another are one run already. LEAF's sampling shuffles the windows
    of one role per file, and leaves some out: their short runs are joined where they overlap.
    """
    breaks = np.flatnonzero((windows[1:, :-1] != windows[:-1, 1:]).any(axis=1)) + 1
    first = np.concatenate([[0], breaks])
    count = np.diff([*first, len(windows)])
    runs = [
        windows[f].tobytes() + windows[f + 1 : f + n, -1].tobytes()
        for f, n in zip(first, count, strict=True)
    ]
    text, begin = _written(runs, _joins(runs))
    at = np.repeat(begin - first, count) + np.arange(len(windows))
    return np.frombuffer(text, np.uint8), at


def _joins(runs: list[bytes]) -> dict[int, tuple[int, int]]:
    """Return, for runs whose end is the beginning of another, that one and how much they share.

    The longest overlaps are joined first. A run has one follower, and no chain is a ring.
    """
    joins: dict[int, tuple[int, int]] = {}
    heads, tails = set(range(len(runs))), set(range(len(runs)))
    head_of, tail_of = list(range(len(runs))), list(range(len(runs)))  # true at a chain's ends
    for shared in range(WINDOW, LEAST_OVERLAP - 1, -1):
        beginning = {runs[head][:shared]: head for head in heads}
        for tail in list(tails):
            head = beginning.get(runs[tail][-shared:])
            if head is None or head_of[tail] == head:
                continue
            joins[tail] = (head, shared)
            del beginning[runs[tail][-shared:]]
            heads.discard(head)
            tails.discard(tail)
            head_of[tail_of[head]] = head_of[tail]
            tail_of[head_of[tail]] = tail_of[head]
    return joins


def _written(runs: list[bytes], joins: dict[int, tuple[int, int]]) -> tuple[bytes, Integers]:
    """Write the chains of runs one after another; return the text and where each run begins."""
    begin = np.zeros(len(runs), np.int64)
    pieces: list[bytes] = []
    end = 0
    followers = {head for head, _ in joins.values()}
    for head in (run for run in range(len(runs)) if run not in followers):
        run, shared = head, 0
        while run >= 0:
            begin[run] = end - shared
            pieces.append(runs[run][shared:])
            end += len(pieces[-1])
            run, shared = joins.get(run, (-1, 0))
    return b"".join(pieces), begin


def _files(path: Path) -> tuple[list[Path], list[Path]]:
    """Return the train and the test files of a LEAF folder, or nothing where it is none."""
    for root in (path, path / "data"):
        train, test = (
            sorted(f for f in (root / part).glob("*") if f.name.endswith((".json", ".json.gz")))
            for part in ("train", "test")
        )
        if train and test:
            return train, test
    return [], []


def _index(files: Files) -> dict[str, Path]:
    """Return the test file of every user in one."""
    test_file: dict[str, Path] = {}
    for file, clients in files.each("test", "Reading test users"):
        for user in clients:
            _note(test_file, user, file)
    return test_file


def _note(places: dict[str, Path], user: str, file: Path) -> None:
    """Note the file that a user is in; refuse a second one."""
    if (other := places.setdefault(user, file)) is not file:
        remedy = "Remove one of the two, or merge them."
        raise refusal(file, f"the user is also in {other}.", user=user, remedy=remedy)


def _layout(files: Files) -> Layout:
    first = list(files.read_train(files.train[0]).values())
    kind, shape = first[0].kind, first[0].x.shape[1:]
    assert kind is not None  # train clients without samples are refused when they are read
    if kind == "text":
        return Layout(Features(kind, (WINDOW,), len(SYMBOLS)), np.dtype(np.uint8))
    if kind == "image":
        exact = all(samples.x.dtype == np.uint8 for samples in first)
        dtype = np.dtype(np.uint8 if exact else np.float32)
        return Layout(Features(kind, shape, IMAGE_CLASSES), dtype)
    return Layout(Features(kind, shape, _largest_label(files) + 1), np.dtype(np.float32))


def _largest_label(files: Files) -> int:
    """Read all labels: nothing else says how many classes vectors have."""
    shards = (s for part in ("train", "test") for _, s in files.each(part, "Reading labels"))
    return max(int(samples.y.max(initial=0)) for shard in shards for samples in shard.values())


def _columns(layout: Layout) -> dict[str, tuple[str, tuple[int, ...]]]:
    if layout.features.kind == "text":
        return {"text": ("uint8", ()), "at": ("int32", ())}
    label = "uint8" if layout.features.kind == "image" else "uint16"
    return {"x": (layout.dtype.name, layout.features.shape), "y": (label, ())}


def _add_all(packer: Packer, layout: Layout, files: Files, test_file: dict[str, Path]) -> None:
    """Add the clients of every train file, each with its test samples."""
    train_file: dict[str, Path] = {}
    symbols = 0
    for file, clients in files.each("train", "Packing"):
        tests = _tests_of(clients, files, test_file)
        for user, samples in clients.items():
            _note(train_file, user, file)
            test = tests.get(user, NOTHING)
            arrays = _arrays(samples, test, layout, user, file, test_file.get(user, file))
            symbols += len(arrays.get("text", ()))
            if symbols > LONGEST_TEXT:
                what = f"the texts up to this one have over {LONGEST_TEXT} characters, the limit."
                raise refusal(file, what, user=user, remedy="Leave files out.")
            size = len(samples.y)
            packer.add(user, arrays, train=(0, size), test=(size, len(test.y)))
    _refuse_half_split(train_file, test_file)
    if train_file.keys().isdisjoint(test_file):
        _add_test_only(packer, layout, files)


def _add_test_only(packer: Packer, layout: Layout, files: Files) -> None:
    """Add the clients of the test files where LEAF has split by users (-t user)."""
    for file, clients in files.each("test", "Packing test users"):
        for user, samples in clients.items():
            if len(samples.y):
                arrays = _arrays(NOTHING, samples, layout, user, file, file)
                packer.add(user, arrays, train=None, test=(0, len(samples.y)))


def _tests_of(clients: Shard, files: Files, test_file: dict[str, Path]) -> Shard:
    """Return the test samples of these clients, reading each test file they are in once."""
    places = dict.fromkeys(test_file[user] for user in clients if user in test_file)
    return {
        user: samples
        for file in places
        for user, samples in files.read_test(file).items()
        if user in clients
    }


def _fitted(samples: Samples, layout: Layout, user: str, file: Path) -> Samples:
    """Return samples in the type of the whole dataset; refuse what is of another kind."""
    features, dtype = layout
    if samples.kind is None:
        return samples._replace(x=np.empty((0, *features.shape), dtype))
    if samples.kind != features.kind or samples.x.shape[1:] != features.shape:
        found, first = _named(samples.kind, samples.x.shape[1:]), _named(*features[:2])
        what = f"the samples are {found}; the first train file has {first}."
        raise refusal(file, what, user=user)
    if samples.x.dtype == dtype:
        return samples
    if dtype == np.uint8:
        what = "there are pixels that are not multiples of 1/255, as in the first train file."
        remedy = "Make all files with the same scale of greys."
        raise refusal(file, what, user=user, remedy=remedy)
    return samples._replace(x=(samples.x / 255).astype(dtype))


def _named(kind: str, shape: tuple[int, ...]) -> str:
    return f"{kind}s of {'x'.join(map(str, shape))}"


def _arrays(
    train: Samples, test: Samples, layout: Layout, user: str, train_file: Path, test_file: Path
) -> dict[str, NDArray[Any]]:
    """Return a client's arrays, its training samples first."""
    parts = _fitted(train, layout, user, train_file), _fitted(test, layout, user, test_file)
    x, y = np.concatenate([p.x for p in parts]), np.concatenate([p.y for p in parts])
    if layout.features.kind != "text":
        return {"x": x, "y": y}
    text, at = lay(np.column_stack([x, y]))
    return {"text": text, "at": at}


def _refuse_half_split(train_file: dict[str, Path], test_file: dict[str, Path]) -> None:
    """Refuse test users without training samples, unless all are: then users were split."""
    alone = [user for user in test_file if user not in train_file]
    if alone and len(alone) < len(test_file):
        what = f"this user is in test only ({len(alone)} such users)."
        remedy = "Add its train file, or leave the user out."
        raise refusal(test_file[alone[0]], what, user=alone[0], remedy=remedy)
