"""PIT, Sinkhorn and EMD beyond the contract, and the linear program under EMD and the Wasserstein metric."""

import contextlib
import itertools
import warnings

import numpy as np
import ot
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
import torchmcl as mcl
from torchmcl.transport import _cheapest_of_all, transport_plan


@pytest.mark.parametrize(("n_targets", "n_hypotheses"), [(1, 1), (2, 2), (2, 5), (3, 4), (4, 4)])
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


@given(st.integers(0, 5), st.integers(1, 3), st.integers(0, 2**31), st.booleans())
def test_trying_all_assignments_gives_what_the_solver_gives(n_targets, n_more, seed, masked):
    generator = torch.Generator().manual_seed(seed)
    cost = torch.randn(2, 3, n_targets, n_targets + n_more - (n_targets > 0), generator=generator)
    mask = torch.rand(2, 3, n_targets, generator=generator) < 0.7 if masked else None
    torch.testing.assert_close(_cheapest_of_all(cost, mask), mcl.PIT()(cost, mask), rtol=0, atol=0)


def test_trying_all_assignments_marks_what_is_not_finite_and_takes_the_first_of_equals():
    cost = torch.zeros(3, 2, 2)
    cost[1, 0, 0] = torch.inf
    cost[2, 1] = torch.nan
    mask = torch.tensor([[True, True], [True, False], [True, False]])
    found = _cheapest_of_all(cost, mask)
    assert torch.equal(found[0], torch.eye(2))
    assert found[1, 0].isnan().all()
    assert torch.equal(found[1:, 1], torch.zeros(2, 2))
    assert torch.equal(found[2, 0], torch.tensor([1.0, 0.0]))


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
def test_on_a_gpu_few_speakers_are_matched_without_waiting_for_it():
    cost = torch.randn(22, 3, 4)
    expected = mcl.PIT()(cost)
    on_device = cost.cuda()
    mcl.PIT()(on_device)  # the assignments are listed once
    with no_waiting_for_a_gpu():
        found = mcl.PIT()(on_device)
    assert torch.equal(found.cpu(), expected)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**31))
def test_sinkhorn_agrees_with_plain_scaling(n_targets, n_hypotheses, seed):
    generator = torch.Generator().manual_seed(seed)
    cost = torch.rand(2, n_targets, n_hypotheses, generator=generator, dtype=torch.float64)
    mask = torch.rand(2, n_targets, generator=generator) < 0.7
    expected = oracles.apply_rule(oracles.sinkhorn, cost, mask, 0.2, 20)
    torch.testing.assert_close(mcl.Sinkhorn(0.2, n_iters=20)(cost, mask), expected)


def test_sinkhorn_agrees_with_pot():
    cost = torch.rand(3, 5, dtype=torch.float64)
    expected = ot.sinkhorn(np.full(3, 1 / 3), np.full(5, 1 / 5), cost.numpy(), reg=0.3, numItermax=5000, stopThr=1e-14)
    weights = mcl.Sinkhorn(0.3, n_iters=500)(cost)
    torch.testing.assert_close(weights, torch.from_numpy(expected) * 3, rtol=0, atol=1e-8)


def test_emd_costs_no_more_than_any_other_plan_with_its_marginals():
    cost = torch.rand(6, 3, 5, dtype=torch.float64)
    exact = (mcl.EMD()(cost) * cost).sum((-1, -2))
    entropic = (mcl.Sinkhorn(0.05, n_iters=2000)(cost) * cost).sum((-1, -2))
    assert (exact <= entropic + 1e-6).all()


def test_transport_plan_has_the_marginals_and_the_cost_of_pot():
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


@pytest.mark.parametrize("rule", [mcl.PIT(), mcl.EMD()], ids=repr)
def test_a_sample_that_is_not_finite_does_not_disturb_the_others(rule):
    cost = torch.rand(3, 2, 4)
    expected = rule(cost)
    cost[1, 0, 0] = torch.inf
    weights = rule(cost)
    assert weights[1].isnan().all()
    assert torch.equal(weights[[0, 2]], expected[[0, 2]])
