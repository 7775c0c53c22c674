"""PyTorch's optimizers as client optimizers: every step is torch's."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmom
from fedmom.algorithms.named import solver
from fedmom.algorithms.torch_solvers import spec_of
from fedmom.experiments.object_names import named

torch = pytest.importorskip("torch", reason="torch is not installed")
optim = torch.optim

SHARES = st.sampled_from([0.0, 0.5, 0.9])
DECAYS = st.sampled_from([0.0, 0.01, 0.3])
MOMENTS = st.tuples(st.sampled_from([0.5, 0.9]), st.sampled_from([0.8, 0.999]))
EPS = st.sampled_from([1e-8, 0.1])
PLAIN = st.fixed_dictionaries({"momentum": SHARES, "weight_decay": DECAYS, "dampening": DECAYS})
NESTEROV = st.fixed_dictionaries(
    {"momentum": st.just(0.9), "weight_decay": DECAYS, "nesterov": st.just(True)}
)
ADAM = st.fixed_dictionaries({"betas": MOMENTS, "eps": EPS, "weight_decay": DECAYS})
RMS = st.fixed_dictionaries(
    {"alpha": SHARES, "eps": EPS, "momentum": SHARES, "weight_decay": DECAYS}
    | {"centered": st.booleans()}
)
CASES = st.one_of(
    st.tuples(st.just(optim.SGD), st.one_of(PLAIN, NESTEROV)),
    st.tuples(st.sampled_from([optim.Adam, optim.AdamW]), ADAM),
    st.tuples(st.just(optim.RMSprop), RMS),
)


def paths(kind, options, lr=0.1, steps=4):
    """The parameters after every step, here and there."""
    rng = np.random.default_rng(0)
    w, gradients = rng.normal(size=5), rng.normal(size=(steps, 5))
    theirs = torch.tensor(w, dtype=torch.float32, requires_grad=True)
    optimizer = kind([theirs], lr=lr, **options)
    ours, right = [], []
    step = solver(spec_of(partial(kind, **options)))(lr)
    w = jnp.asarray(w, jnp.float32)
    state = step.init(w)
    for g in gradients.astype(np.float32):
        theirs.grad = torch.tensor(g)
        optimizer.step()
        updates, state = step.update(jnp.asarray(g), state, w)
        w = optax.apply_updates(w, updates)
        ours.append(w)
        right.append(theirs.detach().numpy().copy())
    return np.array(ours), np.array(right)


@given(CASES)
def test_every_step_is_torchs(case):
    ours, right = paths(*case)
    np.testing.assert_allclose(ours, right, rtol=2e-4, atol=2e-5)


def test_defaults_are_torchs():
    for kind in (optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop):
        np.testing.assert_allclose(*paths(kind, {}), rtol=1e-4, atol=1e-5)


def test_settings_say_them_as_text():
    torchs = partial(optim.SGD, momentum=0.9, nesterov=True)
    assert named({"solver": torchs})["solver"] == "sgd:momentum=0.9,nesterov=True"
    assert named({"solver": optim.AdamW})["solver"] == "adamw:weight_decay=0.01"


def test_local_work_takes_them():
    work = fedmom.LocalWork(steps=1, solver=partial(optim.SGD, weight_decay=0.5))
    step = work.solver(1.0)
    w = jnp.ones(2)
    updates, _ = step.update(jnp.zeros(2), step.init(w), w)
    np.testing.assert_allclose(updates, [-0.5, -0.5])


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (optim.Adagrad, "is the PyTorch optimizer Adagrad. Those that FedMom has are SGD, Adam"),
        (partial(optim.Adam, amsgrad=True), "the option amsgrad=True of torch.optim.Adam"),
        (partial(optim.SGD, lr=0.1), "leave lr out of SGD"),
        (optim.SGD([torch.ones(1)], lr=0.1), "of one PyTorch model. Give its class"),
        (partial(optim.SGD, maximize=True), "the option maximize=True of torch.optim.SGD"),
    ],
)
def test_others_are_refused_by_name(value, told):
    with pytest.raises(fedmom.FedMomError, match=told):
        fedmom.run("synthetic:clients=4", solver=value)
