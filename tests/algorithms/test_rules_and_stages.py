"""Rules and stages against formulas written in NumPy."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmom
from fedmom.algorithms.rules import mean, median, trimmed_mean
from fedmom.algorithms.stages import clip, noise, quantize
from fedmom.core.types import WEIGHTINGS

SAMPLES = np.array([10, 20, 30, 40])


@pytest.mark.parametrize(
    ("weighting", "weights", "scale"),
    [
        ("population", [10, 20, 30, 40], 1 / 1000),
        ("cohort", [10, 20, 30, 40], 1 / 100),
        ("uniform", [1, 1, 1, 1], 1 / 4),
    ],
)
def test_the_weights_of_a_mean(weighting, weights, scale):
    rule = mean(weighting)
    assert rule.needs == "sum"
    found = rule.weigh(SAMPLES)
    np.testing.assert_array_equal(found, weights)
    assert rule.scale(found.sum(), 1000) == pytest.approx(scale)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_without_replies_a_mean_divides_by_something(weighting):
    assert math.isfinite(mean(weighting).scale(0.0, 1000))


def test_the_paper_s_weights_are_the_default():
    assert mean() == mean("population")
    assert fedmom.Algorithm(fedmom.servers.fedavg()).rule is None  # which is the same to the loop


@pytest.mark.parametrize("name", ["unifrom", "", "Population", None, 1])
def test_another_weighting_is_refused_in_a_sentence(name):
    """Earlier, weights of an unknown name were those of the cohort."""
    with pytest.raises(
        fedmom.FedMomError,
        match=rf"weighting is {name!r}\. It must be 'population', 'cohort' or 'uniform'\.",
    ):
        mean(name)


def trimmed(rows, share):
    """NumPy: sort each coordinate, and leave out floor(share * n) at either end."""
    cut = math.floor(Fraction(str(share)) * len(rows))
    return np.sort(rows, axis=0)[cut : len(rows) - cut].mean(axis=0)


@given(
    # All numbers of replies that count, out of few that are sent: each of those is compiled.
    sent=st.sampled_from([(1, 0), *((n, 5 - n) for n in range(1, 6)), (9, 0), (6, 3)]),
    share=st.sampled_from([0, 0.1, 0.2, 0.25, 0.3, 0.4, 0.49]),
    seed=st.integers(0, 1000),
)
def test_a_trimmed_mean_is_that_of_numpy(sent, share, seed):
    """Rows that do not count may hold anything, and may be anywhere."""
    rows, missing = sent
    rng = np.random.default_rng(seed)
    tree = {
        "w": rng.normal(size=(rows + missing, 2, 3)).astype(np.float32),
        "b": rng.integers(-2, 3, (rows + missing, 4)).astype(np.float32),  # with ties
    }
    counted = rng.permutation(np.arange(rows + missing) < rows)
    for leaf in tree.values():
        leaf[~counted] = rng.choice([np.nan, np.inf, -np.inf, 1e30], leaf[~counted].shape)
    found, state, _ = trimmed_mean(share=share).each(tree, counted.astype(np.float32), ("mine",))
    assert state == ("mine",)
    assert jax.tree.structure(found) == jax.tree.structure(tree)
    for name, leaf in tree.items():
        assert found[name].dtype == leaf.dtype
        np.testing.assert_allclose(found[name], trimmed(leaf[counted], share), rtol=1e-5, atol=1e-6)


def test_a_trimmed_mean_without_replies_is_zero():
    nothing = {"w": jnp.full((3, 2), jnp.nan)}
    found, _, _ = trimmed_mean(share=0.2).each(nothing, jnp.zeros(3), ())
    np.testing.assert_array_equal(found["w"], np.zeros(2))


def test_as_many_are_cut_as_the_share_says_exactly():
    """0.3 of 10 is 3; products in floating point may fall below."""
    for percent in (0, 7, 10, 29, 30, 42, 49):
        for rows in (1, 7, 10, 100, 150):
            rule, values = trimmed_mean(share=percent / 100), np.zeros((rows, 1), np.float32)
            cut = percent * rows // 100
            values[cut : rows - cut] = 1  # in order: if more or fewer are cut, the mean shows it
            values[rows - cut :] = 10
            values[:cut] = -10
            found = only(rule, values)
            assert found == 1, (percent, rows)


def only(rule, values):
    return float(rule.each(values, np.ones(len(values), np.float32), ())[0][0])


def test_outliers_of_fewer_than_the_share_change_little():
    """What Yin et al. promise: a bad client moves each coordinate within the others' range."""
    rng = np.random.default_rng(0)
    good = rng.normal(size=(9, 5)).astype(np.float32)
    for bad in (1e30, -1e30):
        rows = np.vstack([good, np.full((1, 5), bad, np.float32)])
        found = np.asarray(trimmed_mean(share=0.1).each(rows, jnp.ones(10), ())[0])
        assert (found <= good.max(axis=0)).all()
        assert (found >= good.min(axis=0)).all()


def test_a_trimmed_mean_needs_each_reply_and_weighs_them_alike():
    rule = trimmed_mean("uniform", share=0.2)
    assert rule.needs == "each"
    np.testing.assert_array_equal(rule.weigh(SAMPLES), np.ones(4))


@pytest.mark.parametrize("rule", [trimmed_mean, median])
def test_rules_of_coordinates_refuse_weights_that_do_not_add_up_to_one(rule):
    np.testing.assert_array_equal(rule("cohort").weigh(SAMPLES), SAMPLES)
    with pytest.raises(
        fedmom.FedMomError, match=r"cannot use population weights, .* Use --weighting uniform"
    ):
        rule("population")


