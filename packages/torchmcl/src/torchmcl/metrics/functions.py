"""Metrics of a matching and of predictions. Without a valid target they are NaN."""

import torch
from torch import Tensor

from torchmcl.checks import check_positive, check_positive_int
from torchmcl.costs import pairwise_ade, pairwise_dice, pairwise_euclidean, pairwise_iou, pairwise_sq_euclidean
from torchmcl.errors import bad_value
from torchmcl.metrics.inputs import Sums, events, masked_sums, metric
from torchmcl.rules.transport import PIT
from torchmcl.rules.winners import WTA
from torchmcl.scoring import ScoreObjective, check_score_objective
from torchmcl.types import Distributions, Matching, Predictions, check_predictions

__all__ = [
    "average_pairwise_distance",
    "crps",
    "distortion",
    "energy_score",
    "generalized_energy_distance",
    "hypothesis_usage",
    "matched_dice",
    "mode_coverage",
    "mpjpe",
    "n_dead_hypotheses",
    "oracle_rmse",
    "pa_mpjpe",
    "rmse_of_mean",
    "score_calibration_error",
    "usage_entropy",
    "variogram_score",
]

# Makes two empty masks equal; relative to areas, which are pixel counts, it is negligible.
_EMPTY = 1e-6


@metric()
def distortion(matching: Matching) -> Sums:
    """Mean cost of the cheapest hypothesis over all valid targets, independent of the weights.

    Args:
        matching: Result of `assign`.

    Example:
        >>> import torch, torchmcl as mcl
        >>> distortion(mcl.assign(torch.tensor([[1.0, 2.0], [4.0, 3.0]]), mcl.AnnealedWTA(9.0)))
        tensor(2.)

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, Equation (1).
    """
    return masked_sums(matching.cost.amin(dim=-1), matching.mask)


@metric()
def hypothesis_usage(matching: Matching) -> Sums:
    """Fraction of the total weight that each hypothesis has, [hypotheses], summing to 1.

    Args:
        matching: Result of `assign`.

    Example:
        >>> import torch, torchmcl as mcl
        >>> hypothesis_usage(mcl.assign(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), mcl.WTA()))
        tensor([1., 0.])
    """
    return Sums(matching.weights.flatten(0, -2).sum(dim=0), matching.mask.sum())


@metric()
def usage_entropy(matching: Matching) -> Sums:
    """Mean entropy of hypothesis usage within each sample, in nats.

    Args:
        matching: Result of `assign`.

    Example:
        >>> import torch, torchmcl as mcl
        >>> usage_entropy(mcl.assign(torch.tensor([[[1.0, 2.0], [4.0, 3.0]]]), mcl.WTA()))
        tensor(0.6931)

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, H(q) above Equation (8),
        for weights averaged over the targets of a sample. `torchmcl.theory.assignment_entropy` is the mean entropy of
        the weights of a target; the difference of the two is the mutual information.
    """
    n_real = matching.mask.sum(dim=-1, keepdim=True).clamp_min(1)
    usage = matching.weights.sum(dim=-2) / n_real
    return masked_sums(torch.special.entr(usage).sum(dim=-1), matching.mask.any(dim=-1))


def _n_without_wins(wins: Sums) -> Tensor:
    return (wins.total == 0).sum()


@metric(_n_without_wins)
def n_dead_hypotheses(matching: Matching) -> Sums:
    """Number of hypotheses that are not the cheapest for any valid target.

    Args:
        matching: Result of `assign`.

    Example:
        >>> import torch, torchmcl as mcl
        >>> n_dead_hypotheses(mcl.assign(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), mcl.AnnealedWTA(1.0)))
        tensor(1)
    """
    return Sums(WTA()(matching.cost, matching.mask).flatten(0, -2).sum(dim=0), matching.mask.sum())


def _calibration_error(bins: Sums) -> Tensor:
    n, score_sum, n_wins = bins.total.unbind(dim=-1)
    return (score_sum - n_wins).abs().sum() / n.sum()


