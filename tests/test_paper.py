"""The paper's experiments: the plan, its stages, the cache, the probe, the rules of verdicts."""

import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import jax
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import fedmom
from fedmom import config as settings
from fedmom import drawing, runs
from fedmom.cli import cli
from fedmom.config import RunConfig
from fedmom.page import Status
from fedmom.paper import numbers, plan, probes, running, tables, verdicts
from fedmom.paper.findings import Findings
from fedmom.paper.numbers import Measures, Run, Values
from fedmom.paper.probes import Directions
from fedmom.runs import RunFolder

QUIET = Console(quiet=True)
TINY = plan.Scale(
    name="quick",
    rounds=12,
    eval_every=2,
    seeds=(0, 1),
    femnist=plan.Task(
        name="FEMNIST",
        data="pictures.npz",
        settings={"model": "logreg", "local-epochs": 1, "eval-samples": 100},
        lrs=(0.01, 1e38),  # the last diverges
        variant_lrs=(0.01, 1e38),
        fedsgd_lrs=(0.1,),
        grid_seeds=None,
        fedsgd_seeds=None,
        fedsgd_share=1,
        cost=1,
    ),
    shakespeare=plan.Task(
        name="Shakespeare",
        data="texts.npz",
        settings={"model": "logreg", "local-steps": 3, "eval-samples": 100},
        lrs=(0.001, 0.01),
        variant_lrs=(),
        fedsgd_lrs=(),
        grid_seeds=1,
        fedsgd_seeds=1,
        fedsgd_share=0.5,
        cost=2,
    ),
    epochs=(0.5, 1),
    variants=(plan.PAPER, plan.COHORT_COSINE_TEN),
    window=3,
)


