"""Objects in the place of names: they get names of their own, and are known again."""

import functools
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedmom
from fedmom.core.errors import FedMomError
from fedmom.core.identity import fingerprint, importable, label

RATE = 0.5


def scheduled(rate):
    return lambda t: rate / (1 + t)


def with_global(t):
    return RATE * t


def squares(data):
    return jax.tree.map(jnp.square, data)


@pytest.mark.parametrize(
    "make",
    [
        lambda a: optax.adam(a),
        lambda a: optax.chain(optax.clip(1.0), optax.sgd(a)),
        lambda a: optax.sgd(optax.cosine_decay_schedule(a, 10)),
        scheduled,
        lambda a: fedmom.Algorithm(fedmom.servers.fedmom(a)),
        lambda a: functools.partial(scheduled, a),
        lambda a: {"w": np.full(3, a)},
        lambda a: jnp.full(3, a),
        lambda a: {a, "b"},
        lambda a: fedmom.clip(norm=a),
    ],
)
def test_equal_objects_have_equal_fingerprints_and_others_have_not(make):
    assert fingerprint(make(0.1)) == fingerprint(make(0.1))
    assert fingerprint(make(0.1)) != fingerprint(make(0.2))


def test_a_global_number_counts(monkeypatch):
    before = fingerprint(with_global)
    monkeypatch.setattr(sys.modules[__name__], "RATE", 0.7)
    assert fingerprint(with_global) != before


def test_an_attribute_is_no_global_of_the_same_name(monkeypatch):
    def net(features):
        return features.classes

    before = fingerprint(net)
    monkeypatch.setitem(globals(), "classes", 3)
    assert fingerprint(net) == before


def test_a_global_counts_in_a_function_inside(monkeypatch):
    def made():
        return lambda t: RATE * t

    before = fingerprint(made)
    monkeypatch.setitem(globals(), "RATE", 0.7)
    assert fingerprint(made) != before


def test_code_counts():
    def twice(x):
        return 2 * x

    def thrice(x):
        return 3 * x

    assert fingerprint(twice) != fingerprint(thrice)


def test_an_object_that_holds_itself_has_a_fingerprint():
    loop = []
    loop.append(loop)
    assert len(fingerprint(loop)) == 64


def test_keys_count_with_their_data():
    assert fingerprint(jax.random.key(0)) != fingerprint(jax.random.key(1))


def test_fingerprints_are_the_same_in_another_process(tmp_path, run_python):
    code = """
        import optax, fedmom
        from fedmom.core.identity import fingerprint
        def half(t):
            return 0.5 * t
        for value in (optax.adam(half), fedmom.servers.fedmom(2.0), {"a", "b"}):
            print(fingerprint(value))
    """
    (tmp_path / "print_it.py").write_text(textwrap.dedent(code))
    first, second = (run_python(tmp_path / "print_it.py") for _ in range(2))
    assert first == second


@pytest.fixture
def run_python():
    import subprocess

    def run(path):
        done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
        return done.stdout

    return run


def test_labels_and_importable_names():
    assert label(optax.adam) == "adam"
    assert label(functools.partial(scheduled, 0.1)) == "scheduled"
    assert label(lambda t: t) == "lambda"
    assert importable(scheduled) == f"{__name__}.scheduled"
    assert importable(scheduled(0.1)) is None


def net(width):
    """A linear model, made anew."""

    def init(key):
        return {"w": 0.01 * jax.random.normal(key, (60, width)), "b": jnp.zeros(10)}

    def apply(params, x, _key):
        return jnp.dot(x, params["w"])[:, :10] + params["b"]

    return fedmom.Model(init, apply)


def linear(features):
    """A model as a function of the features."""
    return net(features.classes)


def fixed_cohort(seed, round_, _size, _samples):
    return np.array([(seed + round_) % 4, 3 if (seed + round_) % 4 != 3 else 0])


DATA = fedmom.load_data("synthetic:clients=4")


