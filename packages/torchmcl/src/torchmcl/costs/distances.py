"""Distances and inner products of all pairs, coordinate by coordinate or in slabs of several coordinates.

Broadcasting would build [..., targets, hypotheses, dim] several times and keep it for the backward pass. A loop over
the coordinates needs one [..., targets, hypotheses] tensor, saves only the inputs, and computes each difference
exactly, so that a large common offset costs no accuracy. |h|^2 + |t|^2 - 2 h.t would be one matrix product, but its
error grows with the distance from the origin: close pairs lose precision, and equal points are not at distance 0. If
the origin depended on the targets, padded targets would change the cost of valid ones. The gradients of squared
distances are matrix products, around an origin to which padded targets do not contribute.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl.dispatch import in_forward_mode, is_plain_eager, may_work_in_place, without_autocast

__all__ = ["MAX_TURNS", "centered_gradients", "squared_distances", "sum_of_absolutes", "sum_of_hubers", "wide_dtype"]

# Number of entries of [..., targets, hypotheses, dim] up to which the plain formula is as fast and needs little memory.
_FEW_ENTRIES = 1 << 17
# Maximum number of iterations of the coordinate loop, which torch.compile unrolls. With more coordinates, an iteration
# processes a slab of several.
MAX_TURNS = 32
_CHUNK_ENTRIES = 1 << 20
# Number of entries that are converted to double precision at a time, so that the copies stay in the cache.
_WIDE_ENTRIES = 1 << 20
# Row length from which on a GPU is busy only if the rows are split.
_LONG = 4096


class _Element(NamedTuple):
    """Function of the difference in one coordinate, and its derivative; both may overwrite their argument."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


_SQUARE = _Element(lambda difference: difference.mul_(difference), lambda difference: difference.mul_(2))
_ABSOLUTE = _Element(torch.abs, torch.sign)


def _huber(delta: float) -> _Element:
    def value(difference: Tensor) -> Tensor:
        distance = difference.abs()
        inside = distance.clamp(max=delta)
        return inside * (distance - 0.5 * inside)

    return _Element(value, lambda difference: difference.clamp(-delta, delta))


