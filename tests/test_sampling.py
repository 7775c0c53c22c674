"""Cohorts: uniform, without replacement, a function of (seed, round), for any population."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmom.sampling import cohort


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
    expected = draws / len(subsets)
    chi_square = sum((counts[s] - expected) ** 2 / expected for s in subsets)
    # 9 degrees of freedom: mean 9, variance 18; six standard deviations above.
    assert chi_square < 9 + 6 * np.sqrt(18)


@pytest.mark.parametrize("clients", [10**3, 10**15])
def test_the_population_costs_nothing(clients):
    assert len(cohort(0, 0, clients, 10)) == 10  # 10^15 clients would not fit in memory