@metric(_calibration_error)
def score_calibration_error(
    predictions: Predictions, matching: Matching, n_bins: int = 10, *, scores: ScoreObjective | None = None
) -> Sums:
    """Mean difference between scores and the frequency of winning, over bins of the score.

    Args:
        predictions: Predictions with score logits, [..., hypotheses].
        matching: Matching of the same predictions; the winner is the cheapest hypothesis.
        n_bins: Number of equal bins of [0, 1].
        scores: Objective that the scores were trained with; the sigmoids of the logits by default, without
            normalization.

    Raises:
        ValueError: If the predictions have no scores.

    Example:
        >>> import torch, torchmcl as mcl
        >>> predictions = mcl.Predictions(torch.zeros(1, 2, 1), score_logits=torch.tensor([[0.0, 0.0]]))
        >>> score_calibration_error(predictions, mcl.assign(torch.tensor([[[1.0, 2.0]]]), mcl.WTA()))
        tensor(0.)
    """
    owner = "score_calibration_error"
    check_positive_int(owner, "n_bins", n_bins)
    if predictions.score_logits is None:
        raise ValueError(bad_value(owner, "predictions", "have score logits", "none", "Use scores=True."))
    if scores is not None:
        check_score_objective(owner, scores)
    logits = predictions.score_logits.detach()
    probabilities = logits.sigmoid() if scores is None else scores.probabilities(logits)
    probabilities = probabilities.unsqueeze(-2).expand_as(matching.weights)
    wins = WTA()(matching.cost, matching.mask)
    counts = matching.mask.unsqueeze(-1).expand_as(wins).to(wins.dtype)
    rows = torch.stack([counts, counts * probabilities, wins], dim=-1).reshape(-1, 3)
    bins = (probabilities * n_bins).long().clamp(0, n_bins - 1).reshape(-1)
    return Sums(rows.new_zeros(n_bins, 3).index_add(0, bins, rows), matching.mask.sum())


@metric(Sums.root_mean)
def rmse_of_mean(
    predictions: Predictions, targets: Tensor, mask: Tensor | None = None, *, scores: ScoreObjective | None = None
) -> Sums:
    """Root mean squared error of the conditional mean, sum_k score_k f_k(x).

    A sequence, [..., hypotheses, steps, dim], counts as one point: its squared error is the sum over its steps.

    Args:
        predictions: Hypotheses [..., hypotheses, dim] and score logits; without scores all have the same weight.
        targets: Targets, [..., targets, dim], or [..., dim] for a single target of each sample.
        mask: Valid targets, [..., targets], or valid steps, [..., targets, steps]; None if all are valid.
        scores: Objective that the scores were trained with; `SigmoidScores()` by default.

    Example:
        >>> import torch
        >>> predictions = Predictions(torch.tensor([[[0.0], [2.0]]]))
        >>> rmse_of_mean(predictions, torch.tensor([[[3.0]]]))
        tensor(2.)

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, the RMSE of the UCI
        study, with normalized scores.
    """
    given = events("rmse_of_mean", predictions, targets, mask, scores)
    hypotheses, vectors, probabilities, _ = given.vectors()
    mean = (probabilities.unsqueeze(-1) * hypotheses).sum(dim=-2, keepdim=True)
    return masked_sums((vectors - mean).square().sum(dim=-1).reshape(given.real.shape), given.real)


@metric(Sums.root_mean)
def oracle_rmse(predictions: Predictions, targets: Tensor, mask: Tensor | None = None) -> Sums:
    """Root mean squared error of the best hypothesis of each target.

    Args:
        predictions: Hypotheses, [..., hypotheses, dim], or sequences, compared over all steps together.
        targets: Targets, [..., targets, dim], or [..., dim] for a single target of each sample.
        mask: Valid targets, [..., targets], or valid steps, [..., targets, steps]; None if all are valid.

    Example:
        >>> import torch
        >>> oracle_rmse(Predictions(torch.tensor([[[0.0], [2.0]]])), torch.tensor([[[3.0]]]))
        tensor(1.)
    """
    given = events("oracle_rmse", predictions, targets, mask)
    hypotheses, vectors, _, _ = given.vectors()
    cost = pairwise_sq_euclidean(hypotheses=hypotheses, targets=vectors)
    return masked_sums(cost.amin(dim=-1).reshape(given.real.shape), given.real)


@metric()
def energy_score(
    predictions: Predictions, targets: Tensor, mask: Tensor | None = None, *, scores: ScoreObjective | None = None
) -> Sums:
    """Mean energy score of the hypotheses with their scores, a proper scoring rule; lower is better.

    It is E|X - y| - E|X - X'| / 2 for a target y and independent samples X, X' of the hypotheses with their normalized
    scores; in one dimension this is the CRPS.

    Args:
        predictions: Hypotheses [..., hypotheses, dim] and score logits; without scores all have the same weight.
            Distances of sequences are over all steps together.
        targets: Targets, [..., targets, dim], or [..., dim] for a single target of each sample.
        mask: Valid targets, [..., targets], or valid steps, [..., targets, steps]; None if all are valid.
        scores: Objective that the scores were trained with; `SigmoidScores()` by default.

    Example:
        >>> import torch
        >>> energy_score(Predictions(torch.tensor([[[0.0], [2.0]]])), torch.tensor([[[1.0]]]))
        tensor(0.5000)

    References:
        T. Gneiting, A. Raftery, *Strictly proper scoring rules, prediction, and estimation*, JASA 2007, Equation (22).
    """
    given = events("energy_score", predictions, targets, mask, scores)
    hypotheses, vectors, probabilities, _ = given.vectors()
    weights = probabilities.unsqueeze(-1)
    to_target = pairwise_euclidean(hypotheses=hypotheses, targets=vectors) @ weights
    spread = weights.mT @ (pairwise_euclidean(hypotheses=hypotheses, targets=hypotheses) @ weights)
    return masked_sums((to_target - spread / 2).reshape(given.real.shape), given.real)


