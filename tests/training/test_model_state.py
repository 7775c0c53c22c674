"""Models with state in whole rounds, against NumPy: averaged as in FedAvg, local as in FedBN."""

import runpy
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

import fedmom
from fedmom.algorithms.forms import Form
from fedmom.algorithms.model_state import StatefulUpdate
from fedmom.models.variables import Variables
from fedmom.runtimes import local
from fedmom.runtimes.base import Block
from fedmom.training.admission import Admitted
from fedmom.training.aggregate import Carried, Collected, compile_programs, empty
from fedmom.training.loop import broadcast_of
from fedmom.training.samplers import cohort
from tests.conftest import ROOT, population
from tests.experiments import small
from tests.models.nets import plain_net
from tests.training.scripted import no_net, workload

SIZES = [3, 7, 12]  # one client is smaller than a batch
M, H, B, LR, BETA, SEED, ROUNDS = 2, 3, 5, 0.2, 0.9, 4, 4
NORM = ("scale", "shift", "mean", "var")
WORK = fedmom.LocalWork(lr=LR, steps=H, batch_size=B)


def flat(trained, own_trained, state):
    """All arrays of the plain net by short names, as doubles."""
    norm = (own_trained or trained)["norm"]
    named = {
        "w1": trained["hidden"]["w"],
        "b1": trained["hidden"]["b"],
        "w2": trained["out"]["w"],
        "b2": trained["out"]["b"],
        **norm,
        **state["norm"],
    }
    return {name: np.asarray(leaf, np.float64) for name, leaf in named.items()}


def numpy_step(net, x, y):
    """One SGD step through batch norm, all gradients written out."""
    n = len(x)
    z = x @ net["w1"] + net["b1"]
    mean, var = z.mean(0), z.var(0)
    root = np.sqrt(var + 1e-5)
    unit = (z - mean) / root
    a = unit * net["scale"] + net["shift"]
    r = np.maximum(a, 0)
    logits = r @ net["w2"] + net["b2"]
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(n), y] -= 1
    p /= n
    da = (p @ net["w2"].T) * (a > 0)
    du = da * net["scale"]
    dz = (du - du.mean(0) - unit * (du * unit).mean(0)) / root
    slopes = {
        "w1": x.T @ dz,
        "b1": dz.sum(0),
        "w2": r.T @ p,
        "b2": p.sum(0),
        "scale": (da * unit).sum(0),
        "shift": da.sum(0),
    }
    new = {name: net[name] - LR * slope for name, slope in slopes.items()}
    return new | {
        "mean": 0.9 * net["mean"] + 0.1 * mean,
        "var": 0.9 * net["var"] + 0.1 * var,
    }


def numpy_client(net, data, round_, k):
    """Local steps on the documented draws."""
    rows = slice(data.train.start[k], data.train.start[k] + SIZES[k])
    x, y = data.arrays["x"][rows].astype(float), data.arrays["y"][rows]
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(SEED), 1), round_)
    key = jax.random.fold_in(key, k)
    for h in range(H):
        drawn = np.asarray(jax.random.bits(jax.random.fold_in(key, h), (B,))) % SIZES[k]
        net = numpy_step(net, x[drawn], y[drawn])
    return net


def by_hand(first, data, kept):
    """FedMom with η = K/M; what is kept stays with clients, else statistics are plain means."""
    net, velocity = first, {name: 0 * leaf for name, leaf in first.items()}
    own = {}
    share = np.array(SIZES) / sum(SIZES)
    eta = len(SIZES) / M
    for t in range(ROUNDS):
        asked = cohort(SEED, t, len(SIZES), M).tolist()
        replies = {}
        for k in asked:
            start = net | (own.get(k, {}) if kept else {})
            replies[k] = numpy_client(start, data, t, k)
            own[k] = {name: replies[k][name] for name in NORM}
        new = dict(net)
        for name in net:
            if name in ("mean", "var") and not kept:
                weights = [SIZES[k] for k in asked]
                new[name] = np.average([replies[k][name] for k in asked], 0, weights)
            elif not (kept and name in NORM):
                g = sum(share[k] * (net[name] - replies[k][name]) for k in asked)
                velocity[name] = BETA * velocity[name] - eta * g
                new[name] = net[name] + BETA * velocity[name] - eta * g
        net = new
    return net, own


