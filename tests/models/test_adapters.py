"""Nets of every library, against the same net in plain JAX with the same weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmom
from fedmom import Features
from tests.models.nets import HIDDEN, INPUTS, NETS, OUTPUTS, RATE, draw, linen_net, plain_net

FEATURES = Features("vector", (INPUTS,), OUTPUTS)
LIBRARIES = pytest.mark.parametrize("library", NETS)
BEFORE = 0.9**3  # what is left of the first statistics after three steps


def named(library, params):
    """The parameters of a library's net in the form of the plain one."""

    def layer(name, weights, bias):
        part = params[name]
        return {"w": part[weights], "b": part[bias]}

    if library == "linen":
        norm = params.get("BatchNorm_0", {})
        hidden, out = (layer(f"Dense_{i}", "kernel", "bias") for i in (0, 1))
        scale, shift = norm.get("scale"), norm.get("bias")
    elif library == "nnx":
        norm = params.get("norm", {})
        hidden, out = (layer(name, "kernel", "bias") for name in ("hidden", "out"))
        scale, shift = norm.get("scale"), norm.get("bias")
    elif library == "haiku":
        norm = params.get("batch_norm", {})
        hidden, out = layer("linear", "w", "b"), layer("linear_1", "w", "b")
        scale, shift = (norm[n].reshape(-1) if n in norm else None for n in ("scale", "offset"))
    else:
        hidden, out = (
            {"w": params[f".{name}.weight"].T, "b": params[f".{name}.bias"]}
            for name in ("hidden", "out")
        )
        scale, shift = params.get(".norm.weight"), params.get(".norm.bias")
    scale = jnp.ones(HIDDEN) if scale is None else scale
    shift = jnp.zeros(HIDDEN) if shift is None else shift
    return {"hidden": hidden, "norm": {"scale": scale, "shift": shift}, "out": out}


def running(library, mean, var):
    """The statistics after three steps on one batch, as each library has them.

    They begin from mean 0 and variance 1. Haiku begins from variance 0, and it and equinox divide
    by the share of what came after.
    """
    now = 1 - BEFORE
    if library == "haiku":
        return {"mean": mean, "var": var}
    if library == "equinox":
        return {"mean": mean, "var": var + BEFORE / now}
    return {"mean": now * mean, "var": now * var + BEFORE}


def own(name):
    return fedmom.Metric(name, lambda out, _y: out.mean(-1))


def numbers(rows=12, seed=0):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(size=(rows, INPUTS)) * 2 + 1, jnp.float32)


def made(library, **options):
    return fedmom.model(NETS[library](**options), FEATURES)


@LIBRARIES
def test_training_is_the_plain_nets_in_outputs_gradients_and_statistics(library):
    model = made(library, rate=0.0)
    variables, x, y = model.init(jax.random.key(3)), numbers(), jnp.arange(12) % OUTPUTS
    plain, key = plain_net()[1], jax.random.key(0)
    ones = {"norm": {"mean": jnp.zeros(HIDDEN), "var": jnp.ones(HIDDEN)}}

    def ours(trained, state):
        outputs, state, _ = model.train(variables._replace(trained=trained, state=state), x, key)
        return model.losses(outputs, y).mean(), (outputs, state)

    def theirs(params):
        outputs, _ = plain(params, ones, x, key)
        return model.loss(outputs, y).mean(), outputs

    slope_of = jax.jit(jax.value_and_grad(ours, has_aux=True))
    (_, (outputs, state)), gradient = slope_of(*variables[:2])
    weights = named(library, variables.trained)
    (_, expected), slope = jax.jit(jax.value_and_grad(theirs, has_aux=True))(weights)
    np.testing.assert_allclose(outputs, expected, atol=2e-5)
    for leaf, other in zip(*map(jax.tree.leaves, (named(library, gradient), slope)), strict=True):
        np.testing.assert_allclose(leaf, other, atol=2e-5)
    # In evaluation after three steps on one batch, the running statistics are known.
    for _ in range(2):
        (_, (_, state)), _ = slope_of(variables.trained, state)
    hidden = x @ weights["hidden"]["w"] + weights["hidden"]["b"]
    known = running(library, hidden.mean(0), hidden.var(0))
    other = numbers(5, seed=1)
    evaluated = jax.jit(lambda v: model.apply(v, other, None))(variables._replace(state=state))
    expected, unchanged = plain(weights, {"norm": known}, other, None)
    np.testing.assert_allclose(evaluated, expected, atol=5e-5)
    assert unchanged["norm"] is known  # evaluation changes no statistics


@LIBRARIES
def test_dropout_drops_at_its_rate_in_training_only(library):
    model = made(library, norm=False)
    params, x = model.init(jax.random.key(3)), numbers(6)
    assert model.state is None
    weights = named(library, params)
    hidden = jax.nn.relu(x @ weights["hidden"]["w"] + weights["hidden"]["b"])
    mean = hidden @ weights["out"]["w"] + weights["out"]["b"]
    np.testing.assert_allclose(model.apply(params, x, None), mean, rtol=1e-5)
    keys = jax.random.split(jax.random.key(2), 4000)
    drawn = jax.jit(jax.vmap(lambda key: model.apply(params, x, key)))(keys)
    # Every unit is 0 with probability r, else h / (1 - r): its variance is h² r / (1 - r).
    variance = jnp.square(hidden) @ jnp.square(weights["out"]["w"]) * RATE / (1 - RATE)
    assert (variance > 0).any()
    error = 5 * np.sqrt(np.asarray(variance) / 4000) + 1e-5
    assert (np.abs(drawn.mean(0) - mean) < error).all()
    np.testing.assert_allclose(drawn.var(0), variance, rtol=0.15, atol=1e-6)


