"""The plan: valid runs, methods treated alike, the paper's setting."""

import pytest

from fedmom.reproduction import plan
from tests.reproduction.tiny import TINY, some


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
