"""The plan of a fleet give each model the weights of its own rule at its own epoch."""

import pytest
import torch

import torchmcl as mcl
from torchmcl.annealing import AutoAnnealing
from torchmcl_fleet.plan import RulePlan

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


@pytest.mark.parametrize("others", [[], [mcl.AnnealedWTA(0.5)]], ids=["hard rules alone", "beside a soft one"])
def test_a_single_hypothesis_has_all_the_weight(others):
    rules = [mcl.RelaxedWTA(0.3), *others]
    rule = RulePlan(rules, n_epochs=1).rule()
    assert torch.equal(rule(torch.rand(len(rules), 5, 1, 1)), torch.ones(len(rules), 5, 1, 1))