@LIBRARIES
def test_local_keeps_the_norm_layers_and_nothing_else(library):
    averaged, local = (
        fedmom.model(NETS[library](), FEATURES, state=choice).init(jax.random.key(0))
        for choice in ("average", "local")
    )
    assert (averaged.own_trained, averaged.own_state, local.state) == (None, None, None)
    sizes = [leaf.size for leaf in jax.tree.leaves(local.own_trained)]
    assert sizes == [HIDDEN, HIDDEN]  # scale and shift
    whole = len(jax.tree.leaves(averaged.trained))
    assert len(jax.tree.leaves(local.trained)) == whole - 2 == 4
    for one, other in zip(*map(jax.tree.leaves, (averaged.state, local.own_state)), strict=True):
        np.testing.assert_array_equal(one, other)


@LIBRARIES
def test_the_first_parameters_are_those_of_the_seed(library):
    model = made(library, norm=False)
    one, again, other = (model.init(jax.random.key(seed)) for seed in (0, 0, 1))
    for a, b in zip(*map(jax.tree.leaves, (one, again)), strict=True):
        np.testing.assert_array_equal(a, b)
    flat = [np.concatenate([np.ravel(x) for x in jax.tree.leaves(p)]) for p in (one, other)]
    assert np.abs(flat[0] - flat[1]).max() > 0.01


@pytest.mark.parametrize("library", ["nnx", "equinox"])
def test_a_module_that_is_there_already_starts_from_its_own_parameters(library):
    from flax import nnx

    make = NETS[library](norm=False)
    module = make(nnx.Rngs(7)) if library == "nnx" else make(jax.random.key(7))
    model = fedmom.model(module, FEATURES)
    kernel = module.hidden.kernel[...] if library == "nnx" else module.hidden.weight.T
    for seed in (0, 1):
        found = named(library, model.init(jax.random.key(seed)))["hidden"]["w"]
        np.testing.assert_array_equal(found, kernel)


def test_plain_functions_are_a_model_as_they_are():
    def apply(params, x, _key):
        return x @ params["hidden"]["w"] @ params["out"]["w"]

    model = fedmom.model((draw, apply), FEATURES)
    params, x = model.init(jax.random.key(0)), numbers()
    np.testing.assert_array_equal(model.apply(params, x, None), apply(params, x, None))
    assert (model.state, model.train) == (None, None)


def test_a_net_sees_inputs_of_the_datas_type():
    from flax import linen

    class Embedded(linen.Module):
        @linen.compact
        def __call__(self, x):
            assert jnp.issubdtype(x.dtype, jnp.integer)
            return linen.Dense(5)(linen.Embed(5, 2)(x).mean(1))

    data = fedmom.from_arrays(np.arange(12).reshape(4, 3) % 5, np.arange(4), np.arange(4))
    for known in (data, Features("text", (3,), 5)):
        assert fedmom.model(Embedded(), known).init(jax.random.key(0))


@pytest.mark.parametrize(
    ("net", "options", "says"),
    [
        (3, {}, "net is 3. Give"),
        (type(linen_net()), {}, "Net is a class of linen. Give an instance of it"),
        (lambda key: {"w": key}, {}, "returns dict for a key, not an equinox module"),
        ((draw, draw), {"state": "locally"}, "state is 'locally'. It must be 'average' or 'local'"),
        ((draw, draw), {"state": "local"}, "this one has none"),
        ((draw, draw), {"loss": "square"}, "There is no loss 'square'.*squared_error"),
        ((draw, draw), {"metrics": ["acuracy"]}, "Did you mean 'accuracy'"),
        ((draw, draw), {"metrics": "accuracy"}, "metrics is 'accuracy'. It must be a list"),
        ((draw, draw), {"metrics": ["mse", "mse"]}, "2 metrics are called 'mse'"),
        ((draw, draw), {"metrics": [own("loss")]}, "A metric is called 'loss'"),
        ((draw, draw), {"metrics": [lambda out, _y: out]}, "A metric is called '<lambda>'"),
    ],
)
def test_mistakes_are_sentences(net, options, says):
    with pytest.raises(fedmom.FedMomError, match=says):
        fedmom.model(net, FEATURES, **options)


BAD_NAMES = [
    *("loss", "round", "split", "clients", "samples", "lower_is_better", "unranked", "run", "row"),
    "crc32",
    *("values", "metrics", "diagnostics", "cohort", "rejected", "mse_p10", "mse_p90_identical"),
    *("", "a b", "a/b", "..", "a\0", "a\n", "é" * 61, "1st", "<b>"),
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_logs_cannot_hold_is_refused(name):
    """Also in a model that was made by hand, which is checked when it is put to work."""
    with pytest.raises(fedmom.FedMomError, match="A metric is called"):
        fedmom.model((draw, draw), FEATURES, metrics=[own(name)])
    by_hand = fedmom.Model(draw, lambda w, x, _key: x @ w, metrics=(own(name),))
    data = fedmom.load_data("synthetic:clients=4")
    algorithm = fedmom.Algorithm(fedmom.servers.fedavg(), fedmom.LocalWork(lr=0.1, steps=1))
    with pytest.raises(fedmom.FedMomError, match="A metric is called"):
        fedmom.Workload(data, by_hand, algorithm)


def test_a_loss_that_is_a_mean_is_refused():
    model = fedmom.Model(draw, lambda w, x, _key: x @ w, loss=lambda out, _y: out.mean())
    with pytest.raises(fedmom.FedMomError, match=r"shape \(\) for 5 samples. A loss returns one"):
        model.losses(jnp.zeros((5, 2)), jnp.zeros(5))
