"""Server optimizers against references written by hand, optax's and torch's."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmom
from fedmom.algorithms import ALGORITHMS
from fedmom.algorithms.base import as_server
from fedmom.algorithms.named import solver
from fedmom.algorithms.server import fedmom_zero_start
from tests.training.scripted import Scripted, rounds

NAMES = (
    *("fedsgd", "fedavg", "fedmom", "fedmom_zero_start"),
    *("fedavgm", "fedadagrad", "fedadam", "fedyogi", "diloco"),
)


def optimizer_of(name, *args, **options):
    """What an algorithm's server does with the aggregate."""
    made = ALGORITHMS[name](*args, **options)
    return made.server if isinstance(made, fedmom.Algorithm) else made


def test_every_algorithm_of_the_package_is_tested_here():
    ours = {n for n in ALGORITHMS if ALGORITHMS[n].__module__.startswith("fedmom.")}
    assert ours == set(NAMES)


def path(optimizer, w, gradients):
    """The points an optimizer visits under given gradients."""
    server = as_server(optimizer)
    state, points = server.init(w), []
    for g in gradients:
        w, state, _ = server.step(g, state, w)
        points.append(np.asarray(w))
    return np.array(points)


def paper(w, gradients, rate, momentum):
    """Algorithm 3 as printed: v' = w - η g, w' = v' + β (v' - v), v_0 = w_0."""
    v, points = w, []
    for t, g in enumerate(gradients):
        v_next = w - rate(t) * g
        w, v = v_next + momentum * (v_next - v), v_next
        points.append(w)
    return np.array(points)


@given(
    rate=st.floats(0.01, 5),
    momentum=st.just(0.0) | st.floats(1e-6, 0.95),  # w_0 / β must be a number
    seed=st.integers(0, 100),
)
def test_a_zero_start_is_the_same_recursion_from_v_0(rate, momentum, seed):
    gradients = some_gradients(seed=seed).astype(np.float64)
    ours = path(fedmom_zero_start(rate, momentum), jnp.asarray(W0), gradients.astype(np.float32))
    w, v, expected = W0.astype(np.float64), np.zeros(5), []
    for g in gradients:
        v_next = w - rate * g
        w, v = v_next + momentum * (v_next - v), v_next
        expected.append(w)
    np.testing.assert_allclose(ours, expected, rtol=2e-4, atol=2e-4 * (1 + rate))


def some_gradients(rounds=12, size=5, seed=0):
    return np.random.default_rng(seed).normal(size=(rounds, size)).astype(np.float32)


W0 = np.linspace(-1, 1, 5, dtype=np.float32)


@given(
    rate=st.floats(0.01, 50),
    momentum=st.floats(0, 0.99),
    seed=st.integers(0, 100),
)
def test_fedmom_is_the_papers_recursion(rate, momentum, seed):
    gradients = some_gradients(seed=seed)
    ours = path(fedmom.servers.fedmom(rate, momentum), jnp.asarray(W0), gradients)
    expected = paper(W0.astype(np.float64), gradients.astype(np.float64), lambda _: rate, momentum)
    np.testing.assert_allclose(ours, expected, rtol=2e-4, atol=2e-4 * rate)


def decaying(t):
    return 2.0 / (1 + t)


def test_fedmom_is_the_papers_recursion_under_a_schedule():
    gradients = some_gradients()
    ours = path(fedmom.servers.fedmom(decaying, 0.9), jnp.asarray(W0), gradients)
    np.testing.assert_allclose(ours, paper(W0, gradients, decaying, 0.9), rtol=1e-4, atol=1e-5)


