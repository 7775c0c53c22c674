"""Cohorts: functions of (seed, round), with the probabilities they promise, for any population."""

from collections import Counter
from itertools import combinations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmom
from fedmom.training import SAMPLERS, samplers
from fedmom.training.samplers import cohort
from tests.training.scripted import SIZES, UPDATES, Scripted, begin, fedavg, one_round, rounds

DRAWS = 4000


def chi_square(counts, expected):
    """How far counts are from their expectations; with d degrees of freedom its mean is d."""
    return sum((counts[k] - e) ** 2 / e for k, e in expected.items())


def bound(degrees):
    """Six standard deviations above the mean of a chi-square."""
    return degrees + 6 * np.sqrt(2 * degrees)


@given(data=st.data(), seed=st.integers(0, 2**32 - 1), round_=st.integers(0, 10**6))
def test_a_cohort_has_m_different_clients_of_the_population(data, seed, round_):
    clients = data.draw(st.integers(1, 10**9))
    size = data.draw(st.integers(1, min(clients, 50)))
    chosen = cohort(seed, round_, clients, size)
    assert len(set(chosen.tolist())) == size
    assert chosen.min() >= 0
    assert chosen.max() < clients
    assert (np.diff(chosen) > 0).all()


def test_it_depends_on_seed_and_round_alone():
    first = [cohort(7, t, 100, 5).tolist() for t in range(20)]
    assert first == [cohort(7, t, 100, 5).tolist() for t in range(20)]
    assert first != [cohort(8, t, 100, 5).tolist() for t in range(20)]
    assert len({tuple(c) for c in first}) > 15


def test_everyone_is_taken_when_m_is_k():
    assert cohort(0, 3, 9, 9).tolist() == list(range(9))


def test_every_subset_is_equally_likely():
    draws = 6000
    counts = Counter(tuple(cohort(1, t, 5, 2).tolist()) for t in range(draws))
    subsets = list(combinations(range(5), 2))
    assert chi_square(counts, dict.fromkeys(subsets, draws / len(subsets))) < bound(9)


@pytest.mark.parametrize("clients", [10**3, 10**15])
def test_the_population_costs_nothing(clients):
    assert len(cohort(0, 0, clients, 10)) == 10  # 10^15 clients would not fit in memory


MANY = np.broadcast_to(np.int64(1), 10**15)  # clients' sizes, which no memory could hold


@pytest.mark.parametrize("name", ["uniform", "poisson"])
def test_only_the_number_of_clients_is_looked_at(name):
    chosen = SAMPLERS[name](0, 0, 10, MANY)
    assert (np.diff(chosen) > 0).all()


def test_uniform_is_the_papers_cohort():
    for t in range(10):
        np.testing.assert_array_equal(fedmom.uniform(3, t, 2, SIZES), cohort(3, t, 5, 2))


