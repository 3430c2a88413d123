import math

import pytest
import torch

import oracles
import torchmcl as mcl
from families import ALL_RULES
from grids import for_each
from torchmcl.types import Matching


def make_problem(dtype=torch.float64):
    cost = torch.rand(6, 3, 4, dtype=dtype)
    mask = torch.arange(3) < (torch.arange(6) % 4).unsqueeze(-1)
    return cost, mask


@for_each("rule", ALL_RULES)
@for_each("reduction", ["mean", "sample_mean"])
def test_loss_agrees_with_the_oracle(rule, reduction):
    cost, mask = make_problem()
    for m in (None, mask):
        full = torch.ones(6, 3, dtype=torch.bool) if m is None else m
        matching = mcl.assign(cost, rule, m)
        expected = oracles.loss(cost.tolist(), rule(cost, m).tolist(), full.tolist(), reduction)
        assert mcl.mcl_loss(matching, reduction).item() == pytest.approx(expected, rel=1e-6)


def test_unreduced_loss_is_the_weighted_cost_of_each_target():
    cost, mask = make_problem()
    matching = mcl.assign(cost, mcl.AnnealedWTA(0.4), mask)
    losses = mcl.mcl_loss(matching, "none")
    assert losses.shape == (6, 3)
    assert (losses[~mask] == 0).all()
    weights = oracles.apply_rule(oracles.annealed_wta, cost, mask, 0.4)
    torch.testing.assert_close(losses, (weights * cost).sum(-1))


def test_mean_counts_targets_alike_and_sample_mean_counts_samples_alike():
    cost = torch.tensor([[[1.0], [3.0]], [[8.0], [0.0]]])
    mask = torch.tensor([[True, True], [True, False]])
    matching = mcl.assign(cost, mcl.WTA(), mask)
    assert mcl.mcl_loss(matching).item() == 4.0
    assert mcl.mcl_loss(matching, reduction="mean").item() == 4.0
    assert mcl.mcl_loss(matching, reduction="sample_mean").item() == 5.0


@for_each("rule", ALL_RULES)
@for_each("reduction", ["mean", "sample_mean"])
def test_without_any_real_target_the_loss_and_its_gradient_are_zero(rule, reduction):
    cost = torch.rand(2, 3, 4, requires_grad=True)
    loss = mcl.mcl_loss(mcl.assign(cost, rule, torch.zeros(2, 3, dtype=torch.bool)), reduction)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(cost.grad, torch.zeros_like(cost))


@for_each("reduction", ["mean", "sample_mean"])
def test_a_sample_without_real_targets_contributes_nothing(reduction):
    cost, _ = make_problem()
    mask = torch.ones(6, 3, dtype=torch.bool)
    mask[2] = False
    others = [0, 1, 3, 4, 5]
    with_it = mcl.mcl_loss(mcl.assign(cost, mcl.AnnealedWTA(0.4), mask), reduction)
    without_it = mcl.mcl_loss(mcl.assign(cost[others], mcl.AnnealedWTA(0.4), mask[others]), reduction)
    torch.testing.assert_close(with_it, without_it)


def test_an_axis_of_no_targets_gives_zero():
    assert mcl.mcl_loss(mcl.assign(torch.zeros(2, 0, 4), mcl.WTA())).item() == 0


@for_each("padding", [math.nan, math.inf, -100.0])
def test_padded_rows_change_neither_loss_nor_gradient(padding):
    cost, mask = make_problem()

    def run(cost):
        leaf = cost.clone().requires_grad_()
        loss = mcl.mcl_loss(mcl.assign(leaf, mcl.AnnealedWTA(0.4), mask))
        loss.backward()
        return loss.detach(), leaf.grad

    torch.testing.assert_close(run(cost.masked_fill(~mask.unsqueeze(-1), padding)), run(cost))


@for_each("rule", ALL_RULES)
def test_gradient_of_the_loss_is_the_weights_over_the_number_of_real_targets(rule):
    cost, mask = make_problem()
    cost.requires_grad_()
    mcl.mcl_loss(mcl.assign(cost, rule, mask)).backward()
    torch.testing.assert_close(cost.grad, rule(cost, mask) / mask.sum())


@for_each("temperature", [1e-3, 0.05, 0.5, 3.0, 100.0])
def test_gradient_under_annealing_is_that_of_the_free_energy(temperature):
    hypotheses = torch.randn(5, 4, 2, dtype=torch.float64, requires_grad=True)
    targets = torch.randn(5, 3, 2, dtype=torch.float64)
    cost = mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=targets)
    loss = mcl.mcl_loss(mcl.assign(cost, mcl.AnnealedWTA(temperature)))
    log_mean = torch.logsumexp(-cost / temperature, dim=-1) - math.log(4)
    free_energy = (-temperature * log_mean).mean()
    (from_loss,) = torch.autograd.grad(loss, hypotheses, retain_graph=True)
    (from_energy,) = torch.autograd.grad(free_energy, hypotheses)
    torch.testing.assert_close(from_loss, from_energy, rtol=1e-9, atol=1e-10)
    assert from_loss.abs().max() > 1e-3