@given(
    rate=st.floats(0.01, 5) | st.just(decaying) | st.just(optax.cosine_decay_schedule(2.0, 10)),
    momentum=st.floats(0, 0.95),
    seed=st.integers(0, 100),
)
def test_fedmom_is_a_chain_of_optax_also_under_a_schedule(rate, momentum, seed):
    """It is written out for the names and the bits of its state, which old checkpoints have."""
    gradients = some_gradients(seed=seed)
    ours = path(fedmom.servers.fedmom(rate, momentum), jnp.asarray(W0), gradients)
    chain = optax.chain(optax.scale_by_learning_rate(rate), optax.trace(momentum, nesterov=True))
    theirs = path(chain, jnp.asarray(W0), gradients)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_the_state_of_fedmom_has_the_names_of_old_checkpoints():
    state = fedmom.servers.fedmom().init([{"w": jnp.ones(2)}])
    assert state._fields == ("rounds", "velocity")
    assert fedmom.servers.averaged(fedmom.servers.fedmom(), 0.9).init(jnp.ones(2))._fields == (
        *("rounds", "optimizer", "mean"),
    )


def test_fedmom_is_optax_nesterov_for_constant_eta_only():
    gradients = some_gradients()
    w = jnp.asarray(W0)
    same = path(fedmom.servers.fedmom(0.3, 0.9), w, gradients)
    np.testing.assert_allclose(
        same, path(optax.sgd(0.3, 0.9, nesterov=True), w, gradients), rtol=1e-5, atol=1e-5
    )
    ours = path(fedmom.servers.fedmom(decaying, 0.9), w, gradients)
    theirs = path(optax.sgd(decaying, 0.9, nesterov=True), w, gradients)
    assert np.abs(ours - theirs).max() > 0.1


def test_fedmom_is_torch_nesterov_for_constant_eta_only():
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def torch_path(gradients, eta):
        w = torch.tensor(W0, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=eta(0), momentum=0.9, nesterov=True)
        points = []
        for t, g in enumerate(gradients):
            optimizer.param_groups[0]["lr"] = eta(t)
            w.grad = torch.tensor(g)
            optimizer.step()
            points.append(w.detach().numpy().copy())
        return np.array(points)

    gradients = some_gradients()
    ours = path(fedmom.servers.fedmom(0.3, 0.9), jnp.asarray(W0), gradients)
    np.testing.assert_allclose(ours, torch_path(gradients, lambda _: 0.3), rtol=1e-5, atol=1e-5)
    ours = path(fedmom.servers.fedmom(decaying, 0.9), jnp.asarray(W0), gradients)
    assert np.abs(ours - torch_path(gradients, decaying)).max() > 0.1


@pytest.mark.parametrize("rate", [0.7, 3.0, decaying])
def test_fedmom_without_momentum_is_fedavg_to_the_bit(rate):
    gradients = some_gradients()
    ours = path(fedmom.servers.fedmom(rate, 0.0), jnp.asarray(W0), gradients)
    np.testing.assert_array_equal(
        ours, path(fedmom.servers.fedavg(rate), jnp.asarray(W0), gradients)
    )


def test_fedavgm_is_heavy_ball():
    gradients = some_gradients()
    w, m, expected = W0, 0, []
    for g in gradients:
        m = 0.8 * m + g
        w = w - 0.3 * m
        expected.append(w)
    ours = path(fedmom.servers.fedavgm(0.3, 0.8), jnp.asarray(W0), gradients)
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "square"),
    [
        ("fedadagrad", lambda s, g: s + g**2),
        ("fedadam", lambda s, g: 0.99 * s + 0.01 * g**2),
        ("fedyogi", lambda s, g: s - 0.01 * g**2 * np.sign(s - g**2)),
    ],
)
def test_adaptive_servers_are_reddis_algorithm_2(name, square):
    rate, momentum = 0.1, 0.6
    gradients = some_gradients()
    for tau in (1e-3, 0.05):
        w, m, s, expected = W0, np.zeros(5), np.full(5, tau**2), []
        for g in gradients:
            m = momentum * m + (1 - momentum) * g
            s = square(s, g)
            w = w - rate * m / (np.sqrt(s) + tau)
            expected.append(w)
        ours = path(optimizer_of(name, rate, momentum, tau=tau), jnp.asarray(W0), gradients)
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["fedadam", "fedyogi"])
def test_the_second_moments_decay_is_an_option(name):
    gradients = some_gradients()
    plain, same, other = (
        path(optimizer_of(name, 0.1, **options), jnp.asarray(W0), gradients)
        for options in ({}, {"beta2": 0.99}, {"beta2": 0.5})
    )
    np.testing.assert_array_equal(plain, same)
    assert np.abs(plain - other).max() > 0.01


