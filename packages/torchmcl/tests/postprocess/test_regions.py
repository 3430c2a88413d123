"""Conformal regions: coverage by simulation, volumes against formulas and grids, groups, weights, streams, files."""

import math
import pickle

import numpy as np
import pytest
import torch

import torchmcl as mcl
from torchmcl.postprocess import (
    AdaptiveLevel,
    BallScore,
    DensityLevels,
    TubeScore,
    conformal,
    select_nonconformity,
    union_volume,
)
from torchmcl.postprocess._inputs import scored

KINDS = [BallScore(), BallScore(mcl.pairwise_sq_euclidean, power=0.5), TubeScore((1.0, 2.0)), DensityLevels(0.5)]


def rows(n, seed=0, noise=0.3, event=(2,)):
    """Return predictions of three hypotheses, and targets near one of them, drawn by the scores."""
    generator = torch.Generator().manual_seed(seed)
    hypotheses = torch.randn(n, 3, *event, generator=generator)
    logits = torch.randn(n, 3, generator=generator)
    chosen = torch.multinomial(mcl.normalized_scores(logits), 1, generator=generator).squeeze(-1)
    targets = hypotheses[torch.arange(n), chosen] + noise * torch.randn(n, *event, generator=generator)
    return mcl.Predictions(hypotheses, logits), targets


@pytest.mark.parametrize("kind", KINDS, ids=["balls", "grown balls", "tubes", "levels"])
def test_a_fresh_target_is_covered_as_promised_over_2000_draws(kind):
    n_draws, n_rows, coverage = 2000, 25, 0.9  # each draw is a group with a calibration of its own
    groups = torch.arange(n_draws).repeat_interleave(n_rows)
    regions = conformal(*rows(n_draws * n_rows), nonconformity=kind, coverage=coverage, groups=groups)
    fresh, targets = rows(n_draws, seed=1)
    covered = regions.contains(fresh, targets, groups=torch.arange(n_draws)).double().mean()
    exact = math.ceil(coverage * (n_rows + 1)) / (n_rows + 1)  # for values without ties
    assert abs(covered - exact) < 4 * math.sqrt(exact * (1 - exact) / n_draws)


def test_coverage_is_joint_over_steps_and_holds_with_masks():
    kind = TubeScore.fit(*rows(300, seed=5, event=(4, 2)))
    given, targets = rows(20_000, event=(4, 2))
    mask = torch.rand(20_000, 4, generator=torch.Generator().manual_seed(2)) < 0.8
    mask[:, 0] = True
    regions = conformal(
        mcl.Predictions(*(x[:2000] for x in given)), targets[:2000], nonconformity=kind, mask=mask[:2000]
    )
    fresh = mcl.Predictions(*(x[2000:] for x in given))
    assert regions.contains(fresh, targets[2000:], mask=mask[2000:]).double().mean() == pytest.approx(0.9, abs=0.02)
    # In a tube means in the tube of one hypothesis at all steps.
    radii = kind.radii(scored("test", fresh, mcl.SigmoidScores()), regions.level(18_000).float())
    distances = (fresh.hypotheses - targets[2000:].unsqueeze(1)).square().sum(-1).sqrt()
    inside = ((distances <= radii * (1 + 1e-6)) | ~mask[2000:].unsqueeze(1)).all(-1).any(-1)
    assert (inside == regions.contains(fresh, targets[2000:], mask=mask[2000:])).double().mean() > 0.9999


def test_tubes_are_smaller_than_those_of_bonferroni():
    given, targets = rows(4000, noise=1.0, event=(12, 2))
    targets = given.hypotheses[:, 0] + (targets - given.hypotheses[:, 0]).cumsum(dim=1)
    given = mcl.Predictions(given.hypotheses[:, :1])
    first, second, third = (slice(i, None, 3) for i in range(3))
    kind = TubeScore.fit(mcl.Predictions(given.hypotheses[first]), targets[first])
    regions = conformal(mcl.Predictions(given.hypotheses[second]), targets[second], nonconformity=kind)
    fresh = mcl.Predictions(given.hypotheses[third])
    joint = regions.volume(fresh).mean()
    by_step = []
    for step in range(12):
        part = slice(step, step + 1)
        one = conformal(
            mcl.Predictions(given.hypotheses[second][:, :, part]),
            targets[second][:, part],
            nonconformity=TubeScore(),
            coverage=1 - 0.1 / 12,
        )
        by_step.append(one.volume(mcl.Predictions(fresh.hypotheses[:, :, part])).mean())
    assert regions.contains(fresh, targets[third]).double().mean() == pytest.approx(0.9, abs=0.03)
    assert joint < sum(by_step) / 12


