"""A torch ``Dataset``, or anything else that has a length and gives (input, label) by number."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmom.core.errors import FedMomError
from fedmom.core.progress import track
from fedmom.core.validation import check_memory
from fedmom.data.federated import FederatedData, Task
from fedmom.data.rows.assembly import Division
from fedmom.data.rows.values import COUNTED
from fedmom.data.sources.arrays import from_arrays


class Pairs(Protocol):
    """What is asked of a dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def from_torch(
    dataset: Pairs,
    client_ids: ArrayLike | None = None,
    *,
    is_test: ArrayLike | None = None,
    test_fraction: float | None = None,
    partition: str | None = None,
    seed: int = 0,
    task: Task | None = None,
    name: str | None = None,
) -> FederatedData:
    """Build a population from a torch ``Dataset`` and the client of every item.

    Every item is read once, with its transforms, into memory. Tensors of three dimensions have
    their channels first in torch, and last here; a single channel is left out. Arrays and
    images are taken as they are.

    Args:
        dataset: Gives (input, label) by number. Train and test sets in one:
            ``torch.utils.data.ConcatDataset([train, test])``, with ``is_test``.
        client_ids: The client of every item. Leave it out to make clients by ``partition``.
        is_test: As for ``from_arrays``, and so are the others.
        test_fraction: The share of every client's items that is drawn for testing.
        partition: Instead of ``client_ids``: how items are dealt to clients.
        seed: The seed of ``test_fraction`` and ``partition``.
        task: What the labels are, where it does not show.
        name: What the data is called. By default the dataset's class.

    Returns:
        The population.

    Examples:
        >>> pairs = [(np.ones(4), "yes"), (np.zeros(4), "no"), (np.ones(4), "yes")]
        >>> data = from_torch(pairs, ["ann", "bob", "ann"])
        >>> data.train.size.tolist(), data.class_names
        ([2, 1], ('no', 'yes'))
    """
    name = name or type(dataset).__name__
    division = Division(test_fraction, partition, seed)
    division.check(name, ids=client_ids is not None, marked=is_test is not None)
    try:
        count = len(dataset)
    except TypeError:
        raise FedMomError(
            f"{name} has no length, so its items cannot be read by number. Give a dataset with"
            " __len__ and __getitem__, not an iterable one."
        ) from None
    if not count:
        raise FedMomError(f"{name} has no items.")
    x: NDArray[Any] | None = None
    y: list[Any] = []
    for row in track(range(count), f"reading {name}", total=count):
        value, label = _item(name, dataset[row], row)
        if x is None:
            check_memory(name, count * value.nbytes, "Use fewer items or smaller inputs.")
            x = np.empty((count, *value.shape), value.dtype)
        if value.shape != x.shape[1:] or value.dtype != x.dtype:
            raise FedMomError(
                f"{name}: the input of item {row} is {value.dtype} of shape {value.shape}, and that"
                f" of item 0 is {x.dtype} of shape {x.shape[1:]} {COUNTED}. All must be alike."
            )
        x[row] = value
        y.append(label)
    assert x is not None
    return from_arrays(
        x,
        y,
        client_ids,
        is_test=is_test,
        **division._asdict(),
        task=task,
        name=name,
    )


def _item(name: str, item: Any, row: int) -> tuple[NDArray[Any], Any]:
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise FedMomError(
            f"{name}: item {row} is a {type(item).__name__}, not a pair (input, label)."
        )
    value, label = (_array(part) for part in item)
    if _is_tensor(item[0]) and value.ndim == 3:
        value = value[0] if value.shape[0] == 1 else np.moveaxis(value, 0, -1)
    return value, label.item() if label.ndim == 0 else label


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "detach")


def _array(value: Any) -> NDArray[Any]:
    if _is_tensor(value):  # without importing torch, which takes seconds
        value = value.detach().cpu().numpy()
    return np.asarray(value)
