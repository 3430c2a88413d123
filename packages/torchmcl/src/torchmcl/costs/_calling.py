"""The call of a cost by a step: hypotheses, targets, and the further arguments that the cost takes."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchmcl._checks import bad_value
from torchmcl.costs.declared import needs
from torchmcl.types import Distributions, Predictions

__all__ = ["call_cost", "check_takes_mask"]


def call_cost(
    owner: str,
    argument: str,
    cost_fn: Callable[..., Tensor],
    predictions: Predictions | Distributions,
    targets: Tensor,
    mask: Tensor | None,
    event_dims: int,
) -> Tensor:
    """Return the cost [..., targets, hypotheses] of predictions.

    Args:
        owner: named in messages.
        argument: the name of `cost_fn` in messages.
        cost_fn: any `pairwise_*` function.
        predictions: hypotheses, score logits, scale.
        targets: [..., targets, *event]
        mask: of the steps of each target, or None.
        event_dims: axes of one hypothesis.
    """
    extras = needs(cost_fn)
    if mask is not None:
        check_takes_mask(owner, argument, cost_fn)
    if "score_logits" in extras and predictions.score_logits is None:
        rule = "return score logits for a cost that takes them"
        raise ValueError(bad_value(owner, "model", rule, f"none for {_name(cost_fn)}", "Use a head with scores=True."))
    available: dict[str, Any] = {
        "mask": mask,
        "scale": predictions.scale if isinstance(predictions, Distributions) else None,
        "score_logits": predictions.score_logits,
        "event_dims": event_dims,
    }
    given = {name: available[name] for name in extras}
    cost = cost_fn(hypotheses=predictions.hypotheses, targets=targets, **given)
    # A cost may take all hypotheses together, the likelihood of a mixture for example, if it takes their scores too.
    together = predictions.score_logits is None or "score_logits" in extras
    shape = _shape_of_pairs(owner, predictions.hypotheses, targets, event_dims)
    shapes = (shape, (*shape[:-1], 1)) if together else (shape,)
    if not isinstance(cost, Tensor) or tuple(cost.shape) not in shapes:
        rule = f"return a cost [..., targets, hypotheses] of shape {shape} for targets {tuple(targets.shape)}"
        got = tuple(cost.shape) if isinstance(cost, Tensor) else type(cost).__name__
        advice = "`torchmcl.Pairwise(loss)` makes one of a loss of one hypothesis and one target."
        if event_dims > 1:
            advice += " Paths need a cost of sequences, pairwise_sq_ade for example."
        raise ValueError(bad_value(owner, argument, rule, f"{got} from {_name(cost_fn)}", advice))
    return cost


def _shape_of_pairs(owner: str, hypotheses: Tensor, targets: Tensor, event_dims: int) -> tuple[int, ...]:
    """Return the shape [..., targets, hypotheses] that a cost must have.

    Any other shape means that the samples of a batch were broadcast against each other.
    """
    n_leading = hypotheses.ndim - event_dims - 1
    leading, given = hypotheses.shape[:n_leading], targets.shape[:n_leading]
    if targets.ndim <= n_leading or any(t not in (1, h) and h != 1 for h, t in zip(leading, given, strict=True)):
        rule = f"have shape [batch, targets, ...] with the batch of `hypotheses` {tuple(hypotheses.shape)}"
        raise ValueError(bad_value(owner, "targets", rule, tuple(targets.shape)))
    both = (h if t == 1 else t for h, t in zip(leading, given, strict=True))
    return (*both, targets.shape[n_leading], hypotheses.shape[n_leading])


def check_takes_mask(owner: str, argument: str, cost_fn: Callable[..., Tensor]) -> None:
    """Check that a cost takes the mask of the steps of each target, because it must not ignore it."""
    if "mask" not in needs(cost_fn):
        rule = "take `mask`, the real steps of each target, where the mask of the batch has an axis of steps"
        advice = "pairwise_ade, pairwise_gaussian_nll and other costs of sequences do."
        raise ValueError(bad_value(owner, argument, rule, _name(cost_fn), advice))


def _name(cost_fn: Callable[..., Tensor]) -> str:
    return getattr(cost_fn, "__name__", repr(cost_fn))
