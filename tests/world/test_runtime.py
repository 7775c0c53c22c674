"""Runs in simulated worlds: the same on every runtime, after a stop, and as without a world."""

import itertools

import jax
import numpy as np
import pytest
from scipy.stats import hypergeom

import fedmom
from fedmom import Moment, World, worlds
from fedmom.runtimes.base import Block, Failure
from fedmom.training.pace import Buffered
from fedmom.training.samplers import LARGE, uniform
from fedmom.world.pace import Present, WorldPace
from fedmom.world.shares import among_first
from tests.conftest import population
from tests.experiments import small

PACES = ("synchronous", "over_selected:extra=0.5", "buffered:in_flight=8")
ROUGH = "speed:spread=1+network:latency=1+dropout:rate=0.2+online:share=0.7,spread=0.2+partial"
SIX = {"data": "synthetic:clients=12", "clients-per-round": 4, "rounds": 8}
MODEL_DATA = population([5, 9, 30, 2, 17, 8])
MODEL = fedmom.build_model("logreg", MODEL_DATA.features)


def workload(server=None, steps=2, **how):
    work = fedmom.LocalWork(lr=0.1, steps=steps, batch_size=4)
    algorithm = fedmom.Algorithm(server or fedmom.servers.fedavg(), work, **how)
    return fedmom.Workload(MODEL_DATA, MODEL, algorithm)


def runtime_in(world, pace, **how):
    made = workload(**how)
    return fedmom.WorldRuntime(fedmom.LocalRuntime(fedmom.in_world(made, world)), pace, world)


def trained(runtime, rounds=3):
    return list(fedmom.train(runtime, pace=runtime.pace, rounds=rounds))


def rows(path):
    """The lines of a run's rounds, without the clock and without the world's own."""
    own = ("simulated_seconds", "world")
    return [{k: v for k, v in row.items() if k not in own} for row in small.logs(path)[0]]


class TestAsWithoutAWorld:
    """A world that changes nothing."""

    @pytest.mark.parametrize("pace", PACES)
    def test_without_dropouts_all_bits_are_the_same(self, tmp_path, pace):
        for name, world in (("plain", {}), ("world", {"world": "dropout:rate=0"})):
            small.run(tmp_path / name, pace=pace, **SIX, **world)
        assert rows(tmp_path / "plain") == rows(tmp_path / "world")
        plain, world = (small.checkpoint_bytes(tmp_path / n) for n in ("plain", "world"))
        assert len(plain["checkpoint.json"]) == len(world["checkpoint.json"])
        assert small.logs(tmp_path / "plain")[1] == small.logs(tmp_path / "world")[1]

    def test_speed_alone_does_not_change_a_round_that_waits_for_all(self, tmp_path):
        for name, world in (("plain", {}), ("world", {"world": "speed:spread=1+network"})):
            small.run(tmp_path / name, **SIX, **world)
        assert rows(tmp_path / "plain") == rows(tmp_path / "world")

    def test_rounds_without_a_world_have_no_simulated_time(self, tmp_path):
        small.run(tmp_path / "run", rounds=1)
        assert not {"simulated_seconds", "world"} & small.logs(tmp_path / "run")[0][0].keys()
        assert "world" not in (tmp_path / "run" / "config.toml").read_text()


class TestResume:
    """A stop changes nothing."""

    @pytest.mark.parametrize("pace", PACES)
    def test_a_resumed_run_is_the_same_to_the_bit(self, tmp_path, pace):
        settings = {**SIX, "pace": pace, "world": ROUGH, "algorithm": "fedmom"}
        small.run(tmp_path / "whole", **settings)
        small.run(tmp_path / "cut", [lambda event: event.round == 3], **settings)
        small.resume(tmp_path / "cut")
        assert small.logs(tmp_path / "whole") == small.logs(tmp_path / "cut")
        assert small.checkpoint_bytes(tmp_path / "whole") == small.checkpoint_bytes(
            tmp_path / "cut"
        )


