"""Metrics of densities, masks and poses against plain loops, and their classes against the functions."""

import itertools
import pickle

import pytest
import torch

import oracles
import torchmcl as mcl
from grids import for_each
from problems import ragged_mask, some_predictions
from torchmcl import metrics


def chances(answers):
    return [oracles.normalized_scores(row) for row in answers.score_logits.tolist()]


def test_crps_and_variogram_agree_with_plain_loops_with_masks_of_steps():
    torch.manual_seed(0)
    answers = mcl.Predictions(torch.randn(3, 4, 5, 2, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64))
    targets, mask = torch.randn(3, 5, 2, dtype=torch.float64), torch.rand(3, 5) > 0.3
    scores, variograms = [], []
    for h, p, y, m in zip(answers.hypotheses, chances(answers), targets, mask, strict=True):
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
    given = answers, targets.masked_fill(~mask.unsqueeze(-1), torch.nan), mask
    torch.testing.assert_close(metrics.crps(*given), sum(scores) / 3)
    torch.testing.assert_close(metrics.variogram_score(*given), sum(variograms) / 3)
    one = mcl.Predictions(answers.hypotheses[..., 0, :1], answers.score_logits)
    torch.testing.assert_close(metrics.crps(one, targets[:, 0, :1]), metrics.energy_score(one, targets[:, 0, :1]))


def test_energy_distance_and_matched_dice_agree_with_plain_loops():
    torch.manual_seed(0)
    logits, targets = torch.randn(2, 4, 3, 5), (torch.rand(2, 3, 3, 5) > 0.5).float()
    mask = torch.tensor([[True, True, True], [True, True, False]])
    answers = mcl.Predictions(logits, torch.randn(2, 4))

    def iou(a, b):
        union = (a | b).sum()
        return 1.0 if union == 0 else float((a & b).sum() / union)

    distances, dices = [], []
    for h, p, y, m in zip(logits > 0, chances(answers), targets > 0.5, mask, strict=True):
        y = y[m]
        cross = sum(q * (1 - iou(a, b)) for a, q in zip(h, p, strict=True) for b in y) / len(y)
        own = sum(p[i] * p[j] * (1 - iou(h[i], h[j])) for i in range(4) for j in range(4))
        distances.append(2 * cross - own - sum(1 - iou(a, b) for a in y for b in y) / len(y) ** 2)
        dice = [[float(2 * (a & b).sum() / (a.sum() + b.sum())) for a in h] for b in y]
        orders = itertools.permutations(range(4), len(y))
        dices += max(([dice[t][k] for t, k in enumerate(order)] for order in orders), key=sum)
    distance = metrics.generalized_energy_distance(answers, targets, mask)
    assert distance.item() == pytest.approx(sum(distances) / 2, abs=1e-5)
    assert metrics.matched_dice(answers, targets, mask).item() == pytest.approx(sum(dices) / len(dices), abs=1e-5)
    other = metrics.generalized_energy_distance(
        mcl.Predictions(logits.flatten(2)), targets.flatten(2), mask, cost_fn=mcl.pairwise_euclidean
    )
    assert other > 0


def test_poses_are_compared_before_and_after_alignment():
    torch.manual_seed(0)
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
    answers = mcl.Predictions(h)
    torch.testing.assert_close(metrics.mpjpe(answers, y, mask), sum(plain) / 6)
    torch.testing.assert_close(metrics.pa_mpjpe(answers, y, mask), sum(aligned) / 6)
    pairs = [(h[b, i] - h[b, j]).norm() for b in range(3) for i, j in itertools.permutations(range(4), 2)]
    torch.testing.assert_close(metrics.average_pairwise_distance(answers), sum(pairs) / len(pairs))


