"""The command line, called in this process: for what it prints, and for what it refuses."""

import signal
import sys

import pytest
from click.testing import CliRunner

from fedmom.cli import main as front
from fedmom.cli import output, start
from fedmom.core.errors import FedMomError


def invoke(*args):
    """Run a command; return what it prints. Exceptions pass."""
    result = CliRunner().invoke(front.cli, list(map(str, args)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*args):
    """Run a command that must fail; return its sentence."""
    with pytest.raises(FedMomError) as caught:
        front.cli(list(map(str, args)), standalone_mode=False)
    return str(caught.value)


def words(text):
    """A text as one line: where it was broken does not matter."""
    return " ".join(text.split())


def main(monkeypatch, capsys, *args):
    """Run the program itself; return its exit code, standard output and standard error."""
    monkeypatch.setattr(sys, "argv", ["fedmom", *map(str, args)])
    monkeypatch.setenv("JAX_CPU_ENABLE_ASYNC_DISPATCH", "false")  # as it does itself
    monkeypatch.setattr(start, "leave", sys.exit)  # this process goes on
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # put back afterwards
    monkeypatch.setattr(output, "_told", [])
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    code = 0
    try:
        start.main()
    except SystemExit as error:
        code = error.code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    out, err = capsys.readouterr()
    return code, out, err
