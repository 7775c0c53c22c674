"""What a checkpoint holds: the states of server, stages and rule, too."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file, save_file

import fedmom
from fedmom.core.errors import FedMomError
from fedmom.experiments import checkpoints
from tests.training.scripted import Scripted, fedavg, rounds, workload

COUNTS = fedmom.Stage(
    "counts",
    init=lambda form: {"seen": jnp.int32(0), "last": jax.tree.map(jnp.zeros_like, form)},
    after=lambda g, s, _: (g + s["last"], {"seen": s["seen"] + 1, "last": g}, {}),
)


def _momentum(rows, weights, state):
    found = 0.5 * state["velocity"] + weights @ rows / jnp.sum(weights)
    return found, {"velocity": found}, {}


REMEMBERS = fedmom.Rule(
    fedmom.mean("cohort").weigh,
    each=_momentum,
    init=lambda form: {"velocity": jax.tree.map(jnp.zeros_like, form)},
)
STATEFUL = fedmom.Algorithm(
    fedmom.servers.fedmom(), rule=REMEMBERS, stages=(COUNTS, fedmom.noise(std=0.1), COUNTS)
)


def pointed(folder):
    return checkpoints.read_pointer(folder / checkpoints.NEWEST)


def through_a_file(folder, state, algorithm, runtime=None):
    """The state, saved and loaded as a run does."""
    checkpoints.save(folder, checkpoints.Checkpoint(state, runtime or {}))
    return checkpoints.load(folder, pointed(folder), fedmom.start(workload(algorithm)))


def assert_equal(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.asarray(a).dtype == np.asarray(b).dtype


def test_states_of_stages_and_rule_survive_and_the_run_goes_on_to_the_same_bits(tmp_path):
    whole = [state for state, _ in rounds(Scripted(), STATEFUL, 5)]
    loaded = through_a_file(tmp_path, whole[1], STATEFUL, {"states/clients": np.arange(3)})
    assert_equal(loaded.state, whole[1])
    assert (loaded.state.round, list(loaded.runtime)) == (2, ["states/clients"])
    assert [s["seen"].item() if s else s for s in loaded.state.stages] == [2, (), 2]
    assert np.abs(loaded.state.rule["velocity"]).max() > 0
    *_, (end, _) = rounds(Scripted(), STATEFUL, 3, state=loaded.state)
    assert_equal(end, whole[-1])


@pytest.mark.parametrize(
    "server", [fedmom.servers.fedmom(), fedmom.servers.fedadam(), optax.sgd(1)]
)
def test_an_old_checkpoint_without_these_states_loads_for_a_method_that_has_none(tmp_path, server):
    """A state was (round, params, server) then, and the names of its tensors are the same."""
    algorithm = fedmom.Algorithm(server, stages=(fedmom.noise(std=0.1),))
    *_, (state, _) = rounds(Scripted(), algorithm, 2)
    loaded = through_a_file(tmp_path, state, algorithm)
    assert_equal(loaded.state, state)
    names = set(load_file(tmp_path / pointed(tmp_path).tensors))
    leaves = jax.tree_util.tree_leaves_with_path((state.params, state.server))
    assert names == {jax.tree_util.keystr(path) for path, _ in leaves}
    old = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
    save_file(old, tmp_path / "round-00000002.safetensors")
    pointer = checkpoints.Pointer(2)  # earlier versions wrote neither checksum nor lines
    assert_equal(
        checkpoints.load(tmp_path, pointer, fedmom.start(workload(algorithm))).state, state
    )


def test_a_checkpoint_without_a_states_tensors_is_refused_for_a_method_that_needs_them(tmp_path):
    *_, (state, _) = rounds(Scripted(), fedavg(), 1)
    plain = fedmom.Algorithm(fedmom.servers.fedavg(), stages=(COUNTS,))
    with pytest.raises(FedMomError, match=r"does not fit .* is missing, not"):
        through_a_file(tmp_path, state, plain)


def test_a_state_that_is_not_finite_is_refused(tmp_path):
    *_, (state, _) = rounds(Scripted(), STATEFUL, 1)
    bad = state._replace(rule={"velocity": state.rule["velocity"] * jnp.nan})
    with pytest.raises(FedMomError, match=r"velocity'\] is not finite"):
        through_a_file(tmp_path, bad, STATEFUL)


def counting(first, step):
    """An optimizer with a number that it counts on."""

    def update(gradient, state, _params=None):
        return jax.tree.map(lambda g: -g, gradient), {"n": step(state["n"])}

    return optax.GradientTransformation(lambda _: {"n": first}, update)


@pytest.mark.parametrize(
    ("first", "step", "says"),
    [
        (0, lambda n: n + 1.0, "of type float32 instead of int32"),
        (0.0, lambda n: n.astype("float16"), "of type float16 instead of float32"),
        (0.0, lambda n: n + np.zeros(3, "float32"), "of shape (3,) instead of ()"),
    ],
    ids=["type", "precision", "shape"],
)
def test_a_state_that_changes_its_form_is_refused_at_the_first_step(tmp_path, first, step, says):
    """Its checkpoint could not be read back. Earlier, that was said after the last round."""
    rounds = []
    with pytest.raises(fedmom.FedMomError, match=r"\['n'\]") as caught:
        fedmom.run(
            "synthetic:clients=4",
            algorithm=counting(first, step),
            out=tmp_path / "r",
            weighting="cohort",
            progress=False,
            callbacks=[lambda event: rounds.append(event.round)],
        )
    assert says in str(caught.value)
    assert rounds == []


@pytest.mark.parametrize("first", [0, 0.0])
def test_a_state_of_pythons_numbers_is_kept(tmp_path, first):
    algorithm = counting(first, lambda n: n + 1)
    task = {"weighting": "cohort", "progress": False, "rounds": 3}
    run = fedmom.run("synthetic:clients=4", algorithm=algorithm, out=tmp_path / "r", **task)
    assert run.predict(np.zeros((2, 60), "float32")).shape == (2,)
    assert fedmom.resume(tmp_path / "r", algorithm=algorithm, progress=False).status == "finished"


KEPT = {
    "bfloat16": jnp.asarray([1.0, 0.1], jnp.bfloat16),
    "float8_e5m2": jnp.asarray([1.0, 0.1], jnp.float8_e5m2),
    "random key": jax.random.key(3),
    "keys of another kind": jax.random.split(jax.random.key(4, impl="rbg")),
}


@pytest.mark.parametrize("first", KEPT.values(), ids=list(KEPT))
def test_a_state_of_any_type_can_be_read_back(tmp_path, first):
    """The library reads no bfloat16, and arrays of keys have no bytes of their own."""
    algorithm = fedmom.Algorithm(counting(first, lambda n: n))
    state = fedmom.start(workload(algorithm))
    found = through_a_file(tmp_path, state, algorithm).state.server["n"]
    assert (found.dtype, found.shape) == (first.dtype, first.shape)
    assert (found == first).all()


@pytest.mark.filterwarnings("ignore:the training loss ended above")
def test_noise_of_optax_resumes_to_the_same_bits(tmp_path):
    algorithm = optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(0)), optax.sgd(1.0))
    given = {"algorithm": algorithm, "rounds": 3, "weighting": "cohort", "progress": False}
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    data = "synthetic:clients=4"
    expected = fedmom.run(data, out=whole, **given)
    fedmom.run(data, out=stopped, callbacks=[lambda event: event.round == 1], **given)
    found = fedmom.resume(stopped, algorithm=algorithm, progress=False)
    assert_equal(found.params, expected.params)


def test_a_type_that_files_do_not_have_is_refused_before_the_first_round(tmp_path):
    rounds = []
    with pytest.raises(FedMomError, match="float8_e4m3b11fnuz, which cannot be written"):
        fedmom.run(
            "synthetic:clients=4",
            algorithm=counting(jnp.zeros(2, jnp.float8_e4m3b11fnuz), lambda n: n),
            out=tmp_path / "r",
            weighting="cohort",
            progress=False,
            callbacks=[lambda event: rounds.append(event.round)],
        )
    assert rounds == []
