"""LEAF's sampling and splitting: nothing is lost, shared or leaked, and flags mean LEAF's."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmom.core.errors import FedMomError
from fedmom.data.batches import reader
from fedmom.data.federated import Features, FederatedData, Split
from fedmom.data.leaf_sampling import keep, prepare, sample_iid, sample_users, split
from fedmom.data.sources.arrays import from_arrays
from fedmom.data.sources.gutenberg import gutenberg_roles
from fedmom.data.sources.shakespeare import SYMBOLS, WINDOW, from_roles, split_sizes
from tests.conftest import SHARED

GUTENBERG = SHARED / "shakespeare_gutenberg100_2018.txt.gz"
fractions = st.floats(0.01, 1)
inner_fractions = st.floats(0.01, 0.99)
seeds = st.integers(0, 99)
sizes_of_users = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 9)), min_size=1, max_size=12)
samples_of_texts = st.lists(st.integers(1, 1500), min_size=1, max_size=8)


def rows(sizes, order=None):
    """Vector data whose row r of input is (r,), users u0, u1, ... listed in ``order``."""
    order = list(range(len(sizes))) if order is None else order
    owner = np.concatenate([np.full(a + b, k) for k, (a, b) in enumerate(sizes)])
    is_test = np.concatenate([np.arange(a + b) >= a for a, b in sizes])
    return from_arrays(
        np.arange(len(owner), dtype=np.float32)[:, None],
        np.zeros(len(owner), int),
        np.argsort(order)[owner],
        is_test=is_test,
        users=[f"u{k}" for k in order],
    )


def text(samples):
    """Texts of random symbols with that many samples, end to end."""
    symbols = np.array(list(SYMBOLS))
    rng = np.random.default_rng(0)
    lengths = np.array(samples) + WINDOW
    return from_roles(
        "plays", {f"u{k}": "".join(rng.choice(symbols, n)) for k, n in enumerate(lengths)}
    )


def samples(data, part):
    """Each user's samples: the row numbers of vector data, positions of a text."""
    table, users = data.split(part), data.users
    if part == "test" and data.test_users is not None:
        users = data.test_users
    found = {}
    for user, start, size in zip(users, table.start, table.size, strict=True):
        at = np.arange(start, start + size)
        at = data.arrays["at"][at] if "at" in data.arrays else at
        found[user] = (data.arrays["x"][at, 0] if "x" in data.arrays else at).astype(int).tolist()
    return found


def together(data):
    train, test = samples(data, "train"), samples(data, "test")
    return {user: sorted(train[user] + test[user]) for user in train}


def characters(positions):
    return {p + i for p in positions for i in range(WINDOW)}


def flat(by_user):
    return [s for found in by_user.values() for s in found]


def spans(data):
    return dict(zip(data.users, data.test.start + data.test.size - data.train.start, strict=True))


@settings(max_examples=60)
@given(sizes=sizes_of_users, fraction=fractions, seed=seeds)
def test_sampling_users_takes_exactly_the_fraction_from_whole_users_but_one(sizes, fraction, seed):
    data = rows(sizes)
    total = sum(map(sum, sizes))
    if int(fraction * total) < 1:
        return
    before, sampled = together(data), sample_users(data, fraction, seed)
    after = together(sampled)
    assert len(flat(after)) == len(set(flat(after))) == int(fraction * total)
    assert all(set(after[user]) <= set(before[user]) for user in after)
    assert sum(after[user] != before[user] for user in after) <= 1
    for part in ("train", "test"):
        own = samples(data, part)
        assert all(set(found) <= set(own[u]) for u, found in samples(sampled, part).items())


@given(sizes=sizes_of_users, fraction=fractions, seed=seeds, data=st.data())
def test_the_order_of_users_does_not_change_who_is_drawn(sizes, fraction, seed, data):
    order = data.draw(st.permutations(range(len(sizes))))
    if int(fraction * sum(map(sum, sizes))) < 1:
        return
    one, other = (sample_users(d, fraction, seed) for d in (rows(sizes), rows(sizes, order)))
    assert together(one) == together(other)
    if one.clients > 1:
        one, other = (split(d, "user", 0.5, seed) for d in (one, other))
        assert set(one.users) == set(other.users)


