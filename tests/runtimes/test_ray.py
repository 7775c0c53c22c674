"""The Ray runtime on a real Ray of two actors: sums, states, stores, and what users are told."""

import json
import os
import signal
import sys
from pathlib import Path

import click
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmom
from fedmom.api.live_progress import RunProgress
from fedmom.cli.main import cli
from fedmom.core.errors import DivergedError, FedMomError
from fedmom.data.store.writer import save_store
from fedmom.experiments import settings
from fedmom.experiments.build import prepare
from fedmom.experiments.execute import execute
from fedmom.experiments.folder import RunFolder
from fedmom.models.base import ROWS
from fedmom.runtimes.cluster import actors, connect, shipping
from fedmom.runtimes.cluster.actor import ClientActor
from fedmom.runtimes.cluster.runtime import RayRuntime
from fedmom.runtimes.local import LocalRuntime
from tests.conftest import population, workload_of
from tests.runtimes.ray_end import ray_ended
from tests.runtimes.scripted import Scripted

pytestmark = pytest.mark.thorough
WORK = fedmom.LocalWork(lr=0.1, steps=3, batch_size=2)
SIZES = [5, 9, 3, 14, 7, 6, 8, 4]


@pytest.fixture(scope="module", autouse=True)
def _end_ray():
    with ray_ended():
        yield


@pytest.fixture(scope="module")
def data():
    return population(SIZES, test_sizes=[2] * 8)


@pytest.fixture(scope="module")
def model(data):
    return fedmom.build_model("logreg", data.features)


@pytest.fixture
def on_ray():
    made = []

    def make(workload, **options):
        made.append(RayRuntime(workload, actors=2, **options))
        return made[-1]

    yield make
    for runtime in made:
        runtime.close()


def trained(runtime, rounds=3, size=6, **options):
    """Train, and return what every round yields."""
    pace = fedmom.synchronous(size)
    return list(fedmom.train(runtime, pace=pace, rounds=rounds, **options))


def agree(ours, theirs):
    for (state, record), (expected, other) in zip(ours, theirs, strict=True):
        close(state.params, expected.params)
        assert (record.cohort, record.replies) == (other.cohort, other.replies)
        np.testing.assert_allclose(record.train_loss, other.train_loss, rtol=1e-5)
        np.testing.assert_allclose(record.update_norm, other.update_norm, rtol=1e-4)
        assert (record.bytes_up, record.bytes_down) == (other.bytes_up, other.bytes_down)


def close(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), a, b)


@pytest.mark.parametrize("weighting", ["population", "cohort", "uniform"])
def test_sums_of_actors_give_the_local_runs_numbers(on_ray, data, model, weighting):
    method = fedmom.Algorithm(fedmom.servers.fedmom(1.5, 0.9), rule=fedmom.mean(weighting))
    workload = workload_of(data, model, WORK, method)
    agree(trained(on_ray(workload, sums=True)), trained(LocalRuntime(workload)))


def test_runs_of_one_actor_each_have_different_actors(data, model):
    """Or all runs of a sweep would wait for one core."""
    workload = workload_of(data, model, WORK, fedmom.Algorithm(fedmom.servers.fedavg()))
    runs = [RayRuntime(workload, actors=1) for _ in range(2)]
    assert len({process for run in runs for process in run.actors()}) == 2
    for run in runs:
        run.close()


def test_cancelled_work_does_not_hold_up_what_is_asked_next(on_ray, data, model):
    """Ray's own order of calls would wait half a minute for a call that was never sent."""
    method = fedmom.Algorithm(fedmom.servers.fedavg(), rule=fedmom.mean("uniform"))
    runtime = on_ray(workload_of(data, model, WORK, method))
    params = fedmom.start(runtime.workload).params
    for round_ in range(20):
        runtime.ask(round_, np.arange(8), params)
        runtime.cancel()
    runtime.ask(20, np.arange(8), params)
    blocks = list(runtime.replies(timeout=20))
    assert sorted(c for b in blocks for c in b.clients.tolist()) == list(range(8))