@pytest.mark.parametrize("momentum", [-0.1, 1.0, 1.5, float("nan")])
@pytest.mark.parametrize(
    "name", ["fedmom", "fedmom_zero_start", "fedavgm", "fedadagrad", "fedadam", "fedyogi"]
)
def test_momentum_outside_its_range_is_refused(name, momentum):
    with pytest.raises(fedmom.FedMomError, match=r"must be a number in \[0, 1\)"):
        ALGORITHMS[name](1.0, momentum)


TREE = {"a": [np.ones((2, 3), np.float32)], "b": np.full(4, 2, np.float32)}


@pytest.mark.parametrize("name", NAMES)
class TestContract:
    """What the round loop relies on, for every server optimizer."""

    def test_updates_have_the_shape_and_type_of_the_parameters(self, name):
        server = optimizer_of(name, 0.1)
        updates, state = server.update(TREE, server.init(TREE), TREE)
        again, _ = server.update(TREE, state, TREE)
        for tree in (updates, again):
            assert jax.tree.map(lambda p: (p.shape, p.dtype), tree) == jax.tree.map(
                lambda p: (p.shape, p.dtype), TREE
            )

    def test_state_keeps_its_structure(self, name):
        server = optimizer_of(name, 0.1)
        state = server.init(TREE)
        _, after = server.update(TREE, state, TREE)
        assert jax.tree.structure(after) == jax.tree.structure(state)

    def test_no_gradient_at_the_start_means_no_step(self, name):
        if name == "fedmom_zero_start":
            pytest.skip("it starts with the velocity w_0 / β")
        server = optimizer_of(name, 0.1)
        zero = jax.tree.map(np.zeros_like, TREE)
        updates, _ = server.update(zero, server.init(TREE), TREE)
        assert all((np.asarray(u) == 0).all() for u in jax.tree.leaves(updates))

    def test_compiled_it_gives_the_same(self, name):
        server = optimizer_of(name, lambda t: 0.1 / (1 + t))
        gradients = some_gradients(4)
        plain = path(server, jnp.asarray(W0), gradients)
        compiled = optax.GradientTransformation(server.init, jax.jit(server.update))
        np.testing.assert_allclose(path(compiled, jnp.asarray(W0), gradients), plain, rtol=1e-5)

    def test_it_descends_on_a_quadratic(self, name):
        server = optimizer_of(name, 0.02)
        w = jnp.asarray(W0)
        state = server.init(w)
        for _ in range(200):
            updates, state = server.update(w, state, w)  # the gradient of |w|²/2 is w
            w = optax.apply_updates(w, updates)
        assert float(jnp.sum(w**2)) < 0.5 * float(np.sum(W0**2))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("decay", [0.5, 0.9, 0.9999])
def test_averaging_weighs_models_by_powers_of_the_decay_and_changes_no_step(name, decay):
    gradients = some_gradients()
    points = path(optimizer_of(name, 0.3), jnp.asarray(W0), gradients)
    server, w = fedmom.servers.averaged(optimizer_of(name, 0.3), decay), jnp.asarray(W0)
    state = server.init(w)
    np.testing.assert_array_equal(server.model(w, state), W0)
    for t, g in enumerate(gradients, 1):
        w, state, _ = server.step(g, state, w)
        np.testing.assert_array_equal(w, points[t - 1])
        np.testing.assert_array_equal(server.broadcast(w, state), w)
        expected = averages(points[:t], decay)
        np.testing.assert_allclose(server.model(w, state), expected, rtol=1e-5, atol=1e-5)


def averages(points, decay):
    """The mean of the models so far, the latest with weight 1, each earlier one decay less."""
    weights = decay ** np.arange(len(points) - 1, -1, -1.0)
    return weights @ points / weights.sum()


