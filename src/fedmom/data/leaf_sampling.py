"""LEAF's steps between a whole population and an experiment, under LEAF's flag names.

    sample (-s, --sf, --iu)  ->  drop small users (-k)  ->  split into train and test (-t, --tf)

Each step makes a view: images and text stay where they are, and only the tables that say
where a client's samples lie are new. The draws are fixed by a seed, but are not LEAF's own.

A client's samples are those for training and those for testing. Where a text has been split
by LEAF's rule, the few windows left out between the two belong to the client as well, and
count wherever samples are counted before a split, as they do in LEAF.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.data.federated import FederatedData, Integers, Split

USER_FRACTION = 0.01  # LEAF's default of --iu
TRAIN_FRACTION = 0.9  # LEAF's default of --tf


def prepare(
    data: FederatedData,
    *,
    s: Literal["niid", "iid"] = "niid",
    sf: float = 1.0,
    iu: float | None = None,
    k: int = 0,
    t: Literal["sample", "user"] | None = None,
    tf: float | None = None,
    smplseed: int = 0,
    spltseed: int = 0,
) -> FederatedData:
    """Sample, drop small users and split, in LEAF's order; without ``t`` the split is kept.

    ``iu`` goes with ``s="iid"`` (LEAF's default 0.01), ``tf`` with ``t`` (LEAF's 0.9).
    Text sampled by ``s="iid"`` is split first: its windows overlap those of every other
    client afterwards, and a split could not keep them apart.
    """
    _check_flags(s, iu, t, tf, smplseed, spltseed)
    train_fraction = TRAIN_FRACTION if tf is None else tf
    if s == "iid" and data.features.kind == "text" and t is not None:
        if t == "user":
            raise FedMomError(
                "-t user cannot split text after -s iid: windows of training users would overlap"
                " windows of test users. Use -t sample or -s niid."
            )
        data, t = split(data, t, train_fraction, spltseed), None
    if s == "iid":
        data = sample_iid(data, sf, USER_FRACTION if iu is None else iu, smplseed)
    else:
        data = sample_users(data, sf, smplseed)
    data = keep(data, k)
    return data if t is None else split(data, t, train_fraction, spltseed)


def sample_users(data: FederatedData, fraction: float, seed: int = 0) -> FederatedData:
    """Take users at random until they have ``int(fraction * samples)`` samples: LEAF's niid.

    The last user is cut short to hit that number; its split is cut in proportion. Which
    users are drawn depends on their names and the seed, not on the order of the population.
    """
    sizes = sample_counts(data)
    wanted = _wanted(data, fraction, int(sizes.sum()))
    order = _shuffled(data.users, np.random.default_rng(seed))
    total = np.cumsum(sizes[order])
    count = int(np.searchsorted(total, wanted)) + 1
    last, excess = int(order[count - 1]), int(total[count - 1]) - wanted
    if excess:
        data = _shortened(data, last, int(sizes[last]) - excess)
    return _only(data, np.sort(order[:count]))


def sample_iid(
    data: FederatedData, fraction: float, user_fraction: float, seed: int = 0
) -> FederatedData:
    """Pool all samples, draw a fraction, and deal it to new users "0", "1", ...: LEAF's iid.

    There are ``round(user_fraction * users)`` new users, one at least, with equal numbers of
    samples up to one. A sample stays for training or for testing, and both kinds are dealt
    evenly; windows that LEAF's split of a text has left out are not drawn.
    """
    if not 0 < user_fraction <= 1:
        raise FedMomError(f"--iu {user_fraction} must be above 0 and at most 1.")
    _refuse_split_users(data)
    users = max(1, round(user_fraction * data.clients))
    pool = np.concatenate([data.train.positions(), data.test.positions()])
    wanted = _wanted(data, fraction, pool.size)
    rng = np.random.default_rng(seed)
    drawn = rng.permutation(pool.size)[:wanted]
    is_test = drawn >= int(data.train.size.sum())
    # Dealt in turn, all training samples before all test samples: even in each, and together.
    turn = np.argsort(is_test, kind="stable")
    owner = np.empty(wanted, np.int64)
    owner[turn] = np.arange(wanted) % users
    if (counts := int((~is_test).sum())) < users:
        raise FedMomError(
            f"--sf {fraction} draws {counts} training samples of {data.name}, too few for"
            f" {users} users. Use a larger --sf or a smaller --iu."
        )
    return arranged(data, [str(u) for u in range(users)], pool[drawn], owner, is_test)


def keep(data: FederatedData, minimum: int) -> FederatedData:
    """Drop users with fewer than ``minimum`` samples: LEAF's -k, as its documentation has it.

    LEAF's code also drops a user with exactly that many.
    """
    if minimum < 0:
        raise FedMomError(f"-k {minimum} must be at least 0.")
    sizes = sample_counts(data)
    kept = np.flatnonzero(sizes >= minimum)
    if not kept.size:
        raise FedMomError(
            f"-k {minimum} leaves no user of {data.name}: the largest has {sizes.max()} samples."
        )
    return _only(data, kept)


def split(
    data: FederatedData, by: Literal["sample", "user"], train_fraction: float, seed: int = 0
) -> FederatedData:
    """Split anew: each user's samples, or the users, into train and test: LEAF's -t and --tf.

    By sample, ``int(train_fraction * n)`` of a user's n samples, one at least, are for
    training: drawn at random, but the first ones of a text, after which 79 windows are left
    out, so that no window of 80 characters for testing shares one with a window for training.
    (The character after the last training window is the first of the test windows; LEAF's
    rule.) Users too small to have both kinds are dropped. By user, ``int(train_fraction *
    users)`` users drawn at random are for training with all they have, the rest for testing.
    """
    if by not in ("sample", "user"):
        raise FedMomError(f"-t {by!r} must be 'sample' or 'user'.")
    if not 0 < train_fraction < 1:
        raise FedMomError(f"--tf {train_fraction} must be above 0 and below 1.")
    _refuse_split_users(data)
    if data.features.kind == "text" and not _is_whole_text(data):
        raise FedMomError(
            f"{data.name} has windows that are not a continuous text of each user, so a new"
            " split could not keep train and test apart. Leave -t out to keep its own split."
        )
    if by == "user":
        return _split_users(data, train_fraction, seed)
    if data.features.kind == "text":
        return _split_texts(data, train_fraction)
    return _split_rows(data, train_fraction, seed)


def _split_users(data: FederatedData, train_fraction: float, seed: int) -> FederatedData:
    chosen = int(train_fraction * data.clients)
    if not chosen:
        raise FedMomError(
            f"--tf {train_fraction} leaves no training user of the {data.clients} of"
            f" {data.name}. Use a larger --tf or more users."
        )
    if data.features.kind == "text":
        whole, arrays = Split(data.train.start, sample_counts(data)), data.arrays
    else:
        positions, owner = _pooled(data)
        everything = arranged(data, data.users, positions, owner, np.zeros(owner.size, bool))
        whole, arrays = everything.train, everything.arrays
    order = _shuffled(data.users, np.random.default_rng(seed))
    train, test = np.sort(order[:chosen]), np.sort(order[chosen:])
    users, test_users = ([data.users[i] for i in part] for part in (train, test))
    return replace(
        data,
        users=users,
        arrays=arrays,
        train=whole.of(train),
        test=whole.of(test),
        test_users=test_users,
    )


def _split_texts(data: FederatedData, train_fraction: float) -> FederatedData:
    sizes = sample_counts(data)
    train = _training(sizes, train_fraction)
    test = np.maximum(0, sizes - train - (data.features.shape[0] - 1))
    last = Split(data.train.start + sizes - test, test)
    again = replace(data, train=Split(data.train.start, train), test=last)
    return _large_enough(again, sizes, test > 0, train_fraction)


def _split_rows(data: FederatedData, train_fraction: float, seed: int) -> FederatedData:
    sizes = sample_counts(data)
    data = _large_enough(data, sizes, sizes > 1, train_fraction)
    positions, owner = _pooled(data)
    places = shuffled_places(owner, np.random.default_rng(seed))
    is_test = places >= _training(sizes[sizes > 1], train_fraction)[owner]
    return arranged(data, data.users, positions, owner, is_test)


def shuffled_places(owner: Integers, rng: np.random.Generator) -> Integers:
    """Return the place of every row in a random order of its client's rows."""
    order, sizes = np.lexsort((rng.random(owner.size), owner)), np.bincount(owner)
    places = np.empty(owner.size, np.int64)
    places[order] = np.arange(owner.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return places


def _training(sizes: Integers, fraction: float) -> Integers:
    """Return LEAF's number of training samples, which leaves one for testing at least."""
    return np.clip((fraction * sizes).astype(np.int64), 1, np.maximum(sizes - 1, 1))


def _large_enough(
    data: FederatedData, sizes: Integers, enough: NDArray[np.bool_], train_fraction: float
) -> FederatedData:
    if not enough.any():
        raise FedMomError(
            f"--tf {train_fraction} leaves no user of {data.name} a test sample: the largest has"
            f" {sizes.max()} samples in all. Use a smaller --tf or larger users."
        )
    return _only(data, np.flatnonzero(enough))


def sample_counts(data: FederatedData) -> Integers:
    """Return every user's number of samples, whether for training, for testing or between."""
    _refuse_split_users(data)
    if _is_whole_text(data):
        return data.test.start + data.test.size - data.train.start
    return data.train.size + data.test.size


def _is_whole_text(data: FederatedData) -> bool:
    """Return whether each user's windows are those of one text, with LEAF's gap in it at most."""
    if data.features.kind != "text" or "at" in data.arrays:
        return False
    gap = data.test.start - data.train.start - data.train.size
    return bool(((gap >= 0) & (gap < data.features.shape[0])).all())


def _wanted(data: FederatedData, fraction: float, samples: int) -> int:
    if not 0 < fraction <= 1:
        raise FedMomError(f"--sf {fraction} must be above 0 and at most 1.")
    wanted = int(fraction * samples)
    if not wanted:
        raise FedMomError(
            f"--sf {fraction} of the {samples} samples of {data.name} is less than one sample."
            " Use a larger --sf."
        )
    return wanted


def _shuffled(users: Sequence[str], rng: np.random.Generator) -> Integers:
    by_name = np.array(sorted(range(len(users)), key=list(users).__getitem__), np.int64)
    return by_name[rng.permutation(len(users))]


def _shortened(data: FederatedData, user: int, size: int) -> FederatedData:
    """Leave ``user`` its first ``size`` samples, in the proportion of its train and test."""
    whole = _is_whole_text(data)
    before = int(sample_counts(data)[user])
    train = max(1, size * int(data.train.size[user]) // before)
    gap = data.features.shape[0] - 1 if whole else 0
    test = max(0, size - train - gap)
    # A shorter text ends earlier; other samples are those at the front of each kind.
    start = int(data.train.start[user]) + size - test if whole else int(data.test.start[user])
    it = np.arange(data.clients) == user
    return replace(
        data,
        train=Split(data.train.start, np.where(it, train, data.train.size)),
        test=Split(np.where(it, start, data.test.start), np.where(it, test, data.test.size)),
    )


def _only(data: FederatedData, kept: Integers) -> FederatedData:
    if kept.size == data.clients:
        return data
    users = [data.users[i] for i in kept]
    return replace(data, users=users, train=data.train.of(kept), test=data.test.of(kept))


def _pooled(data: FederatedData) -> tuple[Integers, Integers]:
    """Return the position and the user of every sample, client after client."""
    users = np.arange(data.clients)
    owner = np.concatenate([np.repeat(users, p.size) for p in (data.train, data.test)])
    order = np.argsort(owner, kind="stable")
    return np.concatenate([data.train.positions(), data.test.positions()])[order], owner[order]


def arranged(
    data: FederatedData,
    users: Sequence[str],
    positions: Integers,
    owner: Integers,
    is_test: NDArray[np.bool_],
) -> FederatedData:
    """Lay samples out in a table ``at``: by owner, those for training first."""
    order = np.lexsort((positions, is_test, owner))
    at = positions[order]
    if "at" in data.arrays:
        at = data.arrays["at"][at]
    train, test = (np.bincount(owner[is_test == m], minlength=len(users)) for m in (False, True))
    begin = np.cumsum(train + test) - train - test
    arrays = {**data.arrays, "at": at.astype(np.int32)}
    return replace(
        data, users=users, arrays=arrays, train=Split(begin, train), test=Split(begin + train, test)
    )


def _refuse_split_users(data: FederatedData) -> None:
    if data.test_users is not None:
        raise FedMomError(
            f"{data.name} is split by user already (-t user). Sample, drop and split the data"
            " it was made from."
        )


def _check_flags(
    s: str, iu: float | None, t: str | None, tf: float | None, smplseed: int, spltseed: int
) -> None:
    """Refuse flags that LEAF does not have, and those that would be ignored in silence."""
    if s not in ("niid", "iid"):
        raise FedMomError(f"-s {s!r} must be 'niid' or 'iid'.")
    if iu is not None and s != "iid":
        raise FedMomError(f"--iu {iu} is for -s iid only. Give both or neither.")
    if tf is not None and t is None:
        raise FedMomError(f"--tf {tf} needs -t sample or -t user: without -t the split is kept.")
    if min(smplseed, spltseed) < 0:
        raise FedMomError(f"--smplseed {smplseed} and --spltseed {spltseed} must be at least 0.")
