"""What a method reports: its numbers are in the round's record, under the name of their part."""

import json
import math
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmom
from fedmom.training.pace import AGAIN
from tests.conftest import population
from tests.training.scripted import (
    SIZES,
    Scripted,
    block,
    fedavg,
    one_round,
    rounds,
    weights_of,
)

DRIFTS = np.array([3.0, 1.0, 4.0, 1.5, 9.0], np.float32)


def drifting(round_, clients, _broadcast):
    """Each client reports a number of its own."""
    return [block([k], version=round_, drift=DRIFTS[[k]]) for k in clients]


class TestClients:
    """Means over the cohort, weighted as updates are."""

    @pytest.mark.parametrize("weighting", ["population", "cohort", "uniform"])
    def test_a_mean_by_hand(self, weighting):
        _, record = one_round(Scripted(drifting), fedavg(weighting))
        weights = weights_of(weighting, np.arange(5))
        expected = weights @ DRIFTS / weights.sum()
        assert record.metrics == {"client/drift": pytest.approx(expected, rel=1e-5)}

    def test_also_where_a_rule_needs_each_reply(self):
        algorithm = fedavg(rule=fedmom.median("cohort"))
        _, record = one_round(Scripted(drifting), algorithm)
        assert record.metrics["client/drift"] == pytest.approx(SIZES @ DRIFTS / SIZES.sum())

    def test_losses_and_norms_are_the_loops_own(self):
        runtime = Scripted(lambda *_: [block(np.arange(5), norm=np.ones(5, np.float32))])
        assert one_round(runtime)[1].metrics == {}

    def test_a_rejected_reply_does_not_count(self):
        def answers(*_):
            bad = block([4], samples=[7], drift=DRIFTS[[4]])
            return [block([0, 1], drift=DRIFTS[[0, 1]]), bad]

        _, record = one_round(Scripted(answers), fedavg("uniform"), bad_replies="skip")
        assert record.metrics == {"client/drift": 2.0}

    def test_groups_count_as_many_as_they_are(self):
        grouped = block(
            np.arange(5),
            np.zeros((2, 3), np.float32),
            losses=np.zeros(2, np.float32),
            members=np.array([2, 3]),
            drift=np.array([1.0, 5.0], np.float32),
        )
        expected = {"uniform": (2 * 1 + 3 * 5) / 5, "cohort": (30 * 1 + 170 * 5) / 200}
        for weighting, mean in expected.items():
            _, record = one_round(Scripted(lambda *_: [grouped]), fedavg(weighting))
            assert record.metrics["client/drift"] == pytest.approx(mean)

    def test_a_number_that_only_some_report_is_their_mean(self):
        runtime = Scripted(lambda *_: [block([0, 1]), block([2, 4], drift=DRIFTS[[2, 4]])])
        _, record = one_round(runtime, fedavg("uniform"))
        assert record.metrics["client/drift"] == 6.5

    def test_truth_values_are_ones_and_zeros(self):
        """A share of clients is the mean of a comparison."""
        runtime = Scripted(lambda *_: [block(np.arange(5), far=DRIFTS > 2)])
        _, record = one_round(runtime, fedavg("uniform"))
        assert record.metrics == {"client/far": pytest.approx(3 / 5)}

    def test_a_stale_reply_counts_less(self):
        """Client 1 answers a round late."""
        late = []

        def answers(*question):
            now = drifting(*question)
            if question[0] == 0:
                late.append(now.pop(1))
                return now
            return [late.pop(), *now]

        cohorts = {0: [0, 1], AGAIN: [2], 1: [3, 4]}
        sampler = lambda _seed, t, *_: np.array(cohorts.get(t, []))  # noqa: E731
        pace = fedmom.buffered(2, sampler, in_flight=3)
        (_, first), (_, second) = rounds(Scripted(answers), fedavg("uniform"), 2, pace=pace)
        assert first.metrics["client/drift"] == pytest.approx((3 + 4) / 2)  # of clients 0 and 2
        root = 1 / math.sqrt(2)
        assert second.metrics["client/drift"] == pytest.approx((1 * root + 1.5) / (root + 1))

    def test_the_least_and_the_largest_where_a_client_wants_them(self):
        """Then replies are not added up on their way, for a sum hides who was how far."""
        client = fedmom.Client(run=lambda *_: None, ranges=("drift",))
        runtime = Scripted(lambda *_: [block([1, 2, 3], drift=DRIFTS[1:4])])
        _, record = one_round(runtime, fedavg("uniform", client=client))
        assert record.metrics == {
            "client/drift": pytest.approx(6.5 / 3),
            "client/drift/min": 1.0,
            "client/drift/max": 4.0,
        }
        assert runtime.prepared == [(5, False)]
        other = Scripted()
        one_round(other, fedavg("uniform"))
        assert other.prepared == [(5, True)]

    @pytest.mark.parametrize("vectorized", [False, True])
    def test_a_clients_own_numbers_come_from_its_program(self, vectorized):
        runtime = fedmom.LocalRuntime(real(), vectorized=vectorized)
        ((_, record),) = fedmom.train(runtime, pace=fedmom.synchronous(3), rounds=1)
        assert record.metrics["client/samples"] == pytest.approx((9 + 25 + 64) / (3 + 5 + 8))


@lru_cache
def sizing():
    """Local training that reports n_k."""

    def run(params, state, problem, key):
        update, state, metrics = fedmom.LOCAL_TRAINING.run(params, state, problem, key)
        return update, state, metrics | {"samples": problem.size}

    return fedmom.Client(run)


