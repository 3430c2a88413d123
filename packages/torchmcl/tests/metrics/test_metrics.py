"""Metrics of matchings and predictions against plain loops."""

import itertools
import math

import pytest
import torch

import oracles
import torchmcl as mcl
from families import ALL_RULES
from grids import for_each
from problems import matching_problem, ragged_mask, some_predictions
from torchmcl import metrics

ERRORS = [metrics.rmse_of_mean, metrics.oracle_rmse]
OF_PREDICTIONS = [*ERRORS, metrics.energy_score, metrics.crps, metrics.variogram_score]


def probabilities_of(predictions):
    if predictions.score_logits is None:
        return [[1 / 4] * 4 for _ in predictions.hypotheses]
    return [oracles.normalized_scores(row) for row in predictions.score_logits.tolist()]


# ------------------------------------------------------------------ functions of a matching


@for_each("rule", ALL_RULES)
def test_metrics_of_a_matching_agree_with_their_oracles(rule):
    _, _, mask, matching = matching_problem(rule=rule)
    cost, weights, reals = matching.cost.tolist(), matching.weights.tolist(), mask.tolist()
    assert metrics.distortion(matching).item() == pytest.approx(oracles.distortion(cost, reals))
    assert metrics.hypothesis_usage(matching).tolist() == pytest.approx(oracles.hypothesis_usage(weights, reals))
    entropies = [oracles.usage_entropy(w, r) for w, r in zip(weights, reals, strict=True) if any(r)]
    assert metrics.usage_entropy(matching).item() == pytest.approx(sum(entropies) / len(entropies))
    assert metrics.n_dead_hypotheses(matching).item() == oracles.n_dead_hypotheses(cost, reals)


def test_a_hypothesis_with_soft_weight_but_no_win_is_dead_and_padded_targets_do_not_win():
    cost = torch.tensor([[[1.0, 2.0, 3.0]], [[1.0, 0.0, 3.0]]])
    for rule in (mcl.WTA(), mcl.AnnealedWTA(100.0), mcl.RelaxedWTA(0.5)):
        assert metrics.n_dead_hypotheses(mcl.assign(cost, rule)).item() == 1
    padded = mcl.assign(torch.tensor([[[1.0, 2.0], [2.0, 1.0]]]), mcl.WTA(), torch.tensor([[True, False]]))
    assert metrics.n_dead_hypotheses(padded).item() == 1


def test_leading_axes_are_free():
    matching = mcl.assign(torch.rand(2, 5, 3, 4), mcl.AnnealedWTA(0.5))
    flat = mcl.assign(matching.cost.reshape(-1, 3, 4), mcl.AnnealedWTA(0.5))
    for metric in (metrics.distortion, metrics.hypothesis_usage, metrics.n_dead_hypotheses, metrics.usage_entropy):
        torch.testing.assert_close(metric(matching), metric(flat))


def test_without_real_targets_metrics_are_nan():
    predictions, targets, _, matching = matching_problem()
    nobody = torch.zeros(6, 3, dtype=torch.bool)
    empty = mcl.assign(matching.cost, mcl.WTA(), nobody)
    for metric in (metrics.distortion, metrics.usage_entropy, metrics.hypothesis_usage):
        assert metric(empty).isnan().all()
    assert metrics.n_dead_hypotheses(empty).item() == 4
    assert metrics.score_calibration_error(predictions, empty).isnan()
    for metric in OF_PREDICTIONS:
        assert metric(predictions, targets, nobody).isnan()


@for_each("n_bins", [1, 3, 10])
def test_calibration_agrees_with_the_oracle(n_bins):
    predictions, _, mask, matching = matching_problem(n_samples=30)
    scores = predictions.score_logits.sigmoid().tolist()
    expected = oracles.score_calibration_error(scores, matching.cost.tolist(), mask.tolist(), n_bins)
    assert metrics.score_calibration_error(predictions, matching, n_bins).item() == pytest.approx(expected)
    softmax = mcl.Predictions(predictions.hypotheses, mcl.SoftmaxScores().logits(predictions.score_logits.sigmoid()))
    error = metrics.score_calibration_error(softmax, matching, n_bins, scores=mcl.SoftmaxScores())
    scores = mcl.normalized_scores(predictions.score_logits).tolist()
    expected = oracles.score_calibration_error(scores, matching.cost.tolist(), mask.tolist(), n_bins)
    assert error.item() == pytest.approx(expected)


# ------------------------------------------------------------------ functions of predictions


