"""Commands write below the folder they are called in: one of their own. And Ctrl-C in a round."""

import pytest

from tests.cli.command import main, words
from tests.experiments.small import StopAt


@pytest.fixture(autouse=True)
def _in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def stopped(monkeypatch, capsys):
    """A function that runs a command, presses Ctrl-C in a round and returns standard error."""
    from fedmom.api.live_progress import RunProgress

    def run(round_, *args):
        with monkeypatch.context() as patch:
            patch.setattr(RunProgress, "__call__", lambda _, event: StopAt(round_)(event))
            code, _, err = main(patch, capsys, *args)
        assert code == 130
        return words(err)

    return run