@pytest.mark.parametrize("share", [-0.1, 0.5, 1.0, math.nan])
def test_a_share_outside_its_range_is_refused(share):
    with pytest.raises(fedmom.FedMomError, match=r"trimmed_mean: share=.* is not in \[0, 0\.5\)"):
        trimmed_mean(share=share)


def by_weight(values, weights, share=None):
    """Of one coordinate, value by value: the median, or the mean without a share of weight."""
    order = np.argsort(values, kind="stable")
    values, weights = values[order].astype(float), [Fraction(int(w)) for w in weights[order]]
    total, below = sum(weights), np.cumsum([Fraction(0), *weights])[:-1]
    if share is None:
        low = next(v for v, w, b in zip(values, weights, below, strict=True) if b + w >= total / 2)
        high = next(v for v, w, b in zip(values, weights, below, strict=True) if b + w > total / 2)
        return (low + high) / 2
    cut = Fraction(str(share)) * total
    inside = [
        (v, int(w))
        for v, w, b in zip(values, weights, below, strict=True)
        if b + w > cut and total - b > cut
    ]
    return np.average([v for v, _ in inside], weights=[w for _, w in inside])


@given(
    size=st.sampled_from([1, 2, 5, 8]),  # each is compiled
    share=st.sampled_from([None, 0.0, 0.1, 0.25, 0.4]),
    seed=st.integers(0, 1000),
)
def test_weights_count_in_a_median_and_in_a_trimmed_mean(size, share, seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(size, 3)).astype(np.float32)
    weights = rng.integers(0, 50, size)
    weights[rng.integers(size)] += 1
    rule = median("cohort") if share is None else trimmed_mean("cohort", share=share)
    found, _, _ = rule.each(rows, weights.astype(np.float32), ())
    counted = weights > 0
    expected = [by_weight(column, weights[counted], share) for column in rows[counted].T]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@given(
    sent=st.sampled_from([(1, 0), (2, 1), (3, 2), (5, 0), (6, 3)]),
    seed=st.integers(0, 1000),
)
def test_a_median_is_that_of_numpy(sent, seed):
    """Rows that do not count may hold anything, and may be anywhere."""
    rows, missing = sent
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(rows + missing, 4)).astype(np.float32)
    counted = rng.permutation(np.arange(rows + missing) < rows)
    values[~counted] = rng.choice([np.nan, np.inf, -np.inf], values[~counted].shape)
    found, _, _ = median().each({"w": values}, counted.astype(np.float32), ())
    np.testing.assert_allclose(found["w"], np.median(values[counted], axis=0), rtol=1e-5)


@given(norm=st.floats(0.01, 100), scale=st.floats(1e-3, 1e3), seed=st.integers(0, 1000))
def test_clipping_is_its_formula(norm, scale, seed):
    rng = np.random.default_rng(seed)
    tree = {
        k: (scale * rng.normal(size=s)).astype(np.float32) for k, s in (("w", (2, 3)), ("b", 4))
    }
    found, state, metrics = clip(norm=norm).encode(tree, ("mine",), (), None)
    assert state == ("mine",)
    length = math.sqrt(sum(float((leaf.astype(float) ** 2).sum()) for leaf in tree.values()))
    factor = min(1, norm / length)
    assert metrics["share"] == (length > norm)
    for name, leaf in tree.items():
        np.testing.assert_allclose(found[name], factor * leaf, rtol=1e-5)
        assert found[name].dtype == leaf.dtype


def test_clipping_leaves_zero_and_short_updates_alone():
    for update in (np.zeros(3, np.float32), np.full(3, 0.5, np.float32)):
        found, _, _ = clip(norm=1.0).encode(update, (), (), None)
        np.testing.assert_array_equal(found, update)


@pytest.mark.parametrize("norm", [0, -1, math.inf, math.nan])
def test_a_norm_that_is_none_is_refused(norm):
    with pytest.raises(fedmom.FedMomError, match=r"clip: norm .* must be a number greater than 0"):
        clip(norm=norm)


@pytest.mark.parametrize("bits", [2, 5, 8, 12, 16])
def test_quantized_updates_are_right_on_average_and_within_a_step(bits):
    rng = np.random.default_rng(bits)
    update = {"w": rng.normal(size=(3, 4)).astype(np.float32), "b": np.zeros(2, np.float32)}
    stage = quantize(bits=bits)
    keys = jax.random.split(jax.random.key(0), 2000)
    encoded = jax.vmap(lambda key: stage.encode(update, (), (), key)[0])(keys)
    assert encoded[0]["w"].dtype == (jnp.int8 if bits <= 8 else jnp.int16)
    decoded = jax.vmap(lambda sent: stage.decode(sent, update))(encoded)
    step = np.abs(update["w"]).max() / (2 ** (bits - 1) - 1)
    assert np.abs(decoded["w"] - update["w"]).max() <= step * 1.01
    error = np.abs(np.asarray(decoded["w"], float).mean(axis=0) - update["w"])
    assert error.max() < 5 * step / 2 / math.sqrt(2000) + 1e-6
    np.testing.assert_array_equal(decoded["b"], 0)


@pytest.mark.parametrize("bits", [1, 17, 0])
def test_impossible_numbers_of_bits_are_refused(bits):
    with pytest.raises(fedmom.FedMomError, match=f"quantize: bits={bits} must be from 2 to 16"):
        quantize(bits=bits)


@pytest.mark.parametrize("std", [0, -1, math.inf, math.nan])
def test_noise_that_is_none_is_refused(std):
    with pytest.raises(fedmom.FedMomError, match=r"noise: std .* must be a number greater than 0"):
        noise(std=std)
