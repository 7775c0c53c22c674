"""From replies to one aggregate: laws of the sum, groups and rules."""

import math
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

import fedmom
from fedmom.runtimes.base import Block
from fedmom.runtimes.sums import AT_ONCE, RunningSum, Sum
from fedmom.training.pace import AGAIN
from tests.training.scripted import (
    LOSSES,
    SIZES,
    UPDATES,
    Scripted,
    block,
    everybody,
    fedavg,
    one_round,
    rounds,
    weights_of,
)

WEIGHTINGS = ("population", "cohort", "uniform")


def sending(*blocks):
    return Scripted(lambda *_: blocks)


def result(runtime, weighting, **options):
    """The aggregate of a round, its mean loss and how many replied."""
    state, record = one_round(runtime, fedavg(weighting), **options)
    return -np.asarray(state.params), record.train_loss, record.replies


def parts_of(order, cuts):
    """A list in pieces."""
    ends = sorted({c for c in cuts if 0 < c < len(order)})
    return [order[a:b] for a, b in zip([0, *ends], [*ends, len(order)], strict=True)]


@given(
    order=st.permutations(range(5)),
    cuts=st.lists(st.integers(1, 4), max_size=4),
    weighting=st.sampled_from(WEIGHTINGS),
)
def test_neither_the_order_nor_the_blocks_of_replies_matter(order, cuts, weighting):
    found, loss, replies = result(
        sending(*(block(part) for part in parts_of(order, cuts))), weighting
    )
    weights = weights_of(weighting, np.arange(5))
    np.testing.assert_allclose(found, weights @ UPDATES, rtol=1e-5, atol=1e-6)
    assert loss == pytest.approx(weights @ LOSSES / weights.sum(), rel=1e-5)
    assert replies == 5


def grouped(groups, weighting):
    """A block with a row per group: the weighted mean of its members, as a runtime sums them."""
    clients = np.concatenate(groups)
    rows, losses = [], []
    for group in groups:
        shares = np.ones(len(group)) if weighting == "uniform" else SIZES[group]
        shares = shares / shares.sum()
        rows.append(shares @ UPDATES[group])
        losses.append(shares @ LOSSES[group])
    return block(
        clients,
        jnp.asarray(np.array(rows, np.float32)),
        losses=np.array(losses, np.float32),
        members=np.array([len(g) for g in groups]),
    )


@given(
    order=st.permutations(range(5)),
    cuts=st.lists(st.integers(1, 4), max_size=4),
    here=st.integers(1, 5),
    weighting=st.sampled_from(WEIGHTINGS),
)
def test_groups_that_were_summed_on_their_way_equal_single_clients(order, cuts, here, weighting):
    """Also where some clients are missing."""
    order = order[:here]
    found, loss, replies = result(
        sending(grouped([np.array(p) for p in parts_of(order, cuts)], weighting)), weighting
    )
    single, single_loss, _ = result(sending(*(block([k]) for k in order)), weighting)
    np.testing.assert_allclose(found, single, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        found, weights_of(weighting, order) @ UPDATES[order], rtol=1e-4, atol=1e-5
    )
    assert loss == pytest.approx(single_loss, rel=1e-5)
    assert replies == here


@given(share=st.integers(1, 99), weighting=st.sampled_from(["population", "cohort"]))
def test_a_client_split_in_two_changes_nothing(share, weighting):
    """Client 4 has 100 samples; two clients with its update and its samples count the same."""
    samples = np.array([*SIZES[:4], share, 100 - share])
    updates = UPDATES[[0, 1, 2, 3, 4, 4]]

    def answers(_round, clients, _):
        return [block([k], updates[[k]], samples[[k]], LOSSES[[min(k, 4)]]) for k in clients]

    parts, loss, replies = result(Scripted(answers), weighting, samples=samples)
    whole, expected, _ = result(Scripted(), weighting)
    np.testing.assert_allclose(parts, whole, rtol=1e-5, atol=1e-6)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert replies == 6