def test_weights_correct_a_shift_of_the_inputs():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(40_000, 1, generator=generator).double()
    noise = (0.1 + x) * torch.randn(40_000, 1, generator=generator)
    given, targets = mcl.Predictions(torch.zeros(40_000, 1, 1).double()), noise
    weights = (5 * x.squeeze(-1) - 5).exp()  # fresh rows have large x, and large noise
    kept = torch.rand(40_000, generator=generator) < weights
    fresh = mcl.Predictions(given.hypotheses[kept])
    plain, weighted = (
        conformal(given, targets, nonconformity=BallScore(), sample_weights=w)
        .contains(fresh, targets[kept])
        .double()
        .mean()
        for w in (None, weights)
    )
    assert plain.double().mean() < 0.8
    assert weighted.double().mean() == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", [BallScore(), TubeScore((0.3,)), DensityLevels(0.7)], ids=["balls", "tubes", "levels"])
def test_targets_tied_at_the_level_are_covered_in_every_dtype(kind, dtype):
    given, targets = mcl.Predictions(torch.zeros(100, 1, 1, dtype=dtype)), torch.full((100, 1), 0.7, dtype=dtype)
    for groups in (None, torch.arange(100) % 2):
        regions = conformal(given, targets, nonconformity=kind, groups=groups)
        assert regions.contains(given, targets, groups=groups).all()


def test_a_mask_is_never_ignored():
    given, targets = rows(40, event=(6, 2))
    mask = (torch.arange(6) < 4).expand(40, 6)
    other = targets.masked_fill(~mask.unsqueeze(-1), 1e4)
    for kind in (TubeScore(), BallScore(mcl.pairwise_ade), BallScore(mcl.pairwise_sq_fde)):
        regions, same = (conformal(given, part, nonconformity=kind, mask=mask) for part in (targets, other))
        assert regions.levels == same.levels
    for kind in (BallScore(), BallScore(mcl.pairwise_l1), DensityLevels(0.5)):
        with pytest.raises(ValueError, match="mask"):
            conformal(given, targets, nonconformity=kind, mask=mask)
        with pytest.raises(ValueError, match="mask"):
            conformal(given, targets, nonconformity=kind).contains(given, targets, mask=mask)


def test_units_are_counted_as_one_row():
    given, targets = rows(30)
    assert conformal(given, targets, nonconformity=BallScore()).n_rows == 30
    with pytest.raises(ValueError, match=r"at least 9 rows for a coverage of 0.9, got 30 that count as 3.0"):
        conformal(given, targets, nonconformity=BallScore(), units=torch.arange(30) % 3)


def test_too_few_rows_say_how_many_are_needed():
    conformal(*rows(19), nonconformity=BallScore(), coverage=0.95)
    with pytest.raises(
        ValueError, match=r"conformal: `targets` must have at least 19 rows for a coverage of 0.95, got 18"
    ):
        conformal(*rows(18), nonconformity=BallScore(), coverage=0.95)
    with pytest.raises(ValueError, match=r"at least 9 rows in group 7 for a coverage of 0.9, got 4"):
        conformal(*rows(24), nonconformity=BallScore(), groups=torch.tensor([1] * 20 + [7] * 4))


