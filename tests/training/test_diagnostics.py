"""Diagnostics: their numbers by independent formulas, and a run that they leave as it is."""

import itertools

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedmom
from fedmom.experiments import settings
from fedmom.experiments.build import prepare
from fedmom.experiments.execute import execute
from fedmom.experiments.folder import RunFolder
from fedmom.training.diagnostics import FEWEST, MOST, SHARE, Diagnostics, plan
from tests import by_hand
from tests.conftest import population

SIZES = [9, 5, 14, 7]  # few enough for the full gradient to be that of all of f
WORK = fedmom.LocalWork(lr=0.1, steps=3, batch_size=4)


def flat(tree):
    return np.asarray(jax.flatten_util.ravel_pytree(tree)[0], np.float64)


class Kept:
    """A runtime that keeps what passes through it; some clients are lost on the way."""

    def __init__(self, runtime, lost=()):
        self.runtime, self.lost, self.rounds = runtime, lost, {}

    def __getattr__(self, name):
        return getattr(self.runtime, name)

    def ask(self, round_, clients, broadcast):
        self.rounds[round_] = broadcast, []
        self.runtime.ask(round_, np.setdiff1d(clients, self.lost), broadcast)

    def replies(self, timeout=None):
        for block in self.runtime.replies(timeout):
            for row, client in enumerate(block.clients.tolist()):
                update = jax.tree.map(lambda leaf, row=row: leaf[row], block.update)
                self.rounds[block.version][1].append((client, update))
            yield block


def looked(weighting="population", server=None, per_round=3, lost=(), every=2, rounds=5):
    """Run with diagnostics; return what they say, and what truly happened, per round."""
    data = population(SIZES)
    model = fedmom.build_model("logreg", data.features)
    server = server or fedmom.servers.fedmom(2.0, 0.9)
    algorithm = fedmom.Algorithm(server, WORK, rule=fedmom.mean(weighting))
    workload = fedmom.Workload(data, model, algorithm)
    kept = Kept(fedmom.LocalRuntime(workload), [*lost])
    notes = Diagnostics(workload, every=every)
    found = {}
    pace = fedmom.synchronous(per_round)
    for state, record in fedmom.train(kept, pace=pace, rounds=rounds, watch=notes):
        found[state.round - 1] = notes.of(record, state.params), state.params
    return data, kept.rounds, found


@pytest.mark.parametrize("weighting", ["population", "cohort", "uniform"])
def test_the_numbers_are_their_definitions(weighting):
    data, happened, found = looked(weighting)

    samples = by_hand.read(data, np.arange(sum(SIZES)))
    for t in (0, 2, 4):
        before, replies = happened[t]
        numbers, after = found[t]
        gradient = flat(by_hand.logreg(before, *samples)[2])
        deltas = np.array([flat(update) for _, update in replies])
        sizes = np.array([SIZES[client] for client, _ in replies], float)
        weights = np.ones(len(sizes)) if weighting == "uniform" else sizes
        shares = weights / weights.sum()
        mean = shares @ deltas
        update = {"population": sizes @ deltas / sum(SIZES)}.get(weighting, mean)
        drifts = np.linalg.norm(deltas, axis=1)
        step = np.linalg.norm(flat(after) - flat(before))
        cosine = update @ gradient / np.linalg.norm(update) / np.linalg.norm(gradient)
        expected = {
            "gradient_norm": np.linalg.norm(gradient),
            "alignment": cosine,
            "drift": drifts.mean(),
            "drift_max": drifts.max(),
            "dissimilarity": shares @ drifts**2 / (mean @ mean),
            "step": step,
            "step_ratio": step / np.linalg.norm(update),
        }
        assert numbers == pytest.approx(expected, rel=1e-3)
    assert found[1][0] is None
    assert found[3][0] is None


def test_laws_of_the_numbers():
    *_, found = looked(server=fedmom.servers.fedavg(3.0), every=1)
    for numbers, _ in found.values():
        assert numbers["step_ratio"] == pytest.approx(3, rel=1e-4)  # η, for FedAvg
        assert numbers["dissimilarity"] >= 1 - 1e-5
        assert -1 <= numbers["alignment"] <= 1
    *_, alone = looked(per_round=1, every=1)
    assert all(n["dissimilarity"] == pytest.approx(1, rel=1e-4) for n, _ in alone.values())


def test_momentum_lengthens_the_step_towards_eta_over_one_minus_beta():
    """With an update that is always the same, w moves by η/(1-β) of it in the end."""
    server = fedmom.servers.fedmom(2.0, 0.5)
    params, state = jnp.zeros(3), server.init(jnp.zeros(3))
    update = jnp.ones(3)
    for _ in range(30):
        step, state = server.update(update, state, params)
    assert optax.tree.norm(step) / optax.tree.norm(update) == pytest.approx(2 / 0.5)


def test_a_round_without_replies_has_no_clients_to_compare():
    *_, found = looked(lost=range(4), every=1, rounds=2)
    assert all(set(numbers) == {"gradient_norm", "step"} for numbers, _ in found.values())
    assert found[0][0]["step"] == 0


