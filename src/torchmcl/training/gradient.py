"""The gradient of the main path in the predictions, written out.

Autograd builds a graph and walks it back; for small models on CPUs that takes longer than the arithmetic. Here the
parts of `mcl_step` are called with their derivatives one after the other. What comes out is defined by `mcl_step`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from torchmcl.assignment import AssignmentRule
from torchmcl.costs._separable import separable_pull, separable_value
from torchmcl.costs.vector import separable_element
from torchmcl.losses import match, mcl_loss
from torchmcl.scoring import cross_entropy_and_slope, score_targets
from torchmcl.types import Predictions

__all__ = ["loss_and_gradient"]


@torch.no_grad()
def loss_and_gradient(
    predictions: Predictions,
    targets: Tensor,
    rule: AssignmentRule,
    *,
    cost_fn: Callable[..., Tensor],
    score_weight: float,
    gradient: Predictions,
    sample_weights: Tensor | None = None,
) -> Tensor:
    """Return the losses of stacked models, `mcl_step(..., stacked=True).loss`, and write the gradient of their sum.

    Args:
        predictions: of the models, [models, batch, ...].
        targets: [models, batch, targets, dim], all of them real.
        rule: an assignment rule.
        cost_fn: a cost that `separable_element` knows.
        score_weight: weight of the score loss.
        gradient: tensors like the predictions, overwritten.
        sample_weights: [models, batch], how much each sample counts; None when all count alike.

    Returns:
        Losses [models].
    """
    element = separable_element(cost_fn, targets.shape[-1])
    assert element is not None
    hypotheses, logits = predictions
    cost = separable_value(hypotheses, targets, element)
    matching = match(cost, rule)
    loss = mcl_loss(matching, model_axes=1, sample_weights=sample_weights)
    n_rows, n_targets, n_hypotheses = cost.shape[1:]
    pull = matching.weights.div_(n_rows * n_targets)
    if sample_weights is not None:
        pull = pull * sample_weights[..., None, None]
    separable_pull(hypotheses, targets, pull, element, gradient.hypotheses)
    if logits is None or gradient.score_logits is None:
        return loss
    if score_weight == 0:
        gradient.score_logits.zero_()
        return loss
    scores = cross_entropy_and_slope(logits, score_targets(cost), gradient.score_logits)
    if sample_weights is not None:
        scores = scores * sample_weights
        gradient.score_logits.mul_(sample_weights.unsqueeze(-1))
    scale = score_weight / (n_rows * n_hypotheses)
    gradient.score_logits.mul_(scale)
    return loss.add_(scores.sum(dim=1), alpha=scale)