@pytest.mark.thorough
@pytest.mark.parametrize("pace", PACES)
def test_ray_agrees_with_the_local_runtime(tmp_path, pace):
    settings = {**SIX, "pace": pace, "world": ROUGH}
    small.run(tmp_path / "local", **settings)
    small.run(tmp_path / "ray", runtime="ray:actors=2", **settings)
    ours, theirs = (small.logs(tmp_path / name)[0] for name in ("local", "ray"))
    for a, b in zip(ours, theirs, strict=True):
        numbers = [[row.pop(n) for n in ("train_loss", "update_norm")] for row in (a, b)]
        assert a == b
        np.testing.assert_allclose(*(np.array(n, float) for n in numbers), rtol=1e-4)


class TestTime:
    """Simulated time is that of the replies that are waited for."""

    WORLD = World("k", seconds=lambda _draws, _round, task: 10.0 * (1 + task.clients))

    def test_a_synchronous_round_takes_as_long_as_its_slowest_client(self):
        runtime = runtime_in(self.WORLD, fedmom.synchronous(3))
        for _, record in trained(runtime):
            assert record.simulated_seconds == 10.0 * (1 + max(record.cohort))

    def test_an_over_selected_round_ends_with_the_reply_that_it_needs(self):
        runtime = runtime_in(self.WORLD, fedmom.over_selected(2, extra=1.0))
        for _, record in trained(runtime, 6):
            assert len(record.cohort) == 4
            assert record.replies == 2
            assert record.simulated_seconds == 10.0 * (1 + sorted(record.cohort)[1])

    def test_buffered_replies_come_in_simulated_order(self):
        runtime = runtime_in(self.WORLD, fedmom.buffered(1, in_flight=6))
        answered = []
        plain = runtime.replies

        def watched(timeout=None):
            for answer in plain(timeout):
                answered.extend(answer.clients.tolist())
                yield answer

        runtime.replies = watched
        records = [record for _, record in trained(runtime, 8)]
        # All six are asked at 0, and each again as soon as it has replied.
        ends = sorted((10.0 * (1 + k) * n, k) for k in range(6) for n in range(1, 9))
        times = np.cumsum([record.simulated_seconds for record in records]).tolist()
        assert times == [end for end, _ in ends[:8]]
        assert answered[0] == 0  # at 10 s
        assert sorted(answered[1:3]) == [0, 1]  # at 20 s

    def test_the_pause_comes_before_every_round(self):
        runtime = runtime_in([self.WORLD, worlds.pause(seconds=5.0)], fedmom.synchronous(6))
        assert [r.simulated_seconds for _, r in trained(runtime)] == [65.0] * 3

    def test_a_deadline_ends_a_round(self):
        world = [self.WORLD, worlds.deadline(seconds=35.0)]
        runtime = runtime_in(world, fedmom.synchronous(6))
        for _, record in trained(runtime):
            assert record.simulated_seconds == 35.0
            assert record.replies == 3
            assert {client for client, _ in record.rejected} == {3, 4, 5}

    def test_a_world_without_times_has_rounds_of_a_minute(self):
        runtime = runtime_in("dropout:rate=0.5", fedmom.synchronous(3))
        assert [record.simulated_seconds for _, record in trained(runtime)] == [60.0] * 3


