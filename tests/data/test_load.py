"""Datasets by name and by path, and what importing them costs."""

import subprocess
import sys

import numpy as np
import pytest

from fedmom.core.errors import FedMomError
from fedmom.data import DATASETS, FORMATS, load, locate, path_of
from fedmom.data.store.writer import save_store
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
        ("nowhere.csv:client=u,label=y", r"There is no nowhere\.csv\. "),
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
    with pytest.raises(FedMomError, match="is not a known dataset") as error:
        load(str(tmp_path / "notes.md"))
    assert all(form in str(error.value) for form in FORMATS)


@pytest.fixture
def own(tmp_path):
    """An .npz file whose name has what separates options."""
    path = tmp_path / "a:b,c=1.npz"
    np.savez(path, x=np.arange(40.0).reshape(20, 2), y=np.arange(20) % 2)
    return path


def test_a_path_may_have_options_and_colons(own, monkeypatch):
    spec = "test_fraction=0.25,seed=3,partition=dirichlet:alpha=0.5,clients=4"
    data = load(f"{own}:{spec}")
    assert (data.clients, int(data.test.size.sum())) == (4, 4)
    monkeypatch.chdir(own.parent)
    assert locate(f"{own.name}:{spec}") == f"{own}:{spec}"
    assert locate(f"{own}") == str(own)
    assert path_of(f"{own.name}:{spec}") == (own, spec)
    assert locate("synthetic:clients=3") == "synthetic:clients=3"
    assert path_of("synthetic:clients=3") is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("", "no client IDs given"),
        ("tests=0.5", "no option 'tests'. Its options: test_fraction, seed, task, partition"),
        ("test_fraction=half", "test_fraction='half' is not of type"),
        ("seed=-1,partition=iid:clients=2", "seed=-1 is not between 0 and"),
        ("task=ranking,partition=iid:clients=2", "task='ranking' is not of type"),
        ("partition=iid:clients=2,seed=1", "seed= comes after partition=.*Write seed= before it"),
        ("partition=iid:parts=2", "iid has no option 'parts'"),
        ("partition=iod", "Did you mean 'iid'"),
        ("half", "'half' in .* is not an option"),
    ],
)
def test_options_of_a_path_are_checked(own, options, says):
    with pytest.raises(FedMomError, match=says):
        load(f"{own}:{options}" if options else str(own))


def test_a_store_has_no_options(tmp_path):
    save_store(population([2, 3]), tmp_path / "s", {})
    with pytest.raises(FedMomError, match=r"s has no option 'test_fraction'\. Its options: none"):
        load(f"{tmp_path}/s:test_fraction=0.5")
    with pytest.raises(FedMomError, match="s has clients already, and takes no partition="):
        load(f"{tmp_path}/s:partition=iid:clients=2")


def test_long_options_are_no_path_that_is_too_long(own):
    columns = "+".join(f"column{k}" for k in range(1000))
    with pytest.raises(FedMomError, match="no option 'features'"):
        load(f"{own}:features={columns}")


def test_importing_and_listing_datasets_and_models_loads_nothing_slow():
    script = """
import sys
import fedmom.data, fedmom.models, fedmom.data.partition
for registry in (fedmom.data.DATASETS, fedmom.models.MODELS, fedmom.data.partition.PARTITIONS):
    assert len(list(registry.described())) == len(registry)
slow = {"jax", "matplotlib", "rich", "PIL", "pydantic", "pyarrow", "pandas", "datasets"}
slow &= sys.modules.keys()
assert not slow, slow
"""
    subprocess.run([sys.executable, "-c", script], check=True)
