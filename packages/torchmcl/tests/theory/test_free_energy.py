"""Weights, distortion, entropy, free energy: the identities of the paper, in float64."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
import torchmcl as mcl
from grids import for_each
from torchmcl import theory
from torchmcl.checks import debug_checks

TEMPERATURES = [0.01, 0.3, 2.0, 50.0]


def random_case(*leading, n_samples=12, n_hypotheses=4, dim=2):
    samples = torch.randn(*leading, n_samples, dim, dtype=torch.float64)
    hypotheses = torch.randn(*leading, n_hypotheses, dim, dtype=torch.float64)
    return samples, hypotheses, mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=samples)


@for_each("temperature", TEMPERATURES)
def test_agrees_with_the_plain_loops(temperature):
    samples, hypotheses, cost = random_case()
    weights = theory.boltzmann_weights(cost, temperature)
    expected = oracles.annealed_wta(cost.tolist(), [True] * len(cost), temperature)
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64))
    distortion, entropy = oracles.distortion_and_entropy(cost.tolist(), expected)
    assert theory.soft_distortion(cost, weights).item() == pytest.approx(distortion, rel=1e-12)
    assert theory.assignment_entropy(weights).item() == pytest.approx(entropy, abs=1e-12)
    assert theory.free_energy(cost, temperature).item() == pytest.approx(
        oracles.free_energy(cost.tolist(), temperature), rel=1e-12
    )
    barycenters = theory.soft_barycenters(samples, weights)
    blocks = theory.covariance_blocks(samples, hypotheses, weights)
    for k in range(4):
        mean, block = oracles.barycenter_and_block(samples.tolist(), hypotheses[k].tolist(), weights[:, k].tolist())
        torch.testing.assert_close(barycenters[k], torch.tensor(mean, dtype=torch.float64))
        torch.testing.assert_close(blocks[k], torch.tensor(block, dtype=torch.float64))


@given(
    st.lists(st.lists(st.floats(-50, 50), min_size=3, max_size=3), min_size=1, max_size=5),
    st.floats(1e-3, 1e3),
)
def test_free_energy_is_distortion_minus_temperature_times_entropy(rows, temperature):
    cost = torch.tensor(rows, dtype=torch.float64)
    weights = theory.boltzmann_weights(cost, temperature)
    right = theory.soft_distortion(cost, weights) - temperature * theory.assignment_entropy(weights)
    torch.testing.assert_close(theory.free_energy(cost, temperature), right, rtol=1e-9, atol=1e-9)


@for_each("temperature", TEMPERATURES)
def test_boltzmann_weights_have_the_lowest_free_energy_of_all_weights(temperature):
    _, _, cost = random_case()
    others = torch.softmax(5 * torch.randn(200, *cost.shape, dtype=torch.float64), dim=-1)
    distortion = theory.soft_distortion(cost.expand_as(others), others)
    values = distortion - temperature * theory.assignment_entropy(others)
    assert (values >= theory.free_energy(cost, temperature)).all()


@for_each("temperature", TEMPERATURES)
def test_gradient_in_the_cost_is_the_boltzmann_weights(temperature):
    cost = random_case()[2].requires_grad_()
    theory.free_energy(cost, temperature).backward()
    torch.testing.assert_close(cost.grad * len(cost), theory.boltzmann_weights(cost, temperature))


@for_each("temperature", TEMPERATURES)
def test_gradient_in_the_hypotheses_is_that_of_the_annealed_loss_and_points_from_the_barycentre(temperature):
    samples, hypotheses, _ = random_case()
    hypotheses.requires_grad_()
    cost = mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=samples)
    (of_energy,) = torch.autograd.grad(theory.free_energy(cost, temperature), hypotheses, retain_graph=True)
    matching = mcl.assign(cost, mcl.AnnealedWTA(temperature))
    (of_loss,) = torch.autograd.grad(mcl.mcl_loss(matching), hypotheses)
    torch.testing.assert_close(of_energy, of_loss)
    masses = theory.hypothesis_masses(matching.weights).unsqueeze(-1)
    barycenters = theory.soft_barycenters(samples, matching.weights)
    torch.testing.assert_close(of_energy, 2 * masses * (hypotheses.detach() - barycenters))


def test_a_hot_gradient_pulls_every_hypothesis_to_the_mean():
    samples, hypotheses, _ = random_case()
    hypotheses.requires_grad_()
    cost = mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=samples)
    (gradient,) = torch.autograd.grad(mcl.mcl_loss(mcl.assign(cost, mcl.AnnealedWTA(1e9))), hypotheses)
    torch.testing.assert_close(gradient, 2 / 4 * (hypotheses.detach() - samples.mean(dim=0)))


def test_the_soft_distortion_never_falls_while_the_temperature_rises():
    _, _, cost = random_case()
    rising = [theory.soft_distortion(cost, theory.boltzmann_weights(cost, t)) for t in (0.0, *TEMPERATURES, 1e6)]
    assert torch.stack(rising).diff().min() > 0


@for_each("temperature", [0.3, 2.0, 50.0])
def test_hessian_is_that_of_automatic_differentiation(temperature):
    samples, hypotheses, _ = random_case()

    def energy(flat):
        cost = mcl.pairwise_sq_euclidean(hypotheses=flat.view(4, 2), targets=samples)
        return theory.free_energy(cost, temperature)

    expected = torch.autograd.functional.hessian(energy, hypotheses.flatten())
    torch.testing.assert_close(theory.free_energy_hessian(samples, hypotheses, temperature), expected)


def test_smallest_eigenvalue_changes_sign_at_the_local_critical_temperature():
    samples = torch.randn(5, 40, 3, dtype=torch.float64)
    merged = samples.mean(dim=-2, keepdim=True).expand(-1, 4, -1)
    critical = theory.local_critical_temperature(samples)[:, None, None]
    for factor in (1.01, 1.0, 0.99):
        lowest = torch.linalg.eigvalsh(theory.free_energy_hessian(samples, merged, factor * critical))[:, 0]
        torch.testing.assert_close(lowest, torch.full((5,), 2 / 4 * (1 - 1 / factor), dtype=torch.float64))


def test_the_fixed_point_update_never_raises_the_free_energy():
    samples, hypotheses, cost = random_case(n_samples=50, n_hypotheses=6)
    values = [theory.free_energy(cost, 0.4)]
    for _ in range(30):
        hypotheses = theory.soft_barycenters(samples, theory.boltzmann_weights(cost, 0.4))
        cost = mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=samples)
        values.append(theory.free_energy(cost, 0.4))
    assert (torch.stack(values).diff() <= 1e-14).all()


def test_limits_at_zero_and_infinite_temperature():
    _, _, cost = random_case()
    assert theory.free_energy(cost, 0.0) == cost.amin(dim=-1).mean()
    torch.testing.assert_close(theory.free_energy(cost, 1e-9), cost.amin(dim=-1).mean())
    torch.testing.assert_close(theory.boltzmann_weights(cost, 0.0), mcl.WTA()(cost))
    hot = 1e7
    torch.testing.assert_close(theory.free_energy(cost, hot) + hot * math.log(4), cost.mean(), rtol=1e-5, atol=1e-5)
    assert theory.free_energy(cost, torch.tensor([[0.0], [1.0]] * 6, dtype=torch.float64), mean_axes=0).isfinite().all()


def test_each_model_has_its_own_temperature():
    _, _, cost = random_case(3, 5)
    temperatures = torch.tensor([0.0, 0.3, 4.0], dtype=torch.float64)
    together = theory.free_energy(cost, temperatures.view(3, 1, 1, 1), mean_axes=2)
    alone = [theory.free_energy(c, t, mean_axes=2) for c, t in zip(cost, temperatures.tolist(), strict=True)]
    torch.testing.assert_close(together, torch.stack(alone))


def test_padded_targets_change_nothing():
    samples, hypotheses, cost = random_case(2)
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[:, 7:] = False
    broken = cost.masked_fill(~mask.unsqueeze(-1), math.nan)
    weights = theory.boltzmann_weights(broken, 0.5, mask)
    short = theory.boltzmann_weights(cost[:, :7], 0.5)
    torch.testing.assert_close(theory.free_energy(broken, 0.5, mask=mask), theory.free_energy(cost[:, :7], 0.5))
    torch.testing.assert_close(
        theory.soft_distortion(cost, weights, mask=mask), theory.soft_distortion(cost[:, :7], short)
    )
    torch.testing.assert_close(theory.assignment_entropy(weights, mask=mask), theory.assignment_entropy(short))
    torch.testing.assert_close(theory.hypothesis_masses(weights, mask), theory.hypothesis_masses(short))
    torch.testing.assert_close(theory.mutual_information(weights, mask), theory.mutual_information(short))
    torch.testing.assert_close(
        theory.soft_barycenters(samples, weights), theory.soft_barycenters(samples[:, :7], short)
    )
    padded = samples.masked_fill(~mask.unsqueeze(-1), math.nan)
    for function in (theory.free_energy_hessian, theory.next_critical_temperatures):
        expected = function(samples[:, :7], hypotheses, 0.5)
        torch.testing.assert_close(function(padded, hypotheses, 0.5, mask), expected)
    nobody = torch.zeros(2, 12, dtype=torch.bool)
    assert (theory.free_energy(broken, 0.5, mask=nobody) == 0).all()


@for_each("dim", [2, 34])
@for_each("padding", [1e4, -1e9])
def test_the_size_of_padded_samples_does_not_matter(dim, padding):
    samples, hypotheses = (part.float() for part in random_case(dim=dim)[:2])
    padded = torch.cat([samples, torch.full((3, dim), padding)])
    mask = torch.arange(15) < 12
    results = []
    for given_samples, given_mask in ((samples, None), (padded, mask)):
        cost = mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=given_samples)
        weights = theory.boltzmann_weights(cost, 9.0, given_mask)
        results.append(
            (
                theory.soft_barycenters(given_samples, weights),
                theory.covariance_blocks(given_samples, hypotheses, weights),
                theory.free_energy(cost, 9.0, mask=given_mask),
                theory.next_critical_temperatures(given_samples, hypotheses, 9.0, given_mask),
                theory.covariance(given_samples, given_mask),
            )
        )
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


def test_a_hypothesis_without_samples_keeps_its_place_and_has_no_covariance():
    samples = torch.tensor([[0.0], [1.0]])
    weights = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    places = torch.tensor([[5.0], [7.0]])
    assert theory.soft_barycenters(samples, weights, otherwise=places).tolist() == [[0.5], [7.0]]
    assert theory.soft_barycenters(samples, weights)[1].isnan().all()
    assert theory.covariance_blocks(samples, places, weights)[1].tolist() == [[0.0]]


def test_negative_temperatures_are_refused():
    cost = torch.rand(2, 3)
    for function in (theory.free_energy, theory.boltzmann_weights):
        with pytest.raises(ValueError, match=rf"{function.__name__}: `temperature` must be >= 0, got -1.0"):
            function(cost, -1.0)
    with pytest.raises(ValueError, match="free_energy_hessian: `temperature`"):
        theory.free_energy_hessian(torch.rand(4, 1), torch.rand(2, 1), 0.0)
    with debug_checks(), pytest.raises(ValueError, match=r"must be > 0, got 0.0 at index \(1,\)"):
        theory.free_energy_hessian(torch.rand(4, 1), torch.rand(2, 1), torch.tensor([1.0, 0.0]))


def test_shapes_that_do_not_fit_are_refused():
    cost, weights = torch.rand(5, 3), torch.rand(5, 2)
    with pytest.raises(ValueError, match="soft_distortion: `weights`"):
        theory.soft_distortion(cost, weights)
    with pytest.raises(ValueError, match="assignment_entropy: `weights`"):
        theory.assignment_entropy(torch.rand(3))
    with pytest.raises(TypeError, match="assignment_entropy: `weights`"):
        theory.assignment_entropy([[1.0]])
    with pytest.raises(ValueError, match="free_energy: `mean_axes`"):
        theory.free_energy(cost, 1.0, mean_axes=2)
    with pytest.raises(ValueError, match="free_energy: `temperature`"):
        theory.free_energy(cost, torch.rand(3))
    with pytest.raises(ValueError, match="soft_barycenters: `samples`"):
        theory.soft_barycenters(torch.rand(4, 1), weights)
    with pytest.raises(TypeError, match="soft_barycenters: `samples`"):
        theory.soft_barycenters(torch.ones(5, 1, dtype=torch.int64), weights)


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
            theory.free_energy_hessian(samples, hypotheses, 0.5),
            theory.next_critical_temperatures(samples, hypotheses, 0.5),
            *(theory.n_distinct(hypotheses, 0.3), theory.mutual_information(weights), points.rate, points.distortion),
            *(theory.gaussian_rate(points.distortion, covariance), theory.gaussian_rate(points.distortion, 1.0)),
            *(theory.gaussian_distortion(points.rate, covariance), theory.differential_entropy(samples)),
            theory.shannon_lower_bound(points.distortion, entropy=theory.differential_entropy(samples), dim=2),
        ]

    for here, there in zip(values(samples, hypotheses), values(samples.cuda(), hypotheses.cuda()), strict=True):
        assert there.is_cuda
        torch.testing.assert_close(there.cpu(), here, rtol=1e-6, atol=1e-8)