class TestFailedRounds:
    """What a step does when few or none reply."""

    def test_a_round_with_too_few_replies_takes_no_step(self):
        world = [worlds.dropout(rate=0.5), worlds.deadline(least=3)]
        runtime = runtime_in(world, fedmom.synchronous(4), server=fedmom.servers.fedmom())
        before = fedmom.start(runtime.workload)
        replies = []
        for state, record in trained(runtime, 20):
            same = all(
                np.array_equal(a, b)
                for a, b in zip(
                    jax.tree.leaves((before.params, before.server)),
                    jax.tree.leaves((state.params, state.server)),
                    strict=True,
                )
            )
            assert same == (record.replies == 0)  # model and velocity are held
            replies.append(record.replies)
            before = state
        assert set(replies) == {0, 3, 4}

    def test_where_nobody_is_there_time_goes_on_and_no_step_is_taken(self):
        world = World(
            "night",
            available=lambda _d, moment, clients: np.full(len(clients), moment.seconds >= 150),
        )
        runtime = runtime_in(world, fedmom.synchronous(3))
        records = [record for _, record in trained(runtime, 4)]
        assert [record.replies for record in records] == [0, 0, 3, 3]
        assert [record.cohort for record in records[:2]] == [[], []]
        assert records[0].rejected == ((-1, "simulated: nobody was there"),)
        assert sum(record.simulated_seconds for record in records[:3]) == 180

    def test_a_pace_of_your_own_is_told_who_was_not_there(self):
        class Everybody:
            timeout, rows, keeps_late, takes_sums = None, 6, False, True

            def ask(self, *_):
                return np.arange(6)

            def enough(self, _replies):
                return False

            def weight(self, staleness):
                return float(staleness == 0)

        world = World("odd", available=lambda _draws, _moment, clients: clients % 2 == 1)
        ((_, record),) = trained(runtime_in(world, Everybody()), 1)
        assert record.replies == 3
        assert [client for client, _ in record.rejected] == [0, 2, 4]

    def test_what_a_round_leaves_untaken_is_asked_again(self):
        """A pace may have enough before all that its round usually has is taken."""

        class Early(Buffered):
            def enough(self, replies):
                return replies >= 8

        data = fedmom.load_data("synthetic:clients=30")
        model = fedmom.build_model("logreg", data.features)
        work = fedmom.LocalWork(lr=0.1, steps=1)
        method = fedmom.Algorithm(fedmom.servers.fedavg(), work)
        inner = fedmom.LocalRuntime(fedmom.Workload(data, model, method))
        runtime = fedmom.WorldRuntime(inner, Early(uniform, 20, 24), "speed")
        left = 0
        for _, record in fedmom.train(runtime, pace=runtime.pace, rounds=4):
            left += len(record.cohort) - record.replies
            assert len(runtime.under_way()) == left
            assert not inner.under_way()
            assert 8 <= record.replies < 20