@for_each("scores", [True, False])
@for_each("dim", [1, 2, 40])
def test_metrics_of_predictions_agree_with_their_oracles(scores, dim):
    predictions, targets, mask, _ = matching_problem(dim=dim, scores=scores)
    hypotheses, truths, chances = predictions.hypotheses.tolist(), targets.tolist(), probabilities_of(predictions)
    for m in (None, mask):
        reals = (torch.ones(6, 3, dtype=torch.bool) if m is None else m).tolist()
        assert metrics.rmse_of_mean(predictions, targets, m).item() == pytest.approx(
            oracles.rmse_of_mean(hypotheses, chances, truths, reals)
        )
        assert metrics.oracle_rmse(predictions, targets, m).item() == pytest.approx(
            oracles.oracle_rmse(hypotheses, truths, reals)
        )
        assert metrics.energy_score(predictions, targets, m).item() == pytest.approx(
            oracles.energy_score(hypotheses, chances, truths, reals), rel=1e-6
        )


def test_crps_and_variogram_agree_with_plain_loops_with_masks_of_steps():
    predictions = mcl.Predictions(torch.randn(3, 4, 5, 2, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64))
    targets, mask = torch.randn(3, 5, 2, dtype=torch.float64), torch.rand(3, 5) > 0.3
    scores, variograms = [], []
    for h, p, y, m in zip(predictions.hypotheses, probabilities_of(predictions), targets, mask, strict=True):
        real = [(s, c) for s in range(5) for c in range(2) if m[s]]
        each = []
        for s, c in real:
            near = sum(q * abs(h[k, s, c] - y[s, c]) for k, q in enumerate(p))
            apart = sum(p[i] * p[j] * abs(h[i, s, c] - h[j, s, c]) for i in range(4) for j in range(4))
            each.append(near - apart / 2)
        scores.append(sum(each) / len(each))
        squares = []
        for a, b in itertools.permutations(real, 2):
            expected = sum(q * abs(h[k][a] - h[k][b]) ** 0.5 for k, q in enumerate(p))
            squares.append((abs(y[a] - y[b]) ** 0.5 - expected) ** 2)
        variograms.append(sum(squares) / len(squares))
    given = predictions, targets.masked_fill(~mask.unsqueeze(-1), torch.nan), mask
    torch.testing.assert_close(metrics.crps(*given), sum(scores) / 3)
    torch.testing.assert_close(metrics.variogram_score(*given), sum(variograms) / 3)


@for_each("metric", OF_PREDICTIONS)
@for_each("scores", [True, False])
@for_each("sizes", [(6, 4, 5, 2), (3, 3, 3, 3)])  # equal sizes broadcast
def test_a_path_is_one_point_and_a_single_target_may_lack_its_axis(metric, sizes, scores):
    logits = torch.randn(sizes[:2]) if scores else None
    paths, targets = torch.randn(sizes), torch.randn(sizes[0], 1, *sizes[2:])
    mask = torch.rand(sizes[0]) > 0.3
    expected = metric(mcl.Predictions(paths.flatten(2), logits), targets.flatten(2), mask.unsqueeze(1))
    torch.testing.assert_close(metric(mcl.Predictions(paths, logits), targets, mask.unsqueeze(1)), expected)
    torch.testing.assert_close(metric(mcl.Predictions(paths, logits), targets.squeeze(1), mask), expected)


@for_each("metric", [metrics.rmse_of_mean, metrics.energy_score, metrics.crps])
def test_scores_are_read_as_they_were_trained(metric):
    hypotheses, targets, chances = torch.randn(6, 4, 2), torch.randn(6, 3, 2), torch.rand(6, 4).softmax(dim=-1)
    expected = metric(mcl.Predictions(hypotheses, chances.logit()), targets)
    by_softmax = mcl.Predictions(hypotheses, chances.log() + 7)
    torch.testing.assert_close(metric(by_softmax, targets, scores=mcl.SoftmaxScores()), expected)
    with pytest.raises(TypeError, match="`scores`"):
        metric(by_softmax, targets, scores="softmax")


@for_each("metric", OF_PREDICTIONS)
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
    expected = torch.stack(values).square().mean().sqrt() if metric in ERRORS else torch.stack(values).mean()
    padded = targets.masked_fill(~steps.unsqueeze(-1), math.nan)
    torch.testing.assert_close(metric(mcl.Predictions(hypotheses, logits), padded, steps), expected)


@for_each("metric", OF_PREDICTIONS)
def test_padded_targets_do_not_change_a_metric_and_targets_broadcast(metric):
    predictions, targets, mask, _ = matching_problem()
    padded = targets.masked_fill(~mask.unsqueeze(-1), math.nan)
    before = padded.clone()
    torch.testing.assert_close(metric(predictions, padded, mask), metric(predictions, targets, mask))
    torch.testing.assert_close(padded, before, equal_nan=True)
    one = targets[:1]
    torch.testing.assert_close(
        metric(predictions, one, mask[1:2]), metric(predictions, one.expand(6, 3, 2), mask[1:2].expand(6, 3))
    )


@for_each("metric", OF_PREDICTIONS)
def test_half_precision_is_computed_in_float32(metric):
    predictions, targets, mask, _ = matching_problem()
    half, targets = mcl.Predictions(*(part.half() for part in predictions)), targets.half()
    value = metric(half, targets, mask)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, metric(mcl.Predictions(*(part.float() for part in half)), targets.float(), mask))


