"""Stages and rules on the server: their state, the forms of updates, what cannot be combined."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedmom
from tests.conftest import population
from tests.training.scripted import (
    SIZES,
    UPDATES,
    Scripted,
    block,
    fedavg,
    one_round,
    rounds,
    workload,
)
from tests.training.stages import VECTOR, constant_client, quantizer


@lru_cache
def counting():
    """Counts rounds and adds aggregates up, on the server."""

    def after(aggregate, state, here):
        count, total = state[0] + 1, state[1] + aggregate
        return aggregate, (count, total), {"rounds": count, **here._replace(key=0)._asdict()}

    def init(form):
        return jnp.zeros((), jnp.int32), jnp.zeros(form.shape, form.dtype)

    return fedmom.Stage("counting", init=init, after=after)


@lru_cache
def adaptive_clip(first=0.2, rate=1.0, target=0.4):
    """Andrew et al. 2021: clip to the norm below which the target share of updates is."""

    def encode(update, state, norm, _key):
        length = optax.tree.norm(update)
        within = jnp.asarray(length <= norm, jnp.float32)
        return (update * jnp.minimum(1, norm / length), within), state, {"within": within}

    def after(aggregate, norm, _round):
        update, within = aggregate
        return update, norm * jnp.exp(-rate * (within - target)), {"norm": norm}

    return fedmom.Stage(
        "adaptive",
        encode,
        init=lambda _form: jnp.asarray(first),
        send=lambda norm: norm,
        after=after,
    )


@lru_cache
def centered():
    def each(rows, weights, center):
        away = rows - center
        lengths = jnp.linalg.norm(away, axis=1, keepdims=True)
        shares = weights / weights.sum()
        center = center + shares @ (away * jnp.minimum(1, 1 / lengths))
        return center, center, {"share": shares @ (lengths[:, 0] > 1)}

    def init(form):
        return jnp.zeros(form.shape, form.dtype)

    return fedmom.Rule(lambda samples: np.ones(len(samples)), each=each, init=init, name="centered")


def train(stages, count, sizes=(3, 5, 8), cohort=2, state=None, rule=None):
    """Rounds of clients whose updates are 0.013 n_k in both coordinates."""
    rule = rule or fedmom.mean("uniform")
    algorithm = fedavg(rule=rule, client=constant_client(), stages=stages)
    data = population(list(sizes))
    runtime = fedmom.LocalRuntime(fedmom.Workload(data, VECTOR, algorithm))
    return list(fedmom.train(runtime, pace=fedmom.synchronous(cohort), rounds=count, state=state))


class TestServerState:
    """What stages and rules keep on the server, from round to round."""

    def test_it_is_a_function_of_the_aggregates(self):
        algorithm = fedavg("cohort", stages=(counting(),))
        found = rounds(Scripted(), algorithm, 3)
        for t, (state, record) in enumerate(found, 1):
            ((count, total),) = state.stages
            assert count == t
            np.testing.assert_allclose(total, -state.params, rtol=1e-5)  # FedAvg with η = 1
            assert record.metrics["counting/rounds"] == t

    def test_it_starts_again_where_it_was(self):
        algorithm = fedavg("cohort", stages=(counting(),))
        *_, (whole, _) = rounds(Scripted(), algorithm, 3)
        (_, (part, _)) = rounds(Scripted(), algorithm, 2)
        ((rest, record),) = rounds(Scripted(), algorithm, 1, state=part)
        for one, other in zip(jax.tree.leaves(rest), jax.tree.leaves(whole), strict=True):
            np.testing.assert_array_equal(one, other)
        assert record.metrics["counting/rounds"] == 3

    @pytest.mark.parametrize("weighting", ["population", "cohort", "uniform"])
    def test_a_stage_is_told_the_rounds_numbers(self, weighting):
        here = [0, 2, 3]
        runtime = Scripted(lambda round_, *_: [block(here, version=round_)])
        (_, (_, record)) = rounds(runtime, fedavg(weighting, stages=(counting(),)), 2)
        weight = 3 if weighting == "uniform" else SIZES[here].sum()
        assert record.metrics["counting/number"] == 1
        assert record.metrics["counting/replies"] == 3
        assert record.metrics["counting/weight"] == weight
        scale = 1 / SIZES.sum() if weighting == "population" else 1 / weight
        assert record.metrics["counting/scale"] == pytest.approx(scale)

    def test_adaptive_clipping_is_its_formula(self):
        """What is sent reaches the clients, what they add comes back, and after undoes it."""
        norm, w, sizes, norms = 0.2, np.zeros(2), [3, 5, 8], []
        for state, record in train((adaptive_clip(),), 8):
            total, within = np.zeros(2), 0.0
            for k in record.cohort:
                update = np.full(2, 0.013 * sizes[k])
                length = np.linalg.norm(update)
                total += update * min(1, norm / length) / 2
                within += (length <= norm) / 2
            assert record.metrics["adaptive/norm"] == pytest.approx(norm, rel=1e-5)
            assert record.metrics["adaptive/within"] == pytest.approx(within)
            w -= total
            norm *= np.exp(-(within - 0.4))
            norms.append(norm)
            np.testing.assert_allclose(state.params, w, rtol=1e-5)
            np.testing.assert_allclose(state.stages[0], norm, rtol=1e-5)
            assert (record.bytes_up, record.bytes_down) == (2 * 12, 2 * 12)
        assert len(np.unique(np.round(norms, 6))) > 2

    def test_each_stage_receives_what_it_has_sent(self):
        def telling(number):
            return fedmom.Stage(
                "telling",
                lambda update, state, sent, _key: (update * sent, state, {}),
                init=lambda _form: jnp.asarray(number),
                send=lambda state: state,
            )

        def quiet(update, state, sent, _key):
            assert sent == ()
            return update + 1, state, {}

        ((state, _),) = train((telling(2.0), fedmom.Stage("quiet", quiet), telling(5.0)), 1, (4, 4))
        np.testing.assert_allclose(state.params, [-(0.013 * 4 * 2 + 1) * 5] * 2, rtol=1e-5)

    def test_what_nobody_listens_to_may_be_sent(self):
        shout = fedmom.Stage("shout", send=lambda _state: jnp.zeros(7))
        ((loud, record),), ((bare, _),) = train((shout,), 1), train((), 1)
        np.testing.assert_array_equal(loud.params, bare.params)
        assert record.bytes_down == 2 * (8 + 28)

    def test_a_rule_keeps_a_state_too(self):
        """Karimireddy et al. 2021: updates are clipped around the last aggregate."""
        rule = centered()
        algorithm = fedavg(rule=rule)
        found = rounds(Scripted(), algorithm, 3)
        center, w = np.zeros(3), np.zeros(3)
        for state, record in found:
            away = UPDATES - center
            lengths = np.linalg.norm(away, axis=1, keepdims=True)
            center = center + (away * np.minimum(1, 1 / lengths)).mean(axis=0)
            w = w - center
            np.testing.assert_allclose(state.rule, center, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(state.params, w, rtol=1e-4, atol=1e-6)
            share = (lengths > 1).mean()
            assert record.metrics == {"centered/share": pytest.approx(share)}
        ((state, record),) = rounds(Scripted(lambda *_: []), algorithm, state=found[-1][0])
        np.testing.assert_array_equal(state.rule, found[-1][0].rule)  # nobody has answered
        assert record.metrics == {}

    def test_a_rules_state_has_the_form_of_decoded_updates(self):
        algorithm = fedavg(rule=centered(), stages=(quantizer(),))
        first = fedmom.start(workload(algorithm))
        assert first.rule.dtype == np.float32
        sent = np.round(UPDATES * 10).astype(np.int8)
        state, _ = one_round(Scripted(lambda *_: [block(np.arange(5), sent)]), algorithm)
        np.testing.assert_array_equal(state.rule, -state.params)


SKETCH = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)


@lru_cache
def sketching(*, undone=True):
    """Send four numbers that depend on an update linearly; undo it once they are added up."""

    def after(aggregate, state, _round):
        return np.linalg.pinv(SKETCH) @ aggregate, state, {}

    return fedmom.Stage(
        "sketching",
        lambda update, state, *_: (SKETCH @ update, state, {}),
        after=after if undone else None,
    )


class TestForms:
    """Stages that change the form of an update, with and without ``decode``."""

    @pytest.mark.parametrize("rule", [fedmom.mean("uniform"), fedmom.median()])
    def test_after_undoes_what_was_added_up(self, rule):
        sent = UPDATES @ SKETCH.T
        runtime = Scripted(lambda *_: [block(np.arange(5), sent)])
        state, record = one_round(runtime, fedavg(rule=rule, stages=(sketching(),)))
        whole = sent.mean(axis=0) if rule.each is None else np.median(sent, axis=0)
        expected = np.linalg.pinv(SKETCH) @ whole
        np.testing.assert_allclose(state.params, -expected, rtol=1e-4, atol=1e-5)
        assert record.bytes_up == 5 * 16
        assert runtime.prepared == [(5, rule.each is None)]

    def test_it_may_be_followed_by_a_stage_that_decodes(self):
        sent = np.round(UPDATES @ SKETCH.T * 10).astype(np.int8)
        runtime = Scripted(lambda *_: [block(np.arange(5), sent)])
        stages = (sketching(), quantizer())
        state, record = one_round(runtime, fedavg("uniform", stages=stages))
        expected = np.linalg.pinv(SKETCH) @ sent.mean(axis=0) / 10
        np.testing.assert_allclose(state.params, -expected, rtol=1e-4, atol=1e-5)
        assert record.bytes_up == 5 * 4
        assert runtime.prepared == [(5, False)]  # they are decoded one by one

    def test_before_one_that_does_not_a_decoding_stage_is_refused(self):
        algorithm = fedavg(stages=(quantizer(), sketching()))
        with pytest.raises(
            fedmom.FedMomError,
            match="whole numbers cannot decode updates: a later stage changes their form and has no"
            r" decode\. Put whole numbers last\.",
        ):
            one_round(Scripted(), algorithm)

    def test_what_nobody_undoes_is_refused(self):
        runtime = Scripted(lambda *_: [block(np.arange(5), UPDATES @ SKETCH.T)])
        with pytest.raises(fedmom.FedMomError, match=r"shapes \[\(3,\)\] into an aggregate .*\(4,"):
            one_round(runtime, fedavg(stages=(sketching(undone=False),)))

    def test_so_is_an_aggregate_that_would_fit_by_broadcasting(self):
        summing = fedmom.Stage(
            "summing", after=lambda a, state, _: (a.sum(keepdims=True), state, {})
        )
        with pytest.raises(fedmom.FedMomError, match=r"\[\(3,\)\] into an aggregate .*\[\(1,\)\]"):
            one_round(Scripted(), fedavg(stages=(summing,)))


class TestRuntimesThatOnlyTrain:
    """A part of a method is never silently left out."""

    def plain(self):
        runtime = Scripted()
        runtime.runs_method = False
        return runtime

    @pytest.mark.parametrize(
        "parts",
        [{"stages": (fedmom.clip(norm=1.0),)}, {"client": fedmom.Client(run=lambda *_: None)}],
        ids=["stage", "client"],
    )
    def test_clients_and_stages_of_ones_own_are_refused(self, parts):
        runtime = self.plain()
        with pytest.raises(fedmom.FedMomError, match="Scripted does not run the algorithm's own"):
            one_round(runtime, fedavg(**parts))
        assert runtime.asked == []

    @pytest.mark.parametrize(
        "parts",
        [
            {},
            {"stages": (fedmom.noise(std=1.0),)},
            {"rule": fedmom.median()},
            {"client": fedmom.LOCAL_TRAINING},
        ],
        ids=["nothing", "a stage on the server", "rule", "plain client"],
    )
    def test_what_runs_on_the_server_is_welcome(self, parts):
        _, record = one_round(self.plain(), fedavg(**parts))
        assert record.replies == 5

    def test_what_is_no_runtime_is_refused_with_what_it_lacks(self):
        class Half:
            workload, runs_method, splits = None, True, ()
            ask = replies = under_way = cancel = evaluate = snapshot = restore = None

        with pytest.raises(
            fedmom.FedMomError,
            match=r"runtime is of type Half\. It must be a fedmom\.Runtime, which has ask, block",
        ):
            list(fedmom.train(Half(), pace=fedmom.synchronous(2), rounds=1))
