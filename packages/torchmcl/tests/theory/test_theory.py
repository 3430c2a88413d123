"""The names of the theory: each is documented and in the reference; and all of it on a GPU."""

import re

import pytest
import torch

import torchmcl as mcl
from places import ROOT
from torchmcl import theory

PUBLIC = {
    *("assignment_entropy", "boltzmann_weights", "free_energy", "hypothesis_masses", "soft_distortion"),
    *("covariance_blocks", "free_energy_hessian", "smallest_hessian_eigenvalue", "soft_barycentres"),
    *("covariance", "critical_temperature_bound", "critical_temperature_of_residuals", "first_critical_temperature"),
    *("distinct_representatives", "n_distinct", "next_critical_temperatures", "observed_transitions"),
    *("Trajectory", "Transition", "thermal_tolerance"),
    *("RatePoints", "blahut_arimoto", "distortion_at_rate", "max_distortion", "mutual_information", "rate_of_samples"),
    *("gaussian_distortion", "gaussian_rate", "high_resolution_distortion", "zador_bounds", "zador_constant"),
    *("differential_entropy", "shannon_lower_bound"),
}


def test_public_names_are_these_and_documented():
    assert set(theory.__all__) == PUBLIC
    reference = (ROOT / "docs" / "reference" / "theory.rst").read_text(encoding="utf-8")
    listed = set(re.findall(r"^   (\w+)$", reference, re.MULTILINE))
    for name in PUBLIC:
        assert getattr(theory, name).__doc__, name
        assert name in listed, name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_everything_stays_on_the_device_and_agrees_with_the_host():
    samples, hypotheses = torch.randn(200, 2, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)

    def values(samples, hypotheses):
        cost = mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=samples)
        weights = theory.boltzmann_weights(cost, 0.5)
        points = theory.rate_of_samples(samples[:50], torch.tensor([0.5, 1.0], dtype=samples.dtype), n_iters=100)
        covariance = theory.covariance(samples)
        return [
            *(theory.free_energy(cost, 0.5), theory.soft_distortion(cost, weights), theory.assignment_entropy(weights)),
            theory.smallest_hessian_eigenvalue(samples, hypotheses, 0.5),
            theory.next_critical_temperatures(samples, hypotheses, 0.5),
            *(theory.n_distinct(hypotheses, 0.3), theory.mutual_information(weights), points.rate, points.distortion),
            *(theory.gaussian_rate(points.distortion, covariance), theory.gaussian_rate(points.distortion, 1.0)),
            *(theory.gaussian_distortion(points.rate, covariance), theory.differential_entropy(samples)),
            theory.shannon_lower_bound(points.distortion, entropy=theory.differential_entropy(samples), dim=2),
        ]

    for here, there in zip(values(samples, hypotheses), values(samples.cuda(), hypotheses.cuda()), strict=True):
        assert there.is_cuda
        torch.testing.assert_close(there.cpu(), here, rtol=1e-6, atol=1e-8)
