"""Names with options: how they are read, refused and listed."""

import functools
import inspect
import subprocess
import sys
import textwrap
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmom
from fedmom.core import row_texts
from fedmom.core.registry import Registry, options, options_of, pick, split
from fedmom.data.partition import PARTITIONS

TABLES = {
    table.what: table
    for table in (
        *(fedmom.ALGORITHMS, fedmom.MODELS, fedmom.DATASETS, fedmom.SOLVERS, fedmom.SCHEDULES),
        *(fedmom.RULES, fedmom.STAGES, fedmom.SAMPLERS, fedmom.PACES, fedmom.RUNTIMES),
        fedmom.WORLDS,
        PARTITIONS,
    )
}
ROWS = [(what, name) for what, table in TABLES.items() for name in table]


def every_kind(
    first,
    *,
    whole: int = 3,
    real: float = 0.5,
    flag: bool = False,
    word: str = "yes",
    choice: Literal["a", "b"] = "a",
    maybe: int | None = None,
    bare=2.5,
    silent=None,
):
    """An option of every kind.

    More that is not shown.
    """
    return first, whole, real, flag, word, choice, maybe, bare, silent


def needing(*, size: int, side: float = 1.0):
    """Two options, one of them without a default."""
    return size, side


def table(**rows):
    made = Registry("thing", {})
    for name, function in rows.items():
        made.register(name, function)
    return made


NAME = st.text("abcdefghij_0123456789", min_size=1, max_size=8)
VALUE = st.text("abcdefghij0123456789.-+/ ", max_size=8).map(str.strip)


class TestSpecs:
    """``name:key=value,key=value``."""

    @given(name=NAME, given=st.dictionaries(NAME, VALUE, max_size=4), spaces=st.booleans())
    def test_a_spec_that_is_written_is_read_again(self, name, given, spaces):
        space = " " if spaces else ""
        rest = f"{space},{space}".join(f"{k}{space}={space}{v}" for k, v in given.items())
        assert split(f"{space}{name}{space}:{space}{rest}") == (name, given)
        if not given:
            assert split(name) == (name, {})

    def test_a_value_may_have_colons_and_equals_in_it(self):
        assert split("file:path=C:/x=1") == ("file", {"path": "C:/x=1"})

    @pytest.mark.parametrize("spec", ["a:b", "a:b=1,c", "a:1,2"])
    def test_what_is_no_option_is_refused(self, spec):
        with pytest.raises(fedmom.FedMomError, match=r"is not an option\. Write name:key=value"):
            split(spec)

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("whole=7", {"whole": 7}),
            ("whole=-7", {"whole": -7}),
            ("real=7", {"real": 7.0}),
            ("real=1e-3", {"real": 0.001}),
            ("real=1e38", {"real": 1e38}),
            ("flag=true,word=true", {"flag": True, "word": "true"}),
            ("flag=0", {"flag": False}),
            ("choice=b", {"choice": "b"}),
            ("maybe=4", {"maybe": 4}),
            ("bare=4", {"bare": 4.0}),
            ("silent=4", {"silent": "4"}),
        ],
    )
    def test_options_have_the_types_of_the_function(self, text, value):
        found = options(every_kind, f"every:{text}")
        assert found == value
        assert [type(v) for v in found.values()] == [type(v) for v in value.values()]

    @pytest.mark.parametrize(
        ("spec", "says"),
        [
            ("every:whole=2.5", r"^every: whole='2.5' is not of type int\.$"),
            ("every:whole=many", r"^every: whole='many' is not of type int\.$"),
            ("every:real=", r"^every: real='' is not of type float\.$"),
            ("every:flag=maybe", r"^every: flag='maybe' is not of type bool\.$"),
            ("every:choice=c", r"^every: choice='c' is not of type Literal\['a', 'b'\]\.$"),
            ("every:maybe=x", r"^every: maybe='x' is not of type int \| None\.$"),
            ("every:bare=x", r"^every: bare='x' is not of type float\.$"),
            ("every:hole=1", r"^every has no option 'hole'\. Its options: whole, real, flag,"),
            ("every:first=1", r"^every has no option 'first'\."),
            ("needing:side=2", r"^needing needs size\. Write needing:size=\.\.\.\.$"),
            ("thing", r"^There is no thing 'thing'\. Choose one of: every, needing\.$"),
            ("evry", r"^There is no thing 'evry'\. Did you mean 'every'\? Choose one of: "),
            ("", r"^There is no thing ''\. Choose one of: every, needing\.$"),
        ],
    )
    def test_what_cannot_be_used_is_refused_in_a_sentence(self, spec, says):
        with pytest.raises(fedmom.FedMomError, match=says):
            table(every=every_kind, needing=needing).build(spec, 1)

    def test_what_is_missing_is_said_for_all_options(self):
        def two(*, a: int, b: int):
            return a, b

        with pytest.raises(
            fedmom.FedMomError, match=r"two needs a, b\. Write two:a=\.\.\.,b=\.\.\."
        ):
            options(two, "two")

    def test_defaults_count_where_the_spec_says_nothing(self):
        things = table(every=every_kind, needing=needing)
        built = things.build("every:whole=9", "one", whole=1, real=2.0, unknown=5)
        assert built[:3] == ("one", 9, 2.0)

    def test_a_partial_has_the_options_that_its_function_has(self):
        def solver(lr, *, momentum: float = 0.0):
            return lr, momentum

        assert options(functools.partial(solver, 0.1), "a:momentum=0.5") == {"momentum": 0.5}

    def test_annotations_that_only_type_checkers_know_do_no_harm(self):
        def shy(*, size: int = 3) -> "OnlyForTypeCheckers":  # noqa: F821
            return size

        assert options(shy, "shy:size=4") == {"size": 4}
        with pytest.raises(fedmom.FedMomError, match="size='x' is not of type int"):
            options(shy, "shy:size=x")


