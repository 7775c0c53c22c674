"""One bad reply can do nothing: what is absurdly large is rejected by name, and never poisons."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmom
from fedmom.training.reply_sizes import LIMIT, ReplySizes, lower_median
from tests.training.scripted import (
    UPDATES,
    Scripted,
    block,
    everybody,
    fedavg,
    one_round,
    rounds,
    weights_of,
    workload,
)

OTHERS = [0, 2, 3, 4]
HUGE = [1e5, 1e17, 1.5e19]  # the norm is finite in 32 bits


def sending(what, hostile=1, since=0):
    """A runtime in which a client sends a multiple of its update from some round on."""

    def answers(round_, clients, _):
        def one(k):
            factor = what if k == hostile and round_ >= since else 1
            return block([k], np.float32(factor) * UPDATES[[k]], version=round_)

        return [one(k) for k in clients]

    return Scripted(answers)


RULES = {
    "uniform": fedmom.mean("uniform"),
    "median": fedmom.median(),
    "bucketed": fedmom.mean("uniform"),
}


def method(name):
    stages = (fedmom.bucketing(size=1),) if name == "bucketed" else ()
    return fedavg(rule=RULES[name], stages=stages)


def aggregate(name, clients):
    rows = UPDATES[clients]
    return np.median(rows, axis=0) if name == "median" else rows.mean(axis=0)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("factor", HUGE)
class TestHugeReplies:
    """A finite update of 1e17 used to count: 3 of 3 replies, exit 0, a destroyed model."""

    def test_it_is_rejected_by_name_in_the_first_round(self, rule, factor):
        state, record = one_round(sending(factor), method(rule), bad_replies="skip")
        np.testing.assert_allclose(state.params, -aggregate(rule, OTHERS), rtol=1e-5, atol=1e-6)
        ((client, reason),) = record.rejected
        assert (client, record.replies) == (1, 4)
        assert "its update has the norm" in reason
        assert "times the median" in reason

    def test_and_in_a_later_one(self, rule, factor):
        (_, first), (_, second) = rounds(
            sending(factor, since=1), method(rule), 2, bad_replies="skip"
        )
        assert (first.replies, second.replies) == (5, 4)
        assert [r.client for r in second.rejected] == [1]

    def test_with_stop_the_run_ends_with_the_client_s_name(self, rule, factor):
        """A limit that is given is looked at, also where replies would only be added up."""
        with pytest.raises(fedmom.BadReplyError, match=r"reply of client 1 .* has the norm"):
            one_round_limited(sending(factor), method(rule), 1000.0)


def one_round_limited(runtime, algorithm, limit, bad_replies="stop"):
    runtime.workload = workload(algorithm)
    pace = fedmom.synchronous(5, everybody)
    steps = fedmom.train(runtime, pace=pace, rounds=1, bad_replies=bad_replies, norm_limit=limit)
    return next(steps)


def test_the_limit_is_configurable_and_can_be_left_out():
    kept = one_round_limited(sending(50.0), fedavg("uniform"), 1000.0, "skip")[1]
    assert kept.replies == 5
    strict = one_round_limited(sending(50.0), fedavg("uniform"), 10.0, "skip")[1]
    assert [r.client for r in strict.rejected] == [1]
    without = one_round_limited(sending(1e10), fedavg("uniform"), 0.0, "skip")[1]
    assert (without.replies, without.rejected) == (5, ())
    with pytest.raises(fedmom.FedMomError, match=r"norm_limit=0.5 must be at least 1"):
        one_round_limited(Scripted(), fedavg("uniform"), 0.5)


def test_replies_of_a_first_round_are_judged_whatever_their_order():
    """The huge one comes first, when nothing is known yet."""
    results = [one_round(sending(1e17, k), fedavg("uniform"), bad_replies="skip") for k in range(5)]
    for k, (state, record) in enumerate(results):
        assert [r.client for r in record.rejected] == [k]
        rest = [c for c in range(5) if c != k]
        np.testing.assert_allclose(state.params, -UPDATES[rest].mean(axis=0), rtol=1e-5, atol=1e-6)


def test_of_two_replies_the_absurd_one_is_rejected():
    runtime = sending(1e17, hostile=0)
    _, record = one_round(
        runtime,
        fedavg("uniform"),
        pace=fedmom.synchronous(2, lambda *_: np.arange(2)),
        bad_replies="skip",
    )
    assert [r.client for r in record.rejected] == [0]


def test_where_all_replies_grow_nobody_is_blamed():
    """Training diverges: that is the learning rate's fault, and the run says so."""

    def answers(round_, clients, _):
        factor = np.float32(1.0 if round_ < 3 else 1e17)
        return [block([k], factor * UPDATES[[k]], version=round_) for k in clients]

    with pytest.raises(fedmom.DivergedError, match="smaller --server-lr or --lr"):
        rounds(Scripted(answers), fedavg("uniform", rate=1000.0), 5)


