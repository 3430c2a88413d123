"""Costs of masks and classes with masks of pixels, sums of costs, and anchors."""

import functools

import pytest
import torch

import oracles
import torchmcl as mcl
from grids import for_each
from torchmcl import costs
from torchmcl.costs import AnchoredCost, SumOfCosts

PIXEL_COSTS = {
    costs.pairwise_iou: oracles.iou,
    costs.pairwise_mask_bce: oracles.mask_bce,
    costs.pairwise_focal: oracles.focal,
}


@for_each("fn, oracle", PIXEL_COSTS.items())
def test_masked_pixels_do_not_count_and_may_be_nan(fn, oracle):
    torch.manual_seed(0)
    h, t = torch.randn(2, 3, 4, 5, dtype=torch.float64), torch.rand(2, 2, 4, 5, dtype=torch.float64)
    mask = torch.rand(2, 2, 4, 5) > 0.3
    cost = fn(hypotheses=h, targets=t.masked_fill(~mask, torch.nan), mask=mask)
    for b, i, k in [(0, 0, 0), (1, 1, 2), (0, 1, 1)]:
        torch.testing.assert_close(cost[b, i, k], oracle(h[b, k], t[b, i], mask[b, i]))


@for_each(
    "fn", [*PIXEL_COSTS, mcl.pairwise_dice, *(functools.partial(costs.pairwise_focal, gamma=g) for g in (0, 0.5))]
)
@for_each("dtype", [torch.float32, torch.float64])
def test_gradients_of_certain_pixels_are_finite(fn, dtype):
    logits = torch.tensor([[[-1e4, -120.0, 0.0, 120.0, 1e4]]], dtype=dtype, requires_grad=True)
    fn(hypotheses=logits, targets=torch.tensor([[[0.0, 1, 0, 1, 0]]], dtype=dtype)).sum().backward()
    assert logits.grad.isfinite().all()


def test_no_cost_of_masks_makes_a_tensor_of_pairs_and_pixels_even_in_half_precision():
    h, t = torch.randn(1, 16, 32, 32, dtype=torch.bfloat16, requires_grad=True), torch.rand(1, 16, 32, 32).bfloat16()
    seen = []

    def note(tensor):
        seen.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        for fn in (*PIXEL_COSTS, mcl.pairwise_dice):
            cost = fn(hypotheses=h, targets=t)
            assert cost.dtype == torch.float32
            cost.sum().backward()
    assert max(seen) <= 16 * 32 * 32
    assert h.grad.isfinite().all()


def test_hard_overlap_is_that_of_the_final_masks():
    h, t = torch.randn(3, 4, 5), (torch.rand(2, 4, 5) > 0.5).float()
    cost = costs.pairwise_iou(hypotheses=h, targets=t, hard=True, smooth=1e-6)
    for i in range(2):
        for k in range(3):
            inside, truth = h[k] > 0, t[i] > 0
            assert cost[i, k].item() == pytest.approx(
                1 - ((inside & truth).sum() / (inside | truth).sum()).item(), abs=1e-5
            )
    empty = costs.pairwise_iou(hypotheses=-torch.ones(1, 4, 5), targets=torch.zeros(1, 4, 5), hard=True)
    assert empty.item() == 0


def test_classes_of_pixels_agree_with_torch_and_ignore_masked_ones():
    torch.manual_seed(0)
    h, t = torch.randn(2, 3, 5, 5, 6, dtype=torch.float64), torch.randint(0, 4, (2, 2, 5, 6))
    mask = torch.rand(2, 2, 5, 6) > 0.3
    h[:, :, 4] = -torch.inf  # a class that no target has
    given = {"hypotheses": h, "targets": t.masked_fill(~mask, -100), "mask": mask}
    cost = costs.pairwise_pixel_cross_entropy(**given)
    for b, i, k in [(0, 0, 0), (1, 1, 2), (0, 1, 1)]:
        expected = torch.nn.functional.cross_entropy(h[b, k][:, mask[b, i]].T, t[b, i][mask[b, i]])
        torch.testing.assert_close(cost[b, i, k], expected)
    step = mcl.mcl_step(
        lambda _: mcl.Predictions(h), mcl.Batch(t, t[:, 0]), mcl.WTA(), cost_fn=costs.pairwise_pixel_cross_entropy
    )
    assert step.matching.cost.shape == (2, 1, 3)
    with pytest.raises(TypeError, match="must contain integer class ids"):
        costs.pairwise_pixel_cross_entropy(hypotheses=h, targets=t.double())


def test_a_sum_of_costs_is_the_sum_and_trains_in_a_step():
    torch.manual_seed(0)
    cost_fn = SumOfCosts([(20.0, costs.pairwise_focal), (1.0, mcl.pairwise_dice)])
    h, t, mask = torch.randn(2, 3, 4, 5), torch.rand(2, 1, 4, 5).round(), torch.rand(2, 1, 4, 5) > 0.2
    step = mcl.mcl_step(lambda _: mcl.Predictions(h), mcl.Batch(t, t, mask), mcl.WTA(), cost_fn=cost_fn)
    given = {"hypotheses": h, "targets": t, "mask": mask}
    expected = 20 * costs.pairwise_focal(**given) + mcl.pairwise_dice(**given)
    torch.testing.assert_close(step.matching.cost, expected)
    partial = SumOfCosts([(1.0, functools.partial(mcl.pairwise_dice, smooth=2.0)), (1.0, mcl.pairwise_sq_euclidean)])
    assert "mask" not in costs.cost_declaration(partial).needs
    with pytest.raises(ValueError, match="`terms` must accept `mask`"):
        partial(**given)
    with pytest.raises(ValueError, match="must contain at least one pair"):
        SumOfCosts([])


def test_anchors_choose_and_hypotheses_are_trained():
    torch.manual_seed(0)
    anchors, h = torch.randn(4, 6, 2), torch.randn(8, 4, 6, 2, requires_grad=True)
    target, mask = torch.randn(8, 6, 2), torch.rand(8, 6) > 0.3
    step = mcl.mcl_step(
        lambda _: mcl.Predictions(h),
        mcl.Batch(target, target, mask),
        mcl.WTA(),
        cost_fn=AnchoredCost(mcl.pairwise_fde, anchors),
        loss_fn=mcl.pairwise_sq_ade,
    )
    fixed = mcl.pairwise_fde(hypotheses=anchors.expand(8, 4, 6, 2), targets=target[:, None], mask=mask[:, None])
    assert torch.equal(step.matching.weights.argmax(-1), fixed.argmin(-1))
    step.loss.backward()
    assert h.grad.abs().sum() > 0
    with pytest.raises(ValueError, match="`hypotheses`"):
        AnchoredCost(mcl.pairwise_fde, anchors)(hypotheses=h[:, :3], targets=target[:, None])


def test_anchors_may_come_from_k_means():
    cluster = pytest.importorskip("sklearn.cluster")
    torch.manual_seed(0)
    y = torch.cat([torch.randn(50, 2) * 0.1 + 3, torch.randn(50, 2) * 0.1 - 3])
    centers = torch.from_numpy(cluster.KMeans(2).fit(y.numpy()).cluster_centers_)
    cost = AnchoredCost(mcl.pairwise_euclidean, centers)(hypotheses=torch.zeros(100, 2, 2), targets=y[:, None])
    winners = cost.argmin(-1).flatten()
    assert (winners[:50] == winners[0]).all()
    assert (winners[50:] != winners[0]).all()
