"""Calibrated scores: known temperatures, masks, and modes of evaluation."""

import pytest
import torch

import torchmcl as mcl
from families import SCORE_OBJECTIVES
from grids import for_each
from torchmcl.postprocess import calibrate_scores
from torchmcl.postprocess.calibration import score_error


def overconfident(n=20_000, k=5, factor=3.0, n_targets=1):
    """Return predictions with logits that are `factor` times too large, and the matching of their targets."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(n, k, generator=generator, dtype=torch.float64)
    winners = torch.multinomial(logits.softmax(-1), n_targets, replacement=True, generator=generator)
    cost = 1 - torch.nn.functional.one_hot(winners, k).double()
    return mcl.Predictions(torch.zeros(n, k, 1), factor * logits), mcl.assign(cost, mcl.WTA())


@for_each("factor", [0.3, 1.0, 3.0])
@for_each("n_targets", [1, 3])
def test_the_temperature_is_the_factor_of_the_logits(factor, n_targets):
    predictions, matching = overconfident(factor=factor, n_targets=n_targets)
    calibration = calibrate_scores(predictions, matching, scores=mcl.SoftmaxScores())
    assert calibration.temperature == pytest.approx(factor, rel=0.03)
    assert calibration.n_targets == 20_000 * n_targets
    assert calibration.error_after <= calibration.error_before + 1e-3
    calibrated = calibration(predictions)
    probabilities = calibrated.score_logits.exp()
    torch.testing.assert_close(probabilities, (predictions.score_logits / calibration.temperature).softmax(-1))
    wins = mcl.WTA()(matching.cost, matching.mask).sum(dim=1)
    assert calibration.error_after == pytest.approx(score_error(probabilities, wins))


def test_sigmoid_scores_stay_sigmoid_scores_in_their_order():
    predictions, matching = overconfident(400)
    sigmoids = mcl.Predictions(predictions.hypotheses, predictions.score_logits.softmax(-1).logit())
    calibrated = calibrate_scores(sigmoids, matching)(sigmoids)
    torch.testing.assert_close(calibrated.score_logits.sigmoid().sum(-1), torch.ones(400, dtype=torch.float64))
    assert torch.equal(calibrated.score_logits.argsort(-1), sigmoids.score_logits.argsort(-1))


@for_each("scores", SCORE_OBJECTIVES)
def test_calibrated_scores_are_read_by_the_same_objective(scores):
    predictions, matching = overconfident(400)
    calibration = calibrate_scores(predictions, matching, scores=scores)
    expected = scores.probabilities(predictions.score_logits) ** (1 / calibration.temperature)
    probabilities = scores.probabilities(calibration(predictions).score_logits)
    torch.testing.assert_close(probabilities, expected / expected.sum(-1, keepdim=True))


def test_padded_targets_do_not_count():
    predictions, matching = overconfident(400, n_targets=2)
    mask = torch.tensor([True, False]).expand(400, 2)
    alone = mcl.assign(matching.cost[:, :1], mcl.WTA())
    padded = mcl.assign(matching.cost, mcl.WTA(), mask)
    expected = calibrate_scores(predictions, alone, scores=mcl.SoftmaxScores())
    assert calibrate_scores(predictions, padded, scores=mcl.SoftmaxScores()) == expected


def test_constant_scores_stay_constant_in_every_mode_of_evaluation():
    predictions, matching = overconfident(50)
    constant = mcl.Predictions(predictions.hypotheses, torch.zeros(50, 5))
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            calibrated = calibrate_scores(constant, matching, scores=mcl.SoftmaxScores())(constant)
            torch.testing.assert_close(calibrated.score_logits.exp(), torch.full((50, 5), 0.2))


@for_each(
    "logits, matching, message",
    [
        (torch.zeros(3), mcl.assign(torch.zeros(3, 1, 2), mcl.WTA()), r"have shape \[rows, hypotheses\]"),
        (torch.full((1, 2), torch.nan), mcl.assign(torch.zeros(1, 1, 2), mcl.WTA()), "be finite, got nan"),
        (None, mcl.assign(torch.zeros(1, 1, 2), mcl.WTA()), "have score logits"),
        (torch.zeros(0, 2), mcl.assign(torch.zeros(0, 1, 2), mcl.WTA()), "at least one valid target"),
        (torch.zeros(1, 2), mcl.assign(torch.zeros(1, 1, 3), mcl.WTA()), "have a cost of shape"),
    ],
)
def test_bad_input_is_refused(logits, matching, message):
    with pytest.raises(ValueError, match=message):
        calibrate_scores(mcl.Predictions(torch.zeros(1, 2, 1), logits), matching, scores=mcl.SoftmaxScores())
