"""Clients for data that has no users: the labels of all rows -> the client of every row.

Every row goes to exactly one client and every client has at least one row, so what comes out
is ready for ``from_arrays(x, y, client_ids)``. A partition is one function here and one row
in ``PARTITIONS``; its keyword-only parameters are the options of its spec, such as
``dirichlet:clients=100,alpha=0.5``.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmom import specs
from fedmom.errors import FedMomError


def iid(labels: ArrayLike, rng: np.random.Generator, *, clients: int = 100) -> NDArray[np.int64]:
    """Deal the rows at random, in parts whose sizes differ by one at most."""
    rows = _rows("iid", labels, clients).size
    return _dealt(rng.permutation(rows), _even(rows, clients))


def dirichlet(
    labels: ArrayLike, rng: np.random.Generator, *, clients: int = 100, alpha: float = 0.5
) -> NDArray[np.int64]:
    """Skew the labels: client k draws its rows by a label mix q_k ~ Dirichlet(alpha p).

    This is the version of Hsu, Qi and Brown (2019), where p is the label mix of all rows: a
    small alpha gives clients of one label, a large one gives IID clients. All clients are of
    one size, up to one row, so that none is empty and only labels are skewed. Rows are drawn
    without replacement; once a label is used up, q_k is renormalised over those left, so the
    clients filled last take what there is.
    """
    values = _rows("dirichlet", labels, clients)
    if not (math.isfinite(alpha) and alpha > 0):
        raise FedMomError(f"dirichlet: alpha={alpha} must be a finite number above 0.")
    _, label, left = np.unique(values, return_inverse=True, return_counts=True)
    mixes = rng.dirichlet(alpha * left / left.sum(), size=clients)
    counts = np.empty((clients, len(left)), np.int64)  # of every label at every client
    for k, size in enumerate(_even(values.size, clients)):
        counts[k] = _drawn(int(size), mixes[k], left, rng)
        left = left - counts[k]
    # Rows in an order by label, shuffled within it: each client takes its next so many.
    order = rng.permutation(values.size)
    order = order[np.argsort(label[order], kind="stable")]
    owners = [np.repeat(np.arange(clients), column) for column in counts.T]
    out = np.empty(values.size, np.int64)
    out[order] = np.concatenate(owners)
    return out


def shards(
    labels: ArrayLike, rng: np.random.Generator, *, clients: int = 100, per_client: int = 2
) -> NDArray[np.int64]:
    """Deal ``per_client`` shards to each client, of the rows sorted by label and cut evenly.

    McMahan et al. (2017) call this the pathological partition. S shards of C labels hold at
    most S + C - 1 pairs of a shard and a label, so most shards have one label only. Rows of
    one label are shuffled first, so that a shard does not depend on their order in a file.
    """
    if per_client < 1:
        raise FedMomError(f"shards: per_client={per_client} must be 1 or more.")
    values = _rows("shards", labels, clients)
    pieces = clients * per_client
    if pieces > values.size:
        raise FedMomError(
            f"shards: clients={clients} times per_client={per_client} makes {pieces} shards of"
            f" {values.size} rows. Take fewer clients or fewer shards for each."
        )
    order = rng.permutation(values.size)
    order = order[np.argsort(values[order], kind="stable")]
    return _dealt(order, _even(values.size, pieces), rng.permutation(pieces) // per_client)


def quantity(
    labels: ArrayLike, rng: np.random.Generator, *, clients: int = 100, sigma: float = 1.0
) -> NDArray[np.int64]:
    """Skew the sizes only: IID labels, and sizes in proportion to lognormal(0, sigma) draws.

    Each client has one row before the rest is shared out, so none is empty; sigma=0 gives
    sizes that differ by one at most.
    """
    rows = _rows("quantity", labels, clients).size
    if not 0 <= sigma <= 100:
        raise FedMomError(f"quantity: sigma={sigma} must be between 0 (equal sizes) and 100.")
    logs = sigma * rng.normal(size=clients)
    shares = np.cumsum(np.exp(logs - logs.max()))
    ends = np.rint(shares / shares[-1] * (rows - clients)).astype(np.int64)
    return _dealt(rng.permutation(rows), 1 + np.diff(ends, prepend=0))


PARTITIONS: dict[str, Callable[..., NDArray[np.int64]]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "shards": shards,
    "quantity": quantity,
}


def partition(spec: str, labels: ArrayLike, seed: int = 0) -> NDArray[np.int64]:
    """Return the client of every row by a spec such as ``shards:clients=100,per_client=2``."""
    if seed < 0:
        raise FedMomError(f"The partition's seed {seed} must be 0 or more.")
    function = specs.pick(PARTITIONS, specs.split(spec)[0], "partition")
    return specs.bind(function, spec, labels, np.random.default_rng(seed))


def _rows(name: str, labels: ArrayLike, clients: int) -> NDArray[np.integer]:
    values = np.asarray(labels)
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        raise FedMomError(f"{name}: labels must be one whole number for each row.")
    if not 1 <= clients <= values.size:
        raise FedMomError(
            f"{name}: clients={clients} must be between 1 and the {values.size} rows there are,"
            " as every client needs a row."
        )
    return values


def _even(rows: int, parts: int) -> NDArray[np.int64]:
    """Return sizes that sum to ``rows`` and differ by one at most."""
    return np.diff(np.arange(parts + 1) * rows // parts)


def _dealt(
    order: NDArray[np.int64], sizes: NDArray[np.int64], owners: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Cut ``order`` into pieces of these sizes; piece i belongs to ``owners[i]``, or to i."""
    out = np.empty(order.size, np.int64)
    out[order] = np.repeat(np.arange(sizes.size) if owners is None else owners, sizes)
    return out


def _drawn(
    size: int, mix: NDArray[np.float64], left: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw ``size`` labels by ``mix``, of each label no more than ``left``."""
    counts = np.zeros_like(left)
    while missing := size - int(counts.sum()):
        rest = left - counts
        weights = mix * (rest > 0)
        if not weights.any():  # a tiny alpha had put all on a label now used up: on another
            weights[rng.choice(rest.size, p=rest / rest.sum())] = 1
        # Every pass fills the client or uses up a label, so there are few.
        counts += np.minimum(rng.multinomial(missing, weights / weights.sum()), rest)
    return counts
