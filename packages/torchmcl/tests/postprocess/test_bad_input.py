"""What is not as it should be is named, with the rule and the value."""

import warnings

import numpy as np
import pytest
import torch

import torchmcl as mcl
from torchmcl import postprocess as after
from torchmcl.postprocess import (
    BallScore,
    DensityLevels,
    TubeScore,
    calibrate_scores,
    concatenate,
    conformal,
    diagnose,
    expected_cost,
    reduce,
)

HYPOTHESES, LOGITS, TARGETS = torch.randn(5, 12, 2), torch.randn(5, 12), torch.randn(5, 2)
GIVEN = mcl.Predictions(HYPOTHESES, LOGITS)
MANY, MANY_TARGETS = mcl.Predictions(torch.randn(40, 4, 2)), torch.randn(40, 2)
FEW = mcl.Predictions(HYPOTHESES[:, :3])
WINNERS = torch.zeros(5, dtype=torch.long)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: reduce(mcl.Predictions(HYPOTHESES, LOGITS - torch.inf), 2), "have a finite logit in every row"),
        (lambda: reduce(mcl.Predictions(torch.zeros(3, 9, 0)), 2), "with at least one hypothesis and one axis"),
        (lambda: reduce(GIVEN, 2, scores="softmax"), "`scores` must be a ScoreObjective or probabilities"),
        (lambda: reduce(GIVEN, 2, scores=[["a"]]), "`scores` must be a tensor or an array of numbers"),
        (lambda: reduce(GIVEN, 2, objective="miss"), "`objective` must be a ReductionObjective, got 'miss'"),
        (lambda: reduce(GIVEN, 2, moved="no"), "`moved` must be True or False, got 'no'"),
        (lambda: expected_cost(FEW.hypotheses, GIVEN), "`few` must be Predictions, got Tensor"),
        (lambda: expected_cost(mcl.Predictions(HYPOTHESES[:2]), GIVEN), r"`few.hypotheses` must have shape \[5, k"),
        (lambda: expected_cost(mcl.Predictions(HYPOTHESES[:, :0]), GIVEN), "with k >= 1"),
        (lambda: expected_cost(FEW, GIVEN, objective=3), "`objective` must be a ReductionObjective, got 3"),
        (lambda: after.concatenate(GIVEN), "`predictions` must be a sequence of Predictions, one for each network"),
        (lambda: after.concatenate([GIVEN, GIVEN], weights="ab"), "`weights` must be a tensor or an array of numbers"),
        (lambda: after.calibrate_scores(LOGITS, WINNERS, method="vector"), "`method` must be a CalibrationMethod"),
        (lambda: after.calibrate_scores(LOGITS, WINNERS, scores="softmax"), "`scores` must be a ScoreObjective"),
        (
            lambda: conformal(MANY, MANY_TARGETS, nonconformity=BallScore(), sample_weights=torch.zeros(40)),
            "`sample_weights` must be >= 0, and not all 0",
        ),
        (
            lambda: conformal(MANY, MANY_TARGETS, nonconformity=BallScore(), groups=["a"] * 40),
            "`groups` must be a tensor",
        ),
        (
            lambda: conformal(MANY, MANY_TARGETS, nonconformity=TubeScore(), mask=torch.zeros(40, 2, dtype=torch.bool)),
            "`mask` must have at least one real step in each row, got none in row 0",
        ),
        (lambda: TubeScore(scales=2.0), "`scales` must be a tuple of numbers, got 2.0"),
        (lambda: TubeScore.fit(MANY, MANY_TARGETS, share=2.0), r"`share` must lie in \[0, 1\], got 2.0"),
        (
            lambda: TubeScore.fit(MANY, MANY_TARGETS, torch.ones(40, 3, dtype=torch.bool)),
            r"`mask` must have shape \(40, 2\)",
        ),
        (lambda: DensityLevels(0.1, scale=(1.0, -1.0)), "`scale` must be > 0, got -1.0"),
        (
            lambda: conformal(MANY, MANY_TARGETS, nonconformity=DensityLevels(0.1, scale=(1.0,))),
            "`scale` must have one number for each of 2 coordinates, got 1",
        ),
        (
            lambda: after.select_nonconformity(BallScore(), MANY, MANY_TARGETS),
            "`offered` must be a sequence to choose from",
        ),
        (
            lambda: after.select_nonconformity([BallScore()], GIVEN, TARGETS),
            "at least 18 rows for a coverage of 0.9, half of them",
        ),
    ],
)
def test_the_message_says_what_is_wrong(run, message):
    with pytest.raises((ValueError, TypeError), match=message):
        run()


