"""LoRA and frozen parameters: gradients, rounds and merging against NumPy by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import fedmom
from fedmom.core import name_caches
from fedmom.core.errors import FedMomError
from fedmom.core.prng import init_key
from fedmom.models.variables import Variables, Whole
from tests import by_hand
from tests.conftest import population
from tests.experiments import small
from tests.models import nets

SIZES = [6, 9, 5]
RANK, ALPHA, LR = 2, 5.0, 0.3
SCALE = ALPHA / RANK


@pytest.fixture(scope="module")
def data():
    return population(SIZES, dimension=6, classes=4)


def low_rank(data, **options):
    model = fedmom.build_model("logreg", data.features)
    return fedmom.lora(model, **{"rank": RANK, "alpha": ALPHA, **options})


def moved(model, seed=0):
    """First parameters, with B away from zero."""
    params = model.init(jax.random.key(seed))
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), params)


def samples(data, client):
    start, size = data.train.start[client], data.train.size[client]
    return by_hand.read(data, np.arange(start, start + size))


def logreg_step(ab, kept, x, y):
    """The gradients of A and B: those of W through W + s A B, by the chain rule."""
    a, b = (np.asarray(ab["0/w"][name], np.float64) for name in "ab")
    weights = [{"w": np.asarray(kept["0/w"]) + SCALE * a @ b, "b": np.asarray(kept["0/b"])}]
    losses, _, gradient = by_hand.logreg(weights, x, y)
    dw = gradient[0]["w"]
    return losses.mean(), {"a": SCALE * dw @ b.T, "b": SCALE * a.T @ dw}


def test_gradients_are_those_of_the_chain_rule(data):
    model = low_rank(data)
    params, kept = moved(model), model.adapted.frozen(jax.random.key(0))
    x, y = samples(data, 1)

    def loss(params):
        return model.losses(model.apply(Whole(params, kept), x, None), y).mean()

    found, gradient = jax.value_and_grad(loss)(params)
    expected_loss, expected = logreg_step(params, kept, x, y)
    np.testing.assert_allclose(found, expected_loss, rtol=1e-5)
    for name in "ab":
        np.testing.assert_allclose(gradient["0/w"][name], expected[name], rtol=1e-4, atol=1e-5)


def test_a_round_averages_a_and_b(data):
    """One full gradient of every client; weights n_k over the cohort's samples."""
    model = low_rank(data)
    work = fedmom.LocalWork(lr=LR, steps=1, batch_size=None)
    method = fedmom.Algorithm(fedmom.servers.fedavg(), work, rule=fedmom.mean("cohort"))
    workload = fedmom.Workload(data, model, method, seed=3)
    runtime = fedmom.LocalRuntime(workload)
    first = fedmom.start(workload)._replace(params=moved(model))
    ((state, record),) = fedmom.train(runtime, pace=fedmom.synchronous(3), rounds=1, state=first)
    kept = model.adapted.frozen(init_key(3))
    steps = [logreg_step(first.params, kept, *samples(data, k))[1] for k in range(3)]
    for name in "ab":
        mean = sum(n * step[name] for n, step in zip(SIZES, steps, strict=True)) / sum(SIZES)
        expected = np.asarray(first.params["0/w"][name]) - LR * mean
        np.testing.assert_allclose(state.params["0/w"][name], expected, rtol=1e-4, atol=1e-5)
    sent = 4 * (6 * RANK + RANK * 4)  # floats of 32 bits
    assert (record.bytes_up, record.bytes_down) == (3 * sent, 3 * sent)