def test_an_actor_sends_one_row_for_all_of_its_clients(on_ray, data, model):
    """The driver's traffic and memory grow with the actors, not with the clients."""
    method = fedmom.Algorithm(fedmom.servers.fedavg(), rule=fedmom.mean("uniform"))
    runtime = on_ray(workload_of(data, model, WORK, method), sums=True)
    params = fedmom.start(runtime.workload).params
    runtime.prepare(8, sums=True)
    runtime.ask(0, np.arange(8), params)
    blocks = list(runtime.replies())
    assert sorted(int(b.members.sum()) for b in blocks) == [4, 4]
    assert sorted(c for b in blocks for c in b.clients.tolist()) == list(range(8))
    apart = LocalRuntime(workload_of(data, model, WORK, method))
    for block in blocks:
        apart.ask(0, block.clients, params)
        rows = list(apart.replies())
        updates = jax.tree.map(lambda *r: np.concatenate(r), *(b.update for b in rows))
        close(
            jax.tree.map(lambda u: u[0], block.update), jax.tree.map(lambda u: u.mean(0), updates)
        )
        losses = np.concatenate([b.metrics["loss"] for b in rows])
        np.testing.assert_allclose(block.metrics["loss"], [losses.mean()], rtol=1e-5)
        flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(block.update)])
        np.testing.assert_allclose(block.metrics["norm"], [np.linalg.norm(flat)], rtol=1e-5)


def test_actors_are_two_processes_with_the_priority_of_this_one(on_ray, data, model):
    actors = on_ray(workload_of(data, model, WORK, None)).actors()
    processes = {process for _, process in actors}
    assert len(processes) == 2
    assert {os.getpriority(os.PRIO_PROCESS, p) for p in processes} == {
        os.getpriority(os.PRIO_PROCESS, 0)
    }


def test_rules_and_stages_that_need_each_reply_get_it(on_ray, data, model):
    robust = fedmom.Algorithm(fedmom.servers.fedavg(), rule=fedmom.trimmed_mean(share=0.2))
    cubed = fedmom.Stage(
        "cubed",
        encode=lambda update, state, _sent, _key: (jax.tree.map(lambda u: u**3, update), state, {}),
        decode=lambda encoded, _form: jax.tree.map(jnp.cbrt, encoded),
    )
    decoded = fedmom.Algorithm(fedmom.servers.fedavg(), rule=fedmom.mean(), stages=(cubed,))
    for method in (robust, decoded):
        workload = workload_of(data, model, WORK, method)
        runtime = on_ray(workload, sums=True)
        agree(trained(runtime, rounds=2), trained(LocalRuntime(workload), rounds=2))


def test_a_client_that_is_not_finite_is_told_from_those_it_would_be_summed_with(on_ray, model):
    data = population(SIZES, test_sizes=[2] * 8)
    start, size = int(data.train.start[3]), int(data.train.size[3])
    data.arrays["x"][start : start + size] = np.inf
    method = fedmom.Algorithm(fedmom.servers.fedavg(), rule=fedmom.mean("cohort"))
    workload = workload_of(data, model, WORK, method)
    with pytest.raises(DivergedError, match="client 3 sent back"):
        trained(on_ray(workload, sums=True), rounds=1, size=8)
    skipped = {"rounds": 1, "size": 8, "bad_replies": "skip"}
    ours = trained(on_ray(workload, sums=True), **skipped)
    agree(ours, trained(LocalRuntime(workload), **skipped))
    ((_, record),) = ours
    assert record.replies == 7
    assert record.rejected == ((3, "its update is not finite"),)


def counting():
    def run(broadcast, count, problem, key):
        w, loss = problem.train(broadcast, key)
        update = jax.tree.map(lambda a, b: (a - b) * (1 + count), broadcast, w)
        return update, count + 1, {"loss": loss}

    client = fedmom.Client(run, init=lambda _: jnp.zeros(()))
    return fedmom.Algorithm(fedmom.servers.fedavg(), client=client, rule=fedmom.mean())


