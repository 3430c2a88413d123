"""Metrics against plain loops."""

import math

import numpy as np
import pytest
import torch

import oracles
import torchmcl as mcl
from families import ALL_RULES
from grids import for_each
from problems import matching_problem as make_problem
from problems import ragged_mask as make_mask
from problems import some_predictions as make_predictions
from torchmcl import metrics


def probabilities(answers):
    if answers.score_logits is None:
        return [[1 / 4] * 4 for _ in answers.hypotheses]
    return [oracles.normalized_scores(row) for row in answers.score_logits.tolist()]


def lists(*tensors):
    return [tensor.tolist() for tensor in tensors]


# ------------------------------------------------------------------ functions of a matching


@for_each("rule", ALL_RULES)
def test_metrics_of_a_matching_agree_with_their_oracles(rule):
    _, _, mask, matching = make_problem(rule=rule)
    cost, weights, reals = lists(matching.cost, matching.weights, mask)
    assert metrics.distortion(matching).item() == pytest.approx(oracles.distortion(cost, reals))
    assert metrics.soft_distortion(matching).item() == pytest.approx(oracles.soft_distortion(cost, weights, reals))
    assert metrics.hypothesis_usage(matching).tolist() == pytest.approx(oracles.hypothesis_usage(weights, reals))
    expected = [oracles.usage_entropy(w, r) for w, r in zip(weights, reals, strict=True)]
    assert metrics.usage_entropy(matching).tolist() == pytest.approx(expected)
    assert metrics.n_dead_hypotheses(matching).item() == oracles.n_dead_hypotheses(cost, reals)


def test_distortion_is_the_same_under_every_rule_and_bounds_the_soft_one():
    cost = torch.rand(6, 3, 4, dtype=torch.float64)
    hard = mcl.assign(cost, mcl.WTA(), make_mask())
    torch.testing.assert_close(metrics.distortion(hard), metrics.soft_distortion(hard))
    for rule in ALL_RULES:
        matching = mcl.assign(cost, rule, make_mask())
        torch.testing.assert_close(metrics.distortion(matching), metrics.distortion(hard))
        assert metrics.soft_distortion(matching) >= metrics.distortion(hard) - 1e-12


def test_distortions_of_models_are_kept_apart():
    cost, mask = torch.rand(2, 6, 3, 4, dtype=torch.float64), make_mask().expand(2, 6, 3)
    alone = torch.stack([metrics.distortion(mcl.assign(c, mcl.WTA(), m)) for c, m in zip(cost, mask, strict=True)])
    torch.testing.assert_close(metrics.distortion(mcl.assign(cost, mcl.WTA(), mask), model_axes=1), alone)


def test_usage_sums_to_one_and_entropy_lies_between_zero_and_log_n():
    for rule in ALL_RULES:
        matching = make_problem(rule=rule)[-1]
        assert metrics.hypothesis_usage(matching).sum().item() == pytest.approx(1)
        entropy = metrics.usage_entropy(matching)
        assert (entropy >= 0).all()
        assert (entropy <= math.log(4) + 1e-6).all()
    uniform = make_problem(rule=mcl.AnnealedWTA(math.inf))[-1]
    counted = uniform.mask.any(-1)
    torch.testing.assert_close(metrics.usage_entropy(uniform), math.log(4) * counted.double(), check_dtype=False)


def test_a_hypothesis_with_soft_weight_but_no_win_is_dead():
    cost = torch.tensor([[[1.0, 2.0, 3.0]], [[1.0, 0.0, 3.0]]])
    for rule in (mcl.WTA(), mcl.AnnealedWTA(100.0), mcl.RelaxedWTA(0.5)):
        assert metrics.n_dead_hypotheses(mcl.assign(cost, rule)).item() == 1


