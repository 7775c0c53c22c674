"""Robust rules and mixing stages against NumPy, against byzfl where it is installed, and by law."""

import importlib
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedmom
from fedmom.algorithms.base import Round
from fedmom.core.errors import FedMomError

N, D = 9, 6  # one shape for all examples: each is compiled
HONEST, F = 7, 2


def krum_scores(rows, f):
    """Blanchard et al. (2017): the squared distances to the n - f - 2 nearest others."""
    distances = ((rows[:, None] - rows) ** 2).sum(-1)
    return np.sort(distances, axis=1)[:, 1 : max(len(rows) - f - 2, 1) + 1].sum(1)


def krum(rows, f=F):
    return rows[krum_scores(rows, f).argmin()]


def multi_krum(rows, f=F, keep=None):
    best = np.argsort(krum_scores(rows, f))[: keep or len(rows) - f]
    return rows[best].mean(0)


def geometric_median(rows, iterations=32, smoothing=1e-6):
    z = np.zeros(rows.shape[1])
    for _ in range(iterations):
        betas = 1 / np.maximum(np.linalg.norm(rows - z, axis=1), smoothing)
        z = betas @ rows / betas.sum()
    return z


def centered_clipping(rows, v=0.0, radius=1.0, iterations=1):
    for _ in range(iterations):
        apart = rows - v
        lengths = np.linalg.norm(apart, axis=1)[:, None]
        v = v + (apart * np.minimum(1, radius / lengths)).mean(0)
    return v


def norm_bound(rows, norm=1.0):
    lengths = np.linalg.norm(rows, axis=1)[:, None]
    return (rows * np.minimum(1, norm / lengths)).mean(0)


