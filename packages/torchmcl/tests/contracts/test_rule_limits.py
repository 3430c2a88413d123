"""The limits that tie the rules together."""

import itertools
import math

import torch

import torchmcl as mcl
from families import ALL_RULES
from grids import for_each
from problems import make_cost

for_all_rules = for_each("rule", ALL_RULES)


def test_cold_annealing_is_winner_takes_all():
    cost = make_cost(20)
    for temperature in (0.0, 1e-6, 1e-30, 5e-324):
        torch.testing.assert_close(mcl.AnnealedWTA(temperature)(cost), mcl.WTA()(cost))
        torch.testing.assert_close(mcl.AnnealedWTA(torch.tensor(temperature))(cost), mcl.WTA()(cost))


def test_hot_annealing_is_uniform():
    cost = make_cost(20)
    for temperature in (1e8, 1e300, math.inf):
        torch.testing.assert_close(mcl.AnnealedWTA(temperature)(cost), torch.full_like(cost, 1 / 4))
        torch.testing.assert_close(mcl.AnnealedWTA(torch.tensor(temperature))(cost), torch.full_like(cost, 1 / 4))


def test_hot_annealing_is_uniform_for_the_largest_costs():
    cost = torch.tensor([[3e38, -3e38]])
    torch.testing.assert_close(mcl.AnnealedWTA(math.inf)(cost), torch.tensor([[0.5, 0.5]]))


def test_annealing_does_not_underflow_far_from_every_hypothesis():
    cost = torch.tensor([[1e6, 1e6 + 1.0]])
    torch.testing.assert_close(
        mcl.AnnealedWTA(1.0)(cost), torch.tensor([[1.0, 0.0]]) + torch.tensor([[-1.0, 1.0]]) / (1 + math.e)
    )


def test_annealing_depends_on_cost_differences_over_temperature_only():
    cost = make_cost(5, dtype=torch.float64)
    torch.testing.assert_close(mcl.AnnealedWTA(0.3)(cost), mcl.AnnealedWTA(0.6)(2 * cost + 7))


def test_relaxation_of_zero_is_winner_takes_all():
    cost = make_cost(20)
    assert torch.equal(mcl.RelaxedWTA(0.0)(cost), mcl.WTA()(cost))
    assert torch.equal(mcl.RelaxedWTA(torch.tensor(0.0))(cost), mcl.WTA()(cost))


@for_all_rules
def test_a_single_hypothesis_takes_everything(rule):
    if isinstance(rule, mcl.TopK):
        rule = mcl.TopK(1)
    cost = torch.rand(5, 1, 1)
    assert torch.equal(rule(cost), torch.ones_like(cost))


def test_top_one_is_winner_takes_all_and_top_all_is_uniform():
    cost = make_cost(20)
    assert torch.equal(mcl.TopK(1)(cost), mcl.WTA()(cost))
    assert torch.equal(mcl.TopK(4)(cost), torch.full_like(cost, 1 / 4))


@for_each("n, rounded", [(1.49, 1), (1.5, 2), (2.49, 2), (2.5, 3), (3.5, 4)])
def test_a_fractional_n_is_rounded_to_the_nearest_whole_number(n, rounded):
    cost = make_cost(5)
    assert torch.equal(mcl.TopK(n)(cost), mcl.TopK(rounded)(cost))
    assert torch.equal(mcl.TopK(torch.tensor(n))(cost), mcl.TopK(rounded)(cost))


def test_pit_with_one_target_is_winner_takes_all():
    cost = make_cost(20, n_targets=1)
    assert torch.equal(mcl.PIT()(cost), mcl.WTA()(cost))


def test_pit_with_one_real_target_is_winner_takes_all():
    cost, mask = make_cost(20), torch.tensor([False, True, False])
    assert torch.equal(mcl.PIT()(cost, mask), mcl.WTA()(cost, mask))


def test_pit_uses_no_hypothesis_twice():
    weights = mcl.PIT()(make_cost(20))
    assert (weights.sum(-2) <= 1).all()


def test_emd_of_a_square_cost_is_pit():
    cost = make_cost(20, n_targets=4)
    assert torch.equal(mcl.EMD()(cost), mcl.PIT()(cost))


def test_emd_of_a_single_target_is_uniform():
    cost = make_cost(5, n_targets=1)
    torch.testing.assert_close(mcl.EMD()(cost), torch.full_like(cost, 1 / 4))


def clear_cut(cost, margin=0.2):
    """Keep the samples whose best assignment is better than the second best by a margin."""
    totals = torch.stack([cost[:, range(3), list(p)].sum(-1) for p in itertools.permutations(range(3))]).sort(0).values
    return cost[totals[1] - totals[0] > margin]


def test_cold_sinkhorn_of_a_square_cost_is_pit():
    cost = clear_cut(make_cost(60, n_targets=3, n_hypotheses=3, dtype=torch.float64))
    weights = mcl.PIT()(cost)
    assert (weights != mcl.WTA()(cost)).any()
    torch.testing.assert_close(mcl.Sinkhorn(temperature=0.02, n_iters=500)(cost), weights, rtol=0, atol=1e-2)


def test_cold_sinkhorn_is_emd():
    cost = torch.tensor([[0.0, 1.0], [0.2, 0.4], [0.9, 0.1]], dtype=torch.float64)
    weights = mcl.EMD()(cost)
    assert (weights != mcl.WTA()(cost)).any()
    torch.testing.assert_close(mcl.Sinkhorn(temperature=0.01, n_iters=500)(cost), weights, rtol=0, atol=1e-3)


def test_sinkhorn_at_temperature_zero_is_winner_takes_all():
    cost = make_cost(20)
    assert torch.equal(mcl.Sinkhorn(0.0)(cost), mcl.WTA()(cost))
    assert torch.equal(mcl.Sinkhorn(torch.tensor(0.0))(cost), mcl.WTA()(cost))


def test_hot_sinkhorn_is_uniform():
    cost = make_cost(20)
    torch.testing.assert_close(mcl.Sinkhorn(math.inf)(cost), torch.full_like(cost, 1 / 4))


@for_each("temperature", [1e-10, 1e-30, 1e-40, 1e-300])
def test_sinkhorn_stays_a_distribution_at_the_lowest_temperatures(temperature):
    weights = mcl.Sinkhorn(temperature)(make_cost(5))
    torch.testing.assert_close(weights.sum(-1), torch.ones(5, 3))


def test_sinkhorn_uses_every_hypothesis_alike():
    weights = mcl.Sinkhorn(temperature=0.3, n_iters=200)(make_cost(5, dtype=torch.float64))
    torch.testing.assert_close(weights.sum(-2), torch.full((5, 4), 3 / 4, dtype=torch.float64), rtol=0, atol=1e-6)


def test_the_first_of_equal_hypotheses_is_the_only_winner():
    cost = torch.ones(3, 4)
    for rule in (mcl.WTA(), mcl.TopK(1), mcl.AnnealedWTA(0.0), mcl.RelaxedWTA(0.0)):
        assert torch.equal(rule(cost).sum(-1), torch.ones(3))
        assert ((rule(cost) == 0) | (rule(cost) == 1)).all()