@metric()
def crps(
    predictions: Predictions, targets: Tensor, mask: Tensor | None = None, *, scores: ScoreObjective | None = None
) -> Sums:
    """Continuous ranked probability score of the hypotheses with their scores, averaged over coordinates.

    It is E|X - y| - E|X - X'| / 2 for each coordinate, a proper scoring rule; lower is better. `energy_score` compares
    all coordinates together.

    Args:
        predictions: Hypotheses [..., hypotheses, dim] or sequences, and score logits; without scores all have the
            same weight.
        targets: Targets, [..., targets, dim], or [..., dim] for a single target of each sample.
        mask: Valid targets, [..., targets], or valid steps, [..., targets, steps]; None if all are valid.
        scores: Objective that the scores were trained with; `SigmoidScores()` by default.

    Example:
        >>> import torch
        >>> crps(Predictions(torch.tensor([[[0.0], [2.0]]])), torch.tensor([[[1.0]]]))
        tensor(0.5000)
    """
    given = events("crps", predictions, targets, mask, scores)
    hypotheses, vectors, weights, present = given.vectors()
    to_target = (hypotheses.unsqueeze(-3) - vectors.unsqueeze(-2)).abs()  # [..., targets, hypotheses, coordinates]
    to_target = torch.einsum("...tkc,...k->...tc", to_target, weights)
    # Half the mean distance of two samples is the integral of F (1 - F), a sum over the gaps between sorted values.
    ordered, order = hypotheses.sort(dim=-2)
    below = weights.unsqueeze(-1).expand_as(ordered).gather(-2, order).cumsum(dim=-2)[..., :-1, :]
    spread = (below * (1 - below) * ordered.diff(dim=-2)).sum(dim=-2, keepdim=True)
    means = (to_target - spread).sum(dim=-1) / present.sum(dim=-1).clamp_min(1)
    return masked_sums(means.reshape(given.real.shape), given.real)


@metric()
def variogram_score(
    predictions: Predictions,
    targets: Tensor,
    mask: Tensor | None = None,
    order: float = 0.5,
    *,
    scores: ScoreObjective | None = None,
) -> Sums:
    """Variogram score of the hypotheses with their scores, a comparison of the differences of coordinates.

    It is the mean over pairs of coordinates of (|y_i - y_j|^p - E|X_i - X_j|^p)^2 with order p. The score is sensitive
    to correlations that the energy score hardly detects; lower is better.

    Args:
        predictions: Hypotheses [..., hypotheses, dim] or sequences, and score logits; without scores all have the
            same weight.
        targets: Targets, [..., targets, dim], or [..., dim] for a single target of each sample.
        mask: Valid targets, [..., targets], or valid steps, [..., targets, steps]; None if all are valid.
        order: Power of the differences, > 0.
        scores: Objective that the scores were trained with; `SigmoidScores()` by default.

    Example:
        >>> import torch
        >>> variogram_score(Predictions(torch.tensor([[[0.0, 4.0]]])), torch.tensor([[[0.0, 1.0]]]))
        tensor(1.)

    References:
        M. Scheuerer, T. Hamill, *Variogram-based proper scoring rules for probabilistic forecasts of multivariate
        quantities*, Monthly Weather Review 2015, with equal weights.
    """
    check_positive("variogram_score", "order", order)
    given = events("variogram_score", predictions, targets, mask, scores)
    hypotheses, vectors, weights, present = given.vectors()

    def differences(values: Tensor) -> Tensor:
        return (values.unsqueeze(-1) - values.unsqueeze(-2)).abs() ** order

    expected = differences(hypotheses.select(-2, 0)) * weights[..., 0, None, None]
    for k in range(1, hypotheses.shape[-2]):  # one hypothesis at a time, because there are many pairs of coordinates
        expected = expected + differences(hypotheses.select(-2, k)) * weights[..., k, None, None]
    counted = present.to(expected.dtype)
    pairs = counted.unsqueeze(-1) * counted.unsqueeze(-2) - torch.diag_embed(counted)
    squares = (differences(vectors) - expected.unsqueeze(-3)).square() * pairs
    means = squares.sum(dim=(-2, -1)) / pairs.sum(dim=(-2, -1)).clamp_min(1)
    return masked_sums(means.reshape(given.real.shape), given.real)


