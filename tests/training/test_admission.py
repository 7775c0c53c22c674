"""Replies that cannot be used: refused by name and reason, or left out, and never averaged in.

Earlier versions of fedmom trusted every reply. Of the faults below they trained on silently with:
a client that was not asked, one that answered twice, a negative index, arrays of shape () and
(1,), which were broadcast over the model, and arrays of any type, also complex ones. Others ended
in an exception of NumPy or JAX that named no client.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmom
from fedmom.algorithms.forms import Form
from fedmom.training.admission import malformed, members_of, unusable
from tests.training.scripted import (
    LOSSES,
    SIZES,
    UPDATES,
    Scripted,
    begin,
    block,
    fedavg,
    one_round,
    rounds,
    weights_of,
)

NAN, INF = np.float32(np.nan), np.float32(np.inf)
ROW = UPDATES[[1]]


def numbers(*values):
    return np.array(values)


# What client 1 sends instead of its reply, and what is said about it.
MALFORMED = {
    "a longer array": (block([1], jnp.zeros((1, 4))), r"shape \(1, 4\), not \(1, 3\)"),
    "a shorter array": (block([1], jnp.zeros((1, 2))), r"shape \(1, 2\), not \(1, 3\)"),
    "a scalar": (block([1], jnp.ones(())), r"shape \(\), not \(1, 3\)"),
    "a single number": (block([1], jnp.ones(1)), r"shape \(1,\), not \(1, 3\)"),
    "a column": (block([1], jnp.ones((1, 1))), r"shape \(1, 1\), not \(1, 3\)"),
    "a row too many": (block([1], jnp.ones((2, 3))), r"shape \(2, 3\), not \(1, 3\)"),
    "no rows": (block([1], jnp.ones((0, 3))), r"shape \(0, 3\), not \(1, 3\)"),
    "one without its row": (block([1], jnp.ones(3)), r"shape \(3,\), not \(1, 3\)"),
    "a Python number": (block([1], 0.5), r"shape None, not \(1, 3\)"),
    "doubles": (block([1], ROW.astype(np.float64)), "type float64, not float32"),
    "halves": (block([1], ROW.astype(np.float16)), "type float16, not float32"),
    "whole numbers": (block([1], ROW.astype(np.int32)), "type int32, not float32"),
    "complex numbers": (block([1], ROW.astype(np.complex64)), "type complex64, not float32"),
    "truth values": (block([1], ROW > 0), "type bool, not float32"),
    "objects": (block([1], ROW.astype(object)), "type object, not float32"),
    "a tree": (block([1], {"w": ROW}), r"its update is PyTreeDef.*, not PyTreeDef"),
    "a list": (block([1], [ROW]), r"its update is PyTreeDef.*, not PyTreeDef"),
    "two arrays": (block([1], (ROW, ROW)), r"its update is PyTreeDef.*, not PyTreeDef"),
    "nothing": (block([1], ())._replace(update=None), r"its update is PyTreeDef\(None\), not"),
    "no loss": (block([1])._replace(metrics={}), "does not have a loss for each of 1 rows"),
    "a loss of None": (block([1])._replace(metrics={"loss": None}), "does not have a loss"),
    "two losses": (block([1], losses=LOSSES[:2]), "does not have a loss for each of 1 rows"),
    "a scalar loss": (block([1], losses=LOSSES[1]), "does not have a loss for each of 1 rows"),
    "two norms": (block([1], norm=numbers(1.0, 2.0)), "does not have a norm for each of 1 rows"),
    "a loss in words": (block([1], losses=numbers("low")), "does not have a loss"),
    "a complex loss": (block([1], losses=numbers(1j)), "does not have a loss"),
    "samples as floats": (block([1], samples=[20.0]), r"counts its samples as \[20.0\]"),
    "no samples": (block([1], samples=np.array([], int)), r"counts its samples as \[\]"),
    "two sample counts": (block([1], samples=[20, 30]), r"counts its samples as \[20, 30\]"),
    "samples in words": (block([1], samples=["20"]), r"counts its samples as \['20'\]"),
    "members of nobody": (block([1], members=numbers(0)), r"groups of \[0\] for 1 clients"),
    "members too many": (block([1], members=numbers(2)), r"groups of \[2\] for 1 clients"),
    "members below zero": (block([1], members=numbers(2, -1)), r"groups of \[2, -1\] for 1"),
    "members as floats": (block([1], members=numbers(1.0)), r"groups of \[1.0\] for 1 clients"),
    "members in a table": (block([1], members=np.ones((1, 1), int)), r"groups of \[\[1\]\] for 1"),
    "no members": (block([1], members=np.array([], int)), r"groups of \[\] for 1 clients"),
}
UNUSABLE = {
    "a sample too many": (block([1], samples=[21]), "it claims 21 samples and has 20"),
    "no samples at all": (block([1], samples=[0]), "it claims 0 samples and has 20"),
    "fewer than none": (block([1], samples=[-20]), "it claims -20 samples and has 20"),
    "an absurd number": (block([1], samples=[2**62]), "it claims 4611686018427387904 samples"),
}
INFINITE = {
    "an update of NaN": block([1], NAN * ROW),
    "one number of NaN": block([1], ROW + np.array([0, NAN, 0], np.float32)),
    "an infinite update": block([1], INF * np.abs(ROW)),
    "a loss of NaN": block([1], losses=np.array([NAN])),
    "an infinite loss": block([1], losses=np.array([INF])),
    "an update too long to measure": block([1], np.float32(1e30) * ROW),
}
OTHERS = [0, 2, 3, 4]
RULES = {
    "population": fedmom.mean("population"),
    "cohort": fedmom.mean("cohort"),
    "uniform": fedmom.mean("uniform"),
    "trimmed": fedmom.trimmed_mean(share=0.3),
}


def method(rule):
    return fedavg(rule=RULES[rule])


def aggregate(rule, clients):
    """The aggregate of these clients, by hand."""
    if rule != "trimmed":
        return weights_of(rule, clients) @ UPDATES[clients]
    cut = int(0.3 * len(clients))
    return np.sort(UPDATES[clients], axis=0)[cut : len(clients) - cut].mean(axis=0)


def instead(reply):
    """A runtime in which client 1 sends something else, in the middle of the others."""

    def answers(round_, clients, _):
        return [reply if k == 1 else block([k], version=round_) for k in clients]

    return Scripted(answers)


def check_skipped(reply, rule, reason, rejected=(1,)):
    runtime = instead(reply)
    state, record = one_round(runtime, method(rule), bad_replies="skip")
    np.testing.assert_allclose(state.params, -aggregate(rule, OTHERS), rtol=1e-5, atol=1e-7)
    assert record.replies == len(OTHERS)
    assert tuple(r.client for r in record.rejected) == tuple(rejected)
    assert all(reason(r.reason) for r in record.rejected)
    weights = np.ones(4) if rule in ("uniform", "trimmed") else SIZES[OTHERS]
    assert record.train_loss == pytest.approx(np.average(LOSSES[OTHERS], weights=weights))
    assert record.bytes_up == 4 * 12


def check_stopped(reply, rule, error, match):
    """It stops; what was there before is as it was, and the round can be played again."""
    algorithm = method(rule)
    state = begin(algorithm, jnp.arange(3.0))
    runtime = instead(reply)
    with pytest.raises(error, match=match):
        one_round(runtime, algorithm, state=state)
    assert runtime.commits == 0
    np.testing.assert_array_equal(state.params, np.arange(3.0))
    after, _ = one_round(Scripted(), algorithm, state=state)
    expected = np.arange(3.0) - aggregate(rule, np.arange(5))
    np.testing.assert_allclose(after.params, expected, rtol=1e-5)


def matches(pattern):
    return lambda text: re.search(pattern, text, re.DOTALL) is not None


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", [*MALFORMED, *UNUSABLE])
class TestBadReplies:
    """A reply that is not what was asked for, by form or by content."""

    def test_it_stops_the_run_with_a_sentence_that_names_the_client(self, name, rule):
        reply, reason = (MALFORMED | UNUSABLE)[name]
        sentence = rf"(?s)The reply of client 1 cannot be used: .*{reason}"
        check_stopped(reply, rule, fedmom.BadReplyError, sentence)

    def test_or_it_is_left_out_with_its_reason(self, name, rule):
        reply, reason = (MALFORMED | UNUSABLE)[name]
        check_skipped(reply, rule, matches(reason))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", INFINITE)
class TestNotFinite:
    """A reply that has left the finite numbers."""

    def test_it_stops_the_run_with_a_sentence_that_names_the_client(self, name, rule):
        sentence = "Round 1: client 1 sent back a model that is not finite"
        check_stopped(INFINITE[name], rule, fedmom.DivergedError, sentence)

    def test_or_it_is_left_out_with_its_reason(self, name, rule):
        check_skipped(INFINITE[name], rule, matches("its update is not finite"))


STRANGERS = {
    "not asked": (block([1]), 1, "it was not asked, or has answered already"),
    "twice, in two blocks": (block([3]), 3, "it was not asked, or has answered already"),
    "unknown": (block([5]), 5, "there is no such client among 5"),
    "far away": (block([2**40]), 2**40, "there is no such client among 5"),
    "negative": (block([-1]), -1, "there is no such client among 5"),
    "very negative": (block([-(2**40)]), -(2**40), "there is no such client among 5"),
    "a float": (block(np.array([1.0])), -1, r"its block names the clients \[1.0\]"),
    "a name": (block(np.array(["one"])), -1, r"its block names the clients \['one'\]"),
    "nobody": (block(np.array([], int)), -1, r"its block names the clients \[\]"),
    "a number": (block(np.array(3)), 3, "its block names the clients 3"),
    "a table": (block(np.array([[3]])), 3, r"its block names the clients \[\[3\]\]"),
}


class TestWrongClients:
    """Replies of clients that have nothing to say in this round. Earlier, all were averaged in."""

    def other(self, *extra):
        """Everybody but client 1 is asked and answers; then come more replies."""

        def answers(round_, clients, _):
            return [*(block([k], version=round_) for k in clients), *extra]

        return Scripted(answers)

    def pace(self):
        return fedmom.synchronous(4, lambda *_: np.array(OTHERS))

    @pytest.mark.parametrize("name", STRANGERS)
    def test_they_stop_the_run(self, name):
        reply, client, reason = STRANGERS[name]
        sentence = f"The reply of client {client} cannot be used: {reason}"
        with pytest.raises(fedmom.BadReplyError, match=sentence):
            one_round(self.other(reply), pace=self.pace())

    @pytest.mark.parametrize("rule", RULES)
    @pytest.mark.parametrize("name", STRANGERS)
    def test_or_they_are_left_out(self, name, rule):
        reply, client, reason = STRANGERS[name]
        state, record = one_round(
            self.other(reply), method(rule), pace=self.pace(), bad_replies="skip"
        )
        np.testing.assert_allclose(state.params, -aggregate(rule, OTHERS), rtol=1e-5, atol=1e-7)
        ((rejected, why),) = record.rejected
        assert rejected == client
        assert matches(reason)(why)

    @pytest.mark.parametrize("rule", RULES)
    def test_of_a_client_twice_in_one_block_the_first_reply_counts(self, rule):
        """As it does in two blocks."""
        twice = block([0, 2, 2, 3, 4], updates=jnp.asarray(UPDATES[[0, 2, 1, 3, 4]]))
        runtime = Scripted(lambda *_: [twice])
        with pytest.raises(fedmom.BadReplyError, match=r"of client 2 .*: it answered twice"):
            one_round(runtime, method(rule), pace=self.pace())
        runtime = Scripted(lambda *_: [twice])
        state, record = one_round(runtime, method(rule), pace=self.pace(), bad_replies="skip")
        np.testing.assert_allclose(state.params, -aggregate(rule, OTHERS), rtol=1e-5, atol=1e-7)
        assert record.rejected == ((2, "it answered twice"),)
        assert record.replies == 4


class TestVersions:
    """Replies that trained another model than this round's."""

    def late(self, version):
        def answers(round_, clients, _):
            return [
                block([k], version=version if k == 1 and round_ == 2 else round_) for k in clients
            ]

        return Scripted(answers)

    @pytest.mark.parametrize("bad_replies", ["stop", "skip"])
    @pytest.mark.parametrize("version", [0, 1])
    def test_a_late_reply_is_left_out_and_stops_nothing(self, version, bad_replies):
        """A slow client is no mistake, and a runtime may not be able to stop it."""
        *_, (before, _), (state, record) = rounds(
            self.late(version), fedavg("uniform"), 3, bad_replies=bad_replies
        )
        expected = np.asarray(before.params) - aggregate("uniform", OTHERS)
        np.testing.assert_allclose(state.params, expected, rtol=1e-5)
        assert record.rejected == ((1, f"it trained the model of round {version}, not of 2"),)

    def test_a_model_that_is_not_there_yet_is_a_mistake(self):
        with pytest.raises(fedmom.BadReplyError, match=r"client 1 .* of round 3, not of 2"):
            rounds(self.late(3), count=3)
        *_, (_, record) = rounds(self.late(3), count=3, bad_replies="skip")
        assert (record.replies, [r.client for r in record.rejected]) == (4, [1])

    def test_a_reply_for_another_round_than_the_one_asked_in_is_refused(self):
        """Where late replies count, they still answer a question that was asked."""

        def answers(_round, clients, _):
            return [block([k], version=0) for k in clients]

        pace = fedmom.buffered(1, lambda _seed, t, *_: np.array([t]), in_flight=1)
        with pytest.raises(fedmom.BadReplyError, match=r"client 1 .*: it was not asked"):
            rounds(Scripted(answers), count=2, pace=pace)


