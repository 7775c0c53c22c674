"""New clients for a dataset's rows: by a partition of their labels, whoever had them before."""

import numpy as np
from numpy.typing import NDArray

from fedmom.data.federated import FederatedData
from fedmom.data.subset import arranged, positions_of
from fedmom.errors import FedMomError
from fedmom.partition import partition


def repartition(data: FederatedData, spec: str, seed: int = 0) -> FederatedData:
    """Deal the training rows by a partition such as dirichlet:alpha=0.5,clients=100.

    The test rows of each label then go to the clients in proportion to their training rows of
    it, so that every client is tested on its own label mix: dealt by chance, they would test
    a client that has two digits on ten. (Test rows of a label nobody trains on go by the
    clients' sizes.) Pictures stay where they are, and the table ``at`` leads to them.
    """
    if data.features.kind == "text":
        raise FedMomError(
            f"{data.name} is text, whose windows overlap, so its rows cannot be dealt by label."
            " Take -s iid to pool and deal it."
        )
    positions = [positions_of(part) for part in (data.train, data.test)]
    labels = [_labels(data, where) for where in positions]
    dealt = partition(spec, labels[0], seed)
    follow = _following(dealt, labels[0], labels[1], np.random.default_rng((seed, 1)))
    return arranged(
        data,
        [f"client{k}" for k in range(int(dealt.max()) + 1)],
        np.concatenate(positions),
        np.concatenate([dealt, follow]),
        np.repeat([False, True], [len(dealt), len(follow)]),
    )


def _labels(data: FederatedData, positions: NDArray[np.int64]) -> NDArray[np.integer]:
    rows = data.arrays["at"][positions] if "at" in data.arrays else positions
    return data.arrays["y"][rows]


def _following(
    client: NDArray[np.int64],
    labels: NDArray[np.integer],
    test_labels: NDArray[np.integer],
    rng: np.random.Generator,
) -> NDArray[np.int64]:
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