def test_a_win_of_a_padded_target_does_not_count():
    cost = torch.tensor([[[1.0, 2.0], [2.0, 1.0]]])
    mask = torch.tensor([[True, False]])
    assert metrics.n_dead_hypotheses(mcl.assign(cost, mcl.WTA(), mask)).item() == 1


@for_each("shape", [(3, 4), (2, 5, 3, 4)])
def test_leading_axes_are_free(shape):
    matching = mcl.assign(torch.rand(shape), mcl.AnnealedWTA(0.5))
    flat = mcl.assign(matching.cost.reshape(-1, 3, 4), mcl.AnnealedWTA(0.5))
    for metric in (metrics.distortion, metrics.soft_distortion, metrics.hypothesis_usage, metrics.n_dead_hypotheses):
        torch.testing.assert_close(metric(matching), metric(flat))
    assert metrics.usage_entropy(matching).shape == shape[:-2]


def test_without_real_targets_means_are_nan_and_entropy_is_zero():
    answers, targets, _, matching = make_problem()
    nobody = torch.zeros(6, 3, dtype=torch.bool)
    empty = mcl.assign(matching.cost, mcl.WTA(), nobody)
    assert metrics.distortion(empty).isnan()
    assert metrics.soft_distortion(empty).isnan()
    assert metrics.hypothesis_usage(empty).isnan().all()
    assert metrics.n_dead_hypotheses(empty).item() == 4
    assert metrics.score_calibration_error(answers, empty).isnan()
    assert torch.equal(metrics.usage_entropy(empty), torch.zeros(6, dtype=torch.float64))
    for metric in (metrics.rmse_of_mean, metrics.oracle_rmse, metrics.energy_score, metrics.wasserstein_to_samples):
        assert metric(answers, targets, nobody).isnan()


# ------------------------------------------------------------------ functions of predictions


@for_each("scores", [True, False])
@for_each("dim", [1, 2, 40])
def test_metrics_of_predictions_agree_with_their_oracles(scores, dim):
    answers, targets, mask, _ = make_problem(dim=dim, scores=scores)
    for m in (None, mask):
        full = torch.ones(6, 3, dtype=torch.bool) if m is None else m
        hypotheses, truths, reals = lists(answers.hypotheses, targets, full)
        chances = probabilities(answers)
        assert metrics.rmse_of_mean(answers, targets, m).item() == pytest.approx(
            oracles.rmse_of_mean(hypotheses, chances, truths, reals)
        )
        assert metrics.oracle_rmse(answers, targets, m).item() == pytest.approx(
            oracles.oracle_rmse(hypotheses, truths, reals)
        )
        assert metrics.energy_score(answers, targets, m).item() == pytest.approx(
            oracles.energy_score(hypotheses, chances, truths, reals), rel=1e-6
        )


OF_PREDICTIONS = [metrics.rmse_of_mean, metrics.oracle_rmse, metrics.energy_score, metrics.wasserstein_to_samples]


@for_each("metric", OF_PREDICTIONS)
@for_each("scores", [True, False])
@for_each("sizes", [(6, 4, 5, 2), (3, 3, 3, 3), (4, 4, 4, 1)])  # equal sizes broadcast
def test_a_path_is_one_point(metric, sizes, scores):
    logits = torch.randn(sizes[:2]) if scores else None
    paths, targets = torch.randn(sizes), torch.randn(sizes[0], 1, *sizes[2:])
    expected = metric(mcl.Predictions(paths.flatten(2), logits), targets.flatten(2))
    torch.testing.assert_close(metric(mcl.Predictions(paths, logits), targets), expected)
    torch.testing.assert_close(metric(mcl.Predictions(paths, logits), targets.squeeze(1)), expected)