class TestBlocks:
    """Blocks of several rows, some of them bad."""

    @pytest.mark.parametrize("rule", RULES)
    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"samples": SIZES + np.eye(5, dtype=int)[1]}, "it claims 21 samples and has 20"),
            ({"updates": jnp.asarray(UPDATES).at[1, 2].set(NAN)}, "its update is not finite"),
            ({"losses": np.array([0, NAN, 2, 3, 4], np.float32)}, "its update is not finite"),
        ],
        ids=["samples", "update", "loss"],
    )
    def test_a_bad_row_is_left_out_and_the_others_count(self, rule, changes, reason):
        runtime = Scripted(lambda *_: [block(np.arange(5), **changes)])
        state, record = one_round(runtime, method(rule), bad_replies="skip")
        np.testing.assert_allclose(state.params, -aggregate(rule, OTHERS), rtol=1e-5, atol=1e-7)
        assert record.rejected == ((1, reason),)
        assert record.replies == 4
        weights = np.ones(4) if rule in ("uniform", "trimmed") else SIZES[OTHERS]
        assert record.train_loss == pytest.approx(np.average(LOSSES[OTHERS], weights=weights))

    @pytest.mark.parametrize("rule", ["population", "cohort", "uniform"])
    def test_a_sum_with_a_bad_client_in_it_is_left_out_whole(self, rule):
        """Everybody in it is named: whose reply is bad, and who was summed with it."""
        rows = UPDATES[[0, 1, 4]]  # of clients 0, of 1 to 3, of 4
        grouped = block(
            np.arange(5),
            jnp.asarray(rows),
            samples=SIZES + np.array([0, 0, 1, 0, 0]),
            losses=LOSSES[:3],
            members=np.array([1, 3, 1]),
        )
        with pytest.raises(fedmom.BadReplyError, match=r"client 2 .*: it claims 31 samples"):
            one_round(Scripted(lambda *_: [grouped]), method(rule))
        state, record = one_round(Scripted(lambda *_: [grouped]), method(rule), bad_replies="skip")
        np.testing.assert_allclose(state.params, -aggregate(rule, [0, 4]), rtol=1e-5, atol=1e-7)
        assert record.replies == 2
        assert dict(record.rejected) == {
            2: "it claims 31 samples and has 30",
            1: "it was summed with client 2",
            3: "it was summed with client 2",
        }

    def test_of_a_sum_that_is_not_finite_nobody_is_accused(self):
        """All of its clients may be finite: a sum may overflow."""
        rows = np.array([UPDATES[0], [np.inf, 0, 0]], np.float32)
        grouped = block(
            np.arange(5), jnp.asarray(rows), losses=LOSSES[:2], members=np.array([2, 3])
        )
        whose = "the sum of the updates of client 2 and 2 more is not finite"
        for rule in ("population", "cohort", "uniform"):
            with pytest.raises(fedmom.DivergedError, match=whose):
                one_round(Scripted(lambda *_: [grouped]), method(rule))
            _, record = one_round(Scripted(lambda *_: [grouped]), method(rule), bad_replies="skip")
            assert record.replies == 2
            assert record.rejected == tuple(
                (k, "a sum that it is in is not finite") for k in (2, 3, 4)
            )

    def test_all_rows_may_be_bad(self):
        for rule in RULES:
            runtime = Scripted(lambda *_: [block(np.arange(5), samples=SIZES + 1)])
            state, record = one_round(runtime, method(rule), bad_replies="skip")
            np.testing.assert_array_equal(state.params, np.zeros(3))
            assert (record.replies, record.train_loss, record.update_norm) == (0, None, 0)
            assert len(record.rejected) == 5


