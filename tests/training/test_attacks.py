"""Simulated attacks: who is hostile, what they send, and what the record says of it."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmom
from fedmom.algorithms.client import LocalProblem
from fedmom.algorithms.hostile import hostile_clients
from fedmom.core.errors import FedMomError
from tests.training.scripted import SIZES, fedavg, no_net, workload

CLIENTS, SHARE = 6, 0.34
WORK = fedmom.LocalWork(lr=0.05, steps=3, batch_size=4)


@pytest.fixture(scope="module")
def data():
    return fedmom.load_data(f"synthetic:clients={CLIENTS}")


def work(data, attack=None, **parts):
    model = fedmom.build_model("logreg", data.features)
    algorithm = fedmom.Algorithm(
        fedmom.servers.fedavg(), WORK, **({"rule": fedmom.mean("uniform")} | parts)
    )
    return fedmom.Workload(data, model, algorithm, seed=3, attack=attack)


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def updates(workload, round_=0):
    """What every client sends, as rows."""
    runtime = fedmom.LocalRuntime(workload)
    runtime.ask(round_, np.arange(CLIENTS), fedmom.start(workload).params)
    rows = {}
    for block in runtime.replies():
        for i, client in enumerate(block.clients.tolist()):
            rows[client] = flat(jax.tree.map(lambda leaf: np.asarray(leaf)[i], block.update))  # noqa: B023
    return np.array([rows[client] for client in range(CLIENTS)])


def step(workload):
    """What the first round changes of the model, and its record."""
    pace = fedmom.synchronous(CLIENTS, lambda *_: np.arange(CLIENTS))
    state, record = next(fedmom.train(fedmom.LocalRuntime(workload), pace=pace, rounds=1))
    return flat(fedmom.start(workload).params) - flat(state.params), record


BAD = hostile_clients(3, CLIENTS, SHARE)


def test_who_is_hostile_is_a_function_of_the_seed():
    assert BAD.sum() == 2
    found = [hostile_clients(seed, 1000, 0.2) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(found[0], found[1])
    assert [int(f.sum()) for f in found] == [200] * 3
    assert 20 < (found[0] & found[2]).sum() < 60  # 40 of them by chance


def test_sign_flip_sends_the_negative_of_the_update(data):
    honest, attacked = (
        updates(work(data)),
        updates(work(data, fedmom.sign_flip(share=SHARE, scale=3))),
    )
    np.testing.assert_array_equal(attacked[~BAD], honest[~BAD])
    np.testing.assert_allclose(attacked[BAD], -3 * honest[BAD], rtol=1e-6)


def test_gaussian_noise_has_a_norm_a_direction_and_another_one_in_the_next_round(data):
    attack = fedmom.gaussian(share=SHARE, scale=5.0)
    honest, attacked = updates(work(data)), updates(work(data, attack))
    np.testing.assert_array_equal(attacked[~BAD], honest[~BAD])
    lengths = np.linalg.norm(attacked, axis=1) / np.linalg.norm(honest, axis=1)
    np.testing.assert_allclose(lengths[BAD], 5.0, rtol=1e-4)
    np.testing.assert_array_equal(updates(work(data, attack)), attacked)
    cosine = np.corrcoef(attacked[BAD][0], updates(work(data, attack), 1)[BAD][0])[0, 1]
    assert abs(cosine) < 0.5


def test_label_flip_is_training_on_flipped_labels(data):
    classes = data.features.classes
    flipped = dataclasses.replace(
        data, arrays={**data.arrays, "y": (classes - 1 - data.arrays["y"]).astype(np.int32)}
    )
    attacked = updates(work(data, fedmom.label_flip(share=SHARE)))
    np.testing.assert_array_equal(attacked[~BAD], updates(work(data))[~BAD])
    np.testing.assert_allclose(attacked[BAD], updates(work(flipped))[BAD], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("stages", [(), (fedmom.bucketing(size=1),), (fedmom.clip(norm=100.0),)])
@pytest.mark.parametrize("name", ["alie", "ipm"])
def test_collusion_follows_from_the_honest_replies(data, name, stages):
    attack = {"alie": fedmom.alie(share=SHARE, z=2.0), "ipm": fedmom.ipm(share=SHARE, scale=4.0)}
    honest = updates(work(data))
    mean, deviation = honest[~BAD].mean(0), honest[~BAD].std(0, ddof=1)
    bad = {"alie": mean - 2 * deviation, "ipm": -4 * mean}[name]
    expected = (mean * (~BAD).sum() + bad * BAD.sum()) / CLIENTS
    found, record = step(work(data, attack[name], stages=stages))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
    assert record.metrics["attack/clients"] == 2


def test_a_round_without_an_honest_reply_stays_as_it_is(data):
    workload = work(data, fedmom.ipm(share=SHARE))
    bad = np.flatnonzero(BAD)
    pace = fedmom.synchronous(len(bad), lambda *_: bad)
    state, _ = next(fedmom.train(fedmom.LocalRuntime(workload), pace=pace, rounds=1))
    found = flat(fedmom.start(workload).params) - flat(state.params)
    np.testing.assert_allclose(found, updates(work(data))[BAD].mean(0), rtol=1e-4, atol=1e-6)


def test_a_robust_rule_bears_what_breaks_the_mean(data):
    attack = fedmom.sign_flip(share=SHARE, scale=1e3)
    honest = updates(work(data))
    bound = np.linalg.norm(honest, axis=1).max()
    assert np.linalg.norm(step(work(data, attack))[0]) > 10 * bound
    for rule in (fedmom.median(), fedmom.geometric_median(), fedmom.norm_bound()):
        assert np.linalg.norm(step(work(data, attack, rule=rule))[0]) <= bound


def test_a_model_s_state_is_not_attacked():
    """Batch norm's statistics are sent as they are: the attack is on the update."""
    client = fedmom.Client(lambda params, own, *_: (params + 1.0, own, {"loss": jnp.zeros(())}))
    plain = workload(fedavg(client=client))
    model = fedmom.Model(
        lambda _key: fedmom.Variables(jnp.zeros(3), jnp.ones(2)), apply=no_net, state="average"
    )
    run = fedmom.Workload(plain.data, model, plain.algorithm, 0, fedmom.sign_flip(share=0.9))
    params, client = fedmom.start(run).params, run.method.client
    bad = int(np.flatnonzero(hostile_clients(0, len(SIZES), 0.9))[0])
    problem = LocalProblem(*[None] * 9, client=bad)
    sent, _, _ = client.run(params, client.init(params), problem, jax.random.key(0))
    np.testing.assert_array_equal(sent.update, -np.ones(3))
    np.testing.assert_array_equal(sent.one, 1.0)
    np.testing.assert_array_equal(sent.state, np.ones(2))


