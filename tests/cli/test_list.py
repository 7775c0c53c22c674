"""`fedmom list`: everything that has a name, with its options, as it is."""

import inspect

import pytest

from fedmom.algorithms import ALGORITHMS, ATTACKS, RULES, SCHEDULES, SOLVERS, STAGES
from fedmom.cli.output import OUT
from fedmom.core.registry import options_of
from fedmom.data import DATASETS
from fedmom.models import ADAPTATIONS, MODELS
from fedmom.runtimes import RUNTIMES
from fedmom.training import PACES, SAMPLERS
from fedmom.world import WORLDS
from tests.cli.command import invoke

TABLES = (
    *(ALGORITHMS, MODELS, ADAPTATIONS, DATASETS, SOLVERS, SCHEDULES),
    *(RULES, STAGES, ATTACKS, SAMPLERS, PACES, WORLDS, RUNTIMES),
)


def test_the_list_names_everything_with_options_and_what_it_is(monkeypatch):
    monkeypatch.setattr(OUT, "_width", 400)
    lines = [" ".join(line.split()) for line in invoke("list").splitlines()]
    expected = []
    for table in TABLES:
        for name in table:
            given = ", ".join(
                f"{key}={'...' if p.default is p.empty else p.default}"
                for key, p in options_of(table[name]).items()
            )
            about = inspect.cleandoc(table[name].__doc__).partition("\n")[0].replace("``", "")
            expected.append(f"{table.what} {name}{':' if given else ''}{given} {about}")
    assert lines[1:] == [" ".join(line.split()) for line in expected]
    assert len(lines) > 35


def test_a_narrow_terminal_cuts_nothing(monkeypatch):
    monkeypatch.setattr(OUT, "_width", 60)
    text = invoke("list")
    assert max(map(len, text.splitlines())) <= 60
    assert "…" not in text
    for name in ("fedmom_zero_start", "char_lstm", "over_selected", "trimmed_mean"):
        assert name in text


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.what)
def test_the_list_is_read_from_the_source_as_python_would(table):
    """Without importing it: options and lines must be those of the functions."""
    for (spec, about), name in zip(table.described(), table, strict=True):
        assert spec.partition(":")[0] == name
        assert about
        known = options_of(table[name])
        given = dict(part.split("=") for part in filter(None, spec.partition(":")[2].split(",")))
        assert given.keys() == known.keys()
