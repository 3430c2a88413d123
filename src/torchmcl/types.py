"""The tuples that travel along the main path: Batch, Predictions (or Distributions), Matching, StepOutput.

All are plain named tuples of tensors: they unpack, they print, and `torch.compile`,
`torch.vmap` and `torch.utils._pytree` treat them as the tuples they are.
"""

from typing import NamedTuple

from torch import Tensor

__all__ = ["Batch", "Distributions", "Matching", "Predictions", "StepOutput"]


class Batch(NamedTuple):
    """What a model is trained on.

    Attributes:
        inputs: [batch, ...], whatever the model takes.
        targets: [batch, targets, dim]; [batch, targets, steps, dim] for sequences; [batch, targets] for class ids.
        mask: [batch, targets], True where a target is real; or [batch, targets, steps], True where a step of it is;
            None when all are.
        scene: [batch], integers; samples of the same scene share their winners, see `SceneWinners`. None when each
            sample has winners of its own.
    """

    inputs: Tensor
    targets: Tensor
    mask: Tensor | None = None
    scene: Tensor | None = None


class Predictions(NamedTuple):
    """What a model returns.

    Attributes:
        hypotheses: [batch, hypotheses, dim], the answers f_1(x) ... f_n(x); sequences are [batch, hypotheses, steps,
            dim], and other shapes are possible wherever the cost takes them.
        score_logits: [batch, hypotheses]; a sigmoid turns them into scores. None without a score head.
    """

    hypotheses: Tensor
    score_logits: Tensor | None = None


class Distributions(NamedTuple):
    """What a model returns whose hypotheses are distributions; welcome wherever `Predictions` are.

    Attributes:
        hypotheses: [batch, hypotheses, ...], the locations.
        score_logits: [batch, hypotheses], or None.
        scale: positive, in the shape of `hypotheses` or one that broadcasts to it: standard deviations of normal
            distributions, or scales of Laplace distributions; the cost decides.
    """

    hypotheses: Tensor
    score_logits: Tensor | None
    scale: Tensor


class Matching(NamedTuple):
    """Which hypothesis answers for which target, and at what cost.

    Attributes:
        cost: [..., targets, hypotheses], differentiable; rows of padded targets are 0.
        weights: [..., targets, hypotheses], detached; real rows sum to 1, padded rows to 0.
        mask: [..., targets], True where a target is real.
    """

    cost: Tensor
    weights: Tensor
    mask: Tensor


class StepOutput(NamedTuple):
    """What one training step computed; call `.loss.backward()` on it.

    Attributes:
        loss: scalar, `assignment_loss + score_weight * score_loss`.
        assignment_loss: scalar, the weighted cost of the matching.
        score_loss: scalar, or None when the model has no scores.
        matching: cost, weights and mask, for the metrics.
        predictions: what the model returned.
    """

    loss: Tensor
    assignment_loss: Tensor
    score_loss: Tensor | None
    matching: Matching
    predictions: Predictions | Distributions
