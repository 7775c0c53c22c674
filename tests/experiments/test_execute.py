"""Running in a folder: equal bytes for equal seeds, and resuming after stops and real kills."""

import html
import json
import os
import random
import re
import shutil
import signal
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import fedmom
from fedmom.algorithms import ALGORITHMS
from fedmom.api.runs import write_report
from fedmom.experiments import build, results, settings
from fedmom.experiments.execute import execute
from fedmom.experiments.folder import RunFolder
from fedmom.training.samplers import cohort
from tests.experiments import stateful
from tests.experiments.small import (
    SMALL,
    Observer,
    StopAt,
    checkpoint_bytes,
    logs,
    pointer,
    prepared,
    process,
    resume,
    run,
    wait_for_rounds,
)

# Long enough that replies come one by one, and some are under way when a round ends.
BUFFERED = {"data": "synthetic:clients=40", "pace": "buffered:in_flight=8", "local-steps": 100}


@pytest.fixture
def remembering(monkeypatch):
    """A method with client state, known to this process."""
    monkeypatch.setitem(ALGORITHMS._rows, "remembering", stateful.remembering)


def test_a_run_folder_holds_all_of_the_run(tmp_path):
    folder = run(tmp_path / "r").path
    rounds, evals = logs(folder)
    assert [r["round"] for r in rounds] == list(range(1, 13))
    assert [(e["round"], e["split"]) for e in evals] == [
        (t, s) for t in (0, 4, 8, 12) for s in ("train", "test")
    ]
    assert list(evals[0]) == [
        "round",
        "split",
        "loss",
        "accuracy",
        *(f"accuracy_{p}" for p in ("p10", "p50", "p90")),
        *(f"accuracy_{p}_identical" for p in ("p10", "p50", "p90")),
        "clients",
        "samples",
    ]
    assert evals[0]["clients"] == 6
    model_bytes = 61 * 10 * 4
    for r in rounds:
        assert r["cohort"] == cohort(0, r["round"] - 1, 6, 2).tolist()
        assert r["replies"] == 2
        assert r["bytes_up"] == r["bytes_down"] == 2 * model_bytes
        assert r["update_norm"] > 0
    tensors = load_file(folder / "checkpoint" / "round-00000012.safetensors")
    assert {t.size for t in tensors.values()} == {600, 10, 1}  # params and velocity, and rounds
    assert len(tensors) == 5
    assert json.loads((folder / "versions.json").read_text())["fedmom"]


@pytest.mark.parametrize(
    "values", [{}, {"diagnostics": True, "diagnostics-every": 5}, {"lr": 1e38}], ids=str
)
def test_the_result_is_what_its_folder_says(tmp_path, values):
    result = run(tmp_path / "r", **values)
    assert result == results.read(tmp_path / "r")


def test_the_config_alone_repeats_the_run(tmp_path):
    first = run(tmp_path / "a", **{"local-steps": 3, "momentum": 0.7}).path
    config = settings.parse(settings.read(first / "config.toml"))
    experiment = build.prepare(config)
    second = RunFolder.create(tmp_path / "b", experiment.config)
    execute(second, experiment)
    assert checkpoint_bytes(first) == checkpoint_bytes(second.path)
    assert logs(first) == logs(second.path)


def test_same_seed_same_bytes_another_seed_other_cohorts(tmp_path):
    a, b, c = (run(tmp_path / n, seed=s).path for n, s in (("a", 1), ("b", 1), ("c", 2)))
    assert checkpoint_bytes(a) == checkpoint_bytes(b)
    assert checkpoint_bytes(a) != checkpoint_bytes(c)
    cohorts = [[r["cohort"] for r in logs(f)[0]] for f in (a, c)]
    assert cohorts[0] != cohorts[1]


@pytest.mark.parametrize(
    "values",
    [
        {"local-steps": 100},  # long enough for threads
        {"local-steps": 2},  # a few in one call
        BUFFERED,
    ],
    ids=str,
)
def test_the_number_of_workers_changes_no_bit(tmp_path, values):
    one, two = (
        run(tmp_path / str(n), rounds=4, runtime=f"local:workers={n}", **values) for n in (1, 2)
    )
    assert (one.config.runtime, two.config.runtime) == ("local:workers=1", "local:workers=2")
    assert checkpoint_bytes(one.path) == checkpoint_bytes(two.path)
    assert logs(one.path) == logs(two.path)