@given(rows=st.integers(1, 200))
def test_replies_are_summed_in_even_groups_of_at_most_eight(rows):
    groups = []

    def add(total, several):
        groups.append(several.size)
        return total or Sum(0, 0)

    parts = RunningSum(add, rows, lambda: Sum(0, 0))
    for _ in range(rows):
        parts.take(np.zeros((1, 3)), np.zeros(1), np.ones(1, np.float32))
    groups.append(parts.finish()[1].size)  # these are added by the server's step
    size = max(groups)
    assert set(groups) == {size}  # one compiled shape: what is missing has the weight 0
    assert size <= AT_ONCE
    calls = math.ceil(rows / AT_ONCE)
    assert len(groups) == math.ceil(rows / size) == calls  # as few calls as can be
    assert size - rows / calls < 1  # of sizes as equal as can be


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("replies", [0, 1, 7, 8, 9, 15, 16, 17, 20])
def test_large_cohorts_with_missing_replies_are_their_formula(weighting, replies):
    rng = np.random.default_rng(2)
    updates, samples = rng.normal(size=(20, 3)).astype(np.float32), rng.integers(1, 50, 20)

    def answers(_round, clients, _):
        there = clients[20 - replies :]
        return [block([k], updates[[k]], samples[[k]], np.ones(1, np.float32)) for k in there]

    found, loss, count = result(Scripted(answers), weighting, samples=samples)
    n = samples[20 - replies :].astype(float)
    total = {"population": samples.sum(), "cohort": n.sum() or 1, "uniform": replies or 1}
    weights = np.ones(replies) if weighting == "uniform" else n
    expected = weights @ updates[20 - replies :] / total[weighting]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert count == replies
    assert loss == (None if not replies else pytest.approx(1.0))


@pytest.mark.parametrize("replies", range(6))
@pytest.mark.parametrize("at_once", [1, 5])
def test_a_trimmed_mean_of_those_who_replied(replies, at_once):
    method = fedmom.Algorithm(fedmom.servers.fedavg(), rule=fedmom.trimmed_mean(share=0.4))
    there = np.arange(replies)
    blocks = [block(there[i : i + at_once]) for i in range(0, replies, at_once)]
    state, record = one_round(sending(*blocks), method)
    cut = [0, 0, 0, 1, 1, 2][replies]
    kept = np.sort(UPDATES[:replies], axis=0)[cut : replies - cut]
    expected = kept.mean(axis=0) if replies else np.zeros(3)
    np.testing.assert_allclose(state.params, -expected, rtol=1e-5, atol=1e-7)
    assert record.replies == replies
    assert record.update_norm == pytest.approx(np.linalg.norm(expected), rel=1e-5)


def in_order(values, weights):
    """Values with a weight, in order, and their weights; of equal values the lighter first."""
    order = np.lexsort((weights, values))
    order = order[weights[order] > 0]
    return values[order], weights[order].astype(float)


def weighted_median(values, weights):
    """Return where the weight below and the weight above are no more than half each."""
    values, weights = in_order(values, weights)
    half = weights.sum() / 2
    fits = [
        weights[values < v].sum() <= half + 1e-4 and weights[values > v].sum() <= half + 1e-4
        for v in values
    ]
    middle = values[fits]
    return (middle.min() + middle.max()) / 2


def weighted_trimmed(values, weights, share):
    """Leave out, one by one from either end, whose weights together are no more than the share."""
    values, weights = in_order(values, weights)
    cut = share * weights.sum() * (1 + 1e-5)
    kept = np.ones(len(values), bool)
    for order in (range(len(values)), reversed(range(len(values)))):
        left = cut
        for i in order:
            left -= weights[i]
            if left < 0:
                break
            kept[i] = False
    return np.average(values[kept], weights=weights[kept])


def by_coordinate(function, rows, *arguments):
    return np.array([function(column, *arguments) for column in rows.T])


some_replies = st.integers(1, 7).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 5), min_size=n, max_size=n).filter(any), st.integers(0, 1000)
    )
)


def drawn(weights, seed):
    """Updates for clients of these weights, with ties; what has no weight may be anything."""
    rng = np.random.default_rng(seed)
    rows = rng.choice([rng.normal(size=(7, 3)), rng.integers(-2, 3, (7, 3))]).astype(np.float32)
    weights = np.array([*weights, *[0] * (7 - len(weights))], np.float32)
    sent = np.where(weights[:, None] > 0, rows, rng.choice([np.nan, np.inf, -np.inf, 1e30]))
    return jnp.asarray(sent, jnp.float32), weights, rows


@lru_cache
def jitted(rule):
    return jax.jit(rule.each)


def combined(rule, rows, weights):
    aggregate, state, metrics = jitted(rule)(rows, jnp.asarray(weights, jnp.float32), ())
    assert (state, metrics) == ((), {})
    return np.asarray(aggregate)


@given(replies=some_replies)
def test_a_weighted_median_is_its_definition(replies):
    sent, weights, rows = drawn(*replies)
    found = combined(fedmom.median("cohort"), sent, weights)
    np.testing.assert_allclose(found, by_coordinate(weighted_median, rows, weights), rtol=1e-6)