SMALL = {"data": "synthetic:clients=6", "rounds": 12, "eval-every": 6, "lr": 0.01}


def prepared(**values):
    return prepare(settings.parse({**SMALL, **values}))


def run(path, observers=(), **values):
    experiment = prepared(**values)
    execute(RunFolder.create(path, experiment.config), experiment, observers)
    return path


def checkpoint_bytes(path):
    return {p.name: p.read_bytes() for p in sorted((path / "checkpoint").iterdir())}


def logs(path):
    """The logs without the clock."""
    folder = RunFolder.open(path)
    rounds = [{**r, "seconds": None} for r in folder.rows("rounds.jsonl")]
    return rounds, folder.rows("evals.jsonl")


class StopAt:
    """An observer that presses Ctrl-C after a round."""

    def __init__(self, round_):
        self.round_ = round_

    def __call__(self, event):
        if event.record and event.round == self.round_:
            raise KeyboardInterrupt


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg", "fedmom", "fedadam"])
def test_a_run_has_the_same_bits_with_diagnostics(tmp_path, algorithm):
    plain = run(tmp_path / "plain", algorithm=algorithm)
    noted = run(
        tmp_path / "noted", algorithm=algorithm, diagnostics=True, **{"diagnostics-every": 5}
    )
    assert checkpoint_bytes(plain) == checkpoint_bytes(noted)
    rounds, evals = logs(noted)
    assert [r["round"] for r in rounds if "diagnostics" in r] == [1, 6, 11]
    stripped = [{k: v for k, v in r.items() if k != "diagnostics"} for r in rounds]
    assert (stripped, evals) == logs(plain)


def test_a_resumed_run_has_the_same_diagnostics(tmp_path):
    values = {"diagnostics": True, "diagnostics-every": 2}
    whole = run(tmp_path / "whole", **values)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "part", [StopAt(round_=7)], **values)
    opened = RunFolder.open(tmp_path / "part")
    execute(opened, prepare(opened.settings()))
    assert logs(opened.path) == logs(whole)


def test_the_frequency_is_settled_before_the_run_and_written_down():
    config = prepared(diagnostics=True).config
    sizes = prepared().data.train.size
    assert config.diagnostics_every == plan(prepared().work, sizes, SMALL["rounds"])
    assert prepared().config.diagnostics_every is None
    assert settings.parse({"diagnostics": "true"}).diagnostics is True


@pytest.mark.parametrize(
    "values", [{"diagnostics-every": 0, "diagnostics": True}, {"rounds": True}]
)
def test_what_is_no_frequency_is_refused(values):
    with pytest.raises(fedmom.FedMomError, match=r"greater than or equal to 1|is not a value"):
        settings.parse(values)


def test_a_frequency_alone_is_refused():
    with pytest.raises(
        fedmom.FedMomError, match="diagnostics-every 5 is given, but no diagnostics"
    ):
        settings.parse({"diagnostics-every": 5})


@pytest.mark.parametrize(
    ("steps", "batch", "rounds"), list(itertools.product((1, 10, 200), (1, 10, None), (10, 5000)))
)
def test_a_look_costs_its_share_whatever_the_run(steps, batch, rounds):
    """Gradients of one sample in a look, against those of one client between two looks."""
    work = fedmom.LocalWork(steps=steps, batch_size=batch)
    data = population([30] * 40)
    every = plan(work, data.train.size, rounds)
    model = fedmom.build_model("logreg", data.features)
    algorithm = fedmom.Algorithm(fedmom.servers.fedavg(), work)
    notes = Diagnostics(fedmom.Workload(data, model, algorithm), every=every)
    between = every * steps * (batch or 30)
    looked_at = notes.sample.taken.sum()
    assert FEWEST / 2 <= looked_at <= MOST
    assert looked_at <= SHARE * between


def test_replies_that_do_not_count_are_not_looked_at():
    """A client that diverges is left out of the round, and so of what is said about it."""

    def diverging(params, state, problem, key):
        update, state, metrics = fedmom.LOCAL_TRAINING.run(params, state, problem, key)
        broken = jnp.where(problem.size == SIZES[0], jnp.nan, 0.0)
        return jax.tree.map(lambda leaf: leaf + broken, (update, state, metrics))

    data = population(SIZES)
    model = fedmom.build_model("logreg", data.features)
    found = []
    for client, lost in ((fedmom.Client(diverging), ()), (None, [0])):
        rule = fedmom.mean("cohort")
        algorithm = fedmom.Algorithm(fedmom.servers.fedavg(), WORK, client=client, rule=rule)
        workload = fedmom.Workload(data, model, algorithm)
        notes = Diagnostics(workload, every=1)
        ((state, record),) = fedmom.train(
            Kept(fedmom.LocalRuntime(workload), lost),
            pace=fedmom.synchronous(4),
            rounds=1,
            bad_replies="skip",
            watch=notes,
        )
        assert record.replies == 3
        found.append(notes.of(record, state.params))
    assert found[0] == pytest.approx(found[1], rel=1e-5)