def differences(hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Compute hypothesis - target of every pair, [..., targets, hypotheses, dim]."""
    return hypotheses.unsqueeze(-3) - targets.unsqueeze(-2)


def follows_formula(hypotheses: Tensor, targets: Tensor) -> bool:
    """Whether a formula of all differences is evaluated: for few entries, in compiled code and in forward mode."""
    if targets.shape[-2] * hypotheses.numel() <= _FEW_ENTRIES:
        return True
    return torch.compiler.is_compiling() or in_forward_mode()


def squared_distances(hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Compute the squared Euclidean distances, [..., targets, hypotheses]."""
    if follows_formula(hypotheses, targets):
        return differences(hypotheses, targets).square().sum(dim=-1)
    if hypotheses.shape[-1] <= MAX_TURNS:
        return _SumOverCoordinates.apply(hypotheses, targets, *_SQUARE)
    return _LongSquares.apply(hypotheses, targets)


def sum_of_absolutes(hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Compute the sums of absolute differences, [..., targets, hypotheses]."""
    if follows_formula(hypotheses, targets):
        return differences(hypotheses, targets).abs().sum(dim=-1)
    return _SumOverCoordinates.apply(hypotheses, targets, *_ABSOLUTE)


def sum_of_hubers(hypotheses: Tensor, targets: Tensor, delta: float) -> Tensor:
    """Compute the sums of the Huber function of the differences, [..., targets, hypotheses]."""
    huber = _huber(delta)
    if follows_formula(hypotheses, targets):
        return huber.value(differences(hypotheses, targets)).sum(dim=-1)
    return _SumOverCoordinates.apply(hypotheses, targets, *huber)


class _SumOverCoordinates(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        hypotheses: Tensor, targets: Tensor, value: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]
    ) -> Tensor:
        if hypotheses.ndim < 3 or hypotheses.device.type != "cpu" or not is_plain_eager():
            return _sum_over_slabs(hypotheses, targets, value)
        cost = hypotheses.new_empty(*hypotheses.shape[:-2], targets.shape[-2], hypotheses.shape[-2])
        chunks = _chunks(cost)
        if len(chunks) == 1:
            return _sum_over_slabs(hypotheses, targets, value)
        for rows in chunks:
            cost[rows] = _sum_over_slabs(hypotheses[rows], targets[rows], value)
        return cost

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        hypotheses, targets, _, slope = inputs
        ctx.save_for_backward(hypotheses, targets)
        ctx.slope = slope

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        hypotheses, targets = ctx.saved_tensors
        # Made from `grad`, so that under torch.vmap they can hold values that depend on it.
        to_hypotheses = grad.new_empty(hypotheses.shape) if ctx.needs_input_grad[0] else None
        to_targets = grad.new_empty(targets.shape) if ctx.needs_input_grad[1] else None
        if grad.ndim < 3 or grad.device.type != "cpu" or not may_work_in_place(grad):
            _write_gradients(hypotheses, targets, grad, ctx.slope, to_hypotheses, to_targets)
            return to_hypotheses, to_targets, None, None
        for rows in _chunks(grad):
            parts = [None if part is None else part[rows] for part in (to_hypotheses, to_targets)]
            _write_gradients(hypotheses[rows], targets[rows], grad[rows], ctx.slope, *parts)
        return to_hypotheses, to_targets, None, None


def _chunks(cost: Tensor) -> list[slice]:
    """Return slices of a few samples that fit into the cache, because new memory for intermediate results is slow."""
    n_samples = max(1, _CHUNK_ENTRIES * len(cost) // max(cost.numel(), 1))
    return [slice(start, start + n_samples) for start in range(0, len(cost), n_samples)] or [slice(0, 0)]


def _slabs(n_dims: int) -> list[slice]:
    width = max(1, -(-n_dims // MAX_TURNS))
    return [slice(start, min(start + width, n_dims)) for start in range(0, n_dims, width)]


def _difference(hypotheses: Tensor, targets: Tensor, slab: slice) -> Tensor:
    """Return the differences in one coordinate, [..., targets, hypotheses], or in several, with an axis for them."""
    if slab.stop - slab.start == 1:
        return hypotheses[..., None, :, slab.start] - targets[..., :, None, slab.start]
    return hypotheses[..., None, :, slab] - targets[..., :, None, slab]


def _sum_over_slabs(hypotheses: Tensor, targets: Tensor, value: Callable[[Tensor], Tensor]) -> Tensor:
    """Compute the cost slab by slab."""
    cost = None
    for slab in _slabs(hypotheses.shape[-1]):
        part = value(_difference(hypotheses, targets, slab))
        if slab.stop - slab.start > 1:
            part = part.sum(dim=-1)
        cost = part if cost is None else cost.add_(part)
    if cost is None:  # no coordinates: the distance is 0
        return (hypotheses[..., None, :, :] - targets[..., :, None, :]).sum(dim=-1)
    return cost


def _write_gradients(
    hypotheses: Tensor,
    targets: Tensor,
    grad: Tensor,
    slope: Callable[[Tensor], Tensor],
    to_hypotheses: Tensor | None,
    to_targets: Tensor | None,
) -> None:
    """Write the gradients of the points, given the gradient of the cost."""
    in_place = may_work_in_place(grad)
    for slab in _slabs(hypotheses.shape[-1]):
        pull = slope(_difference(hypotheses, targets, slab))
        # A single coordinate has no slab axis, neither here nor in the gradient that it is written to.
        single = pull.ndim == grad.ndim
        where, targets_axis = (slab.start, -2) if single else (slab, -3)
        alone = pull.shape[targets_axis] == 1
        if in_place and single and alone and to_hypotheses is not None and to_targets is None:
            torch.mul(pull.squeeze(-2), grad.squeeze(-2), out=to_hypotheses[..., where])
            continue
        pull = pull * (grad if single else grad.unsqueeze(-1))
        if to_hypotheses is not None:
            to_hypotheses[..., where] = pull.squeeze(targets_axis) if alone else pull.sum(dim=targets_axis)
        if to_targets is not None:
            to_targets[..., where] = pull.sum(dim=targets_axis + 1).neg_()


# Number of coordinates per call of `torch.cdist`, which adds sequentially, so that errors in single precision grow.
_SLAB = 1024


class _LongSquares(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(hypotheses: Tensor, targets: Tensor) -> Tensor:
        width = max(_SLAB, -(-hypotheses.shape[-1] // MAX_TURNS))
        slabs = zip(targets.split(width, dim=-1), hypotheses.split(width, dim=-1), strict=True)
        with without_autocast(hypotheses):
            parts = [torch.cdist(t, h, compute_mode="donot_use_mm_for_euclid_dist").square() for t, h in slabs]
        return sum(parts[1:], parts[0])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        hypotheses, targets = ctx.saved_tensors
        return centered_gradients(hypotheses, targets, grad, ctx.needs_input_grad)


def centered_gradients(
    hypotheses: Tensor, targets: Tensor, grad: Tensor, needs: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None]:
    """Compute the gradients of hypotheses and targets, None if not needed; differentiable by autograd."""
    center = gradient_center(targets, grad)
    hypotheses, targets = hypotheses - center, targets - center
    to_hypotheses = to_targets = None
    grad = 2 * grad
    with without_autocast(hypotheses):
        if needs[1]:
            to_targets = grad.sum(dim=-1, keepdim=True) * targets - grad @ hypotheses
        if needs[0]:
            total = grad.sum(dim=-2).unsqueeze(-1)
            if hypotheses.ndim == 3 and may_work_in_place(grad):
                to_hypotheses = hypotheses.mul_(total).baddbmm_(grad.mT, targets, alpha=-1)
            else:
                to_hypotheses = hypotheses * total - grad.mT @ targets
    return to_hypotheses, to_targets


def gradient_center(targets: Tensor, grad: Tensor) -> Tensor:
    """Compute the mean of the targets, weighted by the size of their gradients, [..., 1, dim].

    Up to rounding, the gradients of points do not depend on the origin, so it needs no gradient itself. Padded targets
    have a gradient of 0 and do not contribute.
    """
    with torch.no_grad():  # `detach` does not accept batched gradients
        weights = grad.abs().sum(dim=-1, keepdim=True).nan_to_num(0.0, 0.0)
    weights = weights / weights.sum(dim=-2, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
    return (weights * targets.detach()).sum(dim=-2, keepdim=True)


def wide_dtype(tensor: Tensor) -> torch.dtype:
    """Return float64, or float32 on devices without it."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def wide_products(hypotheses: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return inner products [..., targets, hypotheses] and the squared lengths of hypotheses and of targets.

    Only the inputs are kept for the backward pass, which computes in the dtype of the inputs.
    """
    return _WideProducts.apply(hypotheses, targets)


class _WideProducts(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(hypotheses: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if hypotheses.device.type == "cpu":
            return _in_chunks(hypotheses, targets)
        if hypotheses.shape[-1] >= _LONG:
            return _in_pieces(hypotheses, targets)
        return _at_once(hypotheses, targets)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(
        ctx: Any, grad_cross: Tensor, grad_hypotheses: Tensor, grad_targets: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        hypotheses, targets = ctx.saved_tensors
        grad_cross = grad_cross.to(hypotheses.dtype)
        to_hypotheses = to_targets = None
        with without_autocast(hypotheses):
            if ctx.needs_input_grad[0]:
                to_hypotheses = _product_gradient(hypotheses, grad_hypotheses, grad_cross.mT, targets)
            if ctx.needs_input_grad[1]:
                to_targets = _product_gradient(targets, grad_targets, grad_cross, hypotheses)
        return to_hypotheses, to_targets


def _at_once(hypotheses: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dtype = wide_dtype(hypotheses)
    hypotheses, targets = hypotheses.to(dtype), targets.to(dtype)
    with without_autocast(hypotheses):
        return targets @ hypotheses.mT, _energy(hypotheses), _energy(targets)


def _energy(rows: Tensor) -> Tensor:
    # vector_norm squares and adds in one pass, without a squared copy.
    return torch.linalg.vector_norm(rows, dim=-1, dtype=wide_dtype(rows)).square()


def _in_pieces(hypotheses: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `wide_products` as a sum of products of short rows, because flat products leave a GPU idle."""
    n_pieces = next((n for n in (64, 50, 40, 32, 20, 16, 10, 8) if hypotheses.shape[-1] % n == 0), 1)
    pieces = [
        rows.unflatten(-1, (n_pieces, -1)).movedim(-2, -3).to(wide_dtype(rows), memory_format=torch.contiguous_format)
        for rows in (hypotheses, targets)
    ]  # [..., pieces, rows, samples of a piece]
    with without_autocast(hypotheses):
        return (pieces[1] @ pieces[0].mT).sum(dim=-3), _energy(hypotheses), _energy(targets)


def _in_chunks(hypotheses: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `wide_products` in chunks of samples on all cores; CPU libraries use a single core for flat products."""
    if hypotheses.ndim < 3 or not is_plain_eager():
        return _at_once(hypotheses, targets)
    per_sample = max(hypotheses.numel(), targets.numel(), 1) // max(len(hypotheses), 1)
    n_samples = max(1, _WIDE_ENTRIES // max(per_sample, 1))
    if n_samples >= len(hypotheses):
        return _at_once(hypotheses, targets)

    def products(chunk: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():  # each thread has its own grad mode
            return _at_once(*chunk)

    chunks = zip(hypotheses.split(n_samples), targets.split(n_samples), strict=True)
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        parts = list(threads.map(products, chunks))
    cross, hypothesis_energy, target_energy = (torch.cat(part) for part in zip(*parts, strict=True))
    return cross, hypothesis_energy, target_energy


def _product_gradient(rows: Tensor, energy_grad: Tensor, cross_grad: Tensor, others: Tensor) -> Tensor:
    """Return the gradient of `rows`: 2 * energy_grad * rows + cross_grad @ others."""
    scaled = (2 * energy_grad).to(rows.dtype).unsqueeze(-1) * rows
    if rows.ndim == 3 and may_work_in_place(energy_grad, cross_grad):
        return scaled.baddbmm_(cross_grad, others)
    return scaled + cross_grad @ others


# A vector with less energy than this counts as zero (a waveform as silence): gradients would overflow float32.
SILENCE = 1e-30


class InnerProducts(NamedTuple):
    """Inner products and squared lengths of hypotheses and targets.

    Attributes:
        cross: Inner product of each pair, [..., targets, hypotheses].
        hypothesis_energy: Squared lengths of the hypotheses, [..., hypotheses].
        target_energy: Squared lengths of the targets, [..., targets].
    """

    cross: Tensor
    hypothesis_energy: Tensor
    target_energy: Tensor


def inner_products(hypotheses: Tensor, targets: Tensor) -> InnerProducts:
    """Return the products of all pairs, accumulated in float64 if the device supports it."""
    if not in_forward_mode():
        return InnerProducts(*wide_products(hypotheses, targets))
    h, t = hypotheses.to(wide_dtype(hypotheses)), targets.to(wide_dtype(targets))
    with without_autocast(h):
        return InnerProducts(t @ h.mT, h.square().sum(dim=-1), t.square().sum(dim=-1))