class TestBackdoor:
    """A trigger and a target class, and how often the trigger works."""

    def glyphs(self, attack):
        data = fedmom.load_data("glyphs:writers=8,samples=40")
        model = fedmom.build_model("logreg", data.features)
        work = fedmom.LocalWork(lr=0.01, steps=5, batch_size=8)
        algorithm = fedmom.Algorithm(fedmom.servers.fedavg(), work, rule=fedmom.mean("uniform"))
        return fedmom.Workload(data, model, algorithm, attack=attack)

    def test_its_success_is_measured_on_triggered_images_of_other_classes(self):
        attack = fedmom.backdoor(share=0.3, target=2)
        workload = self.glyphs(attack)
        params = fedmom.start(workload).params
        found = fedmom.evaluate(fedmom.LocalRuntime(workload), params, "test")
        data = workload.data
        rows = np.concatenate(
            [np.arange(s, s + n) for s, n in zip(data.test.start, data.test.size, strict=True)]
        )
        x = np.array(data.arrays["x"][rows], np.float32) / 255
        y = np.asarray(data.arrays["y"])[rows]
        plain = workload.model.apply(params, jnp.asarray(x), None)
        assert found.accuracy == pytest.approx(np.mean(np.argmax(plain, -1) == y))
        board = (np.arange(4)[:, None] + np.arange(4)) % 2
        x[:, -4:, -4:] = board.reshape(4, 4, *[1] * (x.ndim - 3))
        fooled = np.argmax(workload.model.apply(params, jnp.asarray(x), None), -1) == 2
        assert found.attack_success == pytest.approx(fooled[y != 2].mean())

    @pytest.mark.thorough
    def test_it_works_with_attackers_and_not_without(self):
        attack = fedmom.backdoor(share=0.3, target=2, scale=5.0)
        runtime, success = fedmom.LocalRuntime(self.glyphs(attack)), []
        for made in (self.glyphs(None), self.glyphs(attack)):
            trained = fedmom.train(fedmom.LocalRuntime(made), pace=fedmom.synchronous(8), rounds=30)
            *_, (state, _) = trained
            success.append(fedmom.evaluate(runtime, state.params, "test").attack_success)
        assert success[0] < 0.5 < 0.9 < success[1]


def test_the_record_and_the_settings_say_it(tmp_path):
    run = fedmom.run(
        data="synthetic",
        rounds=3,
        lr=0.001,
        clients_per_round=10,
        weighting="uniform",
        aggregate="bucketing:size=2+median",
        attack="sign_flip:share=0.2,scale=1",
        out=tmp_path / "run",
    )
    rows = [json.loads(line) for line in (run.path / "rounds.jsonl").read_text().splitlines()]
    bad = hostile_clients(0, 30, 0.2)
    assert [row["metrics"]["attack/clients"] for row in rows] == [
        bad[row["cohort"]].sum() for row in rows
    ]
    assert 'attack = "sign_flip:share=0.2,scale=1"' in (run.path / "config.toml").read_text()


def test_an_attack_of_your_own_is_an_object(tmp_path):
    attack = fedmom.Attack(share=0.5, forge=lambda u, _key: jax.tree.map(jnp.zeros_like, u))
    run = fedmom.run(data="synthetic", rounds=2, attack=attack, out=tmp_path / "run")
    assert run.experiment.config.attack.startswith("attack@")
    plain = fedmom.run(data="synthetic", rounds=2, attack="none", out=tmp_path / "plain")
    assert plain.experiment.config.attack is None


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        ("backdoor", "puts its trigger into images"),
        ("label_flip:share=1", r"label_flip: share=1.0 is not in \(0, 1\)"),
        ("sign_flop", r"no attack 'sign_flop'. Did you mean 'sign_flip'"),
        ("backdoor:part=0", r"part=0.0 is not in \(0, 1\]"),
    ],
)
def test_attacks_that_make_no_sense_are_refused(attack, said, tmp_path):
    with pytest.raises(FedMomError, match=said):
        fedmom.run(data="synthetic", attack=attack, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_target_that_no_class_is_is_refused():
    with pytest.raises(FedMomError, match="target=99 must be less than"):
        TestBackdoor().glyphs(fedmom.backdoor(target=99))


def test_label_flip_needs_classes():
    rng = np.random.default_rng(0)
    table = fedmom.from_arrays(
        rng.normal(size=(20, 3)).astype(np.float32),
        rng.normal(size=20).astype(np.float32),
        np.arange(20) % 4,
        task="regression",
    )
    with pytest.raises(FedMomError, match="regression data"):
        work(table, fedmom.label_flip())
