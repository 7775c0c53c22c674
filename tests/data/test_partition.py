"""Partitions: every row has one client, and the skew is the one asked for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmom.core.errors import FedMomError
from fedmom.data.partition import PARTITIONS, partition, shards
from fedmom.data.sources.arrays import from_arrays

labels_of_rows = st.lists(st.integers(0, 5), min_size=1, max_size=120).map(np.array)


def simpson(labels, clients):
    """The mean over clients of the sum of their squared label shares: 1 is one label each."""
    shares = [np.bincount(labels[clients == k]) / (clients == k).sum() for k in set(clients)]
    return np.mean([(share**2).sum() for share in shares])


@pytest.mark.parametrize("name", PARTITIONS)
@settings(max_examples=60)
@given(labels=labels_of_rows, seed=st.integers(0, 99), data=st.data())
def test_every_row_has_one_client_and_every_client_a_row(name, labels, seed, data):
    most = len(labels) // 2 if name == "shards" else len(labels)
    if not most:
        return
    clients = data.draw(st.integers(1, most))
    found = partition(f"{name}:clients={clients}", labels, seed)
    assert found.shape == labels.shape
    assert set(found) == set(range(clients))
    assert (found == partition(f"{name}:clients={clients}", labels, seed)).all()


@pytest.mark.parametrize("name", ["iid", "dirichlet"])
@given(labels=labels_of_rows, seed=st.integers(0, 99), data=st.data())
def test_sizes_differ_by_one_row_at_most(name, labels, seed, data):
    clients = data.draw(st.integers(1, len(labels)))
    sizes = np.bincount(partition(f"{name}:clients={clients}", labels, seed))
    assert sizes.sum() == len(labels)
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("name", ["iid", "quantity"])
def test_partitions_without_label_skew_do_not_look_at_labels(name):
    labels = np.arange(500) % 7
    assert (partition(name, labels, 3) == partition(name, np.zeros(500, int), 3)).all()


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0, 1000.0])
def test_a_dirichlet_client_has_the_expected_label_skew(alpha):
    # E sum q^2 = (alpha sum p^2 + 1) / (alpha + 1) for q ~ Dirichlet(alpha p), and drawing m
    # rows by q adds 1/m of the rest. The first client draws before any label is used up.
    labels, rows, draws = np.arange(2000) % 10, 100, 300
    expected = (alpha / 10 + 1) / (alpha + 1)
    expected = ((rows - 1) * expected + 1) / rows
    found = []
    for seed in range(draws):
        first = labels[partition(f"dirichlet:clients=20,alpha={alpha}", labels, seed) == 0]
        found.append(((np.bincount(first) / rows) ** 2).sum())
    assert np.mean(found) == pytest.approx(expected, abs=4 * np.std(found) / draws**0.5)


def test_a_smaller_alpha_gives_more_label_skew():
    labels = np.arange(6000) % 10
    alphas = (1e-300, 0.1, 1.0, 10.0, 1e38)
    skews = [simpson(labels, partition(f"dirichlet:alpha={a}", labels)) for a in alphas]
    assert skews == sorted(skews, reverse=True)
    assert skews[0] > 0.9  # nearly one label each
    rows = 60
    assert skews[-1] == pytest.approx(0.1 * (1 - 1 / rows) + 1 / rows, abs=0.01)  # IID


@settings(max_examples=60)
@given(labels=labels_of_rows, per=st.integers(1, 4), seed=st.integers(0, 99), data=st.data())
def test_shards_have_few_labels(labels, per, seed, data):
    # Sorted rows change their label classes - 1 times, and each change adds a label to a shard.
    if len(labels) < per:
        return
    clients = data.draw(st.integers(1, len(labels) // per))
    found = partition(f"shards:clients={clients},per_client={per}", labels, seed)
    pairs = len(set(zip(found.tolist(), labels.tolist(), strict=True)))
    assert pairs <= clients * per + len(set(labels)) - 1
    sizes, smallest = np.bincount(found), len(labels) // (clients * per)
    assert sizes.min() >= per * smallest
    assert sizes.max() <= per * (smallest + 1)


def test_shards_of_mcmahan_give_two_digits_at_most():
    labels = np.random.default_rng(0).permutation(np.arange(6000) % 10)
    found = shards(labels, np.random.default_rng(1), clients=100, per_client=2)
    assert (np.bincount(found) == 60).all()
    assert max(len(set(labels[found == k])) for k in range(100)) == 2


@settings(max_examples=60)
@given(rows=st.integers(1, 400), sigma=st.floats(0, 100), data=st.data())
def test_quantity_shares_out_all_rows(rows, sigma, data):
    clients = data.draw(st.integers(1, rows))
    sizes = np.bincount(partition(f"quantity:clients={clients},sigma={sigma}", np.zeros(rows, int)))
    assert sizes.sum() == rows
    assert sizes.min() >= 1
    even = np.bincount(partition(f"quantity:clients={clients},sigma=0", np.zeros(rows, int)))
    assert even.max() - even.min() <= 1


@pytest.mark.parametrize("sigma", [0.25, 1.0])
def test_quantity_sizes_are_lognormal(sigma):
    clients = 2000
    spec = f"quantity:clients={clients},sigma={sigma}"
    sizes = np.bincount(partition(spec, np.zeros(1_000_000, np.uint8), seed=5))
    error = sigma / (2 * clients) ** 0.5  # of a standard deviation
    assert np.log(sizes).std() == pytest.approx(sigma, abs=4 * error)


def test_a_partition_makes_a_population_of_arrays():
    labels = np.arange(90) % 3
    data = from_arrays(labels[:, None] * 1.0, labels, partition("dirichlet:clients=9", labels))
    assert data.clients == 9
    assert (data.train.size == 10).all()


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("iid:clients=0", "clients=0"),
        ("iid:clients=11", "10 rows"),
        ("dirichlet:clients=2,alpha=0", "alpha=0"),
        ("dirichlet:clients=2,alpha=nan", "alpha=nan"),
        ("dirichlet:clients=2,alpha=inf", "alpha=inf"),
        ("shards:clients=5,per_client=3", "15 shards"),
        ("shards:clients=5,per_client=0", "per_client=0"),
        ("quantity:clients=2,sigma=-1", "sigma=-1"),
        ("quantity:clients=2,sigma=nan", "sigma=nan"),
        ("iid:alpha=1", "no option 'alpha'"),
        ("dirichlett", "Did you mean 'dirichlet'"),
    ],
)
def test_a_wrong_partition_is_named(spec, named):
    with pytest.raises(FedMomError, match=named):
        partition(spec, np.arange(10) % 2)


@pytest.mark.parametrize("labels", [np.zeros(4), np.zeros((4, 1), int), np.array(["a", "b"])])
def test_labels_are_whole_numbers_of_rows(labels):
    with pytest.raises(FedMomError, match="whole number"):
        partition("iid:clients=2", labels)


def test_a_negative_seed_is_refused():
    with pytest.raises(FedMomError, match="seed=-1"):
        partition("iid:clients=2", np.arange(4), -1)
