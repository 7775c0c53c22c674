"""From replies to one aggregate: laws of the sum, groups, and what stages do on the way."""

import math
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmom
from fedmom.core.prng import clients_key, stages_key
from fedmom.runtimes.base import Block
from fedmom.training.aggregate import AT_ONCE, group_size
from tests.conftest import population
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
    uniform,
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


def affine(name, factor, shift, log=None):
    """A stage whose parts do not commute, so that the order in which they are applied shows."""

    def after(aggregate, _key, _replies):
        if log is not None:
            log.append(name)
        return aggregate * factor + shift

    return fedmom.Stage(
        encode=lambda update, state, _key: (update * factor + shift, state),
        decode=lambda update: (update - shift) / factor,
        after=after,
    )


class TestStages:
    """Encoding goes forward on the client; decoding and ``after`` go back on the server."""

    def test_their_order(self):
        data = population([5, 9])
        seen = []
        stages = affine("first", 2.0, 1.0, seen), affine("second", 3.0, 5.0, seen)
        algorithm = fedavg("uniform", client=constant_client(), stages=stages)
        start = fedmom.start(VECTOR, algorithm)
        bare = 0.013 * np.outer([5, 9], np.ones(2))
        runtime = fedmom.LocalRuntime(data, VECTOR, fedmom.LocalWork(steps=1), algorithm)
        runtime.ask(0, np.arange(2), start.params)
        (sent,) = runtime.replies()
        np.testing.assert_allclose(sent.update, (bare * 2 + 1) * 3 + 5, rtol=1e-5)
        ((state, _),) = fedmom.train(
            start,
            runtime,
            algorithm,
            pace=uniform(data.train.size, 2),
            samples=data.train.size,
            rounds=1,
        )
        mean = bare.mean(axis=0)  # decoded, one by one
        np.testing.assert_allclose(state.params, -((mean * 3 + 5) * 2 + 1), rtol=1e-5)
        assert seen == ["second", "first"]

    @pytest.mark.parametrize("rule", [fedmom.mean("uniform"), fedmom.trimmed_mean(share=0.2)])
    def test_each_reply_is_decoded_before_it_counts(self, rule):
        """A decoding that is not linear, so that decoding the mean would be another thing."""
        cube = fedmom.Stage(lambda u, s, _: (jnp.cbrt(u), s), decode=lambda u: u**3)
        state, _ = one_round(sending(block(np.arange(5))), fedavg(rule=rule, stages=(cube,)))
        cubes = np.sort(UPDATES**3, axis=0)
        expected = cubes.mean(axis=0) if rule.each is None else cubes[1:4].mean(axis=0)
        np.testing.assert_allclose(state.params, -expected, rtol=1e-5)

    def test_after_gets_a_key_of_its_own_and_the_number_of_replies(self):
        def after(aggregate, key, replies):
            return aggregate + jax.random.normal(key, (3,)) / replies

        noisy = fedmom.Stage(lambda u, s, _: (u, s), after=after)
        algorithm = fedavg("uniform", stages=(noisy, noisy))
        found = rounds(Scripted(), algorithm, 2)
        again = rounds(Scripted(), algorithm, 2)
        w = np.zeros(3)
        for t, (state, _) in enumerate(found):
            key = jax.random.fold_in(stages_key(0), t)
            noises = [jax.random.normal(jax.random.fold_in(key, i), (3,)) / 5 for i in range(2)]
            w = w - UPDATES.mean(axis=0) - np.asarray(noises[0]) - np.asarray(noises[1])
            np.testing.assert_allclose(state.params, w, rtol=1e-4, atol=1e-5)
            np.testing.assert_array_equal(state.params, again[t][0].params)

    def test_the_stages_key_is_none_of_the_steps(self):
        """A stage's randomness is a fold that no local step makes."""
        data = population([5, 9])
        drawn = fedmom.Stage(lambda u, s, key: (jax.random.normal(key, u.shape), s))
        algorithm = fedavg(client=constant_client(), stages=(drawn, drawn))
        work = fedmom.LocalWork(steps=1)
        runtime = fedmom.LocalRuntime(data, VECTOR, work, algorithm, seed=3)
        runtime.ask(4, np.arange(2), jnp.zeros(2))
        (sent,) = runtime.replies()
        for k in range(2):
            own = jax.random.fold_in(jax.random.fold_in(clients_key(3), 4), k)
            key = jax.random.fold_in(jax.random.fold_in(own, 2**32 - 1), 1)
            np.testing.assert_allclose(sent.update[k], jax.random.normal(key, (2,)), rtol=1e-5)

    def test_clipped_updates_are_the_formula(self):
        data = population([3, 5, 8])
        model = fedmom.build_model("logreg", data.features)
        work = fedmom.LocalWork(lr=0.5, steps=3, batch_size=None)
        params = model.init(jax.random.key(0))
        sent = []
        for algorithm in (None, fedavg(stages=(fedmom.clip(norm=0.4),))):
            runtime = fedmom.LocalRuntime(data, model, work, algorithm)
            runtime.ask(0, np.arange(3), params)
            (reply,) = runtime.replies()
            rows = [np.reshape(leaf, (3, -1)) for leaf in jax.tree.leaves(reply.update)]
            sent.append(np.hstack(rows))
        lengths = np.linalg.norm(sent[0], axis=1, keepdims=True)
        assert (lengths > 0.4).any()
        np.testing.assert_allclose(sent[1], sent[0] * np.minimum(1, 0.4 / lengths), rtol=1e-5)


