"""The theory at its limits: no temperature and infinite ones, one hypothesis, infinite costs, what never happens."""

import math

import pytest
import torch

from grids import for_each
from torchmcl import theory

COST = torch.tensor([[1.0, 2.0, 4.0], [3.0, 0.5, 2.0]], dtype=torch.float64)
as_number_or_tensor = for_each("as_given", [float, torch.tensor])


# ------------------------------------------------------------------ free energy


@as_number_or_tensor
@for_each("temperature", [0.0, 1e-30, 1.0, 1e30, math.inf])
def test_free_energy_of_a_single_hypothesis_is_its_cost(temperature, as_given):
    cost = COST[:, :1].clone().requires_grad_()
    values = theory.free_energy(cost, as_given(temperature), mean_axes=0)
    torch.testing.assert_close(values, cost.squeeze(-1))
    torch.testing.assert_close(*torch.autograd.grad(values.sum(), cost), torch.ones_like(cost))


@as_number_or_tensor
def test_free_energy_of_several_falls_without_end_and_pulls_all_alike(as_given):
    cost = COST.clone().requires_grad_()
    values = theory.free_energy(cost, as_given(math.inf), mean_axes=0)
    assert (values == -math.inf).all()
    torch.testing.assert_close(*torch.autograd.grad(values.sum(), cost), torch.full_like(cost, 1 / 3))


@as_number_or_tensor
@for_each("temperature", [0.0, 0.5, math.inf])
def test_a_hypothesis_of_infinite_cost_counts_as_absent(temperature, as_given):
    far = torch.cat([COST, torch.full_like(COST[:, :1], math.inf)], dim=-1)
    for n in (1, 3):
        near = COST[:, :n]
        with_far = torch.cat([near, far[:, -1:]], dim=-1)
        torch.testing.assert_close(
            theory.free_energy(with_far, as_given(temperature)), theory.free_energy(near, as_given(temperature))
        )


@for_each("temperature", [0.0, 0.5, math.inf])
def test_free_energy_without_any_finite_cost_is_infinite(temperature):
    assert theory.free_energy(torch.full((2, 3), math.inf), temperature) == math.inf


@as_number_or_tensor
@for_each("temperature, weights", [(0.0, [1.0, 0.0]), (1.0, [1.0, 0.0]), (1e-30, [1.0, 0.0]), (math.inf, [0.5, 0.5])])
def test_weights_of_an_infinite_cost_are_those_of_the_limit(temperature, weights, as_given):
    found = theory.boltzmann_weights(torch.tensor([[1.0, math.inf]]), as_given(temperature))
    torch.testing.assert_close(found, torch.tensor([weights]))


def test_curvature_without_samples_is_0_and_at_an_infinite_temperature_that_of_the_mean():
    samples, merged = torch.randn(5, 2), torch.zeros(3, 2)
    torch.testing.assert_close(
        theory.free_energy_hessian(samples, merged, 1.0, torch.zeros(5, dtype=torch.bool)), torch.zeros(6, 6)
    )
    torch.testing.assert_close(theory.free_energy_hessian(samples, merged, math.inf), 2 / 3 * torch.eye(6))


@for_each("temperature", [0.0, math.inf])
def test_critical_temperatures_at_the_ends(temperature):
    samples = torch.randn(6, 2)
    assert theory.next_critical_temperatures(samples, torch.randn(3, 2), temperature).isfinite().all()
    for name in ("local_critical_temperature", "critical_temperature_of_residuals", "max_distortion"):
        assert getattr(theory, name)(samples, torch.zeros(6, dtype=torch.bool)) == 0
    assert theory.local_critical_temperature(samples[:1]) == 0
    assert theory.thermal_tolerance(temperature) == temperature


# ------------------------------------------------------------------ rates


@for_each("temperature", [1e-45, 1e-30, 0.3, 1e30])
def test_a_reproduction_of_infinite_cost_changes_no_rate(temperature):
    cost = COST.float()
    nowhere = torch.cat([cost, torch.full_like(cost[:, :1], math.inf)], dim=-1)
    expected, points = (theory.blahut_arimoto(c, temperature, tolerance=1e-6) for c in (cost, nowhere))
    assert points.masses[-1] == 0
    for name in ("distortion", "rate", "gap"):
        torch.testing.assert_close(getattr(points, name), getattr(expected, name), rtol=1e-4, atol=1e-4)


def test_a_forbidden_pair_is_never_used():
    cost = torch.tensor([[0.0, 1.0, math.inf], [1.0, 0.0, 2.0], [math.inf, 1.0, 0.0]])
    points = theory.blahut_arimoto(cost, torch.tensor([1e-3, 0.2, 1.0, 1e3]))
    assert all(value.isfinite().all() for value in points)
    torch.testing.assert_close(points.rate[0], torch.tensor(3.0).log2(), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(points.distortion[-1], torch.tensor(2 / 3), rtol=1e-2, atol=1e-2)  # only the middle one


def test_a_source_that_never_occurs_may_have_any_cost():
    masses = torch.tensor([0.5, 0.0, 0.5])
    cost = torch.tensor([[0.0, 1.0], [math.inf, math.inf], [1.0, 0.0]])
    points, expected = theory.blahut_arimoto(cost, 0.5, masses=masses), theory.blahut_arimoto(cost[::2], 0.5)
    torch.testing.assert_close(tuple(points), tuple(expected))


@for_each("row", [[math.inf, math.inf], [math.nan, 0.0], [-math.inf, 0.0]])
def test_costs_that_no_assignment_can_have_are_refused(row):
    with pytest.raises(ValueError, match="`cost`"):
        theory.blahut_arimoto(torch.tensor([[0.0, 1.0], row]), 0.5)


def test_rates_of_gaussians_at_the_ends():
    assert theory.gaussian_rate(0.0, 1.0) == math.inf
    assert theory.gaussian_rate(math.inf, 1.0) == 0
    assert theory.gaussian_rate(0.0, 0.0) == 0
    assert theory.gaussian_distortion(math.inf, 1.0) == 0
    assert theory.gaussian_distortion(0.0, 1.0) == 1
    assert theory.shannon_lower_bound(0.0, entropy=1.0, dim=2) == math.inf
    assert theory.shannon_lower_bound(0.0, entropy=-math.inf, dim=2) == -math.inf


@for_each("function", [theory.gaussian_rate, theory.gaussian_distortion])
@for_each("covariance", [math.inf, torch.diag(torch.tensor([1.0, math.inf])), torch.tensor(math.nan)])
def test_a_covariance_must_be_finite(function, covariance):
    with pytest.raises(ValueError, match="`covariance`"):
        function(1.0, covariance)
