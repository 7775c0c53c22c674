"""Run folders: what they hold, equal bytes for equal seeds, and resuming after a real kill."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import fedmom
from fedmom import config as settings
from fedmom import runs
from fedmom.runs import RunFolder

SMALL = {"data": "synthetic", "rounds": 12, "eval-every": 4, "lr": 0.01}


def run(folder, watchers=(), **values):
    experiment = settings.prepare(settings.parse({**SMALL, **values}))
    opened = RunFolder.create(folder, experiment)
    runs.execute(opened, experiment, list(watchers))
    return opened


def checkpoint_bytes(folder):
    return {p.name: p.read_bytes() for p in sorted((folder / "checkpoint").iterdir())}


def logs(folder):
    """The logs without the clock."""
    opened = RunFolder.open(folder)
    rounds = [{**r, "seconds": None} for r in opened.rows("rounds.jsonl")]
    return rounds, opened.rows("evals.jsonl")


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
        "accuracy_p10",
        "accuracy_p50",
        "accuracy_p90",
    ]
    model_bytes = 61 * 10 * 4
    for r in rounds:
        assert r["cohort"] == fedmom.cohort(0, r["round"] - 1, 30, 2).tolist()
        assert r["bytes_up"] == r["bytes_down"] == 2 * model_bytes
        assert r["update_norm"] > 0
    tensors = load_file(folder / "checkpoint" / "round-00000012.safetensors")
    assert {t.size for t in tensors.values()} == {600, 10, 1}  # params and velocity, and rounds
    assert len(tensors) == 5
    assert json.loads((folder / "versions.json").read_text())["fedmom"]


def test_the_config_alone_repeats_the_run(tmp_path):
    first = run(tmp_path / "a", **{"local-epochs": 1, "momentum": 0.7}).path
    config = settings.parse(settings.read(first / "config.toml"))
    experiment = settings.prepare(config)
    second = RunFolder.create(tmp_path / "b", experiment)
    runs.execute(second, experiment, [])
    assert checkpoint_bytes(first) == checkpoint_bytes(second.path)
    assert logs(first) == logs(second.path)


def test_same_seed_same_bytes_another_seed_other_cohorts(tmp_path):
    a, b, c = (run(tmp_path / n, seed=s).path for n, s in (("a", 1), ("b", 1), ("c", 2)))
    assert checkpoint_bytes(a) == checkpoint_bytes(b)
    assert checkpoint_bytes(a) != checkpoint_bytes(c)
    cohorts = [[r["cohort"] for r in logs(f)[0]] for f in (a, c)]
    assert cohorts[0] != cohorts[1]


class StopAt:
    """A watcher that presses Ctrl-C."""

    def __init__(self, round_=None, evaluation=None):
        self.round_, self.evaluation = round_, evaluation

    def begin(self, _experiment, _round):
        pass

    def round(self, record):
        if record.round == self.round_:
            raise KeyboardInterrupt

    def evaluated(self, rows):
        if rows[0]["round"] == self.evaluation:
            raise KeyboardInterrupt


def test_an_averaged_run_trains_as_without_and_evaluates_the_mean_of_its_models(tmp_path):
    plain, mean = run(tmp_path / "a"), run(tmp_path / "b", average=0.8)
    losses = [[r["train_loss"] for r in logs(folder.path)[0]] for folder in (plain, mean)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    experiment = mean.experiment()
    models = [
        state.params
        for state, _ in fedmom.train(
            fedmom.start(experiment.model, fedmom.fedmom(15), 0),
            fedmom.LocalRuntime(experiment.data, experiment.model, experiment.work),
            fedmom.fedmom(15),
            samples=experiment.data.train.size,
            rounds=12,
            clients_per_round=2,
        )
    ]
    weights = 0.8 ** np.arange(11, -1, -1.0)
    expected = jax.tree.map(
        lambda *leaves: np.tensordot(weights / weights.sum(), np.array(leaves), 1), *models
    )
    metrics = fedmom.Evaluator(experiment.model, experiment.data)(expected, "test")
    assert logs(mean.path)[1][-1]["loss"] == pytest.approx(metrics.loss, rel=1e-5)
    assert logs(plain.path)[1][-1]["loss"] != pytest.approx(metrics.loss, rel=1e-3)


@pytest.mark.parametrize(
    "values",
    [
        *({"algorithm": name} for name in ("fedmom", "fedavg", "fedadam", "fedsgd")),
        {"average": 0.9},
    ],
    ids=str,
)
def test_resume_after_ctrl_c_is_the_run_that_never_stopped(tmp_path, values):
    whole = run(tmp_path / "whole", **values).path
    for name, stop in (("round", StopAt(round_=7)), ("evaluation", StopAt(evaluation=8))):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / name, [stop], **values)
        opened = RunFolder.open(tmp_path / name)
        runs.execute(opened, opened.experiment(), [])
        assert checkpoint_bytes(opened.path) == checkpoint_bytes(whole)
        assert logs(opened.path) == logs(whole)


def test_resume_after_kill_9_at_random_points_is_bit_identical(tmp_path):
    values = {"rounds": 400, "eval-every": 5}
    whole = run(tmp_path / "whole", **values).path
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "fedmom"]
    options = [f"--{k}={v}" for k, v in {**SMALL, **values}.items()]
    rng = random.Random(os.getpid())
    kills = 0
    start = [*command, "run", *options, "--out", str(folder)]
    while True:
        process = subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if kills < 3:
            wait_for_rounds(folder, rng.randint(5, 60), process)
            process.kill()
        _, complaints = process.communicate()
        if kills >= 3:
            assert process.returncode == 0, complaints.decode()
            break
        assert process.returncode == -signal.SIGKILL, complaints.decode()
        kills += 1
        start = [*command, "resume", str(folder)]
    assert checkpoint_bytes(folder) == checkpoint_bytes(whole)
    assert logs(folder) == logs(whole)


def wait_for_rounds(folder, more, process):
    """Wait until so many rounds have been added to the log, or the process has ended."""

    def count():
        path = folder / "rounds.jsonl"
        return len(path.read_bytes().splitlines()) if path.exists() else 0

    # Resuming first cuts the log back, so count what is there once it has begun anew.
    deadline = time.monotonic() + 120
    seen = None
    while process.poll() is None and time.monotonic() < deadline:
        now = count()
        seen = now if seen is None else min(seen, now)
        if now >= seen + more:
            return
        time.sleep(0.002)
    assert process.poll() is None, "the run ended before it could be killed"


def test_sigterm_is_a_polite_stop(tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "fedmom", "run", "--data=synthetic", "--rounds=100000"]
    process = subprocess.Popen(
        [*command, "--eval-every=100000", "--out", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_for_rounds(folder, 20, process)
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"fedmom resume {folder}" in err.decode().replace("\n", "")
    saved = json.loads((folder / "checkpoint" / "checkpoint.json").read_text())["round"]
    logged = RunFolder.open(folder).rows("rounds.jsonl")[-1]["round"]
    assert saved >= 20
    assert logged - saved <= 1  # nothing finished is lost


def test_a_torn_log_is_mended(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "r", [StopAt(round_=7)])
    with (tmp_path / "r" / "rounds.jsonl").open("a") as file:
        file.write('{"round": 8, "coh')
    opened = RunFolder.open(tmp_path / "r")
    runs.execute(opened, opened.experiment(), [])
    assert logs(opened.path) == logs(run(tmp_path / "whole").path)


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path):
    experiment = settings.prepare(settings.parse(SMALL))
    opened = RunFolder.create(tmp_path / "r", experiment)
    opened.append("evals.jsonl", [{"round": 0, "split": "train"}])
    runs.execute(opened, experiment, [])
    assert logs(opened.path) == logs(run(tmp_path / "whole").path)


def test_a_finished_run_stays_as_it_is(tmp_path):
    folder = run(tmp_path / "r")
    before = checkpoint_bytes(folder.path), logs(folder.path)
    runs.execute(folder, folder.experiment(), [])
    assert (checkpoint_bytes(folder.path), logs(folder.path)) == before


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    run(tmp_path / "r")
    with pytest.raises(fedmom.FedMomError, match="already holds a run"):
        run(tmp_path / "r")


def test_two_processes_do_not_share_a_folder(tmp_path):
    folder = run(tmp_path / "r")
    with folder.locked(), pytest.raises(fedmom.FedMomError, match="Another process"):
        runs.execute(folder, folder.experiment(), [])


@pytest.mark.parametrize("damage", [b"", b"{}", b"not json", b'{"round": 12, "tensors": "none"}'])
def test_a_damaged_checkpoint_is_a_sentence(tmp_path, damage):
    folder = run(tmp_path / "r")
    (folder.path / "checkpoint" / "checkpoint.json").write_bytes(damage)
    with pytest.raises(fedmom.FedMomError, match="is damaged"):
        runs.execute(folder, folder.experiment(), [])


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    folder = run(tmp_path / "r")
    text = (folder.path / "config.toml").read_text().replace('"logreg"', '"mlp"')
    (folder.path / "config.toml").write_text(text)
    with pytest.raises(fedmom.FedMomError, match="does not fit the model"):
        runs.execute(folder, folder.experiment(), [])


def test_a_run_that_diverges_keeps_its_last_good_round(tmp_path):
    values = {"lr": "step:start=0.01,rate=1e38,rounds=6"}  # from round 7 on, far too large
    with pytest.raises(fedmom.FedMomError, match="not finite"):
        run(tmp_path / "r", **values)
    pointer = json.loads((tmp_path / "r" / "checkpoint" / "checkpoint.json").read_text())
    tensors = load_file(tmp_path / "r" / "checkpoint" / pointer["tensors"])
    assert pointer["round"] == 6
    assert all(np.isfinite(t).all() for t in tensors.values())


def test_tensorboard_files_hold_the_same_numbers(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from fedmom.console import TensorBoard

    folder = tmp_path / "r"
    with TensorBoard(folder) as board:
        run(folder, [board])
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    rounds, evals = logs(folder)
    losses = [(e.step, pytest.approx(e.value)) for e in events.Scalars("round/train_loss")]
    assert [(r["round"], r["train_loss"]) for r in rounds] == losses
    accuracies = [(e.step, pytest.approx(e.value)) for e in events.Scalars("test/accuracy")]
    assert [(e["round"], e["accuracy"]) for e in evals if e["split"] == "test"] == accuracies


def test_atomic_writes_leave_no_temporary_file(tmp_path: Path):
    runs.write_atomic(tmp_path / "f", b"1")
    runs.write_atomic(tmp_path / "f", b"2")
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"2"