def test_other_seeds_draw_other_users():
    data = rows([(5, 1)] * 40)
    drawn = {tuple(sample_users(data, 0.2, seed).users) for seed in range(10)}
    assert len(drawn) == 10
    assert all(len(users) == 8 for users in drawn)


@settings(max_examples=60)
@given(sizes=samples_of_texts, fraction=fractions, seed=seeds)
def test_sampling_texts_counts_the_gap_and_leaks_no_window(sizes, fraction, seed):
    data = text(sizes)
    if int(fraction * sum(sizes)) < 1:
        return
    sampled = sample_users(data, fraction, seed)
    after = spans(sampled)
    assert sum(after.values()) == int(fraction * sum(sizes))
    assert sum(int(n) != sizes[int(user[1:])] for user, n in after.items()) <= 1
    train, test = samples(sampled, "train"), samples(sampled, "test")
    for user in train:
        assert not characters(train[user]) & characters(test[user])
    assert sampled.arrays["text"] is data.arrays["text"]


@settings(max_examples=60)
@given(sizes=sizes_of_users, fraction=fractions, users=fractions, seed=seeds)
def test_sampling_iid_deals_each_sample_once_and_evenly(sizes, fraction, users, seed):
    data = rows(sizes)
    total, expected = sum(map(sum, sizes)), max(1, round(users * len(sizes)))
    try:
        dealt = sample_iid(data, fraction, users, seed)
    except FedMomError:  # too few for the users: certain below one training sample for each
        assert int(fraction * total) - sum(b for _, b in sizes) < expected
        return
    after = together(dealt)
    assert list(dealt.users) == [str(u) for u in range(expected)]
    assert len(flat(after)) == len(set(flat(after))) == int(fraction * total)
    for counts in (dealt.train.size, dealt.test.size, dealt.train.size + dealt.test.size):
        assert counts.max() - counts.min() <= 1
    for part in ("train", "test"):
        assert set(flat(samples(dealt, part))) <= set(flat(samples(data, part)))


@given(sizes=sizes_of_users, minimum=st.integers(0, 30))
def test_keep_drops_the_users_with_fewer_samples(sizes, minimum):
    data, expected = rows(sizes), [f"u{k}" for k, n in enumerate(sizes) if sum(n) >= minimum]
    if not expected:
        with pytest.raises(FedMomError, match=f"-k {minimum} leaves no user"):
            keep(data, minimum)
        return
    kept = keep(data, minimum)
    assert list(kept.users) == expected
    assert together(kept) == {u: together(data)[u] for u in expected}


@settings(max_examples=60)
@given(sizes=sizes_of_users, fraction=inner_fractions, seed=seeds)
def test_splitting_by_sample_parts_each_users_samples(sizes, fraction, seed):
    data = rows(sizes)
    expected = {u: s for u, s in together(data).items() if len(s) >= 2}
    if not expected:
        with pytest.raises(FedMomError, match="no user of arrays a test sample"):
            split(data, "sample", fraction, seed)
        return
    again = split(data, "sample", fraction, seed)
    assert together(again) == expected  # as sorted lists: none twice, none missing
    for size, user in zip(again.train.size, again.users, strict=True):
        n = len(expected[user])
        assert size == (1 if n == 2 else max(1, int(fraction * n)))
    assert again.arrays["x"] is data.arrays["x"]
    assert together(split(again, "sample", 0.5, seed)) == expected  # also through the table at


