"""Mixtures on the line in compiled loops: against float64 oracles, the definition in torch, and their own limits."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
from torchmcl.density import Mixture, best_points
from torchmcl_fleet.native import available, line

needs_extension = pytest.mark.skipif(not available(), reason="the extension was not built")


def mixture(n_rows=15, n_kernels=6, decades=1.0, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)

    def uniform():
        return torch.rand(n_rows, n_kernels, generator=generator, dtype=torch.float64)

    weights = uniform() ** 2 + 1e-3
    centers = torch.randn(n_rows, n_kernels, 1, generator=generator, dtype=torch.float64)
    widths = 10 ** (-decades * uniform())
    weights = weights / weights.sum(dim=-1, keepdim=True)
    return Mixture(centers.to(dtype), weights.to(dtype), widths.to(dtype).unsqueeze(-1))


def changed(density, centers=None, weights=None, widths=None):
    return Mixture(
        density.hypotheses if centers is None else centers,
        density.probabilities if weights is None else weights,
        density.widths if widths is None else widths,
    )


def zeroed(density):
    weights = density.probabilities.clone()
    weights[:, 1::2] = 0
    return changed(density, weights=weights / weights.sum(dim=-1, keepdim=True))


CASES = {
    "few widths": mixture(),
    "many kernels": mixture(2, 160, 2.0),
    "widths by a factor of 1000": mixture(n_kernels=16, decades=3.0),
    "one kernel": mixture(n_kernels=1),
    "equal kernels": changed(mixture(), torch.full((15, 6, 1), 2.5).double(), widths=0.3),
    "zero weights": zeroed(mixture()),
    "far from zero": changed(mixture(decades=2.0), mixture().hypotheses + 1e6),
    "nearly points": changed(mixture(), widths=mixture().widths * 1e-7),
    "single precision": mixture(n_kernels=16, decades=2.0, dtype=torch.float32),
}
every_case = pytest.mark.parametrize("density", CASES.values(), ids=CASES.keys())


def of_rows(density):
    """Yield weights, centers and widths of each row in numpy, moved to a center."""
    centers = density.hypotheses[..., 0].double()
    for row, origin in enumerate(centers.mean(dim=-1)):
        parts = (density.probabilities[row], centers[row] - origin, density.widths[row, :, 0])
        yield float(origin), [part.double().numpy() for part in parts]


@pytest.fixture
def defined(monkeypatch):
    """Return a function that calls another with the definition in torch in place of the compiled loops."""

    def call(function):
        with monkeypatch.context() as patched:
            patched.setattr(line, "supports", lambda *tensors: False)
            return function()

    return call


@every_case
@pytest.mark.parametrize("mass", [0.1, 0.5, 0.9, 0.99])
@needs_extension
def test_sets_hold_their_mass_and_end_at_one_height(density, mass):
    lower, upper = density.highest_density(mass)
    for row, (origin, parts) in enumerate(of_rows(density)):
        ends = [(float(a) - origin, float(b) - origin) for a, b in zip(lower[row], upper[row], strict=True) if a == a]
        assert all(a < b for a, b in ends)
        assert all(b <= c for (_, b), (c, _) in itertools.pairwise(ends))
        held = sum(oracles.mixture_mass(*parts, a, b) for a, b in ends)
        rounding = 1e-3 if density.hypotheses.dtype == torch.float32 or abs(origin) > 1e5 else 0
        assert held == pytest.approx(mass, abs=1e-3 + rounding)
        heights = oracles.mixture_height(*parts, np.array(ends).ravel())
        np.testing.assert_allclose(heights, np.median(heights), rtol=0.06)


@every_case
@needs_extension
def test_masses_above_values_are_those_of_the_density(density):
    # Where the density is flat a mass hangs on the last digits of a height: heights may be off by 0.2 %.
    errors = []
    for z in (-2.0, 0.0, 0.3, 1.5):
        values = density.hypotheses[:, 0] + z * density.widths[:, 0]
        found = density.mass_above(values).double().numpy()
        for row, (origin, parts) in enumerate(of_rows(density)):
            height = oracles.mixture_height(*parts, values[row].double().numpy() - origin)[0]
            heights = height * np.array([1.002, 1.0, 0.998])
            low, middle, high = oracles.mixture_masses_denser(*parts, heights)
            assert low - 1e-3 <= found[row] <= high + 1e-3
            errors.append(abs(found[row] - middle))
    assert np.median(errors) < 5e-4


@given(st.floats(0.02, 0.98), st.integers(0, 10), st.floats(0.0, 3.0))
def test_a_value_is_in_a_set_where_its_score_is_below_the_mass(mass, seed, decades):
    density = mixture(50, 7, decades, seed)
    lower, upper = density.highest_density(mass)
    values = density.sample((), torch.Generator().manual_seed(seed))
    scores = density.mass_above(values)
    inside = ((lower <= values) & (values <= upper)).any(dim=-1)
    clear = (scores - mass).abs() > (1e-4 if available() else 0.05)
    assert (inside == (scores < mass))[clear].all()


@every_case
@needs_extension
def test_points_are_as_good_as_those_of_the_definition(density, defined):
    ours, theirs = best_points(density, 5), defined(lambda: best_points(density, 5))
    ratios = []
    for row, (origin, parts) in enumerate(of_rows(density)):
        costs = [
            oracles.mixture_distortion(*parts, (found.points[row, :, 0].double() - origin).tolist())
            for found in (ours, theirs)
        ]
        ratios.append(costs[0] / costs[1])
        measured = float((ours.masses[row] * ours.deviations[row].square()).sum())
        assert measured == pytest.approx(costs[0], rel=2e-2)
    assert max(ratios) < 1.03
    assert np.mean(ratios) < 1.0005
    torch.testing.assert_close(ours.masses.sum(dim=-1), torch.ones_like(ours.masses[:, 0]))


@needs_extension
@pytest.mark.parametrize("decades", [0.5, 3.0])
def test_a_row_depends_neither_on_the_others_nor_on_the_threads(decades):
    density, n_threads = mixture(300, 9, decades), torch.get_num_threads()

    def answers(some):
        values = some.hypotheses[:, 2] + 0.1
        sets = [end[:, :1] for end in some.highest_density(0.8)]
        return [*best_points(some, 4), *sets, some.mass_above(values), some.gap_depth(0.8)]

    try:
        torch.set_num_threads(1)
        one = answers(density)
        torch.set_num_threads(2)
        two = answers(density)
    finally:
        torch.set_num_threads(n_threads)
    alone = answers(density.rows(slice(123, 124)))
    for first, second, single in zip(one, two, alone, strict=True):
        assert torch.equal(first, second)
        assert torch.equal(first[123:124], single)


@pytest.mark.parametrize("compiled", [True, False])
def test_fill_goes_from_all_pieces_to_one_interval(compiled, defined):
    density = mixture(60, 5, 0.8)

    def sets(fill):
        def make():
            return density.highest_density(0.85, fill)

        return make() if compiled else defined(make)

    plain, depths = sets(1.0), density.gap_depth(0.85) if compiled else defined(lambda: density.gap_depth(0.85))
    several = torch.isfinite(plain.lower).sum(dim=-1) > 1
    assert several.any()
    assert not several.all()
    assert torch.equal(depths < 1, several)
    whole = sets(0.0)
    assert whole.lower.shape == (60, 1)
    assert torch.equal(whole.lower[:, 0], plain.lower[:, 0])
    assert torch.equal(whole.upper[:, 0], plain.upper.nan_to_num(-torch.inf).amax(dim=-1))
    last = torch.isfinite(plain.lower).sum(dim=-1)
    for fill in (0.9, 0.5, 0.2):
        found = sets(fill)
        pieces = torch.isfinite(found.lower).sum(dim=-1)
        assert (pieces <= last).all()
        assert torch.equal(pieces == 1, depths >= fill)
        last = pieces


@needs_extension
def test_the_definition_in_torch_gives_the_same_up_to_its_cells(defined):
    density = mixture(30, 5, 1.0)
    compiled, plain = (density.highest_density(0.9, 0.3), defined(lambda: density.highest_density(0.9, 0.3)))
    assert compiled.lower.shape == plain.lower.shape
    widest = density.widths[..., 0].amax(dim=-1, keepdim=True)
    for ours, theirs in zip(compiled, plain, strict=True):
        same = torch.isfinite(ours) == torch.isfinite(theirs)
        assert same.double().mean() > 0.97  # a gap may be as deep as `fill` up to rounding
        assert ((ours - theirs).abs() / widest)[torch.isfinite(ours - theirs)].median() < 0.05
    values = density.hypotheses[:, 1] + 0.2
    masses = defined(lambda: density.mass_above(values))
    torch.testing.assert_close(density.mass_above(values), masses, rtol=0, atol=0.1)  # the mass of a cell
    depths = defined(lambda: density.gap_depth(0.5))
    assert (density.gap_depth(0.5) - depths).abs().median() < 0.01


@pytest.mark.parametrize("compiled", [True, False])
def test_batches_of_any_shape_are_taken(compiled, defined):
    def check():
        single = Mixture(torch.tensor([[0.0], [3.0]]), torch.tensor([0.5, 0.5]), 0.2)
        assert single.highest_density(0.9).lower.shape == (2,)
        assert single.gap_depth(0.9).shape == ()
        assert single.mass_above(torch.tensor([0.0])).shape == ()
        wide = single.expand((2, 3))
        assert wide.highest_density(0.9).upper.shape == (2, 3, 2)
        assert wide.mass_above(torch.zeros(2, 3, 1)).shape == (2, 3)
        empty = single.expand((4,)).rows(slice(0, 0))
        assert empty.highest_density(0.9).lower.shape == (0, 1)
        assert empty.gap_depth(0.9).shape == (0,)
        assert empty.mass_above(torch.zeros(0, 1)).shape == (0,)

    check() if compiled else defined(check)


@needs_extension
def test_what_is_not_a_number_stays_in_its_row():
    density = mixture(3, 4)
    centers = density.hypotheses.clone()
    centers[1, 2] = torch.nan
    spoiled = changed(density, centers)
    assert torch.isnan(best_points(spoiled, 2).points[1]).all()
    assert torch.equal(best_points(spoiled, 2).points[2], best_points(density, 2).points[2])
    assert torch.isnan(spoiled.highest_density(0.5).lower[1]).all()
    scores = spoiled.mass_above(torch.tensor([[0.0], [0.0], [torch.nan]]))
    assert torch.isnan(scores).tolist() == [False, True, True]


@needs_extension
@pytest.mark.parametrize("width", [1e-20, 1e-38, 1e-300])
def test_equal_centres_are_one_place_however_narrow_their_kernels(width):
    density = mixture(40, 7)
    centers = density.hypotheses[:, :1].expand(-1, 7, -1)  # whose mean differs from them by rounding
    points = changed(density, centers, widths=width)
    best = best_points(points, 3)
    torch.testing.assert_close(best.points, centers[:, :3], rtol=1e-15, atol=1e-15)
    torch.testing.assert_close(best.masses.sum(dim=-1), torch.ones(40).double())
    assert float(best.masses.min()) > 0.2
    torch.testing.assert_close(points.highest_density(0.9).lower[:, :1], centers[:, 0], rtol=1e-15, atol=1e-15)


@needs_extension
def test_numbers_at_the_end_of_their_range_give_a_result_or_nan():
    weights, ones = torch.tensor([[0.3, 0.3, 0.4]]).double(), torch.ones(1, 3).double()
    wide = line.Mixtures(ones, weights, 1e308 * ones)
    assert wide.best_points(3)[0].isfinite().all()
    assert wide.sets(torch.tensor([0.5]), 1.0).lower.isfinite().all()
    for bad in (line.Mixtures(1e308 * ones, 9 * weights, ones), line.Mixtures(ones, 1e-320 * weights, ones)):
        assert bad.best_points(3)[0].isnan().all()
    for mass in (torch.nan, -1.0):
        assert line.Mixtures(ones, weights, ones).sets(torch.tensor([mass]), 1.0).lower.isnan().all()


def test_tensors_that_need_a_gradient_are_left_to_torch():
    density = mixture(2, 3)
    centers = density.hypotheses.clone().requires_grad_()
    assert changed(density, centers).univariate_kernels() is None
    with torch.no_grad():
        assert (changed(density, centers).univariate_kernels() is not None) == available()
    points = best_points(changed(density, centers), 2).points
    assert points.requires_grad
