"""Stages: what changes updates on their way, and what they remember of them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedmom
from fedmom.core.prng import clients_key, stages_key
from tests.conftest import population
from tests.training.scripted import (
    UPDATES,
    Scripted,
    block,
    fedavg,
    one_round,
    rounds,
    weights_of,
)
from tests.training.stages import VECTOR, constant_client, quantizer


def affine(name, factor, shift, log=None):
    """A stage whose parts do not commute, so that the order in which they are applied shows."""

    def after(aggregate, state, _round):
        if log is not None:
            log.append(name)
        return aggregate * factor + shift, state, {}

    return fedmom.Stage(
        name,
        encode=lambda update, state, _sent, _key: (update * factor + shift, state, {}),
        decode=lambda update, _form: (update - shift) / factor,
        after=after,
    )


class TestStages:
    """Encoding goes forward on the client; decoding and ``after`` go back on the server."""

    def test_their_order(self):
        data = population([5, 9])
        seen = []
        stages = affine("first", 2.0, 1.0, seen), affine("second", 3.0, 5.0, seen)
        algorithm = fedavg("uniform", client=constant_client(), stages=stages)
        bare = 0.013 * np.outer([5, 9], np.ones(2))
        runtime = fedmom.LocalRuntime(fedmom.Workload(data, VECTOR, algorithm))
        runtime.ask(0, np.arange(2), jnp.zeros(2))
        (sent,) = runtime.replies()
        np.testing.assert_allclose(sent.update, (bare * 2 + 1) * 3 + 5, rtol=1e-5)
        ((state, _),) = fedmom.train(runtime, pace=fedmom.synchronous(2), rounds=1)
        mean = bare.mean(axis=0)  # decoded, one by one
        np.testing.assert_allclose(state.params, -((mean * 3 + 5) * 2 + 1), rtol=1e-5)
        assert seen[-2:] == ["second", "first"]

    @pytest.mark.parametrize("rule", [fedmom.mean("uniform"), fedmom.trimmed_mean(share=0.2)])
    def test_each_reply_is_decoded_before_it_counts(self, rule):
        """A decoding that is not linear, so that decoding the mean would be another thing."""
        cube = fedmom.Stage(
            "cube", lambda u, s, *_: (jnp.cbrt(u), s, {}), decode=lambda u, _form: u**3
        )
        state, _ = one_round(
            Scripted(lambda *_: [block(np.arange(5))]), fedavg(rule=rule, stages=(cube,))
        )
        cubes = np.sort(UPDATES**3, axis=0)
        expected = cubes.mean(axis=0) if rule.each is None else cubes[1:4].mean(axis=0)
        np.testing.assert_allclose(state.params, -expected, rtol=1e-5)

    def test_after_gets_a_key_of_its_own_and_the_number_of_replies(self):
        def after(aggregate, state, here):
            return aggregate + jax.random.normal(here.key, (3,)) / here.replies, state, {}

        noisy = fedmom.Stage("noisy", after=after)
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
        drawn = fedmom.Stage("drawn", lambda u, s, _, key: (jax.random.normal(key, u.shape), s, {}))
        algorithm = fedavg(client=constant_client(), stages=(drawn, drawn))
        runtime = fedmom.LocalRuntime(fedmom.Workload(data, VECTOR, algorithm, seed=3))
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
        for stages in ((), (fedmom.clip(norm=0.4),)):
            algorithm = fedmom.Algorithm(fedmom.servers.fedavg(), work, stages=stages)
            runtime = fedmom.LocalRuntime(fedmom.Workload(data, model, algorithm))
            runtime.ask(0, np.arange(3), params)
            (reply,) = runtime.replies()
            rows = [np.reshape(leaf, (3, -1)) for leaf in jax.tree.leaves(reply.update)]
            sent.append(np.hstack(rows))
        lengths = np.linalg.norm(sent[0], axis=1, keepdims=True)
        assert (lengths > 0.4).any()
        np.testing.assert_allclose(sent[1], sent[0] * np.minimum(1, 0.4 / lengths), rtol=1e-5)


class TestErrorFeedback:
    """A stage with a state on each client, which changes the type of what is sent."""

    def run(self, rounds=6, runtime=None, state=None, m=2, stages=None):
        data = population([3, 5, 8])
        algorithm = fedmom.Algorithm(
            optax.sgd(1.0),
            fedmom.LocalWork(steps=1),
            client=constant_client(),
            rule=fedmom.mean("uniform"),
            stages=(quantizer(),) if stages is None else stages,
        )
        runtime = runtime or fedmom.LocalRuntime(fedmom.Workload(data, VECTOR, algorithm))
        pace = fedmom.synchronous(m)
        return runtime, list(fedmom.train(runtime, pace=pace, rounds=rounds, state=state))

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
            "counting",
            lambda update, total, *_: (update, total + update.astype(jnp.int32), {}),
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

        def encode(update, state, _sent, _key):
            scale = jnp.where(optax.tree.norm(update) > 0.05, 1.0, jnp.nan)
            return jax.tree.map(lambda leaf: leaf * scale, update), state, {}

        algorithm = fedmom.Algorithm(fedmom.servers.fedavg(), fedmom.full_gradient(0.1))
        plain = fedmom.LocalRuntime(fedmom.Workload(data, model, algorithm))
        plain.ask(0, np.arange(3), plain.workload.params())
        (sent,) = plain.replies()
        weak = np.flatnonzero(np.asarray(sent.metrics["norm"]) <= 0.05).tolist()
        breaking = algorithm._replace(stages=(fedmom.Stage("breaking", encode),))
        runtime = fedmom.LocalRuntime(fedmom.Workload(data, model, breaking))
        options = {"pace": fedmom.synchronous(3), "rounds": 1}
        ((_, record),) = fedmom.train(runtime, bad_replies="skip", **options)
        assert [r.client for r in record.rejected] == weak
        assert 0 < len(weak) < 3
        with pytest.raises(fedmom.DivergedError, match=f"client {weak[0]} sent back"):
            list(fedmom.train(runtime, **options))

    def test_signs_may_be_truth_values(self):
        signs = fedmom.Stage(
            "signs",
            lambda u, s, *_: (u > 0, s, {}),
            decode=lambda u, _form: jnp.where(u, 1.0, -1.0),
        )
        runtime = Scripted(lambda *_: [block(np.arange(5), jnp.asarray(UPDATES > 0))])
        state, _ = one_round(runtime, fedavg("uniform", stages=(signs,)), bad_replies="skip")
        np.testing.assert_allclose(state.params, -np.sign(UPDATES).mean(axis=0), rtol=1e-6)