@for_each("metric", OF_PREDICTIONS)
@for_each("n_hypotheses", [4, 6])
def test_a_single_target_of_each_sample_may_lack_its_axis(metric, n_hypotheses):
    answers, targets = mcl.Predictions(torch.randn(6, n_hypotheses, 2)), torch.randn(6, 2)
    mask = torch.rand(6) > 0.3
    expected = metric(answers, targets.unsqueeze(1), mask.unsqueeze(1))
    torch.testing.assert_close(metric(answers, targets, mask), expected)
    with pytest.raises(ValueError, match="`targets` must have shape"):
        metric(answers, targets[:5])


@for_each("metric", [metrics.rmse_of_mean, metrics.energy_score, metrics.wasserstein_to_samples])
def test_scores_are_read_as_they_were_trained(metric):
    hypotheses, targets, chances = torch.randn(6, 4, 2), torch.randn(6, 3, 2), torch.rand(6, 4).softmax(dim=-1)
    expected = metric(mcl.Predictions(hypotheses, chances.logit()), targets)
    by_softmax = mcl.Predictions(hypotheses, chances.log() + 7)
    torch.testing.assert_close(metric(by_softmax, targets, scores=mcl.SoftmaxScores()), expected)
    shells = {"rmse_of_mean": "RMSEOfMean", "energy_score": "EnergyScore"}
    shell = getattr(metrics, shells.get(metric.__name__, "WassersteinToSamples"))(scores=mcl.SoftmaxScores())
    torch.testing.assert_close(shell(by_softmax, targets), expected)
    with pytest.raises(TypeError, match="`scores` must be a ScoreObjective"):
        metric(by_softmax, targets, scores="softmax")


@for_each("metric", OF_PREDICTIONS[:3])
def test_masked_steps_count_in_no_metric(metric):
    hypotheses, targets, logits = torch.randn(5, 4, 6, 2), torch.randn(5, 3, 6, 2), torch.randn(5, 4)
    steps = torch.rand(5, 3, 6) > 0.4
    steps[0, 0] = False  # a target without a real step
    values = [
        metric(mcl.Predictions(hypotheses[i : i + 1, :, m], logits[i : i + 1]), targets[i : i + 1, j : j + 1, m])
        for i in range(5)
        for j in range(3)
        if (m := steps[i, j]).any()
    ]
    rooted = metric is not metrics.energy_score
    expected = torch.stack(values).square().mean().sqrt() if rooted else torch.stack(values).mean()
    padded = targets.masked_fill(~steps.unsqueeze(-1), math.nan)
    torch.testing.assert_close(metric(mcl.Predictions(hypotheses, logits), padded, steps), expected)
    alone = metric(mcl.Predictions(hypotheses, logits), padded[:, 1], steps[:, 1])
    torch.testing.assert_close(alone, metric(mcl.Predictions(hypotheses, logits), padded[:, 1:2], steps[:, 1:2]))


@for_each("n_bins", [1, 3, 10])
def test_calibration_agrees_with_the_oracle(n_bins):
    answers, _, mask, matching = make_problem(n_samples=30)
    expected = oracles.score_calibration_error(
        answers.score_logits.sigmoid().tolist(), *lists(matching.cost, mask), n_bins
    )
    assert metrics.score_calibration_error(answers, matching, n_bins).item() == pytest.approx(expected)


def test_calibrated_scores_have_no_calibration_error():
    cost = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]).unsqueeze(1)
    logits = torch.logit(torch.tensor([0.75, 0.25])).expand(4, 2)
    answers = mcl.Predictions(torch.zeros(4, 2, 1), logits)
    assert metrics.score_calibration_error(answers, mcl.assign(cost, mcl.WTA())).item() == pytest.approx(0, abs=1e-6)
    sure = mcl.Predictions(torch.zeros(4, 2, 1), torch.tensor([100.0, -100.0]).expand(4, 2))
    assert metrics.score_calibration_error(sure, mcl.assign(cost, mcl.WTA())).item() == pytest.approx(0.25)


