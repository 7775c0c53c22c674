"""Clients for data that has no users: the labels of all rows -> the client of every row.

Every row goes to exactly one client and every client has at least one row, so the result can
be handed to ``from_arrays(x, y, client_ids)``; ``repartition`` deals the rows of a dataset. A
partition is one function here and one row in ``PARTITIONS``; its keyword-only parameters are
the options of its spec, such as ``dirichlet:clients=100,alpha=0.5``.
"""

import math
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedmom.core.arguments import checked
from fedmom.core.errors import FedMomError
from fedmom.core.registry import Registry
from fedmom.core.validation import MOST, Between, Seed
from fedmom.data.federated import FederatedData, Integers
from fedmom.data.leaf_sampling import arranged
from fedmom.data.rows.values import Rows, as_array

Clients = Annotated[int, Between(1, MOST)]


@checked
def iid(labels: Rows, rng: np.random.Generator, *, clients: Clients = 100) -> Integers:
    """Deal the rows at random, in parts whose sizes differ by one at most."""
    rows = _rows("iid", labels, clients).size
    return _dealt(rng.permutation(rows), _even(rows, clients))


@checked
def dirichlet(
    labels: Rows, rng: np.random.Generator, *, clients: Clients = 100, alpha: float = 0.5
) -> Integers:
    """Skew the labels: client k draws its rows by a label mix q_k ~ Dirichlet(alpha p).

    This is the version of Hsu, Qi and Brown (2019), where p is the label mix of all rows: a
    small alpha gives clients of one label, a large one gives IID clients. All clients are of
    one size, up to one row, so that none is empty and only labels are skewed. Rows are drawn
    without replacement; once a label is used up, q_k is renormalised over those left, so the
    clients filled last get what is left.
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
    # Rows in an order by label, shuffled within it: each client takes the next of them.
    order = rng.permutation(values.size)
    order = order[np.argsort(label[order], kind="stable")]
    owners = [np.repeat(np.arange(clients), column) for column in counts.T]
    out = np.empty(values.size, np.int64)
    out[order] = np.concatenate(owners)
    return out


@checked
def shards(
    labels: Rows, rng: np.random.Generator, *, clients: Clients = 100, per_client: Clients = 2
) -> Integers:
    """Deal ``per_client`` shards to each client, of the rows sorted by label and cut evenly.

    McMahan et al. (2017) call this the pathological partition. S shards of C labels hold at
    most S + C - 1 pairs of a shard and a label, so most shards have one label only. Rows of
    one label are shuffled first, so that a shard does not depend on their order in a file.
    """
    values = _rows("shards", labels, clients)
    pieces = clients * per_client
    if pieces > values.size:
        raise FedMomError(
            f"shards: clients={clients} times per_client={per_client} makes {pieces} shards of"
            f" {values.size} labels. Use fewer clients or fewer shards for each."
        )
    order = rng.permutation(values.size)
    order = order[np.argsort(values[order], kind="stable")]
    return _dealt(order, _even(values.size, pieces), rng.permutation(pieces) // per_client)


@checked
def quantity(
    labels: Rows,
    rng: np.random.Generator,
    *,
    clients: Clients = 100,
    sigma: Annotated[float, Between(0, 100)] = 1.0,
) -> Integers:
    """Skew the sizes only: IID labels, and sizes in proportion to lognormal(0, sigma) draws.

    Each client has one row before the rest is shared out, so none is empty; sigma=0 gives
    sizes that differ by one at most.
    """
    rows = _rows("quantity", labels, clients).size
    logs = sigma * rng.normal(size=clients)
    shares = np.cumsum(np.exp(logs - logs.max()))
    ends = np.rint(shares / shares[-1] * (rows - clients)).astype(np.int64)
    return _dealt(rng.permutation(rows), 1 + np.diff(ends, prepend=0))


_NAMES = ("iid", "dirichlet", "shards", "quantity")
PARTITIONS = Registry("partition", {name: f"fedmom.data.partition:{name}" for name in _NAMES})
BY_CLASS = ("dirichlet", "shards")


@checked
def partition(spec: str, labels: Rows, seed: Seed = 0) -> Integers:
    """Return the client of every row by a spec such as ``shards:clients=100,per_client=2``."""
    clients: Integers = PARTITIONS.build(spec, labels, np.random.default_rng(seed))
    return clients


@checked
def repartition(data: FederatedData, spec: str, seed: Seed = 0) -> FederatedData:
    """Deal the training rows by a partition such as dirichlet:alpha=0.5,clients=100.

    The test rows of each label then go to the clients in proportion to their training rows of
    it, so that every client is tested on its own label mix: dealt by chance, they would test
    a client that has two digits on ten. (Test rows of a label nobody trains on go by the
    clients' sizes.) Images stay where they are, and the table ``at`` leads to them.
    """
    if data.features.kind == "text":
        raise FedMomError(
            f"{data.name} is text, whose windows overlap, so its rows cannot be dealt by label."
            " Use -s iid to pool and deal it."
        )
    parts = [part.positions() for part in (data.train, data.test)]
    positions = np.concatenate(parts)
    is_test = np.repeat([False, True], [len(part) for part in parts])
    rows = data.arrays["at"][positions] if "at" in data.arrays else positions
    labels = data.arrays["y"][rows] if data.features.task == "classes" else None
    owner = dealt(spec, labels, is_test, seed)
    return arranged(data, client_names(owner), positions, owner, is_test)


def client_names(owner: Integers) -> list[str]:
    """Return the names of clients that a partition has made."""
    return [f"client{k}" for k in range(int(owner.max()) + 1)]


def dealt(
    spec: str, labels: NDArray[np.integer] | None, is_test: NDArray[np.bool_], seed: int = 0
) -> Integers:
    """Return the client of every row: training rows by a partition, test rows as they do.

    Args:
        spec: The partition.
        labels: The class of every row; None where rows have no classes.
        is_test: True for test rows.
        seed: The seed.
    """
    if labels is None:
        if (name := PARTITIONS.check(spec)) in BY_CLASS:
            raise FedMomError(
                f"partition={name} deals rows by their class, and these labels are not classes."
                " Use iid or quantity."
            )
        labels = np.zeros(len(is_test), np.int64)
    out = np.empty(len(is_test), np.int64)
    out[~is_test] = partition(spec, labels[~is_test], seed)
    rng = np.random.default_rng((seed, 1))
    out[is_test] = _following(out[~is_test], labels[~is_test], labels[is_test], rng)
    return out


def _rows(name: str, labels: Rows, clients: int) -> NDArray[np.integer]:
    values = as_array(f"{name}: labels", labels)
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        raise FedMomError(f"{name}: labels must be one whole number for each row.")
    if not 1 <= clients <= values.size:
        raise FedMomError(
            f"{name}: clients={clients} must be between 1 and the {values.size} rows there are,"
            " as every client needs a row."
        )
    return values


def _even(rows: int, parts: int) -> Integers:
    """Return sizes that sum to ``rows`` and differ by one at most."""
    return np.diff(np.arange(parts + 1) * rows // parts)


def _dealt(order: Integers, sizes: Integers, owners: Integers | None = None) -> Integers:
    """Cut ``order`` into pieces of these sizes; piece i belongs to ``owners[i]``, or to i."""
    out = np.empty(order.size, np.int64)
    out[order] = np.repeat(np.arange(sizes.size) if owners is None else owners, sizes)
    return out


def _drawn(
    size: int, mix: NDArray[np.float64], left: Integers, rng: np.random.Generator
) -> Integers:
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


def _following(
    client: Integers,
    labels: NDArray[np.integer],
    test_labels: NDArray[np.integer],
    rng: np.random.Generator,
) -> Integers:
    """Return the client of every test row, in proportion to the training rows of its label."""
    clients = int(client.max()) + 1
    out = np.empty(len(test_labels), np.int64)
    for label in np.unique(test_labels):
        rows = rng.permutation(np.flatnonzero(test_labels == label))
        owners = client[labels == label]
        share = np.cumsum(np.bincount(owners if owners.size else client, minlength=clients))
        ends = np.rint(share / share[-1] * rows.size).astype(np.int64)
        out[rows] = np.repeat(np.arange(clients), np.diff(ends, prepend=0))
    return out