def test_checkpoints_with_states_and_work_under_way_move_between_runtimes(on_ray, data, model):
    workload = workload_of(data, model, WORK, counting())
    params = fedmom.start(workload).params

    def make_ray():
        return on_ray(workload)

    def make_local():
        return LocalRuntime(workload)

    def answers(runtime):
        found = {}
        for block in runtime.replies():
            for row, client in enumerate(block.clients.tolist()):
                found[client] = jax.tree.map(lambda u, i=row: np.asarray(u[i]), block.update)
        return dict(sorted(found.items()))

    replies = []
    for make, other in ((make_ray, make_local), (make_local, make_ray), (make_local, make_local)):
        first = make()
        for round_ in range(2):
            first.ask(round_, np.array([0, 1, 2, 5]), params)
            answers(first)
            first.commit()
        first.ask(2, np.array([2, 3]), params)
        first.commit()  # with two under way
        second = other()
        second.restore(first.snapshot(), params)
        assert sorted(second.under_way()) == [(2, 2), (3, 2)]
        under_way = answers(second)
        second.ask(3, np.array([0, 1, 2, 4]), params)
        replies.append((under_way, answers(second)))
        second.commit()
        tensors = second.snapshot().tensors
        assert tensors["states/clients"].tolist() == [0, 1, 2, 3, 4, 5]
        assert tensors["states/0"].tolist() == [3, 3, 4, 1, 1, 2]
    close(replies[0], replies[2])
    close(replies[1], replies[2])


def test_a_state_that_no_reply_told_of_does_not_count(on_ray, data, model):
    """An actor may have worked for a client whose round was cancelled."""
    runtime = on_ray(workload_of(data, model, WORK, counting()))
    params = fedmom.start(runtime.workload).params
    for _ in range(3):
        runtime.ask(0, np.arange(8), params)
        next(iter(runtime.replies()))
        runtime.cancel()
    runtime.commit()
    seen = runtime.snapshot().tensors
    before = dict(zip(seen["states/clients"].tolist(), seen["states/0"].tolist(), strict=True))
    runtime.ask(1, np.arange(8), params)
    list(runtime.replies())
    runtime.commit()
    after = runtime.snapshot().tensors["states/0"].tolist()
    assert after == [before.get(client, 0) + 1 for client in range(8)]


def test_a_packed_store_is_opened_by_its_path_and_sent_where_it_is_not(
    on_ray, data, model, tmp_path, monkeypatch
):
    save_store(data, tmp_path / "packed", {})
    packed = fedmom.load_data(str(tmp_path / "packed"))
    store = shipping.store_of(packed)
    assert store == shipping.Store(tmp_path / "packed", packed.checksum)
    assert shipping.opened(store).clients == 8
    assert shipping.opened(store._replace(checksum="of another")) is None
    assert shipping.store_of(data) is None
    method = fedmom.Algorithm(fedmom.servers.fedavg(), rule=fedmom.mean())
    workload = workload_of(packed, model, WORK, method)
    expected = trained(LocalRuntime(workload), rounds=1)
    agree(trained(on_ray(workload, sums=True), rounds=1), expected)
    elsewhere = store._replace(folder=Path("/not/on/this/machine"))
    monkeypatch.setattr(shipping, "store_of", lambda _: elsewhere)
    agree(trained(on_ray(workload, sums=True), rounds=1), expected)


def config(**values):
    return settings.parse(
        {"data": "synthetic:clients=12", "rounds": 6, "clients-per-round": 4, "lr": 0.01}
        | {"eval-every": 3}
        | values
    )


def _stop(event):
    """Interrupt a run after a round, as Ctrl-C does."""
    if event.record and event.round == 3:
        raise KeyboardInterrupt


def test_a_run_is_stopped_here_and_goes_on_there(tmp_path):
    """Of the three, one was never stopped; one began here, one on Ray."""
    whole = RunFolder.create(tmp_path / "whole", prepare(config()).config)
    expected = execute(whole, prepare(config()))
    for before, after in (("local", "ray:actors=2"), ("ray:actors=2", "local")):
        experiment = prepare(config(runtime=before))
        folder = RunFolder.create(tmp_path / before[:3], experiment.config)
        with pytest.raises(KeyboardInterrupt):
            execute(folder, experiment, [_stop])
        result = execute(folder, experiment, runtime=after)
        assert [r["round"] for r in result.rounds] == [1, 2, 3, 4, 5, 6]
        for row, other in zip(result.rounds, expected.rounds, strict=True):
            assert row["cohort"] == other["cohort"]
            np.testing.assert_allclose(row["train_loss"], other["train_loss"], rtol=1e-4)
        for row, other in zip(result.evals, expected.evals, strict=True):
            np.testing.assert_allclose(row["loss"], other["loss"], rtol=1e-4)