class TestRows:
    """Functions by name."""

    def test_a_registered_function_is_found_and_built(self):
        things = table(needing=needing)
        assert list(things) == ["needing"]
        assert "needing" in things
        assert len(things) == 1
        assert things["needing"] is things.find("needing:size=1") is needing
        assert things.build("needing:size=2,side=3") == (2, 3.0)
        assert list(things.described()) == [
            ("needing:size=...,side=1.0", "Two options, one of them without a default.")
        ]

    def test_a_name_is_given_once(self):
        things = table(needing=needing)
        things.register("needing", needing)  # the same again is no clash
        with pytest.raises(fedmom.FedMomError, match=r"^The thing 'needing' already exists\."):
            things.register("needing", every_kind)

    def test_a_built_in_name_is_not_overwritten(self):
        with pytest.raises(fedmom.FedMomError, match="The algorithm 'fedmom' already exists"):
            fedmom.ALGORITHMS.register("fedmom", every_kind)

    def test_a_module_is_imported_when_its_function_is_asked_for(self, tmp_path, monkeypatch):
        (tmp_path / "lazy_row.py").write_text("def f(*, size: int = 1):\n    'Small.'\n")
        monkeypatch.syspath_prepend(tmp_path)
        things = Registry("thing", {"f": "lazy_row:f"})
        assert list(things) == ["f"]
        assert list(things.described()) == [("f:size=1", "Small.")]
        assert "lazy_row" not in sys.modules
        assert things["f"].__doc__ == "Small."
        assert "lazy_row" in sys.modules
        del sys.modules["lazy_row"]

    def test_pick_takes_from_any_table(self):
        assert pick({"a": 1}, "a", "thing") == 1
        with pytest.raises(fedmom.FedMomError, match=r"There is no thing 'b'\. Choose one of: a\."):
            pick({"a": 1}, "b", "thing")


class TestTables:
    """The tables of the package."""

    @pytest.mark.parametrize(("what", "name"), ROWS, ids=lambda pair: str(pair))
    def test_what_is_listed_is_read_from_the_source_as_it_is(self, what, name):
        """A row is listed without loading it; loaded, it says the same."""
        row = TABLES[what]._rows[name]
        if not isinstance(row, str):  # loaded already: as it was written in the table
            row = f"{row.__module__}:{row.__name__}"
        given, about = row_texts.read(row)
        function = TABLES[what][name]
        signature = inspect.signature(function).parameters.values()
        expected = {
            p.name: "..." if p.default is p.empty else str(p.default)
            for p in signature
            if p.kind is p.KEYWORD_ONLY
        }
        assert given == expected
        assert about == inspect.getdoc(function).splitlines()[0]
        assert about.endswith(".")

    @pytest.mark.parametrize(("what", "name"), ROWS, ids=lambda pair: str(pair))
    def test_every_option_has_a_type_that_takes_its_default(self, what, name):
        """So that what `fedmom list` shows can be written on the command line."""
        function = TABLES[what][name]
        shown = [
            f"{key}={p.default}"
            for key, p in options_of(function).items()
            if p.default not in (None, p.empty)
        ]
        needed = [k for k, p in options_of(function).items() if p.default is p.empty]
        read = options(function, f"{name}:{','.join(shown + [f'{k}=1' for k in needed])}")
        for key, p in options_of(function).items():
            if p.default not in (None, p.empty):
                assert read[key] == p.default
                assert type(read[key]) is type(p.default)

    def test_listing_loads_neither_jax_nor_the_rows(self):
        code = """
            import sys
            from fedmom.algorithms import ALGORITHMS
            from fedmom.models import MODELS
            from fedmom.runtimes import RUNTIMES
            from fedmom.training import PACES, SAMPLERS

            for table in (ALGORITHMS, MODELS, RUNTIMES, PACES, SAMPLERS):
                assert list(table.described())
            assert "jax" not in sys.modules, "JAX was imported"
            assert "optax" not in sys.modules, "optax was imported"
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)

    @pytest.mark.parametrize(
        ("table", "function", "says"),
        [
            (fedmom.RULES, lambda: 0, r"rule mine is the function <lambda>\. .* of \(weighting\)"),
            (fedmom.STAGES, lambda norm: norm, r"stage mine is .* It must be a function of \(\)"),
            (fedmom.MODELS, lambda: 0, r"It must be a function of \(features\)"),
            (fedmom.SOLVERS, lambda: 0, r"It must be a function of \(lr\)"),
            (fedmom.SAMPLERS, lambda seed: seed, r"of \(seed, round, size, samples\)"),
            (fedmom.RULES, 5, r"rule mine is 5\. It must be a function of \(weighting\)"),
        ],
    )
    def test_what_cannot_be_called_as_a_row_is_refused(self, table, function, says):
        with pytest.raises(fedmom.FedMomError, match=says):
            table.register("mine", function)
        assert "mine" not in table

    @pytest.mark.parametrize("name", ["", "a b", "a:b", "a,b", "a+b", "a@b", "a=b", 5, "9"])
    def test_a_name_that_cannot_be_written_is_refused(self, name):
        with pytest.raises(fedmom.FedMomError, match="cannot be used"):
            fedmom.RULES.register(name, lambda weighting: weighting)

    def test_fedprox_is_found_where_it_is(self):
        with pytest.raises(fedmom.FedMomError, match=r"no algorithm 'FedProx'.* --prox 0\.1"):
            fedmom.ALGORITHMS.check("FedProx:mu=1")
