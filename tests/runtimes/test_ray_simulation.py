"""The simulation of a cluster against by-hand arithmetic."""

import importlib
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def simulation(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS / "peers"))
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("ray_cluster")


def seconds(simulation, constants, cluster, clients, steps=10):
    return simulation.simulated(constants, cluster, clients, steps, np.random.default_rng(0))


def test_without_noise_a_round_is_its_longest_share_and_its_overhead(simulation):
    plain = simulation.Constants(0.001, 0.0, round=0.05, actor=0.0, megabytes=1.0)
    for machines, actors, clients in ((1, 1, 7), (1, 2, 7), (5, 4, 100), (10, 1, 3)):
        cluster = simulation.Cluster(machines, actors)
        longest = -(-clients // min(clients, machines * actors))
        found = seconds(simulation, plain, cluster, clients)
        assert found == pytest.approx(0.05 + longest * 10 * 0.001)


def test_one_actor_costs_the_round_as_it_was_measured(simulation):
    measured = simulation.Constants(0.001, 0.0, round=0.05, actor=0.004, megabytes=1.0)
    one = seconds(simulation, measured, simulation.Cluster(1, 1), 10)
    assert one == pytest.approx(0.05 + 10 * 10 * 0.001)


def test_the_network_takes_the_model_to_machines_and_sums_back(simulation):
    """With nothing else to do, N models go out and A sums come in, one after another."""
    idle = simulation.Constants(0.0, 0.0, round=0.0, actor=0.0, megabytes=3.0)
    cluster = simulation.Cluster(machines=5, actors=4, network=100.0)
    assert seconds(simulation, idle, cluster, 1_000) == pytest.approx((5 + 20) * 3 / 100)


def test_a_slow_machine_holds_up_the_round(simulation):
    plain = simulation.Constants(0.001, 0.0, round=0.0, actor=0.0, megabytes=1.0)
    cluster = simulation.Cluster(machines=4, actors=2, slow=3.0)
    assert seconds(simulation, plain, cluster, 80) == pytest.approx(3 * 10 * 10 * 0.001)


def test_a_driver_hands_out_all_work_before_it_takes_sums(simulation):
    """So a round is never shorter than the driver's own time for its actors."""
    busy = simulation.Constants(0.0, 0.0, round=0.004, actor=0.004, megabytes=0.0)
    cluster = simulation.Cluster(machines=5, actors=4)
    assert seconds(simulation, busy, cluster, 1_000) == pytest.approx(20 * 0.004)
