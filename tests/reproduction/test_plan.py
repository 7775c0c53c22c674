"""The plan: valid runs, methods treated alike, the paper's setting."""

from dataclasses import replace

import pytest

from fedmom.reproduction import plan
from tests.reproduction.tiny import TINY, some


@pytest.mark.parametrize("scale", [*plan.SCALES.values(), TINY], ids=lambda s: f"{s.rounds}")
class TestPlan:
    def test_every_part_is_known_and_asks_for_valid_runs(self, scale):
        assert plan.NEEDS.keys() <= plan.PARTS.keys()
        wanted = plan.wanted(scale, list(plan.PARTS), some)
        assert len(wanted) == len(set(wanted))
        for task in scale.tasks:
            seeds = {c.seed for c in wanted if c.data == task.data}
            assert seeds == {*task.seeds, *task.tuning}

    def test_tuning_seeds_are_not_reported(self, scale):
        for task in scale.tasks:
            assert not set(task.seeds) & set(task.tuning)

    def test_without_a_choice_only_searches_and_grids_are_wanted(self, scale):
        first = plan.wanted(scale, list(plan.PARTS), lambda _: None)
        later = plan.wanted(scale, list(plan.PARTS), some)
        assert set(first) < set(later)
        assert all(c.local_epochs in (None, 1) for c in first)

    def test_fewer_seeds_are_part_of_more(self, scale):
        parts = list(plan.PARTS)
        one = plan.wanted(scale, parts, some, most=1)
        assert set(one) <= set(plan.wanted(scale, parts, some))
        tuning = {s for t in scale.tasks for s in t.tuning}
        assert {c.seed for c in one} - tuning == {t.seeds[0] for t in scale.tasks}

    def test_methods_are_treated_alike(self, scale):
        """At a γ of both, FedAvg and FedMom have the same settings but for the algorithm."""
        both = scale.femnist.lrs[0]
        alike = replace(
            scale, femnist=replace(scale.femnist, first_lrs=dict.fromkeys(plan.RIVALS, (both,)))
        )
        for part in ("fig6", "beyond"):
            wanted = plan.wanted(alike, [part], some)
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
        (plan.PAPER, {"lr": 0.03, "sampler": "uniform", "average": None}),
        (plan.COHORT_COSINE, {"lr": "cosine:start=0.03,rounds=1000", "weighting": "cohort"}),
        (plan.VARIANTS[6], {"lr": 0.03, "sampler": "weighted", "weighting": "uniform"}),
        (plan.VARIANTS[5], {"lr": 0.03, "server_lr": "auto", "average": 0.99}),
        (plan.VARIANTS[9], {"lr": "cosine:start=0.03,rounds=200", "eval_every": 10}),
    ],
    ids=lambda v: v.name if isinstance(v, plan.Variant) else "",
)
def test_what_a_variant_changes(variant, changed):
    config = plan.FULL.run(plan.FULL.femnist, "fedmom", 0.03, 0, variant)
    assert {key: getattr(config, key) for key in changed} == changed


def test_full_is_the_papers_setting():
    config = plan.FULL.run(plan.FULL.femnist, "fedmom", 0.03, 2)
    assert (config.rounds, config.clients_per_round, config.batch_size) == (1000, 2, 10)
    assert (config.weighting, config.server_lr, config.local_epochs) == ("population", "auto", 1)
    assert (len(plan.FULL.femnist.seeds), len(plan.FULL.shakespeare.seeds)) == (10, 5)
    assert len(plan.FULL.variants) == 11  # the paper's setting, and ten beyond
    # FedSGD on Shakespeare: at the equal γ only.
    wanted = plan.wanted(plan.FULL, list(plan.PARTS), some)
    costly = [c for c in wanted if c.algorithm == "fedsgd" and c.data == "shakespeare"]
    assert [c.seed for c in costly] == [0, 1, 2, 3, 4]


class TestSearch:
    """A search for γ goes on while the best is the first or last of those tried."""

    def tried(self, losses, first=(0.01, 0.03, 0.1)):
        task = replace(TINY.femnist, first_lrs={"fedavg": first}, tuning=(100, 101))
        choose = lambda grid: min(grid, key=losses)  # noqa: E731
        grid = TINY.search(task, "fedavg", choose)
        assert all(set(seeds) == {100, 101} for seeds in grid.values())
        return list(grid)

    def test_it_ends_with_the_best_inside(self):
        assert self.tried(lambda lr: abs(lr - 0.03)) == [0.01, 0.03, 0.1]
        assert self.tried(lambda lr: abs(lr - 0.3)) == [0.01, 0.03, 0.1, 0.3, 1]
        assert self.tried(lambda lr: abs(lr - 0.001)) == [3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1]

    def test_it_ends_at_the_ladders_end(self):
        assert self.tried(lambda lr: lr)[0] == plan.LADDER[0]
        assert self.tried(lambda lr: -lr)[-1] == plan.LADDER[-1]

    def test_it_waits_for_its_runs(self):
        grid = TINY.search(TINY.femnist, "fedavg", lambda _: None)
        assert tuple(grid) == TINY.femnist.first_lrs["fedavg"]

    @pytest.mark.parametrize("scale", plan.SCALES.values(), ids=lambda s: s.name)
    def test_first_step_sizes_are_of_the_ladder(self, scale):
        for task in scale.tasks:
            for lrs in task.first_lrs.values():
                place = plan.LADDER.index(lrs[0])
                assert plan.LADDER[place : place + len(lrs)] == lrs