@pytest.mark.parametrize(
    ("choice", "way"),
    [
        ("average", "few"),
        ("local", "many"),
        pytest.param("average", "many", marks=pytest.mark.slow),
        pytest.param("local", "one", marks=pytest.mark.slow),
    ],
)
def test_rounds_are_those_by_hand(choice, way, monkeypatch):
    monkeypatch.setattr(local, "SHORT", float("inf") if way == "few" else 0)
    monkeypatch.setattr(local, "CALL", 0)
    data = population(SIZES)
    model = fedmom.model(plain_net(), data, state=choice, has_state=True)
    algorithm = fedmom.Algorithm(fedmom.servers.fedmom(len(SIZES) / M, BETA), WORK)
    run = fedmom.Workload(data, model, algorithm, SEED)
    runtime = fedmom.LocalRuntime(run, vectorized=way == "many")
    begin = run.params()
    kept = choice == "local"
    first = flat(begin.trained, begin.own_trained, _state(begin))
    net, own = by_hand(first, data, kept)
    *_, (state, record) = fedmom.train(runtime, pace=fedmom.synchronous(M), rounds=ROUNDS)
    assert record.update_norm < 10  # of the parameters alone
    found = flat(state.params.trained, state.params.own_trained, _state(state.params))
    for name, leaf in net.items():
        np.testing.assert_allclose(found[name], leaf, rtol=2e-3, atol=2e-4, err_msg=name)
    if not kept:
        assert np.abs(found["mean"] - first["mean"]).max() > 0.05
        return
    for k, norm in own.items():
        mine = runtime._client.personal(state.params, runtime.states.get(k, state.params))
        here = flat(mine.trained, mine.own_trained, mine.own_state)
        for name in NORM:
            np.testing.assert_allclose(here[name], norm[name], rtol=2e-3, atol=2e-4)
    scores = runtime.evaluate(state.params, "train")
    for k in range(3):
        params = state.params
        if k in own:
            params = runtime._client.personal(params, runtime.states.get(k, params))
        rows = slice(data.train.start[k], data.train.start[k] + SIZES[k])
        outputs = model.apply(params, data.arrays["x"][rows], None)
        expected = model.losses(outputs, jnp.asarray(data.arrays["y"][rows])).sum()
        np.testing.assert_allclose(scores.sums["loss"][k], expected, rtol=1e-4)


def _state(params):
    return params.state or params.own_state


ONE = {"w": jnp.ones(2)}


def _turns(update, state, sent, _key):
    return jax.tree.map(lambda u: u * sent, update), state, {"by": sent}


def _turned_back(aggregate, state, _round):
    return jax.tree.map(lambda a: a / state, aggregate), state + 1, {"by": state}


def _first_turn(form):
    assert form.keys() == ONE.keys()  # of the parameters alone
    return jnp.float32(2.0)


# Its state on the server changes what clients send, and would change a model's state as well.
TURN = fedmom.Stage("turn", _turns, send=lambda s: s, init=_first_turn, after=_turned_back)
NESTEROV = fedmom.servers.fedmom(5.0, 0.9)
METHODS = {
    "population": {"rule": fedmom.mean("population")},
    "cohort": {"rule": fedmom.mean("cohort")},
    "uniform": {"rule": fedmom.mean("uniform")},
    "fedadam": {"server": fedmom.servers.fedadam(0.1), "rule": fedmom.mean("cohort")},
    "averaged": {"server": fedmom.servers.averaged(NESTEROV, 0.9)},
    "quantized": {"stages": (fedmom.clip(norm=1.0), fedmom.quantize(bits=4))},
    "noisy": {"stages": (fedmom.noise(std=0.1),), "rule": fedmom.mean("uniform")},
    "server's stage": {"stages": (TURN, fedmom.quantize(bits=8)), "rule": fedmom.mean("cohort")},
    "trimmed": {"rule": fedmom.trimmed_mean(share=0.3)},
    "median": {"rule": fedmom.median("uniform")},
    "median by size": {"rule": fedmom.median("cohort"), "stages": (fedmom.quantize(bits=4),)},
}
METHODS = {name: fedmom.Algorithm(**({"server": NESTEROV} | m)) for name, m in METHODS.items()}