def test_sgd_with_momentum_is_the_solver_momentum(tmp_path):
    one, other = (
        run(tmp_path / s[:4], rounds=3, solver=s).path for s in ("sgd:momentum=0.9", "momentum")
    )
    assert checkpoint_bytes(one) == checkpoint_bytes(other)
    plain = run(tmp_path / "plain", rounds=3).path
    assert checkpoint_bytes(one) != checkpoint_bytes(plain)


def test_an_averaged_run_trains_as_without_and_evaluates_the_mean_of_its_models(tmp_path):
    plain, mean = run(tmp_path / "a"), run(tmp_path / "b", average=0.8)
    losses = [[r["train_loss"] for r in logs(result.path)[0]] for result in (plain, mean)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    experiment = prepared()
    runtime = experiment.runtime()
    models = [state.params for state, _ in experiment.train(experiment.start(), runtime)]
    weights = 0.8 ** np.arange(11, -1, -1.0)
    expected = jax.tree.map(
        lambda *leaves: np.tensordot(weights / weights.sum(), np.array(leaves), 1), *models
    )
    metrics = fedmom.evaluate(runtime, expected, "test")
    assert mean.last("test", "loss") == pytest.approx(metrics.loss, rel=1e-5)
    assert plain.last("test", "loss") != pytest.approx(metrics.loss, rel=1e-3)


# ---- stopping and going on


@pytest.mark.parametrize(
    "values",
    [
        *({"algorithm": name} for name in ("fedmom", "fedavg", "fedadam", "fedsgd")),
        {"algorithm": "fedadam:tau=0.1,beta2=0.5", "solver": "sgd:momentum=0.9"},
        {"average": 0.9},
        BUFFERED,
        {"pace": "over_selected:extra=0.5", "aggregate": "clip:norm=0.01+mean"},
        {
            "sampler": "poisson",
            "local-steps": 100,
        },  # on threads: cohorts of all sizes share a program
        {"diagnostics": True, "diagnostics-every": 3},
        {"algorithm": "remembering:keep=0.3"},
        {"algorithm": "remembering", **BUFFERED},
    ],
    ids=str,
)
@pytest.mark.usefixtures("remembering")
def test_resume_after_ctrl_c_is_the_run_that_never_stopped(tmp_path, monkeypatch, values):
    """Between rounds, and after a line or an evaluation was written, before its round counts."""
    whole = run(tmp_path / "whole", **values)
    append = RunFolder.append

    def interrupted(self, name, rows):
        append(self, name, rows)
        if self.path.name == name and rows[0]["round"] == 8:
            raise KeyboardInterrupt

    for name in ("after", "rounds.jsonl", "evals.jsonl"):
        with monkeypatch.context() as patch:
            patch.setattr(RunFolder, "append", interrupted)
            with pytest.raises(KeyboardInterrupt):
                run(tmp_path / name, [StopAt(round_=9)], **values)
        assert pointer(tmp_path / name)["round"] == (8 if name == "after" else 7)
        result = resume(tmp_path / name)
        assert checkpoint_bytes(result.path) == checkpoint_bytes(whole.path)
        assert logs(result.path) == logs(whole.path)
        assert result.evals == whole.evals
        assert result.config == whole.config


@pytest.mark.usefixtures("remembering")
def test_a_checkpoint_holds_client_states_and_work_under_way(tmp_path):
    """So that the tests above have something to lose."""
    result = run(tmp_path / "r", algorithm="remembering", **BUFFERED)
    tensors = load_file(tmp_path / "r" / "checkpoint" / "round-00000012.safetensors")
    seen = tensors["clients/states/clients"].tolist()
    assert seen == sorted(seen)
    assert len(seen) > 2
    assert tensors["clients/states/0"].sum() == sum(r["replies"] for r in result.rounds)
    under_way = tensors["clients/asked/0/clients"].tolist()
    assert under_way
    assert int(tensors["clients/asked/0/round"]) <= 11
    assert not set(under_way) & set(tensors.get("clients/asked/1/clients", np.array([])).tolist())


def test_resume_after_kill_9_at_random_points_is_bit_identical(tmp_path):
    values = {**SMALL, "rounds": 400, "eval-every": 5}
    whole = run(tmp_path / "whole", **values).path
    folder = tmp_path / "killed"
    args = ["run", *(f"--{k}={v}" for k, v in values.items()), "--out", str(folder)]
    rng = random.Random(7)
    for _ in range(2):
        child = process(*args)
        wait_for_rounds(folder, rng.randint(5, 60), child)
        child.kill()
        child.communicate()
        assert child.returncode == -signal.SIGKILL
        args = ["resume", str(folder)]
    child = process(*args)
    _, complaints = child.communicate()
    assert child.returncode == 0, complaints
    assert checkpoint_bytes(folder) == checkpoint_bytes(whole)
    assert logs(folder) == logs(whole)


@pytest.mark.usefixtures("remembering")
def test_client_states_of_a_users_method_survive_kill_9(tmp_path):
    """Registered as its user would: an entry point of a package that Python finds."""
    package = tmp_path / "package"
    package.mkdir()
    shutil.copy(stateful.__file__, package / "their_method.py")
    info = package / "their_method-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-method\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[fedmom.algorithms]\nremembering = their_method:remembering\n"
    )
    where = {"PYTHONPATH": os.pathsep.join([str(package), *filter(None, sys.path)])}
    values = {**SMALL, "rounds": 200, "eval-every": 5, "algorithm": "remembering:keep=0.3"}
    options = [f"--{k}={v}" for k, v in values.items()]
    whole, folder = run(tmp_path / "whole", **values).path, tmp_path / "killed"
    child = process("run", *options, "--out", str(folder), **where)
    wait_for_rounds(folder, 30, child)
    child.kill()
    child.communicate()
    child = process("resume", str(folder), **where)
    _, complaints = child.communicate()
    assert child.returncode == 0, complaints
    assert checkpoint_bytes(folder) == checkpoint_bytes(whole)
    assert logs(folder) == logs(whole)
    assert settings.read(folder / "config.toml")["algorithm"] == "remembering:keep=0.3"