def test_loss_of_the_winner_is_a_lower_bound():
    cost, mask = make_problem()
    hard = mcl.mcl_loss(mcl.assign(cost, mcl.WTA(), mask))
    for rule in ALL_RULES:
        assert mcl.mcl_loss(mcl.assign(cost, rule, mask)) >= hard - 1e-12


def test_matching_keeps_the_cost_differentiable_and_the_mask_full():
    cost, mask = make_problem()
    cost.requires_grad_()
    matching = mcl.assign(cost, mcl.WTA(), mask)
    assert isinstance(matching, Matching)
    assert matching.cost.requires_grad
    assert not matching.weights.requires_grad
    assert torch.equal(matching.mask, mask)
    assert (matching.cost[~mask] == 0).all()
    assert torch.equal(matching.cost[mask], cost[mask])
    everything = mcl.assign(cost, mcl.WTA())
    assert everything.mask.shape == (6, 3)
    assert everything.mask.all()


def test_match_modifies_neither_cost_nor_mask():
    cost, mask = make_problem()
    before = cost.clone(), mask.clone()
    mcl.assign(cost, mcl.AnnealedWTA(0.4), mask)
    assert torch.equal(cost, before[0])
    assert torch.equal(mask, before[1])


def test_a_mask_of_one_sample_serves_them_all():
    cost, _ = make_problem()
    mask = torch.tensor([True, False, True])
    torch.testing.assert_close(
        mcl.mcl_loss(mcl.assign(cost, mcl.WTA(), mask)), mcl.mcl_loss(mcl.assign(cost[:, mask], mcl.WTA()))
    )


@for_each("dtype", [torch.bfloat16, torch.float16])
def test_loss_of_a_half_precision_cost_is_float32(dtype):
    cost, mask = make_problem(torch.float32)
    loss = mcl.mcl_loss(mcl.assign(cost.to(dtype), mcl.AnnealedWTA(0.4), mask))
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, mcl.mcl_loss(mcl.assign(cost.to(dtype).float(), mcl.AnnealedWTA(0.4), mask)))


@for_each("dtype", [torch.bfloat16, torch.float16])
@for_each("reduction", ["mean", "sample_mean", "none"])
def test_autocast_does_not_round_the_loss(dtype, reduction):
    cost, mask = make_problem(torch.float32)
    expected = mcl.mcl_loss(mcl.assign(cost, mcl.AnnealedWTA(0.4), mask), reduction)
    with torch.autocast("cpu", dtype=dtype):
        loss = mcl.mcl_loss(mcl.assign(cost, mcl.AnnealedWTA(0.4), mask), reduction)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected)


def test_float64_loss_stays_float64():
    cost, mask = make_problem()
    assert mcl.mcl_loss(mcl.assign(cost, mcl.AnnealedWTA(0.4), mask)).dtype == torch.float64


def test_loss_compiles_and_maps():
    torch.compiler.reset()
    cost, mask = make_problem()

    def loss_of(cost, mask):
        return mcl.mcl_loss(mcl.assign(cost, mcl.AnnealedWTA(0.4), mask))

    expected = loss_of(cost, mask)
    torch.testing.assert_close(torch.compile(loss_of, fullgraph=True, backend="aot_eager")(cost, mask), expected)
    one_by_one = torch.stack([loss_of(c, m) for c, m in zip(cost, mask, strict=True)])
    torch.testing.assert_close(torch.vmap(loss_of)(cost, mask), one_by_one)


def test_loss_is_the_mean_of_the_separation_losses_of_the_paper():
    cost = torch.rand(4, 2, 3, dtype=torch.float64)
    best_permutation = [
        min(sample[0][i] + sample[1][j] for i in range(3) for j in range(3) if i != j) / 2 for sample in cost.tolist()
    ]
    assert mcl.mcl_loss(mcl.assign(cost, mcl.PIT()), "sample_mean").item() == pytest.approx(sum(best_permutation) / 4)
    greedy = [sum(min(row) for row in sample) / 2 for sample in cost.tolist()]
    assert mcl.mcl_loss(mcl.assign(cost, mcl.WTA()), "sample_mean").item() == pytest.approx(sum(greedy) / 4)


@for_each("reduction", ["mean", "sample_mean", "none"])
def test_sample_weights_multiply_the_loss_of_each_sample(reduction):
    cost, mask = make_problem()
    weights = torch.rand(6, dtype=torch.float64)
    matching = mcl.assign(cost, mcl.AnnealedWTA(0.4), mask)
    scaled = Matching(weights[:, None, None] * matching.cost, matching.weights, mask)
    torch.testing.assert_close(
        mcl.mcl_loss(matching, reduction, sample_weights=weights), mcl.mcl_loss(scaled, reduction)
    )
    torch.testing.assert_close(
        mcl.mcl_loss(matching, reduction, sample_weights=torch.ones(6)), mcl.mcl_loss(matching, reduction)
    )