def real(stages=(), sizes=(3, 5, 8), server=None):
    """What is run: clients that are really trained."""
    data = population(list(sizes))
    model = fedmom.build_model("logreg", data.features)
    algorithm = fedmom.Algorithm(
        server or fedmom.servers.fedavg(),
        fedmom.LocalWork(lr=0.5, steps=3, batch_size=None),
        client=sizing(),
        rule=fedmom.mean("cohort"),
        stages=stages,
    )
    return fedmom.Workload(data, model, algorithm)


def reporting(name, value, **parts):
    """A stage on the server that reports one number."""
    return fedmom.Stage(name, after=lambda a, state, _round: (a, state, {"it": value}), **parts)


class TestNames:
    """The part's name, a slash, the number's name."""

    def test_every_part_has_its_place(self):
        def step(aggregate, state, params):
            return params - aggregate, state, {"rate": 0.25}

        def each(rows, weights, state):
            return weights @ rows / weights.sum(), state, {"rows": jnp.sum(weights > 0)}

        server = fedmom.Server(init=lambda _: (), step=step)
        rule = fedmom.Rule(np.sqrt, each=each, name="roots")
        algorithm = fedmom.Algorithm(server, rule=rule, stages=(reporting("lens", 3.0),))
        _, record = one_round(Scripted(drifting), algorithm)
        roots = np.sqrt(SIZES)
        assert record.metrics == {
            "client/drift": pytest.approx(roots @ DRIFTS / roots.sum()),
            "roots/rows": 5.0,
            "lens/it": 3.0,
            "server/rate": 0.25,
        }
        assert all(type(value) is float for value in record.metrics.values())

    def test_a_rule_without_a_name_is_called_rule(self):
        def each(rows, weights, state):
            return weights @ rows, state, {"one": 1.0}

        rule = fedmom.Rule(lambda samples: np.ones(len(samples)), each=each)
        _, record = one_round(Scripted(), fedavg(rule=rule))
        assert record.metrics == {"rule/one": 1.0}

    def test_of_stages_with_one_name_the_second_has_a_number(self):
        stages = (fedmom.clip(norm=0.5), fedmom.clip(norm=1e-3), fedmom.clip(norm=9.0))
        runtime = fedmom.LocalRuntime(real(stages))
        ((_, record),) = fedmom.train(runtime, pace=fedmom.synchronous(3), rounds=1)
        assert record.metrics["clip_2/share"] == 1
        assert record.metrics["clip_3/share"] == 0
        assert set(record.metrics) == {
            "client/samples",
            "clip/share",
            "clip_2/share",
            "clip_3/share",
        }
        stages = (reporting("lens", 1.0), reporting("other", 2.0), reporting("lens", 3.0))
        _, record = one_round(Scripted(), fedavg(stages=stages))
        assert record.metrics == {"lens/it": 1.0, "other/it": 2.0, "lens_2/it": 3.0}

    def test_a_stages_number_from_the_clients_is_weighted_too(self):
        """The share that clip reports, and the norms that it is of."""
        workload = real()
        plain = fedmom.LocalRuntime(workload)
        plain.ask(0, np.arange(3), workload.params())
        (sent,) = plain.replies()
        norms = np.asarray(sent.metrics["norm"])
        limit = float(np.sort(norms)[1]) * 1.001
        stages = (fedmom.clip(norm=limit),)
        runtime = fedmom.LocalRuntime(real(stages))
        ((_, record),) = fedmom.train(runtime, pace=fedmom.synchronous(3), rounds=1)
        expected = np.average(norms > limit, weights=[3, 5, 8])
        assert record.metrics["clip/share"] == pytest.approx(expected)
        assert 0 < expected < 1

    def test_an_averaged_server_passes_them_on(self):
        inner = fedmom.Server(
            init=lambda _: (),
            step=lambda aggregate, state, params: (
                jax.tree.map(jnp.subtract, params, aggregate),
                state,
                {"rate": 0.25},
            ),
        )
        algorithm = fedmom.Algorithm(fedmom.servers.averaged(inner, 0.9))
        _, record = one_round(Scripted(), algorithm)
        assert record.metrics == {"server/rate": 0.25}


class TestLog:
    """What is written down of them."""

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_what_is_not_finite_is_left_out(self, value):
        def answers(*_):
            drift = DRIFTS.copy()
            drift[2] = value
            return [block(np.arange(5), drift=drift, pull=DRIFTS)]

        stages = (reporting("bad", value), reporting("good", 2.0))
        state, record = one_round(Scripted(answers), fedavg("uniform", stages=stages))
        assert record.metrics == {
            "client/pull": pytest.approx(DRIFTS.mean()),
            "good/it": 2.0,
        }
        assert record.replies == 5
        assert np.isfinite(state.params).all()

    def test_they_are_in_the_rounds_line(self):
        _, record = one_round(Scripted(drifting), fedavg("uniform"))
        row = json.loads(json.dumps(record.row()))
        assert row["metrics"] == {"client/drift": pytest.approx(DRIFTS.mean())}

    def test_without_any_there_is_no_such_field(self):
        assert "metrics" not in one_round(Scripted())[1].row()

    def test_a_round_without_replies_has_none_of_the_clients(self):
        stages = (reporting("lens", 3.0),)
        _, record = one_round(Scripted(lambda *_: []), fedavg(stages=stages))
        assert record.metrics == {"lens/it": 3.0}

    def test_a_metric_that_is_no_row_of_numbers_is_refused(self):
        runtime = Scripted(lambda *_: [block(np.arange(5), drift=DRIFTS[:4])])
        with pytest.raises(fedmom.BadReplyError, match="does not have a drift for each of 5 rows"):
            one_round(runtime)