def test_a_torn_log_is_mended(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "r", [StopAt(round_=7)])
    with (tmp_path / "r" / "rounds.jsonl").open("a") as file:
        file.write('{"round": 8, "coh')
    resume(tmp_path / "r")
    assert logs(tmp_path / "r") == logs(run(tmp_path / "whole").path)


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path):
    folder = RunFolder.create(tmp_path / "r", prepared().config)
    folder.append("evals.jsonl", [{"round": 0, "split": "train"}])
    resume(folder.path)
    assert logs(folder.path) == logs(run(tmp_path / "whole").path)


def test_a_finished_run_stays_as_it_is(tmp_path):
    first = run(tmp_path / "r")
    before = {p: p.read_bytes() for p in sorted(first.path.rglob("*")) if p.is_file()}
    observer = Observer()
    again = resume(tmp_path / "r", [observer])
    assert again == first
    assert {p: p.read_bytes() for p in sorted(first.path.rglob("*")) if p.is_file()} == before
    assert (observer.began, observer.rounds, observer.evaluations) == ([12], [], [])


def test_observers_are_told_of_every_round_once(tmp_path):
    observer = Observer()
    run(tmp_path / "r", [observer], rounds=6)
    assert observer.began == [0]
    assert observer.rounds == [1, 2, 3, 4, 5, 6]
    assert observer.evaluations == [0, 4, 6]


@pytest.mark.parametrize(("rounds", "saved"), [(12, [0, 4, 8, 12]), (10, [0, 4, 8, 10])])
def test_every_checkpoint_is_written_once(tmp_path, monkeypatch, rounds, saved):
    found = []
    save = RunFolder.save

    def noted(self, checkpoint):
        found.append(checkpoint.state.round)
        save(self, checkpoint)

    monkeypatch.setattr(RunFolder, "save", noted)
    run(tmp_path / "r", rounds=rounds)
    assert found == saved
    resume(tmp_path / "r")
    assert found == saved  # a finished run needs none


