"""The points that stand best for a density: known optima, fixed points of Lloyd's algorithm, and what they keep."""

import numpy as np
import pytest
import torch

from cell_means import check_means_of_cells
from grids import for_each
from torchmcl.density import Mixture, best_points
from torchmcl.dispatch import active_kernels

# Lloyd and Max: distortion of the best n points for a standard normal.
NORMAL = {1: 1.0, 2: 0.3634, 3: 0.1902, 4: 0.1175, 5: 0.07994}


def mixture(n_rows, n_kernels, dim=1, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(n_rows, n_kernels, generator=generator, dtype=dtype) + 0.05
    return Mixture(
        torch.randn(n_rows, n_kernels, dim, generator=generator, dtype=dtype),
        weights / weights.sum(dim=-1, keepdim=True),
        0.1 + torch.rand(n_rows, n_kernels, 1, generator=generator, dtype=dtype),
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
    parts = (density.hypotheses, density.probabilities, density.widths)
    kernels = [part.reshape(400, 20).numpy() for part in parts]
    check_means_of_cells(points[..., 0].numpy(), masses.numpy(), kernels, atol=1e-7)


@for_each("n_points, expected", NORMAL.items())
def test_a_normal_has_the_points_of_lloyd_and_max(n_points, expected):
    density = Mixture(torch.tensor([[3.0]]).double(), torch.ones(1).double(), 2.0)
    found = best_points(density, n_points)
    np.testing.assert_allclose((found.masses * found.deviations**2).sum() / 4, expected, rtol=1e-3)
    np.testing.assert_allclose((found.points[:, 0] - 3) + (found.points[:, 0] - 3).flip(0), 0, atol=2e-3)


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
def test_they_are_better_than_the_most_probable_centers_and_near_what_k_means_finds(dim):
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


def test_branches_are_found_and_narrow_kernels_become_their_centers():
    centers = torch.tensor([[-5.0], [0.0], [5.0]]).double()
    weights = torch.tensor([0.2, 0.3, 0.5]).double()
    found = best_points(Mixture(centers, weights, 1e-6), 3)
    torch.testing.assert_close(found.points, centers)
    torch.testing.assert_close(found.masses, weights)
    assert (found.deviations < 2e-6).all()


def test_narrow_kernels_in_clusters_leave_points_in_order_and_masses_that_are_none_below_zero():
    generator = torch.Generator().manual_seed(0)
    n_rows, n_kernels = 4000, 10
    places = torch.randn(n_rows, 4, generator=generator, dtype=torch.float64)
    centers = places.gather(1, torch.randint(4, (n_rows, n_kernels), generator=generator))
    widths = 10 ** (-4 + 2 * torch.rand(n_rows, n_kernels, generator=generator, dtype=torch.float64))
    weights = torch.rand(n_rows, n_kernels, generator=generator, dtype=torch.float64) ** 4 + 1e-9
    weights = weights / weights.sum(dim=-1, keepdim=True)
    points, masses, deviations = best_points(Mixture(centers.unsqueeze(-1), weights, widths.unsqueeze(-1)), 5)
    values = points.squeeze(-1)
    assert (values.diff(dim=-1) >= 0).all()
    assert (masses >= 0).all()
    torch.testing.assert_close(masses.sum(dim=-1), torch.ones(n_rows).double())
    assert (values >= centers.amin(dim=-1, keepdim=True) - 0.1).all()
    assert (values <= centers.amax(dim=-1, keepdim=True) + 0.1).all()
    assert torch.isfinite(Mixture(points, masses, deviations.unsqueeze(-1)).log_prob(points[:, 2])).all()


@for_each("dim", [1, 2])
@for_each("shift", [1e4, 1e8])
def test_far_from_zero_the_points_are_as_good(dim, shift):
    near = mixture(5, 6, dim)
    far = Mixture(near.hypotheses + shift, near.probabilities, near.widths)
    before, after = best_points(near, 4), best_points(far, 4)
    torch.testing.assert_close(after.points - shift, before.points, rtol=0, atol=1e-3)
    torch.testing.assert_close(after.masses, before.masses, rtol=0, atol=1e-3)


@for_each("dim", [1, 2, 3, 12])
@for_each("case", ["one kernel", "fewer kernels than points", "kernels in one place", "no weight"])
def test_points_are_distinct_and_have_mass_however_few_the_kernels(dim, case):
    generator = torch.Generator().manual_seed(0)
    n = {"one kernel": 1, "fewer kernels than points": 3}.get(case, 40)
    centers = torch.randn(2, n, dim, generator=generator, dtype=torch.float64)
    weights = torch.rand(2, n, generator=generator, dtype=torch.float64).softmax(dim=-1)
    if case == "kernels in one place":
        centers = centers[:, :1].expand(2, n, dim)
    if case == "no weight":
        weights = torch.nn.functional.one_hot(torch.tensor([3, 7]), n).double()
    density = Mixture(centers, weights, 0.5)
    found = best_points(density, 6)
    assert (found.masses > 0.005).all()
    apart = (found.points.unsqueeze(1) - found.points.unsqueeze(2)).norm(dim=-1) + torch.eye(6)
    assert apart.min() > 0.05
    assert (distortion(density, found.points) < distortion(density, density.mean.unsqueeze(1))).all()


def test_more_points_than_places_leave_some_without_mass():
    density = Mixture(torch.zeros(1, 2).double(), torch.ones(1).double(), 1e-9)
    found = best_points(density, 6)
    assert float(found.masses.sum()) == pytest.approx(1.0)
    assert torch.isfinite(found.points).all()
    assert (found.deviations > 0).all()


def test_a_density_does_not_depend_on_its_batch_and_shapes_are_kept():
    density = mixture(700, 4)
    whole = best_points(density, 3)
    alone = best_points(density.rows(slice(600, 601)), 3)
    torch.testing.assert_close(alone.points[0], whole.points[600], rtol=1e-6, atol=1e-6)
    assert best_points(density.expand((2, 700)), 3).points.shape == (2, 700, 3, 1)
    narrow = mixture(4, 4, dtype=torch.float32)
    assert {part.dtype for part in best_points(narrow, 3)} == {torch.float32}


def test_other_densities_and_numbers_are_refused():
    with pytest.raises(TypeError, match="best_points: `density`"):
        best_points(torch.distributions.Normal(0.0, 1.0), 2)
    with pytest.raises(ValueError, match="best_points: `n_points`"):
        best_points(mixture(1, 2), 0)


@for_each("n_points", [5, 13, 33])
def test_points_of_branches_that_are_very_far_apart_are_in_order(n_points):
    generator = torch.Generator().manual_seed(0)
    centers = 1000 * torch.randn(80, 5, 1, generator=generator, dtype=torch.float64)
    centers[:, 0] = 1e9
    density = Mixture(centers, torch.full((80, 5), 0.2).double(), 0.5)
    points, masses, _ = best_points(density, n_points)
    assert (points[..., 0].diff(dim=-1) >= 0).all()
    torch.testing.assert_close(masses.sum(dim=-1), torch.ones(80).double())
