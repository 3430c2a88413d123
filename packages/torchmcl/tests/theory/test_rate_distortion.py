"""Rates in bits: against closed forms, plain loops and an independent package."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
import torchmcl as mcl
from grids import for_each
from torchmcl import theory

HALF_LOG_2PI_E = 0.5 * math.log2(2 * math.pi * math.e)


def gaussian_grid(variances, n_points, width):
    """Points of a grid, and masses of a Gaussian with independent coordinates on them."""
    axes = [torch.linspace(-width, width, n_points, dtype=torch.float64) * math.sqrt(v) for v in variances]
    points = torch.cartesian_prod(*axes).view(-1, len(variances))
    masses = (-0.5 * points.square() / torch.tensor(variances, dtype=torch.float64)).sum(dim=-1).exp()
    return points, masses / masses.sum()


# ------------------------------------------------------------------ mutual information


def test_mutual_information_agrees_with_the_joint_distribution():
    weights = torch.softmax(3 * torch.randn(6, 20, 4, dtype=torch.float64), dim=-1)
    for one, value in zip(weights, theory.mutual_information(weights), strict=True):
        assert value.item() == pytest.approx(oracles.mutual_information(one.tolist()), rel=1e-12)


def test_mutual_information_is_the_entropy_of_usage_less_that_of_the_rows():
    weights = torch.softmax(torch.randn(20, 4, dtype=torch.float64), dim=-1)
    usage = mcl.metrics.usage_entropy(mcl.Matching(weights, weights, torch.ones(20, dtype=torch.bool)))
    expected = (usage - theory.assignment_entropy(weights)) / math.log(2)
    torch.testing.assert_close(theory.mutual_information(weights), expected)


# ------------------------------------------------------------------ Blahut-Arimoto


def test_blahut_arimoto_agrees_with_the_plain_loop():
    torch.manual_seed(1)
    cost, masses = torch.rand(7, 5, dtype=torch.float64), torch.softmax(torch.randn(7, dtype=torch.float64), dim=0)
    temperatures = torch.tensor([0.02, 0.05, 0.1], dtype=torch.float64)
    points = theory.blahut_arimoto(cost, temperatures, masses=masses, n_iters=400, tolerance=1e-300)
    for index, temperature in enumerate(temperatures.tolist()):
        distortion, rate = oracles.blahut_arimoto(cost.tolist(), masses.tolist(), temperature, 400)
        assert points.distortion[index].item() == pytest.approx(distortion, rel=1e-9)
        assert points.rate[index].item() == pytest.approx(rate, rel=1e-9)


@pytest.mark.slow
def test_blahut_arimoto_agrees_with_dit_on_a_discrete_source():
    dit = pytest.importorskip("dit.rate_distortion.blahut_arimoto")
    masses = torch.tensor([0.5, 0.25, 0.15, 0.1], dtype=torch.float64)
    cost = 1 - torch.eye(4, dtype=torch.float64)
    temperatures = torch.tensor([0.2, 0.4, 0.6, 0.8], dtype=torch.float64)
    points = theory.blahut_arimoto(cost, temperatures, masses=masses, tolerance=1e-9)
    for index, temperature in enumerate(temperatures.tolist()):
        beta = 1 / (temperature * math.log(2))  # its rate is in bits
        theirs = _dit_point(dit, masses.numpy(), beta)
        ours = points.rate[index].item() + beta * points.distortion[index].item()
        assert ours == pytest.approx(theirs.rate + beta * theirs.distortion, abs=1e-4)
        assert points.distortion[index].item() == pytest.approx(theirs.distortion, abs=2e-3)
        assert points.rate[index].item() == pytest.approx(theirs.rate, abs=5e-3)


def _dit_point(dit, masses, beta):
    result, _ = dit.blahut_arimoto(masses, beta, max_iters=1000, restarts=1)
    return result


@for_each("probability", [0.5, 0.2])
def test_blahut_arimoto_of_a_coin_is_the_difference_of_two_entropies(probability):
    def h(p):
        return -p * math.log2(p) - (1 - p) * math.log2(1 - p)

    masses = torch.tensor([probability, 1 - probability], dtype=torch.float64)
    points = theory.blahut_arimoto(
        1 - torch.eye(2, dtype=torch.float64), torch.tensor([0.2, 0.4, 0.6]).double(), masses=masses, tolerance=1e-9
    )
    for distortion, rate in zip(points.distortion.tolist(), points.rate.tolist(), strict=True):
        assert rate == pytest.approx(h(probability) - h(distortion), abs=1e-7)


def test_blahut_arimoto_is_within_a_percent_of_a_gaussian_in_one_dimension():
    grid, masses = gaussian_grid([2.0], 161, 5)
    temperatures = torch.tensor([0.1, 0.4, 1.0, 2.0, 3.0], dtype=torch.float64)  # T = 2 D on the curve
    cost = mcl.pairwise_sq_euclidean(hypotheses=grid, targets=grid)
    points = theory.blahut_arimoto(cost, temperatures, masses=masses, tolerance=1e-3)
    torch.testing.assert_close(points.rate, theory.gaussian_rate(points.distortion, 2.0), rtol=0.01, atol=0)
    torch.testing.assert_close(points.distortion, temperatures / 2, rtol=0.01, atol=0)


@for_each("variances", [(1.0, 1.0), (1.0, 0.25)])
def test_blahut_arimoto_is_within_a_percent_of_a_gaussian_in_two_dimensions(variances):
    grid, masses = gaussian_grid(variances, 23, 3.6)
    cost = mcl.pairwise_sq_euclidean(hypotheses=grid, targets=grid)
    # At T = 0.8 the narrow axis of the second case (2 * 0.25 < 0.8) is under water.
    temperatures = torch.tensor([0.4, 0.8], dtype=torch.float64)
    points = theory.blahut_arimoto(cost, temperatures, masses=masses, tolerance=3e-3, n_iters=2000)
    covariance = torch.diag(torch.tensor(variances, dtype=torch.float64))
    torch.testing.assert_close(points.rate, theory.gaussian_rate(points.distortion, covariance), rtol=0.01, atol=0)


def test_the_gap_bounds_what_more_updates_gain():
    torch.manual_seed(2)
    samples = torch.randn(40, 2, dtype=torch.float64)
    best = theory.rate_of_samples(samples, 0.5, n_iters=20000, tolerance=1e-8)
    slope = 1 / (0.5 * math.log(2))
    assert best.gap < 1e-8
    for n_iters in (1, 3, 10, 100):
        early = theory.rate_of_samples(samples, 0.5, n_iters=n_iters, tolerance=1e-300)
        lagrangian = early.rate + slope * early.distortion - (best.rate + slope * best.distortion)
        assert -1e-9 <= lagrangian <= early.gap + 1e-9


def test_curves_of_several_sources_at_several_temperatures_in_one_call():
    samples = torch.randn(3, 30, 1)
    temperatures = torch.tensor([0.1, 0.5]).view(2, 1)
    together = theory.rate_of_samples(samples, temperatures)
    assert together.rate.shape == together.gap.shape == together.temperature.shape == (2, 3)
    assert together.masses.shape == (2, 3, 30)
    alone = theory.rate_of_samples(samples[1], 0.5)
    torch.testing.assert_close(together.rate[1, 1], alone.rate, rtol=0, atol=2e-3)
    torch.testing.assert_close(together.masses.sum(dim=-1), torch.ones(2, 3))


def test_rate_falls_and_the_slope_is_minus_one_over_the_temperature():
    samples = torch.randn(20, 1, dtype=torch.float64)
    temperatures = torch.tensor([0.29, 0.3, 0.31], dtype=torch.float64)
    points = theory.rate_of_samples(samples, temperatures, tolerance=1e-6, n_iters=20000)
    assert (points.rate.diff() < 0).all()
    slope = (points.rate[2] - points.rate[0]) / (points.distortion[2] - points.distortion[0])
    assert slope.item() == pytest.approx(-1 / (0.3 * math.log(2)), rel=1e-3)


def test_free_energy_with_equal_masses_is_at_least_the_lagrangian():
    samples, hypotheses = torch.randn(50, 2, dtype=torch.float64), torch.randn(6, 2, dtype=torch.float64)
    cost = mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=samples)
    weights = theory.boltzmann_weights(cost, 0.8)
    lagrangian = theory.soft_distortion(cost, weights) + 0.8 * math.log(2) * theory.mutual_information(weights)
    assert theory.free_energy(cost, 0.8) + 0.8 * math.log(6) >= lagrangian
    merged = torch.zeros_like(cost) + cost[:, :1]
    expected = merged[:, 0].mean() - 0.8 * math.log(6)
    torch.testing.assert_close(theory.free_energy(merged, 0.8), expected)


# ------------------------------------------------------------------ Gaussians


@given(
    st.lists(st.floats(1e-3, 10), min_size=1, max_size=5),
    st.floats(0.01, 0.999),
)
def test_reverse_water_filling_agrees_with_bisection_and_inverts(variances, share):
    covariance = torch.diag(torch.tensor(variances, dtype=torch.float64))
    distortion = share * sum(variances)
    rate = theory.gaussian_rate(torch.tensor(distortion, dtype=torch.float64), covariance)
    assert rate.item() == pytest.approx(oracles.gaussian_rate(distortion, variances), rel=1e-9, abs=1e-9)
    assert theory.gaussian_distortion(rate, covariance).item() == pytest.approx(distortion, rel=1e-9)


def test_a_degenerate_covariance_has_the_rate_of_its_own_dimensions():
    flat = torch.diag(torch.tensor([2.0, 0.0, 0.0]))
    assert theory.gaussian_rate(0.5, flat) == theory.gaussian_rate(0.5, 2.0) == 1
    assert theory.gaussian_distortion(1.0, flat) == 0.5
    tilted = torch.ones(2, 2, dtype=torch.float64)
    assert theory.gaussian_rate(0.5, tilted).item() == pytest.approx(1)
    nothing = torch.zeros(2, 2)
    assert theory.gaussian_rate(0.5, nothing) == theory.gaussian_rate(0.0, nothing) == 0
    assert theory.gaussian_distortion(1.0, nothing) == 0


def test_max_distortion_is_the_best_of_a_single_point():
    samples = torch.randn(30, 3, dtype=torch.float64)
    mean = samples.mean(dim=0, keepdim=True)
    torch.testing.assert_close(theory.max_distortion(samples), (samples - mean).square().sum(dim=-1).mean())


# ------------------------------------------------------------------ entropy and Shannon's bound


@for_each("dim", [1, 2, 3])
def test_entropy_of_gaussian_samples(dim):
    samples = 2 * torch.randn(2, 2500, dim)
    expected = dim * (HALF_LOG_2PI_E + 1)
    for value in theory.differential_entropy(samples).tolist():
        assert value == pytest.approx(expected, abs=0.1)


def test_entropy_of_uniform_samples_and_its_scaling():
    samples = torch.rand(3000, 1, dtype=torch.float64)
    value = theory.differential_entropy(samples)
    assert value.item() == pytest.approx(0, abs=0.06)
    torch.testing.assert_close(theory.differential_entropy(8 * samples + 3), value + 3)


def test_shannon_bound_is_the_curve_of_a_gaussian_until_the_water_reaches_an_axis():
    variances = torch.tensor([2.0, 0.5], dtype=torch.float64)
    entropy = 2 * HALF_LOG_2PI_E + 0.5 * variances.log2().sum()
    below = torch.tensor([0.1, 0.9, 1.0], dtype=torch.float64)
    covariance = torch.diag(variances)
    bound = theory.shannon_lower_bound(below, entropy=entropy, dim=2)
    torch.testing.assert_close(bound, theory.gaussian_rate(below, covariance))
    above = torch.tensor([1.2, 2.0], dtype=torch.float64)
    assert (theory.shannon_lower_bound(above, entropy=entropy, dim=2) < theory.gaussian_rate(above, covariance)).all()
    assert theory.shannon_lower_bound(0.0, entropy=1.0, dim=1) == math.inf


def test_shannon_bound_lies_below_the_curve_of_a_uniform_source():
    grid = torch.linspace(0, 1, 200, dtype=torch.float64).unsqueeze(-1)
    points = theory.rate_of_samples(grid, torch.tensor([0.005, 0.02, 0.05], dtype=torch.float64))
    bound = theory.shannon_lower_bound(points.distortion, entropy=0.0, dim=1)
    assert (bound < points.rate).all()
    assert (points.rate - bound)[0] < 0.12  # tight when it is cold


# ------------------------------------------------------------------ bad input


def test_bad_temperatures_and_masses_are_refused():
    cost = torch.rand(3, 2)
    for temperature in (0.0, -1.0, math.inf, torch.tensor([1.0, 0.0])):
        with pytest.raises(ValueError, match="blahut_arimoto: `temperature`"):
            theory.blahut_arimoto(cost, temperature)
    with pytest.raises(ValueError, match="blahut_arimoto: `masses`"):
        theory.blahut_arimoto(cost, 1.0, masses=torch.ones(3))
    with pytest.raises(ValueError, match="blahut_arimoto: `masses`"):
        theory.blahut_arimoto(cost, 1.0, masses=torch.ones(2) / 2)
    with pytest.raises(ValueError, match="blahut_arimoto: `n_iters`"):
        theory.blahut_arimoto(cost, 1.0, n_iters=0)
    with pytest.raises(ValueError, match="blahut_arimoto: `tolerance`"):
        theory.blahut_arimoto(cost, 1.0, tolerance=0.0)


def test_bad_gaussians_are_refused():
    with pytest.raises(ValueError, match="gaussian_rate: `distortion`"):
        theory.gaussian_rate(-1.0, 1.0)
    with pytest.raises(ValueError, match="gaussian_distortion: `rate`"):
        theory.gaussian_distortion(-1.0, 1.0)
    with pytest.raises(ValueError, match="gaussian_rate: `covariance`"):
        theory.gaussian_rate(1.0, -2.0)
    with pytest.raises(ValueError, match="`covariance`"):
        theory.gaussian_rate(1.0, torch.diag(torch.tensor([1.0, -1.0])))
    with pytest.raises(ValueError, match="`covariance`"):
        theory.gaussian_rate(1.0, torch.rand(2, 3))


def test_too_few_samples_for_an_entropy_are_refused():
    with pytest.raises(ValueError, match="differential_entropy: `samples`"):
        theory.differential_entropy(torch.rand(3, 2))
    with pytest.raises(ValueError, match="shannon_lower_bound: `distortion`"):
        theory.shannon_lower_bound(-1.0, entropy=0.0, dim=1)
