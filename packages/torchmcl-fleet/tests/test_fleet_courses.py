"""The plan of a fleet give each model the weights of its own rule at its own epoch."""

import copy

import pytest
import torch

import torchmcl as mcl
from torchmcl.annealing import AutoAnnealing
from torchmcl_fleet.plan import RulePlan, rates_of

COOLING = mcl.annealed(mcl.AnnealedWTA(1.0), temperature=mcl.Linear(1.0, 0.0, 3))
RULES = [
    mcl.WTA(),
    mcl.AnnealedWTA(0.3),
    COOLING,
    mcl.AnnealedWTA(0.0),
    mcl.RelaxedWTA(0.1),
    mcl.annealed(mcl.RelaxedWTA(0.1), epsilon=mcl.Linear(1.0, 0.0, 4)),
    mcl.WTA(),
    mcl.annealed(mcl.TopK(3), k=mcl.Linear(3, 1, 4)),
    mcl.Sinkhorn(0.2, n_iters=5),
    mcl.Sinkhorn(torch.tensor(0.5), n_iters=5),
    mcl.Sinkhorn(0.2, n_iters=2),
    mcl.PIT(),
    mcl.EMD(),
]
N_EPOCHS = 5


def weights(plan, cost, mask, epoch, models=None):
    plan.read(torch.tensor([epoch]))
    return plan.rule(models)(cost, mask)


def rule_at(rule, epoch):
    return rule if isinstance(rule, mcl.AssignmentRule) else rule(epoch)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("models", [slice(0, 13), slice(2, 6), slice(5, 6), slice(11, 13)])
def test_each_model_gets_the_weights_of_its_own_rule(models, masked):
    plan = RulePlan(RULES, N_EPOCHS)
    cost = torch.rand(13, 4, 2, 3)[models]
    mask = (torch.rand(13, 4, 2) < 0.7)[models] if masked else None
    for epoch in range(N_EPOCHS):
        together = weights(plan, cost, mask, epoch, models)
        for i, rule in enumerate(RULES[models]):
            expected = rule_at(rule, epoch)(cost[i], None if mask is None else mask[i])
            torch.testing.assert_close(together[i], expected)


def test_neighbours_of_one_kind_are_one_group():
    groups = RulePlan(RULES, N_EPOCHS).groups
    bounds = [(group.models.start, group.models.stop) for group in groups]
    assert bounds == [(0, 1), (1, 4), (4, 6), (6, 7), (7, 8), (8, 10), (10, 11), (11, 12), (12, 13)]


@pytest.mark.parametrize("rules", [RULES[:7], [mcl.TopK(2), COOLING]], ids=["per target", "with one that sorts"])
def test_a_rule_reads_the_values_of_the_epoch_when_it_is_called(rules):
    plan = RulePlan(rules, N_EPOCHS)
    rule = plan.rule()
    cost = torch.rand(len(rules), 2, 1, 3)
    for epoch in (3, 0, 2, 1, 0):
        plan.read(torch.tensor([epoch]))
        for i, each in enumerate(rules):
            torch.testing.assert_close(rule(cost)[i], rule_at(each, epoch)(cost[i]))


@pytest.mark.parametrize("rules", [[COOLING, AutoAnnealing()], [mcl.TopK(2), AutoAnnealing(), mcl.Sinkhorn(0.5)]])
def test_a_temperature_that_is_decided_in_training_replaces_that_of_its_model_alone(rules):
    plan = RulePlan(rules, N_EPOCHS)
    cost = torch.rand(len(rules), 2, 1, 3)
    before = plan.rule()(cost)
    chosen = torch.tensor([isinstance(rule, AutoAnnealing) for rule in rules])
    plan.set_temperatures(chosen, torch.full((len(rules),), 0.25))
    after = plan.rule()(cost)
    torch.testing.assert_close(after[1], mcl.AnnealedWTA(0.25)(cost[1]))
    assert torch.equal(after[~chosen], before[~chosen])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_values_are_as_precise_as_the_costs(dtype):
    rules = [mcl.AnnealedWTA(0.1), mcl.RelaxedWTA(0.1), mcl.AnnealedWTA(1e-9)]
    cost = torch.rand(3, 5, 1, 4).to(dtype)
    together = weights(RulePlan(rules, 1, "cpu", dtype), cost, None, 0)
    assert together.dtype == dtype
    for i, rule in enumerate(rules):
        tolerance = 8 * torch.finfo(dtype).eps
        torch.testing.assert_close(together[i], rule(cost[i]), atol=tolerance, rtol=tolerance)