@metric()
def generalized_energy_distance(
    predictions: Predictions,
    targets: Tensor,
    mask: Tensor | None = None,
    *,
    scores: ScoreObjective | None = None,
) -> Sums:
    """Squared generalized energy distance between the hypotheses S and all targets Y of a sample.

    It is 2 E d(S, Y) - E d(S, S') - E d(Y, Y'), with d = 1 - intersection over union of masks; lower is better.

    Args:
        predictions: Logits of masks, [..., hypotheses, height, width], and score logits; without scores all have the
            same weight.
        targets: Masks, [..., targets, height, width], of several annotators; above 0.5 is inside.
        mask: Valid targets, [..., targets]; None if all are valid.
        scores: Objective that the scores were trained with; `SigmoidScores()` by default.

    Example:
        >>> import torch
        >>> left, right = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
        >>> both = torch.stack([left, right]).unsqueeze(0)
        >>> generalized_energy_distance(Predictions(2 * both - 1), both)
        tensor(0.)

    References:
        S. Kohl et al., *A probabilistic U-Net for segmentation of ambiguous images*, NeurIPS 2018, arXiv:1806.05034,
        Equation (5).
    """
    owner = "generalized_energy_distance"
    given = events(owner, predictions, targets, mask, scores)
    if given.steps is not None:
        rule, advice = "have shape [..., targets]", "Cut the images to the pixels that count."
        raise ValueError(bad_value(owner, "mask", rule, tuple(given.steps.shape), advice))
    masks, truths = (given.hypotheses > 0).float(), (given.targets > 0.5).float()
    probabilities = given.probabilities.double()
    equal = given.real / given.real.sum(dim=-1, keepdim=True).clamp_min(1).double()

    def mean_distance(left: Tensor, left_weights: Tensor, right: Tensor, right_weights: Tensor) -> Tensor:
        n_axes = left.ndim - given.real.ndim
        distances = pairwise_iou(
            hypotheses=left - 0.5, targets=right, event_dims=n_axes, smooth=_EMPTY, hard=True
        ).double()
        return torch.einsum("...t,...tk,...k->...", right_weights, distances, left_weights)

    between = mean_distance(masks, probabilities, truths, equal)
    within = mean_distance(masks, probabilities, masks, probabilities) + mean_distance(truths, equal, truths, equal)
    return masked_sums((2 * between - within).to(given.probabilities.dtype), given.real.any(dim=-1))


@metric()
def matched_dice(predictions: Predictions, targets: Tensor, mask: Tensor | None = None) -> Sums:
    """Mean dice coefficient of targets with their hypotheses in the best one-to-one assignment.

    Args:
        predictions: Logits of masks, [..., hypotheses, height, width], at least as many as targets; above 0 is inside.
        targets: Masks, [..., targets, height, width]; above 0.5 is inside.
        mask: Valid targets, [..., targets], or valid pixels; None if all are valid.

    Example:
        >>> import torch
        >>> left, right = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
        >>> matched_dice(Predictions(torch.stack([left, left]).unsqueeze(0) - 0.5), torch.stack([left, right])[None])
        tensor(0.5000)
    """
    hypotheses, truths, _, real, steps = events("matched_dice", predictions, targets, mask)
    hard = (2 * (hypotheses > 0).float() - 1) * 1e4  # logits of 0 and 1
    n_axes = hypotheses.ndim - real.ndim
    cost = pairwise_dice(hypotheses=hard, targets=(truths > 0.5).float(), mask=steps, event_dims=n_axes, smooth=_EMPTY)
    return masked_sums((PIT()(cost, real) * (1 - cost)).sum(dim=-1), real)


@metric()
def mpjpe(predictions: Predictions, targets: Tensor, mask: Tensor | None = None) -> Sums:
    """Mean distance per joint between each target and its best hypothesis.

    Args:
        predictions: Poses, [..., hypotheses, joints, dim].
        targets: Poses, [..., targets, joints, dim], or [..., joints, dim] for a single target of each sample.
        mask: Valid targets, [..., targets], or valid joints, [..., targets, joints]; None if all are valid.

    Example:
        >>> import torch
        >>> mpjpe(Predictions(torch.zeros(1, 2, 3, 3)), torch.ones(1, 3, 3))
        tensor(1.7321)
    """
    hypotheses, poses, _, real, joints = events("mpjpe", predictions, targets, mask)
    return masked_sums(pairwise_ade(hypotheses=hypotheses, targets=poses, mask=joints).amin(dim=-1), real)


