"""Only finite steps reach the weights: a loss of NaN is found at its batch, before it has done harm."""

import warnings
from collections.abc import Iterable

import torch
from torch import Tensor

from torchmcl._checks import bad_value

__all__ = ["FiniteSteps", "NonFiniteLoss"]

_ADVICE = (
    "The weights are as they were before this batch. Look at its data, lower the learning rate, or leave such batches "
    "out: skip=10."
)


class NonFiniteLoss(ValueError):  # noqa: N818  (what happened)
    """A loss or a gradient that is NaN or infinite; the message names the batch."""


class FiniteSteps:
    """Look at the loss and the gradients of each step before the optimiser does.

    It waits for the device once a step.

    Args:
        parameters: those that the optimiser changes.
        skip: how many batches in all may be left out, each with a warning; the next one is an error.

    Example:
        >>> layer = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        >>> finite = FiniteSteps(layer.parameters())
        >>> for number, inputs in enumerate((torch.ones(2, 1), torch.full((2, 1), float("nan")))):
        ...     optimizer.zero_grad()
        ...     loss = layer(inputs).square().mean()
        ...     loss.backward()
        ...     if finite(loss, f"batch {number}"):
        ...         optimizer.step()
        Traceback (most recent call last):
        torchmcl.training.finite.NonFiniteLoss: training: `loss` of batch 1 must be finite, got nan. The weights are ...
    """

    def __init__(self, parameters: Iterable[Tensor], *, skip: int = 0) -> None:
        if isinstance(skip, bool) or not isinstance(skip, int) or skip < 0:
            raise ValueError(bad_value("FiniteSteps", "skip", "be a whole number >= 0", repr(skip)))
        self.parameters = list(parameters)
        self.skip = skip
        self.n_skipped = 0

    def __call__(self, loss: Tensor, where: str) -> bool:
        """Return whether the step may be taken; if not, its gradients have been taken away.

        Args:
            loss: a scalar, or one for each model.
            where: the batch, for the message.

        Raises:
            NonFiniteLoss: if the step is not finite and no more may be left out.
        """
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        # One number that is finite if all are: a sum of squares could overflow where none of them is infinite.
        largest = [norm for norm in torch._foreach_norm(gradients, ord=torch.inf)] if gradients else []
        finite = torch.stack([loss.detach().isfinite().all(), *(norm.isfinite() for norm in largest)])
        if bool(finite.all()):
            return True
        what, got = "loss", loss.detach()
        if bool(finite[0]):
            what, got = "gradient", torch.stack(largest).max()
        values = f"{got[~got.isfinite()].flatten()[0].item()}" if got.ndim else f"{got.item()}"
        message = f"training: `{what}` of {where} must be finite, got {values}."
        for parameter in self.parameters:
            parameter.grad = None
        if self.n_skipped >= self.skip:
            raise NonFiniteLoss(f"{message} {_ADVICE}")
        self.n_skipped += 1
        warnings.warn(f"{message} It was left out, as {self.n_skipped} of {self.skip} may be.", stacklevel=2)
        return False