def test_sweeps_and_resume_run_on_ray(tmp_path, capsys):
    grid = ["--grid", "lr=0.01 1e30", "--grid", "seed=0 1"]
    what = ["--data", "synthetic:clients=12", "--rounds", "3", "--clients-per-round", "4"]
    out = tmp_path / "sweep"
    cli(["sweep", *what, *grid, "--runtime", "ray", "--out", str(out)], standalone_mode=False)
    names = sorted(path.parent.name for path in out.glob("*/config.toml"))
    assert len(names) == 4
    done = [len((out / name / "rounds.jsonl").read_text().splitlines()) for name in names]
    assert done == [3, 3, 0, 0] or done == [3, 3, 1, 1]  # those with 1e30 diverge
    assert "stopped" in capsys.readouterr().err
    table = (out / "sweep.csv").read_text()
    assert "lr0.01" in table
    cli(["resume", str(out), "--runtime", "local"], standalone_mode=False)


def test_a_sweep_on_ray_that_was_stopped_goes_on(tmp_path, monkeypatch):
    """Stopped after two rounds of its first run; what it ends with is what it does here."""
    what = ["--data", "synthetic:clients=12", "--rounds", "5", "--clients-per-round", "4"]
    words = ["sweep", *what, "--grid", "seed=0 1 2", "--lr", "0.01"]
    cli([*words, "--out", str(tmp_path / "here")], standalone_mode=False)
    told = iter([None, None, KeyboardInterrupt])

    def stop(shown, event, before=RunProgress.__call__):
        before(shown, event)
        if event.record and next(told, None) is KeyboardInterrupt:
            raise KeyboardInterrupt

    out = str(tmp_path / "there")
    with monkeypatch.context() as patch:
        patch.setattr(RunProgress, "__call__", stop)
        with pytest.raises(click.Abort):
            cli([*words, "--runtime", "ray", "--out", out], standalone_mode=False)
    begun = [len(p.read_text().splitlines()) for p in Path(out).glob("*/rounds.jsonl")]
    assert sum(begun) < 15
    cli(["resume", out], standalone_mode=False)
    for name in ("seed0", "seed1", "seed2"):
        rows, others = (
            [json.loads(line) for line in file.read_text().splitlines()]
            for file in (tmp_path / where / name / "rounds.jsonl" for where in ("there", "here"))
        )
        assert [row["round"] for row in rows] == [1, 2, 3, 4, 5]
        for row, other in zip(rows, others, strict=True):
            assert row["cohort"] == other["cohort"]
            np.testing.assert_allclose(row["train_loss"], other["train_loss"], rtol=1e-4)


@pytest.mark.parametrize(
    ("more", "takes"),
    [
        ({}, True),
        ({"pace": "buffered:in_flight=6"}, True),
        ({"pace": "over_selected"}, False),
        ({"pace": "synchronous:timeout=5"}, False),
        ({"diagnostics": True}, False),
        ({"aggregate": "quantize:bits=8"}, False),
        ({"aggregate": "median", "weighting": "uniform"}, False),
        ({"aggregate": "clip:norm=1"}, True),
    ],
    ids=str,
)
def test_replies_are_added_up_where_nothing_needs_each_of_them(more, takes):
    experiment = prepare(config(**more))
    runtime = Scripted(experiment.workload)
    told = []
    runtime.prepare = lambda cohort, *, sums: told.append((cohort, sums))
    for _ in experiment.train(
        experiment.start(), runtime, rounds=1, watch=experiment.diagnostics()
    ):
        pass
    assert told == [(experiment.config.clients_per_round, takes)]


