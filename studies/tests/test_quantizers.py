"""Quantizers: optimal points of known densities, algorithms that should find them, and where cooled points split."""

import math

import numpy as np
import pytest
import torch

import torchmcl as mcl
from grids import for_each
from torchmcl import theory
from torchmcl_fleet.demo.gaussians import three_gaussians
from torchmcl_studies import quantizers
from torchmcl_studies.quantizers import DeterministicAnnealing, Lloyd, SimulatedAnnealing, lloyd_max, scalar_distortion

# Optimal distortions of N(0, 1), known to seven places.
NORMAL = {
    **{2: 0.3633802, 3: 0.1901740, 4: 0.1174818, 5: 0.0799411, 8: 0.0345478},
    **{16: 0.0095010, 32: 0.0025047, 49: 0.0010893, 64: 0.0006442},
}
DENSITIES = {
    "normal": quantizers.NormalDensity(mean=1.5, std=0.7),
    "uniform": quantizers.UniformDensity(low=-1.0, high=3.0),
    "laplace": quantizers.LaplaceDensity(mean=-2.0, scale=0.8),
    "exponential": quantizers.ExponentialDensity(scale=2.0),
}
ALL = [
    Lloyd(3, random_state=0),
    DeterministicAnnealing(3, random_state=0),
    SimulatedAnnealing(3, n_steps=100, random_state=0),
    SimulatedAnnealing(3, n_steps=100, always_accept=True, random_state=0),
]


def normal_samples(n_samples):
    """The middles of equally likely parts of N(0, 1)."""
    u = (torch.arange(n_samples, dtype=torch.float64) + 0.5) / n_samples
    return torch.special.ndtri(u).unsqueeze(-1)


# ------------------------------------------------------------------ known densities


@for_each("n", NORMAL)
def test_optimal_distortions_of_the_normal_density(n):
    assert lloyd_max(n).distortion == pytest.approx(NORMAL[n], abs=1e-7)


def test_two_points_of_the_normal_density_in_closed_form():
    best = lloyd_max(2)
    assert best.distortion == pytest.approx(1 - 2 / math.pi, abs=1e-14)
    torch.testing.assert_close(best.points, math.sqrt(2 / math.pi) * torch.tensor([-1.0, 1.0], dtype=torch.float64))


def test_equal_parts_are_optimal_for_the_uniform_density():
    best = lloyd_max(7, quantizers.UniformDensity(-1.0, 3.0))
    assert best.distortion == pytest.approx((4 / 7) ** 2 / 12, abs=1e-14)
    torch.testing.assert_close(best.masses, torch.full((7,), 1 / 7, dtype=torch.float64))


@for_each("n", [1, 5, 32])
def test_an_even_number_of_points_of_the_laplace_density_is_the_exponential_on_each_side(n):
    half = lloyd_max(n, quantizers.ExponentialDensity(scale=0.8)).distortion
    assert lloyd_max(2 * n, quantizers.LaplaceDensity(mean=-2.0, scale=0.8)).distortion == pytest.approx(
        half, abs=1e-10
    )


@for_each("density", DENSITIES.values())
@for_each("n", [1, 2, 9, 40])
def test_every_point_is_the_mean_of_its_cell(density, n):
    best = lloyd_max(n, density)
    infinity = torch.tensor([math.inf], dtype=torch.float64)
    edges = torch.cat([-infinity, best.boundaries, infinity])
    mass, moment, _ = (m.diff() for m in density.moments(edges))
    torch.testing.assert_close(moment / mass, best.points, rtol=0, atol=1e-8)
    assert best.masses.sum().item() == pytest.approx(1, abs=1e-12)
    assert (best.points.diff() > 0).all()
    worse = best.points + 1e-3 * torch.randn(20, n, dtype=torch.float64)
    assert all(scalar_distortion(points, density) >= best.distortion for points in worse)


@for_each("density", DENSITIES.values())
def test_moments_of_a_density_agree_with_a_sum(density):
    x = torch.linspace(-60, 120, 1_800_001, dtype=torch.float64)
    p = density.pdf(x)
    for order, moments in enumerate(density.moments(torch.tensor([0.3, 2.0], dtype=torch.float64))):
        for edge, value in zip((0.3, 2.0), moments, strict=True):
            inside = (x**order * p)[x <= edge]
            assert value.item() == pytest.approx(inside.sum().item() * 1e-4, abs=2e-4)
    cube_root = p.pow(1 / 3)[p > 0].sum() * 1e-4
    assert density.cube_root_norm == pytest.approx(cube_root.item() ** 3, rel=2e-3)


@for_each("name", ["normal", "uniform", "laplace", "exponential"])
def test_high_resolution_is_approached_from_below(name):
    limit = quantizers.panter_dite_constant(name)
    ratios = [n**2 * lloyd_max(n, name).distortion / limit for n in (8, 32, 128, 512)]
    assert ratios == sorted(ratios) or name == "uniform"
    assert ratios[-1] == pytest.approx(1, abs=0.005)


def test_n_squared_times_the_distortion_of_the_normal_density_tends_to_2_72():
    values = [n**2 * lloyd_max(n).distortion for n in (16, 64, 256, 1000)]
    assert values == sorted(values)
    # The remainder falls like 1 / n, so its extrapolation is far closer than the last value.
    assert values[-1] == pytest.approx(2.72070, rel=0.003)
    assert (1000 * values[3] - 256 * values[2]) / 744 == pytest.approx(2.72070, rel=1e-4)


# ------------------------------------------------------------------ annealing against the optimum


