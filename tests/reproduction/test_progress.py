"""Progress over the plan: counts, shares of the work, and the time that is left."""

import io

from rich.console import Console

from fedmom.experiments.settings import RunConfig
from fedmom.reproduction import runner

SHORT, LONG = RunConfig(rounds=10, seed=0), RunConfig(rounds=10, seed=1)


def told(steps, monkeypatch, seconds=60.0):
    """Return the lines that steps print; the clock stands still after the start."""
    clock = iter([0.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock, seconds))
    console = Console(file=io.StringIO(), width=200)
    costs = {SHORT: 1.0, LONG: 3.0}
    with runner.Overall(costs.__getitem__, lambda c: f"run {c.seed}", console) as overall:
        steps(overall)
    return console.file.getvalue().splitlines()


def test_work_is_counted_by_cost_and_not_by_runs(monkeypatch):
    def steps(overall):
        overall.expect([SHORT, LONG, SHORT])
        overall.advance(SHORT, 0)
        overall.advance(SHORT, 10)

    # A quarter of the work took a minute.
    assert told(steps, monkeypatch) == [
        "1 of about 2 runs, 25% of the work, about 3 min left: run 0: done"
    ]


def test_rounds_of_an_earlier_call_tell_nothing_about_time(monkeypatch):
    def steps(overall):
        overall.expect([SHORT, LONG])
        overall.advance(SHORT, 0)
        overall.advance(LONG, 9)
        overall.advance(LONG, 1)

    # 30 of 40 units are done, of which 3 took the minute.
    assert told(steps, monkeypatch) == [
        "1 of about 2 runs, 75% of the work, about 3 min left: run 1: done"
    ]


def test_a_run_that_diverges_takes_its_rest_along(monkeypatch):
    def steps(overall):
        overall.expect([SHORT, LONG])
        overall.advance(LONG, 0)
        overall.diverged(LONG, "Round 1: not finite.")
        overall.advance(SHORT, 0)
        overall.advance(SHORT, 10)

    assert told(steps, monkeypatch) == [
        "1 of about 2 runs, 0% of the work: run 1: Round 1: not finite.",
        "2 of about 2 runs, 100% of the work, about 0 min left: run 0: done",
    ]


def test_the_only_run_may_diverge_at_once(monkeypatch):
    def steps(overall):
        overall.expect([LONG])
        overall.advance(LONG, 0)
        overall.diverged(LONG, "Round 1: not finite.")

    assert told(steps, monkeypatch) == [
        "1 of about 1 runs, 100% of the work: run 1: Round 1: not finite."
    ]