def test_without_the_extra_the_user_is_told_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    out = str(tmp_path / "run")
    words = ["run", "--data", "synthetic:clients=4", "--runtime", "ray", "--out", out]
    with pytest.raises(FedMomError, match=r"pip install 'fedmom\[ray\]'"):
        cli(words, standalone_mode=False)
    assert not Path(out).exists()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"actors": 0}, "actors=0 must be at least 1"),
        ({"actors": 10_000}, "actors=10000: the Ray cluster has room for"),
        ({"cpus": 10_000}, "No actor of 10000 CPUs fits"),
        ({"on_loss": "cry"}, "on_loss is 'cry'. It must be 'redo' or 'drop'"),
        ({"address": "ray://head:10001"}, "ray:// is not supported|not supported"),
    ],
)
def test_options_that_make_no_sense_are_refused(data, model, options, what):
    with pytest.raises(FedMomError, match=what):
        RayRuntime(workload_of(data, model, WORK, None), **options)


def test_an_actors_error_is_one_line_with_its_traceback_as_a_note(on_ray, data):
    driver = os.getpid()

    def apply(w, x, key):
        tried = os.getpid() == driver or (len(x) == ROWS and key is None)
        if not tried:  # the driver and the actors try a model before it is used
            raise ValueError("this net takes images")
        return x @ w

    net = fedmom.Model(init=lambda _: jnp.zeros((4, 3)), apply=apply)
    runtime = on_ray(workload_of(data, net, WORK, None))
    for use in (
        lambda: [runtime.ask(0, np.arange(3), jnp.zeros((4, 3))), list(runtime.replies())],
        lambda: runtime.evaluate(jnp.zeros((4, 3)), "test"),
    ):
        with pytest.raises(ValueError, match="this net takes images") as caught:
            use()
        assert str(caught.value) == "this net takes images"
        assert "in apply" in caught.value.__notes__[-1]
        runtime.cancel()


class _Broken(ClientActor):
    """An actor that cannot be made, as where a package is missing."""

    def __init__(self, _cpus):
        raise ModuleNotFoundError("No module named 'fedmom'")


def test_actors_that_cannot_start_are_told_of_at_once(data, model, monkeypatch):
    """Not tried again and again: the reason is the user's to mend."""
    connect.package()
    for other in actors._POOLS.values():  # actors of earlier tests, which have all cores
        other.end()
    monkeypatch.setattr(actors, "ClientActor", _Broken)
    monkeypatch.setattr(actors, "_POOLS", {})
    runtime = RayRuntime(workload_of(data, model, WORK, None), actors=1)
    try:
        with pytest.raises(FedMomError, match=r"No module named 'fedmom'\).*same versions"):
            runtime.actors()
    finally:
        runtime.close()


def test_a_signal_means_what_it_meant_before_ray():
    connect.connect()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_nothing_of_ray_is_said(capfd, on_ray, data, model):
    connect.connect()
    on_ray(workload_of(data, model, WORK, None)).evaluate(
        fedmom.start(workload_of(data, model, WORK)).params, "test"
    )
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")


@pytest.mark.parametrize("state", ["average", "local"])
def test_a_models_state_is_averaged_or_stays_as_on_one_machine(on_ray, data, state):
    """A net with a running mean of its inputs, which is not trained."""
    width = data.features.shape[0]

    def init(key):
        w = 0.1 * jax.random.normal(key, (width, data.features.classes))
        return {"w": w}, {"mean": jnp.zeros(width)}

    def apply(params, state, x, key):
        mean = state["mean"] if key is None else 0.9 * state["mean"] + 0.1 * x.mean(0)
        return (x - mean) @ params["w"], {"mean": mean}

    net = fedmom.model((init, apply), data, has_state=True, state=state)
    algorithm = fedmom.Algorithm(
        fedmom.servers.fedmom(learning_rate=1.5), rule=fedmom.mean("cohort")
    )
    workload = workload_of(data, net, WORK, algorithm)
    here, there = LocalRuntime(workload), on_ray(workload, sums=True)
    agree(trained(there), trained(here))
    scores = [runtime.evaluate(fedmom.start(workload).params, "test") for runtime in (there, here)]
    np.testing.assert_allclose(scores[0].sums["loss"], scores[1].sums["loss"], rtol=1e-5)