def one_step(name, before, blocks, population=10_000):
    """The parameters after a step, given blocks of (update, state, samples, factor)."""
    model = fedmom.Model(
        lambda _key: Variables(ONE, before),
        apply=no_net,
        state="average",
    )
    plain = workload(METHODS[name])
    run = fedmom.Workload(plain.data, model, plain.algorithm)
    state, method = fedmom.start(run), run.method
    broadcast = broadcast_of(run, state)
    forms = tuple(map(Form.of, method.forms(broadcast)))
    programs = compile_programs(method, forms)
    collected = Collected(
        method, programs, 3, lambda: empty(method.decoded([form.tree for form in forms]))
    )
    for update, kept, samples, factor in blocks:
        size = len(samples)
        rows = StatefulUpdate(update, kept, np.ones(size, np.float32))
        for stage, own in zip(method.stages, state.stages, strict=True):
            if stage.encode is not None:
                sent = stage.send(own) if stage.send else ()
                keys = jax.random.split(jax.random.key(0), size)
                encode = partial(_encoded, stage.encode, sent)
                rows = jax.vmap(encode)(rows, keys)
        loss = {"loss": np.ones(size, np.float32)}
        block = Block(np.arange(size), rows, np.array(samples), loss, 0)
        admitted = Admitted(np.ones(size, int), np.ones(size, bool), factor)
        collected.add(block, admitted)
    key = jax.random.key(1)
    return collected.step(Carried(*state[1:]), 0, population, key)


def _encoded(encode, sent, row, key):
    return encode(row, (), sent, key)[0]


def clients(variances, counts):
    """Updates of one, and states with these numbers."""
    update = {"w": np.ones((len(variances), 2), np.float32)}
    return update, {"var": np.array(variances, np.float32), "count": np.array(counts, np.int32)}


VARIANCES = st.lists(st.floats(0, 1e6, width=32), min_size=3, max_size=3)


@settings(max_examples=100)
@given(
    name=st.sampled_from(sorted(METHODS)),
    before=st.floats(0, 1e6, width=32),
    variances=VARIANCES,
    counts=st.lists(st.integers(0, 1000), min_size=3, max_size=3),
    samples=st.lists(st.integers(1, 500), min_size=3, max_size=3),
    stale=st.sampled_from([1.0, 0.5]),
)
def test_averaged_state_is_combined_as_updates_are(name, before, variances, counts, samples, stale):
    """Whatever the server, its momentum and the stages: no variance leaves the clients' range."""
    state = {"var": jnp.float32(before), "count": jnp.int32(3)}
    update, kept = clients(variances, counts)
    late = jax.tree.map(lambda leaf: leaf[:1], (update, kept))
    new = jax.tree.map(lambda leaf: leaf[1:], (update, kept))
    blocks = [(*late, samples[:1], stale), (*new, samples[1:], 1.0)]
    params = one_step(name, state, blocks).carried.params
    found, rule = float(params.state["var"]), METHODS[name].rule or fedmom.mean()
    weights = rule.weigh(np.array(samples)) * np.array([stale, 1, 1])
    exact = np.array(variances, np.float32)
    assert min(variances) * (1 - 1e-5) <= found <= max(variances) * (1 + 1e-5)
    assert params.state["count"].dtype == jnp.int32
    assert min(counts) <= int(params.state["count"]) <= max(counts)
    if rule.each is None:
        mean = np.average(exact, weights=weights)
        assert found == pytest.approx(mean, rel=1e-4, abs=1e-6)
        mean = np.average(counts, weights=weights)
        assert int(params.state["count"]) == pytest.approx(mean, abs=0.501)
    else:
        one = rule.each({"v": exact[:, None]}, weights.astype(np.float32), ())[0]
        assert found == pytest.approx(float(one["v"][0]), rel=1e-4, abs=1e-6)
    assert float(params.trained["w"][0]) < 1  # and the server did take its step


