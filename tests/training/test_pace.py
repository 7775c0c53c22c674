"""Paces: who is asked, when a round ends, and what late replies count."""

import math
from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmom
from fedmom.runtimes import local
from fedmom.runtimes.base import Block, Failure
from fedmom.training import PACES
from fedmom.training.pace import AGAIN
from fedmom.training.samplers import cohort
from tests.conftest import population
from tests.training.scripted import (
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


def alike(clients):
    """The samples of clients that all have one."""
    return np.ones(clients, np.int64)


# Clients that are really trained, in threes: every number in a call compiles anew.
SIX = population([5, 9, 30, 2, 17, 8])
MODEL = fedmom.build_model("logreg", SIX.features)
WORK = fedmom.LocalWork(lr=0.1, steps=2)


def six(server=None, rule=None):
    """What is run: clients that are really trained."""
    algorithm = fedmom.Algorithm(server or fedmom.servers.fedavg(), WORK, rule=rule)
    return fedmom.Workload(SIX, MODEL, algorithm)


class TestSynchronous:
    """A cohort is asked, and all of it is waited for."""

    def test_it_asks_the_samplers_cohorts_and_never_has_enough(self):
        pace = fedmom.synchronous(3)
        for t in range(5):
            np.testing.assert_array_equal(pace.ask(4, t, SIZES, set()), cohort(4, t, 5, 3))
        assert not pace.enough(3)
        assert not pace.keeps_late
        assert (pace.rows, pace.timeout) == (3, None)

    def test_replies_to_older_models_count_nothing(self):
        pace = fedmom.synchronous(3)
        assert [pace.weight(s) for s in (0, 1, 5)] == [1, 0, 0]

    def test_who_has_not_answered_is_forgotten(self):
        def answers(round_, clients, _):
            return [block([k], version=round_) for k in clients if k != 2]

        runtime = Scripted(answers)
        found = rounds(runtime, count=2)
        assert [r.replies for _, r in found] == [4, 4]
        assert runtime.cancelled[-2:] == [[(2, 0)], [(2, 1)]]

    @pytest.mark.parametrize("seconds", [0, -1, math.nan])
    @pytest.mark.parametrize("name", PACES)
    def test_a_timeout_is_a_number_of_seconds(self, name, seconds):
        options = {"in_flight": 4} if name == "buffered" else {}
        with pytest.raises(fedmom.FedMomError, match=r"timeout=.* greater than 0"):
            PACES[name](2, timeout=seconds, **options)

    def test_the_runtime_is_told_how_long_to_wait(self):
        waits = []

        class Patient(Scripted):
            def replies(self, timeout=None):
                waits.append(timeout)
                return super().replies(timeout)

        pace = fedmom.synchronous(5, everybody, timeout=2.5)
        one_round(Patient(), pace=pace)
        assert waits == [2.5]


class TestOverSelected:
    """More than M are asked, and the first M count."""

    @pytest.mark.parametrize(
        ("size", "extra", "asked"), [(10, 0.3, 13), (10, 0.1, 11), (100, 0.07, 107), (3, 0.5, 5)]
    )
    def test_it_asks_a_share_more_rounded_up(self, size, extra, asked):
        pace = fedmom.over_selected(size, extra=extra)
        assert len(pace.ask(0, 0, alike(200), set())) == asked
        assert pace.rows == size

    def test_without_extra_it_is_synchronous(self):
        pace = fedmom.over_selected(3, extra=0)
        np.testing.assert_array_equal(np.sort(pace.ask(1, 7, SIZES, set())), cohort(1, 7, 5, 3))

    def test_nobody_is_dropped_for_its_number(self):
        """A runtime that answers in order drops each client as often as any other."""
        pace = fedmom.over_selected(3, everybody, extra=0.6)
        first = np.array([pace.ask(0, t, SIZES, set())[:3] for t in range(2000)])
        counts = np.bincount(first.ravel(), minlength=5)
        assert abs(counts / 2000 - 3 / 5).max() < 5 * math.sqrt(0.6 * 0.4 / 2000)
        assert pace.ask(0, 1, SIZES, set()).tolist() == pace.ask(0, 1, SIZES, set()).tolist()

    @pytest.mark.parametrize("extra", [-0.1, math.inf, math.nan])
    def test_a_senseless_share_is_refused(self, extra):
        with pytest.raises(fedmom.FedMomError, match=r"extra=.* must be a number from 0 to"):
            fedmom.over_selected(2, extra=extra)

    @pytest.mark.parametrize("weighting", ["population", "cohort", "uniform"])
    @pytest.mark.parametrize("at_once", [1, 2, 5])
    def test_the_first_m_count_and_the_others_are_cancelled(self, weighting, at_once):
        """However many clients answer in one block."""
        order = [3, 0, 4, 1, 2]

        def answers(round_, _clients, _):
            parts = [order[i : i + at_once] for i in range(0, 5, at_once)]
            return [block(part, version=round_) for part in parts]

        runtime = Scripted(answers)
        pace = fedmom.over_selected(3, everybody, extra=0.6)
        found = rounds(runtime, fedavg(weighting), 2, pace=pace)
        for (state, record), times in zip(found, (1, 2), strict=True):
            first = order[:3]
            expected = times * weights_of(weighting, first) @ UPDATES[first]
            np.testing.assert_allclose(state.params, -expected, rtol=1e-5)
            assert (sorted(record.cohort), record.replies) == ([0, 1, 2, 3, 4], 3)
            assert record.rejected == ()
        answered = math.ceil(3 / at_once) * at_once
        late = [k for k in range(5) if k not in order[:answered]]
        assert sorted(runtime.cancelled[-1]) == [(k, 1) for k in late]

    def test_how_the_local_runtime_computes_changes_nothing(self, monkeypatch):
        """One by one, a few in one call or vectorized: the first M of those asked count."""
        found = []
        ways = ((0, 1, False), (0, 3, False), (math.inf, 1, False), (0, 1, True))
        for short, per_call, vectorized in ways:
            monkeypatch.setattr(local, "SHORT", short)
            monkeypatch.setattr(local, "at_once", lambda *_, n=per_call: n)
            runtime = fedmom.LocalRuntime(six(), vectorized=vectorized)
            pace = fedmom.over_selected(3, extra=1.0)
            *_, (state, record) = fedmom.train(runtime, pace=pace, rounds=3)
            found.append(np.concatenate([np.ravel(w) for w in jax.tree.leaves(state.params)]))
            assert (len(record.cohort), record.replies) == (6, 3)
        np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(found[0], found[2], rtol=1e-4, atol=1e-6)

    def test_a_bad_reply_makes_room_for_the_next(self):
        def answers(round_, clients, _):
            bad = block([0], samples=[7], version=round_)
            return [bad, *(block([k], version=round_) for k in sorted(clients)[1:])]

        pace = fedmom.over_selected(3, everybody, extra=0.6)
        state, record = one_round(
            Scripted(answers), fedavg("uniform"), pace=pace, bad_replies="skip"
        )
        np.testing.assert_allclose(state.params, -UPDATES[1:4].mean(axis=0), rtol=1e-5)
        assert [r.client for r in record.rejected] == [0]


class TestBuffered:
    """Some clients are always at work; the server steps whenever M replies are in (FedBuff)."""

    def test_a_reply_counts_one_over_the_root_of_its_age(self):
        pace = fedmom.buffered(2, in_flight=4)
        assert [pace.weight(s) for s in range(4)] == pytest.approx(
            [1, 1 / math.sqrt(2), 1 / math.sqrt(3), 0.5]
        )
        assert pace.keeps_late
        assert [pace.enough(r) for r in (1, 2, 3)] == [False, True, True]

    def test_fewer_at_work_than_a_round_needs_is_refused(self):
        with pytest.raises(fedmom.FedMomError, match="in_flight=1 must be at least 2, the clients"):
            fedmom.buffered(2, in_flight=1)

    @given(
        clients=st.integers(4, 60),
        size=st.integers(1, 4),
        more=st.integers(0, 20),
        seed=st.integers(0, 1000),
    )
    def test_as_many_as_promised_are_at_work_in_every_round(self, clients, size, more, seed):
        """Also where a cohort has clients in it that are busy: others are asked in their place."""
        in_flight = min(size + more, max(size, clients * 2 // 3))
        pace = fedmom.buffered(size, in_flight=in_flight)
        at_work = []
        for t in range(12):
            new = pace.ask(seed, t, alike(clients), set(at_work)).tolist()
            at_work += new
            assert len(at_work) == len(set(at_work)) == in_flight
            at_work = at_work[size:]  # the first M have answered

    def test_those_who_failed_are_replaced(self):
        pace = fedmom.buffered(2, in_flight=10)
        at_work = pace.ask(0, 0, alike(50), set()).tolist()
        assert len(at_work) == 10
        left = set(at_work[5:])
        assert len(left | set(pace.ask(0, 1, alike(50), left).tolist())) == 10

    def test_a_round_that_ended_early_asks_fewer(self):
        pace = fedmom.buffered(3, in_flight=9)
        at_work = pace.ask(0, 0, alike(50), set()).tolist()
        left = set(at_work[1:])  # one reply came before the timeout
        assert len(pace.ask(0, 1, alike(50), left)) == 1

    def test_who_takes_a_busy_clients_place_is_uniform(self):
        clients, busy = 8, {0, 1, 2}
        pace = fedmom.buffered(2, in_flight=5)
        asked = [pace.ask(0, t, alike(clients), busy).tolist() for t in range(1, 4001)]
        assert all(len(c) == 2 and not busy & set(c) for c in asked)
        counts = Counter(k for c in asked for k in c)
        expected = 2 * 4000 / 5
        assert sum((counts[k] - expected) ** 2 / expected for k in range(3, 8)) < 4 + 6 * math.sqrt(
            8
        )

    def test_when_everybody_is_busy_nobody_is_asked(self):
        pace = fedmom.buffered(2, in_flight=6)
        assert sorted(pace.ask(0, 0, alike(4), set()).tolist()) == [0, 1, 2, 3]
        assert pace.ask(0, 1, alike(4), {0, 1, 2, 3}).tolist() == []

    def test_far_more_than_there_are_is_everybody_at_once(self):
        pace = fedmom.buffered(2, in_flight=2 * 10**9)
        assert sorted(pace.ask(0, 0, alike(4), set()).tolist()) == [0, 1, 2, 3]

    @pytest.mark.parametrize("weighting", ["population", "cohort", "uniform"])
    def test_with_m_at_work_it_is_synchronous_to_the_bit(self, weighting):
        workload = six(fedmom.servers.fedmom(1.5), fedmom.mean(weighting))
        found = []
        for pace in (fedmom.synchronous(3), fedmom.buffered(3, in_flight=3)):
            run = fedmom.train(fedmom.LocalRuntime(workload), pace=pace, rounds=5)
            found.append([(jax.tree.leaves(s), r.cohort, r.train_loss) for s, r in run])
        for (one, *first), (other, *second) in zip(*found, strict=True):
            assert first == second
            for a, b in zip(one, other, strict=True):
                np.testing.assert_array_equal(a, b)

    @pytest.mark.parametrize("weighting", ["population", "cohort", "uniform"])
    @pytest.mark.parametrize("seed", range(4))
    def test_it_is_fedbuff_by_hand(self, weighting, seed):
        """Clients with quadratic losses answer in any order; here in NumPy, event by event."""
        rng = np.random.default_rng(seed)
        centers, rate, total, size, in_flight = rng.normal(size=(5, 3)), 0.7, 8, 2, 4
        priority = rng.random((5, 100))  # who answers first among those at work

        class Shuffled(Scripted):
            """Its clients take half a step towards their own center, in a drawn order."""

            def __init__(self):
                super().__init__(lambda *_: [])
                self.models = {}

            def ask(self, round_, clients, broadcast):
                super().ask(round_, clients, broadcast)
                self.models |= dict.fromkeys(clients.tolist(), broadcast)

            def replies(self, timeout=None):  # noqa: ARG002
                while self.waiting:
                    pair = min(self.waiting, key=lambda pair: priority[pair])
                    self.waiting.remove(pair)
                    k, version = pair
                    step = 0.5 * (self.models[k] - jnp.asarray(centers[k], jnp.float32))
                    yield Block(
                        np.array([k]), step[None], SIZES[[k]], {"loss": np.ones(1)}, version
                    )

        pace = fedmom.buffered(size, in_flight=in_flight)
        runtime = Shuffled()
        found = rounds(runtime, fedavg(weighting, rate), total, pace=pace)

        w, at_work, sent = np.zeros(3), {}, {}
        for t, (state, record) in enumerate(found):
            for k in record.cohort:
                assert k not in at_work
                at_work[k], sent[k] = t, w
            assert len(at_work) == in_flight
            replies = sorted(at_work, key=lambda k: priority[k, at_work[k]])[:size]
            steps = [
                (0.5 * (sent[k] - centers[k])) / math.sqrt(1 + t - at_work.pop(k)) for k in replies
            ]
            w = w - rate * weights_of(weighting, replies) @ np.array(steps)
            np.testing.assert_allclose(state.params, w, rtol=1e-4, atol=1e-5)
            assert record.replies == size
        assert {v for _, v in runtime.waiting} == set(at_work.values())

    def test_the_mean_loss_weighs_late_replies_less_too(self):
        """Client 1 answers a round late."""
        late = []

        def answers(round_, clients, _):
            now = [
                block([k], losses=np.array([float(k)], np.float32), version=round_) for k in clients
            ]
            if round_ == 0:
                late.append(now.pop(1))
                return now
            return [late.pop(), *now]

        cohorts = {0: [0, 1], AGAIN: [2], 1: [3, 4]}
        sampler = lambda _seed, t, *_: np.array(cohorts.get(t, []))  # noqa: E731
        pace = fedmom.buffered(2, sampler, in_flight=3)
        (_, first), (_, second) = rounds(Scripted(answers), fedavg("uniform"), 2, pace=pace)
        assert first.train_loss == pytest.approx(1.0)  # of clients 0 and 2
        root = 1 / math.sqrt(2)
        assert second.train_loss == pytest.approx((1 * root + 3) / (root + 1))

    def test_a_failure_ends_a_clients_work(self):
        """The client may be asked again, and another one takes its place."""

        def answers(round_, clients, _):
            return [
                Failure(k, "it is out of reach", round_)
                if round_ == 0 and k == clients[0]
                else block([k], version=round_)
                for k in clients
            ]

        pace = fedmom.buffered(2, in_flight=3)
        found = rounds(Scripted(answers), count=3, pace=pace)
        assert [r.replies for _, r in found] == [2, 2, 2]
        assert len(found[1][1].cohort) == 3  # two have answered, and one has failed

    def test_a_malformed_reply_ends_a_clients_work(self):
        """Earlier in this loop's life it stayed busy for ever."""

        def answers(round_, clients, _):
            wrong = block([clients[0]], jnp.zeros((1, 7)), version=round_)
            return [wrong, *(block([k], version=round_) for k in clients[1:])]

        pace = fedmom.buffered(2, in_flight=3)
        found = rounds(Scripted(answers), count=6, pace=pace, bad_replies="skip")
        assert all(r.replies == 2 for _, r in found[:1])
        assert all(len(r.cohort) >= 2 for _, r in found)

    def test_a_reply_to_a_model_of_the_future_is_refused(self):
        def answers(round_, clients, _):
            return [block([clients[0]], version=round_ + 1)]

        pace = fedmom.buffered(1, in_flight=2)
        with pytest.raises(fedmom.BadReplyError, match="trained the model of round 1, not of 0"):
            one_round(Scripted(answers), pace=pace)

    def test_the_local_runtime_goes_on_after_a_snapshot_as_if_nothing_had_happened(self):
        options = {"pace": fedmom.buffered(3, in_flight=6), "rounds": 6}
        runtime = fedmom.LocalRuntime(six())
        whole, snapshots = [], []
        for state, record in fedmom.train(runtime, **options):
            whole.append((state, record.cohort))
            snapshots.append(runtime.snapshot())
        for t in (0, 2, 4):
            again = fedmom.LocalRuntime(six())
            assert len(snapshots[t].tensors["asked/0/clients"]) == 3  # under way
            state = whole[t][0]
            again.restore(snapshots[t], state.params)
            rest = list(fedmom.train(again, state=state, **options))
            for (one, cohort_), (other, record) in zip(whole[t + 1 :], rest, strict=True):
                assert cohort_ == record.cohort
                for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
                    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", PACES)
def test_paces_are_functions_of_seed_round_and_who_is_busy(name):
    options = {"in_flight": 6} if name == "buffered" else {}
    one, other = (PACES[name](3, **options) for _ in range(2))
    for t in (0, 1, 5):
        np.testing.assert_array_equal(
            one.ask(2, t, alike(40), {3, 4}), other.ask(2, t, alike(40), {3, 4})
        )


@pytest.mark.parametrize("name", PACES)
@pytest.mark.parametrize("size", [0, -1, 2.5])
def test_a_cohort_is_a_whole_number_of_clients(name, size):
    options = {"in_flight": 40} if name == "buffered" else {}
    with pytest.raises(
        fedmom.FedMomError, match=r"(clients-per-round|size) .* must be a whole number"
    ):
        PACES[name](size, **options)


@pytest.mark.parametrize("name", PACES)
def test_more_clients_than_there_are_is_refused(name):
    options = {"in_flight": 40} if name == "buffered" else {}
    pace = PACES[name](6, **options)
    with pytest.raises(fedmom.FedMomError, match="is not between 1 and the 5 clients"):
        pace.ask(0, 0, SIZES, set())


def test_short_clients_that_run_in_one_call_fill_one_buffer_each():
    """The number of replies is M, however the runtime groups its clients."""
    runtime = fedmom.LocalRuntime(six(rule=fedmom.mean("uniform")))
    found = fedmom.train(runtime, pace=fedmom.buffered(3, in_flight=6), rounds=5)
    assert [record.replies for _, record in found] == [3] * 5


def test_buffered_refuses_the_sampler_that_it_would_bias():
    """Large clients are at work most, and those at work cannot be drawn."""
    for sampler in (fedmom.weighted, partial(fedmom.weighted)):
        with pytest.raises(fedmom.FedMomError, match="buffered cannot draw clients by weighted"):
            fedmom.buffered(2, sampler, in_flight=4)


def test_poisson_does_not_go_with_a_fixed_number_at_work():
    with pytest.raises(fedmom.FedMomError, match="buffered cannot draw clients by poisson"):
        fedmom.buffered(2, fedmom.poisson, in_flight=4)


def test_a_sampler_cannot_change_the_data():
    def sampler(_seed, _round, _size, samples):
        samples[0] = 10**6
        return [0, 1]

    data = fedmom.load_data("synthetic:clients=4")
    before = data.train.size.copy()
    work = fedmom.LocalWork(lr=0.01, steps=1)
    algorithm = fedmom.Algorithm(fedmom.servers.fedavg(), work)
    model = fedmom.build_model("logreg", data.features)
    runtime = fedmom.LocalRuntime(fedmom.Workload(data, model, algorithm))
    with pytest.raises(ValueError, match="read-only"):
        next(fedmom.train(runtime, pace=fedmom.synchronous(2, sampler), rounds=1))
    assert data.train.size.tolist() == before.tolist()


MASKED = np.ma.masked_array([0, 1], [True, False])


@pytest.mark.parametrize(
    "drawn", [*([0.5, 1], [0.0, 1.0], None, {0, 1}, [[0, 1]], [1, 1], [5], "01"), MASKED]
)
@pytest.mark.parametrize(
    "pace", [fedmom.synchronous, fedmom.over_selected, partial(fedmom.buffered, in_flight=4)]
)
def test_what_is_not_a_cohort_is_refused_under_every_pace(pace, drawn):
    with pytest.raises(fedmom.FedMomError, match=r"The sampler drew .* for round 1\. A cohort"):
        rounds(Scripted(), pace=pace(2, lambda *_: drawn))