def test_temperatures_of_all_epochs_are_known():
    expected = [[0.0, COOLING(epoch).temperature, 0.0, 0.2] for epoch in range(N_EPOCHS)]
    rules = [mcl.WTA(), COOLING, mcl.TopK(2), mcl.Sinkhorn(0.2)]
    torch.testing.assert_close(RulePlan(rules, N_EPOCHS).temperatures, torch.tensor(expected).double())


def test_models_that_share_a_schedule_have_the_values_of_models_with_equal_ones():
    shared, apart = (RulePlan(rules, N_EPOCHS) for rules in ([COOLING] * 3, [copy.copy(COOLING) for _ in range(3)]))
    for (models, first, values), (others, rule, expected) in zip(shared.by_group(), apart.by_group(), strict=True):
        assert (models, first) == (others, rule)
        torch.testing.assert_close(values, expected, rtol=0, atol=0)
    torch.testing.assert_close(shared.table, apart.table, rtol=0, atol=0)


def test_rates_are_put_together_for_any_slice_of_the_models():
    falling = mcl.Linear(1.0, 0.0, N_EPOCHS)
    rates = rates_of([0.5, falling, 0.5, falling], N_EPOCHS)
    expected = torch.tensor([[0.5, falling(epoch), 0.5, falling(epoch)] for epoch in range(N_EPOCHS)])
    torch.testing.assert_close(rates.full(dtype=torch.float32), expected)
    torch.testing.assert_close(rates.of_models(slice(1, 3)).full(dtype=torch.float32), expected[:, 1:3])


def test_courses_on_a_device_have_current_values_of_their_own():
    plan = RulePlan([COOLING, mcl.WTA()], N_EPOCHS)
    plan.read(torch.tensor([1]))
    moved = plan.on(torch.device("cpu"), torch.float64)
    moved.read(torch.tensor([2]))
    assert moved.table.dtype == torch.float64
    assert float(plan.mixed_values[0, 0]) == pytest.approx(float(COOLING(1).temperature))
    assert float(moved.mixed_values[0, 0]) == pytest.approx(float(COOLING(2).temperature))


def test_a_function_that_gives_no_rule_is_refused():
    with pytest.raises(
        TypeError, match=r"Fleet: `rule` must be a rule, a function epoch -> rule or AutoAnnealing\(\), got 0\.5"
    ):
        RulePlan([lambda epoch: 0.5], 2)


@pytest.mark.parametrize(
    "rule",
    [
        lambda epoch: mcl.WTA() if epoch < 2 else mcl.RelaxedWTA(0.5),
        lambda epoch: mcl.RelaxedWTA(0.5) if epoch < 2 else mcl.WTA(),
        lambda epoch: mcl.Sinkhorn(0.5, n_iters=1 + 5 * (epoch // 2)),
    ],
    ids=["hard, then relaxed", "relaxed, then hard", "more iterations"],
)
def test_a_rule_that_changes_its_kind_is_followed_or_refused(rule):
    cost = torch.rand(1, 4, 2, 3)
    try:
        plan = RulePlan([rule], N_EPOCHS)
    except (ValueError, TypeError) as error:
        assert "Fleet: `rule` must" in str(error)  # noqa: PT017  (either outcome is right)
        return
    for epoch in range(N_EPOCHS):
        torch.testing.assert_close(weights(plan, cost, None, epoch), rule(epoch)(cost))


@pytest.mark.parametrize("others", [[], [mcl.AnnealedWTA(0.5)]], ids=["hard rules alone", "beside a soft one"])
def test_a_single_hypothesis_has_all_the_weight(others):
    rules = [mcl.RelaxedWTA(0.3), *others]
    rule = RulePlan(rules, n_epochs=1).rule()
    assert torch.equal(rule(torch.rand(len(rules), 5, 1, 1)), torch.ones(len(rules), 5, 1, 1))