@lru_cache
def quantizer(levels=10.0):
    """Send whole numbers of 8 bits; keep what was lost, and add it to the next update."""

    def encode(update, lost, _key):
        wanted = update + lost
        sent = jnp.clip(jnp.round(wanted * levels), -127, 127).astype(jnp.int8)
        return sent, wanted - sent / levels

    return fedmom.Stage(
        encode,
        client_init=lambda update: jnp.zeros_like(update),
        decode=lambda update: update.astype(jnp.float32) / levels,
    )


VECTOR = fedmom.Model(lambda _key: jnp.zeros(2), apply=None)


@lru_cache  # one object: its programs are traced once
def constant_client():
    """A client whose update is a number that depends on its size alone."""

    def run(params, state, problem, _key):
        update = jnp.full_like(params, 0.013) * problem.size
        return update, state, {"loss": jnp.ones(())}

    return fedmom.Client(run)


class TestErrorFeedback:
    """A stage with a state on each client, which changes the type of what is sent."""

    def run(self, rounds=6, runtime=None, state=None, m=2, stages=None):
        data = population([3, 5, 8])
        algorithm = fedmom.Algorithm(
            optax.sgd(1.0),
            client=constant_client(),
            rule=fedmom.mean("uniform"),
            stages=(quantizer(),) if stages is None else stages,
        )
        runtime = runtime or fedmom.LocalRuntime(data, VECTOR, fedmom.LocalWork(steps=1), algorithm)
        found = list(
            fedmom.train(
                state or fedmom.start(VECTOR, algorithm),
                runtime,
                algorithm,
                pace=uniform(data.train.size, m),
                samples=data.train.size,
                rounds=rounds,
            )
        )
        return runtime, found

    def by_hand(self, found):
        w, lost, sizes = 0.0, {}, [3, 5, 8]
        points = []
        for _, record in found:
            total = 0.0
            for k in record.cohort:
                wanted = 0.013 * sizes[k] + lost.get(k, 0.0)
                sent = round(wanted * 10)
                lost[k] = wanted - sent / 10
                total += sent / 10
            w -= total / len(record.cohort)
            points.append(w)
        return points, lost

    def test_what_is_lost_comes_later(self):
        runtime, found = self.run()
        points, lost = self.by_hand(found)
        for (state, record), w in zip(found, points, strict=True):
            np.testing.assert_allclose(state.params, [w, w], rtol=1e-4, atol=1e-5)
            assert record.bytes_up == 2 * 2  # two clients, two numbers of a byte
        kept = runtime.snapshot().tensors
        assert kept["states/clients"].tolist() == sorted(lost)
        np.testing.assert_allclose(
            kept["states/0"][:, 0], [lost[k] for k in sorted(lost)], atol=1e-5
        )

    def test_a_snapshot_holds_the_stages_state(self):
        _, whole = self.run()
        runtime, part = self.run(rounds=3)
        state = part[-1][0]
        fresh, _ = self.run(rounds=0)
        fresh.restore(runtime.snapshot(), state.params)
        _, rest = self.run(runtime=fresh, state=state)
        np.testing.assert_array_equal(rest[-1][0].params, whole[-1][0].params)

    def test_a_stage_after_another_starts_from_what_it_gets(self):
        """The second stage sees numbers of 8 bits, and its state is of that kind."""
        counting = fedmom.Stage(
            lambda update, total, _key: (update, total + update.astype(jnp.int32)),
            client_init=lambda update: (
                jnp.zeros(update.shape, jnp.int32) if update.dtype == jnp.int8 else jnp.zeros(())
            ),
        )
        runtime, found = self.run(stages=(quantizer(), counting))
        points, _ = self.by_hand(found)
        np.testing.assert_allclose(found[-1][0].params, [points[-1]] * 2, rtol=1e-4)
        sent = runtime.snapshot().tensors["states/1"]
        assert sent.dtype == np.int32
        assert sent.shape == (3, 2)

    @pytest.mark.parametrize("bad_replies", ["stop", "skip"])
    def test_replies_are_checked_in_the_form_in_which_they_are_sent(self, bad_replies):
        """Floats are not what was asked for, now."""
        algorithm = fedavg(stages=(quantizer(),))
        good = np.round(UPDATES * 10).astype(np.int8)
        bytes_ = Scripted(lambda *_: [block([k], good[[k]]) for k in range(5)])
        state, record = one_round(bytes_, algorithm, bad_replies=bad_replies)
        expected = weights_of("population", np.arange(5)) @ good / 10
        np.testing.assert_allclose(state.params, -expected, rtol=1e-5)
        assert record.bytes_up == 5 * 3
        with pytest.raises(fedmom.BadReplyError, match="type float32, not int8"):
            one_round(Scripted(), algorithm)

    def test_a_stage_that_breaks_an_update_is_noticed(self):
        """What counts is the update that is sent, not the one that the client has measured."""
        data = population([3, 5, 8])
        model = fedmom.build_model("logreg", data.features)

        def encode(update, state, _key):
            scale = jnp.where(optax.tree.norm(update) > 0.05, 1.0, jnp.nan)
            return jax.tree.map(lambda leaf: leaf * scale, update), state

        algorithm = fedavg("uniform", stages=(fedmom.Stage(encode),))
        work = fedmom.LocalWork(lr=0.1, steps=1, batch_size=None)
        state = fedmom.start(model, algorithm)
        plain = fedmom.LocalRuntime(data, model, work)
        plain.ask(0, np.arange(3), state.params)
        (sent,) = plain.replies()
        weak = np.flatnonzero(np.asarray(sent.metrics["norm"]) <= 0.05).tolist()
        options = {"pace": uniform(data.train.size, 3), "samples": data.train.size, "rounds": 1}
        runtime = fedmom.LocalRuntime(data, model, work, algorithm)
        ((_, record),) = fedmom.train(state, runtime, algorithm, bad_replies="skip", **options)
        assert [r.client for r in record.rejected] == weak
        assert 0 < len(weak) < 3
        with pytest.raises(fedmom.DivergedError, match=f"client {weak[0]} sent back"):
            list(fedmom.train(state, runtime, algorithm, **options))

    def test_signs_may_be_truth_values(self):
        signs = fedmom.Stage(lambda u, s, _: (u > 0, s), decode=lambda u: jnp.where(u, 1.0, -1.0))
        runtime = Scripted(lambda *_: [block(np.arange(5), jnp.asarray(UPDATES > 0))])
        state, _ = one_round(runtime, fedavg("uniform", stages=(signs,)), bad_replies="skip")
        np.testing.assert_allclose(state.params, -np.sign(UPDATES).mean(axis=0), rtol=1e-6)


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