def test_checkpoints_are_also_written_by_the_clock(tmp_path, monkeypatch):
    monkeypatch.setattr("fedmom.experiments.execute.SECONDS_BETWEEN_CHECKPOINTS", -1.0)
    found = []
    save = RunFolder.save
    monkeypatch.setattr(RunFolder, "save", lambda s, c: (found.append(c.state.round), save(s, c)))
    run(tmp_path / "r", rounds=5)
    assert found == [0, 1, 2, 3, 4, 5]


def test_a_checkpoint_after_every_round_is_there_when_the_round_is_told(tmp_path):
    """So that a kill at any later moment loses nothing of it."""
    experiment = prepared(rounds=5)
    folder, told = RunFolder.create(tmp_path / "r", experiment.config), []

    def observe(event):
        told.append((event.round, folder.saved_round()))

    execute(folder, experiment, [observe], checkpoint_seconds=0.0)
    assert told == [(n, n) for n in range(6)]


# ---- ending early

TOO_LARGE_LATER = "step:start=0.01,rate=1e38,rounds=6"  # from round 7 on


def test_a_run_that_diverges_is_a_result_and_keeps_its_last_good_round(tmp_path):
    result = run(tmp_path / "r", lr=TOO_LARGE_LATER)
    assert (result.stop, result.diverged, result.status) == ("diverged", True, "diverged")
    assert (result.done, result.finished) == (6, False)
    assert result.why.startswith("Round 7: client ")
    assert "use a smaller --lr" in result.why
    fact = json.loads((tmp_path / "r" / "stopped.json").read_bytes())
    assert fact == {"kind": "diverged", "why": result.why}
    assert pointer(tmp_path / "r")["round"] == 6
    tensors = load_file(tmp_path / "r" / "checkpoint" / pointer(tmp_path / "r")["tensors"])
    assert all(np.isfinite(t).all() for t in tensors.values())


@pytest.mark.parametrize("rate", [1e22, 3e38])
@pytest.mark.parametrize(
    "values",
    [{"algorithm": "fedavg"}, {"algorithm": "fedmom"}, {"algorithm": "fedavgm", "average": 0.9}],
    ids=str,
)
def test_a_server_step_beyond_the_numbers_is_named_and_not_saved(tmp_path, values, rate):
    """Earlier, such a model was saved over the last good one, and a client was blamed."""
    late = {"lr": 1.0, "server-lr": f"step:start=1,rate={rate},rounds=6"}
    result = run(tmp_path / "r", **late, **values)
    assert result.diverged
    assert result.why.startswith(
        f"Round 7: the server's step, with server-lr {rate:g}, made a model"
    )
    assert pointer(tmp_path / "r")["round"] == 6
    tensors = load_file(tmp_path / "r" / "checkpoint" / "round-00000006.safetensors")
    assert max(np.abs(t).max() for t in tensors.values()) < 1e6


def test_a_run_that_diverged_is_tried_again_from_its_last_good_round(tmp_path):
    first = run(tmp_path / "r", lr=TOO_LARGE_LATER)

    class Looks(Observer):
        def __call__(self, event):
            super().__call__(event)
            assert not (tmp_path / "r" / "stopped.json").exists()  # not while it is tried

    observer = Looks()
    again = resume(tmp_path / "r", [observer])
    assert (again.stop, again.why, again.evals) == (first.stop, first.why, first.evals)
    assert observer.began == [6]
    # What a user may do: take a smaller step, and go on.
    config = tmp_path / "r" / "config.toml"
    config.write_text(
        config.read_text().replace(TOO_LARGE_LATER, "step:start=0.01,rate=1,rounds=6")
    )
    with pytest.raises(fedmom.FedMomError, match=r"lr was step:.*--accept-changes"):
        resume(tmp_path / "r")
    mended = resume(tmp_path / "r", accept_changes=True)
    assert (mended.stop, mended.status) == ("", "finished")
    assert not (tmp_path / "r" / "stopped.json").exists()
    assert results.read(tmp_path / "r") == mended


