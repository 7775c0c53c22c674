"""What a run shows while it goes on, and the TensorBoard files of --tensorboard."""

import io
import sys
import time

import pytest
from rich.console import Console

from fedmom.api import live_progress
from fedmom.api.live_progress import RunProgress
from fedmom.core.errors import FedMomError
from fedmom.experiments.observers import Event, TensorBoard
from fedmom.training.loop import Record
from tests.cli.command import invoke
from tests.experiments.small import StopAt, logs, prepared, resume, run

OPTIONS = ["--data=synthetic:clients=6", "--rounds=6", "--eval-every=3", "--lr=0.01"]


def scalars(folder):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {
        tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }


def expected(folder):
    """The numbers of the logs, as TensorBoard has them."""
    rounds, evals = logs(folder)
    found = {
        f"round/{key}": [(r["round"], pytest.approx(r[key])) for r in rounds]
        for key in ("train_loss", "update_norm", "bytes_up", "bytes_down")
    }
    for row in evals:
        for key in row.keys() - {"round", "split"}:
            points = found.setdefault(f"{row['split']}/{key}", [])
            points.append((row["round"], pytest.approx(row[key])))
    return found


def test_tensorboard_files_hold_the_same_numbers(tmp_path):
    invoke("run", *OPTIONS, "--tensorboard", "--out=r")
    found = scalars(tmp_path / "r")
    assert len(found.pop("round/seconds")) == 6
    assert found == expected(tmp_path / "r")


def test_a_resumed_run_is_in_tensorboard_once(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "r", [StopAt(round_=7)], tensorboard=True)
    resume(tmp_path / "r")
    found = scalars(tmp_path / "r")
    assert [step for step, _ in found.pop("round/seconds")] == list(range(1, 13))
    assert found == expected(tmp_path / "r")


def test_without_the_extra_tensorboard_is_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(FedMomError, match=r"pip install 'fedmom\[tensorboard\]'"):
        TensorBoard(tmp_path)


def test_tensorboard_has_what_a_method_reports(tmp_path):
    record = Record(1, [3], 1, 0.5, 0.1, 0.1, 8, 8, metrics={"noise/std": 0.25})
    with TensorBoard(tmp_path) as board:
        board(Event(1, record, {}, tmp_path, dict))
    assert scalars(tmp_path)["round/noise/std"] == [(1, 0.25)]


@pytest.mark.parametrize("command", ["compare", "sweep"])
def test_runs_side_by_side_have_tensorboard_files(command, tmp_path):
    more = ["--seeds=2"] if command == "compare" else ["--grid=seed=0 1"]
    invoke(command, *OPTIONS, *more, "--tensorboard", "--out=c")
    folders = [path.parent for path in tmp_path.glob("c/*/config.toml")]
    assert len(folders) == (6 if command == "compare" else 2)
    for folder in folders:
        found = scalars(folder)
        assert len(found.pop("round/seconds")) == 6
        assert found == expected(folder)


def shown(console, tmp_path, *seeds):
    return RunProgress(console, {tmp_path / str(s): prepared(seed=s) for s in seeds})


def moved(path, round_, loss=0.25, **evals):
    """The event of a round; of a run's start without a loss."""
    record = Record(round_, [3], 1, loss, 0.0, 0.1, 0, 0) if loss is not None else None
    return Event(round_, record, evals, path, dict)


def started(path, round_):
    return moved(path, round_, loss=None)


def test_runs_have_a_line_each_and_one_with_a_rate_over_what_is_left(tmp_path):
    console = Console(file=io.StringIO(), force_terminal=True, width=150)
    with shown(console, tmp_path, 0, 1) as progress:
        progress(started(tmp_path / "0", 0))
        progress(started(tmp_path / "1", 5))  # done before: no part of the bar, nor of its rate
        for round_ in range(1, 5):
            time.sleep(0.01)
            progress(moved(tmp_path / "0", round_, test={"loss": 1.0, "accuracy": 0.5}))
        progress.ended(tmp_path / "0", FedMomError("not to be run"))
    text = console.file.getvalue()
    for part in ("2 runs, rounds", "4/19", "4/12", "5/12", "rounds/s", "loss 0.250", "test acc"):
        assert part in text  # of 2 x 12, less 5
    assert "no result" not in text


def test_of_many_runs_all_rounds_together_are_shown(tmp_path):
    console = Console(file=io.StringIO(), force_terminal=True, width=150)
    with shown(console, tmp_path, *range(live_progress.MOST_SHOWN + 1)) as progress:
        progress(moved(tmp_path / "0", 1))
    assert "9 runs, rounds" in console.file.getvalue()
    assert "/12" not in console.file.getvalue()


def test_in_a_pipe_runs_have_lines_for_evaluations_and_ends(tmp_path):
    console = Console(file=io.StringIO(), width=150)
    result = run(tmp_path / "done", rounds=2)
    with shown(console, tmp_path, 0, 1) as progress:
        progress(moved(tmp_path / "0", 3))
        progress(moved(tmp_path / "0", 4, test={"loss": 1.0, "accuracy": 0.5}))
        progress.ended(tmp_path / "0", result)
        progress.ended(tmp_path / "1", FedMomError("not to be run"))
    assert console.file.getvalue().splitlines() == [
        "0 4/12  test loss 1.0000 accuracy 0.5000",
        f"1/2 0  test accuracy {result.last('test', 'accuracy'):.4f}",
        "2/2 1  no result",
    ]


def test_a_round_without_replies_is_shown_without_a_loss(tmp_path):
    """Nobody answered: there is no loss to show, and no error."""
    console = Console(file=io.StringIO(), force_terminal=True, width=150)
    record = Record(1, [3], 0, None, 0.0, 0.1, 0, 0)
    with shown(console, tmp_path, 0) as progress:
        progress(started(tmp_path / "0", 0))
        progress(Event(1, record, {}, tmp_path / "0", dict))
        progress(moved(tmp_path / "0", 2))
    text = console.file.getvalue()
    assert "2/12" in text
    assert "loss 0.250" in text
    assert "None" not in text


NUMBERS = ["loss 2.162", "test acc 0.375", "train acc 0.380", "12.5 rounds/s"]


@pytest.mark.parametrize(
    ("width", "seen"),
    [(37, 0), (38, 1), (52, 1), (53, 2), (60, 2), (80, 3), (83, 4), (120, 4), (200, 4)],
)
def test_the_line_fits_and_leaves_out_what_is_least_needed(width, seen):
    line = live_progress.fitted_line(width, "fedmom", (35, 100), "0:01:02", NUMBERS)
    assert len(line.plain) <= width
    for text in ("fedmom", "35/100", "0:01:02", *NUMBERS[:seen]):
        assert text in line.plain
    assert not any(text in line.plain for text in NUMBERS[seen:])
    assert line.plain.count("━") >= live_progress.LEAST_BAR


def test_a_long_name_is_cut():
    line = live_progress.fitted_line(
        60, "fedadam:tau=0.001,b2=0.99", (1, 100000), "5:00:00", NUMBERS
    )
    assert len(line.plain) <= 60
    assert line.plain.startswith("fedadam:tau=0.…")


def test_the_bar_grows_with_the_rounds():
    full = [
        sum(len(line.plain[a:b]) for a, b, style in line.spans if style == "bar.complete")
        for line in (live_progress.fitted_line(80, "x", (n, 10), "0:01", []) for n in (0, 5, 10))
    ]
    assert full == [0, live_progress.MOST_BAR // 2, live_progress.MOST_BAR]
