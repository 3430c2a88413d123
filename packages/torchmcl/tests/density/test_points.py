"""The points that stand best for a density: known optima, fixed points of Lloyd's algorithm, and what they keep."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from grids import for_each
from onnx_models import check_means_of_cells
from torchmcl.density import KernelMixture, best_points
from torchmcl.dispatch import active_kernels

# Lloyd and Max: distortion of the best n points for a standard normal.
NORMAL = {1: 1.0, 2: 0.3634, 3: 0.1902, 4: 0.1175, 5: 0.07994}


def mixture(n_rows, n_kernels, dim=1, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(n_rows, n_kernels, generator=generator, dtype=dtype) + 0.05
    return KernelMixture(
        torch.randn(n_rows, n_kernels, dim, generator=generator, dtype=dtype),
        weights / weights.sum(dim=-1, keepdim=True),
        0.1 + torch.rand(n_rows, n_kernels, generator=generator, dtype=dtype),
    )


def distortion(density, points, n_samples=20_000):
    draws = density.sample((n_samples,), torch.Generator().manual_seed(1))  # [samples, rows, dim]
    return (draws.unsqueeze(-2) - points).square().sum(dim=-1).amin(dim=-1).mean(dim=0)


@pytest.mark.skipif(
    active_kernels().startswith("none"), reason="the definition without the extension is iterated in single precision"
)
@for_each("n_points", [2, 5, 11, 16])
def test_points_and_masses_are_exact(n_points):
    density = mixture(400, 20)
    points, masses, _ = best_points(density, n_points)
    kernels = [part.reshape(400, 20).numpy() for part in (density.hypotheses, density.probabilities, density.widths)]
    check_means_of_cells(points[..., 0].numpy(), masses.numpy(), kernels, atol=1e-7)


@for_each("n_points, expected", NORMAL.items())
def test_a_normal_has_the_points_of_lloyd_and_max(n_points, expected):
    density = KernelMixture(torch.tensor([[3.0]]).double(), torch.ones(1).double(), 2.0)
    found = best_points(density, n_points)
    np.testing.assert_allclose((found.masses * found.deviations**2).sum() / 4, expected, rtol=1e-3)
    np.testing.assert_allclose((found.points[:, 0] - 3) + (found.points[:, 0] - 3).flip(0), 0, atol=2e-3)


def test_each_point_is_the_mean_of_its_cell_with_its_mass_and_deviation():
    density = mixture(3, 6)
    found = best_points(density, 4)
    for row in range(3):
        points = found.points[row, :, 0].numpy()
        assert (np.diff(points) > 0).all()
        borders = [-np.inf, *((points[1:] + points[:-1]) / 2), np.inf]
        weights, means, widths = (
            part[row].numpy() for part in (density.probabilities, density.hypotheses[..., 0], density.bandwidth)
        )

        def pdf(y, weights=weights, means=means, widths=widths):
            return (weights * stats.norm.pdf(y, means, widths)).sum()

        for place, (low, high) in enumerate(itertools.pairwise(borders)):
            low, high = max(low, -12.0), min(high, 12.0)
            mass = integrate.quad(pdf, low, high)[0]
            mean = integrate.quad(lambda y, pdf=pdf: y * pdf(y), low, high)[0] / mass
            at = float(found.points[row, place, 0])
            second = integrate.quad(lambda y, pdf=pdf, at=at: (y - at) ** 2 * pdf(y), low, high)[0] / mass
            assert mass == pytest.approx(float(found.masses[row, place]), abs=3e-3)
            assert mean == pytest.approx(at, abs=1e-2)
            assert second**0.5 == pytest.approx(float(found.deviations[row, place]), rel=2e-2)


@for_each("dim", [1, 2, 3])
def test_mean_and_total_variance_are_kept(dim):
    density = mixture(50, 7, dim)
    points, masses, deviations = best_points(density, 5)
    mean = (masses.unsqueeze(-1) * points).sum(dim=1)
    torch.testing.assert_close(mean, density.mean, rtol=1e-6, atol=1e-6)
    between = (masses.unsqueeze(-1) * (points - mean.unsqueeze(1)).square()).sum(dim=1).sum(dim=-1)
    within = dim * (masses * deviations.square()).sum(dim=-1)
    torch.testing.assert_close(between + within, density.variance.sum(dim=-1), rtol=1e-5, atol=1e-6)


@for_each("dim", [1, 2])
def test_they_are_better_than_the_most_probable_centres_and_near_what_k_means_finds(dim):
    cluster = pytest.importorskip("sklearn.cluster", reason="scikit-learn is not installed")
    density = mixture(5, 12, dim)
    ours = distortion(density, best_points(density, 4).points)
    order = density.probabilities.topk(4).indices.unsqueeze(-1).expand(-1, -1, dim)
    assert (ours < distortion(density, density.hypotheses.gather(1, order))).all()
    draws = density.sample((4000,), torch.Generator().manual_seed(2))
    for row in range(5):
        fitted = cluster.KMeans(4, n_init=10, random_state=0).fit(draws[:, row].numpy())
        best = distortion(mixture(5, 12, dim), torch.from_numpy(fitted.cluster_centers_))[row]
        assert ours[row] < 1.15 * best


def test_branches_are_found_and_narrow_kernels_become_their_centres():
    centres = torch.tensor([[-5.0], [0.0], [5.0]]).double()
    shares = torch.tensor([0.2, 0.3, 0.5]).double()
    found = best_points(KernelMixture(centres, shares, 1e-6), 3)
    torch.testing.assert_close(found.points, centres)
    torch.testing.assert_close(found.masses, shares)
    assert (found.deviations < 2e-6).all()


def test_narrow_kernels_in_clusters_leave_points_in_order_and_masses_that_are_none_below_zero():
    generator = torch.Generator().manual_seed(0)
    n_rows, n_kernels = 4000, 10
    places = torch.randn(n_rows, 4, generator=generator, dtype=torch.float64)
    centres = places.gather(1, torch.randint(4, (n_rows, n_kernels), generator=generator))
    widths = 10 ** (-4 + 2 * torch.rand(n_rows, n_kernels, generator=generator, dtype=torch.float64))
    weights = torch.rand(n_rows, n_kernels, generator=generator, dtype=torch.float64) ** 4 + 1e-9
    weights = weights / weights.sum(dim=-1, keepdim=True)
    points, masses, deviations = best_points(KernelMixture(centres.unsqueeze(-1), weights, widths), 5)
    values = points.squeeze(-1)
    assert (values.diff(dim=-1) >= 0).all()
    assert (masses >= 0).all()
    torch.testing.assert_close(masses.sum(dim=-1), torch.ones(n_rows).double())
    assert (values >= centres.amin(dim=-1, keepdim=True) - 0.1).all()
    assert (values <= centres.amax(dim=-1, keepdim=True) + 0.1).all()
    assert torch.isfinite(KernelMixture(points, masses, deviations).log_prob(points[:, 2])).all()


@for_each("dim", [1, 2])
@for_each("shift", [1e4, 1e8])
def test_far_from_zero_the_points_are_as_good(dim, shift):
    near = mixture(5, 6, dim)
    far = KernelMixture(near.hypotheses + shift, near.probabilities, near.bandwidth)
    before, after = best_points(near, 4), best_points(far, 4)
    torch.testing.assert_close(after.points - shift, before.points, rtol=0, atol=1e-3)
    torch.testing.assert_close(after.masses, before.masses, rtol=0, atol=1e-3)


@for_each("dim", [1, 2, 3, 12])
@for_each("case", ["one kernel", "fewer kernels than points", "kernels in one place", "no weight"])
def test_points_are_distinct_and_have_mass_however_few_the_kernels(dim, case):
    generator = torch.Generator().manual_seed(0)
    n = {"one kernel": 1, "fewer kernels than points": 3}.get(case, 40)
    centres = torch.randn(2, n, dim, generator=generator, dtype=torch.float64)
    weights = torch.rand(2, n, generator=generator, dtype=torch.float64).softmax(dim=-1)
    if case == "kernels in one place":
        centres = centres[:, :1].expand(2, n, dim)
    if case == "no weight":
        weights = torch.nn.functional.one_hot(torch.tensor([3, 7]), n).double()
    density = KernelMixture(centres, weights, 0.5)
    found = best_points(density, 6)
    assert (found.masses > 0.005).all()
    apart = (found.points.unsqueeze(1) - found.points.unsqueeze(2)).norm(dim=-1) + torch.eye(6)
    assert apart.min() > 0.05
    assert (distortion(density, found.points) < distortion(density, density.mean.unsqueeze(1))).all()


def test_more_points_than_places_leave_some_without_mass():
    density = KernelMixture(torch.zeros(1, 2).double(), torch.ones(1).double(), 1e-9)
    found = best_points(density, 6)
    assert float(found.masses.sum()) == pytest.approx(1.0)
    assert torch.isfinite(found.points).all()
    assert (found.deviations > 0).all()


@given(st.floats(1e-3, 1e3), st.floats(-1e3, 1e3), st.integers(1, 4))
def test_scale_and_shift_of_the_target_move_the_points_along(scale, shift, n_points):
    plain = mixture(2, 5)
    unit = torch.tensor([scale]).double()
    moved = KernelMixture(plain.hypotheses * scale + shift, plain.probabilities, plain.bandwidth, unit)
    before, after = best_points(plain, n_points), best_points(moved, n_points)
    # The way to the fixed point is walked in single precision.
    reach = scale + abs(shift) * 1e-4
    torch.testing.assert_close(after.points, before.points * scale + shift, rtol=0, atol=2e-2 * reach)
    torch.testing.assert_close(after.masses, before.masses, rtol=0, atol=2e-2)


def test_a_density_does_not_depend_on_its_batch_and_shapes_are_kept():
    density = mixture(700, 4)
    whole = best_points(density, 3)
    alone = best_points(KernelMixture(density.hypotheses[600:601], density.probabilities[600:601],
                                      density.bandwidth[600:601]), 3)  # fmt: skip
    torch.testing.assert_close(alone.points[0], whole.points[600], rtol=1e-6, atol=1e-6)
    assert best_points(density.expand((2, 700)), 3).points.shape == (2, 700, 3, 1)
    narrow = mixture(4, 4, dtype=torch.float32)
    assert {part.dtype for part in best_points(narrow, 3)} == {torch.float32}


def test_other_densities_and_numbers_are_refused():
    with pytest.raises(TypeError, match="best_points: `density` must be a KernelMixture, got Normal"):
        best_points(torch.distributions.Normal(0.0, 1.0), 2)
    with pytest.raises(ValueError, match="best_points: `n_points` must be >= 1, got 0"):
        best_points(mixture(1, 2), 0)


def test_a_thousand_points_are_as_good_as_sixty_four_by_their_number():
    density = KernelMixture(
        torch.tensor([[-2.0], [0.0], [0.5]]), torch.tensor([0.2, 0.5, 0.3]), torch.tensor([0.1, 0.4, 1.0])
    )
    # The distortion of many points falls with the square of their number.
    scaled = []
    for n_points in (64, 65, 1000):
        points, masses, deviations = best_points(density, n_points)
        assert (points.diff(dim=-2) > 0).all()
        scaled.append(n_points**2 * float((masses * deviations.square()).sum()))
    assert scaled[1:] == pytest.approx([scaled[0]] * 2, rel=0.1)


@for_each("n_points", [5, 13, 33])
def test_points_of_branches_that_are_very_far_apart_are_in_order(n_points):
    generator = torch.Generator().manual_seed(0)
    centers = 1000 * torch.randn(80, 5, 1, generator=generator, dtype=torch.float64)
    centers[:, 0] = 1e9
    density = KernelMixture(centers, torch.full((80, 5), 0.2).double(), torch.full((80, 5), 0.5).double())
    points, masses, _ = best_points(density, n_points)
    assert (points[..., 0].diff(dim=-1) >= 0).all()
    torch.testing.assert_close(masses.sum(dim=-1), torch.ones(80).double())
