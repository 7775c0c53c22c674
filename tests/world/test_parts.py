"""The built-in parts of worlds: expected shares and times by formula, traces line by line."""

import json
import math
import pickle
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmom
from fedmom import Draws, Moment, Task, worlds
from fedmom.core.prng import hashed_uniform
from fedmom.world.base import World
from fedmom.world.conditions import Conditions

MANY = np.arange(20_000)
HOUR = 3600.0


def draws(name="part", seed=0):
    return Draws(seed, name)


def task(clients, steps=10, batch=5, samples=50, down=10**6, up=2 * 10**6):
    clients = np.asarray(clients, np.int64)
    ones = np.ones_like(clients)
    return Task(clients, samples * ones, steps * ones, batch * ones, down, up)


def share_of(found, expected):
    """Whether a share of MANY is what is expected, up to four standard errors."""
    error = 4 * math.sqrt(max(expected * (1 - expected), 1e-4) / len(found))
    return abs(float(np.mean(found)) - expected) < error


def told(outcomes):
    return outcomes.seconds.tolist(), outcomes.reasons


def conditions(*parts, seed=0):
    return Conditions(parts, seed, bytes_down=10**6, bytes_up=2 * 10**6, batch_size=5)


class TestDraws:
    """A number for every client, whoever else is asked for."""

    @given(
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**31),
        st.lists(st.integers(0, 2**31), min_size=1, max_size=9),
    )
    def test_a_clients_number_does_not_depend_on_the_others(self, seed, round_, clients):
        whole = draws(seed=seed).uniform(np.array(clients), round_)
        for client, number in zip(clients, whole, strict=True):
            assert draws(seed=seed).uniform([client], round_) == number
        assert ((whole > 0) & (whole < 1)).all()

    def test_seed_part_use_round_and_client_all_count(self):
        ones = [
            draws().uniform(MANY),
            draws(seed=1).uniform(MANY),
            draws("other").uniform(MANY),
            draws().uniform(MANY, 1),
            draws().uniform(MANY, use="other"),
            draws().uniform(MANY + 20_000),
        ]
        for i, one in enumerate(ones):
            # Means of 20,000 uniform numbers, and their correlations: six standard errors.
            assert abs(one.mean() - 0.5) < 6 / math.sqrt(12 * len(MANY))
            for other in ones[:i]:
                assert abs(np.corrcoef(one, other)[0, 1]) < 6 / math.sqrt(len(MANY))

    def test_they_are_the_hash_that_jax_uses(self):
        import jax

        key = jax.random.wrap_key_data(np.array([7, 9], np.uint32), impl="threefry2x32")
        words = np.asarray(jax.random.key_data(jax.random.fold_in(key, 5))).astype(np.uint64)
        expected = ((words[0] << np.uint64(21)) | (words[1] >> np.uint64(11))) + 0.5
        assert hashed_uniform(7, 9, 0, [5]) == expected * 2.0**-53

    def test_a_second_part_of_a_name_has_numbers_of_its_own(self):
        twice = conditions(worlds.dropout(rate=0.5), worlds.dropout(rate=0.5))
        reasons = twice.outcomes(Moment(0, 0.0), task(MANY)).reasons
        assert share_of([bool(reason) for reason in reasons], 0.75)


class TestAvailability:
    """Who is there."""

    @pytest.mark.parametrize("hour", [0, 5.5, 14, 31, 100])
    @pytest.mark.parametrize("zones", [1, 4])
    def test_the_share_of_the_day_is_the_cosine(self, hour, zones):
        world = worlds.diurnal(low=0.1, high=0.5, zones=zones, peak=2.0)
        waves = [(1 + math.cos(2 * math.pi * (hour - 2 - zone) / 24)) / 2 for zone in range(zones)]
        expected = 0.1 + 0.4 * sum(waves) / zones
        there = world.available(draws(), Moment(0, hour * HOUR), MANY)
        assert share_of(there, expected)
        assert world.chance(draws(), Moment(0, hour * HOUR), MANY).mean() == pytest.approx(
            expected, abs=0.01
        )

    def test_a_client_is_there_once_a_day_around_the_peak(self):
        world = worlds.diurnal(low=0.0, high=1.0, peak=12.0)
        times = np.arange(0, 24, 0.1) * HOUR
        there = np.array([world.available(draws(), Moment(0, t), MANY[:50]) for t in times])
        changes = np.abs(np.diff(there.astype(int), axis=0)).sum(axis=0)
        assert set(changes) == {2}  # it comes, and it goes
        # 1 - u is the share of the wave above u, so that a mean day has (low + high) / 2.
        assert there.mean() == pytest.approx(0.5, abs=0.1)

    def test_every_client_has_its_own_probability(self):
        world = worlds.online(share=0.5, spread=0.4)
        there = np.array([world.available(draws(), Moment(t, 0.0), MANY[:40]) for t in range(500)])
        chance = world.chance(draws(), Moment(0, 0.0), MANY[:40])
        assert chance.min() >= 0.1
        assert chance.max() <= 0.9
        np.testing.assert_allclose(there.mean(axis=0), chance, atol=5 * 0.5 / math.sqrt(500))
        assert share_of(worlds.online(share=0.3).available(draws(), Moment(1, 0.0), MANY), 0.3)

    def test_groups_are_away_together(self):
        world = worlds.outages(share=0.25, groups=5, seconds=100.0)
        there = np.array(
            [world.available(draws(), Moment(0, 100.0 * t), MANY[:200]) for t in range(400)]
        )
        assert len(np.unique(there.T, axis=0)) == 5
        assert there.mean() == pytest.approx(0.75, abs=0.06)
        np.testing.assert_array_equal(
            world.available(draws(), Moment(0, 0.0), MANY),
            world.available(draws(), Moment(9, 99.0), MANY),
        )

    def test_parts_together_are_all_needed(self):
        both = conditions(worlds.online(share=0.5), worlds.outages(share=0.2, groups=100_000))
        assert share_of(both.available(Moment(0, 0.0), MANY), 0.4)
        assert both.chance(Moment(0, 0.0), MANY[:3]).tolist() == [0.4] * 3


