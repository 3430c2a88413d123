"""Detection of NaN and infinite losses before they reach the weights."""

import math
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from torchmcl.checks import check_non_negative_int
from torchmcl.types import Batch, StepOutput, as_batch

__all__ = [
    "FiniteGuard",
    "NonFiniteLossError",
    "first_not_finite",
    "largest_gradient",
    "parts_of",
]


class NonFiniteLossError(FloatingPointError):
    """Raised if the loss or the gradient of a batch is NaN or infinite; the weights are unchanged.

    Attributes:
        place: Description of the batch in messages.
        cause: Name of the first tensor that is not finite: inputs, targets, weights, hypotheses, ...; "" if unknown.
    """

    def __init__(self, message: str, place: str, cause: str) -> None:
        super().__init__(message)
        self.place, self.cause = place, cause


class FiniteGuard:
    """Check of the loss and the gradient before each optimizer step.

    It reads one number per step from the device.

    Args:
        parameters: Parameters of the model, whose gradients are checked.
        max_skipped: Maximum number of batches to skip, with a warning for each; the next one is an error.

    Example:
        >>> import torch, torchmcl as mcl
        >>> model = mcl.MultiHypothesisMLP(in_features=1, out_features=1, n_hypotheses=2, hidden=(4,))
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> guard = FiniteGuard(model.parameters())
        >>> for number, value in enumerate([1.0, float("nan")]):
        ...     batch = mcl.Batch(torch.full((3, 1), value), torch.zeros(3, 1, 1))
        ...     output = mcl.mcl_step(model, batch, mcl.WTA())
        ...     optimizer.zero_grad()
        ...     output.loss.backward()
        ...     if guard(output, batch, f"batch {number}"):
        ...         optimizer.step()
        Traceback (most recent call last):
        torchmcl.loop.finite.NonFiniteLossError: FiniteGuard: the loss of batch 1 is nan; the first values that
        are not finite are in the inputs. The weights are unchanged. ...
    """

    def __init__(self, parameters: Iterable[nn.Parameter], *, max_skipped: int = 0) -> None:
        check_non_negative_int("FiniteGuard", "max_skipped", max_skipped)
        self.parameters = list(parameters)
        self.max_skipped = max_skipped
        self.n_skipped = 0

    def __call__(self, output: StepOutput, batch: Batch, place: str) -> bool:
        """Return whether the optimizer may take its step; call it after the backward pass.

        Args:
            output: Result of `mcl_step`.
            batch: Batch of the step.
            place: Description of the batch in messages, "batch 17 of epoch 3" for example.

        Raises:
            NonFiniteLossError: If the batch is not finite and no more batches may be skipped.
        """
        loss = output.loss.detach()
        if bool(torch.stack([loss.sum(), largest_gradient(self.parameters).to(loss)]).isfinite().all()):
            return True
        cause = first_not_finite(parts_of(output, batch, self.parameters))
        self.skip(place, float(loss.sum()), cause)
        return False

    def skip(self, place: str, loss: float, cause: str) -> None:
        """Count a skipped batch, and warn.

        Args:
            place: Description of the batch in messages.
            loss: Loss of the batch; it is finite if only its gradient is not.
            cause: Name of the first tensor that is not finite, "" if unknown.

        Raises:
            NonFiniteLossError: If no more batches may be skipped.
        """
        self.n_skipped += 1
        what = f"loss of {place} is {loss:g}" if not math.isfinite(loss) else f"gradient of {place} is not finite"
        where = f"; the first values that are not finite are in the {cause}" if cause else ""
        message = f"FiniteGuard: the {what}{where}. The weights are unchanged."
        if self.n_skipped > self.max_skipped:
            advice = (
                " Check the data, lower the learning rate or clip the gradient; or skip such batches with "
                f"`max_skipped`, now {self.max_skipped}."
            )
            raise NonFiniteLossError(message + advice, place, cause)
        warnings.warn(
            f"{message} Skipped ({self.n_skipped} of at most {self.max_skipped}).",
            RuntimeWarning,
            stacklevel=3,
        )


def parts_of(output: StepOutput, batch: Batch, parameters: Iterable[Tensor]) -> dict[str, Any]:
    """Return the tensors of a step in the order of their computation."""
    batch = as_batch(batch)
    targets = batch.targets
    if batch.mask is not None:  # padded targets are ignored
        mask = batch.mask.view(*batch.mask.shape, *[1] * (targets.ndim - batch.mask.ndim))
        targets = targets.masked_fill(~mask, 0)
    flat = [_local(parameter.detach()).reshape(-1) for parameter in parameters]
    weights = torch.cat(flat or [torch.zeros(0)])
    return {
        "inputs": batch.inputs,
        "targets": targets,
        "weights of the model": weights,
        "hypotheses": output.predictions.hypotheses,
        "score logits": output.predictions.score_logits,
        "costs": output.matching.cost,
    }


def first_not_finite(parts: Mapping[str, Any]) -> str:
    """Return the name of the first tensor, or structure of tensors, with a NaN or an infinity, "" if there is none."""
    for name, part in parts.items():
        leaves = [leaf.detach() for leaf in tree_leaves(part) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        if not all(bool(leaf.isfinite().all()) for leaf in leaves):
            return name
    return ""


def largest_gradient(parameters: Iterable[Tensor]) -> Tensor:
    """Return the largest absolute gradient without synchronization; it is NaN or infinite if any gradient is."""
    gradients = [_local(parameter.grad) for parameter in parameters if parameter.grad is not None]
    gradients = [gradient for gradient in gradients if gradient.numel()]
    if not gradients:
        return torch.zeros(())
    largest = torch._foreach_norm(gradients, math.inf)
    return torch.stack([norm.to(gradients[0].device, torch.float32) for norm in largest]).max()


def _local(tensor: Tensor) -> Tensor:
    """Return the local part of a tensor; a DTensor is split across several processes."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