@pytest.mark.parametrize(
    ("setting", "value", "name"),
    [
        ("data", DATA, "synthetic@"),
        ("model", net(10), "model@"),
        ("model", linear, f"@{__name__}.linear"),
        ("algorithm", optax.adam(0.01), "optax@"),
        ("algorithm", fedmom.Algorithm(fedmom.servers.fedavg(2.0)), "algorithm@"),
        ("algorithm", fedmom.servers.fedavgm, "@fedmom.algorithms.server.fedavgm"),
        ("solver", lambda lr: optax.sgd(lr, momentum=0.5), "lambda@"),
        ("lr", lambda t: 0.01 / (1 + t), "lambda@"),
        ("server_lr", optax.constant_schedule(1.5), "lambda@"),
        ("sampler", fixed_cohort, f"@{__name__}.fixed_cohort"),
        ("aggregate", [fedmom.clip(norm=1.0), fedmom.trimmed_mean("uniform")], "stage@"),
    ],
)
def test_an_object_stands_where_a_name_may(setting, value, name, tmp_path):
    settings = {"data": "synthetic:clients=4", "lr": 0.01, "weighting": "uniform", setting: value}
    run = fedmom.run(**settings, rounds=2, out=tmp_path / "run", progress=False)
    assert run.status == "finished"
    assert str(run.settings[setting.replace("_", "-")]).startswith(name)
    # Another process has none of the tables' new rows: it is the same, given the object.
    again = fedmom.load(tmp_path / "run", **{setting: value})
    assert again.settings == run.settings


def test_an_object_gives_the_numbers_that_its_name_gives(tmp_path):
    common = {"data": "synthetic:clients=4", "rounds": 3, "progress": False, "lr": 0.01}
    by_name = fedmom.run(**common, algorithm="fedmom", out=tmp_path / "a", weighting="cohort")
    common["data"] = DATA
    made = fedmom.Algorithm(fedmom.servers.fedmom(1.0, 0.9))
    by_object = fedmom.run(**common, algorithm=made, out=tmp_path / "b", weighting="cohort")
    jax.tree.map(np.testing.assert_array_equal, by_name.params, by_object.params)