def winner_takes_all(samples, points, n_updates=200):
    for _ in range(n_updates):
        weights = mcl.WTA()(mcl.pairwise_sq_euclidean(hypotheses=points, targets=samples))
        points = theory.soft_barycenters(samples, weights, otherwise=points)
    return points


@for_each("n, n_samples", [(2, 2001), (5, 2001), (16, 2001)])
def test_annealing_finds_the_optimum_and_winner_takes_all_from_a_corner_does_not(n, n_samples):
    samples, best = normal_samples(n_samples), lloyd_max(n).distortion
    annealing = DeterministicAnnealing(n, decay=0.8, n_updates=40, random_state=0).fit(samples)
    reached = scalar_distortion(torch.from_numpy(annealing.cluster_centers_).flatten()).item()
    assert 1 <= reached / best < 1.005
    # One point takes all samples and moves to their mean. From beyond twice the largest sample no other wins any.
    corner = 10 + 0.01 * torch.arange(n, dtype=torch.float64).unsqueeze(-1)
    stuck = scalar_distortion(winner_takes_all(samples, corner).flatten()).item()
    assert stuck / best > 1.5


@for_each("always_accept", [False, True])
def test_simulated_annealing_comes_close_to_the_optimum(always_accept):
    samples = normal_samples(1001)
    annealing = SimulatedAnnealing(6, always_accept=always_accept, random_state=0).fit(samples)
    reached = scalar_distortion(torch.from_numpy(annealing.cluster_centers_).flatten()).item()
    assert reached / lloyd_max(6).distortion < 1.01


def test_annealing_is_no_worse_than_the_best_of_many_starts_in_two_dimensions():
    samples = three_gaussians(600).double()
    annealed = DeterministicAnnealing(9, random_state=0).fit(samples)
    assert annealed.distortion_ < 1.05 * Lloyd(9, random_state=0).fit(samples).distortion_


def test_all_points_are_used_after_annealing():
    annealing = DeterministicAnnealing(12, random_state=0).fit(torch.randn(300, 2))
    assert set(annealing.labels_) == set(range(12))


# ------------------------------------------------------------------ splits: theory against observation


COVARIANCES = {
    "line": [[0.3]],
    "round": [[1.0, 0.0], [0.0, 1.0]],
    "long": [[4.0, 0.0], [0.0, 1.0]],
    "tilted": [[1.0, 0.8], [0.8, 1.0]],
    "three dimensions": [[1.0, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 0.1]],
}


def gaussian_samples(covariance, n_samples=500):
    covariance = torch.tensor(covariance, dtype=torch.float64)
    return torch.randn(n_samples, len(covariance), dtype=torch.float64) @ torch.linalg.cholesky(covariance).mT


def first_split(samples, **options):
    """Cool points slowly around the predicted temperature and return the observed one over it."""
    settings = {"hottest": 1.1, "coldest": 0.93, "decay": 0.99, "n_updates": 600, "tolerance": 1e-5} | options
    annealing = DeterministicAnnealing(4, random_state=0, **settings).fit(samples)
    transition = theory.observed_transitions(annealing.trajectory_)[0]
    assert transition.n_before == 1
    return transition.temperature / theory.local_critical_temperature(samples).item()


@for_each("name", COVARIANCES)
def test_first_split_of_gaussians_is_observed_where_it_is_predicted(name):
    assert first_split(gaussian_samples(COVARIANCES[name])) == pytest.approx(1, abs=0.03)


def test_first_split_of_three_gaussians_is_observed_where_it_is_predicted():
    assert first_split(three_gaussians(500).double()) == pytest.approx(1, abs=0.03)


def test_each_group_of_three_gaussians_splits_again_at_its_own_temperature():
    samples = three_gaussians(900).double()
    annealing = DeterministicAnnealing(6, coldest=0.03, decay=0.97, n_updates=200, random_state=0).fit(samples)
    transitions = theory.observed_transitions(annealing.trajectory_)
    assert [t.n_after for t in transitions][:2] == [2, 3]
    # Just before the third split there are three groups of two; their blocks say that it comes, and where.
    split = transitions[2]
    temperatures, hypotheses = annealing.trajectory_
    before = split.step - 1
    assert theory.n_distinct(hypotheses[before], 0.05) == 3
    announced = theory.next_critical_temperatures(samples, hypotheses[before], temperatures[before].item())
    assert split.temperature == pytest.approx(announced.max().item(), rel=0.1)  # cooled in steps of 3 %
    assert announced.max().item() == pytest.approx(2 * 0.1**2, rel=0.25)  # of 300 samples, deviation 0.1


# ------------------------------------------------------------------ one interface


@for_each("quantizer", ALL)
def test_fit_predict_transform_and_score_agree(quantizer):
    samples = np.random.default_rng(0).normal(size=(60, 2))
    quantizer.fit(samples)
    points = quantizer.cluster_centers_
    distances = np.linalg.norm(samples[:, None] - points, axis=-1)
    np.testing.assert_allclose(quantizer.transform(samples), distances, atol=1e-12)
    np.testing.assert_array_equal(quantizer.predict(samples), distances.argmin(axis=1))
    np.testing.assert_array_equal(quantizer.labels_, quantizer.predict(samples))
    assert quantizer.inertia_ == pytest.approx((distances.min(axis=1) ** 2).sum())
    assert quantizer.distortion_ == pytest.approx(quantizer.inertia_ / 60)
    assert quantizer.score(samples) == pytest.approx(-quantizer.inertia_)
    np.testing.assert_array_equal(quantizer.fit_predict(samples), quantizer.labels_)
    np.testing.assert_allclose(quantizer.fit_transform(samples), distances, atol=1e-12)
    np.testing.assert_allclose(quantizer.fit(torch.from_numpy(samples)).cluster_centers_, points)
