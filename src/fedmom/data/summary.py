"""A dataset in numbers: its row of the paper's Table 2, its faults, a checksum of its content."""

import hashlib
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from fedmom.core.arguments import checked
from fedmom.core.errors import FedMomError
from fedmom.data.federated import Features, FederatedData, Integers, capacity
from fedmom.data.leaf_sampling import sample_counts
from fedmom.data.rows.values import IGNORED
from fedmom.data.sources.shakespeare import SYMBOLS, WINDOW

AT_ONCE = 2**24  # bytes hashed at a time: mapped arrays may be larger than the memory

_digests: WeakKeyDictionary[FederatedData, str] = WeakKeyDictionary()


class Statistics(NamedTuple):
    """One row of the paper's Table 2. ``std`` is the population's (ddof 0)."""

    samples: int
    clients: int
    mean: float
    std: float


class PaperRow(NamedTuple):
    """A row of Table 2 as the paper prints it."""

    name: str
    statistics: Statistics


PAPER_TABLE_2 = {
    "image": PaperRow("FEMNIST (paper)", Statistics(785_733, 3_500, 224.50, 87.80)),
    "text": PaperRow("Shakespeare (paper)", Statistics(517_106, 125, 4136.85, 7226.20)),
}
OF_THE_PAPER = Features("image", (28, 28), 62), Features("text", (WINDOW,), len(SYMBOLS))


def counts(data: FederatedData) -> Integers:
    """Return every client's number of samples, those between LEAF's splits of a text included."""
    if data.test_users is not None:
        return np.concatenate([data.train.size, data.test.size])
    return sample_counts(data)


@checked
def statistics(data: FederatedData) -> Statistics:
    """Return the dataset's row of Table 2."""
    sizes = counts(data)
    return Statistics(int(sizes.sum()), len(sizes), float(sizes.mean()), float(sizes.std()))


def paper_row(data: FederatedData) -> PaperRow | None:
    """Return the paper's row of data that is of the kind of its FEMNIST or Shakespeare."""
    alike = data.features in OF_THE_PAPER and data.class_names is None
    return PAPER_TABLE_2[data.features.kind] if alike else None


def unseen_labels(data: FederatedData) -> list[str]:
    """Return the labels of test samples that no training sample has: they cannot be learned."""
    if data.features.kind == "text" or data.features.task not in ("classes", "sequence"):
        return []
    train, test = (np.unique(_labels(data, part.positions())) for part in (data.train, data.test))
    names = data.class_names
    return [
        str(number) if names is None else names[int(number)]
        for number in np.setdiff1d(test, train)
        if number != IGNORED
    ]


@checked
def label_mix(data: FederatedData, client: int) -> Integers:
    """Return how many training samples of each label a client has.

    A sample of multi-label data or of a sequence counts for all the labels that it has, but not
    for positions that do not count.
    """
    if data.features.task == "regression":
        raise FedMomError(f"{data.name} has values to predict, and no classes to count.")
    if not 0 <= client < data.clients:
        raise FedMomError(f"label_mix: client={client} is not between 0 and {data.clients - 1}.")
    start, size = int(data.train.start[client]), int(data.train.size[client])
    labels = _labels(data, slice(start, start + size))
    if data.features.task == "multilabel":
        return labels.sum(0, dtype=np.int64)
    return np.bincount(labels[labels != IGNORED].ravel(), minlength=data.features.classes)


def _labels(data: FederatedData, positions: Integers | slice) -> NDArray[Any]:
    """Return the labels of samples."""
    if "at" in data.arrays:
        positions = data.arrays["at"][positions]
    if data.features.kind == "text":  # the label of a window is the symbol after it
        return data.arrays["text"][data.features.shape[0] :][positions]
    return data.arrays["y"][positions]


def faults(data: FederatedData) -> list[str]:
    """Look for labels and positions out of range; return a sentence for each fault."""
    sentences = []
    labels = data.arrays["text" if data.features.kind == "text" else "y"]
    if data.features.task == "regression":
        if not np.isfinite(labels).all():
            sentences.append("a value to predict is not finite.")
    else:
        top = 1 if data.features.task == "multilabel" else data.features.classes - 1
        if labels.size and (wrong := int(labels.max())) > top:
            sentences.append(f"a label {wrong} is outside 0..{top}.")
    top = capacity(data.arrays, data.features.shape)
    for name in ("train", "test"):
        part = data.split(name)
        ends = (part.start + part.size)[part.size > 0]
        if ends.size and (part.start.min() < 0 or ends.max() > top):
            sentences.append(f"{name} samples lie outside the {top} that are there.")
    if "at" in data.arrays and data.arrays["at"].size:
        rows = {n: a for n, a in data.arrays.items() if n != "at"}
        at = data.arrays["at"]
        if int(at.min()) < 0 or int(at.max()) >= capacity(rows, data.features.shape):
            sentences.append("the table of positions leads outside the data.")
    return sentences


@checked
def facts(data: FederatedData) -> dict[str, Any]:
    """Return how many clients and samples a dataset has, and a checksum of its content.

    A packed store has its checksum in its manifest, so that nothing of it is read. What lies in
    memory is read whole, once.

    Args:
        data: The dataset.

    Returns:
        ``clients``, ``train_samples``, ``test_samples`` and ``sha256``, ready for JSON.

    Examples:
        >>> from fedmom.data import load
        >>> facts(load("synthetic:clients=3"))["clients"]
        3
    """
    return {
        "clients": data.clients,
        "train_samples": int(data.train.size.sum()),
        "test_samples": int(data.test.size.sum()),
        "sha256": data.checksum or _digest(data),
    }


def _digest(data: FederatedData) -> str:
    """Return the digest; runs that share their data take it once."""
    if data in _digests:
        return _digests[data]
    digest = hashlib.sha256()
    names = [list(data.users), list(data.test_users or ())]
    # As it was before there were other tasks, so that runs begun then find their data unchanged.
    features = data.features[:3] if data.features.task == "classes" else tuple(data.features)
    digest.update(repr((features, names)).encode(errors="surrogatepass"))
    if data.class_names is not None:
        digest.update(repr(list(data.class_names)).encode(errors="surrogatepass"))
    arrays = {**data.arrays, "train": np.stack(data.train), "test": np.stack(data.test)}
    for name, array in sorted(arrays.items()):
        whole = np.ascontiguousarray(array)
        digest.update(f"{name} {whole.dtype.str} {whole.shape}".encode())
        flat = whole.reshape(-1).view(np.uint8)
        for first in range(0, flat.size, AT_ONCE):
            digest.update(flat[first : first + AT_ONCE].data)
    return _digests.setdefault(data, digest.hexdigest())
