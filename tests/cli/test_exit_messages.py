"""Whatever ends a command: a sentence, an exit code, and no traceback on the screen."""

import errno
import json
import lzma
import os
import signal
import subprocess
import sys
import textwrap
import zipfile

import click
import pytest

import fedmom as package
from fedmom.cli import exit_messages, start
from fedmom.cli import main as front
from fedmom.core.errors import FedMomError
from fedmom.core.files import write_atomic
from tests.cli.command import main, words

LONG = "x" * 300


def fedmom(*args, **environment):
    """Run the command line in a process of its own; return its code, output and errors."""
    done = subprocess.run(
        [sys.executable, "-m", "fedmom", *map(str, args)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=120,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def raising(monkeypatch, error):
    def broken(*_, **__):
        raise error

    monkeypatch.setattr(front.cli, "main", broken)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_ctrl_c_and_an_abort_end_with_130_and_a_word(monkeypatch, capsys, error):
    raising(monkeypatch, error)
    assert main(monkeypatch, capsys, "list") == (130, "", "Stopped.\n")


FAULTS = [
    (OSError(errno.ENOSPC, "No space left on device", "runs/a"), "runs/a: No space left on"),
    (OSError(errno.ENOSPC, "No space left on device"), "The system refused: No space left"),
    (PermissionError(errno.EACCES, "Permission denied", b"a"), "a: Permission denied. Choose"),
    (OSError(errno.EROFS, "Read-only file system", "x"), "x: Read-only file system. Choose"),
    (OSError("odd"), "The system refused: odd."),
    (MemoryError(), "There is not enough memory. Use fewer samples"),
    (MemoryError("Unable to allocate 9 TiB"), "not enough memory (Unable to allocate 9 TiB)"),
    (RuntimeError("RESOURCE_EXHAUSTED: Out of memory\nmore"), "Out of memory). Use"),
    (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "is not text in UTF-8"),
    (zipfile.BadZipFile("bad"), "A file is damaged: bad."),
    (lzma.LZMAError("bad"), "A file is damaged: bad."),
    (json.JSONDecodeError("Expecting value", "", 0), "A file is damaged: Expecting value"),
]


@pytest.mark.parametrize(("error", "says"), FAULTS, ids=lambda value: repr(value)[:50])
def test_faults_of_the_machine_and_of_files_are_a_sentence(monkeypatch, capsys, error, says):
    raising(monkeypatch, error)
    code, out, err = main(monkeypatch, capsys, "list")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert says in words(err)
    assert "Traceback" not in err


def test_a_bug_is_a_sentence_and_its_traceback_is_kept(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("FEDMOM_CACHE", str(tmp_path / "cache"))
    raising(monkeypatch, ZeroDivisionError("division by [zero]"))
    code, out, err = main(monkeypatch, capsys, "list")
    assert (code, out) == (1, "")
    (kept,) = (tmp_path / "cache" / "errors").iterdir()
    expected = f"error: This is a bug in fedmom (ZeroDivisionError: division by [zero]). {kept}"
    assert words(err).replace("The details are in ", "").startswith(expected)
    text = kept.read_text()
    assert "Traceback (most recent call last)" in text
    assert "fedmom list" in text
    assert "jax" in text


def test_a_bug_where_nothing_can_be_kept_is_on_the_screen(monkeypatch, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDMOM_CACHE", str(tmp_path / "file" / "x"))
    raising(monkeypatch, ZeroDivisionError())
    code, _, err = main(monkeypatch, capsys, "list")
    assert code == 1
    assert "This is a bug in fedmom (ZeroDivisionError)." in err
    assert "Traceback" in err


def test_a_reader_that_has_gone_is_no_news(monkeypatch, capsys):
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    raising(monkeypatch, BrokenPipeError(errno.EPIPE, "Broken pipe"))
    assert main(monkeypatch, capsys, "list") == (1, "", "")


PLACES = [
    (["run", "--data=synthetic:clients=3", "--rounds=1", "--out=/proc/x"], "/proc/x: No such file"),
    (["run", "--data=synthetic:clients=3", "--rounds=1", "--out=file/x"], "A part of this path is"),
    (["run", "--data=synthetic:clients=3", "--rounds=1", f"--out={LONG}"], "Choose a shorter name"),
    (["run", f"--data={LONG}"], "xxx: File name too long. Choose a shorter name."),
    (["run", f"--data=./{LONG}/x.npz"], "xxx/x.npz: File name too long. Choose a shorter name."),
    (["run", "--data=~nouser/x"], "--data '~nouser/x': there is no such user on this machine"),
    (["data", "check", "~nouser/x"], "there is no such user on this machine"),
    (["data", "prepare", "synthetic:clients=3", "--out=file/x"], "file"),
    (["data", "show", "synthetic:clients=3", "--out=/proc/x"], "/proc/x: No such file"),
    (["report", "nothing", f"--out={LONG}"], "Choose a shorter name"),
    (["watch", LONG], "Choose a shorter name"),
    (["resume", LONG], "Choose a shorter name"),
    (["run", f"--config={LONG}"], "Choose a shorter name"),
    (["theory", "bounds", f"--estimates={LONG}"], "Choose a shorter name"),
]


@pytest.mark.parametrize(("args", "says"), PLACES, ids=lambda value: str(value)[:60])
def test_places_that_cannot_be_used_are_a_sentence(monkeypatch, capsys, tmp_path, args, says):
    (tmp_path / "file").write_text("mine")
    code, _, err = main(monkeypatch, capsys, *args)
    assert code == 2, err
    assert says in words(err)
    assert "Traceback" not in err
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


def test_a_cache_of_nobody_is_a_sentence():
    code, _, err = fedmom("data", "list", FEDMOM_CACHE="~nouser/x")
    assert code == 2
    assert "FEDMOM_CACHE '~nouser/x': there is no such user" in err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")  # noqa: PTH110
def test_output_to_a_full_disk_is_a_sentence():
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, "-m", "fedmom", "list"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2
    assert done.stderr == "error: The system refused: No space left on device. Free some space, then resume.\n"  # fmt: skip  # noqa: E501


def test_a_file_on_a_full_disk_is_named_and_not_left_in_halves(monkeypatch, tmp_path):
    (tmp_path / "a").write_bytes(b"old")

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FedMomError, match=f"^{tmp_path / 'a'}: No space left"):
        write_atomic(tmp_path / "a", b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a", b"old")]


@pytest.mark.parametrize(
    "args", [["theory", "counterexample"], ["run", "--help"], ["list"]], ids=" ".join
)
def test_a_terminal_of_few_letters_gets_what_it_can_show(args):
    code, out, err = fedmom(*args, PYTHONIOENCODING="ascii", LC_ALL="C")
    assert (code, err) == (0, "")
    assert out


def test_names_that_are_no_text_can_be_printed(tmp_path):
    name = os.fsdecode(b"odd\xff")
    code, _, err = fedmom("report", tmp_path / name)
    assert code == 2
    assert "There is no folder" in err


SWALLOWED = """
    import gc, signal, sys, time
    from fedmom.cli.start import Signals

    def callback(*_):
        if armed:
            armed.clear()
            signal.raise_signal(signal.{signal})

    armed = [True]
    signals = Signals()
    signals.install()
    gc.callbacks.append(callback)
    try:
        gc.collect()
        time.sleep(10)
    except KeyboardInterrupt:
        print("stopped", signals.seen)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_in_a_callback_of_the_garbage_collector_is_not_lost(name):
    """JAX has such a callback, and Python drops what is raised in one."""
    code = textwrap.dedent(SWALLOWED).replace("{signal}", name)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("stopped True\n", "")


IMPORTING = """
    import contextlib, time
    from fedmom.cli import start

    start.Signals().install()
    try:
        with start.under_way("a run") if {held} else contextlib.nullcontext():
            import loaded
        time.sleep(10)
    except KeyboardInterrupt:
        print("stopped", loaded.WHOLE)
"""
LOADED = """
import signal

signal.raise_signal(signal.SIGTERM)
WHOLE = True
"""


@pytest.mark.parametrize(
    ("held", "ends"),
    [(False, (130, "", "Stopped.\n")), (True, (0, "stopped True\n", ""))],
    ids=["nothing under way", "a run under way"],
)
def test_a_module_that_is_loaded_never_sees_the_signal(tmp_path, held, ends):
    """Raised in one of JAX's or NumPy's, it ended in an abort or printed a traceback."""
    (tmp_path / "loaded.py").write_text(LOADED)
    (tmp_path / "main.py").write_text(textwrap.dedent(IMPORTING).format(held=held))
    done = subprocess.run([sys.executable, "main.py"], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == ends


def test_an_error_that_a_library_makes_of_ctrl_c_is_still_ctrl_c(monkeypatch, capsys):
    def broken(*_, **__):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("numpy could not be loaded") from None

    monkeypatch.setattr(front.cli, "main", broken)
    assert main(monkeypatch, capsys, "list") == (130, "", "Stopped.\n")


def test_signals_that_were_turned_off_stay_so():
    before = signal.getsignal(signal.SIGINT)
    hook = sys.unraisablehook
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for `fedmom run &`
        term = signal.getsignal(signal.SIGTERM)
        start.Signals().install()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, term)
        sys.unraisablehook = hook


def test_long_paths_are_shown_in_part():
    text = exit_messages.sentence(OSError(errno.ENAMETOOLONG, "File name too long", "y" * 5000))
    assert len(text) < 300
    assert text.startswith("yyy")


@pytest.mark.skipif(os.name != "posix", reason="streams as POSIX shells close them")
@pytest.mark.parametrize("streams", [">&-", ">&- 2>&- <&-"])
def test_closed_streams_end_no_run(tmp_path, streams):
    """And no file of the run is taken for one of them."""
    options = "--data synthetic:clients=4 --lr 0.01 --rounds 1 --out"
    call = f"{sys.executable} -m fedmom run {options} {tmp_path / 'r'} {streams}"
    done = subprocess.run(["bash", "-c", call], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    call = f"{sys.executable} -m fedmom report {tmp_path / 'nothing'} {streams}"
    assert subprocess.run(["bash", "-c", call], capture_output=True).returncode == 2
    assert package.load(tmp_path / "r").status == "finished"
