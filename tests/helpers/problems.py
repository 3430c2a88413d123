"""Small problems that several test files share."""

import math

import torch

import torchmcl as mcl


def make_cost(*leading, n_targets=3, n_hypotheses=4, dtype=torch.float32):
    return torch.rand(*leading, n_targets, n_hypotheses, dtype=dtype)


def make_mask(*leading, n_targets=3):
    """Full, partly padded and empty samples in turn."""
    n_samples = math.prod(leading)
    n_real = torch.arange(n_samples).reshape(*leading, 1) % (n_targets + 1)
    return torch.arange(n_targets).flip(0) < n_real


def some_predictions(n_samples=6, dim=2, scores=True):
    hypotheses = torch.randn(n_samples, 4, dim, dtype=torch.float64)
    return mcl.Predictions(hypotheses, torch.randn(n_samples, 4, dtype=torch.float64) if scores else None)


def ragged_mask(n_samples=6):
    return torch.arange(3) < (torch.arange(n_samples) % 4).unsqueeze(-1)


def matching_problem(n_samples=6, dim=2, scores=True, rule=None):
    answers = some_predictions(n_samples, dim, scores)
    targets, mask = torch.randn(n_samples, 3, dim, dtype=torch.float64), ragged_mask(n_samples)
    cost = mcl.pairwise_sq_euclidean(hypotheses=answers.hypotheses, targets=targets)
    return answers, targets, mask, mcl.assign(cost, rule or mcl.AnnealedWTA(0.5), mask)


def three_branches(n_rows, probabilities=(1, 1, 1), seed=0):
    """One target per input, on one of three lines through (-1.2, 0) with noise: the lowest distortion is 0.03^2."""
    generator = torch.Generator().manual_seed(seed)
    inputs = 2 * torch.rand(n_rows, 1, generator=generator) - 1
    branches = torch.multinomial(torch.tensor(probabilities, dtype=torch.float), n_rows, True, generator=generator) - 1
    targets = branches.unsqueeze(-1) * (1.2 + inputs) + 0.03 * torch.randn(n_rows, 1, generator=generator)
    return mcl.Batch(inputs, targets.unsqueeze(1))


def score_labels(cost, mask=None, rule=None):
    """Return the labels of scores by a rule, winner-takes-all by default."""
    return mcl.SigmoidScores(rule or mcl.WTA()).labels(cost, cost, mask)