def test_coverage_counts_modes_within_the_radius_under_any_cost():
    h, modes = torch.tensor([[[0.0], [4.0]]]), torch.tensor([[[0.2], [4.5], [9.0], [0.0]]])
    mask = torch.tensor([[True, True, True, False]])
    assert metrics.mode_coverage(mcl.Predictions(h), modes, mask, radius=0.4).item() == pytest.approx(1 / 3)
    squared = metrics.mode_coverage(mcl.Predictions(h), modes, mask, radius=0.3, cost_fn=mcl.pairwise_sq_euclidean)
    assert squared.item() == pytest.approx(2 / 3)


def image_problem(n):
    return mcl.Predictions(torch.randn(n, 4, 3, 5), torch.randn(n, 4)), torch.rand(n, 3, 3, 5).round(), ragged_mask(n)


def vector_problem(n):
    return some_predictions(n), torch.randn(n, 3, 2, dtype=torch.float64), ragged_mask(n)


SHELLS = {
    "CRPS": ({"scores": mcl.SoftmaxScores()}, vector_problem, metrics.crps),
    "VariogramScore": ({"order": 1.0}, vector_problem, metrics.variogram_score),
    "GeneralizedEnergyDistance": ({}, image_problem, metrics.generalized_energy_distance),
    "MatchedDice": ({}, image_problem, metrics.matched_dice),
    "MPJPE": ({}, image_problem, metrics.mpjpe),
    "PAMPJPE": ({}, image_problem, metrics.pa_mpjpe),
    "ModeCoverage": ({"radius": 1.0}, vector_problem, metrics.mode_coverage),
}


@for_each("name", SHELLS)
def test_a_class_over_batches_equals_the_function_on_everything(name):
    torch.manual_seed(0)
    options, problem, function = SHELLS[name]
    answers, targets, mask = problem(9)
    answers.hypotheses.requires_grad_()
    metric = getattr(metrics, name)(**options)
    for rows in (slice(0, 1), slice(1, 5), slice(5, 9)):
        metric.update(mcl.Predictions(*(part[rows] for part in answers)), targets[rows], mask[rows])
    expected = function(answers, targets, mask, **options)
    torch.testing.assert_close(metric.compute().double(), expected.detach().double(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(pickle.loads(pickle.dumps(metric)).compute(), metric.compute())
    assert not metric.total.requires_grad


def test_the_class_of_diversity_needs_no_targets():
    answers = some_predictions(7)
    metric = metrics.AveragePairwiseDistance()
    for rows in (slice(0, 3), slice(3, 7)):
        metric.update(mcl.Predictions(answers.hypotheses[rows]))
    torch.testing.assert_close(metric.compute().double(), metrics.average_pairwise_distance(answers))


@for_each(
    "call, words",
    [
        (lambda: metrics.VariogramScore(order=0.0), "VariogramScore: `order` must be > 0, got 0.0"),
        (lambda: metrics.ModeCoverage(radius=-1.0), "ModeCoverage: `radius` must be > 0, got -1.0"),
        (
            lambda: metrics.generalized_energy_distance(
                mcl.Predictions(torch.zeros(1, 2, 3, 3)), torch.zeros(1, 2, 3, 3), torch.ones(1, 2, 3, 3) > 0
            ),
            r"generalized_energy_distance: `mask` must have shape \[..., targets\]",
        ),
        (
            lambda: metrics.mpjpe(mcl.Predictions(torch.zeros(1, 2, 3, 3)), torch.zeros(1, 4, 3)),
            "mpjpe: `targets` must",
        ),
    ],
)
def test_bad_input_is_refused_in_words(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_predictions_must_be_predictions():
    for function in (metrics.mpjpe, metrics.matched_dice):
        with pytest.raises(TypeError, match="`predictions` must be Predictions, got Tensor"):
            function(torch.zeros(1, 2, 3, 3), torch.zeros(1, 3, 3))
    with pytest.raises(TypeError, match="`predictions` must be Predictions, got Tensor"):
        metrics.average_pairwise_distance(torch.zeros(1, 2, 3))