def test_lengths_and_areas_are_exact():
    generator = torch.Generator().manual_seed(0)
    for dim in (1, 2):
        centres, radii = torch.randn(3, 5, dim, generator=generator), torch.rand(3, 5, generator=generator)
        axis = torch.linspace(-5, 5, 200_001 if dim == 1 else 1001, dtype=torch.float64)
        grid = torch.cartesian_prod(*[axis] * dim).view(-1, dim)
        cell = (axis[1] - axis[0]) ** dim
        for c, r, volume in zip(centres, radii, union_volume(centres, radii), strict=True):
            inside = ((grid.unsqueeze(1) - c).square().sum(-1) <= r.square()).any(-1)
            assert volume == pytest.approx(float(inside.sum() * cell), rel=0.01 if dim == 2 else 1e-3)


def test_discs_that_touch_coincide_or_lie_inside_each_other():
    centres = torch.tensor([[[0.0, 0.0]] * 3, [[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]], [[0.0, 0.0], [0.5, 0.0], [9.0, 0]]])
    radii = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [2.0, 1.0, 0.0]])
    torch.testing.assert_close(union_volume(centres, radii), math.pi * torch.tensor([1.0, 3.0, 4.0]))


def test_sampled_volumes_agree_with_formulas():
    generator = torch.Generator().manual_seed(0)
    centres = torch.zeros(1, 2, 3)
    centres[0, 1, 0] = 1.0
    lens = math.pi * (4 + 1) * (2 - 1) ** 2 / 12  # of unit balls at distance 1
    volume = union_volume(centres, torch.ones(1, 2), n_samples=200_000, generator=generator)
    assert float(volume) == pytest.approx(8 / 3 * math.pi - lens, rel=0.01)
    one = mcl.Predictions(torch.zeros(50, 1, 1))
    targets = torch.randn(50, 1, generator=generator)
    regions = conformal(one, targets, nonconformity=DensityLevels(1.0))
    half_width = math.sqrt(2 * (float(regions.levels) - 0.5 * math.log(2 * math.pi)))
    assert float(regions.volume(one, n_samples=20_000, generator=generator)[0]) == pytest.approx(
        2 * half_width, rel=0.03
    )


def test_the_smallest_regions_are_chosen():
    given, targets = rows(400, noise=0.1)
    offered = [DensityLevels(3.0), BallScore(), DensityLevels(0.1)]
    chosen = select_nonconformity(offered, given, targets, n_samples=200, generator=torch.Generator().manual_seed(0))
    assert chosen == DensityLevels(0.1)


@pytest.mark.parametrize("window", [None, 300])
def test_a_drifting_stream_is_missed_as_often_as_allowed(window):
    rng = np.random.default_rng(0)
    level = AdaptiveLevel(coverage=0.9, step_size=0.02, window=window)
    values = np.abs(rng.normal(size=4000)) * np.linspace(1, 5, 4000)
    hits = np.array([level.update(float(value)) for value in values])
    bound = (0.9 + 0.02) / (0.02 * 4000)
    assert abs(1 - hits.mean() - 0.1) <= bound
    assert level.n_misses == (~hits).sum()
    assert abs(1 - hits[2000:].mean() - 0.1) < 0.02


@pytest.mark.parametrize("kind", KINDS, ids=["balls", "grown balls", "tubes", "levels"])
def test_regions_can_be_pickled(kind):
    given, targets = rows(60)
    groups = torch.arange(60) % 2
    regions = conformal(given, targets, nonconformity=kind, groups=groups)
    other = pickle.loads(pickle.dumps(regions))
    assert other.nonconformity == kind
    inside = regions.contains(given, targets, groups=groups)
    assert torch.equal(other.contains(given, targets, groups=groups), inside)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"coverage": 1.0}, ValueError, r"`coverage` must lie in \(0, 1\)"),
        ({"nonconformity": "balls"}, TypeError, "be a Nonconformity, got str"),
        ({"targets": torch.zeros(20, 3)}, ValueError, r"`targets` must have shape \(20, 2\)"),
        ({"targets": torch.full((20, 2), torch.inf)}, ValueError, "be finite, got inf"),
        ({"groups": torch.zeros(20)}, TypeError, "`groups` must be integers"),
        ({"groups": torch.zeros(3).long()}, ValueError, r"`groups` must have shape \(20,\)"),
        ({"sample_weights": -torch.ones(20)}, ValueError, "`sample_weights` must be >= 0"),
        ({"mask": torch.ones(20, 3, dtype=torch.bool)}, ValueError, r"`mask` must have shape \(20, 2\)"),
        ({"nonconformity": DensityLevels(1.0), "mask": torch.ones(20, 2) > 0}, ValueError, "`mask` must be None"),
        ({"nonconformity": TubeScore((1.0,))}, ValueError, "one number for each of 2 steps"),
    ],
)
def test_bad_input_is_named(change, error, message):
    given, targets = rows(20)
    arguments = {"targets": targets, "nonconformity": BallScore(), **change}
    with pytest.raises(error, match=message):
        conformal(given, arguments.pop("targets"), **arguments)