class TestDivergedSteps:
    """A step that would make the model non-finite is traced to the reply that caused it."""

    def algorithm(self):
        return fedavg("uniform", rate=100.0)  # 100 * 1e18 squared is no number of 32 bits

    def test_with_stop_the_message_blames_the_client(self):
        """Replies that are added up are not looked at one by one, until a step diverges."""
        runtime = sending(5e18, since=2)
        with pytest.raises(fedmom.BadReplyError) as raised:
            rounds(runtime, self.algorithm(), 3)
        text = str(raised.value)
        assert "client 1" in text
        assert "the server's step is not finite" in text
        assert "--lr" not in text

    def test_the_model_before_it_is_kept_and_the_run_continues_from_it(self):
        algorithm, seen = self.algorithm(), []
        runtime = sending(5e18, since=2)
        runtime.workload = workload(algorithm)
        steps = fedmom.train(runtime, pace=fedmom.synchronous(5, everybody), rounds=3)
        with pytest.raises(fedmom.BadReplyError):
            seen.extend(state for state, _ in steps)
        assert [state.round for state in seen] == [1, 2]
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(seen[-1].params))
        after, record = one_round(Scripted(), algorithm, state=seen[-1])
        assert (after.round, record.replies) == (3, 5)

    def test_with_skip_the_step_is_redone_without_it(self):
        """Also where no limit is set: the replies of such a run are held until the step is done."""
        state, record = one_round_limited(sending(5e18), self.algorithm(), 0.0, "skip")
        np.testing.assert_allclose(
            state.params, -100 * UPDATES[OTHERS].mean(axis=0), rtol=1e-5, atol=1e-5
        )
        ((client, reason),) = record.rejected
        assert client == 1
        assert "the server's step is not finite" in reason


@given(
    norms=st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=30),
    scale=st.sampled_from([1e-12, 1.0, 1e12]),
)
def test_honest_norms_within_the_limit_of_each_other_never_count_as_absurd(norms, scale):
    sizes = ReplySizes(LIMIT)
    low = min(norms)
    close = [scale * min(n, LIMIT * low) for n in norms]
    assert not sizes.absurd_in_round(close).any()
    sizes.add(close)
    assert not sizes.absurd(close).any()


@given(
    honest=st.lists(st.floats(0.1, 10), min_size=2, max_size=20),
    hostile=st.integers(1, 19),
    factor=st.floats(1e5, 1e15),
)
def test_a_minority_of_absurd_norms_is_found(honest, hostile, factor):
    bad = [10 * factor] * min(hostile, len(honest) - 1)
    found = ReplySizes().absurd_in_round([*bad, *honest])
    assert found.tolist() == [True] * len(bad) + [False] * len(honest)


def test_norms_of_zero_are_no_measure():
    sizes = ReplySizes()
    assert not sizes.absurd_in_round([0, 0, 0, 5.0]).any()
    sizes.add([0, 0, 0])
    assert not sizes.knows
    assert lower_median([0.0, 4.0, 2.0]) == 2.0


def test_a_rule_with_too_few_replies_takes_no_step_and_says_so():
    """Of 7 clients two fail: Krum for two attackers needs 7 replies."""
    samples = np.array([10, 20, 30, 40, 100, 10, 20])
    bad = jnp.zeros((1, 9))

    def answers(round_, clients, _):
        def one(k):
            return block([k], bad if k < 2 else None, samples=[samples[k]], version=round_)

        return [one(k) for k in clients]

    state, record = one_round(
        Scripted(answers),
        fedavg(rule=fedmom.krum(attackers=2)),
        samples=samples,
        bad_replies="skip",
    )
    np.testing.assert_array_equal(state.params, np.zeros(3))
    assert record.replies == 5
    assert record.metrics["server/too_few_replies"] == 1


def test_a_rule_that_needs_more_replies_than_a_round_has_is_refused_before_it():
    runtime = Scripted()
    with pytest.raises(fedmom.FedMomError, match=r"krum needs at least 7 replies .* has 5"):
        one_round(runtime, fedavg(rule=fedmom.krum(attackers=2)))
    assert runtime.asked == []
    bucketed = fedavg(rule=fedmom.krum(attackers=0), stages=(fedmom.bucketing(size=3),))
    with pytest.raises(fedmom.FedMomError, match=r"bucketing with krum needs at least 7"):
        one_round(runtime, bucketed)


@pytest.mark.parametrize("weighting", ["population", "cohort", "uniform"])
def test_clip_is_enforced_on_the_server(weighting):
    """A device that skips it used to send 1e17."""
    norm = 0.5
    scaled = UPDATES * np.minimum(1, norm / np.linalg.norm(UPDATES, axis=1))[:, None]
    algorithm = fedavg(rule=fedmom.mean(weighting), stages=(fedmom.clip(norm=norm),))
    state, _ = one_round_limited(sending(1e15), algorithm, 0.0, "skip")
    expected = -weights_of(weighting, np.arange(5)) @ scaled
    np.testing.assert_allclose(state.params, expected, rtol=1e-4, atol=1e-6)


def test_what_a_client_has_clipped_keeps_its_bits_on_the_server():
    stage, update = fedmom.clip(norm=0.7), jnp.asarray(UPDATES[0])
    sent, _, _ = stage.encode(update, (), (), None)
    np.testing.assert_array_equal(stage.enforce(sent), sent)
    assert np.linalg.norm(stage.enforce(sent * 50)) == pytest.approx(0.7)
