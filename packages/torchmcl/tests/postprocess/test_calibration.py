"""Calibrated scores: known answers, scikit-learn's isotonic regression, masks, and files."""

import pickle

import numpy as np
import pytest
import torch

import torchmcl as mcl
from torchmcl.postprocess import (
    IsotonicScaling,
    TemperatureScaling,
    VectorScaling,
    calibrate_scores,
)
from torchmcl.postprocess.calibration import isotonic

METHODS = [TemperatureScaling(), VectorScaling(), IsotonicScaling()]


def overconfident(n=20_000, k=5, factor=3.0, seed=0):
    """Return logits that are `factor` times too large, and winners."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, k, generator=generator, dtype=torch.float64)
    winners = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1)
    return factor * logits, winners


def test_the_temperature_is_what_the_logits_were_multiplied_by():
    logits, winners = overconfident()
    fitted = calibrate_scores(logits, winners, scores=mcl.SoftmaxScores())
    assert fitted.score_map.temperature == pytest.approx(3.0, abs=0.1)


def test_no_other_temperature_has_a_lower_loss():
    logits, winners = overconfident(500)
    fitted = calibrate_scores(logits, winners, scores=mcl.SoftmaxScores()).score_map.temperature

    def loss(temperature):
        return torch.nn.functional.cross_entropy(logits / temperature, winners).item()

    assert loss(fitted) < min(loss(fitted * 1.001), loss(fitted / 1.001))


@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize("scores", [mcl.SoftmaxScores(), mcl.SigmoidScores()])
def test_the_error_on_fresh_rows_is_at_least_halved(method, scores):
    fit, fresh = overconfident(), overconfident(seed=1)
    if scores == mcl.SigmoidScores():
        fit, fresh = ((logits.softmax(-1).logit(eps=1e-9), winners) for logits, winners in (fit, fresh))
    fitted = calibrate_scores(*fit, method=method, scores=scores)
    assert fitted.error_after < fitted.error_before / 2
    calibrated = fitted(mcl.Predictions(torch.zeros(len(fresh[0]), 5, 1), fresh[0]))
    again = calibrate_scores(calibrated, fresh[1], scores=scores)
    assert again.error_before < fitted.error_before / 2
    torch.testing.assert_close(scores.probabilities(calibrated.score_logits).sum(-1), torch.ones(20_000).double())


def test_the_error_is_that_of_ten_groups_of_equally_many_scores():
    logits, winners = overconfident(300, factor=1.5)
    fitted = calibrate_scores(logits, winners, scores=mcl.SoftmaxScores())
    scores, wins = logits.softmax(-1).numpy().ravel(), np.eye(5)[winners].ravel()
    groups = np.array_split(np.argsort(scores), 10)
    expected = sum(abs(scores[group].sum() - wins[group].sum()) for group in groups) / len(scores)
    assert fitted.error_before == pytest.approx(expected, rel=0.02)  # a score at the border of two groups


def test_the_error_of_many_hypotheses_sees_scores_that_are_too_sure():
    logits, winners = overconfident(4000, k=60)
    fitted = calibrate_scores(logits, winners, scores=mcl.SoftmaxScores())
    assert fitted.error_after < fitted.error_before / 5


def test_vector_scaling_finds_an_offset_and_survives_a_hypothesis_that_never_wins():
    logits, winners = overconfident(5000, factor=1.0)
    shift = torch.tensor([1.0, -1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    fitted = calibrate_scores(logits + shift, winners, method=VectorScaling(), scores=mcl.SoftmaxScores())
    offsets = fitted.score_map.offsets - fitted.score_map.offsets.mean()
    torch.testing.assert_close(offsets, -shift, atol=0.25, rtol=0)
    never = calibrate_scores(logits, winners.clamp_max(3), method=VectorScaling())
    assert never.score_map.offsets.isfinite().all()


@pytest.mark.parametrize("seed", range(3))
def test_pooled_violators_are_those_of_scikit_learn(seed):
    regression = pytest.importorskip("sklearn.isotonic")
    rng = np.random.default_rng(seed)
    x, y, w = np.sort(rng.random(200)), rng.random(200), rng.random(200) + 0.1
    knots, values = isotonic(x, y, w)
    expected = regression.IsotonicRegression().fit(x, y, sample_weight=w).predict(x)
    np.testing.assert_allclose(np.interp(x, knots, values), expected, atol=1e-12)


def test_padded_targets_and_rows_of_weight_0_do_not_count():
    logits, winners = overconfident(400)
    places = torch.stack([winners, torch.full_like(winners, 99)], dim=1)
    mask = torch.tensor([True, False]).expand(400, 2)
    alone = calibrate_scores(logits, winners).score_map
    assert calibrate_scores(logits, places, mask=mask).score_map == alone
    twice = calibrate_scores(logits, torch.stack([winners, winners], dim=1))
    assert twice.score_map.temperature == pytest.approx(alone.temperature)
    assert twice.n_targets == 800
    weights = (torch.arange(400) < 200).double()
    half = calibrate_scores(logits[:200], winners[:200]).score_map
    assert calibrate_scores(logits, winners, sample_weights=weights).score_map.temperature == pytest.approx(
        half.temperature
    )


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_what_was_fitted_can_be_pickled(method):
    logits, winners = overconfident(300)
    fitted = calibrate_scores(logits, winners, method=method, scores=mcl.SoftmaxScores())
    given = mcl.Predictions(torch.zeros(300, 5, 1), logits)
    other = pickle.loads(pickle.dumps(fitted))
    assert torch.equal(other(given).score_logits, fitted(given).score_logits)
    assert str(other) == str(fitted)
    with pytest.raises(AttributeError):
        fitted.n_targets = 3


def test_arrays_are_welcome_and_constant_scores_stay_constant():
    fitted = calibrate_scores(np.zeros((50, 3)), np.arange(50) % 3, method=IsotonicScaling())
    probabilities = fitted(mcl.Predictions(torch.zeros(1, 3, 1), torch.zeros(1, 3))).score_logits.sigmoid()
    torch.testing.assert_close(probabilities, torch.full((1, 3), 1 / 3))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((torch.zeros(3, 2), torch.tensor([0, 1, 2])), ValueError, "places from 0 to 1 .* got 2"),
        ((torch.zeros(3, 2), torch.tensor([0, 1])), ValueError, r"`winners` must have shape \[3\]"),
        ((torch.zeros(3, 2), torch.zeros(3)), TypeError, "be a Matching or integers"),
        ((torch.zeros(3), torch.tensor([0, 1, 1])), ValueError, r"have shape \[rows, hypotheses\]"),
        ((torch.full((1, 2), torch.nan), torch.tensor([0])), ValueError, "be finite, got nan"),
        ((mcl.Predictions(torch.zeros(1, 2, 1)), torch.tensor([0])), ValueError, "have score logits"),
        ((torch.zeros(0, 2), torch.zeros(0).long()), ValueError, "at least one real target"),
        ((torch.zeros(1, 2), mcl.assign(torch.zeros(1, 1, 3), mcl.WTA())), ValueError, "have a cost of shape"),
    ],
)
def test_bad_input_is_named(arguments, error, message):
    with pytest.raises(error, match=message):
        calibrate_scores(*arguments)


def test_a_calibration_refuses_another_number_of_hypotheses():
    fitted = calibrate_scores(*overconfident(100), method=VectorScaling())
    with pytest.raises(ValueError, match="have 5 hypotheses, as those it was fitted on"):
        fitted(mcl.Predictions(torch.zeros(1, 2, 1), torch.zeros(1, 2)))


@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_scores_are_calibrated_in_every_mode_of_evaluation(method, mode):
    logits, winners = overconfident(100)
    expected = calibrate_scores(logits, winners, method=method)
    with mode():
        found = calibrate_scores(logits.clone(), winners.clone(), method=method)
        assert torch.equal(found.score_map(logits), expected.score_map(logits))