def some(grid):
    """A choice before there is any result."""
    lrs = list(grid.runs)
    return lrs[len(lrs) // 2] if lrs else None


def run_of(losses, accuracies=None, diverged="", seed=0):
    """A run with given evaluations at rounds 0, 1, 2, ..."""
    rows = []
    for t, loss in enumerate(losses):
        accuracy = accuracies[t] if accuracies else 0.5
        rows += [
            {"round": t, "split": "train", "loss": loss, "accuracy": accuracy},
            {
                "round": t,
                "split": "test",
                "loss": loss,
                "accuracy": accuracy,
                "accuracy_p10": accuracy / 2,
            },
        ]
    return Run(RunConfig(seed=seed), Path("nowhere"), rows, diverged)


# The plan


@pytest.mark.parametrize("scale", [*plan.SCALES.values(), TINY], ids=lambda s: f"{s.rounds}")
class TestPlan:
    def test_every_part_is_known_and_asks_for_valid_runs(self, scale):
        assert plan.NEEDS.keys() <= plan.PARTS.keys()
        wanted = plan.wanted(scale, list(plan.PARTS), scale.seeds, some)
        assert len(wanted) == len(set(wanted))
        assert {c.data for c in wanted} == {t.data for t in scale.tasks}
        assert {c.seed for c in wanted} == set(scale.seeds)

    def test_without_a_choice_only_grids_are_wanted(self, scale):
        first = plan.wanted(scale, list(plan.PARTS), scale.seeds, lambda _: None)
        later = plan.wanted(scale, list(plan.PARTS), scale.seeds, some)
        assert set(first) < set(later)
        assert all(c.local_epochs in (None, 1) for c in first)

    def test_fewer_seeds_are_part_of_more(self, scale):
        parts = list(plan.PARTS)
        one = plan.wanted(scale, parts, scale.seeds[:1], some)
        assert set(one) <= set(plan.wanted(scale, parts, scale.seeds, some))
        assert {c.seed for c in one} == {scale.seeds[0]}

    def test_methods_are_treated_alike(self, scale):
        """FedAvg and FedMom have the same settings everywhere but for the algorithm."""
        for part in ("fig6", "beyond"):
            wanted = plan.wanted(scale, [part], scale.seeds, some)
            sides = [
                {c.model_copy(update={"algorithm": ""}) for c in wanted if c.algorithm == method}
                for method in plan.RIVALS
            ]
            assert sides[0] == sides[1]

    def test_variants_cost_clients_the_same_work(self, scale):
        for variant in scale.variants:
            c = scale.run(scale.femnist, "fedavg", 0.1, 0, variant)
            share = variant.clients // 2
            assert c.rounds == scale.rounds // share
            assert c.clients_per_round == 2 * share


@pytest.mark.parametrize(
    ("variant", "changed"),
    [
        (plan.PAPER, {"lr": 0.03, "server_lr": "auto", "average": None}),
        (plan.COHORT_COSINE, {"lr": "cosine:start=0.03,rounds=2000", "server_lr": "auto"}),
        (plan.COHORT_COSINE_ETA, {"lr": 0.03, "server_lr": "cosine:start=1,rounds=2000"}),
        (plan.COHORT_AVERAGE, {"lr": 0.03, "server_lr": "auto", "average": 0.99}),
        (plan.COHORT_COSINE_TEN, {"lr": "cosine:start=0.03,rounds=400", "eval_every": 20}),
    ],
    ids=lambda v: v.name if isinstance(v, plan.Variant) else "",
)
def test_what_a_variant_changes(variant, changed):
    config = plan.FULL.run(plan.FULL.femnist, "fedmom", 0.03, 0, variant)
    assert {key: getattr(config, key) for key in changed} == changed


def test_full_is_the_papers_setting():
    config = plan.FULL.run(plan.FULL.femnist, "fedmom", 0.03, 2)
    assert (config.rounds, config.clients_per_round, config.batch_size) == (2000, 2, 10)
    assert (config.weighting, config.server_lr, config.local_epochs) == ("population", "auto", 1)
    assert len(plan.FULL.seeds) == 3
    # One seed of FedSGD on Shakespeare, at the equal γ only.
    wanted = plan.wanted(plan.FULL, list(plan.PARTS), plan.FULL.seeds, some)
    costly = [c for c in wanted if c.algorithm == "fedsgd" and c.data == "shakespeare"]
    assert [c.seed for c in costly] == [0]


# Numbers


@given(
    st.dictionaries(
        st.sampled_from([0.01, 0.03, 0.1, 0.3]),
        st.lists(st.floats(0.1, 9) | st.none(), min_size=2, max_size=2),
        min_size=1,
    )
)
def test_the_best_lr_has_the_lowest_mean_and_of_equals_is_the_smallest(table):
    grid = {
        lr: {s: run_of([v or 1.0] * 6, diverged="" if v else "so") for s, v in enumerate(losses)}
        for lr, losses in table.items()
    }
    means = {lr: sum(v or math.inf for v in losses) / 2 for lr, losses in table.items()}
    found = numbers.best(grid)
    if all(math.isinf(m) for m in means.values()):
        assert found is None
        return
    lowest = min(means.values())
    assert means[found.lr] == pytest.approx(lowest)
    assert not any(lr < found.lr and m < means[found.lr] for lr, m in means.items())
    assert found.at_edge == (len(table) > 1 and found.lr in (min(table), max(table)))


def test_ties_go_to_the_smaller_lr_and_divergence_loses():
    good, same = run_of([2.0] * 6), run_of([2.0] * 6)
    bad = run_of([0.1] * 6, diverged="Round 7: not finite.")
    choice = numbers.best({0.1: {0: same}, 0.03: {0: good}, 0.3: {0: bad}})
    assert choice == numbers.Choice(0.03, second=0.1, at_edge=True)


def test_seeds_without_the_whole_grid_do_not_count():
    """Else a step size that met an easier seed would look better."""
    low, high = run_of([1.0] * 6), run_of([2.0] * 6)
    grid = {0.1: {0: high, 1: low}, 0.3: {0: low}}
    assert numbers.best(grid).lr == 0.3
    assert numbers.best({0.1: {0: high}, 0.3: {1: low}}) is None
    assert numbers.best({}) is None


def test_a_final_value_is_the_mean_of_the_last_five_evaluations():
    run = run_of([9, 9, 1, 2, 3, 4, 5], [0, 0, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert numbers.final_loss(run) == pytest.approx(3)
    assert numbers.final_accuracy(run) == pytest.approx(0.3)
    assert numbers.final_loss(replace(run, diverged="x")) == math.inf
    # The untrained model is no final one, however short the run is.
    assert numbers.final_loss(run_of([9, 1, 3])) == pytest.approx(2)


def test_a_run_as_it_stood_earlier():
    run = run_of([4, 3, 2, 1], diverged="Round 4: not finite.")
    assert numbers.final_loss(run) == math.inf
    assert numbers.final_loss(run.until(2)) == pytest.approx(2.5)
    assert run.until(9).diverged  # it did not get there


@given(st.floats(0.1, 5), st.floats(-0.05, 0.05), st.integers(2, 30))
def test_the_area_under_a_straight_line(start, slope, rounds):
    losses = [start + slope * t for t in range(rounds + 1)]
    assert numbers.area(run_of(losses)) == pytest.approx(start + slope * rounds / 2)


def test_rounds_to_a_target_and_their_median():
    runs_ = [
        run_of([1, 1, 1, 1], [0, 0.2, 0.5, 0.6]),
        run_of([1, 1, 1, 1], [0, 0.5, 0.6, 0.6]),
        run_of([1, 1, 1, 1], [0, 0.1, 0.2, 0.3]),
    ]
    assert [numbers.rounds_to(r, 0.5) for r in runs_] == [2, 1, math.inf]
    assert Measures(tuple(runs_), 0.5).rounds == 2
    assert Measures(tuple(runs_[2:]), 0.5).rounds_text() == "never"


def test_a_difference_counts_if_it_is_larger_than_the_spread():
    assert numbers.lower(Values((1.0, 1.2)), Values((1.5, 1.6))) == 1
    assert numbers.lower(Values((1.0, 1.6)), Values((1.5, 1.6))) == 0
    assert numbers.higher(Values((1.0, 1.2)), Values((1.5, 1.6))) == -1
    # One seed: five per cent.
    assert numbers.lower(Values((1.0,)), Values((1.04,))) == 0
    assert numbers.lower(Values((1.0,)), Values((1.06,))) == 1
    assert numbers.lower(Values((math.inf,)), Values((9.0,))) == -1
    assert numbers.lower(Values((math.inf,)), Values((math.inf,))) == 0


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=50), st.integers(1, 9))
def test_windows_keep_the_sum(products, length):
    ends, means = numbers.windows(products, length)
    sizes = np.diff([0, *ends])
    assert ends[-1] == len(products)
    assert float(np.dot(sizes, means)) == pytest.approx(sum(products), abs=1e-9)


# The probe


def softmax_gradient(w, b, x, y):
    logits = x @ w + b
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return x.T @ p / len(y), p.mean(0)


@pytest.fixture
def trained(tmp_path):
    """FedAvg with one step on a client's whole data, which is FedSGD: done by hand below."""
    config = RunConfig(
        data="synthetic:clients=4",
        algorithm="fedavg",
        rounds=8,
        batch_size="all",
        local_steps=1,
        lr=0.02,
        eval_every=8,
        seed=3,
    )
    experiment = settings.prepare(config)
    runs.execute(RunFolder.create(tmp_path / "run", experiment), experiment, [])
    return tmp_path / "run", experiment


def test_inner_products_by_hand(trained):
    path, experiment = trained
    data, config = experiment.data, experiment.config
    found = probes.replay(path, experiment, other=None, fedsgd=True, console=QUIET)
    start = fedmom.start(experiment.model, experiment.server, config.seed)
    leaves = {k.ndim: np.asarray(k, np.float64) for k in jax.tree.leaves(start.params)}
    w, b = leaves[2], leaves[1]
    sizes, points, gradients = data.train.size, [], []
    for t in range(config.rounds):
        gw, gb = np.zeros_like(w), np.zeros_like(b)
        for k in fedmom.cohort(config.seed, t, data.clients, config.clients_per_round):
            rows = slice(data.train.start[k], data.train.start[k] + sizes[k])
            x, y = data.arrays["x"][rows].astype(np.float64), data.arrays["y"][rows]
            dw, db = softmax_gradient(w, b, x, y)
            gw += sizes[k] / sizes.sum() * config.lr * dw
            gb += sizes[k] / sizes.sum() * config.lr * db
        points.append((w, b))
        gradients.append((gw, gb))
        w, b = w - config.server_lr * gw, b - config.server_lr * gb
    expected = [
        float(np.sum(gw * (pw - w)) + np.sum(gb * (pb - b)))
        for (gw, gb), (pw, pb) in zip(gradients, points, strict=True)
    ]
    np.testing.assert_allclose(found.fedavg, expected, rtol=2e-3, atol=1e-6)
    np.testing.assert_allclose(found.fedsgd, expected, rtol=2e-3, atol=1e-6)
    assert found.elsewhere is None


def test_towards_its_own_end_the_sum_is_positive_whatever_the_steps(trained):
    """Σ<g, w - w*> = (|w₀ - w*|² + Σ|w' - w|²) / 2η, which the page says."""
    path, experiment = trained
    config = experiment.config
    found = probes.replay(path, experiment, other=path, fedsgd=False, console=QUIET)
    state = fedmom.start(experiment.model, experiment.server, config.seed)
    flats = [flat(state.params)]
    clients = fedmom.LocalRuntime(
        experiment.data, experiment.model, experiment.work, seed=config.seed
    )
    for after, _ in fedmom.train(
        state,
        clients,
        experiment.server,
        samples=experiment.data.train.size,
        rounds=config.rounds,
        clients_per_round=config.clients_per_round,
        seed=config.seed,
    ):
        flats.append(flat(after.params))
    squares = sum(np.sum((a - b) ** 2) for a, b in pairwise(flats))
    expected = (np.sum((flats[0] - flats[-1]) ** 2) + squares) / (2 * config.server_lr)
    assert sum(found.fedavg) == pytest.approx(expected, rel=1e-6)
    assert found.elsewhere == found.fedavg  # the other run was this one


def flat(params):
    return np.concatenate([np.asarray(p, np.float64).ravel() for p in jax.tree.leaves(params)])


def test_a_replay_that_ends_elsewhere_is_an_error(trained):
    path, experiment = trained
    folder = RunFolder.open(path)
    state = folder.restore(fedmom.start(experiment.model, experiment.server, 0))
    folder.save(state._replace(params=jax.tree.map(lambda p: p + 1, state.params)))
    with pytest.raises(fedmom.FedMomError, match="did not end at its checkpoint"):
        probes.replay(path, experiment, other=None, fedsgd=False, console=QUIET)


# Verdicts


def measures(accuracy, loss, rounds, *, area=None, seeds=2):
    """A method whose accuracy jumps to its final value at a given evaluation."""
    found = []
    for s in range(seeds):
        accuracies = [0.0] * rounds + [accuracy + 0.001 * s] * (20 - rounds)
        losses = [loss if area is None else area] * 12 + [loss + 0.001 * s] * 8
        found.append(run_of(losses, accuracies, seed=s))
    return Measures(tuple(found), 0.6)


def test_a_large_margin():
    good = measures(0.8, 1.0, 3)
    assert verdicts.large_margin(good, measures(0.7, 2.0, 6)) == Status.HOLDS
    assert verdicts.large_margin(good, measures(0.5, 2.0, 6)) == Status.HOLDS  # never reached
    assert verdicts.large_margin(good, measures(0.7, 2.0, 5)) == Status.PART
    assert verdicts.large_margin(good, measures(0.8, 1.0, 9)) == Status.FAILS
    # Neither reaches the target: better, and no more can be said.
    assert verdicts.large_margin(measures(0.5, 1.0, 3), measures(0.3, 2.0, 3)) == Status.PART


def test_faster():
    theirs = measures(0.8, 1.0, 6, area=2.0)
    assert verdicts.faster(measures(0.8, 1.0, 3, area=1.5), theirs) == Status.HOLDS
    assert verdicts.faster(measures(0.8, 1.5, 3, area=1.5), theirs) == Status.PART
    assert verdicts.faster(measures(0.8, 1.0, 3, area=2.0), theirs) == Status.PART
    assert verdicts.faster(measures(0.8, 1.0, 6, area=2.0), theirs) == Status.FAILS


def findings_over_lr(**curves):
    """Findings that are of step sizes on FEMNIST only."""
    over_lr = {"FEMNIST": curves, "Shakespeare": {}}
    scale = replace(TINY, femnist=replace(TINY.femnist, lrs=(0.1, 1.0)))
    return Findings(scale, {}, {}, over_lr, {}, {}, {}, {})


def test_faster_at_one_step_size_and_not_at_another_holds_in_part():
    quick, slow = [0, 0.8, 0.9, 0.9], [0, 0.2, 0.5, 0.9]
    down, late = [4.0, 1.0, 0.5, 0.5], [4.0, 3.0, 2.0, 0.5]
    findings = findings_over_lr(
        fedavg={0.1: [run_of(late, slow)], 1.0: [run_of(down, quick)]},
        fedmom={0.1: [run_of(down, quick)], 1.0: [run_of(late, slow)]},
    )
    (row,) = [r for r in verdicts.judge(findings) if r.claim == "faster"]
    assert (row.where, row.status) == ("FEMNIST, at every γ", Status.PART)
    assert row.numbers == "holds at γ 0.1; does not hold at γ 1; seeds 1"
    shown = [(line[0], line[1], line[-1]) for line in tables.same_lr(findings).rows]
    assert shown == [("FEMNIST", "0.1", "holds"), ("", "1", "does not hold")]
    # While one of them is missing, there is no verdict.
    unfinished = findings_over_lr(
        fedavg={0.1: [run_of(late, slow)]}, fedmom={0.1: [run_of(down, quick)]}
    )
    assert not [r for r in verdicts.judge(unfinished) if r.claim == "faster"]


def test_wins():
    theirs = measures(0.8, 1.0, 6, area=2.0)
    assert verdicts.wins(measures(0.85, 1.0, 6, area=2.0), theirs) == Status.HOLDS
    assert verdicts.wins(measures(0.8, 1.0, 3, area=1.5), theirs) == Status.PART
    assert verdicts.wins(measures(0.75, 1.0, 3, area=1.5), theirs) == Status.FAILS
    assert verdicts.wins(measures(0.85, 1.5, 3, area=1.5), theirs) == Status.FAILS


def over(*losses):
    return {10.0**-i: Values((loss,)) for i, loss in enumerate(losses)}


def test_robust():
    assert verdicts.robust(over(1.0, 1.1, 1.2), over(1.0, 1.1, 5.0)) == Status.HOLDS
    assert verdicts.robust(over(1.0, 1.1, 5.0), over(1.0, 1.1, 1.2)) == Status.FAILS
    assert verdicts.robust(over(1.0, 1.1), over(1.1, 1.0)) == Status.FAILS  # as robust, not more
    # More within 2 times, fewer within 1.25 times: it depends on what is good.
    assert verdicts.robust(over(1.0, 1.9, 1.9), over(1.0, 1.2, 9.0)) == Status.PART
    assert verdicts.robust(over(1.0, math.inf), over(1.0, 1.9)) == Status.FAILS


def test_pointing():
    ahead, away = [1.0] * 20, [1.0] * 15 + [-1.0] * 5
    assert verdicts.pointing(Directions(ahead, None, ahead, "x"), 5) == Status.HOLDS
    assert verdicts.pointing(Directions(ahead, None, away, "x"), 5) == Status.HOLDS
    assert verdicts.pointing(Directions(ahead, None, [-1.0] * 20, "x"), 5) == Status.PART
    assert verdicts.pointing(Directions(ahead, None, None, None), 5) == Status.PART
    assert verdicts.pointing(Directions(away, None, ahead, "x"), 5) == Status.FAILS


def test_a_claim_that_holds_in_places_holds_in_part():
    assert verdicts.overall([]) == Status.UNKNOWN
    assert verdicts.overall([Status.HOLDS, Status.HOLDS]) == Status.HOLDS
    assert verdicts.overall([Status.HOLDS, Status.FAILS]) == Status.PART
    assert verdicts.overall([Status.FAILS]) == Status.FAILS


# The command


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """The tiny scale in the place of the quick one, and small populations for it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(plan.SCALES, "quick", TINY)
    rng = np.random.default_rng(0)
    for name, clients in (("pictures", 12), ("texts", 10)):
        user = np.repeat(np.arange(clients), 20)
        x = rng.normal(size=(len(user), 5)).astype(np.float32)
        np.savez(
            f"{name}.npz",
            x=x,
            y=(x @ rng.normal(size=(5, 3))).argmax(1),
            user=user,
            users=np.array([f"u{k}" for k in range(clients)]),
            is_test=np.arange(len(user)) % 20 >= 15,
        )
    return tmp_path


def call(*args):
    result = CliRunner().invoke(cli, ["paper", *args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def contents(folder, *patterns):
    paths = sorted(p for pattern in patterns for p in folder.glob(pattern))
    assert paths
    return {p.relative_to(folder): p.read_bytes() for p in paths}


def test_the_whole_command_and_a_second_call(tiny, monkeypatch):
    text = call("--out", "all")
    assert "Page: all/paper.html" in text
    folder = tiny / "all"
    html = (folder / "paper.html").read_text()
    assert all(title in html for title in ("Verdicts", "Figure 6", "Beyond the paper"))
    drawn = {p.stem for p in (folder / "figures").iterdir()}
    assert {"fig2", "fig3", "fig4", "fig5", "fig5b", "fig6", "beyond", "author"} <= drawn
    kept = ("tables/*.md", "runs/*/rounds.jsonl", "runs/*/config.toml", "probes/*.json")
    before = contents(folder, *kept)
    # What was wanted was run, once, and what diverged is remembered.
    cache = running.Cache(folder / "runs", TINY)
    wanted = plan.wanted(TINY, list(plan.PARTS), TINY.seeds, cache.choose)
    assert all(cache.result(c) for c in wanted)
    assert running.missing_text(cache, TINY, list(plan.PARTS)) == ""
    assert {c.lr for c in wanted if cache.result(c).diverged} >= {1e38}

    def refuse(*_):
        raise AssertionError("a second call trains nothing")

    monkeypatch.setattr(running.sweeps, "side_by_side", refuse)
    monkeypatch.setattr(probes, "replay", refuse)
    monkeypatch.setattr(drawing, "save", lambda *_, **__: [])  # slow, and seen above
    call("--out", "all")
    assert contents(folder, *kept) == before


def test_runs_are_found_by_their_settings_and_drawn_before_all_have_ended(tiny):
    config = TINY.run(TINY.femnist, "fedavg", 0.01, 0)
    experiment = settings.prepare(config)
    runs.execute(RunFolder.create(tiny / "out/runs/from-elsewhere", experiment), experiment, [])
    cache = running.Cache(tiny / "out/runs", TINY)
    assert cache.result(config).path.name == "from-elsewhere"
    text = call("fig6", "--no-train", "--out", "out")
    assert re.search(r"Not finished: 1 of at least \d+ runs", text)
    assert len(list((tiny / "out/runs").iterdir())) == 1
    assert {p.stem for p in (tiny / "out/figures").iterdir()} == {"fig6"}


def test_mistakes_are_sentences(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fedmom.FedMomError, match=r"no part of the paper 'fig7'.*fig2"):
        CliRunner().invoke(cli, ["paper", "fig7"], catch_exceptions=False)
    with pytest.raises(fedmom.FedMomError, match=r"There is no nowhere\.npz"):
        CliRunner().invoke(
            cli, ["paper", "fig2", "--femnist", "nowhere.npz"], catch_exceptions=False
        )
