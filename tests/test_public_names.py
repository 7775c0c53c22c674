"""The names of the package: all of them load, and type checkers are told of the same ones."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fedmom


@pytest.mark.parametrize("name", fedmom.__all__)
def test_every_public_name_loads(name):
    assert getattr(fedmom, name) is not None
    assert name in dir(fedmom)


def for_type_checkers():
    """The names in the block that only type checkers read, with where they come from."""
    tree = ast.parse(Path(fedmom.__file__).read_text(encoding="utf-8"))
    (block,) = (
        node.body
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in block
        for alias in node.names
    }


def test_type_checkers_are_told_of_the_same_names():
    assert sorted(for_type_checkers()) == sorted(fedmom.__all__)


def test_type_checkers_are_told_where_names_come_from():
    for name, (module, inside) in for_type_checkers().items():
        where = f"{module}.{inside}"
        if name in fedmom._MODULES:
            assert where == f"fedmom.{fedmom._MODULES[name]}"
        else:
            assert where == "fedmom.{}.{}".format(*fedmom._NAMES[name])


def test_no_name_is_there_twice():
    assert len(set(fedmom.__all__)) == len(fedmom.__all__)


def test_no_two_classes_have_one_name():
    """Whoever searches for a class finds one."""
    homes = {}
    for path in sorted(Path(fedmom.__file__).parent.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(path.name)
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_importing_the_package_loads_nothing_else():
    code = "import sys, fedmom; print(sorted(n for n in sys.modules if n.startswith('fedmom.')))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n"


def test_the_version_is_that_of_the_installed_package():
    from importlib.metadata import version

    assert fedmom.__version__ == version("fedmom")


def test_a_name_that_there_is_not_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'fedmomm'"):
        fedmom.fedmomm  # noqa: B018
    assert not hasattr(fedmom, "cohort")
