"""PIT, Sinkhorn and EMD beyond the contract, and the linear program under EMD and the Wasserstein metric."""

import contextlib
import itertools
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
import torchmcl as mcl
from grids import for_each
from torchmcl.rules.transport import one_to_one_weights, transport_plan


@for_each("n_targets, n_hypotheses", [(1, 1), (2, 2), (2, 5), (3, 4), (4, 4)])
def test_pit_finds_the_cheapest_injection(n_targets, n_hypotheses):
    cost = torch.rand(10, n_targets, n_hypotheses, dtype=torch.float64)
    totals = (mcl.PIT()(cost) * cost).sum((-1, -2))
    for sample, total in zip(cost.tolist(), totals.tolist(), strict=True):
        best = min(
            sum(sample[s][k] for s, k in enumerate(chosen))
            for chosen in itertools.permutations(range(n_hypotheses), n_targets)
        )
        assert total == pytest.approx(best)


def test_pit_may_refuse_every_target_its_favourite():
    cost = torch.tensor([[0.0, 1.0, 5.0], [0.1, 3.0, 5.0]])
    assert torch.equal(mcl.PIT()(cost), torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]))


def test_pit_takes_negative_costs():
    cost = -torch.rand(5, 3, 3, dtype=torch.float64)
    torch.testing.assert_close(mcl.PIT()(cost), oracles.apply_rule(oracles.pit, cost))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**31))
def test_forbidden_pairs_are_avoided_where_that_is_possible(n_targets, n_more, seed):
    generator = torch.Generator().manual_seed(seed)
    cost = torch.randn(5, n_targets, n_targets + n_more - 1, generator=generator, dtype=torch.float64)
    cost[torch.rand(cost.shape, generator=generator) < 0.3] = torch.inf
    weights = mcl.PIT()(cost)
    for sample, chosen in zip(cost, weights, strict=True):
        totals = [
            sample[range(n_targets), columns].sum()
            for columns in itertools.permutations(range(sample.shape[-1]), n_targets)
        ]
        if min(totals) == torch.inf:
            assert chosen.isnan().all()
        else:
            torch.testing.assert_close(sample[chosen == 1].sum(), min(totals))


