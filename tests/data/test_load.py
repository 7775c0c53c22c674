"""Datasets by name and by path, and what importing them costs."""

import subprocess
import sys

import pytest

from fedmom.core.errors import FedMomError
from fedmom.data import DATASETS, FORMATS, load
from fedmom.data.save import save_store
from tests.conftest import population


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("shakespear", "Did you mean 'shakespeare'"),
        ("shakespeare:roles=100000", "roles=100000 is too many; there are"),
        ("shakespeare:samples=300", "leaves no role a test sample"),
        ("shakespeare:roles=-1", "roles=-1 is not between 0 and"),
        ("shakespeare:role=5", "no option 'role'"),
        ("synthetic:alpha=-1", r"alpha=-1 is not between 0 and 1e\+06"),
        ("synthetic:alpha=nan", r"alpha=nan is not between 0 and"),
        ("synthetic:alpha=inf", r"alpha=inf is not between 0 and"),
        ("synthetic:beta=1e300", r"beta=1e300 is not between 0 and"),
        (f"synthetic:clients={10**30}", "is not between 1 and 1,000,000"),
        ("synthetic:clients=0", "clients=0 is not between 1 and"),
        ("nowhere/data.npz", "There is no nowhere"),
    ],
)
def test_mistakes_are_sentences(spec, says):
    with pytest.raises(FedMomError, match=says):
        load(spec)


def test_an_option_may_have_a_decimal_point():
    # "synthetic:alpha=0.5" looks like a file with the suffix ".5".
    assert load("synthetic:alpha=0.5,clients=4").clients == 4


def test_a_registered_dataset_is_loaded_with_its_options(monkeypatch):
    monkeypatch.setattr(DATASETS, "_rows", dict(DATASETS._rows))

    def three(*, scale: float = 1.0):
        """Three clients."""
        return population([int(scale), 2, 3])

    DATASETS.register("three", three)
    assert load("three:scale=5.0").train.size.tolist() == [5, 2, 3]


def test_a_prepared_dataset_goes_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMOM_CACHE", str(tmp_path))
    with pytest.raises(FedMomError, match="femnist is not prepared yet"):
        load("femnist")
    save_store(population([2, 3]), tmp_path / "femnist", {})
    assert load("femnist").clients == 2


def test_a_path_that_is_no_dataset_is_refused_with_the_formats(tmp_path):
    (tmp_path / "notes.md").write_text("nothing")
    with pytest.raises(FedMomError, match="no dataset that is read here") as error:
        load(str(tmp_path / "notes.md"))
    assert all(form in str(error.value) for form in FORMATS)


def test_importing_and_listing_datasets_and_models_loads_nothing_slow():
    script = """
import sys
import fedmom.data, fedmom.models, fedmom.data.partition
for registry in (fedmom.data.DATASETS, fedmom.models.MODELS, fedmom.data.partition.PARTITIONS):
    assert len(list(registry.described())) == len(registry)
slow = {"jax", "matplotlib", "rich", "PIL", "pydantic"} & sys.modules.keys()
assert not slow, slow
"""
    subprocess.run([sys.executable, "-c", script], check=True)