@pytest.fixture
def script(tmp_path):
    """A program of a user's, with a model of its own, that runs or goes on."""
    (tmp_path / "program.py").write_text(
        textwrap.dedent(
            """
            import sys, jax, jax.numpy as jnp, optax, fedmom
            WIDTH = int(sys.argv[2])
            net = fedmom.Model(
                lambda key: jax.random.normal(key, (60, WIDTH)) * 0.01,
                lambda params, x, key: (x @ params)[:, :10],
            )
            if sys.argv[1] == "start":
                stop = lambda event: "enough" if event.round == 2 else None
                fedmom.run("synthetic:clients=4", model=net, algorithm=optax.sgd(2.0), rounds=4,
                           lr=0.01, out="run", progress=False, callbacks=[stop])
            else:
                run = fedmom.load("run", model=net, algorithm=optax.sgd(2.0))
                print(run.resume(progress=False).status, run.result.done)
            """
        )
    )

    def call(*arguments):
        import subprocess

        command = [sys.executable, "program.py", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    return call


def test_a_run_with_objects_goes_on_in_another_process(script, tmp_path):
    assert script("start", "10").returncode == 0
    other = script("go on", "12")
    assert "was started with model model@" in other.stderr
    read = fedmom.load(tmp_path / "run")  # results need no objects
    assert (read.status, len(read.rounds), read.rounds.shape) == ("stopped", 2, (2, 8))
    assert read.plot().axes
    for use in (read.resume, read.clients, lambda: read.predict([[0.0] * 60]), lambda: read.params):
        with pytest.raises(FedMomError, match=r"Give them again: .*model=\.\.\., algorithm=\.\.\."):
            use()
    assert script("go on", "10").stdout == "finished 4\n"


def test_a_function_in_the_working_folder_has_a_name_on_the_command_line(tmp_path, monkeypatch):
    from click.testing import CliRunner

    from fedmom.cli.main import cli

    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_methods.py").write_text(
        "import optax\n"
        "def fedlion(learning_rate=0.001, momentum=0.9, *, b2: float = 0.99):\n"
        "    return optax.lion(learning_rate, b1=momentum, b2=b2)\n"
    )
    command = "run --data synthetic:clients=4 --rounds 2 --out run --algorithm"
    done = CliRunner().invoke(cli, [*command.split(), "@my_methods.fedlion:b2=0.9"])
    assert done.exit_code == 0, done.output
    assert fedmom.load("run").settings["algorithm"] == "@my_methods.fedlion:b2=0.9"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"data": [1, 2]}, r"data is \[1, 2\]"),
        ({"model": 3.5j}, "net is 3.5j. Give"),
        ({"algorithm": object()}, "algorithm is of type object"),
        ({"algorithm": "@nowhere.fedlion"}, "@nowhere.fedlion cannot be imported"),
        ({"algorithm": "@fedlion"}, "Write @module.function"),
        ({"algorithm": "@math.pi"}, "@math.pi is not a function"),
        ({"sampler": [3]}, r"sampler is \[3\]"),
        ({"lr": [3]}, r"lr is \[3\]"),
        ({"aggregate": 3.5j}, "aggregate is 3.5j"),
        ({"algorithm": optax.sgd(1.0), "server_lr": 2.0}, "has its own learning rate"),
        ({"model": "net@12345678"}, "is an object that was given from Python"),
    ],
)
def test_what_cannot_stand_there_is_refused_in_a_sentence(settings, words, tmp_path):
    with pytest.raises(FedMomError, match=words):
        fedmom.run(**{"data": "synthetic:clients=4", **settings}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_data_is_not_kept_alive(tmp_path):
    x, y = np.zeros((6, 2), np.float32), np.zeros(6, np.int64)
    data = fedmom.from_arrays(x, y, np.arange(6) % 2)
    run = fedmom.run(data, rounds=1, out=tmp_path / "run", progress=False)
    name = run.settings["data"]
    del run, data
    import gc

    gc.collect()
    with pytest.raises(FedMomError, match="Give it again"):
        fedmom.load_data(name)


def linen(features_in):
    import flax.linen as nn

    class Net(nn.Module):
        width: int

        @nn.compact
        def __call__(self, x):
            return nn.Dense(10)(nn.relu(nn.Dense(self.width)(x)))

    return Net(features_in)


def test_a_flax_module_stands_in_the_place_of_a_models_name(tmp_path):
    run = fedmom.run(DATA, linen(7), rounds=2, out=tmp_path / "run", progress=False)
    assert run.settings["model"].startswith("Net@")
    assert run.predict(DATA.arrays["x"][:4]).shape == (4,)
    assert fedmom.load(tmp_path / "run", data=DATA, model=linen(7)).status == "finished"
    with pytest.raises(FedMomError, match="was started with model Net@"):
        fedmom.load(tmp_path / "run", data=DATA, model=linen(8))


def test_a_regression_predicts_numbers(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    y = x @ np.array([1.0, -2.0, 0.5], np.float32)
    data = fedmom.from_arrays(x, y, np.arange(60) % 4, test_fraction=0.2)
    settings = {"rounds": 40, "lr": 0.1, "algorithm": "fedavg", "weighting": "cohort"}
    run = fedmom.run(data, out=tmp_path / "run", progress=False, **settings)
    np.testing.assert_allclose(run.predict(x)[:, 0], y, atol=0.2)
    assert "test_accuracy" not in run.clients()


def splines():
    """Two schedules of SciPy, whose classes have slots."""
    from scipy.interpolate import CubicSpline

    at = np.linspace(0, 50, 6)
    return CubicSpline(at, np.full(6, 0.001)), CubicSpline(at, np.full(6, 0.05))


def test_two_splines_are_two_learning_rates(tmp_path):
    slow, fast = splines()
    common = {"data": DATA, "algorithm": "fedavg", "rounds": 2, "progress": False}
    runs = fedmom.sweep({"lr": [slow, fast]}, out=tmp_path / "sweep", **common)
    by_number = [
        fedmom.run(lr=lr, out=tmp_path / str(lr), **common).result.last("test", "loss")
        for lr in (0.001, 0.05)
    ]
    losses = [run.result.last("test", "loss") for run in runs.values()]
    np.testing.assert_allclose(losses, by_number, rtol=1e-5)
    first = next(iter(runs.values()))
    with pytest.raises(FedMomError, match="was started with lr CubicSpline@"):
        fedmom.load(first.path, lr=fast).resume(progress=False)


def test_an_object_without_content_runs_under_its_name(tmp_path):
    rates = (0.01 for _ in range(99))  # a generator
    common = {"data": DATA, "rounds": 1, "progress": False, "out": tmp_path / "run"}

    def schedule(t, _rates=rates):
        return 0.01 + 0 * t

    with pytest.raises(FedMomError, match=r"lr cannot be known again: .*fedmom.named"):
        fedmom.run(lr=schedule, **common)
    run = fedmom.run(lr=fedmom.named(schedule, "steady"), **common)
    assert run.settings["lr"] == "steady@named"
    assert fedmom.load(run.path, lr=schedule).settings == run.settings


def test_two_objects_of_one_name_are_not_one_run(tmp_path):
    rates = [fedmom.named(lambda t, lr=lr: lr + 0 * t, "mine") for lr in (0.1, 0.2)]
    with pytest.raises(FedMomError, match="Two objects are named 'mine'"):
        fedmom.sweep({"lr": rates}, data=DATA, out=tmp_path / "sweep")


def test_an_object_of_a_name_used_before_is_the_one_that_trains(tmp_path):
    common = {"data": DATA, "algorithm": "fedavg", "rounds": 2, "progress": False}
    losses = [
        fedmom.run(
            lr=fedmom.named(lambda t, lr=lr: lr + 0 * t, "again"), out=tmp_path / f"{lr}", **common
        ).result.last("test", "loss")
        for lr in (0.001, 0.05)
    ]
    by_number = [
        fedmom.run(lr=lr, out=tmp_path / f"number{lr}", **common).result.last("test", "loss")
        for lr in (0.001, 0.05)
    ]
    np.testing.assert_allclose(losses, by_number, rtol=1e-5)


def test_a_module_that_was_loaded_again_is_the_one_that_trains(tmp_path, monkeypatch):
    import importlib

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    common = {"data": DATA, "rounds": 2, "lr": 0.01, "progress": False}
    losses = []
    for rate in (0.5, 2.0):
        code = f"import optax\ndef method():\n    return optax.sgd({rate})\n"
        (tmp_path / "loaded_again.py").write_text(code)
        if "loaded_again" in sys.modules:
            importlib.reload(sys.modules["loaded_again"])
        run = fedmom.run(algorithm="@loaded_again.method", out=tmp_path / f"{rate}", **common)
        losses.append(run.result.last("test", "loss"))
        given = fedmom.run(algorithm=optax.sgd(rate), out=tmp_path / f"object{rate}", **common)
        assert given.result.last("test", "loss") == losses[-1]
    assert losses[0] != losses[1]


SCALE = 0.1


def scaled(params, x, _key):
    return SCALE * (x @ params)


def first_weights(key):
    return 0.1 * jax.random.normal(key, (60, 10))


def stepped(aggregate, state, params):
    return jax.tree.map(lambda w, g: w - SCALE * g, params, aggregate), state, {}


@pytest.mark.parametrize(
    "given",
    [
        lambda: {"model": fedmom.Model(first_weights, scaled)},
        lambda: {"model": lambda _features: fedmom.Model(first_weights, scaled)},
        lambda: {"algorithm": fedmom.Algorithm(fedmom.Server(lambda _: (), stepped))},
        lambda: {"algorithm": fedmom.Server(lambda _: (), stepped)},
    ],
)
def test_a_global_number_that_was_changed_in_between_counts(tmp_path, monkeypatch, given):
    common = {"data": DATA, "algorithm": "fedavg", "rounds": 2, "lr": 0.01, "progress": False}

    def loss(name):
        run = fedmom.run(**{**common, **given()}, out=tmp_path / name)
        return run.result.last("test", "loss")

    slow = loss("slow")
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 3.0)
    fast = loss("fast")
    jax.clear_caches()  # as in another process
    assert loss("fast again") == fast != slow