@pytest.mark.parametrize("name", METHODS)
def test_without_replies_the_state_stays(name):
    state = {"var": jnp.float32(2.5), "count": jnp.int32(3)}
    params = one_step(name, state, []).carried.params
    assert (float(params.state["var"]), int(params.state["count"])) == (2.5, 3)
    assert (name == "noisy") == bool((params.trained["w"] != 1).any())


def test_a_stages_state_on_the_server_goes_on_beside_the_models():
    update, kept = clients([1.0, 2.0, 3.0], [1, 2, 3])
    stepped = one_step("server's stage", kept_of(2.5, 3), [(update, kept, [1, 1, 1], 1.0)])
    assert float(stepped.carried.stages[0]) == 3.0
    assert {name: float(x) for name, x in stepped.metrics.items()} == {"turn/by": 2.0}
    assert float(stepped.carried.params.state["var"]) == pytest.approx(2.0)
    # The aggregate is 1 again: FedMom's first step is -η (1 + β).
    np.testing.assert_allclose(stepped.carried.params.trained["w"], 1 - 5 * 1.9, rtol=1e-2)


def kept_of(variance, count):
    return {"var": jnp.float32(variance), "count": jnp.int32(count)}


@pytest.mark.parametrize("rule", [fedmom.mean("uniform"), fedmom.median()], ids=["mean", "median"])
def test_whole_rounds_with_stale_replies_and_stages(rule):
    """Batch norm, encoded updates, and replies to the model of a round before."""
    data = population([3, 7, 12, 9])
    model = fedmom.model(plain_net(), data, has_state=True)
    stages = (fedmom.clip(norm=0.5), fedmom.quantize(bits=8))
    algorithm = fedmom.Algorithm(fedmom.servers.fedmom(), WORK, rule=rule, stages=stages)
    runtime = fedmom.LocalRuntime(fedmom.Workload(data, model, algorithm, SEED))
    pace = fedmom.buffered(2, in_flight=3)
    before = runtime.workload.params().state["norm"]
    for state, record in fedmom.train(runtime, pace=pace, rounds=4):
        norm = state.params.state["norm"]
        assert record.metrics.keys() == {"clip/share"}
        assert record.update_norm <= 0.51
        assert (np.asarray(norm["var"]) > 0).all()
        assert np.abs(norm["mean"] - before["mean"]).max() > 1e-3
        before = norm
    assert record.replies >= 2


def test_the_last_batch_of_an_epoch_is_filled_up_from_its_beginning():
    """Statistics are those of samples of the client, none of them many times."""
    seen = []

    def apply(params, state, x, key):
        if key is not None:
            jax.debug.callback(lambda rows: seen.append(np.sort(rows[:, 0])), x, ordered=True)
        return x @ params, {"steps": state["steps"] + 1}

    x = np.arange(7, dtype=np.float32)[:, None]
    data = fedmom.from_arrays(x, np.arange(7) % 2, np.zeros(7, int))
    init = lambda _key: (jnp.zeros((1, 2)), {"steps": jnp.int32(0)})  # noqa: E731
    model = fedmom.model((init, apply), data, has_state=True)
    work = fedmom.LocalWork(lr=0.1, epochs=1, batch_size=4)
    algorithm = fedmom.Algorithm(fedmom.servers.fedavg(), work)
    runtime = fedmom.LocalRuntime(fedmom.Workload(data, model, algorithm))
    params = model.init(jax.random.key(0))
    runtime.ask(0, np.array([0]), params)
    (block,) = runtime.replies()
    assert int(block.update.state["steps"][0]) == 2
    first, last = seen
    assert len(set(first)) == len(set(last)) == 4
    assert len(set(first) & set(last)) == 1
    assert set(first) | set(last) == set(range(7))


