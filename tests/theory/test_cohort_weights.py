"""The weights of a round as random numbers, against all cohorts there are and against draws."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmom
from fedmom.theory.cohort_weights import weight_moments


def of_all_cohorts(sizes, per_round, weighting):
    """The moments by going through every cohort."""
    rows = []
    for cohort in map(list, itertools.combinations(range(len(sizes)), per_round)):
        row = np.zeros(len(sizes))
        total = {"population": sizes.sum(), "cohort": sizes[cohort].sum()}
        row[cohort] = 1 / per_round if weighting == "uniform" else sizes[cohort] / total[weighting]
        rows.append(row)
    rows = np.array(rows)
    return rows.mean(axis=0), rows.T @ rows / len(rows)


@given(
    st.lists(st.integers(1, 500), min_size=1, max_size=7),
    st.integers(1, 7),
    st.sampled_from(["population", "cohort", "uniform"]),
)
def test_the_moments_are_those_of_all_cohorts(sizes, per_round, weighting):
    sizes, per_round = np.array(sizes), min(per_round, len(sizes))
    found = weight_moments(sizes, per_round, weighting)
    mean, product = of_all_cohorts(sizes, per_round, weighting)
    np.testing.assert_allclose(found.mean, mean, atol=1e-9)
    np.testing.assert_allclose(found.product, product, atol=1e-9)


@pytest.mark.parametrize("per_round", [2, 10, 100])
def test_cohort_weights_add_up_to_one_in_a_large_population(per_round):
    sizes = np.ceil(np.random.default_rng(0).lognormal(4, 0.7, 200))
    found = weight_moments(sizes, per_round, "cohort")
    assert found.mean.sum() == pytest.approx(1, abs=1e-9)
    # Over one's cohort the weights add up to 1, so a row is E ω_k.
    np.testing.assert_allclose(found.product.sum(axis=1), found.mean, atol=1e-9)


@pytest.mark.parametrize(("per_round", "sizes"), [(2, [9, 4, 7, 3, 12]), (3, [90, 4, 7, 3, 12])])
def test_drawn_by_size_is_the_sampler(per_round, sizes):
    sizes = np.array(sizes)
    times = 5_000
    drawn = np.zeros((times, len(sizes)))
    for t in range(times):
        drawn[t, fedmom.weighted(0, t, per_round, sizes)] = 1 / per_round
    found = weight_moments(sizes, per_round, "uniform", "weighted")
    error = drawn.std(axis=0) / np.sqrt(times)
    assert np.all(np.abs(drawn.mean(axis=0) - found.mean) <= 4 * error + 1e-12)
    # Pairs are an approximation, and five clients are few.
    pairs = drawn.T @ drawn / times
    assert np.abs(pairs - found.product).max() < 0.05 * found.product.max()
    np.testing.assert_allclose(found.product.sum(axis=1), found.mean, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((0, "cohort"), "between 1 and the 3"),
        ((2, "other"), "none of"),
        ((2, "uniform", "poisson"), "poisson"),
        ((2, "cohort", "weighted"), "twice"),
    ],
)
def test_what_is_not_known_is_refused(arguments, says):
    with pytest.raises(fedmom.FedMomError, match=says):
        weight_moments(np.array([1, 2, 3]), *arguments)
