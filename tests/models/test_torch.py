"""PyTorch modules as models: their numbers, state, names, refusals, and the way back."""

import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmom
from fedmom.core.identity import fingerprint
from fedmom.data.federated import Features

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.models import torch_nets  # noqa: E402

nn = torch.nn
QUICK = ["MLP with batch and layer norm"]
VECTORS = Features("vector", (4,), 3)


def marked(name):
    if name in torch_nets.LARGE:
        return pytest.param(name, marks=pytest.mark.slow)
    return pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough)


@pytest.mark.parametrize("name", [marked(name) for name in torch_nets.NETS])
def test_outputs_gradients_and_buffers_are_those_of_torch(name):
    net = torch_nets.NETS[name]
    assert torch_nets.difference(net).largest < net.far


def test_the_page_tells_of_nets_that_are_tested():
    named = re.findall(r"^\| ([^|]+?) \| [\d,]+ \|", torch_nets.PAGE.read_text(), re.MULTILINE)
    assert named
    assert set(named) <= set(torch_nets.NETS)


class Small(nn.Module):
    """A convolution with batch norm, and dropout."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.drop, self.out = nn.Dropout(0.2), nn.Linear(4, 3)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        return self.out(self.drop(x.mean((2, 3))))


def seeded(make=Small, seed=0):
    torch.manual_seed(seed)
    return make()


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 60)
    x = (rng.normal(size=(60, 8, 8)) + y[:, None, None]).astype(np.float32)
    return fedmom.from_arrays(x, y, np.repeat(np.arange(6), 10), test_fraction=0.2)


def run(data, model, out, **how):
    small = {"rounds": 2, "clients_per_round": 3, "local_steps": 3, "progress": False}
    small |= {"algorithm": "fedavg", "weighting": "cohort", "lr": 0.1} | how
    return fedmom.run(data, model=model, out=out, **small)


def test_a_module_is_trained_and_gets_its_weights_back(images, tmp_path):
    module = seeded()
    module.norm.eval()  # not all parts are in one mode, and they stay so
    before = {name: value.clone() for name, value in module.state_dict().items()}
    trained = run(images, module, tmp_path / "run")
    assert module.training
    assert not module.norm.training
    assert all((module.state_dict()[name] == value).all() for name, value in before.items())
    found = trained.to_torch(Small().double()).eval()
    assert {p.dtype for p in found.parameters()} == {torch.float64}
    assert found.norm.num_batches_tracked == 6
    x = images.arrays["x"][:5]
    with torch.no_grad():
        right = found(torch.from_numpy(np.array(x, np.float64))[:, None]).numpy()
    np.testing.assert_allclose(trained.outputs(x), right, rtol=1e-4, atol=1e-5)
    assert any((found.state_dict()[n] != v).any() for n, v in before.items())
    again = fedmom.load(tmp_path / "run", model=seeded())
    np.testing.assert_array_equal(again.outputs(x), trained.outputs(x))
    with pytest.raises(fedmom.FedMomError, match="was started with model Small@"):
        fedmom.load(tmp_path / "run", model=seeded(seed=1))
    with pytest.raises(fedmom.FedMomError, match=r"0\.bias is a parameter or buffer of the module"):
        trained.to_torch(nn.Sequential(nn.Linear(4, 3)))


@pytest.mark.thorough
def test_low_rank_changes_come_back_merged(images, tmp_path):
    trained = run(images, seeded(), tmp_path / "run", adapt="lora:rank=1,targets=out*")
    found = trained.to_torch(Small()).eval()
    x = images.arrays["x"][:5]
    with torch.no_grad():
        right = found(torch.from_numpy(np.array(x))[:, None]).numpy()
    np.testing.assert_allclose(trained.outputs(x), right, rtol=1e-4, atol=1e-5)
    assert (found.conv.weight == seeded().conv.weight).all()


@pytest.mark.thorough
def test_parameters_without_gradient_are_frozen(images, tmp_path):
    module = seeded()
    module.conv.requires_grad_(False)
    trained = run(images, module, tmp_path / "run")
    found = trained.to_torch(Small())
    assert (found.conv.weight == module.conv.weight).all()
    assert (found.out.weight != module.out.weight).any()
    form = jax.eval_shape(trained.experiment.model.init, jax.random.key(0))
    assert sorted(form.trained) == ["norm.bias", "norm.weight", "out.bias", "out.weight"]


@pytest.mark.thorough
def test_batch_norm_may_stay_on_clients(images):
    model = fedmom.model(seeded(), images, state="local")
    variables = model.init(jax.random.key(0))
    assert [n for n, v in variables.own_trained.items() if v is not None] == [
        "norm.bias",
        "norm.weight",
    ]
    assert variables.trained["norm.weight"] is None


def vectors(module):
    return fedmom.model(module, VECTORS)


@pytest.mark.thorough
def test_dropout_is_drawn_in_training_only():
    model = vectors(nn.Sequential(nn.Dropout(0.25), nn.Linear(4, 3)))
    params = {"1.weight": jnp.eye(3, 4), "1.bias": jnp.zeros(3)}
    x, key = jnp.ones((4000, 4)), jax.random.key(0)
    np.testing.assert_array_equal(model.apply(params, x, None), np.ones((4000, 3)))
    outputs = np.asarray(model.apply(params, x, key))
    np.testing.assert_allclose(np.unique(outputs), [0, 1 / 0.75], rtol=1e-6)
    assert abs((outputs == 0).mean() - 0.25) < 4 * (0.25 * 0.75 / outputs.size) ** 0.5
    assert (outputs == model.apply(params, x, key)).all()
    assert (outputs != model.apply(params, x, jax.random.key(1))).any()


class Tied(nn.Module):
    """Two layers with one weight; and a batch of one, which ``squeeze`` must leave alone."""

    def __init__(self):
        super().__init__()
        self.rows, self.out = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.out.weight = self.rows.weight

    def forward(self, x):
        return self.out(self.rows(x)[:, :1].squeeze())


@pytest.mark.thorough
def test_tied_weights_are_one_parameter_and_a_batch_may_have_one_row(tmp_path):
    x, y = np.arange(20).reshape(10, 2) % 5, np.arange(10) % 5
    data = fedmom.from_arrays(x, y, np.repeat([0, 1], 5))
    model = fedmom.model(seeded(Tied), data)
    params = model.init(jax.random.key(0))
    assert [*params] == ["rows.weight"]
    for rows in (1, 2, 7):
        assert model.apply(params, jnp.asarray(x[:rows]), None).shape == (rows, 5)
    trained = run(data, seeded(Tied), tmp_path / "run", clients_per_round=2)
    found = trained.to_torch(Tied())
    assert found.out.weight is found.rows.weight
    np.testing.assert_array_equal(found.out.weight.detach(), trained.params["rows.weight"])


@pytest.mark.thorough
def test_a_function_makes_the_same_module_every_time():
    def net(features):
        return nn.Linear(*features.shape, features.classes)

    spec = fedmom.MODELS.adopt("net", "0" * 8, net)
    found = fedmom.build_model(spec, VECTORS).init(jax.random.key(0))
    torch.manual_seed(0)
    np.testing.assert_array_equal(found["weight"], net(VECTORS).weight.detach())


class Asks(nn.Module):
    def forward(self, x):
        return x[:, :3] if x.sum() > 0 else x[:, 1:]


class Inverts(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return torch.special.i1e(x[:, :3]) * self.scale


def refused(module):
    with pytest.raises(fedmom.FedMomError) as caught:
        vectors(module)
    return str(caught.value)


def test_refusals_say_what_to_do(monkeypatch):
    told = refused(Asks())
    assert "cannot be exported by torch.export" in told
    assert 'runtime="torch:workers=2"' in told
    told = refused(Inverts())
    assert "uses aten.special_i1e (return torch.special.i1e(x[:, :3]) * self.scale)" in told
    assert '@fedmom.torch_op("aten.special_i1e")' in told
    assert "inputs of shape (N, 4) (float32): RuntimeError: mat1" in refused(nn.Linear(5, 3))
    assert "Linear is a class of PyTorch. Give an instance of it." in refused(nn.Linear)
    monkeypatch.setattr("fedmom.models.torch.table.OWN", {})
    fedmom.torch_op("aten.special_i1e")(jax.scipy.special.i1e)
    model, x = vectors(Inverts()), jnp.linspace(-1, 1, 8).reshape(2, 4)
    right = torch.special.i1e(torch.from_numpy(np.array(x))[:, :3])
    np.testing.assert_allclose(model.apply({"scale": 1.0}, x, None), right, rtol=1e-5)


@pytest.mark.thorough
def test_images_come_in_torchs_order():
    class Shape(nn.Module):
        def __init__(self, wanted):
            super().__init__()
            self.wanted, self.out = wanted, nn.Linear(wanted[-1], 3)

        def forward(self, x):
            assert tuple(x.shape[1:]) == self.wanted
            return self.out(x.reshape(len(x), -1, self.wanted[-1]).mean(1))

    forms = {
        (8, 9): [(1, 8, 9), (8, 9)],
        (8, 9, 3): [(3, 8, 9), (8, 9, 3)],
        (3, 8, 9): [(3, 8, 9)],
    }
    for shape, wanted in forms.items():
        for form in wanted:
            model = fedmom.model(Shape(form), Features("image", shape, 3))
            x = np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32)
            moved = {(1, 8, 9): x[:, None]}.get(form, x)
            moved = np.moveaxis(x, 3, 1) if shape == (8, 9, 3) and form[0] == 3 else moved
            params = model.init(jax.random.key(0))
            rows = moved.reshape(2, -1, form[-1]).mean(1)
            right = rows @ params["out.weight"].T + params["out.bias"]
            np.testing.assert_allclose(model.apply(params, x, None), right, rtol=1e-4, atol=1e-5)


def test_modules_are_known_by_their_code_settings_and_weights():
    module, other = seeded(), seeded()
    assert fingerprint(module) == fingerprint(other.eval())
    other.norm.eps = 0.1
    assert fingerprint(module) != fingerprint(other)
    assert fingerprint(module) != fingerprint(seeded(seed=1))
    other = seeded()
    other.out.weight.requires_grad_(False)
    assert fingerprint(module) != fingerprint(other)

    class Changed(Small):
        def forward(self, x):
            return super().forward(2 * x)

    assert fingerprint(seeded(Changed)) != fingerprint(module)


@pytest.mark.thorough
def test_a_converted_module_needs_no_torch(tmp_path):
    cloudpickle = pytest.importorskip("ray").cloudpickle
    model, x = vectors(seeded(lambda: nn.Sequential(nn.Linear(4, 3), nn.GELU()))), np.ones((2, 4))
    (tmp_path / "model").write_bytes(cloudpickle.dumps(model))
    np.save(tmp_path / "outputs.npy", model.apply(model.init(jax.random.key(0)), x, None))
    program = """
import sys
sys.modules["torch"] = None
import jax, numpy as np
from ray import cloudpickle
model = cloudpickle.loads(open("model", "rb").read())
found = model.apply(model.init(jax.random.key(0)), np.ones((2, 4)), None)
np.testing.assert_allclose(found, np.load("outputs.npy"), rtol=1e-5)
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)


@pytest.mark.thorough
def test_every_kind_of_stage_and_export_takes_a_module(images, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    how = {"algorithm": "fedmom", "aggregate": "clip:norm=1+mean", "solver": "adam"}
    trained = run(images, seeded(), tmp_path / "run", **how)
    folder, x = trained.export(onnx_batch=2), np.array(images.arrays["x"][:2], np.float32)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(found, trained.outputs(x), rtol=1e-4, atol=1e-5)