class TestTimes:
    """How long a reply takes."""

    def test_by_hand(self):
        speed = worlds.speed(median=25, spread=0)  # 10 steps of 5 samples
        network = worlds.network(down=8, up=4, spread=0, latency=0.5)  # 1 MB, 2 MB
        both = conditions(speed, network)
        assert both.seconds(0, task([3, 4])).tolist() == [2 + 1 + 4 + 0.5] * 2

    @pytest.mark.parametrize("distribution", ["lognormal", "uniform", "exponential", "constant"])
    def test_the_median_is_the_median(self, distribution):
        world = worlds.speed(median=50, spread=0.5, distribution=distribution)
        rates = 50 / world.seconds(draws(), 0, task(MANY))
        assert np.median(rates) == pytest.approx(50, rel=0.03)
        if distribution == "lognormal":
            assert np.log(rates).std() == pytest.approx(0.5, rel=0.03)
        if distribution == "uniform":
            assert 25 <= rates.min() < 26 < 74 < rates.max() <= 75
        if distribution == "exponential":
            assert rates.mean() == pytest.approx(50 / math.log(2), rel=0.03)

    def test_a_client_stays_as_fast_as_it_is_but_for_jitter(self):
        still = worlds.speed(spread=1.0)
        np.testing.assert_array_equal(
            still.seconds(draws(), 0, task(MANY)), still.seconds(draws(), 9, task(MANY))
        )
        shaky = worlds.speed(spread=0.0, jitter=0.3)
        times = shaky.seconds(draws(), 4, task(MANY))
        assert np.log(times).std() == pytest.approx(0.3, rel=0.03)
        assert (shaky.seconds(draws(), 5, task(MANY)) != times).all()

    def test_the_deadline_drops_or_shortens(self):
        speed = worlds.speed(median=25, spread=0)  # 0.2 s a step
        network = worlds.network(down=8, up=16, spread=0)  # 2 s
        dropped = conditions(speed, network, worlds.deadline(seconds=3.9))
        outcome = dropped.outcomes(Moment(0, 0.0), task([1]))
        assert told(outcome) == ([3.9], ["simulated: it missed the deadline of 3.9 s"])
        shortened = conditions(speed, network, worlds.deadline(seconds=3.5, late="shortened"))
        assert shortened.shortened(0, task([1])).tolist() == [7]  # (3.5 - 2) / 0.2
        outcome = shortened.outcomes(Moment(0, 0.0), task([1]))
        assert outcome.reasons == [""]
        assert outcome.seconds.tolist() == pytest.approx([3.4])

    def test_a_reply_at_the_deadline_is_in_time(self):
        speed = worlds.speed(median=5, spread=0)
        exact = conditions(speed, worlds.deadline(seconds=10.0))
        assert told(exact.outcomes(Moment(0, 0.0), task([1]))) == ([10.0], [""])

    def test_a_client_that_goes_offline_does_not_reply(self, tmp_path):
        path = tmp_path / "there.csv"
        path.write_text("client,start,end\n0,0,100\n1,0,5\n")
        world = conditions(worlds.trace(file=path), worlds.speed(median=5, spread=0))
        found = world.outcomes(Moment(0, 0.0), task([0, 1]))
        assert found.reasons == ["", "simulated: it went offline"]
        found = world.outcomes(Moment(0, 50.0), task([0, 1]))
        assert told(found) == ([10.0, 0.0], ["", "simulated: it was not there"])


class TestFailures:
    """Who drops out, and who does a part."""

    @given(st.floats(0, 1))
    def test_as_many_drop_out_as_were_asked_for(self, rate):
        world = conditions(worlds.dropout(rate=rate), worlds.speed(spread=0))
        found = world.outcomes(Moment(0, 0.0), task(MANY))
        assert share_of([bool(reason) for reason in found.reasons], rate)
        assert found.seconds.max() <= 0.5  # 50 samples at 100 a second

    def test_stragglers_take_any_number_of_their_steps(self):
        taken = worlds.partial(share=0.5).steps(draws(), 0, task(MANY))
        assert share_of(taken < 10, 0.5 * 0.9)
        assert set(taken) == set(range(1, 11))

    def test_stragglers_may_be_dropped(self):
        world = conditions(worlds.partial(share=0.5, replies="dropped"))
        reasons = world.outcomes(Moment(0, 0.0), task(MANY)).reasons
        assert share_of([reason == "simulated: it took fewer steps" for reason in reasons], 0.45)


