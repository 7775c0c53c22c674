"""The process of the command line: its signals, its output and its end.

It imports next to nothing, so that a signal finds its handler while the rest is loaded.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

INTERRUPTED = 130
AGAIN_SECONDS = 0.02
_under_way: list[str] = []


@contextlib.contextmanager
def under_way(what: str) -> Iterator[None]:
    """Mark work that a signal must let end in order."""
    _under_way.append(what)
    try:
        yield
    finally:
        _under_way.remove(what)


class Signals:
    """Ctrl-C and a polite kill, both as ``KeyboardInterrupt``, where that can be raised.

    A library written in C that is being loaded cannot cope with it: JAX's ends the process, NumPy's
    prints a traceback. So a signal that comes during an import ends the process at once; if
    something is under way, it waits for the import's end. Python drops an exception that is
    raised in a finalizer or in a callback of the garbage collector (JAX has one), so it is
    raised again. ``seen`` is true after a signal, even if a library raised another error.
    """

    def __init__(self) -> None:
        self.seen = False
        self._numbers = [signal.SIGINT, signal.SIGTERM]
        self._dropped = sys.unraisablehook

    def install(self) -> None:
        """Handle the signals, except those that the parent process has turned off."""
        for number in self._numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._raise)
        sys.unraisablehook = self._raise_again

    def ignore(self) -> None:
        """Ignore signals while the process ends and prints why."""
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number in self._numbers:
            signal.signal(number, signal.SIG_IGN)
        sys.unraisablehook = self._dropped

    def _raise(self, _number: int, frame: FrameType | None) -> None:
        self.seen = True
        importing, at_work = _on_the_way(frame)
        if importing and not (at_work or _under_way):
            os.write(2, b"Stopped.\n")
            os._exit(INTERRUPTED)
        if not (importing and self._come_back()):
            raise KeyboardInterrupt

    def _raise_again(self, dropped: Any) -> None:
        # Not at once: that would be in the same callback.
        if dropped.exc_type is not KeyboardInterrupt or not self._come_back():
            self._dropped(dropped)

    def _come_back(self) -> bool:
        """Ask for another signal soon, where the system has a timer for that."""
        if not hasattr(signal, "setitimer"):
            return False
        signal.signal(signal.SIGALRM, self._raise)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
        return True


def _on_the_way(frame: FrameType | None) -> tuple[bool, bool]:
    """Return whether a module is being loaded, and whether our own code is at work."""
    importing = at_work = False
    while frame is not None:
        importing |= frame.f_code.co_filename.startswith("<frozen importlib")
        name = str(frame.f_globals.get("__name__"))
        ours = name.startswith("fedmom.") and not name.startswith("fedmom.cli")
        at_work |= ours and frame.f_code.co_name != "<module>"
        frame = frame.f_back
    return importing, at_work


def main() -> None:
    """Run the command line; print what ends it in a sentence, without a traceback.

    Exit codes: 0; 2 for a mistake of the user's or a fault of the machine (a full disk); 130
    after Ctrl-C or a polite kill; 1 for a bug, whose traceback is kept in a file.
    """
    signals = Signals()
    try:
        signals.install()
        open_closed_streams()
        accept_all_letters(sys.stdout)
        _run()
        sys.stdout.flush()
    except SystemExit:
        raise
    except BaseException as error:
        signals.ignore()
        from fedmom.cli.exit_messages import told

        leave(told(error, interrupted=signals.seen))


def _run() -> None:
    from fedmom.core.compilation import prepare_process

    prepare_process()
    from fedmom.cli.main import cli

    cli(standalone_mode=False)


def open_closed_streams() -> None:
    """Let standard streams that the caller has closed (``>&-``) lead nowhere.

    Otherwise the next file that is opened would be one of them, and take what is printed.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the first free number, which is this one
            os.set_inheritable(opened, True)
            setattr(sys, name, os.fdopen(opened, "r" if name == "stdin" else "w", closefd=False))


def accept_all_letters(stream: Any) -> None:
    """Make a text stream print ? for what it cannot encode (γ in ASCII), instead of failing."""
    try:
        "γ\udcff".encode(stream.encoding, stream.errors)
    except UnicodeEncodeError:
        stream.reconfigure(errors="replace")
    except (AttributeError, TypeError):  # no stream, or one of somebody else's making
        return


def leave(code: int) -> NoReturn:
    """End the process, with all that was printed.

    Where JAX is loaded, threads may still be compiling. Python cannot stop them: it tears down
    what they use, and the process dies of a segmentation fault instead of its exit code. So it
    ends at once. Files are closed by then, and locks end with the process.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            continue
    if "jaxlib" in sys.modules:
        os._exit(code)
    sys.exit(code)