@given(replies=some_replies, share=st.sampled_from([0, 0.1, 0.2, 0.25, 0.3, 0.4, 0.49]))
def test_a_weighted_trimmed_mean_is_its_definition(replies, share):
    sent, weights, rows = drawn(*replies)
    found = combined(fedmom.trimmed_mean("cohort", share=share), sent, weights)
    expected = by_coordinate(weighted_trimmed, rows, weights, share)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@given(
    count=st.integers(1, 7),
    weight=st.sampled_from([1e-3, 1, 0.7, 1e6]),
    share=st.sampled_from([0, 0.1, 0.2, 0.3, 0.4, 0.49]),
    seed=st.integers(0, 1000),
)
def test_with_equal_weights_they_are_those_of_numpy_and_scipy(count, weight, share, seed):
    sent, weights, rows = drawn([weight] * count, seed)
    found = combined(fedmom.median("cohort"), sent, weights)
    np.testing.assert_allclose(found, np.median(rows[:count], axis=0), rtol=1e-6)
    found = combined(fedmom.trimmed_mean("cohort", share=share), sent, weights)
    expected = scipy.stats.trim_mean(rows[:count], share)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@given(replies=some_replies)
def test_a_client_of_weight_three_is_three_clients_of_weight_one(replies):
    sent, weights, rows = drawn(*replies)
    copies = np.repeat(rows, weights.astype(int), axis=0)
    found = combined(fedmom.median("cohort"), sent, weights)
    np.testing.assert_allclose(found, np.median(copies, axis=0), rtol=1e-6)


@given(replies=some_replies, share=st.sampled_from([0.1, 0.25, 0.4]))
def test_of_a_trimmed_mean_only_the_shares_of_the_weight_matter(replies, share):
    """Nor does it matter in which order replies come, also where values are equal."""
    sent, weights, _ = drawn(*replies)
    rule = fedmom.trimmed_mean("cohort", share=share)
    found = combined(rule, sent, weights)
    np.testing.assert_allclose(combined(rule, sent, 8 * weights), found, rtol=1e-5, atol=1e-6)
    turned = combined(rule, sent[::-1], weights[::-1])
    np.testing.assert_allclose(turned, found, rtol=1e-5, atol=1e-6)


ROBUST = {"median": fedmom.median, "trimmed": partial(fedmom.trimmed_mean, share=0.3)}


@pytest.mark.parametrize("name", ROBUST)
def test_a_few_clients_cannot_move_them_far(name):
    """With less of the weight than is left out, they move each coordinate within the others'."""
    weights = np.array([2, 2, 2, 1, 1, 1])  # the last two have 2 of 9
    for bad in (1e30, -1e30):
        rows = jnp.asarray(np.vstack([UPDATES[:4], np.full((2, 3), bad)]), jnp.float32)
        found = combined(ROBUST[name]("cohort"), rows, weights)
        assert (found >= UPDATES[:4].min(axis=0)).all()
        assert (found <= UPDATES[:4].max(axis=0)).all()


@pytest.mark.parametrize("name", ROBUST)
def test_their_weightings(name):
    rule = ROBUST[name]
    assert rule().weigh(SIZES).tolist() == [1] * 5
    assert rule("cohort").weigh(SIZES).tolist() == SIZES.tolist()
    with pytest.raises(fedmom.FedMomError, match=r"cannot use population weights.*uniform, or coh"):
        rule("population")


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("weighting", ["uniform", "cohort"])
def test_a_round_hands_them_the_clients_weights(name, weighting):
    state, record = one_round(Scripted(), fedavg(rule=ROBUST[name](weighting)))
    weights = weights_of(weighting, np.arange(5))
    of_one = {"median": weighted_median, "trimmed": partial(weighted_trimmed, share=0.3)}[name]
    np.testing.assert_allclose(state.params, -by_coordinate(of_one, UPDATES, weights), rtol=1e-5)
    assert record.train_loss == pytest.approx(weights @ LOSSES, rel=1e-5)