@for_each("order", [1, 2])
@for_each("scores", [True, False])
def test_wasserstein_in_one_dimension_matches_quantiles(order, scores):
    answers, samples, mask, _ = make_problem(dim=1, scores=scores)
    values = [
        oracles.wasserstein_1d(
            [h[0] for h in points], chances, [y[0] for y, r in zip(truths, reals, strict=True) if r], order
        )
        for points, chances, truths, reals in zip(
            answers.hypotheses.tolist(), probabilities(answers), samples.tolist(), mask.tolist(), strict=True
        )
        if any(reals)
    ]
    expected = sum(values) / len(values)
    assert metrics.wasserstein_to_samples(answers, samples, mask, order=order).item() == pytest.approx(
        expected, rel=1e-5
    )


@pytest.mark.slow
@for_each("order", [1, 2])
def test_wasserstein_agrees_with_pot(order):
    ot = pytest.importorskip("ot")
    answers, samples, _, _ = make_problem(dim=3)
    values = [
        ot.emd2(np.full(3, 1 / 3), np.array(chances) / sum(chances), torch.cdist(y, h).numpy() ** order) ** (1 / order)
        for h, y, chances in zip(answers.hypotheses, samples, probabilities(answers), strict=True)
    ]
    assert metrics.wasserstein_to_samples(answers, samples, order=order).item() == pytest.approx(
        np.mean(values), rel=1e-6
    )


def test_the_energy_score_of_one_hypothesis_is_its_distance():
    answers = mcl.Predictions(torch.zeros(1, 1, 2), torch.zeros(1, 1))
    assert metrics.energy_score(answers, torch.tensor([[[3.0, 4.0]]])).item() == pytest.approx(5)


@for_each("metric", [metrics.rmse_of_mean, metrics.oracle_rmse, metrics.energy_score, metrics.wasserstein_to_samples])
def test_targets_shared_by_all_samples_broadcast(metric):
    answers, targets = make_predictions(), torch.randn(1, 3, 2, dtype=torch.float64)
    mask = torch.tensor([[True, False, True]])
    expected = metric(answers, targets.expand(6, 3, 2), mask.expand(6, 3))
    torch.testing.assert_close(metric(answers, targets, mask), expected)


@for_each("metric", [metrics.rmse_of_mean, metrics.oracle_rmse, metrics.energy_score])
def test_padded_targets_do_not_change_a_metric(metric):
    answers, targets, mask, _ = make_problem()
    padded = targets.masked_fill(~mask.unsqueeze(-1), math.nan)
    before = padded.clone()
    torch.testing.assert_close(metric(answers, padded, mask), metric(answers, targets, mask))
    torch.testing.assert_close(padded, before, equal_nan=True)


def test_padded_samples_do_not_change_the_wasserstein_distance():
    answers, samples, mask, _ = make_problem()
    padded = samples.masked_fill(~mask.unsqueeze(-1), 1e6)
    torch.testing.assert_close(
        metrics.wasserstein_to_samples(answers, padded, mask), metrics.wasserstein_to_samples(answers, samples, mask)
    )


@for_each("dtype", [torch.bfloat16, torch.float16])
def test_metrics_take_half_precision_predictions(dtype):
    answers, targets, mask, _ = make_problem()
    half = mcl.Predictions(answers.hypotheses.to(dtype), answers.score_logits.to(dtype))
    wide = mcl.Predictions(half.hypotheses.float(), half.score_logits.float())
    targets = targets.float()
    matching = mcl.assign(mcl.pairwise_sq_euclidean(hypotheses=half.hypotheses, targets=targets), mcl.WTA(), mask)
    for metric in (metrics.rmse_of_mean, metrics.oracle_rmse, metrics.energy_score, metrics.wasserstein_to_samples):
        value = metric(half, targets, mask)
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, metric(wide, targets, mask), rtol=2e-2, atol=1e-3)
    torch.testing.assert_close(
        metrics.score_calibration_error(half, matching),
        metrics.score_calibration_error(wide, matching),
        rtol=0,
        atol=0.02,
    )
