"""Critical temperatures, and the splits in a recorded cooling."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
import torchmcl as mcl
from grids import for_each
from torchmcl import theory


def test_first_critical_temperature_is_twice_the_largest_variance():
    samples = torch.randn(3, 50, 2, dtype=torch.float64)
    for one, value in zip(samples, theory.first_critical_temperature(samples), strict=True):
        expected = 2 * torch.linalg.eigvalsh(torch.cov(one.T, correction=0))[-1]
        torch.testing.assert_close(value, expected)


@given(st.floats(0.01, 100), st.floats(-100, 100))
def test_critical_temperature_scales_with_the_square_and_ignores_a_shift(scale, shift):
    samples = torch.randn(20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    value = theory.first_critical_temperature(samples)
    torch.testing.assert_close(theory.first_critical_temperature(scale * samples + shift), scale**2 * value)


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
    each = theory.first_critical_temperature(samples)
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
    for function in (theory.covariance, theory.first_critical_temperature, theory.critical_temperature_of_residuals):
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
    with pytest.raises(ValueError, match="first_critical_temperature: `samples`"):
        theory.first_critical_temperature(torch.zeros(0, 2))
    with pytest.raises(ValueError, match="n_distinct: `tolerance`"):
        theory.n_distinct(torch.zeros(3, 1), -0.1)
    with pytest.raises(ValueError, match="n_distinct: `hypotheses`"):
        theory.n_distinct(torch.zeros(3))
