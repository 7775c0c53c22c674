"""What would a larger cluster do? Run: python benchmarks/ray_cluster.py [--write-docs]

Measures the constants of a round on this machine, simulates rounds with them, and checks the
simulation: what it predicts for two actors, from constants that were measured without them, is
printed next to what two actors do, in turn. Then it simulates clusters that are not at hand.
"""

import argparse
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import jax
import numpy as np
import pages
from ray_speed import STEPS, WORK, Rounds
from rich.console import Console
from rich.table import Table

from fedmom.core.compilation import prepare_process
from fedmom.runtimes.cluster import balance, connect

ROUNDS = 200  # simulated
REPEATS = 5  # of the measurement that the simulation is compared with, in every turn
TURNS = 3  # of both measurements: medians are taken
SIZES = (100, 10)  # clients in a round of the comparison
CHECKED = ["M", "predicted, client-steps/s", "measured, client-steps/s", "predicted / measured"]
SIMULATED = [
    *("machines", "cores", "M", "s a round", "client-steps/s"),
    *("of ideal", "of ideal, one machine at half speed"),
]
ALONE = 20  # rounds of the runs of one actor
CPUS = 8  # that Ray is told of, to see what an actor more costs the driver


class Constants(NamedTuple):
    """What a round is made of. Seconds, unless said otherwise."""

    client_step: float  # on one core, while the machine's other cores are busy, too
    spread: float  # of an actor's time: standard deviation of its logarithm
    round: float  # of a round with one actor, besides the work, while the cores are busy
    actor: float  # the driver's time for one actor more
    megabytes: float  # of the model, which is also the size of an update

    def rows(self) -> list[list[str]]:
        """Return them with their names, for a table."""
        return [
            ["a client-step on one of two busy cores", f"{1000 * self.client_step:.3f} ms"],
            ["spread of an actor's time from round to round", f"{100 * self.spread:.1f} %"],
            ["a round with one actor, besides the work", f"{1000 * self.round:.1f} ms"],
            ["the driver's own time for each further actor", f"{1000 * self.actor:.2f} ms"],
            ["the model, and an update", f"{self.megabytes:.2f} MB"],
        ]


class Cluster(NamedTuple):
    """Machines, actors on each, and the driver's network in megabytes a second."""

    machines: int
    actors: int
    network: float = float("inf")
    slow: float = 1.0  # how much longer the slowest machine takes

    @property
    def total(self) -> int:
        """All actors."""
        return self.machines * self.actors


