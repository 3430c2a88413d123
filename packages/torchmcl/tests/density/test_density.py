"""Densities around hypotheses: they integrate to 1, samples agree with them, and they shrink to the points."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from grids import for_each
from torchmcl.density import Bandwidth, KernelMixture, fit_bandwidth

POINTS_1D = torch.tensor([[-1.0], [0.2], [2.0]], dtype=torch.float64)
POINTS_2D = torch.tensor([[-1.0, 0.5], [0.2, -0.3], [1.0, 1.0], [0.9, -1.2]], dtype=torch.float64)
POINTS_3D = torch.tensor([[-1.0, 0.5, 0.0], [0.2, -0.3, 0.4], [1.0, 1.0, -1.0]], dtype=torch.float64)
SHARES = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
SHARES_4 = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)


def on_line(bandwidth=0.4, scale=None):
    return KernelMixture(POINTS_1D, SHARES, bandwidth, scale)


def in_plane(bandwidth=0.5, scale=None):
    return KernelMixture(POINTS_2D, SHARES_4, bandwidth, scale)


def integral_1d(density, values=lambda y: 1.0, low=-9.0, high=10.0, n=20001):
    y = torch.linspace(low, high, n, dtype=torch.float64).unsqueeze(-1)
    return torch.trapezoid(density.log_prob(y).exp() * values(y.squeeze(-1)), y.squeeze(-1))


def plane(n=801, reach=5.0):
    side = torch.linspace(-reach, reach, n, dtype=torch.float64)
    return side, torch.stack(torch.meshgrid(side, side, indexing="ij"), dim=-1)


@for_each("bandwidth", [0.05, 0.4, 1.5])
@for_each("scale", [None, torch.tensor([0.5], dtype=torch.float64)])
def test_density_on_the_line_integrates_to_one(bandwidth, scale):
    assert float(integral_1d(on_line(bandwidth, scale))) == pytest.approx(1.0, abs=1e-4)


@for_each("scale", [None, torch.tensor([0.6, 1.3], dtype=torch.float64)])
def test_density_in_the_plane_integrates_to_one(scale):
    side, grid = plane()
    values = in_plane(0.5, scale).log_prob(grid).exp()
    total = torch.trapezoid(torch.trapezoid(values, side), side)
    assert float(total) == pytest.approx(1.0, abs=2e-3)


def test_samples_on_the_line_agree_with_the_distribution_function():
    density = on_line()
    samples = density.sample((4000,)).squeeze(-1)
    result = stats.kstest(samples.numpy(), lambda y: density.cdf(torch.from_numpy(y).unsqueeze(-1)).numpy())
    assert result.pvalue > 0.01


def test_distribution_function_is_the_integral_of_the_density():
    density = on_line()
    for y in (-1.5, -0.4, 0.0, 1.1, 2.5):
        below = integral_1d(density, high=y)
        assert float(density.cdf(torch.tensor([y], dtype=torch.float64))) == pytest.approx(float(below), abs=1e-4)


def test_samples_in_the_plane_agree_with_the_density():
    # The log density of samples against its distribution under quadrature: a test in one dimension of both.
    density = in_plane()
    logs = density.log_prob(density.sample((3000,))).sort().values.numpy()
    side, grid = plane(n=601)
    on_grid = density.log_prob(grid).flatten()
    mass = on_grid.exp() * (side[1] - side[0]) ** 2
    order = on_grid.argsort()
    reached = mass[order].cumsum(0) / mass.sum()

    def below(level):
        return np.interp(level, on_grid[order].numpy(), reached.numpy())

    assert stats.kstest(logs, below).pvalue > 0.01


def test_mean_and_variance_on_the_line_are_those_of_the_density():
    density = on_line(0.7)
    mean = float(integral_1d(density, lambda y: y))
    second = float(integral_1d(density, lambda y: (y - mean) ** 2))
    assert float(density.mean) == pytest.approx(mean, abs=1e-4)
    assert float(density.variance) == pytest.approx(second, abs=1e-3)


@for_each("points, shares", [(POINTS_2D, SHARES_4), (POINTS_3D, SHARES)])
def test_mean_and_variance_agree_with_samples(points, shares):
    density = KernelMixture(points, shares, 0.6)
    samples = density.sample((40_000,))
    torch.testing.assert_close(density.mean, samples.mean(dim=0), atol=0.03, rtol=0)
    torch.testing.assert_close(density.variance, samples.var(dim=0), atol=0.05, rtol=0.03)


@for_each("points, shares", [(POINTS_1D, SHARES), (POINTS_2D, SHARES_4)])
def test_small_bandwidth_gives_the_weighted_points(points, shares):
    density = KernelMixture(points, shares, 1e-6)
    samples = density.sample((20_000,))
    nearest = torch.cdist(samples, points)
    assert float(nearest.amin(dim=-1).max()) < 1e-4
    counts = torch.bincount(nearest.argmin(dim=-1), minlength=len(points)) / len(samples)
    torch.testing.assert_close(counts, shares.float(), atol=0.02, rtol=0)
    torch.testing.assert_close(density.mean, shares @ points, atol=1e-5, rtol=0)
    expected = shares @ (points - shares @ points).square()
    torch.testing.assert_close(density.variance, expected, atol=1e-5, rtol=0)


def test_a_bandwidth_keeps_the_digits_of_float64():
    density = KernelMixture(POINTS_1D, SHARES, 0.3)
    assert (density.bandwidth == 0.3).all()
    assert (density.widths == 0.3).all()


def test_mixture_agrees_with_torch_distributions():
    components = torch.distributions.Independent(torch.distributions.Normal(POINTS_2D, 0.5), 1)
    expected = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(SHARES_4), components)
    at = torch.randn(7, 2, dtype=torch.float64)
    density = in_plane()
    torch.testing.assert_close(density.log_prob(at), expected.log_prob(at))
    torch.testing.assert_close(density.mean, expected.mean)
    torch.testing.assert_close(density.variance, expected.variance)


def test_marginal_of_a_mixture_is_the_density_of_one_coordinate():
    density = in_plane(0.5, torch.tensor([1.0, 3.0], dtype=torch.float64))
    marginal = density.marginal(1)
    assert marginal.event_shape == (1,)
    torch.testing.assert_close(marginal.mean, density.mean[1:])
    torch.testing.assert_close(marginal.variance, density.variance[1:])


def test_batches_are_computed_as_one_by_one():
    points = torch.randn(4, 5, 2, dtype=torch.float64)
    shares = torch.rand(4, 5, dtype=torch.float64).softmax(dim=-1)
    widths = torch.rand(4, 1, dtype=torch.float64) + 0.1
    at = torch.randn(3, 4, 2, dtype=torch.float64)
    together = KernelMixture(points, shares, widths)
    assert together.batch_shape == (4,)
    assert together.sample((3,)).shape == (3, 4, 2)
    for i in range(4):
        alone = KernelMixture(points[i], shares[i], widths[i])
        torch.testing.assert_close(together.log_prob(at)[:, i], alone.log_prob(at[:, i]))
        torch.testing.assert_close(together.variance[i], alone.variance)


def test_log_density_has_the_right_gradient():
    points = POINTS_2D.clone().requires_grad_()
    at = torch.tensor([0.3, 0.1], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda p: KernelMixture(p, SHARES_4, 0.5).log_prob(at), (points,), atol=1e-4)


@given(mass=st.floats(0.05, 0.95))
def test_highest_density_set_holds_its_mass_and_is_densest(mass):
    density = on_line(0.2)
    lower, upper = density.highest_density(mass)
    held = (density.cdf(upper.unsqueeze(-1)) - density.cdf(lower.unsqueeze(-1))).nansum()
    # Whole cells, or cells that are cut where the set ends.
    assert mass - 1e-3 <= float(held) <= mass + 0.03
    y = torch.linspace(-3, 4, 4001, dtype=torch.float64).unsqueeze(-1)
    inside = ((y >= lower) & (y <= upper)).any(dim=-1)
    logs = density.log_prob(y)
    assert float(logs[inside].min() - logs[~inside].max()) > -0.8  # equal up to a cell at a steep place


def test_highest_density_set_of_two_modes_has_two_pieces_and_of_one_mode_one():
    two = KernelMixture(torch.tensor([[[-1.0], [1.0]], [[0.0], [0.0]]]), torch.full((2, 2), 0.5), 0.1)
    lower, upper = two.highest_density(0.9)
    assert lower.shape == (2, 2)
    assert torch.isfinite(lower).sum(dim=-1).tolist() == [2, 1]
    assert float(upper[1, 0]) == pytest.approx(0.1645, abs=0.02)


def test_mass_above_a_sample_is_uniform():
    density = on_line(0.2)
    samples = density.sample((2000,))
    many = density.expand((2000,))
    assert stats.kstest(many.mass_above(samples).numpy(), "uniform").pvalue > 0.01


def test_level_of_a_highest_density_set_holds_its_mass_in_the_plane():
    density = in_plane()
    level = density.highest_density_level(0.8, n_samples=20_000)
    side, grid = plane(n=601)
    values = density.log_prob(grid)
    mass = (values.exp() * (values >= level)).sum() * (side[1] - side[0]) ** 2
    assert float(mass) == pytest.approx(0.8, abs=0.02)


def test_bandwidth_of_the_highest_likelihood_is_found():
    generator = torch.Generator().manual_seed(0)
    points = torch.tensor([-3.0, 0.0, 3.0]).expand(800, 3).unsqueeze(-1)
    branch = torch.randint(0, 3, (800,), generator=generator)
    targets = points[0, branch] + 0.2 * torch.randn(800, 1, generator=generator)
    found = fit_bandwidth(points, torch.full((800, 3), 1 / 3), targets)
    assert found(points, torch.full((800, 3), 1 / 3)).mean() == pytest.approx(0.2, rel=0.1)


def test_bandwidth_follows_the_spread_of_the_answers_where_the_noise_does():
    generator = torch.Generator().manual_seed(0)
    noise = torch.linspace(0.1, 2.0, 2000).unsqueeze(-1)
    points = (noise * torch.tensor([-1.2, -0.4, 0.4, 1.2])).unsqueeze(-1)
    targets = noise * torch.randn(2000, 1, generator=generator)
    found = fit_bandwidth(points, torch.full((2000, 4), 0.25), targets)
    assert found.spread > 0.2
    width = found(points, torch.full((2000, 4), 0.25))
    assert float(width[-1] / width[0]) > 4


def test_weights_of_rows_count_in_the_bandwidth():
    targets = torch.tensor([[0.1], [-0.1], [3.0]])
    points, shares = torch.zeros(3, 1, 1), torch.ones(3, 1)
    light = fit_bandwidth(points, shares, targets, torch.tensor([1.0, 1.0, 0.0]))
    assert light.floor == pytest.approx(0.1, rel=0.1)
    assert fit_bandwidth(points, shares, targets).floor == pytest.approx(math.sqrt(9.02 / 3), rel=0.1)


def test_bandwidth_rule_is_the_root_of_two_squares():
    points = torch.tensor([[[-1.0], [1.0]]])
    assert float(Bandwidth(0.3, 0.4)(points, torch.tensor([[0.5, 0.5]]))) == pytest.approx(0.5)


@for_each(
    "make, message",
    [
        (lambda: KernelMixture(POINTS_1D, SHARES, 0.0), r"KernelMixture: `bandwidth` must be > 0, got 0.0"),
        (lambda: KernelMixture(POINTS_1D, SHARES, -1.0), r"KernelMixture: `bandwidth` must be >= 0, got -1.0"),
        (lambda: KernelMixture(POINTS_1D, SHARES_4, 1.0), r"`probabilities` must have the shape of `hypotheses`"),
        (lambda: in_plane().cdf(torch.zeros(2)), r"cdf: `hypotheses` must have one dimension here, got 2"),
        (lambda: in_plane().highest_density(0.9), r"`hypotheses` must have one dimension here, got 2"),
        (lambda: on_line().highest_density(1.5), r"KernelMixture: `mass` must lie in \[0, 1\], got 1.5"),
        (
            lambda: fit_bandwidth(torch.zeros(3, 2, 1), torch.ones(3, 2), torch.zeros(2, 1)),
            r"fit_bandwidth: `targets` must have one row for each",
        ),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
