"""Kernels that have a scale in each coordinate: the density they make, and what is made of it."""

import pytest
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from torchmcl.density import KernelMixture, best_points


def parts(dim=2):
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(4, 3, dim, generator=generator, dtype=torch.float64)
    shares = torch.rand(4, 3, generator=generator, dtype=torch.float64).softmax(dim=-1)
    width = 0.2 + torch.rand(4, 3, generator=generator, dtype=torch.float64)
    return centres, shares, width, 0.5 + torch.rand(4, 3, dim, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_they_make_the_mixture_of_torch(dim):
    centres, shares, width, scale = parts(dim)
    density = KernelMixture(centres, shares, width, scale)
    components = Independent(Normal(centres, width.unsqueeze(-1) * scale), 1)
    expected = MixtureSameFamily(Categorical(shares), components)
    at = torch.randn(5, 4, dim, dtype=torch.float64)
    torch.testing.assert_close(density.log_prob(at), expected.log_prob(at))
    torch.testing.assert_close(density.mean, expected.mean)
    torch.testing.assert_close(density.variance, expected.variance)
    samples = density.sample((40_000,), torch.Generator().manual_seed(1))
    torch.testing.assert_close(samples.var(dim=0), expected.variance, rtol=0.05, atol=0.02)
    if dim == 1:
        plain = MixtureSameFamily(Categorical(shares), Normal(centres[..., 0], density.widths[..., 0]))
        torch.testing.assert_close(density.cdf(at), plain.cdf(at[..., 0]))


def test_one_scale_for_all_kernels_is_the_same_given_either_way():
    centres, shares, width, _ = parts()
    unit = torch.tensor([0.5, 3.0], dtype=torch.float64)
    at = torch.randn(4, 2, dtype=torch.float64)
    one, each = (KernelMixture(centres, shares, width, scale) for scale in (unit, unit.expand_as(centres)))
    torch.testing.assert_close(one.log_prob(at), each.log_prob(at))
    torch.testing.assert_close(one.widths, each.widths)


def test_marginals_rows_and_larger_batches_keep_them():
    centres, shares, width, scale = parts()
    density, at = KernelMixture(centres, shares, width, scale), torch.randn(4, 2, dtype=torch.float64)
    torch.testing.assert_close(density.marginal(1).widths, density.widths[..., 1:])
    torch.testing.assert_close(density.marginal(-1).variance, density.variance[:, 1:])
    torch.testing.assert_close(density.rows(slice(1, 3)).log_prob(at[1:3]), density.log_prob(at)[1:3])
    torch.testing.assert_close(density.expand((2, 4)).log_prob(at), density.log_prob(at).expand(2, 4))
    torch.testing.assert_close(density.expand((2, 4)).flat().log_prob(at.repeat(2, 1)), density.log_prob(at).repeat(2))
    shared = KernelMixture(centres, shares, width, scale[0])  # of each kernel, for all rows
    assert shared.rows(slice(0, 2)).scale.shape == (2, 3, 2)


@pytest.mark.parametrize("dim", [1, 2])
def test_best_points_are_measured_in_plain_units(dim):
    centres, shares, width, scale = parts(dim)
    density = KernelMixture(centres, shares, width, scale)
    plain = best_points(KernelMixture(centres, shares, torch.ones(()), density.widths), 4)
    found = best_points(density, 4)
    for ours, theirs in zip(found, plain, strict=True):
        torch.testing.assert_close(ours, theirs)
    mean = (found.masses.unsqueeze(-1) * found.points).sum(dim=1)
    torch.testing.assert_close(mean, density.mean, rtol=0, atol=1e-5)
    between = (found.masses.unsqueeze(-1) * (found.points - mean.unsqueeze(1)).square()).sum(dim=(1, 2))
    within = dim * (found.masses * found.deviations.square()).sum(dim=-1)
    torch.testing.assert_close(between + within, density.variance.sum(dim=-1), rtol=1e-4, atol=1e-6)


def test_other_shapes_are_refused():
    centres, shares, width, _ = parts()
    for wrong in (torch.ones(3), torch.ones(2, 2), torch.ones(5, 3, 2), torch.ones(())):
        with pytest.raises(
            ValueError, match=r"KernelMixture: `scale` must have the shape \[2\], or one that broadcasts"
        ):
            KernelMixture(centres, shares, width, wrong)
