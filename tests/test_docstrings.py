"""The docstrings of public names: arguments, returns, and examples that run."""

import doctest
import importlib
import inspect
from pathlib import Path
from types import GenericAlias, ModuleType

import pytest

import fedmom
from fedmom import theory
from fedmom.core.registry import Registry

SOURCE = Path(fedmom.__file__).parent
PUBLIC = {
    name: value
    for module in (fedmom, theory)
    for name in module.__all__
    if not isinstance(value := getattr(module, name), Registry | ModuleType | GenericAlias)
}
PUBLIC |= {
    f"servers.{name}": value
    for name, value in inspect.getmembers(fedmom.servers, inspect.isfunction)
    if name in fedmom.ALGORITHMS or name == "averaged"
}
FILES = [file for file in sorted(SOURCE.rglob("*.py")) if ">>> " in file.read_text()]


def module_of(file):
    parts = file.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


@pytest.mark.parametrize("file", FILES, ids=module_of)
def test_examples_run(file):
    tests = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(module_of(file)))
    runner = doctest.DocTestRunner(verbose=False)
    printed = []
    for test in tests:
        runner.run(test, out=printed.append)
    assert not runner.failures, "".join(printed)
    assert runner.tries == file.read_text().count(">>> ")  # none is overlooked


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_have_arguments_returns_and_an_example(name):
    value = PUBLIC[name]
    value = value if callable(value) else type(value)
    text = inspect.getdoc(value)
    assert text
    assert "Examples:" in text
    if isinstance(value, type):
        expected = arguments_of_class(value)
    else:
        expected = set(inspect.signature(value).parameters)
        assert "Returns:" in text or "Yields:" in text
    documented = {line.strip().partition(":")[0].lstrip("*") for line in text.splitlines()}
    assert expected <= documented, expected - documented


METHODS = {
    f"{name}.{method}": function
    for name, value in PUBLIC.items()
    if isinstance(value, type)
    for method, function in inspect.getmembers(value, inspect.isfunction)
    if not method.startswith("_") and function.__module__.startswith("fedmom.")
    # What every runtime has is documented once, with Runtime.
    if not (name.endswith("Runtime") and name != "Runtime" and hasattr(fedmom.Runtime, method))
}


@pytest.mark.parametrize("name", METHODS)
def test_public_methods_have_arguments_and_returns(name):
    signature, text = inspect.signature(METHODS[name]), inspect.getdoc(METHODS[name])
    documented = {line.strip().partition(":")[0].lstrip("*") for line in text.splitlines()}
    assert {p for p in signature.parameters if p != "self"} <= documented
    if signature.return_annotation not in (None, "None", inspect.Signature.empty):
        assert any(word in text for word in ("Return", "Yields:"))


def arguments_of_class(value):
    """The parameters of a class, where it has any of its own."""
    if issubclass(value, Exception) or getattr(value, "_is_protocol", False):
        return set()
    return set(inspect.signature(value).parameters)
