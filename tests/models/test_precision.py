"""bfloat16: what is rounded, and what keeps 32 bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmom
from fedmom.models import precision
from fedmom.models.variables import Whole
from tests.conftest import population
from tests.experiments import small
from tests.models import nets


def rounded(x):
    return np.asarray(jnp.asarray(x, jnp.bfloat16), np.float32)


def test_products_are_of_rounded_numbers_and_gradients_have_32_bits():
    model = fedmom.build_model("logreg", fedmom.Features("vector", (6,), 4))
    half = fedmom.bfloat16(model)
    rng = np.random.default_rng(0)
    w, b, x = (rng.normal(size=s).astype(np.float32) for s in ((6, 4), (4,), (5, 6)))
    found = half.apply([{"w": w, "b": b}], x, None)
    exact = rounded(x).astype(np.float64) @ rounded(w)
    np.testing.assert_allclose(found, exact + rounded(b), rtol=2**-7, atol=2**-6)
    assert found.dtype == jnp.float32
    assert np.abs(found - model.apply([{"w": w, "b": b}], x, None)).max() > 1e-4
    gradient = jax.grad(lambda p: half.losses(half.apply(p, x, None), jnp.zeros(5, int)).sum())(
        [{"w": w, "b": b}]
    )
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {np.dtype(np.float32)}


@pytest.mark.parametrize("adapt", ["bfloat16+lora:rank=2", "lora:rank=2+bfloat16"])
def test_it_goes_with_low_rank_changes(adapt):
    workload = small.prepared(adapt=adapt).workload
    params, x = workload.params(), np.ones((3, 60), np.float32)
    found = workload.model.apply(Whole(params, workload.frozen), x, None)
    plain = fedmom.build_model("logreg", workload.data.features)
    np.testing.assert_allclose(found, plain.apply(workload.merged(params), x, None), atol=0.1)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float32)}


@pytest.mark.parametrize("state", ["average", "local"])
def test_batch_norms_statistics_have_32_bits(tmp_path, state):
    data = population([12, 12, 12], dimension=nets.INPUTS, classes=nets.OUTPUTS)
    model = fedmom.bfloat16(fedmom.model(nets.linen_net(), data, state=state))
    run = fedmom.run(data, model, "fedavg", rounds=2, lr=0.05, out=tmp_path / "run", progress=False)
    assert {leaf.dtype for leaf in jax.tree.leaves(run.params)} == {np.dtype(np.float32)}
    assert run.result.last("train", "loss") < 2


def test_a_processor_that_is_slow_is_named(monkeypatch):
    for slow, notes in ((True, 1), (False, 0)):
        monkeypatch.setattr(precision, "is_slow_here", lambda slow=slow: slow)
        said = small.prepared(adapt="bfloat16").notes
        assert sum("no matrix unit for bfloat16" in note for note in said) == notes