def test_one_gradient_of_all_data_has_no_batch_statistics():
    data = population(SIZES)
    model = fedmom.model(plain_net(), data, has_state=True)
    runtime = fedmom.LocalRuntime(fedmom.Workload(data, model, fedmom.servers.fedsgd()))
    runtime.ask(0, np.array([0]), model.init(jax.random.key(0)))
    with pytest.raises(fedmom.FedMomError, match="is trained on batches"):
        list(runtime.replies())


def test_stages_see_the_parameters_only():
    """A clip bounds the update; the statistics come back whole."""
    data = population(SIZES)
    model = fedmom.model(plain_net(), data, has_state=True)
    params = model.init(jax.random.key(0))
    replies = []
    for stages in ((), (fedmom.clip(norm=1e-3),)):
        algorithm = fedmom.Algorithm(fedmom.servers.fedavg(), WORK, stages=stages)
        runtime = fedmom.LocalRuntime(fedmom.Workload(data, model, algorithm))
        runtime.ask(0, np.array([1]), params)
        replies += [block.update for block in runtime.replies()]
    plain, clipped = replies
    np.testing.assert_array_equal(plain.state["norm"]["var"], clipped.state["norm"]["var"])
    lengths = [
        float(np.sqrt(sum((np.asarray(x) ** 2).sum() for x in jax.tree.leaves(u.update))))
        for u in replies
    ]
    assert lengths[0] > 0.01
    assert lengths[1] == pytest.approx(1e-3, rel=1e-4)


def test_diagnostics_need_a_model_without_state():
    from fedmom.training.subproblem import Subproblem

    data = population(SIZES)
    model = fedmom.model(plain_net(), data, has_state=True)
    with pytest.raises(fedmom.FedMomError, match="are of models without state"):
        Subproblem(model, data, clients=2, samples=2)


@pytest.mark.slow
def test_a_method_of_ones_own_need_not_know_of_state():
    """SCAFFOLD, as it is: its control variates are of the parameters, its server has no state."""
    scaffold = runpy.run_path(str(ROOT / "examples" / "own_method.py"))["scaffold"]
    data = population(SIZES)
    for choice in ("average", "local"):
        model = fedmom.model(plain_net(), data, state=choice, has_state=True)
        run = fedmom.Workload(data, model, scaffold(share=1.0)._replace(work=WORK))
        runtime = fedmom.LocalRuntime(run)
        *_, (state, record) = fedmom.train(runtime, pace=fedmom.synchronous(3), rounds=3)
        assert record.train_loss < fedmom.evaluate(runtime, run.params(), "train").loss
        if choice == "average":
            assert (np.asarray(state.params.state["norm"]["var"]) > 0).all()
            assert state.params.state["norm"]["mean"].any()


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["average", "local"])
def test_a_run_that_goes_on_ends_as_one_that_never_stopped(tmp_path, choice):
    """State is in the checkpoint, the server's and the clients'."""

    def normed(features):
        """A net with batch norm."""
        from flax import linen

        class Net(linen.Module):
            @linen.compact
            def __call__(self, x, train):
                x = linen.BatchNorm(use_running_average=not train)(linen.Dense(4)(x))
                return linen.Dense(features.classes)(x)

        return fedmom.model(Net(), features, state=choice)

    fedmom.MODELS.register(f"normed_{choice}", normed)
    values = {"model": f"normed_{choice}", "clients-per-round": 3}
    whole = small.run(tmp_path / "whole", rounds=4, **values)
    small.run(tmp_path / "parts", rounds=2, **values)
    small.edit_config(tmp_path / "parts", "rounds = 2", "rounds = 4")
    resumed = small.resume(tmp_path / "parts", accept_changes=True)
    assert resumed.evals[-1] == whole.evals[-1]
    tensors = [load_file(tmp_path / p / "checkpoint" / "round-00000004.safetensors") for p in PARTS]
    assert tensors[0].keys() == tensors[1].keys()
    assert any("clients/" in name for name in tensors[0]) == (choice == "local")
    for name, tensor in tensors[0].items():
        np.testing.assert_array_equal(tensor, tensors[1][name])


PARTS = ("whole", "parts")