def test_a_stale_reply_counts_less_in_a_median():
    """FedBuff: client 0 answers a round late and is then 1/sqrt(2) of a client."""
    values = np.array([5, 1, 2, 3, 4], np.float32)
    late = []

    def answers(round_, clients, _):
        now = [block([k], np.full((1, 3), values[k]), version=round_) for k in clients]
        if round_ == 0:
            late.append(now.pop(0))
            return now
        return [late.pop(), *now]

    cohorts = {0: [0, 1], AGAIN: [3], 1: [2, 4]}
    pace = fedmom.buffered(2, lambda _seed, t, *_: np.array(cohorts.get(t, [])), in_flight=3)
    found = rounds(Scripted(answers), fedavg(rule=fedmom.median()), 2, pace=pace)
    models = [np.asarray(state.params)[0] for state, _ in found]
    assert models[0] == pytest.approx(-2)  # of 1 and 3: the middle
    assert models[1] - models[0] == pytest.approx(-2)  # of 5, stale, and 2: not 3.5, their middle


def test_a_rule_of_ones_own():
    """The median, which needs each reply, and a mean by the roots of the sample counts."""
    median = fedmom.Rule(
        weigh=lambda samples: np.ones(len(samples)),
        scale=lambda weight, _: 1 / (weight or 1),
        each=lambda rows, weights, state: (
            jnp.nanmedian(jnp.where(weights[:, None] > 0, rows, jnp.nan), axis=0),
            state,
            {},
        ),
    )
    state, _ = one_round(sending(block([0, 2, 4])), fedavg(rule=median))
    np.testing.assert_allclose(state.params, -np.median(UPDATES[[0, 2, 4]], axis=0), rtol=1e-6)
    roots = fedmom.Rule(np.sqrt, lambda weight, _: 1 / weight)
    state, record = one_round(Scripted(), fedavg(rule=roots))
    weights = np.sqrt(SIZES) / np.sqrt(SIZES).sum()
    np.testing.assert_allclose(state.params, -weights @ UPDATES, rtol=1e-5)
    assert record.train_loss == pytest.approx(weights @ LOSSES, rel=1e-5)


def test_what_is_broadcast_and_sent_may_be_of_another_form_than_the_model():
    """SCAFFOLD and the like: the server sends a pair, and clients answer with a pair."""
    server = fedmom.Server(
        init=lambda params: jnp.ones_like(params),
        step=lambda aggregate, c, params: (params - aggregate["w"], c - aggregate["c"], {}),
        broadcast=lambda params, c: {"model": params, "c": c},
    )
    client = fedmom.Client(
        run=lambda *_: None, form=lambda broadcast: {"w": broadcast["model"], "c": broadcast["c"]}
    )
    seen = []

    def answers(_round, clients, broadcast):
        seen.append(jax.tree.map(np.asarray, broadcast))
        return [
            Block(
                np.array([k]),
                {"w": UPDATES[[k]], "c": 2 * UPDATES[[k]]},
                SIZES[[k]],
                {"loss": LOSSES[[k]]},
                0,
            )
            for k in clients
        ]

    algorithm = fedmom.Algorithm(server, client=client, rule=fedmom.mean("uniform"))
    state, record = one_round(Scripted(answers), algorithm)
    mean = UPDATES.mean(axis=0)
    np.testing.assert_allclose(state.params, -mean, rtol=1e-5)
    np.testing.assert_allclose(state.server, 1 - 2 * mean, rtol=1e-5)
    np.testing.assert_array_equal(seen[0]["c"], np.ones(3))
    assert (record.bytes_up, record.bytes_down) == (5 * 24, 5 * 24)
    with pytest.raises(fedmom.BadReplyError, match="its update is PyTreeDef"):
        one_round(Scripted(), algorithm)


def test_the_pace_may_ask_fewer_than_there_are():
    state, record = one_round(Scripted(), pace=fedmom.synchronous(3, everybody))
    np.testing.assert_allclose(
        state.params, -weights_of("population", np.arange(3)) @ UPDATES[:3], rtol=1e-5
    )
    assert record.cohort == [0, 1, 2]


@pytest.mark.parametrize("rule", [fedmom.mean("cohort"), fedmom.median()], ids=["mean", "median"])
def test_aggregates_have_the_types_of_the_parameters(rule):
    """Weights of 32 bits made them longer, and the server's velocity of bfloat16 with them."""
    algorithm = fedmom.Algorithm(fedmom.servers.fedmom(), rule=rule)
    update = jnp.asarray([1.0, 2.0, 4.0], jnp.bfloat16)
    sent = block([0, 1], jnp.stack([update, update]))
    state, _ = one_round(sending(sent), algorithm, samples=SIZES[:2], params=update * 0)
    assert state.server.velocity.dtype == state.params.dtype == jnp.bfloat16
    np.testing.assert_array_equal(state.server.velocity, -update)