def test_round_0_is_the_model_as_it_was_and_merging_adds_the_product(data):
    model = low_rank(data)
    plain = model.plain
    method = fedmom.Algorithm(fedmom.servers.fedavg(), fedmom.LocalWork(lr=LR, steps=1))
    workload = fedmom.Workload(data, model, method, seed=9)
    first = workload.params()
    x = samples(data, 0)[0]
    expected = plain.apply(plain.init(init_key(9)), x, None)
    np.testing.assert_array_equal(plain.apply(workload.merged(first), x, None), expected)
    assert float(jnp.abs(first["0/w"]["a"]).max()) > 0
    params = moved(model)
    kept = plain.init(init_key(9))
    ((merged,),) = (workload.merged(params),)
    product = np.asarray(params["0/w"]["a"]) @ np.asarray(params["0/w"]["b"])
    np.testing.assert_allclose(merged["w"], kept[0]["w"] + SCALE * product, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(merged["b"], kept[0]["b"])


SHAPES = {  # name and shape of a weight -> inputs, outputs, and how A B becomes the weight
    "kernel": ((5, 3), (5, 3), "ir,ro->io"),
    "conv/kernel": ((2, 2, 3, 4), (12, 4), "hwir,ro->hwio"),
    "query/kernel": ((6, 2, 3), (6, 6), "ir,rhd->ihd"),
    "out/kernel": ((2, 3, 6), (6, 6), "hdr,ro->hdo"),
    "linear/weight": ((3, 5), (5, 3), "ir,ro->oi"),
    "conv/weight": ((4, 3, 2, 2), (12, 4), "ihwr,ro->oihw"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_weights_of_more_dimensions_are_matrices_of_inputs_and_outputs(name):
    shape, (inputs, outputs), product = SHAPES[name]
    tree = {}
    *outer, last = name.split("/")
    inner = tree
    for part in outer:
        inner = inner.setdefault(part, {})
    inner[last] = jnp.zeros(shape)
    plain = fedmom.Model(lambda _key: tree, lambda _w, x, _key: x)
    model = fedmom.lora(plain, rank=2, alpha=2.0, targets=name)
    params = moved(model)
    a, b = params[name]["a"], params[name]["b"]
    assert (a.shape, b.shape) == ((inputs, 2), (2, outputs))
    (merged,) = jax.tree.leaves(model.adapted.merge(params, model.adapted.frozen(None)))
    left, right = product.partition("->")[0].split(",")
    sizes = dict(zip(product.partition("->")[2], shape, strict=True))
    a = np.asarray(a).reshape([sizes.get(axis, 2) for axis in left])
    b = np.asarray(b).reshape([sizes.get(axis, 2) for axis in right])
    np.testing.assert_allclose(merged, np.einsum(product, a, b), rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m: fedmom.lora(m, targets="head*"), r"targets=head\* matches .* 0/w, 1/w, 2/w"),
        (lambda m: fedmom.lora(m, targets="*/b"), r"matches no parameter that it could"),
        (lambda m: fedmom.lora(m, rank=7), "rank=7 is too large for 0/w, a matrix of 6x8"),
        (lambda m: fedmom.lora(m, rank=2, train="x"), "train=x matches .* 0/b, 0/w"),
        (lambda m: fedmom.frozen(m, train="out"), "train=out matches .* 0/b, 0/w"),
        (lambda m: fedmom.frozen(m, train=""), "trains nothing"),
        (lambda m: fedmom.lora(fedmom.frozen(m, train="2/*")), "frozen parameters already"),
        (lambda m: fedmom.lora(m, alpha=0.0), "alpha"),
    ],
)
def test_what_cannot_be_adapted_is_refused(data, make, message):
    model = fedmom.build_model("mlp:hidden=8", data.features)
    with pytest.raises(FedMomError, match=message):
        make(model)


def test_a_run_exports_merged_weights_and_resumes(tmp_path):
    settings = {
        "model": "mlp:hidden=12",
        "algorithm": "fedmom",
        "adapt": "lora:rank=3,targets=0/w|1/w,train=2/*",
        "rounds": 4,
        "lr": 0.005,
        "progress": False,
    }
    run = fedmom.run("synthetic:clients=6", out=tmp_path / "whole", **settings)
    stop = {"callbacks": [lambda event: event.round == 2]}
    fedmom.run("synthetic:clients=6", out=tmp_path / "parts", **settings, **stop)
    again = fedmom.resume(tmp_path / "parts", progress=False)
    assert small.logs(tmp_path / "whole") == small.logs(tmp_path / "parts")
    jax.tree.map(np.testing.assert_array_equal, run.params, again.params)

    tensors = load_file(run.export() / "model.safetensors")
    plain = fedmom.build_model("mlp:hidden=12", run.experiment.data.features)
    first = plain.init(init_key(0))
    assert {name: t.shape for name, t in tensors.items()} == {
        f"{i}/{name}": layer[name].shape for i, layer in enumerate(first) for name in layer
    }
    np.testing.assert_array_equal(tensors["0/b"], first[0]["b"])  # frozen
    assert np.linalg.matrix_rank(tensors["1/w"] - first[1]["w"], tol=1e-5) == 3
    assert np.abs(tensors["2/w"] - first[2]["w"]).max() > 0

    x = np.random.default_rng(0).normal(size=(5, 60)).astype(np.float32)
    np.testing.assert_allclose(run.outputs(x), plain.apply(run.params, x, None), rtol=1e-5)
    (note,) = (n for n in run.experiment.notes if "trained" in n)
    trained = 60 * 3 + 3 * 12 + 12 * 3 + 3 * 12 + 12 * 10 + 10
    assert note.startswith(f"{trained} numbers are trained, of a model of 1,018.")
    assert {row["bytes_down"] for row in run.result.rounds} == {2 * 4 * trained}
    checkpoint = sorted((tmp_path / "whole" / "checkpoint").glob("*.safetensors"))[-1]
    assert sum(t.size for t in load_file(checkpoint).values()) < 2 * trained + 10  # and velocity


def test_frozen_parameters_stay_and_state_goes_its_way(tmp_path):
    """A net with batch norm: its statistics are averaged, its other parameters do not move."""
    data = population([12, 12, 12], dimension=nets.INPUTS, classes=nets.OUTPUTS)
    model = fedmom.frozen(fedmom.model(nets.linen_net(), data), train="Dense_1/*")
    run = fedmom.run(data, model, "fedavg", rounds=2, lr=0.1, out=tmp_path / "run", progress=False)
    first, last = model.plain.init(init_key(0)), run.params
    assert isinstance(last, Variables)
    for layer in ("Dense_0", "BatchNorm_0"):
        jax.tree.map(np.testing.assert_array_equal, last.trained[layer], first.trained[layer])
    assert np.abs(last.trained["Dense_1"]["kernel"] - first.trained["Dense_1"]["kernel"]).max() > 0
    means = [v.state["batch_stats"]["BatchNorm_0"]["mean"] for v in (first, last)]
    assert np.abs(means[0] - means[1]).max() > 0
    assert run.predict(np.zeros((2, nets.INPUTS), np.float32)).shape == (2,)


def test_low_rank_of_every_matrix_is_the_whole_fine_tuning(data):
    """With A fixed to the identity, B's step is scaled full fine-tuning: a check of the scale."""
    model = low_rank(data, rank=4, alpha=4.0)
    kept = model.adapted.frozen(jax.random.key(1))
    b = np.random.default_rng(2).normal(size=(4, 4)).astype(np.float32)
    params = {"0/w": {"a": jnp.eye(6, 4), "b": jnp.asarray(b)}}
    (merged,) = model.adapted.merge(params, kept)
    np.testing.assert_allclose(merged["w"][:4], kept["0/w"][:4] + b, rtol=1e-5, atol=1e-6)


def test_weights_of_a_file_are_the_first_parameters(tmp_path):
    first = fedmom.run(
        "synthetic:clients=6", "mlp:hidden=12", rounds=2, out=tmp_path / "first", progress=False
    )
    file = first.export() / "model.safetensors"
    spec = f"pretrained:file={file}"
    settings = {"model": "mlp:hidden=12", "rounds": 2, "progress": False, "seed": 5}
    tuned = fedmom.run(
        "synthetic:clients=6", adapt=f"{spec}+frozen:train=2/*", out=tmp_path / "next", **settings
    )
    for i in (0, 1):
        np.testing.assert_array_equal(tuned.params[i]["w"], first.params[i]["w"])
    assert np.abs(tuned.params[2]["w"] - first.params[2]["w"]).max() > 0
    assert f"file={file},sha256=" in tuned.settings["adapt"]

    with pytest.raises(FedMomError, match="has no parameter 3/b"):
        fedmom.run(
            "synthetic:clients=6", **settings | {"model": "mlp:hidden=12,layers=3"}, adapt=spec
        )
    with pytest.raises(FedMomError, match=r"0/b has shape \(12,\) in .*, and \(13,\)"):
        fedmom.run("synthetic:clients=6", **settings | {"model": "mlp:hidden=13"}, adapt=spec)
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    name_caches.forget()  # as in a new process
    with pytest.raises(FedMomError, match=r"has the checksum .* Restore it"):
        fedmom.resume(tmp_path / "next", progress=False).clients()
    file.write_bytes(b"x" * 20)
    with pytest.raises(FedMomError, match="is not a safetensors file"):
        fedmom.run("synthetic:clients=6", **settings, adapt=spec)
    file.unlink()
    with pytest.raises(FedMomError, match="cannot be read"):
        fedmom.run("synthetic:clients=6", **settings, adapt=spec)


def test_diagnostics_and_theory_refuse_frozen_parameters(tmp_path):
    with pytest.raises(FedMomError, match="trained as a whole"):
        fedmom.run(
            "synthetic:clients=6",
            adapt="lora:rank=2",
            diagnostics=True,
            rounds=2,
            out=tmp_path / "run",
            progress=False,
        )
