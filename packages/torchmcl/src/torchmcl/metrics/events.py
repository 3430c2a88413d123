"""Metrics for densities, image masks and poses, as functions of predictions and targets."""

from collections.abc import Callable

from torch import Tensor

from torchmcl.metrics import _event_parts
from torchmcl.scoring import ScoreObjective
from torchmcl.types import Predictions


def crps(
    predictions: Predictions, targets: Tensor, mask: Tensor | None = None, *, scores: ScoreObjective | None = None
) -> Tensor:
    """Return the continuous ranked probability score of the scored hypotheses, averaged over coordinates.

    It is a proper score of each coordinate; lower is better. `energy_score` compares all coordinates together.

    Args:
        predictions: hypotheses [..., hypotheses, dim] or sequences, and score logits; without scores all count alike.
        targets: [..., targets, dim], or [..., dim] for a single target of each sample.
        mask: [..., targets], True where a target is real, or [..., targets, steps]; None when all are.
        scores: how score logits are read, as they were trained; `SigmoidScores()` by default.

    Example:
        >>> import torch
        >>> crps(Predictions(torch.tensor([[[0.0], [2.0]]])), torch.tensor([[[1.0]]]))
        tensor(0.5000)
    """
    return _event_parts.coordinate_crps(predictions, targets, mask, scores).mean()


def variogram_score(
    predictions: Predictions,
    targets: Tensor,
    mask: Tensor | None = None,
    order: float = 0.5,
    *,
    scores: ScoreObjective | None = None,
) -> Tensor:
    """Return the variogram score of the scored hypotheses: how well coordinate differences match those of the targets.

    For each pair of coordinates it is the squared difference of |y_i - y_j|^order and its mean over the hypotheses. The
    mean over all pairs is returned. It is sensitive to correlations that the energy score hardly detects; lower is
    better.

    Args:
        predictions: hypotheses [..., hypotheses, dim] or sequences, and score logits; without scores all count alike.
        targets: [..., targets, dim], or [..., dim] for a single target of each sample.
        mask: [..., targets], True where a target is real, or [..., targets, steps]; None when all are.
        order: > 0, the power of the differences.
        scores: how score logits are read, as they were trained; `SigmoidScores()` by default.

    Example:
        >>> import torch
        >>> variogram_score(Predictions(torch.tensor([[[0.0, 4.0]]])), torch.tensor([[[0.0, 1.0]]]))
        tensor(1.)

    Reference:
        Scheuerer, Hamill: Variogram-based proper scoring rules for probabilistic forecasts, 2015, with equal weights.
    """
    return _event_parts.variogram_scores(predictions, targets, mask, order, scores).mean()


def generalized_energy_distance(
    predictions: Predictions,
    targets: Tensor,
    mask: Tensor | None = None,
    *,
    cost_fn: Callable[..., Tensor] | None = None,
    scores: ScoreObjective | None = None,
) -> Tensor:
    """Return the squared generalized energy distance between scored hypotheses S and all targets Y of a sample.

    It is 2 E d(S, Y) - E d(S, S') - E d(Y, Y'), with d = 1 - intersection over union of masks; lower is better.

    Args:
        predictions: logits of masks [..., hypotheses, height, width], and score logits; without scores all count alike.
        targets: masks [..., targets, height, width], of several annotators; above 0.5 is inside.
        mask: [..., targets], True where a target is real; None when all are.
        cost_fn: a different distance, called with unchanged hypotheses and targets.
        scores: how score logits are read, as they were trained; `SigmoidScores()` by default.

    Example:
        >>> import torch
        >>> left, right = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
        >>> both = torch.stack([left, right]).unsqueeze(0)
        >>> generalized_energy_distance(Predictions(2 * both - 1), both)
        tensor(0.)

    Reference:
        Kohl et al.: A probabilistic U-Net for segmentation of ambiguous images, 2018, Eq. (5).
    """
    return _event_parts.generalized_energy_distances(predictions, targets, mask, cost_fn, scores).mean()


def matched_dice(predictions: Predictions, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean dice coefficient of targets with their hypotheses in the best one-to-one assignment.

    Args:
        predictions: logits of masks [..., hypotheses, height, width], at least as many as targets; above 0 is inside.
        targets: masks [..., targets, height, width]; above 0.5 is inside.
        mask: [..., targets], True where a target is real, or of the pixels that count; None when all are.

    Example:
        >>> import torch
        >>> left, right = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
        >>> matched_dice(Predictions(torch.stack([left, left]).unsqueeze(0) - 0.5), torch.stack([left, right])[None])
        tensor(0.5000)
    """
    return _event_parts.matched_dices(predictions, targets, mask).mean()


def mpjpe(predictions: Predictions, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean distance per joint between each target and its best hypothesis.

    Args:
        predictions: poses [..., hypotheses, joints, dim].
        targets: [..., targets, joints, dim], or [..., joints, dim] for a single target of each sample.
        mask: [..., targets], True where a target is real, or [..., targets, joints]; None when all are.

    Example:
        >>> import torch
        >>> mpjpe(Predictions(torch.zeros(1, 2, 3, 3)), torch.ones(1, 3, 3))
        tensor(1.7321)
    """
    return _event_parts.joint_errors(predictions, targets, mask).mean()


def pa_mpjpe(predictions: Predictions, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean distance per joint between each target and its best hypothesis after Procrustes alignment.

    Each hypothesis is translated, rotated and scaled to minimize the sum of squared distances from the target.

    Args:
        predictions: poses [..., hypotheses, joints, dim].
        targets: [..., targets, joints, dim], or [..., joints, dim] for a single target of each sample.
        mask: [..., targets], True where a target is real, or [..., targets, joints]; None when all are.

    Example:
        >>> import torch
        >>> pose = torch.tensor([[0.0, 0.0], [0.0, 2.0], [1.0, 2.0]])
        >>> float(pa_mpjpe(Predictions(3 * pose.flip(-1)[None, None] * torch.tensor([1.0, -1.0])), pose[None])) < 1e-6
        True
    """
    return _event_parts.aligned_joint_errors(predictions, targets, mask).mean()


def average_pairwise_distance(predictions: Predictions) -> Tensor:
    """Return the mean Euclidean distance between two hypotheses of a sample: their diversity.

    Args:
        predictions: hypotheses [..., hypotheses, ...], compared over all axes of an event.

    Example:
        >>> import torch
        >>> average_pairwise_distance(Predictions(torch.tensor([[[0.0], [3.0]]])))
        tensor(3.)
    """
    return _event_parts.pairwise_distances(predictions).mean()


def mode_coverage(
    predictions: Predictions,
    targets: Tensor,
    mask: Tensor | None = None,
    *,
    radius: float,
    cost_fn: Callable[..., Tensor] | None = None,
) -> Tensor:
    """Return the share of targets, the modes, that have a hypothesis within a radius.

    Args:
        predictions: hypotheses [..., hypotheses, ...].
        targets: [..., targets, ...], the modes of each sample.
        mask: [..., targets], True where a target is real, or [..., targets, steps]; None when all are.
        radius: > 0, in units of the cost.
        cost_fn: any `pairwise_*` function; the Euclidean distance over all axes of an event by default.

    Example:
        >>> import torch
        >>> modes = torch.tensor([[[0.0], [5.0]]])
        >>> mode_coverage(Predictions(torch.tensor([[[0.1], [0.2]]])), modes, radius=0.5)
        tensor(0.5000)
    """
    return _event_parts.covered_modes(predictions, targets, mask, radius, cost_fn).mean()