def test_a_model_that_is_finite_with_a_loss_that_is_not_has_diverged(tmp_path):
    """Found at the last evaluation, after all rounds: it is not finished, all the same."""
    values = {"rounds": 1, "lr": 1.0, "local-steps": 1, "server-lr": 1e16}
    values["model"] = "mlp:layers=2,hidden=8"  # logits are products of three weights
    result = run(tmp_path / "r", **values)
    assert result.stop == "diverged"
    assert "loss is not finite" in result.why
    assert (result.status, result.finished) == ("diverged", False)
    assert pointer(tmp_path / "r")["round"] == 0


def test_a_reply_that_cannot_be_used_is_stopped_not_diverged(tmp_path, monkeypatch):
    from fedmom.runtimes.local import LocalRuntime

    replies = LocalRuntime.replies

    def lying(self, timeout=None):
        for block in replies(self, timeout):
            yield block._replace(samples=block.samples + 1)

    monkeypatch.setattr(LocalRuntime, "replies", lying)
    result = run(tmp_path / "r")
    assert (result.stop, result.diverged, result.status) == ("stopped", False, "stopped")
    assert json.loads((tmp_path / "r" / "stopped.json").read_bytes())["kind"] == "stopped"
    assert "--bad-replies skip" in result.why


@pytest.fixture
def lying(monkeypatch):
    """Rounds in which every client claims a sample too many; all, until some are named."""
    from fedmom.runtimes.local import LocalRuntime

    replies, rounds = LocalRuntime.replies, set(range(100))

    def lie(self, timeout=None):
        for block in replies(self, timeout):
            yield block._replace(samples=block.samples + (block.version in rounds))

    monkeypatch.setattr(LocalRuntime, "replies", lie)
    return rounds


SKIP = {"bad-replies": "skip"}
CLAIMED = re.compile(r"it claims \d+ samples and has \d+")


@pytest.mark.parametrize("total", [2, 40])
def test_a_run_whose_replies_are_all_rejected_stops_and_can_be_resumed(tmp_path, lying, total):
    """The rounds before it stops are counted again when it is resumed, or it would go on."""
    most = min(total, 10)
    for way in (run, resume):
        result = way(tmp_path / "s", **({"rounds": total, **SKIP} if way is run else {}))
        assert (result.status, result.done) == ("stopped", most - 1)
        assert f"Every reply was rejected in {most} rounds in a row (client " in result.why
        assert CLAIMED.search(result.why)
    assert results.read(tmp_path / "s").rounds == result.rounds
    lying.clear()
    assert resume(tmp_path / "s").status == "finished"


def test_rounds_without_a_reply_are_said_and_do_not_stop_a_run_that_has_others(tmp_path, lying):
    lying.intersection_update({0, 2})
    result = run(tmp_path / "s", rounds=4, **SKIP)
    assert result.status == "finished"
    assert [r["replies"] for r in result.rounds] == [0, 2, 0, 2]
    assert [len(r.get("rejected", ())) for r in result.rounds] == [2, 0, 2, 0]
    said = result.rejected()
    assert said.startswith("4 of 8 replies were rejected: it claims ")
    assert said.endswith("In 2 of 4 rounds none was left: no step was taken.")
    assert run(tmp_path / "t", rounds=1).rejected() == ""
    assert said in html.unescape(write_report([tmp_path / "s"], tmp_path / "page.html").read_text())


@pytest.fixture
def swelling(monkeypatch):
    """Rounds in which one client sends its update times 1e17."""
    from fedmom.runtimes.local import LocalRuntime

    replies, rounds = LocalRuntime.replies, {2}

    def swell(self, timeout=None):
        for block in replies(self, timeout):
            size = np.ones(len(block.clients), np.float32)
            size[0] = 1e17 if block.version in rounds else 1
            update = jax.tree.map(lambda u: (u.T * size).T, block.update)  # noqa: B023
            metrics = {name: value for name, value in block.metrics.items() if name != "norm"}
            yield block._replace(update=update, metrics=metrics)

    monkeypatch.setattr(LocalRuntime, "replies", swell)
    return rounds


def test_a_huge_reply_stops_a_run_whose_last_checkpoint_stays_good(tmp_path, swelling):
    """It used to count, and every resumed run to fail."""
    stopped = run(tmp_path / "s", rounds=4, **{"norm-limit": 1000})
    assert (stopped.status, stopped.done) == ("stopped", 2)
    assert re.search(r"reply of client \d+ cannot be used: its update has the norm", stopped.why)
    swelling.clear()
    mended, clean = resume(tmp_path / "s"), run(tmp_path / "c", rounds=4)
    assert (mended.status, mended.evals) == ("finished", clean.evals)