def test_an_averaged_chain_evaluates_the_mean_of_its_models():
    """Whatever is in the chain: the mean is that of the models, which the chain's end makes."""
    chain = optax.chain(optax.clip_by_global_norm(0.5), optax.trace(0.9), optax.scale(-0.3))
    gradients = some_gradients()
    points = path(chain, jnp.asarray(W0), gradients)
    server, w = fedmom.servers.averaged(chain, 0.8), jnp.asarray(W0)
    state = server.init(w)
    for g in gradients:
        w, state, _ = server.step(g, state, w)
    np.testing.assert_allclose(server.model(w, state), averages(points, 0.8), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "chain",
    [
        lambda mean: optax.chain(mean),
        lambda mean: optax.chain(mean, optax.scale(0.5)),
        lambda mean: optax.chain(optax.scale(0.5), mean),
    ],
)
def test_a_mean_inside_a_chain_fails_loudly(chain):
    """Earlier it was accepted, and a model that nobody had averaged was evaluated."""
    with pytest.raises((AttributeError, TypeError, ValueError), match=r"Server|unpack"):
        rounds(Scripted(), fedmom.Algorithm(chain(fedmom.servers.averaged(optax.sgd(1.0), 0.9))))


def test_an_averaged_average_evaluates_the_outer_mean():
    inner = fedmom.servers.averaged(optax.sgd(0.3), 0.5)
    gradients = some_gradients()
    server, w = fedmom.servers.averaged(inner, 0.9), jnp.asarray(W0)
    points, state = path(optax.sgd(0.3), w, gradients), server.init(w)
    for g in gradients:
        w, state, _ = server.step(g, state, w)
    np.testing.assert_array_equal(w, points[-1])
    np.testing.assert_allclose(server.model(w, state), averages(points, 0.9), rtol=1e-5)


@pytest.mark.parametrize("what", [fedmom.servers.fedavg, "fedavg", None, 1.0])
def test_what_is_no_server_is_refused(what):
    with pytest.raises(fedmom.FedMomError, match=r"neither a fedmom.Server nor an optax optimizer"):
        as_server(what)


@pytest.mark.parametrize("decay", [0.0, 1.0, 1.5, float("nan")])
def test_a_decay_outside_0_to_1_is_refused(decay):
    with pytest.raises(fedmom.FedMomError, match=r"average .* is not between 0 and 1"):
        fedmom.servers.averaged(fedmom.servers.fedavg(), decay)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: fedmom.servers.fedavg(0), "learning_rate 0 must be a number greater than 0"),
        (lambda: fedmom.servers.fedavg("1"), "learning_rate is '1'. It must be a number"),
        (lambda: fedmom.servers.fedmom(-1.0), "learning_rate -1.0 must be"),
        (lambda: fedmom.servers.fedmom(momentum=1.0), r"momentum 1.0 must be a number in \[0, 1\)"),
        (lambda: fedmom.servers.fedsgd(float("nan")), "learning_rate nan must be"),
        (lambda: fedmom.servers.fedavgm(momentum=True), "momentum is True. It must be"),
        (lambda: fedmom.servers.fedadagrad(tau=-1), "tau -1 must be a number greater than 0"),
        (lambda: fedmom.servers.fedadam(beta2=1), r"beta2 1 must be a number in \[0, 1\)"),
        (lambda: fedmom.servers.fedyogi(beta2=-0.1), r"beta2 -0.1 must be a number in \[0, 1\)"),
        (lambda: solver("adam:b1=1.5"), "b1 1.5 must be"),
        (lambda: solver("adamw:weight_decay=-1"), "weight_decay -1.0 must be"),
        (lambda: solver("rmsprop:eps=0"), "eps 0.0 must be"),
        (lambda: solver("sgd:momentum=1"), "momentum 1.0 must be"),
        (lambda: fedmom.LocalWork(lr="0.1", steps=1), "lr is '0.1'. It must be a number"),
        (
            lambda: fedmom.LocalWork(steps=1, batch_size=2.5),
            "batch_size is 2.5. It must be a whole",
        ),
        (lambda: fedmom.LocalWork(steps=1, prox="1"), "prox is '1'. It must be a number"),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(make, says):
    with pytest.raises(fedmom.FedMomError, match=says):
        make()