class TestPoisson:
    """Each client by itself with probability M/K."""

    clients, size = 8, 3

    def drawn(self):
        samples = np.ones(self.clients, np.int64)
        rows = np.zeros((DRAWS, self.clients), bool)
        for t in range(DRAWS):
            rows[t, fedmom.poisson(5, t, self.size, samples)] = True
        return rows

    def test_every_client_is_in_with_probability_m_over_k(self):
        p = self.size / self.clients
        shares = self.drawn().mean(axis=0)
        np.testing.assert_allclose(shares, p, atol=5 * np.sqrt(p * (1 - p) / DRAWS))

    def test_sizes_are_binomial(self):
        k, p = self.clients, self.size / self.clients
        counts = Counter(self.drawn().sum(axis=1).tolist())
        choose = [1]
        for i in range(k):
            choose.append(choose[-1] * (k - i) // (i + 1))
        expected = {s: DRAWS * choose[s] * p**s * (1 - p) ** (k - s) for s in range(k + 1)}
        assert chi_square(counts, expected) < bound(k)
        assert counts[0] > 0  # a cohort may be empty

    def test_clients_are_independent(self):
        correlations = np.corrcoef(self.drawn().T)[np.triu_indices(self.clients, 1)]
        np.testing.assert_allclose(correlations, 0, atol=5 / np.sqrt(DRAWS))

    def test_an_empty_cohort_changes_nothing_for_fedavg(self):
        empty = next(t for t in range(1000) if len(fedmom.poisson(0, t, 1, SIZES)) == 0)
        pace = fedmom.synchronous(1, fedmom.poisson)
        first = begin(fedavg(), jnp.arange(3.0))._replace(round=empty)
        after, record = one_round(Scripted(), pace=pace, state=first)
        np.testing.assert_array_equal(after.params, first.params)
        assert (record.cohort, record.replies, record.train_loss) == ([], 0, None)
        assert record.update_norm == 0

    def test_with_m_equal_k_everybody_is_in(self):
        assert fedmom.poisson(0, 0, 4, np.ones(4, int)).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("large", [samplers.LARGE, 1], ids=["systematic", "sampford"])
class TestWeighted:
    """A client is in with probability M n_k/n, however large the population is."""

    @pytest.fixture(autouse=True)
    def _large(self, large, monkeypatch):
        monkeypatch.setattr(samplers, "LARGE", large)

    def shares(self, samples, size):
        samples = np.array(samples)
        rows = np.zeros((DRAWS, len(samples)), bool)
        for t in range(DRAWS):
            rows[t, fedmom.weighted(2, t, size, samples)] = True
        assert (rows.sum(axis=1) == size).all()
        return rows.mean(axis=0)

    @pytest.mark.parametrize("size", [1, 2, 3])
    def test_a_client_is_in_as_often_as_its_samples_say(self, size):
        samples = np.array([1, 2, 3, 5, 5, 4])
        p = size * samples / samples.sum()
        within = 5 * np.sqrt(p * (1 - p) / DRAWS)
        assert (abs(self.shares(samples, size) - p) <= within).all()

    def test_a_client_with_more_than_its_share_is_always_in(self):
        """12 of 20 samples are more than one in two; the others share what is left."""
        found = self.shares([1, 2, 5, 12], 2)
        assert found[3] == 1
        np.testing.assert_allclose(found[:3], np.array([1, 2, 5]) / 8, atol=0.05)

    def test_every_pair_meets(self):
        samples = np.full(6, 10)
        met = Counter(tuple(fedmom.weighted(0, t, 2, samples).tolist()) for t in range(DRAWS))
        assert chi_square(met, dict.fromkeys(combinations(range(6), 2), DRAWS / 15)) < bound(14)

    def test_a_client_without_samples_is_never_drawn(self):
        samples = np.array([0, 5, 0, 5])
        assert all(fedmom.weighted(0, t, 2, samples).tolist() == [1, 3] for t in range(20))
        with pytest.raises(
            fedmom.FedMomError, match="clients-per-round 3 is not between 1 and the 2 "
        ):
            fedmom.weighted(0, 0, 3, samples)

    def test_the_two_ways_are_not_one(self, large):
        """A large population is not put in order for every draw: that took 0.4 s of a million."""
        sizes = np.arange(1, 13)
        order = np.random.Generator(np.random.Philox(key=np.array([0, 5], np.uint64)))
        ends = np.cumsum(sizes[drawn := order.permutation(12)])
        points = (order.random() + np.arange(2)) * ends[-1] / 2
        systematic = sorted(drawn[np.searchsorted(ends, points, side="right")].tolist())
        found = fedmom.weighted(0, 5, 2, sizes).tolist()
        assert (found == systematic) == (large > len(sizes))

    @given(sizes=st.lists(st.integers(1, 50), min_size=2, max_size=12), data=st.data())
    def test_cohorts_of_any_size_can_be_drawn(self, sizes, data):
        size = data.draw(st.integers(1, len(sizes)))
        samples = np.array(sizes)
        for t in range(20):
            assert len(set(fedmom.weighted(0, t, size, samples).tolist())) == size

    @pytest.mark.parametrize("size", [1, 2])
    def test_with_uniform_weights_the_mean_over_draws_is_the_populations(self, size):
        """The expected update is Σ n_k/n Δ_k."""
        drawn = [fedmom.weighted(1, t, size, SIZES) for t in range(DRAWS)]
        mean = np.mean([UPDATES[clients].mean(axis=0) for clients in drawn], axis=0)
        expected = SIZES @ UPDATES / SIZES.sum()
        np.testing.assert_allclose(mean, expected, atol=5 * UPDATES.std() / np.sqrt(DRAWS))


@pytest.mark.parametrize("name", SAMPLERS)
class TestContract:
    """What the loop relies on, for every sampler."""

    def test_it_is_a_function_of_seed_and_round(self, name):
        def draw(seed, t):
            return SAMPLERS[name](seed, t, 6, np.arange(1, 41)).tolist()

        drawn = [draw(1, t) for t in range(30)]
        assert drawn == [draw(1, t) for t in reversed(range(30))][::-1]
        assert drawn != [draw(2, t) for t in range(30)]
        assert len({tuple(c) for c in drawn}) > 25

    def test_clients_are_different_and_of_the_population(self, name):
        for t in range(50):
            chosen = SAMPLERS[name](0, t, 6, np.arange(1, 41))
            assert chosen.dtype == np.int64
            assert (np.diff(chosen) > 0).all()
            assert not len(chosen) or (chosen[0] >= 0 and chosen[-1] < 40)

    @pytest.mark.parametrize("size", [0, -1, 6])
    def test_an_impossible_cohort_is_refused(self, name, size):
        with pytest.raises(
            fedmom.FedMomError, match=f"clients-per-round {size} is not between 1 and the 5 clients"
        ):
            SAMPLERS[name](0, 0, size, SIZES)


def test_a_users_own_function_is_a_sampler():
    """Anything of (seed, round, size, samples) that names clients, also as a plain list."""

    def mine(seed, round_, size, samples):
        assert (size, samples.tolist()) == (2, SIZES.tolist())
        return [(seed + round_) % 5, 4]

    pace = fedmom.synchronous(2, mine)
    runtime = Scripted()
    found = rounds(runtime, fedavg("uniform"), 3, pace=pace)
    assert [r.cohort for _, r in found] == [[0, 4], [1, 4], [2, 4]]
    np.testing.assert_allclose(found[0][0].params, -UPDATES[[0, 4]].mean(axis=0), rtol=1e-6)


@pytest.mark.parametrize(
    "cohort",
    [[0, 7], [-1, 2], [3, 3], [0.5, 1], [[0, 1]], {0, 1}, None, "01", [True, False]],
    ids=str,
)
def test_a_sampler_that_names_nobody_or_twice_is_refused(cohort):
    pace = fedmom.synchronous(2, lambda *_: cohort)
    with pytest.raises(fedmom.FedMomError, match="sampler"):
        one_round(Scripted(), pace=pace)
