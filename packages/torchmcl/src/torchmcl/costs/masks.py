"""Costs of image masks and class maps, computed from logits."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from torchmcl.checks import check_class_ids, check_fraction, check_non_negative, check_positive
from torchmcl.costs.declared import aligned_events, declare_cost
from torchmcl.costs.distances import inner_products, wide_dtype, wide_products
from torchmcl.costs.sequences import cross_entropies
from torchmcl.dispatch import is_plain_eager, may_work_in_place, without_autocast

__all__ = [
    "CROSS_ENTROPY",
    "SIGMOID",
    "PixelFunctions",
    "pairwise_dice",
    "pairwise_focal",
    "pairwise_iou",
    "pairwise_mask_bce",
    "pairwise_pixel_cross_entropy",
    "recomputed_sums",
]

# Minimum number of logits in a chunk of samples, and maximum number of chunks.
_ENTRIES, _MAX_CHUNKS = 1 << 18, 16


class PixelFunctions(NamedTuple):
    """Two functions of the logits, one to multiply by targets and one to sum over pixels, and their derivatives."""

    values: Callable[[Tensor], tuple[Tensor, Tensor]]
    slopes: Callable[[Tensor], tuple[Tensor | float, Tensor]]


def _inside(logits: Tensor) -> tuple[Tensor, Tensor]:
    inside = logits.sigmoid()
    return inside, inside


def _inside_slopes(logits: Tensor) -> tuple[Tensor, Tensor]:
    inside = logits.sigmoid()
    slope = torch.addcmul(inside, inside, inside, value=-1)  # without another tensor for 1 - inside
    return slope, slope


SIGMOID = PixelFunctions(_inside, _inside_slopes)
# log(1 + e^-x) - log(1 + e^x) = -x
CROSS_ENTROPY = PixelFunctions(lambda x: (-x, softplus(x)), lambda x: (-1.0, x.sigmoid()))


def recomputed_sums(
    functions: PixelFunctions, logits: Tensor, targets: Tensor, real: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute the two sums over pixels, [samples, targets, hypotheses]; the backward pass recomputes the functions.

    Args:
        functions: Functions of the logits.
        logits: Logits of the hypotheses, [samples, hypotheses, pixels].
        targets: Target masks, [samples, targets, pixels], in the dtype of the logits.
        real: Valid pixels, [samples, targets, pixels]; None if all are valid.
    """
    result: tuple[Tensor, Tensor] = _RecomputedSums.apply(functions, logits, targets, real)
    return result


class _RecomputedSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, functions: PixelFunctions, logits: Tensor, targets: Tensor, real: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ctx.functions, ctx.real = functions, real
        ctx.save_for_backward(logits, targets)

        def sums(rows: slice) -> tuple[Tensor, Tensor]:
            with torch.no_grad(), without_autocast(logits):  # both modes are set per thread
                one, other = functions.values(logits[rows])
                cross = wide_products(one, targets[rows])[0]
                if real is None:
                    return cross, other.sum(dim=-1, dtype=wide_dtype(other)).unsqueeze(-2)
                return cross, wide_products(other, real[rows].to(other.dtype))[0]

        chunks, n_threads = _chunks(logits), torch.get_num_threads()
        if logits.device.type != "cpu" or n_threads == 1 or len(chunks) == 1:  # other threads have other CUDA streams
            parts = [sums(rows) for rows in chunks]
        else:
            with ThreadPoolExecutor(n_threads) as threads:
                parts = list(threads.map(sums, chunks))
        cross, total = (torch.cat(part) for part in zip(*parts, strict=True))
        return cross, total

    @staticmethod
    def backward(ctx: Any, to_cross: Tensor, to_total: Tensor) -> tuple[None, Tensor | None, Tensor | None, None]:
        (logits, targets), real = ctx.saved_tensors, ctx.real
        to_cross, to_total = to_cross.to(logits.dtype), to_total.to(logits.dtype).mT

        def parts(rows: slice) -> tuple[Tensor | float, Tensor, Tensor]:
            one, other = ctx.functions.slopes(logits[rows])
            return one, other, to_total[rows] if real is None else to_total[rows] @ real[rows].to(logits.dtype)

        to_logits = to_targets = None
        with without_autocast(logits):
            if ctx.needs_input_grad[1] and may_work_in_place(to_cross, to_total):
                to_logits = torch.empty_like(logits)
                for rows in _chunks(logits):
                    one, other, all_pixels = parts(rows)
                    inside = torch.bmm(to_cross[rows].mT, targets[rows], out=to_logits[rows])
                    inside.mul_(one).addcmul_(all_pixels, other)
            elif ctx.needs_input_grad[1]:
                one, other, all_pixels = parts(slice(None))
                to_logits = (to_cross.mT @ targets) * one + all_pixels * other
            if ctx.needs_input_grad[2]:
                to_targets = to_cross @ ctx.functions.values(logits)[0]
        return None, to_logits, to_targets, None


