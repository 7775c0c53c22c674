"""From replies to one aggregate: laws of the sum, groups and rules."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmom
from fedmom.runtimes.base import Block
from fedmom.training.aggregate import AT_ONCE, group_size
from tests.training.scripted import (
    LOSSES,
    SIZES,
    UPDATES,
    Scripted,
    block,
    everybody,
    fedavg,
    one_round,
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
    size = group_size(rows)
    assert 1 <= size <= AT_ONCE
    calls = math.ceil(rows / AT_ONCE)
    assert math.ceil(rows / size) == calls  # as few calls as can be
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
    method = fedmom.Algorithm(fedmom.fedavg(), rule=fedmom.trimmed_mean(share=0.4))
    there = np.arange(replies)
    blocks = [block(there[i : i + at_once]) for i in range(0, replies, at_once)]
    state, record = one_round(sending(*blocks), method)
    cut = [0, 0, 0, 1, 1, 2][replies]
    kept = np.sort(UPDATES[:replies], axis=0)[cut : replies - cut]
    expected = kept.mean(axis=0) if replies else np.zeros(3)
    np.testing.assert_allclose(state.params, -expected, rtol=1e-5, atol=1e-7)
    assert record.replies == replies
    assert record.update_norm == pytest.approx(np.linalg.norm(expected), rel=1e-5)


def test_a_rule_of_ones_own():
    """The median, which needs each reply, and a mean by the roots of the sample counts."""
    median = fedmom.Rule(
        weigh=lambda samples: np.ones(len(samples)),
        scale=lambda weight, _: 1 / (weight or 1),
        each=lambda rows, counted: jnp.nanmedian(
            jnp.where(counted[:, None], rows, jnp.nan), axis=0
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
        step=lambda aggregate, c, params: (params - aggregate["w"], c - aggregate["c"]),
        broadcast=lambda params, c: {"model": params, "c": c},
    )
    client = fedmom.Client(
        run=None, form=lambda broadcast: {"w": broadcast["model"], "c": broadcast["c"]}
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
    state, record = one_round(Scripted(), pace=fedmom.synchronous(everybody, 3))
    np.testing.assert_allclose(
        state.params, -weights_of("population", np.arange(3)) @ UPDATES[:3], rtol=1e-5
    )
    assert record.cohort == [0, 1, 2]