def test_a_forbidden_pair_needs_a_trained_cost_without_infinity():
    cost = torch.tensor([[torch.inf, 1.0], [1.0, 5.0]])
    matching = mcl.assign(cost, mcl.PIT())
    assert torch.equal(matching.weights, torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    assert mcl.mcl_loss(matching).isnan()
    assert mcl.mcl_loss(matching, trained_cost=torch.tensor([[9.0, 1.0], [2.0, 9.0]])) == 1.5


@for_each("bad", [torch.nan, -torch.inf])
def test_what_is_no_cost_marks_its_sample_unless_it_is_padding(bad):
    cost = torch.rand(2, 2, 3)
    cost[:, 1, 2] = bad
    weights = mcl.PIT()(cost, torch.tensor([[True, True], [True, False]]))
    assert weights[0].isnan().all()
    assert torch.equal(weights[1], torch.stack([torch.eye(3)[cost[1, 0].argmin()], torch.zeros(3)]))


def test_of_more_targets_than_hypotheses_the_operator_skips_the_most_expensive_and_pit_refuses():
    cost = torch.tensor([[1.0, 3.0], [2.0, 9.0], [0.0, 9.0]])
    expected = torch.tensor([[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
    assert torch.equal(one_to_one_weights(cost), expected)
    many = torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="PIT: `number of hypotheses`"):
        mcl.PIT()(cost.expand(2, 3, 2), many)
    few = torch.tensor([True, True, False])
    assert torch.equal(mcl.PIT()(cost, few), torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]))


def test_where_a_mask_cannot_be_read_too_many_real_targets_give_nan():
    cost, mask = torch.rand(2, 3, 2), torch.tensor([[True, True, True], [True, True, False]])
    mapped = torch.vmap(mcl.PIT())(cost, mask)
    assert mapped[0].isnan().all()
    assert torch.equal(mapped[1], mcl.PIT()(cost[1], mask[1]))


@for_each("axes", [(0, 0), (1, 1), (0, None), (None, 0), (-1, 1)])
def test_any_axis_of_costs_and_masks_can_be_mapped(axes):
    costs, masks = torch.rand(3, 2, 4), torch.tensor([[True, False], [True, True], [False, True]])
    cost, mask = (
        part[0] if axis is None else part.movedim(0, axis) for part, axis in zip((costs, masks), axes, strict=True)
    )
    mapped = torch.vmap(one_to_one_weights, in_dims=axes)(cost, mask)
    for index in range(3):
        alone = [part[0 if axis is None else index] for part, axis in zip((costs, masks), axes, strict=True)]
        assert torch.equal(mapped[index], one_to_one_weights(*alone))


def test_the_operator_keeps_the_rules_of_operators():
    cost, mask = torch.rand(3, 2, 4), torch.rand(3, 2) < 0.7
    for arguments in ((cost, mask), (cost.double(), None), (cost.mT[:, :2, :1], None)):
        torch.library.opcheck(torch.ops.torchmcl.one_to_one_weights.default, arguments)


def test_the_operator_passes_no_gradient_on():
    cost = torch.rand(2, 3, 4, requires_grad=True)
    assert not one_to_one_weights(cost).requires_grad


@contextlib.contextmanager
def no_waiting_for_a_gpu():
    """Turn every wait for a GPU into an error, and leave the mode as it was, whatever happens."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        # Said once, when the mode is set for the first time: as an error it comes after the mode is set.
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype feature")
        try:
            torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@for_each("shape", [(22, 3, 4), (22, 20, 20), (16, 100, 300)])
def test_on_a_gpu_pit_waits_for_nothing(shape):
    pytest.importorskip("triton", reason="without Triton the host solves")
    cost, mask = torch.randn(shape), torch.rand(shape[:-1]) < 0.8
    expected = mcl.PIT()(cost, mask)
    on_device, on_device_mask = cost.cuda(), mask.cuda()
    mcl.PIT()(on_device, on_device_mask)  # the kernel is compiled once
    with no_waiting_for_a_gpu():
        found = mcl.PIT()(on_device, on_device_mask)
    assert torch.equal(found.cpu(), expected)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**31))
def test_sinkhorn_agrees_with_plain_scaling(n_targets, n_hypotheses, seed):
    generator = torch.Generator().manual_seed(seed)
    cost = torch.rand(2, n_targets, n_hypotheses, generator=generator, dtype=torch.float64)
    mask = torch.rand(2, n_targets, generator=generator) < 0.7
    expected = oracles.apply_rule(oracles.sinkhorn, cost, mask, 0.2, 20)
    torch.testing.assert_close(mcl.Sinkhorn(0.2, n_iters=20)(cost, mask), expected)


@pytest.mark.slow
def test_sinkhorn_agrees_with_pot():
    ot = pytest.importorskip("ot")
    cost = torch.rand(3, 5, dtype=torch.float64)
    expected = ot.sinkhorn(np.full(3, 1 / 3), np.full(5, 1 / 5), cost.numpy(), reg=0.3, numItermax=5000, stopThr=1e-14)
    weights = mcl.Sinkhorn(0.3, n_iters=500)(cost)
    torch.testing.assert_close(weights, torch.from_numpy(expected) * 3, rtol=0, atol=1e-8)


def test_emd_costs_no_more_than_any_other_plan_with_its_marginals():
    cost = torch.rand(6, 3, 5, dtype=torch.float64)
    exact = (mcl.EMD()(cost) * cost).sum((-1, -2))
    entropic = (mcl.Sinkhorn(0.05, n_iters=2000)(cost) * cost).sum((-1, -2))
    assert (exact <= entropic + 1e-6).all()


@pytest.mark.slow
def test_transport_plan_has_the_marginals_and_the_cost_of_pot():
    ot = pytest.importorskip("ot")
    generator = np.random.default_rng(0)
    for n_rows, n_columns, scale in [(3, 5, 1.0), (6, 2, 1e-8), (1, 4, 1e8), (4, 1, 1.0)]:
        cost = scale * generator.random((n_rows, n_columns))
        rows, columns = generator.dirichlet(np.ones(n_rows)), generator.dirichlet(np.ones(n_columns))
        plan = transport_plan(cost, rows, columns)
        assert (plan >= 0).all()
        np.testing.assert_allclose(plan.sum(1), rows, atol=1e-9)
        np.testing.assert_allclose(plan.sum(0), columns, atol=1e-9)
        np.testing.assert_allclose((plan * cost).sum(), ot.emd2(rows, columns, cost), rtol=1e-7)


def test_transport_plan_of_a_zero_cost_is_feasible():
    plan = transport_plan(np.zeros((2, 3)), np.full(2, 0.5), np.full(3, 1 / 3))
    np.testing.assert_allclose(plan.sum(1), 0.5)


@for_each("rule", [mcl.PIT(), mcl.EMD()])
def test_a_sample_that_is_not_finite_does_not_disturb_the_others(rule):
    cost = torch.rand(3, 2, 4)
    expected = rule(cost)
    cost[1, 0] = torch.inf
    weights = rule(cost)
    assert weights[1].isnan().all()
    assert torch.equal(weights[[0, 2]], expected[[0, 2]])