def test_a_round_of_rejected_replies_only_has_no_step():
    """With momentum, a step on nothing would move the model."""

    def answers(round_, clients, _):
        samples = SIZES[clients] + (round_ == 1)
        return [block(clients, samples=samples, version=round_)]

    mom = fedmom.Algorithm(fedmom.servers.fedmom(), fedavg().work, rule=fedmom.mean("uniform"))
    first, second, third = rounds(Scripted(answers), mom, count=3, bad_replies="skip")
    assert (second[1].replies, second[1].train_loss, second[1].update_norm) == (0, None, 0)
    for before, after in zip(*map(jax.tree.leaves, (first[0][1:], second[0][1:])), strict=True):
        np.testing.assert_array_equal(before, after)
    assert (second[0].round, third[0].round) == (2, 3)
    assert not np.array_equal(third[0].params, second[0].params)


def test_what_is_left_out_stands_in_the_log():
    _, record = one_round(instead(UNUSABLE["a sample too many"][0]), bad_replies="skip")
    assert record.row()["rejected"] == [[1, "it claims 21 samples and has 20"]]
    _, record = one_round(Scripted())
    assert "rejected" not in record.row()


def test_a_client_whose_reply_was_bad_may_answer_in_the_next_round():
    def answers(round_, clients, _):
        bad = block([1], jnp.zeros((1, 9)), version=round_)
        return [bad if k == 1 and not round_ else block([k], version=round_) for k in clients]

    (_, first), (_, second) = rounds(Scripted(answers), count=2, bad_replies="skip")
    assert (first.replies, second.replies) == (4, 5)


@pytest.mark.parametrize("rule", RULES)
def test_replies_that_are_all_good_give_the_same_bits_with_skip(rule):
    one, other = (
        one_round(Scripted(), method(rule), bad_replies=bad)[0].params for bad in ("stop", "skip")
    )
    np.testing.assert_array_equal(one, other)


def test_the_form_of_an_update_is_its_structure_shapes_and_types():
    params = [{"w": jnp.zeros((4, 3)), "b": jnp.zeros(3, jnp.bfloat16)}]
    form = Form.of(params)
    assert form.bytes == 48 + 6
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), params)
    assert form.fault(stacked, 2) == ""
    assert "shape" in form.fault(stacked, 3)
    assert form.fault([{"w": stacked[0]["w"]}], 2).startswith("its update is PyTreeDef")


def test_a_good_block_has_no_fault():
    form = Form.of(jnp.zeros(3))
    for good in (
        block([1]),
        block([0, 4]),
        block([0, 1, 2], UPDATES[:2], losses=LOSSES[:2], members=np.array([2, 1])),
    ):
        assert malformed(good, form) == ""
        assert unusable(good, SIZES, {0, 1, 2, 3, 4}) == []
        assert members_of(good).sum() == len(good.clients)
