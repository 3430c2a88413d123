"""Rotations and shapes: forms of the same rotation agree, motions and orders do not matter."""

import itertools
import math

import pytest
import torch

import oracles
import torchmcl as mcl
from grids import for_each
from torchmcl.costs import pairwise_geodesic, pairwise_rmsd, pairwise_sq_angle, rotation_matrices


def some_rotations(n):
    return rotation_matrices(torch.randn(n, 4, dtype=torch.float64))


def test_the_three_forms_of_a_rotation_agree():
    matrices = some_rotations(6)
    torch.testing.assert_close(matrices @ matrices.mT, torch.eye(3, dtype=torch.float64).expand(6, 3, 3))
    assert torch.allclose(torch.linalg.det(matrices), torch.ones(6, dtype=torch.float64))
    six = torch.cat([2 * matrices[..., 0], matrices[..., 1] + 3 * matrices[..., 0]], dim=-1)
    torch.testing.assert_close(rotation_matrices(six), matrices)
    cost = pairwise_geodesic(hypotheses=matrices, targets=six, event_dims=2)
    assert cost.shape == (6, 6)
    assert cost.diagonal().abs().max() < 1e-6


@for_each("dtype", [torch.float32, torch.float64])
@for_each("size", [1e-6, 1.0, 1e20])
def test_six_numbers_are_a_rotation_unless_their_columns_are_parallel(dtype, size):
    torch.manual_seed(0)
    eps = torch.finfo(dtype).eps
    first, other = torch.randn(2, 50, 3, dtype=dtype)
    for apart in (0.0, 0.1 * eps, eps, 30 * eps, 1e3 * eps, 1.0):
        six = (size * torch.cat([first, -2 * first + apart * other], dim=-1)).requires_grad_()
        matrices = rotation_matrices(six)
        of_zeros = (matrices == 0).all(dim=-1).all(dim=-1)
        assert not of_zeros.any() if apart > 100 * eps else (of_zeros.all() if apart == 0 else True)
        products = torch.eye(3, dtype=dtype).expand(50, 3, 3)[~of_zeros]
        torch.testing.assert_close((matrices.mT @ matrices)[~of_zeros], products, atol=50 * eps, rtol=0)
        matrices.sum().backward()
        assert six.grad.isfinite().all()


def test_the_angle_of_a_turn_is_exact_down_to_tiny_ones():
    for angle in (1e-6, 0.01, 1.0, 3.1):
        turn = torch.tensor([math.cos(angle / 2), math.sin(angle / 2), 0.0, 0.0], dtype=torch.float64)
        cost = pairwise_geodesic(hypotheses=turn[None], targets=torch.eye(3, dtype=torch.float64)[None])
        assert abs(cost.item() - angle) < 1e-9


def test_joints_are_averaged_in_a_step():
    torch.manual_seed(0)
    hypotheses, targets = torch.randn(4, 3, 5, 6), torch.randn(4, 5, 6)
    step = mcl.mcl_step(
        lambda _: mcl.Predictions(hypotheses), mcl.Batch(targets, targets), mcl.WTA(), cost_fn=pairwise_geodesic
    )
    each = [pairwise_geodesic(hypotheses=hypotheses[:, :, j], targets=targets[:, None, j]) for j in range(5)]
    torch.testing.assert_close(step.matching.cost, sum(each) / 5)


def test_equal_angles_cost_nothing_however_large():
    angles = torch.full((1, 3), 1e30)
    assert pairwise_sq_angle(hypotheses=angles, targets=angles).item() == 0


@for_each("scaled", [False, True])
@for_each("dim", [2, 3])
def test_rmsd_ignores_motions_and_agrees_with_the_oracle_with_a_mask(scaled, dim):
    torch.manual_seed(0)
    h, t = torch.randn(2, 3, 7, dim, dtype=torch.float64), torch.randn(2, 2, 7, dim, dtype=torch.float64)
    mask = torch.rand(2, 2, 7) > 0.3
    cost = pairwise_rmsd(hypotheses=h, targets=t, mask=mask, scaled=scaled)
    for b, i, k in itertools.product(range(2), range(2), range(3)):
        torch.testing.assert_close(cost[b, i, k], oracles.rmsd(h[b, k], t[b, i], mask[b, i], scaled))
    turn = torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64)).Q
    turn[:, 0] *= torch.linalg.det(turn).sign()
    for factor in (1e-6, 1.7, 1e8) if scaled else (1.0,):
        moved = factor * (h @ turn + 4)
        torch.testing.assert_close(pairwise_rmsd(hypotheses=moved, targets=t, mask=mask, scaled=scaled), cost)


def test_a_mirrored_shape_is_another_unless_it_may_be():
    shape = torch.randn(1, 6, 3)
    mirror = shape * torch.tensor([-1.0, 1.0, 1.0])
    assert pairwise_rmsd(hypotheses=mirror, targets=shape).item() > 0.05
    assert pairwise_rmsd(hypotheses=mirror, targets=shape, reflected=True).item() == 0


def test_bad_input_is_refused_in_words():
    with pytest.raises(ValueError, match="`values`"):
        rotation_matrices(torch.zeros(5))
    with pytest.raises(ValueError, match="both end in 6, 4 or"):
        pairwise_geodesic(hypotheses=torch.zeros(2, 5), targets=torch.zeros(2, 6))
    with pytest.raises(ValueError, match="as many joints"):
        pairwise_geodesic(hypotheses=torch.zeros(2, 3, 6), targets=torch.zeros(2, 4, 6), event_dims=2)