@metric()
def pa_mpjpe(predictions: Predictions, targets: Tensor, mask: Tensor | None = None) -> Sums:
    """Mean distance per joint between each target and its best hypothesis after Procrustes alignment.

    Each hypothesis is translated, rotated and scaled to minimize the sum of squared distances from the target.

    Args:
        predictions: Poses, [..., hypotheses, joints, dim].
        targets: Poses, [..., targets, joints, dim], or [..., joints, dim] for a single target of each sample.
        mask: Valid targets, [..., targets], or valid joints, [..., targets, joints]; None if all are valid.

    Example:
        >>> import torch
        >>> pose = torch.tensor([[0.0, 0.0], [0.0, 2.0], [1.0, 2.0]])
        >>> float(pa_mpjpe(Predictions(3 * pose.flip(-1)[None, None] * torch.tensor([1.0, -1.0])), pose[None])) < 1e-6
        True
    """
    hypotheses, poses, _, real, joints = events("pa_mpjpe", predictions, targets, mask)
    present = torch.ones_like(poses[..., 0]) if joints is None else joints.to(poses.dtype)
    present = present.unsqueeze(-2).unsqueeze(-1)  # [..., targets, 1, joints, 1]
    n_joints = present.sum(dim=-2, keepdim=True).clamp_min(1)
    left, right = hypotheses.unsqueeze(-4), poses.unsqueeze(-3)
    left, right = ((x - (x * present).sum(dim=-2, keepdim=True) / n_joints) * present for x in (left, right))
    u, s, vh = torch.linalg.svd(left.mT @ right)  # of all pairs [..., targets, hypotheses, dim, dim]
    signs = torch.ones_like(s)
    signs[..., -1] = torch.where(torch.linalg.det(u @ vh) < 0, -1.0, 1.0)
    size = (s * signs).sum(dim=-1) / left.square().sum(dim=(-2, -1)).clamp_min(torch.finfo(s.dtype).tiny)
    turned = size[..., None, None] * (left @ (u * signs.unsqueeze(-2)) @ vh)
    distances = torch.linalg.vector_norm(turned - right, dim=-1).sum(dim=-1) / n_joints[..., 0, 0]
    return masked_sums(distances.amin(dim=-1), real)


@metric()
def average_pairwise_distance(predictions: Predictions | Distributions) -> Sums:
    """Mean Euclidean distance between two hypotheses of a sample: their diversity.

    Args:
        predictions: Hypotheses, [..., hypotheses, ...], compared over all axes of an event.

    Example:
        >>> import torch
        >>> average_pairwise_distance(Predictions(torch.tensor([[[0.0], [3.0]]])))
        tensor(3.)
    """
    check_predictions("average_pairwise_distance", "predictions", predictions)
    hypotheses, logits = predictions.hypotheses, predictions.score_logits
    vectors = hypotheses.flatten((min(hypotheses.ndim - 2, 1) if logits is None else logits.ndim - 1) + 1)
    n_pairs = max(vectors.shape[-2] * (vectors.shape[-2] - 1), 1)
    means = pairwise_euclidean(hypotheses=vectors, targets=vectors).sum(dim=(-2, -1)) / n_pairs
    return masked_sums(means, torch.ones_like(means, dtype=torch.bool))


@metric()
def mode_coverage(predictions: Predictions, targets: Tensor, mask: Tensor | None = None, *, radius: float) -> Sums:
    """Fraction of targets, the modes, that have a hypothesis within a radius.

    Args:
        predictions: Hypotheses, [..., hypotheses, ...].
        targets: Modes of each sample, [..., targets, ...].
        mask: Valid targets, [..., targets], or valid steps, [..., targets, steps]; None if all are valid.
        radius: Largest Euclidean distance of a covered mode, over all axes of an event, > 0.

    Example:
        >>> import torch
        >>> modes = torch.tensor([[[0.0], [5.0]]])
        >>> mode_coverage(Predictions(torch.tensor([[[0.1], [0.2]]])), modes, radius=0.5)
        tensor(0.5000)
    """
    check_positive("mode_coverage", "radius", radius)
    given = events("mode_coverage", predictions, targets, mask)
    hypotheses, modes, _, _ = given.vectors()
    nearest = pairwise_euclidean(hypotheses=hypotheses, targets=modes).amin(dim=-1)
    return masked_sums((nearest <= radius).float().reshape(given.real.shape), given.real)