class TestPartialWork:
    """Clients that take fewer steps do the first of them."""

    def test_the_steps_are_the_worlds(self):
        half = World("half", steps=lambda _draws, _round, task: task.steps // 2)
        slow = runtime_in(half, fedmom.synchronous(6), steps=6)
        plain = fedmom.LocalRuntime(workload(steps=3))
        ours = trained(slow)
        theirs = list(fedmom.train(plain, pace=fedmom.synchronous(6), rounds=3))
        for (a, _), (b, _) in zip(ours, theirs, strict=True):
            jax.tree.map(np.testing.assert_array_equal, a.params, b.params)

    def test_a_runtime_that_does_not_know_is_refused(self):
        with pytest.raises(fedmom.FedMomError, match=r"fedmom\.in_world"):
            fedmom.WorldRuntime(
                fedmom.LocalRuntime(workload()), fedmom.synchronous(2), worlds.partial()
            )


class TestSampling:
    """Cohorts of those who are there."""

    def test_a_uniform_cohort_is_uniform_among_them(self):
        there = np.zeros(30, bool)
        there[::3] = True
        present = Present(uniform, lambda _round, clients: there[clients])
        counts = np.zeros(30, int)
        for t in range(6000):
            drawn = present(0, t, 4, np.ones(30, np.int64))
            assert len(set(drawn.tolist())) == 4
            counts[drawn] += 1
        assert not counts[~there].any()
        # Each of ten is in with probability 0.4: five standard deviations.
        assert np.abs(counts[there] - 2400).max() < 5 * np.sqrt(6000 * 0.4 * 0.6)

    def test_no_more_than_are_there(self):
        present = Present(uniform, lambda _round, clients: clients < 3)
        assert set(present(0, 0, 8, np.ones(20, np.int64)).tolist()) <= {0, 1, 2}
        assert len(present(0, 0, 8, np.ones(20, np.int64))) == 3

    @pytest.mark.parametrize("name", ["poisson", "weighted"])
    def test_other_samplers_keep_their_probabilities(self, name):
        """Given that a client is there, as in the whole population."""
        samples = np.arange(1, 21)
        chance = np.full(20, 0.2) if name == "poisson" else 4 * samples / samples.sum()
        sampler = fedmom.SAMPLERS[name]
        present = Present(sampler, lambda _round, clients: clients % 2 == 0)
        counts = np.zeros(20)
        for t in range(4000):
            counts[present(0, t, 4, samples)] += 1
        expected = np.where(np.arange(20) % 2 == 0, chance, 0.0)
        np.testing.assert_allclose(counts / 4000, expected, atol=5 * 0.5 / np.sqrt(4000))

    @pytest.mark.parametrize("pace", ["synchronous", "over_selected", "buffered"])
    def test_who_is_looked_at_does_not_depend_on_the_population(self, pace):
        looked = {}
        for clients in (2 * LARGE, 10**6):
            seen = []

            def here(_round, names, seen=seen):
                seen.append(len(names))
                return names % 10 == 0

            options = {"buffered": {"in_flight": 40}}.get(pace, {})
            made = WorldPace(fedmom.PACES[pace](20, **options), here)
            samples = np.ones(clients, np.int64)
            for t in range(5):
                assert (made.ask(0, t, samples, set()) % 10 == 0).all()
            looked[clients] = sum(seen)
        assert max(looked.values()) < 2 * min(looked.values())


class TestReweighing:
    """Replies divided by their probability."""

    @pytest.mark.parametrize("asked", [2, 4])
    def test_the_probability_to_be_among_the_first_by_trying_all(self, asked):
        others = np.array([1.0, 2.0, 3.0, 5.0])
        chances = np.array([1.0, 0.5, 0.25, 1.0])
        for seconds, counted in itertools.product((0.5, 2.5, 9.0), range(1, asked)):
            whole = 0.0
            for who in itertools.product(range(4), repeat=asked - 1):
                for reply in itertools.product((0, 1), repeat=asked - 1):
                    pairs = list(zip(who, reply, strict=True))
                    chance = np.prod([chances[k] if r else 1 - chances[k] for k, r in pairs])
                    quicker = sum(r and others[k] < seconds for k, r in pairs)
                    whole += chance * (quicker < counted) / 4 ** (asked - 1)
            found = among_first(np.array([seconds]), others, chances, asked, counted)
            assert found[0] == pytest.approx(whole)

    @staticmethod
    def world_of(clients, world, asked, counted):
        """A runtime, and what every client's factor is if the others of a cohort are any."""
        data = fedmom.from_arrays(
            np.zeros((clients, 2)), np.zeros(clients, int), client_ids=np.arange(clients)
        )
        model = fedmom.build_model("logreg", data.features)
        work = fedmom.LocalWork(lr=0.1, steps=1, batch_size=1)
        algorithm = fedmom.Algorithm(fedmom.servers.fedavg(), work)
        inner = fedmom.LocalRuntime(fedmom.Workload(data, model, algorithm))
        runtime = fedmom.WorldRuntime(inner, fedmom.synchronous(2), world)
        found = np.ones(clients)
        for first in range(0, clients - asked, asked):
            names = np.arange(first, first + asked)
            task = runtime._task(0, names)
            factors = runtime._crowd.factors(Moment(0, 60.0), task, counted)
            found[names] = [factors[k] for k in names]
        return runtime, found

    def test_slow_clients_count_as_much_as_fast_ones_in_expectation(self):
        """The exact probability is hypergeometric: who else is asked, without replacement."""
        clients, asked, counted = 401, 10, 7
        runtime, factors = self.world_of(clients, "speed:spread=1+reweighed", asked, counted)
        seconds = runtime._conditions.seconds(0, runtime._task(0, np.arange(clients)))
        quicker = np.argsort(np.argsort(seconds))
        exact = hypergeom(clients - 1, quicker, asked - 1).cdf(counted - 1)
        usual = (exact > 0.12)[:-1]  # the others' factors have reached the limit
        assert 0.5 < usual.mean() < 0.95
        counts = (exact * factors)[:-1][usual]
        assert counts.std() / counts.mean() < 0.02
        assert factors.max() / factors.min() == pytest.approx(10 / exact.mean() * 1, rel=0.7)
        # Over the replies, factors have the mean 1.
        assert (exact * factors)[:-1].sum() / exact[:-1].sum() == pytest.approx(1, rel=0.01)

    def test_rare_clients_count_as_much_as_others(self):
        runtime, factors = self.world_of(201, "online:share=0.5,spread=0.3+reweighed", 10, 10)
        chance = runtime._conditions.chance(Moment(0, 60.0), np.arange(200))
        np.testing.assert_allclose(chance * factors[:200], chance.mean(), rtol=0.02)

    def test_updates_are_multiplied_and_norms_measured_again(self):
        world = [worlds.online(share=0.6, spread=0.3), worlds.reweighed()]
        runtime = runtime_in(world, fedmom.synchronous(3))
        plain = fedmom.LocalRuntime(workload())
        params = fedmom.start(plain.workload).params
        cohort = runtime.pace.ask(0, 0, MODEL_DATA.train.size, set())
        runtime.ask(0, cohort, params)
        plain.ask(0, cohort, params)
        factors = runtime._crowd.factors(Moment(0, 60.0), runtime._task(0, cohort), 3)
        for ours, theirs in zip(runtime.replies(), plain.replies(), strict=True):
            assert isinstance(ours, Block)
            assert "norm" not in ours.metrics
            for row, client in enumerate(ours.clients.tolist()):
                jax.tree.map(
                    lambda a, b, i=row, c=client: np.testing.assert_allclose(
                        a[i], b[i] * factors[c], rtol=1e-6
                    ),
                    ours.update,
                    theirs.update,
                )

    @pytest.mark.parametrize(
        ("settings", "says"),
        [
            ({"pace": "buffered:in_flight=6"}, "keeps late replies"),
            ({"aggregate": "median", "weighting": "uniform"}, "right for their mean alone"),
            ({"aggregate": "clip:norm=1+mean"}, "right for their mean alone"),
        ],
    )
    def test_where_it_would_be_wrong_it_is_refused(self, tmp_path, settings, says):
        with pytest.raises(fedmom.FedMomError, match=says):
            small.run(tmp_path / "run", world="speed+reweighed", **SIX, **settings)


class TestSettings:
    """Worlds in run folders and from Python."""

    @pytest.mark.parametrize(
        ("settings", "says"),
        [
            ({"world": "night"}, "no world 'night'"),
            ({"world": "dropout", "runtime": "flower"}, "devices are as fast"),
            ({"world": "dropout", "diagnostics": True}, "Leave --diagnostics out"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, settings, says):
        with pytest.raises(fedmom.FedMomError, match=says):
            small.prepared(**settings)

    def test_objects_stand_where_names_do(self, tmp_path):
        path, odd = tmp_path / "run", World("odd", seconds=lambda _d, _r, task: 9.0 + task.clients)
        settings = {"rounds": 2, "out": path, "progress": False, "lr": 0.01}
        run = fedmom.run("synthetic:clients=6", world=[odd, "dropout:rate=0.1"], **settings)
        assert run.result.rounds[0]["simulated_seconds"] >= 9
        assert "odd@" in run.result.config.world
        again = fedmom.load(path, world=[odd, "dropout:rate=0.1"])
        assert again.experiment.config.world == run.result.config.world

    def test_dropouts_do_not_end_a_run(self, tmp_path):
        result = small.run(tmp_path / "run", world="dropout:rate=1", rounds=12)
        assert (result.done, result.status, result.rejected()) == (12, "finished", "")


def test_failures_are_told_as_such():
    runtime = runtime_in("dropout:rate=1", fedmom.synchronous(2))
    runtime.ask(0, np.array([1, 4]), fedmom.start(runtime.workload).params)
    answers = list(runtime.replies())
    assert all(isinstance(answer, Failure) for answer in answers)
    assert {answer.client for answer in answers} == {1, 4}
    assert runtime.under_way() == []