def test_arrays_and_lists_serve_as_tensors_do():
    weights = after.calibrate_scores(LOGITS, WINNERS, sample_weights=np.ones(5)).score_map
    assert weights == after.calibrate_scores(LOGITS.numpy(), WINNERS.numpy(), sample_weights=[1.0] * 5).score_map
    uniform = np.full((5, 12), 1 / 12)
    assert after.diagnose(mcl.Predictions(HYPOTHESES), TARGETS.numpy(), scores=uniform).score_error is not None
    mask = np.ones((40, 2), dtype=bool)
    level = conformal(MANY, MANY_TARGETS, nonconformity=TubeScore(scales=[1, 2]), mask=mask).levels
    assert level == conformal(MANY, MANY_TARGETS, nonconformity=TubeScore(scales=(1.0, 2.0))).levels
    shares = after.concatenate([GIVEN, GIVEN], weights=[1, 3]).score_logits.sigmoid()
    assert shares[0, :12].sum() == pytest.approx(0.25)


def test_regions_calibrated_with_probabilities_ask_for_them_again():
    shares = torch.full((40, 4), 0.25)
    regions = conformal(MANY, MANY_TARGETS, nonconformity=BallScore(power=0.5), scores=shares)
    with pytest.raises(ValueError, match="`scores` must be probabilities, as in the calibration, got None"):
        regions.contains(MANY, MANY_TARGETS)
    assert regions.contains(MANY, MANY_TARGETS, scores=shares).float().mean() >= 0.9


def test_no_balls_have_no_volume():
    for dim in (1, 2, 3):
        assert after.union_volume(torch.zeros(2, 0, dim), torch.ones(2, 0)).tolist() == [0.0, 0.0]
    volume = after.union_volume(torch.zeros(1, 1, 3), torch.ones(1, 1, dtype=torch.float64))
    assert volume.item() == pytest.approx(4.18879, rel=1e-4)


READERS = {
    "conformal": lambda given, **options: conformal(given, torch.zeros(40, 1), nonconformity=BallScore(), **options),
    "diagnose": lambda given, **options: diagnose(given, torch.zeros(40, 1), **options),
    "reduce": lambda given, **options: reduce(given, 2, **options),
    "concatenate": lambda given, **options: concatenate([given, given], **options),
    "expected_cost": lambda given, **options: expected_cost(given, given, **options),
    "calibrate_scores": lambda given, **options: calibrate_scores(given, torch.zeros(40).long(), **options),
}


@pytest.mark.parametrize("name", READERS)
def test_logits_of_a_softmax_are_not_read_as_sigmoids_without_a_word(name):
    chances = torch.tensor([0.5, 0.3, 0.2]).expand(40, 3)
    hypotheses, read = torch.randn(40, 3, 1), READERS[name]
    with pytest.warns(UserWarning, match=f"{name}: `scores` is not given, .* sum to 2.9 on average, not to 1"):
        read(mcl.Predictions(hypotheses, chances.log() + 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(mcl.Predictions(hypotheses, chances.log() + 5), scores=mcl.SoftmaxScores())
        read(mcl.Predictions(hypotheses, chances.logit()))
        if name != "calibrate_scores":
            read(mcl.Predictions(hypotheses))
