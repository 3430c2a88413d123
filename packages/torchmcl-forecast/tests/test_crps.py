"""The CRPS of mixtures: its integral, and its estimate from random pairs."""

import pytest
import torch

from torchmcl_forecast.scores import mixture_crps, random_crps


@pytest.fixture
def mixture():
    generator = torch.Generator().manual_seed(0)
    centers, scales = (torch.randn(5, 4, 3, dtype=torch.float64, generator=generator) for _ in range(2))
    shares = torch.rand(5, 4, dtype=torch.float64, generator=generator)
    truth = torch.randn(5, 3, dtype=torch.float64, generator=generator)
    known = torch.ones(5, 3, dtype=torch.bool)
    known[0, 1] = False
    return centers, scales.exp(), shares / shares.sum(dim=1, keepdim=True), truth, known


def test_it_is_the_integral_of_the_squared_distance_of_distribution_functions(mixture):
    centers, scales, shares, truth, known = mixture
    at = torch.linspace(-40, 40, 8001, dtype=torch.float64)
    below = torch.special.ndtr((at - centers.unsqueeze(-1)) / scales.unsqueeze(-1))
    below = (shares[:, :, None, None] * below).sum(dim=1)
    integral = (below - (truth.unsqueeze(-1) <= at).double()).square().sum(dim=-1) * (at[1] - at[0])
    torch.testing.assert_close(mixture_crps(*mixture), integral[known].mean(), atol=2e-3, rtol=0)


def test_random_pairs_have_its_mean_and_the_mean_of_its_gradients(mixture):
    torch.manual_seed(0)
    centers, *rest = mixture
    centers.requires_grad_(True)
    exact = mixture_crps(centers, *rest)
    draws = random_crps(*(part.repeat(4000, *[1] * (part.ndim - 1)) for part in (centers, *rest)))
    torch.testing.assert_close(draws, exact, atol=0.01, rtol=0)
    mean, true = (torch.autograd.grad(value, centers)[0] for value in (draws, exact))
    torch.testing.assert_close(mean, true, atol=0.004, rtol=0)


def test_a_single_hypothesis_needs_no_partner(mixture):
    centers, scales, _, truth, known = mixture
    given = (centers[:, :1], scales[:, :1], torch.ones(5, 1, dtype=torch.float64), truth, known)
    torch.testing.assert_close(random_crps(*given), mixture_crps(*given))
