"""Critical temperatures, and the splits in a recorded cooling."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
import torchmcl as mcl
from grids import for_each
from torchmcl import theory


def test_local_critical_temperature_is_twice_the_largest_variance():
    samples = torch.randn(3, 50, 2, dtype=torch.float64)
    for one, value in zip(samples, theory.local_critical_temperature(samples), strict=True):
        expected = 2 * torch.linalg.eigvalsh(torch.cov(one.T, correction=0))[-1]
        torch.testing.assert_close(value, expected)


@given(st.floats(0.01, 100), st.floats(-100, 100))
def test_local_critical_temperature_scales_with_the_square_and_ignores_a_shift(scale, shift):
    samples = torch.randn(20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    value = theory.local_critical_temperature(samples)
    torch.testing.assert_close(theory.local_critical_temperature(scale * samples + shift), scale**2 * value)


TRIANGLE = [[0.5, 0.0], [-0.25, 0.1875**0.5], [-0.25, -(0.1875**0.5)]]
DISTRIBUTIONS = {  # weights, means, standard deviation, T0c, 2 lambda_max
    "three Gaussians of the paper": ([1 / 3] * 3, [[-0.5, -0.5], [0.0, 0.5], [0.5, -0.5]], 0.1, 0.501, 0.464),
    "equilateral triangle": ([1 / 3] * 3, TRIANGLE, 0.1, 0.291, 0.270),
    "two unequal modes": ([0.9, 0.1], [[0.0], [1.0]], 0.0, 0.364, 0.180),
    "two rare modes": ([0.9, 0.05, 0.05], [[0.0], [-1.0], [1.0]], 0.0, 0.341, 0.200),
}


def mixture(name):
    weights, means, deviation, *_ = DISTRIBUTIONS[name]
    means = torch.tensor(means, dtype=torch.float64)
    covariances = deviation**2 * torch.eye(means.shape[1]).expand(len(means), -1, -1)
    return means, {"weights": torch.tensor(weights), "covariances": covariances}


@for_each("name", DISTRIBUTIONS)
def test_first_critical_temperature_is_the_one_of_a_search_in_plain_steps(name):
    weights, means, deviation, expected, local = DISTRIBUTIONS[name]
    points, rest = mixture(name)
    result = theory.critical_temperature(points, **rest)
    searched = oracles.critical_temperature(weights, means, deviation, 2001 if points.shape[1] == 1 else 151)
    assert searched == pytest.approx(expected, abs=6e-4)
    assert result.temperature == pytest.approx(searched, rel=1e-4)
    assert result.lower <= result.temperature <= result.upper < 1.007 * result.lower
    assert max(local, result.sample_bound) < result.lower


@for_each("dim", [1, 2, 5])
def test_first_critical_temperature_of_a_gaussian_is_the_local_one(dim):
    spread = torch.diag(torch.arange(1.0, dim + 1))[None]
    result = theory.critical_temperature(torch.ones(1, dim), covariances=spread)
    assert tuple(result)[:3] == pytest.approx([2 * dim] * 3)
    assert tuple(theory.critical_temperature(torch.full((7, dim), 0.1))) == (0, 0, 0, 0)


@given(st.floats(1e-3, 1e3), st.floats(-100, 100), st.floats(0.01, 0.45))
def test_first_critical_temperature_of_two_modes_is_known_at_every_scale(scale, shift, rare):
    modes = scale * torch.tensor([[0.0], [1.0]], dtype=torch.float64) + shift
    result = theory.critical_temperature(modes, weights=torch.tensor([1 - rare, rare], dtype=torch.float64))
    expected = scale**2 * (1 - 2 * rare) / math.log((1 - rare) / rare)
    assert result.lower == pytest.approx(expected, rel=1e-5)
    assert expected <= result.upper < 1.007 * expected


@for_each("scale", [1e-139, 1e139])
def test_first_critical_temperature_of_extreme_scales_is_exact_or_refused(scale):
    samples = torch.randn(20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    value = theory.critical_temperature(samples).temperature
    with torch.inference_mode():
        assert theory.critical_temperature(scale * samples).temperature == pytest.approx(scale**2 * value)
    with pytest.raises(ValueError, match=r"`points` must have squared distances from .* Divide them by their scale"):
        theory.critical_temperature(samples * scale * scale**0.1)


def test_directions_without_variance_change_no_critical_temperature():
    points, rest = mixture("two rare modes")
    turned = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64)).Q[:1]
    result = theory.critical_temperature(points @ turned, weights=rest["weights"])
    assert result.temperature == pytest.approx(theory.critical_temperature(points, **rest).temperature, rel=1e-6)


def test_a_warning_says_that_one_sample_decides():
    samples = torch.randn(1000, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with pytest.warns(UserWarning, match="one of 1000 samples decides") as caught:
        result = theory.critical_temperature(samples)
    assert caught[0].filename == __file__
    assert 4 < result.sample_bound <= result.temperature  # 2 for the distribution
    theory.critical_temperature(samples[:, :1].clamp(-2, 2))


def test_the_rate_is_positive_just_below_the_first_critical_temperature_and_zero_above():
    points, rest = mixture("two unequal modes")
    places = torch.linspace(-0.1, 1.1, 121, dtype=torch.float64).unsqueeze(-1)
    cost = mcl.pairwise_sq_euclidean(hypotheses=places, targets=points)
    critical = theory.critical_temperature(points, **rest).temperature
    curve = theory.blahut_arimoto(cost, critical * torch.tensor([0.98, 1.02]), masses=rest["weights"], n_iters=20_000)
    assert curve.rate[0] > 0.02 > 100 * curve.gap[0]
    assert curve.rate[1] < 0.001


def test_between_the_two_temperatures_the_merged_state_is_stable_and_a_split_state_is_better():
    samples = torch.tensor([[0.0]] * 9 + [[1.0]], dtype=torch.float64)  # local 0.18, first 0.364
    merged = samples.mean(dim=0).expand(10, 1)

    at_mean = mcl.pairwise_sq_euclidean(hypotheses=merged, targets=samples)
    for temperature, is_stable, split_is_better in ((0.17, False, True), (0.25, True, True), (0.38, True, False)):
        hessian = theory.free_energy_hessian(samples, merged, temperature)
        assert (torch.linalg.eigvalsh(hessian)[0] > 0) == is_stable
        points = samples
        for _ in range(500):
            cost = mcl.pairwise_sq_euclidean(hypotheses=points, targets=samples)
            points = theory.soft_barycenters(samples, theory.boltzmann_weights(cost, temperature))
        gain = theory.free_energy(at_mean, temperature) - theory.free_energy(cost, temperature)
        assert (gain > 1e-9) == split_is_better


def test_it_is_the_free_energy_that_splits_there_and_not_the_soft_distortion():
    samples = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)  # T_c = 2
    apart, together = torch.tensor([[-0.05], [0.05]], dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64)

    def values(points, temperature):
        cost = mcl.pairwise_sq_euclidean(hypotheses=points, targets=samples)
        weights = theory.boltzmann_weights(cost, temperature)
        return theory.free_energy(cost, temperature), theory.soft_distortion(cost, weights)

    for temperature, energy_parts, distortion_parts in ((1.9, True, True), (3.0, False, True), (4.2, False, False)):
        (f_apart, d_apart), (f_together, d_together) = values(apart, temperature), values(together, temperature)
        assert (f_apart < f_together) == energy_parts
        assert (d_apart < d_together) == distortion_parts


def test_residuals_of_inputs_with_different_noise_lie_below_the_bound():
    scales = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64).view(3, 1, 1)
    samples = 5 * torch.arange(3).view(3, 1, 1) + scales * torch.randn(3, 400, 2, dtype=torch.float64)
    each = theory.local_critical_temperature(samples)
    bound = each.max()
    residuals = (samples - samples.mean(dim=1, keepdim=True)).flatten(0, 1)
    of_residuals = theory.critical_temperature_of_residuals(residuals)
    assert each.min() < of_residuals < bound
    same_noise = (samples / scales - (samples / scales).mean(dim=1, keepdim=True)).flatten(0, 1)
    assert theory.critical_temperature_of_residuals(same_noise).item() == pytest.approx(2, rel=0.15)
    # A biased mean adds to it: on the hot side.
    assert theory.critical_temperature_of_residuals(residuals + 1) > of_residuals


def test_masked_samples_change_nothing():
    samples = torch.randn(2, 9, 2, dtype=torch.float64)
    mask = torch.arange(9).expand(2, 9) < 6
    padded = samples.masked_fill(~mask.unsqueeze(-1), 1e3)
    for function in (theory.covariance, theory.local_critical_temperature, theory.critical_temperature_of_residuals):
        torch.testing.assert_close(function(padded, mask), function(samples[:, :6]))
    torch.testing.assert_close(theory.max_distortion(padded, mask), theory.max_distortion(samples[:, :6]))


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12),
    st.sampled_from([0.0, 1.0, 1.5, 2.5]),
)
def test_n_distinct_agrees_with_the_plain_loop(points, tolerance):
    hypotheses = torch.tensor(points, dtype=torch.float64)
    assert theory.n_distinct(hypotheses, tolerance) == oracles.n_distinct(points, tolerance)


def test_n_distinct_takes_batches_tolerances_and_compilers():
    hypotheses = torch.randn(4, 3, 10, 2)
    tolerance = torch.rand(4, 3)
    together = theory.n_distinct(hypotheses, tolerance)
    assert together.shape == (4, 3)
    for index in ((0, 0), (3, 2), (2, 1)):
        assert together[index] == theory.n_distinct(hypotheses[index], tolerance[index].item())
    over_models = torch.vmap(theory.n_distinct, in_dims=(0, None))(hypotheses, 0.3)
    assert torch.equal(over_models, theory.n_distinct(hypotheses, 0.3))


@for_each("dim", [1, 2, 33, 64, 1000])
def test_equal_hypotheses_are_one_place_at_temperature_0_in_every_dimension(dim):
    places = torch.randn(3, dim, generator=torch.Generator().manual_seed(0)) + 100
    assert theory.n_distinct(places.repeat(2, 1), theory.thermal_tolerance(0.0)) == 3


def test_a_chain_of_neighbors_is_not_one_place():
    chain = torch.arange(8.0).unsqueeze(-1)
    assert theory.n_distinct(chain, 1.0) == 4


def test_transitions_are_the_new_maxima_of_the_count():
    def spread(*places):
        return torch.tensor(places).unsqueeze(-1)

    hypotheses = torch.stack(
        [
            spread(0.0, 0.0, 0.0),
            spread(0.0, 0.0, 1.0),
            spread(0.0, 0.0, 0.0),
            spread(0.0, 0.0, 1.0),
            spread(0.0, 1.0, 2.0),
        ]
    )
    trajectory = theory.Trajectory(torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0]), hypotheses)
    found = theory.observed_transitions(trajectory)
    assert [(t.step, t.temperature, t.temperature_before, t.n_before, t.n_after) for t in found] == [
        (1, 4.0, 5.0, 1, 2),
        (4, 1.0, 2.0, 2, 3),
    ]
    assert theory.observed_transitions(trajectory, tolerance=10.0) == []


def test_trajectories_that_show_no_cooling_are_refused():
    with pytest.raises(ValueError, match="observed_transitions: `temperatures`"):
        theory.observed_transitions(theory.Trajectory(torch.tensor([1.0]), torch.zeros(1, 3, 2)))
    with pytest.raises(ValueError, match=r"`temperatures` must be non-increasing, got a rise at step 1"):
        theory.observed_transitions(theory.Trajectory(torch.tensor([1.0, 2.0]), torch.zeros(2, 3, 2)))
    with pytest.raises(ValueError, match="`hypotheses`"):
        theory.observed_transitions(theory.Trajectory(torch.tensor([2.0, 1.0]), torch.zeros(3, 3, 2)))


def test_bad_samples_are_refused():
    with pytest.raises(ValueError, match="local_critical_temperature: `samples`"):
        theory.local_critical_temperature(torch.zeros(0, 2))
    with pytest.raises(ValueError, match="critical_temperature: `points`"):
        theory.critical_temperature(torch.zeros(2, 3, 1))
    with pytest.raises(ValueError, match="critical_temperature: `weights` must be >= 0 and sum to 1"):
        theory.critical_temperature(torch.zeros(2, 1), weights=torch.ones(2))
    with pytest.raises(ValueError, match=r"critical_temperature: `weights` must have shape \(2,\)"):
        theory.critical_temperature(torch.zeros(2, 1), weights=torch.ones(1, 2) / 2)
    for covariances in (torch.ones(1, 1), -torch.ones(2, 1, 1)):
        with pytest.raises(ValueError, match="critical_temperature: `covariances`"):
            theory.critical_temperature(torch.zeros(2, 1), covariances=covariances)
    with pytest.raises(ValueError, match="gaussian_rate: `covariance` must be symmetric"):
        theory.gaussian_rate(0.1, torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
    with pytest.raises(ValueError, match="n_distinct: `tolerance`"):
        theory.n_distinct(torch.zeros(3, 1), -0.1)
    with pytest.raises(ValueError, match="n_distinct: `hypotheses`"):
        theory.n_distinct(torch.zeros(3))