def lower_median(values):
    return np.sort(values)[(len(values) - 1) // 2]


RULES = {
    "krum": (fedmom.krum(attackers=F), krum),
    "multi_krum": (fedmom.multi_krum(attackers=F), multi_krum),
    "multi_krum_3": (fedmom.multi_krum(attackers=F, keep=3), lambda r: multi_krum(r, keep=3)),
    "geometric_median": (fedmom.geometric_median(), geometric_median),
    "centered_clipping": (fedmom.centered_clipping(radius=1.0), centered_clipping),
    "clipping_thrice": (
        fedmom.centered_clipping(radius=1.0, iterations=3),
        lambda r: centered_clipping(r, iterations=3),
    ),
    "clipping_by_median": (
        fedmom.centered_clipping(),
        lambda r: centered_clipping(r, radius=lower_median(np.linalg.norm(r, axis=1))),
    ),
    "norm_bound": (fedmom.norm_bound(norm=1.0), norm_bound),
    "bound_by_median": (
        fedmom.norm_bound(),
        lambda r: norm_bound(r, lower_median(np.linalg.norm(r, axis=1))),
    ),
    "median": (fedmom.median(), lambda r: np.median(r, axis=0)),
    "trimmed_mean": (
        fedmom.trimmed_mean(share=0.25),
        lambda r: np.sort(r, axis=0)[2:-2].mean(0),
    ),
}
ROBUST = ["krum", "multi_krum", "geometric_median", "median", "trimmed_mean"]
SEEDS = st.integers(0, 10_000)


def drawn(seed, scale=1.0, centre=1.0):
    rng = np.random.default_rng(seed)
    return (centre + scale * rng.normal(size=(N, D))).astype(np.float32)


_COMPILED = {name: jax.jit(rule.each) for name, (rule, _) in RULES.items()}


def aggregate(name, rows, weights=None):
    """The rule on a tree of two leaves, as a vector."""
    rule = RULES[name][0]
    tree = {"b": jnp.asarray(rows[:, :2]), "w": jnp.asarray(rows[:, 2:]).reshape(len(rows), 2, -1)}
    weights = np.ones(len(rows), np.float32) if weights is None else weights
    state = rule.init(jax.tree.map(lambda leaf: leaf[0], tree))
    found = _COMPILED[name](tree, jnp.asarray(weights), state)[0]
    return np.concatenate([np.ravel(found["b"]), np.ravel(found["w"])])


@pytest.mark.parametrize("name", RULES)
@given(seed=SEEDS)
@settings(max_examples=10)
def test_a_rule_is_that_of_numpy(name, seed):
    rows = drawn(seed)
    np.testing.assert_allclose(aggregate(name, rows), RULES[name][1](rows), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", RULES)
@given(seed=SEEDS)
@settings(max_examples=5)
def test_the_order_of_replies_is_of_no_effect(name, seed):
    rows = drawn(seed)
    mixed = np.random.default_rng(seed + 1).permutation(rows)
    np.testing.assert_allclose(aggregate(name, mixed), aggregate(name, rows), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", RULES)
@given(seed=SEEDS, junk=st.sampled_from([np.nan, np.inf, 1e30]))
@settings(max_examples=5)
def test_replies_of_weight_0_do_not_count_whatever_they_hold(name, seed, junk):
    """Two are missing of nine: the rule is that of seven."""
    rows = drawn(seed)
    weights = np.random.default_rng(seed).permutation(np.arange(N) < 7).astype(np.float32)
    rows[weights == 0] = junk
    reference = RULES[name][1]
    if name == "trimmed_mean":  # a quarter of seven is one
        reference = lambda r: np.sort(r, axis=0)[1:-1].mean(0)  # noqa: E731
    expected = reference(rows[weights > 0])
    np.testing.assert_allclose(aggregate(name, rows, weights), expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["krum", "multi_krum", "geometric_median", "median"])
@given(seed=SEEDS, scale=st.sampled_from([0.01, 3.0, 100.0]), shift=st.floats(-5, 5))
@settings(max_examples=5)
def test_rules_move_and_scale_with_the_replies(name, seed, scale, shift):
    rows = drawn(seed)
    tolerance = 2e-2 if name == "geometric_median" else 1e-3  # it has not quite arrived
    moved = aggregate(name, (scale * rows + shift).astype(np.float32))
    np.testing.assert_allclose(
        moved, scale * aggregate(name, rows) + shift, rtol=1e-2, atol=tolerance * scale + 1e-4
    )


@pytest.mark.parametrize("name", ROBUST)
@given(seed=SEEDS, size=st.sampled_from([1e2, 1e6, 1e17]), side=st.sampled_from([-1, 1, 0]))
@settings(max_examples=8)
def test_attackers_below_the_breakdown_point_do_not_move_it_far(name, seed, size, side):
    """Two of nine send anything; the aggregate stays about as near as honest replies are."""
    rows = drawn(seed, scale=0.1)
    rng = np.random.default_rng(seed)
    bad = np.full((F, D), side * size) if side else size * rng.normal(size=(F, D))
    rows[:F] = bad
    honest = rows[F:]
    found = aggregate(name, rng.permutation(rows))
    radius = np.linalg.norm(honest - honest.mean(0), axis=1).max()
    assert np.linalg.norm(found - honest.mean(0)) <= 2 * radius


@pytest.mark.parametrize("name", ["centered_clipping", "norm_bound"])
@given(seed=SEEDS, size=st.sampled_from([1e2, 1e17]))
@settings(max_examples=5)
def test_of_a_clipping_rule_an_attacker_moves_its_weight_times_the_radius(name, seed, size):
    rows = drawn(seed)
    rows[0] = 0
    without = aggregate(name, rows)
    rows[0] = size
    assert np.linalg.norm(aggregate(name, rows) - without) <= 1.0 / N * (1 + 1e-3)


def test_the_mean_breaks_where_they_hold():
    """The bound above is one that can fail."""
    rows = drawn(0, scale=0.1)
    rows[:F] = 1e6
    assert np.linalg.norm(rows.mean(0) - rows[F:].mean(0)) > 1e5


def test_centered_clipping_goes_on_from_its_last_aggregate():
    rule, v = fedmom.centered_clipping(radius=0.5), np.zeros(3)
    each = jax.jit(rule.each)
    state = rule.init(jnp.zeros(3))
    for seed in range(3):
        rows = np.random.default_rng(seed).normal(size=(5, 3)).astype(np.float32)
        v = centered_clipping(rows, v, radius=0.5)
        found, state, _ = each(jnp.asarray(rows), jnp.ones(5), state)
        np.testing.assert_allclose(found, v, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(found, state)


def test_a_stale_reply_counts_less_in_a_mean_of_rows():
    rows = jnp.array([[0.0], [1.0]])
    found, _, _ = fedmom.norm_bound(norm=10.0).each(rows, jnp.array([1.0, 0.5]), ())
    assert float(found[0]) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: fedmom.krum("population"),
        lambda: fedmom.geometric_median("population"),
        lambda: fedmom.centered_clipping("population"),
        lambda: fedmom.norm_bound("population"),
        lambda: fedmom.norm_bound(norm=0.0),
        lambda: fedmom.centered_clipping(radius=-1.0),
        lambda: fedmom.geometric_median(smoothing=0.0),
    ],
)
def test_options_that_make_no_sense_are_refused(make):
    with pytest.raises(FedMomError):
        make()


def here(clients, number=0):
    """Whose the rows are, and a round."""
    key = jax.random.fold_in(jax.random.key(0), number)
    return jnp.asarray(clients), Round(number, key, len(clients), 1.0, 1.0)


BUCKETS = {size: jax.jit(fedmom.bucketing(size=size).mix) for size in (1, 2, 4)}
NEAREST = jax.jit(fedmom.nearest_neighbour_mixing(attackers=F).mix)


@given(seed=SEEDS, size=st.sampled_from([*BUCKETS]))
@settings(max_examples=10)
def test_buckets_are_means_of_replies_each_in_one(seed, size):
    rows = drawn(seed)
    mixed, weights = BUCKETS[size](jnp.asarray(rows), jnp.ones(N), *here(np.arange(N), seed))
    assert len(mixed) == math.ceil(N / size)
    assert sorted(np.asarray(weights).tolist(), reverse=True) == [
        *[float(size)] * (N // size),
        *([float(N % size)] if N % size else []),
    ]
    np.testing.assert_allclose(
        np.asarray(weights) @ np.asarray(mixed) / N, rows.mean(0), rtol=1e-3, atol=1e-5
    )
    if size == 1:
        np.testing.assert_allclose(np.sort(mixed, axis=0), np.sort(rows, axis=0), rtol=1e-5)


def test_buckets_follow_from_round_and_client_whatever_the_order_of_the_replies():
    rows, order = drawn(3), np.random.default_rng(0).permutation(N)
    mix = BUCKETS[2]
    one, _ = mix(jnp.asarray(rows), jnp.ones(N), *here(np.arange(N)))
    other, _ = mix(jnp.asarray(rows[order]), jnp.ones(N), *here(order))
    np.testing.assert_allclose(np.sort(one, axis=0), np.sort(other, axis=0), rtol=1e-5)
    later, _ = mix(jnp.asarray(rows), jnp.ones(N), *here(np.arange(N), 1))
    assert not np.allclose(np.sort(one, axis=0), np.sort(later, axis=0))


def test_missing_replies_are_in_no_bucket():
    rows = drawn(0)
    rows[5:] = np.nan
    weights = (np.arange(N) < 5).astype(np.float32)
    clients = np.where(weights > 0, np.arange(N), -1)
    mixed, left = BUCKETS[2](jnp.asarray(rows), weights, *here(clients))
    assert np.asarray(left).tolist() == [2, 2, 1, 0, 0]
    assert np.isfinite(mixed).all()


def mixed_by_hand(rows, f=F):
    distances = ((rows[:, None] - rows) ** 2).sum(-1)
    nearest = np.argsort(distances, axis=1, kind="stable")[:, : len(rows) - f]
    return rows[nearest].mean(1)


@given(seed=SEEDS)
@settings(max_examples=10)
def test_nearest_neighbour_mixing_is_that_of_numpy(seed):
    rows = drawn(seed)
    mixed, weights = NEAREST(jnp.asarray(rows), jnp.ones(N), None, None)
    np.testing.assert_allclose(mixed, mixed_by_hand(rows), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(weights, np.ones(N))


@pytest.mark.parametrize("name", ["Krum", "MultiKrum", "GeometricMedian", "CenteredClipping"])
def test_rules_are_those_of_byzfl(name):
    """byzfl's Krum counts n - f - 1 neighbours, where the paper has n - f - 2."""
    byzfl = pytest.importorskip("byzfl.aggregators.aggregators")
    theirs, ours = {
        "Krum": (byzfl.Krum(f=F), fedmom.krum(attackers=F - 1)),
        "MultiKrum": (byzfl.MultiKrum(f=F), fedmom.multi_krum(attackers=F - 1, keep=N - F)),
        "GeometricMedian": (
            byzfl.GeometricMedian(nu=0.1, T=3),
            fedmom.geometric_median(iterations=3, smoothing=0.1),
        ),
        "CenteredClipping": (
            byzfl.CenteredClipping(L=2, tau=0.7),
            fedmom.centered_clipping(radius=0.7, iterations=2),
        ),
    }[name]
    state, each = ours.init(jnp.zeros(D)), jax.jit(ours.each)
    for seed in range(10):  # of the last one, byzfl keeps its state as well
        rows = drawn(seed)
        found, state, _ = each(jnp.asarray(rows), jnp.ones(N), state)
        np.testing.assert_allclose(found, theirs(rows), rtol=1e-3, atol=1e-5)


def test_mixing_and_attacks_are_those_of_byzfl():
    pytest.importorskip("byzfl.aggregators.preaggregators")
    before = importlib.import_module("byzfl.aggregators.preaggregators")
    attacks = importlib.import_module("byzfl.attacks.attacks")
    rows = drawn(5)
    mixed, _ = fedmom.nearest_neighbour_mixing(attackers=F).mix(
        jnp.asarray(rows), jnp.ones(N), None
    )
    np.testing.assert_allclose(mixed, before.NNM(f=F)(rows), rtol=1e-4, atol=1e-5)
    mean, deviation = rows.mean(0), rows.std(0, ddof=1)
    np.testing.assert_allclose(
        fedmom.alie(z=-1.5).collude(mean, deviation), attacks.ALittleIsEnough(tau=1.5)(rows), 1e-4
    )
    np.testing.assert_allclose(
        fedmom.ipm(scale=2.0).collude(mean, deviation),
        attacks.InnerProductManipulation(tau=2.0)(rows),
        1e-4,
    )