@pytest.mark.parametrize("by", ["sample", "user"])
def test_splitting_draws_by_its_seed(by):
    data = rows([(20, 0)] * 20)
    drawn = [samples(split(data, by, 0.5, seed), "train") for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


@settings(max_examples=60)
@given(sizes=samples_of_texts, fraction=inner_fractions)
def test_splitting_texts_leaks_no_window_and_loses_only_the_gap(sizes, fraction):
    data = text(sizes)
    train_of = {f"u{k}": max(1, int(fraction * n)) for k, n in enumerate(sizes)}
    expected = {
        u: (train, n - train - (WINDOW - 1))
        for n, (u, train) in zip(sizes, train_of.items(), strict=True)
        if n - train >= WINDOW
    }
    if not expected:
        with pytest.raises(FedMomError, match="no user of plays a test sample"):
            split(data, "sample", fraction)
        return
    again = split(data, "sample", fraction)
    train, test = samples(again, "train"), samples(again, "test")
    assert {u: (len(train[u]), len(test[u])) for u in train} == expected
    for user, first in zip(data.users, data.train.start, strict=True):
        if user in train:
            assert not characters(train[user]) & characters(test[user])
            assert train[user][0] == first
            assert test[user][-1] == first + sizes[int(user[1:])] - 1
            assert test[user][0] == train[user][-1] + WINDOW


def test_splitting_texts_at_nine_tenths_gives_back_the_first_split():
    sizes = [100, 789, 790, 1000, 5000]
    data = text(sizes)
    again = split(split(data, "sample", 0.5), "sample", 0.9)
    assert list(again.users) == [f"u{k}" for k, n in enumerate(sizes) if split_sizes(n)[1]]
    chosen = [list(data.users).index(user) for user in again.users]
    for part in ("train", "test"):
        assert (again.split(part).start == data.split(part).start[chosen]).all()
        assert (again.split(part).size == data.split(part).size[chosen]).all()


@settings(max_examples=60)
@given(sizes=sizes_of_users, fraction=inner_fractions, seed=seeds)
def test_splitting_by_user_parts_the_users_with_all_they_have(sizes, fraction, seed):
    data = rows(sizes)
    if not int(fraction * len(sizes)):
        with pytest.raises(FedMomError, match="no training user"):
            split(data, "user", fraction, seed)
        return
    parted = split(data, "user", fraction, seed)
    train, test = samples(parted, "train"), samples(parted, "test")
    assert len(train) == int(fraction * len(sizes))
    assert {**train, **test} == together(data)
    assert not set(train) & set(test)


def test_splitting_texts_by_user_gives_back_the_gap():
    sizes = [50, 900, 2000, 100]
    parted = split(text(sizes), "user", 0.5, 1)
    found = {**samples(parted, "train"), **samples(parted, "test")}
    assert {u: len(s) for u, s in found.items()} == {f"u{k}": n for k, n in enumerate(sizes)}
    assert len(parted.users) == 2
    with pytest.raises(FedMomError, match="split by user already"):
        sample_users(parted, 0.5)


@pytest.mark.parametrize("t", [None, "sample"])
def test_iid_text_keeps_test_windows_apart_from_everybodys_training(t):
    data = text([900, 1500, 2500, 40])
    dealt = prepare(data, s="iid", sf=0.8, iu=0.75, t=t, tf=t and 0.7)
    train, test = flat(samples(dealt, "train")), flat(samples(dealt, "test"))
    assert dealt.clients == (3 if t is None else round(0.75 * 3))  # the last is too short to split
    assert test
    assert len(set(train + test)) == len(train + test)
    assert not characters(train) & characters(test)


def test_a_sample_reached_through_the_table_reads_as_its_window():
    data = text([900, 1500])
    dealt = sample_iid(data, 0.5, 1.0, 3)
    position = int(dealt.test.start[1])
    x, y = reader(dealt.features)(dealt.arrays, jnp.array([position]))
    begin = samples(dealt, "test")["1"][0]
    expected = data.arrays["text"][begin : begin + WINDOW + 1]
    assert np.array_equal(np.append(np.asarray(x[0]), np.asarray(y)), expected)


def test_prepare_without_flags_is_the_data_itself():
    for data in (rows([(3, 1), (1, 0)]), text([5, 900])):
        assert prepare(data) is data


def test_prepare_samples_then_drops_then_splits():
    data = rows([(9, 1), (4, 1), (20, 4), (2, 0), (30, 3)])
    once = prepare(data, sf=0.7, k=6, t="sample", tf=0.6, smplseed=4, spltseed=5)
    steps = split(keep(sample_users(data, 0.7, 4), 6), "sample", 0.6, 5)
    assert samples(once, "train") == samples(steps, "train")
    assert samples(once, "test") == samples(steps, "test")
    iid = prepare(data, s="iid", sf=0.7, iu=0.5, k=6, t="user", tf=0.6, smplseed=4, spltseed=5)
    steps = split(keep(sample_iid(data, 0.7, 0.5, 4), 6), "user", 0.6, 5)
    assert samples(iid, "train") == samples(steps, "train")
    assert samples(iid, "test") == samples(steps, "test")


def test_the_defaults_are_leafs():
    data = rows([(20, 0)] * 200)
    assert prepare(data, s="iid").clients == 2  # --iu 0.01
    assert (prepare(data, t="sample").train.size == 18).all()  # --tf 0.9


def test_sf_gives_a_shakespeare_of_the_papers_size():
    if not GUTENBERG.is_file():
        pytest.skip("Gutenberg's Shakespeare is not in ../shared/data")
    sizes = np.array([len(text) - WINDOW for text in gutenberg_roles(GUTENBERG).values()])
    begin = np.cumsum(sizes + WINDOW) - sizes - WINDOW
    train, test = np.array([split_sizes(int(n)) for n in sizes]).T
    data = FederatedData(
        name="shakespeare",
        users=[f"u{k}" for k in range(len(sizes))],
        features=Features("text", (WINDOW,), len(SYMBOLS)),
        arrays={},
        train=Split(begin, train),
        test=Split(begin + sizes - test, test),
    )
    sampled = [prepare(data, sf=517_106 / 2_140_051, smplseed=seed) for seed in range(60)]
    assert all(sum(spans(d).values()) == 517_106 for d in sampled)
    # The data's README: 137 +- 19 roles. 60 draws know the mean to 19 / 60**0.5.
    assert np.mean([d.clients for d in sampled]) == pytest.approx(137, abs=4 * 19 / 60**0.5)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"s": "random"}, "prepare: s is 'random'"),
        ({"t": "users"}, "prepare: t is 'users'"),
        ({"sf": 0.0}, "--sf 0.0"),
        ({"sf": 1.1}, "--sf 1.1"),
        ({"sf": float("nan")}, "--sf nan"),
        ({"sf": 0.001}, "less than one sample"),
        ({"s": "iid", "iu": 0.0}, "--iu 0.0"),
        ({"s": "iid", "iu": 1.5}, "--iu 1.5"),
        ({"s": "iid", "iu": 1.0, "sf": 0.1}, "too few for 4 users"),
        ({"iu": 0.5}, "--iu 0.5 is for -s iid"),
        ({"k": -1}, "-k -1"),
        ({"k": 100}, "-k 100 leaves no user"),
        ({"tf": 0.8}, "--tf 0.8 needs -t"),
        ({"t": "sample", "tf": 1.0}, "--tf 1.0"),
        ({"t": "user", "tf": 0.0}, "--tf 0.0"),
        ({"t": "user", "tf": 0.1}, "no training user"),
        ({"smplseed": -1}, "--smplseed -1"),
        ({"spltseed": -2}, "--spltseed -2"),
    ],
)
def test_a_wrong_flag_is_named(flags, named):
    with pytest.raises(FedMomError, match=named):
        prepare(rows([(4, 1)] * 4), **flags)


def test_text_that_is_not_continuous_is_not_split_again():
    data = text([900, 1500])
    apart = FederatedData(
        name="pieces",
        users=data.users,
        features=data.features,
        arrays=data.arrays,
        train=Split(data.train.start, data.train.size - 1),  # a gap wider than LEAF's
        test=data.test,
    )
    for pieces in (apart, sample_iid(data, 1.0, 1.0)):
        with pytest.raises(FedMomError, match="Leave -t out"):
            split(pieces, "sample", 0.9)
        half = sample_users(pieces, 0.5)  # needs no new split
        assert (half.train.size + half.test.size).sum() == int(
            0.5 * (pieces.train.size + pieces.test.size).sum()
        )
    with pytest.raises(FedMomError, match="-t user cannot split text after -s iid"):
        prepare(data, s="iid", t="user")
