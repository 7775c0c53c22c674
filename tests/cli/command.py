"""The command line, called in this process: for what it prints, and for what it refuses."""

import html
import re
import signal
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedmom.cli import main as front
from fedmom.cli import start
from fedmom.core.errors import FedMomError

SMALL = ["--data=synthetic:clients=6", "--rounds=6", "--eval-every=3", "--lr=0.001"]
TOO_LARGE = ["--data=synthetic:clients=6", "--rounds=6", "--eval-every=3", "--lr=1e30"]


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


def page(path):
    """The words of a page, as a reader sees them."""
    text = Path(path).read_text(encoding="utf-8")
    body = text[text.index("<body") :]
    body = re.sub(r"(?s)<script.*?</script>|<style.*?</style>", " ", body)
    return words(html.unescape(re.sub(r"<[^>]+>", " ", body)))


def table(text):
    """The rows of the table that a command prints, as lists of words, by the run's name."""
    lines = [line.split() for line in text.splitlines()]
    start = next(i for i, line in enumerate(lines) if line[:3] == ["run", "loss", "accuracy"])
    return {line[0]: line for line in lines[start + 1 :] if line}