def simulated(
    constants: Constants, cluster: Cluster, clients: int, steps: int, rng: np.random.Generator
) -> float:
    """Return the seconds of one round.

    The driver hands out the work actor by actor and sends the model to every machine. After
    that it takes sums in the order in which they come, one at a time.
    """
    actors = min(cluster.total, clients)
    shares = np.full(actors, clients // actors) + (np.arange(actors) < clients % actors)
    model = constants.megabytes / cluster.network
    sent = np.arange(1, actors + 1) * constants.actor / 2 + cluster.machines * model
    noise = rng.lognormal(0.0, constants.spread, actors)
    slow = np.where(np.arange(actors) < cluster.actors, cluster.slow, 1.0)
    arrivals = np.sort(sent + shares * steps * constants.client_step * noise * slow)
    now = float(sent[-1])
    for arrival in arrivals:
        now = max(now, float(arrival)) + constants.actor / 2 + model
    return now + constants.round - constants.actor


def throughput(constants: Constants, cluster: Cluster, clients: int, steps: int) -> float:
    """Return simulated client-steps per second."""
    rng = np.random.default_rng(0)
    seconds = [simulated(constants, cluster, clients, steps, rng) for _ in range(ROUNDS)]
    return clients * steps / statistics.mean(seconds)


class Watch:
    """Notes how long actors say that their jobs took."""

    def __init__(self) -> None:
        self.jobs: list[tuple[float, float]] = []
        note = balance.Speed.note

        def noted(speed, work, seconds):
            self.jobs.append((work, seconds))
            note(speed, work, seconds)

        balance.Speed.note = noted

    def taken(self) -> list[tuple[float, float]]:
        """Return the jobs since the last call."""
        jobs, self.jobs = self.jobs, []
        return jobs


def together(runs: list[Rounds], rounds: int) -> float:
    """Let several runs of one actor each work at the same time; return the sum of their seconds."""
    with ThreadPoolExecutor(len(runs)) as pool:
        return sum(pool.map(lambda run: run.seconds(rounds), runs))


def constants_of(data, watch: Watch) -> Constants:
    """Measure, with an actor each for two runs that keep two cores busy, as two of one run do."""
    lone = [Rounds("ray, 1 actor", 25, data) for _ in range(2)]
    for run in lone:
        run.seconds(3)
    together(lone, 2)
    watch.taken()
    took = together(lone, ALONE)
    jobs = watch.taken()
    per_step = [seconds / (work / 10) for work, seconds in jobs]
    overhead = (took - sum(seconds for _, seconds in jobs)) / len(jobs)
    cost = {actors: driver_seconds(data, actors) for actors in (2, CPUS)}
    model = sum(leaf.nbytes for leaf in jax.tree.leaves(lone[0].params))
    for run in lone:
        run.runtime.close()
    return Constants(
        client_step=statistics.median(per_step),
        spread=float(np.std(np.log(per_step))),
        round=overhead,
        actor=max(0.0, (cost[CPUS] - cost[2]) / (CPUS - 2)),
        megabytes=model / 1e6,
    )


def driver_seconds(data, actors: int, rounds: int = 15) -> float:
    """Return the driver's own CPU time for a round with ``actors`` actors, a client each."""
    run = Rounds(f"ray, {actors} actors", actors, data)
    run.seconds(3)
    began = time.process_time()
    run.seconds(rounds)
    took = (time.process_time() - began) / rounds
    run.runtime.close()
    return took


def rates_of_two(data) -> dict[int, float]:
    """Return the client-steps per second of two actors, by the number of clients in a round."""
    found = {}
    for size in SIZES:
        run = Rounds("ray, 2 actors", size, data)
        run.seconds(3)
        rounds = 400 // size
        rates = [rounds * size * STEPS / run.seconds(rounds) for _ in range(REPEATS)]
        run.runtime.close()
        found[size] = statistics.median(rates)
    return found


def check(constants: Constants, measured: list[dict[int, float]]) -> list[list[str]]:
    """Return what is predicted for two actors on two cores, and what they do."""
    rows = []
    for size in SIZES:
        found = statistics.median(rates[size] for rates in measured)
        predicted = throughput(constants, Cluster(1, 2), size, STEPS)
        ratio = predicted / found
        rows.append([str(size), f"{predicted:,.0f}", f"{found:,.0f}", f"{ratio:.2f}"])
    return rows


def larger(constants: Constants) -> list[list[str]]:
    """Return what simulated clusters do, with a network of 10 Gbit/s."""
    rows = []
    for machines, clients in [(1, 100), (10, 1_000), (100, 1_000), (100, 10_000), (100, 100_000)]:
        cluster = Cluster(machines, 16, network=1250.0)
        ideal = min(cluster.total, clients) / constants.client_step
        even = throughput(constants, cluster, clients, STEPS)
        slowed = throughput(constants, cluster._replace(slow=2.0), clients, STEPS)
        numbers = [f"{machines}", f"{cluster.total:,}", f"{clients:,}"]
        rates = [f"{clients * STEPS / even:.2f}", f"{even:,.0f}"]
        rows.append([*numbers, *rates, f"{even / ideal:.2f}", f"{slowed / ideal:.2f}"])
    return rows


def start_ray() -> None:
    """Tell Ray of more CPUs than there are, which ``connect`` would not; else as it does."""
    os.environ.update(
        RAY_USAGE_STATS_ENABLED="0",
        RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
        RAY_worker_niceness="0",
    )
    ray = connect.package()
    how = {"include_dashboard": False, "log_to_driver": False, "logging_level": 40}
    ray.init(address="local", num_cpus=CPUS, **how)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write-docs", action="store_true", help="renew docs/scale.md")
    options = parser.parse_args()
    prepare_process()
    from ours import population

    start_ray()
    data, watch = population(WORK), Watch()
    # In turn, for the machine's own speed changes with time.
    turns = [(constants_of(data, watch), rates_of_two(data)) for _ in range(TURNS)]
    constants = Constants(*map(statistics.median, zip(*(found for found, _ in turns), strict=True)))
    sections = {
        "constants": (["measured", ""], constants.rows()),
        "check": (CHECKED, check(constants, [rates for _, rates in turns])),
        "clusters": (SIMULATED, larger(constants)),
    }
    console = Console(width=120)
    for name, (columns, rows) in sections.items():
        table = Table(*columns, box=None)
        for row in rows:
            table.add_row(*row)
        console.print(table)
        if options.write_docs:
            pages.write_section(name, pages.markdown(columns, rows), pages.SCALE)


if __name__ == "__main__":
    main()