class TestTraces:
    """Files of users, and FedScale's."""

    FEDSCALE: ClassVar = {
        11: {"duration": 50, "active": [0, 60], "inactive": [20, 80], "finish_time": 100},
        12: {"duration": 9, "active": [30], "inactive": [40], "finish_time": 50, "model": "x"},
    }

    def test_fedscales_availability(self, tmp_path):
        path = tmp_path / "client_behave_trace.json"
        path.write_text(json.dumps(self.FEDSCALE))
        world = worlds.trace(file=path)
        expected = {
            0: [True, False, True],  # clients 0, 1 and 2, which follows client 0 of the trace
            25: [False, False, False],
            35: [False, True, False],
            65: [True, False, True],
            85: [False, True, False],  # 35 s into the second 50
            110: [True, False, True],
        }
        for seconds, there in expected.items():
            assert world.available(draws(), Moment(0, seconds), np.arange(3)).tolist() == there

    def test_a_csv_repeats_and_may_overlap(self, tmp_path):
        path = tmp_path / "trace.csv"
        path.write_text("client,start,end\n2,30,50\n0,0,10\n0,5,20\n2,90,100\n")
        world = worlds.trace(file=path)
        at = {t: world.available(draws(), Moment(0, t), np.arange(4)).tolist() for t in (7, 15, 35)}
        # Client 1 has no line, and client 3 follows client 0.
        assert at[7] == at[15] == [True, False, False, True]
        assert at[35] == [False, False, True, False]
        later = world.available(draws(), Moment(0, 115.0), np.arange(4)).tolist()
        assert later == at[15]
        daily = worlds.trace(file=path, period=1000.0)
        assert not daily.available(draws(), Moment(0, 115.0), np.arange(4)).any()

    def test_fedscales_capacity(self, tmp_path):
        """As its get_completion_time: 3 x batch x steps x ms, and kilobits over the rate."""
        profiles = {1: {"computation": 20.0, "communication": 4096.0}}
        path = tmp_path / "client_device_capacity.json"
        path.write_text(json.dumps(profiles))
        world = worlds.capacity(file=path)
        kilobits = (10**6 + 2 * 10**6) / 1024 * 8
        expected = 3 * 5 * 10 * 20.0 / 1000 + kilobits / 4096.0
        assert world.seconds(draws(), 0, task([0]))[0] == pytest.approx(expected)

    def test_a_pickle_is_not_loaded(self, tmp_path):
        path = tmp_path / "trace"
        path.write_bytes(pickle.dumps(self.FEDSCALE))
        with pytest.raises(fedmom.FedMomError, match=r"neither CSV .* nor JSON.*Save FedScale's"):
            worlds.trace(file=path)

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("client,begin,end\n0,0,1\n", "no column start"),
            ("client,start,end\n", "no lines"),
            ("client,start,end\n0,5,1\n", "is there from 5 to 1"),
            ("client,start,end\nann,0,1\n", "'ann' is not a number"),
            ("client,start,end\n0.5,0,1\n", "not a whole number"),
            ("client,start,end\n0,0,inf\n", "'inf' is not a number"),
        ],
    )
    def test_a_wrong_line_is_named(self, tmp_path, text, says):
        path = tmp_path / "trace.csv"
        path.write_text(text)
        with pytest.raises(fedmom.FedMomError, match=says):
            worlds.trace(file=path)

    @pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"1": {"active": []}}', b"\x80junk"])
    def test_a_file_that_is_no_trace_is_refused(self, tmp_path, content):
        path = tmp_path / "trace.json"
        path.write_bytes(content)
        with pytest.raises(fedmom.FedMomError, match="cannot be used as a trace"):
            worlds.trace(file=path)


class TestRefusals:
    """Options that make no sense."""

    @pytest.mark.parametrize(
        ("spec", "says"),
        [
            ("online:share=0.9,spread=0.2", "not within"),
            ("diurnal:low=0.5,high=0.1", "more than high"),
            ("dropout:rate=1.5", "not between 0 and 1"),
            ("speed:distribution=normal", "distribution='normal'"),
            ("speed:distribution=uniform,spread=1", "less than 1"),
            ("night", "no world 'night'"),
        ],
    )
    def test_they_are_sentences(self, spec, says):
        with pytest.raises(fedmom.FedMomError, match=says):
            fedmom.WORLDS.build(spec)

    def test_a_part_that_does_not_state_its_chance_cannot_be_reweighed(self):
        silent = World("mine", drops=lambda _draws, _round, clients: np.ones(len(clients)))
        for part in (silent, worlds.deadline(seconds=1.0), worlds.partial(replies="dropped")):
            with pytest.raises(fedmom.FedMomError, match=f"which {part.name} does not state"):
                conditions(part, worlds.reweighed()).check_chances()
