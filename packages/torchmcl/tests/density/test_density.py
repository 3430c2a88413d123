"""Densities around hypotheses: they integrate to 1, samples agree with them, and they shrink to the points."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from grids import for_each
from torchmcl.density import Bandwidth, Mixture, equal_mass_medians, fit_bandwidth

POINTS_1D = torch.tensor([[-1.0], [0.2], [2.0]], dtype=torch.float64)
POINTS_2D = torch.tensor([[-1.0, 0.5], [0.2, -0.3], [1.0, 1.0], [0.9, -1.2]], dtype=torch.float64)
PROBABILITIES = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
PROBABILITIES_4 = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)


def on_line(widths=0.4):
    return Mixture(POINTS_1D, PROBABILITIES, widths)


def in_space(dim):
    generator = torch.Generator().manual_seed(0)
    hypotheses = torch.randn(4, 3, dim, generator=generator, dtype=torch.float64)
    probabilities = torch.rand(4, 3, generator=generator, dtype=torch.float64).softmax(dim=-1)
    return Mixture(hypotheses, probabilities, 0.2 + torch.rand(4, 3, dim, generator=generator, dtype=torch.float64))


def integral_1d(density, values=lambda y: 1.0, low=-9.0, high=10.0, n=20001):
    y = torch.linspace(low, high, n, dtype=torch.float64).unsqueeze(-1)
    return torch.trapezoid(density.log_prob(y).exp() * values(y.squeeze(-1)), y.squeeze(-1))


@for_each("dim", [1, 2, 3])
def test_mixture_agrees_with_torch_distributions(dim):
    density = in_space(dim)
    components = Independent(Normal(density.hypotheses, density.widths), 1)
    expected = MixtureSameFamily(Categorical(density.probabilities), components)
    at = torch.randn(5, 4, dim, dtype=torch.float64)
    torch.testing.assert_close(density.log_prob(at), expected.log_prob(at))
    torch.testing.assert_close(density.mean, expected.mean)
    torch.testing.assert_close(density.variance, expected.variance)
    samples = density.sample((40_000,), torch.Generator().manual_seed(1))
    assert samples.shape == (40_000, 4, dim)
    torch.testing.assert_close(samples.var(dim=0), expected.variance, rtol=0.05, atol=0.02)


@for_each(
    "widths", [0.3, torch.tensor(0.3), torch.tensor([0.3, 0.6]), torch.full((3, 1), 0.3), torch.rand(4, 1, 1) + 1]
)
def test_widths_broadcast(widths):
    density = in_space(2)
    hypotheses, probabilities, at = density.hypotheses, density.probabilities, torch.randn(4, 2, dtype=torch.float64)
    wide = torch.as_tensor(widths, dtype=torch.float64).expand(4, 3, 2)
    one, each = Mixture(hypotheses, probabilities, widths), Mixture(hypotheses, probabilities, wide)
    assert torch.equal(one.widths, each.widths)
    torch.testing.assert_close(one.log_prob(at), each.log_prob(at))


def test_marginals_rows_and_larger_batches_are_those_of_the_density():
    density, at = in_space(2), torch.randn(4, 2, dtype=torch.float64)
    torch.testing.assert_close(density.marginal(1).widths, density.widths[..., 1:])
    torch.testing.assert_close(density.marginal(-1).variance, density.variance[:, 1:])
    torch.testing.assert_close(density.rows(slice(1, 3)).log_prob(at[1:3]), density.log_prob(at)[1:3])
    torch.testing.assert_close(density.expand((2, 4)).log_prob(at), density.log_prob(at).expand(2, 4))
    torch.testing.assert_close(density.expand((2, 4)).flat().log_prob(at.repeat(2, 1)), density.log_prob(at).repeat(2))


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


@for_each("points, probabilities", [(POINTS_1D, PROBABILITIES), (POINTS_2D, PROBABILITIES_4)])
def test_small_bandwidth_gives_the_weighted_points(points, probabilities):
    density = Mixture(points, probabilities, 1e-6)
    samples = density.sample((20_000,))
    nearest = torch.cdist(samples, points)
    assert float(nearest.amin(dim=-1).max()) < 1e-4
    counts = torch.bincount(nearest.argmin(dim=-1), minlength=len(points)) / len(samples)
    torch.testing.assert_close(counts, probabilities.float(), atol=0.02, rtol=0)
    torch.testing.assert_close(density.mean, probabilities @ points, atol=1e-5, rtol=0)
    expected = probabilities @ (points - probabilities @ points).square()
    torch.testing.assert_close(density.variance, expected, atol=1e-5, rtol=0)


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
    two = Mixture(torch.tensor([[[-1.0], [1.0]], [[0.0], [0.0]]]), torch.full((2, 2), 0.5), 0.1)
    lower, upper = two.highest_density(0.9)
    assert lower.shape == (2, 2)
    assert torch.isfinite(lower).sum(dim=-1).tolist() == [2, 1]
    assert float(upper[1, 0]) == pytest.approx(0.1645, abs=0.02)


def test_mass_above_a_sample_is_uniform():
    density = on_line(0.2)
    samples = density.sample((2000,))
    many = density.expand((2000,))
    assert stats.kstest(many.mass_above(samples).numpy(), "uniform").pvalue > 0.01


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
    points, probabilities = torch.zeros(3, 1, 1), torch.ones(3, 1)
    light = fit_bandwidth(points, probabilities, targets, torch.tensor([1.0, 1.0, 0.0]))
    assert light.floor == pytest.approx(0.1, rel=0.1)
    assert fit_bandwidth(points, probabilities, targets).floor == pytest.approx(math.sqrt(9.02 / 3), rel=0.1)


def test_bandwidth_rule_is_the_root_of_two_squares():
    points = torch.tensor([[[-1.0], [1.0]]])
    assert float(Bandwidth(0.3, 0.4)(points, torch.tensor([[0.5, 0.5]]))) == pytest.approx(0.5)


@for_each(
    "make, message",
    [
        (lambda: Mixture(POINTS_1D, PROBABILITIES, 0.0), "Mixture: `widths`"),
        (lambda: Mixture(POINTS_1D, PROBABILITIES, torch.ones(2, 1)), "Mixture: `widths`"),
        (lambda: Mixture(POINTS_1D, PROBABILITIES_4, 1.0), "`probabilities`"),
        (lambda: in_space(2).cdf(torch.zeros(2)), "cdf: `hypotheses`"),
        (lambda: in_space(2).highest_density(0.9), "`hypotheses`"),
        (lambda: on_line().highest_density(1.5), "Mixture: `mass`"),
        (
            lambda: fit_bandwidth(torch.zeros(3, 2, 1), torch.ones(3, 2), torch.zeros(2, 1)),
            r"fit_bandwidth: `targets` must have one row for each",
        ),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_medians_of_equal_masses_are_quantiles():
    normal = Mixture(torch.zeros(1, 1, 1).double(), torch.ones(1, 1).double(), 2.0)
    expected = 2 * stats.norm.ppf((np.arange(9) + 0.5) / 9)
    np.testing.assert_allclose(equal_mass_medians(normal, 9)[0], expected, atol=1e-9)
