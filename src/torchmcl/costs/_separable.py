"""The gradient of separable costs without autograd, for the hand-written training step."""

from torch import Tensor

from torchmcl.kernels.coordinates import Element, _pull, _walk

__all__ = ["separable_pull", "separable_value"]


def separable_value(hypotheses: Tensor, targets: Tensor, element: Element) -> Tensor:
    """Return the cost without a graph."""
    return _walk(hypotheses, targets, element.value)


def separable_pull(hypotheses: Tensor, targets: Tensor, grad: Tensor, element: Element, to_hypotheses: Tensor) -> None:
    """Write the gradient at the hypotheses, given that at the cost."""
    _pull(hypotheses, targets, grad, element.slope, to_hypotheses, None)