# ------------------------------------------------------------------ masks and poses


def test_energy_distance_and_matched_dice_agree_with_plain_loops():
    logits, targets = torch.randn(2, 4, 3, 5), (torch.rand(2, 3, 3, 5) > 0.5).float()
    mask = torch.tensor([[True, True, True], [True, True, False]])
    predictions = mcl.Predictions(logits, torch.randn(2, 4))

    def iou(a, b):
        union = (a | b).sum()
        return 1.0 if union == 0 else float((a & b).sum() / union)

    distances, dices = [], []
    for h, p, y, m in zip(logits > 0, probabilities_of(predictions), targets > 0.5, mask, strict=True):
        y = y[m]
        cross = sum(q * (1 - iou(a, b)) for a, q in zip(h, p, strict=True) for b in y) / len(y)
        own = sum(p[i] * p[j] * (1 - iou(h[i], h[j])) for i in range(4) for j in range(4))
        distances.append(2 * cross - own - sum(1 - iou(a, b) for a in y for b in y) / len(y) ** 2)
        dice = [[float(2 * (a & b).sum() / (a.sum() + b.sum())) for a in h] for b in y]
        orders = itertools.permutations(range(4), len(y))
        dices += max(([dice[t][k] for t, k in enumerate(order)] for order in orders), key=sum)
    distance = metrics.generalized_energy_distance(predictions, targets, mask)
    assert distance.item() == pytest.approx(sum(distances) / 2, abs=1e-5)
    assert metrics.matched_dice(predictions, targets, mask).item() == pytest.approx(sum(dices) / len(dices), abs=1e-5)


def test_poses_are_compared_before_and_after_alignment():
    h, y, mask = torch.randn(3, 4, 6, 3).double(), torch.randn(3, 2, 6, 3).double(), torch.rand(3, 2, 6) > 0.2
    plain, aligned = [], []
    for b, t in itertools.product(range(3), range(2)):
        m = mask[b, t]
        plain.append(min((h[b, k][m] - y[b, t][m]).norm(dim=-1).mean() for k in range(4)))
        errors = []
        for k in range(4):
            left, right = h[b, k][m] - h[b, k][m].mean(0), y[b, t][m] - y[b, t][m].mean(0)
            u, s, v = torch.linalg.svd(left.T @ right)
            flip = torch.diag(torch.tensor([1.0, 1.0, float(torch.linalg.det(u @ v))], dtype=torch.float64))
            size = (s * flip.diagonal()).sum() / left.square().sum()
            errors.append((size * left @ u @ flip @ v - right).norm(dim=-1).mean())
        aligned.append(min(errors))
    predictions = mcl.Predictions(h)
    torch.testing.assert_close(metrics.mpjpe(predictions, y, mask), sum(plain) / 6)
    torch.testing.assert_close(metrics.pa_mpjpe(predictions, y, mask), sum(aligned) / 6)
    pairs = [(h[b, i] - h[b, j]).norm() for b in range(3) for i, j in itertools.permutations(range(4), 2)]
    torch.testing.assert_close(metrics.average_pairwise_distance(predictions), sum(pairs) / len(pairs))


def test_coverage_counts_modes_within_the_radius():
    h, modes = torch.tensor([[[0.0], [4.0]]]), torch.tensor([[[0.2], [4.5], [9.0], [0.0]]])
    mask = torch.tensor([[True, True, True, False]])
    assert metrics.mode_coverage(mcl.Predictions(h), modes, mask, radius=0.4).item() == pytest.approx(1 / 3)


IMAGES = mcl.Predictions(torch.zeros(1, 2, 3, 3))


@for_each(
    "call, kind, message",
    [
        (lambda: metrics.variogram_score(some_predictions(), None), TypeError, "`targets`"),
        (lambda: metrics.mpjpe(IMAGES.hypotheses, torch.zeros(1, 3, 3)), TypeError, "`predictions`"),
        (lambda: metrics.mpjpe(IMAGES, torch.zeros(1, 4, 3)), ValueError, "`targets`"),
        (lambda: metrics.crps(some_predictions(), torch.zeros(5, 2).double()), ValueError, "`targets`"),
        (lambda: metrics.crps(some_predictions(), torch.zeros(6, 3, 2), ragged_mask(5)), ValueError, "`mask`"),
        (lambda: metrics.crps(some_predictions(), torch.zeros(6, 3, 2), 1.0), TypeError, "`mask`"),
        (lambda: metrics.mode_coverage(IMAGES, torch.zeros(1, 3, 3), radius=-1.0), ValueError, "`radius`"),
        (
            lambda: metrics.generalized_energy_distance(IMAGES, torch.zeros(1, 2, 3, 3), torch.ones(1, 2, 3, 3) > 0),
            ValueError,
            "`mask`",
        ),
    ],
)
def test_bad_input_is_refused(call, kind, message):
    with pytest.raises(kind, match=message):
        call()