def test_with_skip_a_huge_reply_is_left_out_and_named(tmp_path, swelling):
    result = run(tmp_path / "s", rounds=4, **SKIP)
    assert (result.status, swelling) == ("finished", {2})
    assert [row["replies"] for row in result.rounds] == [2, 2, 1, 2]
    assert "times the median" in result.rejected()


def test_rounds_with_too_few_replies_for_a_rule_end_a_run_loudly(tmp_path, monkeypatch):
    from fedmom.runtimes.local import LocalRuntime

    replies = LocalRuntime.replies

    def lie(self, timeout=None):
        for number, block in enumerate(replies(self, timeout)):
            bad = np.arange(len(block.clients)) + number == 0
            yield block._replace(samples=block.samples + bad)

    monkeypatch.setattr(LocalRuntime, "replies", lie)
    krum = {"aggregate": "krum:attackers=0", "weighting": "uniform", "clients-per-round": 3}
    result = run(tmp_path / "s", rounds=2, **krum, **SKIP)
    assert (result.status, result.done) == ("stopped", 1)
    assert "fewer replies came than the rule of aggregate needs (the last time 2)" in result.why
    assert resume(tmp_path / "s").status == "stopped"


def test_a_first_model_without_a_loss_is_not_blamed_on_the_learning_rate(tmp_path):
    data = fedmom.load_data("synthetic:clients=4")
    functions = lambda _key: jnp.zeros((60, 10)), lambda w, x, _key: jnp.log(x @ w - 1)
    model = fedmom.model(functions, data)
    with pytest.raises(fedmom.FedMomError, match="The loss of the first model is not") as caught:
        fedmom.run(data=data, model=model, rounds=2, out=tmp_path / "r")
    assert "--lr" not in str(caught.value)


def test_a_runtime_is_closed_whatever_happens(tmp_path, monkeypatch):
    from fedmom.runtimes.local import LocalRuntime

    closed = []
    close = LocalRuntime.close
    monkeypatch.setattr(LocalRuntime, "close", lambda self: (closed.append(self), close(self)))
    run(tmp_path / "a", rounds=1)
    run(tmp_path / "b", lr=1e38)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "c", [StopAt(round_=1)])
    with pytest.raises(fedmom.FedMomError, match="already"):
        run(tmp_path / "c")
    assert len(closed) == 3


def test_the_files_are_small_and_few(tmp_path: Path):
    run(tmp_path / "r")
    assert {p.name for p in (tmp_path / "r").iterdir()} - {".lock"} == {
        "checkpoint",
        "config.toml",
        "evals.jsonl",
        "rounds.jsonl",
        "schema.json",
        "started.json",
        "versions.json",
    }


def test_a_long_run_leaves_its_rows_to_the_log(tmp_path, monkeypatch):
    experiment = prepared(rounds=9)
    whole = execute(RunFolder.create(tmp_path / "whole", experiment.config), experiment)
    monkeypatch.setattr("fedmom.experiments.execute.ROWS_IN_MEMORY", 4)
    long = execute(RunFolder.create(tmp_path / "long", experiment.config), experiment)
    timeless = [[{**row, "seconds": 0} for row in run.rounds] for run in (whole, long)]
    assert timeless[0] == timeless[1]
    assert len(timeless[1]) == 9


def test_what_an_observer_changes_is_not_what_is_kept(tmp_path):
    def spoil(event):
        for row in event.evals.values():
            row["loss"] = -1.0
            row.clear()

    spoiled, plain = run(tmp_path / "a", [spoil]), run(tmp_path / "b")
    assert spoiled.evals == plain.evals == results.read(tmp_path / "a").evals


def test_parameters_that_an_observer_changes_are_not_those_that_are_trained(tmp_path):
    def spoil(event):
        event.params[0]["w"] = jnp.zeros_like(event.params[0]["w"])
        event.params.clear()

    spoiled, plain = run(tmp_path / "a", [spoil]), run(tmp_path / "b")
    assert spoiled.evals == plain.evals