def test_bad_use_of_regions_is_named():
    given, targets = rows(20)
    plain = conformal(given, targets, nonconformity=BallScore(mcl.pairwise_l1))
    with pytest.raises(ValueError, match="declared as a power of the Euclidean distance for a radius"):
        plain.volume(given)
    with pytest.raises(ValueError, match="calibrated without groups"):
        plain.contains(given, targets, groups=torch.zeros(20).long())
    grouped = conformal(given, targets, nonconformity=BallScore(), groups=torch.zeros(20).long())
    with pytest.raises(ValueError, match="calibrated with groups"):
        grouped.contains(given, targets)
    with pytest.raises(ValueError, match="among those of the calibration, got 5"):
        grouped.contains(given, targets, groups=torch.full((20,), 5))
    with pytest.raises(ValueError, match="`radii` must be >= 0"):
        union_volume(torch.zeros(1, 1, 2), -torch.ones(1, 1))
    with pytest.raises(ValueError, match="`coverage` must lie in"):
        AdaptiveLevel(coverage=2.0)
    with pytest.raises(ValueError, match="hold at least one nonconformity"):
        select_nonconformity([], given, targets)


def test_volumes_of_different_spaces_are_not_compared():
    given, targets = mcl.Predictions(torch.randn(60, 3, 2)), torch.randn(60, 2)
    with pytest.raises(ValueError, match="`offered` must have volumes of the same space, got TubeScore, BallScore"):
        select_nonconformity([TubeScore(), BallScore()], given, targets)


def cut_short(n_rows=60):
    """Return paths, targets with NaN after the end of each, and which steps are real."""
    generator = torch.Generator().manual_seed(0)
    hypotheses = torch.randn(n_rows, 3, 6, 2, generator=generator)
    targets = torch.randn(n_rows, 6, 2, generator=generator)
    real = torch.arange(6) < torch.randint(1, 7, (n_rows, 1), generator=generator)
    return mcl.Predictions(hypotheses), targets.masked_fill(~real.unsqueeze(-1), torch.nan), real


@pytest.mark.parametrize("fill", [0.0, 1e9])
def test_the_contents_of_masked_steps_are_ignored(fill):
    given, targets, real = cut_short()
    filled = targets.nan_to_num(fill)
    tubes = TubeScore.fit(given, targets, real)
    assert tubes == TubeScore.fit(given, filled, real)
    regions, expected = (conformal(given, y, nonconformity=tubes, mask=real) for y in (targets, filled))
    assert torch.equal(regions.levels, expected.levels)
    assert torch.equal(regions.contains(given, targets, mask=real), expected.contains(given, filled, mask=real))
    assert select_nonconformity([tubes, TubeScore()], given, targets, mask=real) in (tubes, TubeScore())
    with pytest.raises(ValueError, match="`targets` must be finite, got nan"):
        conformal(given, targets, nonconformity=tubes)


def test_steps_that_few_rows_have_are_not_weighed_up():
    """The nearest hypothesis is chosen in units of each step, which are means over the rows that have it."""
    rows = torch.arange(100)
    hypotheses = torch.tensor([[[0.0], [0.0]], [[1.0], [1.2]]]).expand(100, 2, 2, 1)
    targets = torch.tensor([[0.4], [0.7]]).expand(100, 2, 1)
    few = torch.stack([rows >= 0, rows < 50], dim=1)
    assert TubeScore.fit(mcl.Predictions(hypotheses), targets, few) == TubeScore.fit(
        mcl.Predictions(hypotheses[:50]), targets[:50]
    )