def _chunks(logits: Tensor) -> list[slice]:
    """Return slices of the samples."""
    per_sample = max(logits[:1].numel(), 1)
    size = max(1, max(_ENTRIES, logits.numel() // _MAX_CHUNKS) // per_sample)
    return [slice(first, first + size) for first in range(0, max(len(logits), 1), size)]


class _Pixels(NamedTuple):
    """Logits [..., hypotheses, pixels], targets [..., targets, pixels], and a mask of valid pixels, or None."""

    logits: Tensor
    targets: Tensor
    real: Tensor | None

    def sums(self, values: Tensor) -> Tensor:
        """Return the sum of values [..., hypotheses, pixels] over the valid pixels of each target."""
        if self.real is None:
            return values.sum(dim=-1, dtype=wide_dtype(values)).unsqueeze(-2)
        return inner_products(values, self.real.to(values)).cross

    def mean(self, if_outside: Tensor, difference: Tensor) -> Tensor:
        """Return the mean of a loss that is linear in the target.

        Args:
            if_outside: Loss for a target value of 0, [..., hypotheses, pixels].
            difference: Loss for a target value of 1 minus `if_outside`, [..., hypotheses, pixels].
        """
        return self.divided(inner_products(difference, self.targets).cross + self.sums(if_outside))

    def divided(self, total: Tensor) -> Tensor:
        """Return sums [..., targets, hypotheses] divided by the number of pixels."""
        if self.real is None:  # a number: a tensor would be a copy to the device, which stops graph capture
            return (total / max(self.targets.shape[-1], 1)).to(self.logits.dtype)
        return (total / self.real.sum(dim=-1, keepdim=True).clamp_min(1)).to(self.logits.dtype)


def _pixel_sums(
    functions: PixelFunctions, logits: Tensor, targets: Tensor, real: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the sums [..., targets, hypotheses] of the first function times each target, and of the second."""
    if logits.ndim == 3 and logits.dtype == targets.dtype and is_plain_eager():
        return recomputed_sums(functions, logits, targets, real)
    one, other = functions.values(logits)
    return inner_products(one, targets).cross, _Pixels(logits, targets, real).sums(other)


def _pixels(owner: str, hypotheses: Tensor, targets: Tensor, mask: Tensor | None, event_dims: int) -> _Pixels:
    logits, targets, mask = aligned_events(owner, hypotheses, targets, mask, event_dims)
    real = None
    if mask is not None:
        real = mask.view(*mask.shape, *[1] * (targets.ndim - mask.ndim)).expand(targets.shape).flatten(-event_dims)
    return _Pixels(logits.flatten(-event_dims), targets.flatten(-event_dims), real)


@declare_cost(event_dims=...)
def pairwise_dice(
    *, hypotheses: Tensor, targets: Tensor, mask: Tensor | None = None, event_dims: int = 2, smooth: float = 1.0
) -> Tensor:
    r"""Return the dice distance of every pair of a target and the sigmoid of a hypothesis, in [0, 1].

    .. math:: 1 - \frac{2 \sum p t + s}{\sum p + \sum t + s}

    for the sigmoid p of the hypothesis, the target t and the smoothing constant s, with sums over pixels.

    Args:
        hypotheses: Logits, [..., hypotheses, height, width].
        targets: Target masks in [0, 1], [..., targets, height, width]; masked pixels are ignored, even NaN.
        mask: Valid pixels, [..., targets, height, width]; None if all are valid.
        event_dims: Number of axes of one mask; supplied by `mcl_step`.
        smooth: Smoothing constant, > 0, which keeps two empty masks at a distance of 0.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in both inputs.

    Example:
        >>> import torch
        >>> left, right = torch.tensor([[9.0, -9.0]]), torch.tensor([[-9.0, 9.0]])
        >>> pairwise_dice(hypotheses=torch.stack([left, right]), targets=torch.tensor([[[1.0, 0.0]]]))
        tensor([[8.2259e-05, 6.6658e-01]])
    """
    check_positive("pairwise_dice", "smooth", smooth)
    pixels = _pixels("pairwise_dice", hypotheses, targets, mask, event_dims)
    overlap, area = _pixel_sums(SIGMOID, *pixels)
    total = area + pixels.targets.sum(dim=-1, keepdim=True)
    return (1 - (2 * overlap + smooth) / (total + smooth)).to(pixels.logits.dtype)


@declare_cost(event_dims=...)
def pairwise_iou(
    *,
    hypotheses: Tensor,
    targets: Tensor,
    mask: Tensor | None = None,
    event_dims: int = 2,
    smooth: float = 1.0,
    hard: bool = False,
) -> Tensor:
    """Return 1 - intersection over union of every pair of a target and the sigmoid of a hypothesis, in [0, 1].

    Args:
        hypotheses: Logits, [..., hypotheses, height, width].
        targets: Target masks in [0, 1], [..., targets, height, width]; masked pixels are ignored, even NaN.
        mask: Valid pixels, [..., targets, height, width]; None if all are valid.
        event_dims: Number of axes of one mask; supplied by `mcl_step`.
        smooth: Smoothing constant, > 0, added to both areas; it keeps two empty masks at a distance of 0.
        hard: Whether to threshold the logits at 0, without a gradient, to measure the quality of the final mask.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in both inputs unless it is hard.

    Example:
        >>> masks = {"hypotheses": torch.tensor([[[9.0, 9.0]]]), "targets": torch.tensor([[[1.0, 0.0]]])}
        >>> pairwise_iou(**masks, hard=True, smooth=1e-6)
        tensor([[0.5000]])
    """
    check_positive("pairwise_iou", "smooth", smooth)
    pixels = _pixels("pairwise_iou", hypotheses, targets, mask, event_dims)
    if hard:
        inside = (pixels.logits > 0).to(pixels.logits)
        overlap, area = inner_products(inside, pixels.targets).cross, pixels.sums(inside)
    else:
        overlap, area = _pixel_sums(SIGMOID, *pixels)
    union = area + pixels.targets.sum(dim=-1, keepdim=True) - overlap
    return (1 - (overlap + smooth) / (union + smooth)).to(pixels.logits.dtype)


@declare_cost(event_dims=...)
def pairwise_mask_bce(
    *, hypotheses: Tensor, targets: Tensor, mask: Tensor | None = None, event_dims: int = 2
) -> Tensor:
    """Return the binary cross-entropy of every pair of masks, as a mean over pixels.

    Args:
        hypotheses: Logits, [..., hypotheses, height, width].
        targets: Target masks in [0, 1], [..., targets, height, width]; masked pixels are ignored, even NaN.
        mask: Valid pixels, [..., targets, height, width]; None if all are valid.
        event_dims: Number of axes of one mask; supplied by `mcl_step`.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in both inputs.

    Example:
        >>> masks = {"hypotheses": torch.tensor([[[0.0, 2.0]]]), "targets": torch.tensor([[[1.0, 0.0]]])}
        >>> pairwise_mask_bce(**masks)
        tensor([[1.4100]])
    """
    pixels = _pixels("pairwise_mask_bce", hypotheses, targets, mask, event_dims)
    cross, total = _pixel_sums(CROSS_ENTROPY, *pixels)
    return pixels.divided(cross + total)


@declare_cost(event_dims=...)
def pairwise_focal(
    *,
    hypotheses: Tensor,
    targets: Tensor,
    mask: Tensor | None = None,
    event_dims: int = 2,
    alpha: float = 0.25,
    gamma: float = 2.0,
) -> Tensor:
    """Return the focal loss of every pair of masks, as a mean over pixels.

    A target between 0 and 1 interpolates between the losses of 0 and 1.

    Args:
        hypotheses: Logits, [..., hypotheses, height, width].
        targets: Target masks in [0, 1], [..., targets, height, width]; masked pixels are ignored, even NaN.
        mask: Valid pixels, [..., targets, height, width]; None if all are valid.
        event_dims: Number of axes of one mask; supplied by `mcl_step`.
        alpha: Weight of the pixels inside of the target, in [0, 1]; the other pixels have the weight 1 - alpha.
        gamma: Focusing parameter, >= 0, which reduces the weight of well-classified pixels; 0 is the weighted
            cross-entropy.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in both inputs.

    Example:
        >>> masks = {"hypotheses": torch.tensor([[[0.0, 2.0]]]), "targets": torch.tensor([[[1.0, 0.0]]])}
        >>> pairwise_focal(**masks)
        tensor([[0.6404]])

    References:
        T. Lin et al., *Focal loss for dense object detection*, ICCV 2017, arXiv:1708.02002, Equation (5).
    """
    check_fraction("pairwise_focal", "alpha", alpha)
    check_non_negative("pairwise_focal", "gamma", gamma)
    pixels = _pixels("pairwise_focal", hypotheses, targets, mask, event_dims)
    inside, outside = softplus(-pixels.logits), softplus(pixels.logits)  # negative logarithms of the probabilities
    if_inside = alpha * (-gamma * outside).exp() * inside
    if_outside = (1 - alpha) * (-gamma * inside).exp() * outside
    return pixels.mean(if_outside, if_inside - if_outside)


@declare_cost(event_dims=3, target_dims=2)
def pairwise_pixel_cross_entropy(*, hypotheses: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the cross-entropy of every (class map, hypothesis) pair, averaged over pixels.

    Args:
        hypotheses: Logits, [..., hypotheses, classes, height, width].
        targets: Class ids, [..., targets, height, width]; masked pixels are ignored. Other ids of valid pixels are an
            error.
        mask: Valid pixels, [..., targets, height, width]; None if all are valid.

    Returns:
        Cost [..., targets, hypotheses], at least float32, differentiable in the logits.

    Example:
        >>> logits = torch.zeros(1, 4, 2, 2)  # four classes
        >>> pairwise_pixel_cross_entropy(hypotheses=logits, targets=torch.tensor([[[0, 3], [1, 1]]]))
        tensor([[1.3863]])
    """
    owner = "pairwise_pixel_cross_entropy"
    if isinstance(hypotheses, Tensor) and hypotheses.ndim >= 4:
        hypotheses = hypotheses.movedim(-3, -1)
    logits, ids, mask = aligned_events(owner, hypotheses, targets, mask, event_dims=3, ids=True)
    check_class_ids(owner, ids, logits.shape[-1])
    if mask is not None:
        mask = mask.view(*mask.shape, *[1] * (ids.ndim - mask.ndim)).expand(ids.shape).flatten(-2)
    return cross_entropies(logits.flatten(-3, -2), ids.flatten(-2), mask)
