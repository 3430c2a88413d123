"""Costs of sequences computed in chunks: weighted sums of distances, and summed negative log-likelihoods.

Such a cost is a sum over [targets, hypotheses, steps, dim] for each sample. In a plain formula, each operation
allocates such a tensor for the whole batch, and autograd keeps several of them until the backward pass. Here the
formula is evaluated in chunks that fit into the cache, one coordinate at a time. Only the inputs are kept, and the
backward pass evaluates the formula again.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl.dispatch import is_plain_eager, may_work_in_place

__all__ = [
    "GAUSSIAN",
    "LAPLACE",
    "Family",
    "all_likelihoods",
    "all_weighted_distances",
    "summed_nll",
    "weighted_distances",
]

# Entries of an intermediate result: few enough for the cache of a core, enough to hide the overhead of a call.
_ENTRIES_ON_CPU = 1 << 16
_ENTRIES_ELSEWHERE = 1 << 22


class _Formula(NamedTuple):
    """Cost formula that is evaluated on one chunk of samples at a time.

    Attributes:
        value: Function that computes the cost from the tensors of a chunk.
        write_gradients: Function that writes gradients, given the tensors, the gradient of the cost and a tensor or
            None for each leaf.
        definition: Function that computes the same cost with operations that autograd can follow.
        n_leaves: Number of leading tensors that have gradients.
    """

    value: Callable[..., Tensor]
    write_gradients: Callable[..., None]
    definition: Callable[..., Tensor]
    n_leaves: int


def _chunks(*tensors: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """Split tensors into chunks of samples; the first two form all pairs, and None remains None."""
    first, second = tensors[:2]
    assert first is not None
    assert second is not None
    at_once = _ENTRIES_ON_CPU if first.device.type == "cpu" else _ENTRIES_ELSEWHERE
    n_chunks = max(1, min(-(-first.numel() * second.shape[1] // at_once), len(first)))
    split = [[None] * n_chunks if tensor is None else tensor.tensor_split(n_chunks) for tensor in tensors]
    return zip(*split, strict=True)


class _InChunks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, formula: _Formula, *tensors: Tensor | None) -> Tensor:
        ctx.formula = formula
        ctx.save_for_backward(*tensors)
        return torch.cat([formula.value(*chunk) for chunk in _chunks(*tensors)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        formula, tensors = ctx.formula, ctx.saved_tensors
        leaves = list(zip(tensors, ctx.needs_input_grad[1 : formula.n_leaves + 1], strict=False))
        others = [None] * (len(tensors) - formula.n_leaves)
        if not may_work_in_place(grad):
            needed, again = [tensor for tensor, is_needed in leaves if is_needed], torch.is_grad_enabled()
            with torch.enable_grad():
                cost = formula.definition(*tensors)
            leaf_gradients = iter(torch.autograd.grad(cost, needed, grad, create_graph=again))
            return None, *(next(leaf_gradients) if is_needed else None for _, is_needed in leaves), *others
        gradients = [torch.empty_like(tensor) if is_needed else None for tensor, is_needed in leaves]
        for chunk in _chunks(*tensors, grad, *gradients):
            formula.write_gradients(*chunk)
        return None, *gradients, *others


def weighted_distances(hypotheses: Tensor, targets: Tensor, weights: Tensor, *, squared: bool = False) -> Tensor:
    """Compute sum_s weights_s |h_s - y_s| of every pair, [samples, targets, hypotheses].

    Args:
        hypotheses: Predicted sequences, [samples, hypotheses, steps, dim].
        targets: Target sequences, [samples, targets, steps, dim].
        weights: Weights of the steps, [samples, targets, steps], without a gradient.
        squared: Whether to sum squared distances.
    """
    if not is_plain_eager() or hypotheses.shape[-1] == 0:
        return all_weighted_distances(hypotheses, targets, weights, squared=squared)
    formula = _Formula(
        value=partial(_weighted, squared=squared),
        write_gradients=partial(_write_gradients, squared=squared),
        definition=partial(all_weighted_distances, squared=squared),
        n_leaves=2,
    )
    return _InChunks.apply(formula, hypotheses, targets, weights)


def all_weighted_distances(hypotheses: Tensor, targets: Tensor, weights: Tensor, *, squared: bool = False) -> Tensor:
    """Compute `weighted_distances` from a tensor of all distances: the definition, for compilers and transforms."""
    distances = (hypotheses.unsqueeze(-4) - targets.unsqueeze(-3)).square().sum(dim=-1)
    if not squared:
        hit = distances == 0  # where the gradient of the distance is taken as 0
        distances = distances.masked_fill(hit, 1).sqrt().masked_fill(hit, 0)
    return (distances * weights.unsqueeze(-2)).sum(dim=-1)


def _weighted(hypotheses: Tensor, targets: Tensor, weights: Tensor, *, squared: bool) -> Tensor:
    return _distances(hypotheses, targets, squared)[0].mul_(weights.unsqueeze(-2)).sum(dim=-1)


def _distances(hypotheses: Tensor, targets: Tensor, squared: bool) -> tuple[Tensor, list[Tensor]]:
    """Return the distances [samples, targets, hypotheses, steps] and the differences of each coordinate."""
    pairs = zip(hypotheses.unbind(-1), targets.unbind(-1), strict=True)
    differences = [h.unsqueeze(-3) - y.unsqueeze(-2) for h, y in pairs]
    distances = differences[0] * differences[0]
    for difference in differences[1:]:
        distances.addcmul_(difference, difference)
    return distances if squared else distances.sqrt_(), differences


def _write_gradients(
    hypotheses: Tensor,
    targets: Tensor,
    weights: Tensor,
    grad: Tensor,
    to_hypotheses: Tensor | None,
    to_targets: Tensor | None,
    *,
    squared: bool,
) -> None:
    """Write the gradients of the points, given the gradient of the cost."""
    distances, differences = _distances(hypotheses, targets, squared)
    slope = grad.unsqueeze(-1) * weights.unsqueeze(-2)
    slope = slope.mul_(2) if squared else slope.div_(distances).masked_fill_(distances == 0, 0)
    for axis, difference in enumerate(differences):
        pull = difference.mul_(slope)
        if to_hypotheses is not None:
            to_hypotheses[..., axis] = pull.squeeze(1) if pull.shape[1] == 1 else pull.sum(dim=1)
        if to_targets is not None:
            to_targets[..., axis] = pull.sum(dim=2).neg_()


class Family(ABC):
    """Family of distributions with a location and a scale.

    Attributes:
        constant: Part of the negative log-density that depends on neither location nor scale.
    """

    constant: float

    @abstractmethod
    def nll(self, difference: Tensor, scale: Tensor) -> Tensor:
        """Return the negative log-density of target - location, without its constant."""

    @abstractmethod
    def gradients(self, difference: Tensor, scale: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of location and scale; slope is the gradient of the cost divided by the scale."""


class _Gaussian(Family):
    constant = math.log(2 * math.pi) / 2

    def nll(self, difference: Tensor, scale: Tensor) -> Tensor:
        ratio = difference / scale
        return torch.addcmul(scale.log(), ratio, ratio, value=0.5)

    def gradients(self, difference: Tensor, scale: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        ratio = difference.div_(scale)
        to_location = (ratio * slope).neg_()
        return to_location, slope.addcmul_(ratio, to_location)


class _Laplace(Family):
    constant = math.log(2)

    def nll(self, difference: Tensor, scale: Tensor) -> Tensor:
        return torch.addcdiv(scale.log(), difference.abs(), scale)

    def gradients(self, difference: Tensor, scale: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        to_location = (difference.sign() * slope).neg_()
        return to_location, slope.addcmul_(difference.div_(scale), to_location)


GAUSSIAN, LAPLACE = _Gaussian(), _Laplace()


def summed_nll(family: Family, locations: Tensor, targets: Tensor, scale: Tensor, real: Tensor | None) -> Tensor:
    """Compute the negative log-likelihood of every pair, [samples, targets, hypotheses].

    Args:
        family: Family of distributions, `GAUSSIAN` or `LAPLACE`.
        locations: Locations, [samples, hypotheses, coordinates].
        targets: Target points, [samples, targets, coordinates].
        scale: Scales, [samples, hypotheses, coordinates].
        real: Valid coordinates, [samples, targets, coordinates]; None if all are valid.
    """
    cost = _without_constants(family, locations, targets, scale, real)
    # In the dtype of the cost: an integer tensor times a number is float32.
    n_real = targets.shape[-1] if real is None else real.sum(dim=-1, keepdim=True).to(cost.dtype)
    return cost + family.constant * n_real


def _without_constants(
    family: Family, locations: Tensor, targets: Tensor, scale: Tensor, real: Tensor | None
) -> Tensor:
    """Return the sum over the valid coordinates without the constants of the family."""
    if not is_plain_eager():
        return all_likelihoods(family, locations, targets, scale, real)
    formula = _Formula(
        value=partial(_summed, family),
        write_gradients=partial(_write_likelihood_gradients, family),
        definition=partial(all_likelihoods, family),
        n_leaves=3,
    )
    return _InChunks.apply(formula, locations, targets, scale, real)


def all_likelihoods(family: Family, locations: Tensor, targets: Tensor, scale: Tensor, real: Tensor | None) -> Tensor:
    """Compute `_without_constants` from a tensor of all coordinates: the definition, for compilers and transforms."""
    nll = family.nll(targets.unsqueeze(-2) - locations.unsqueeze(-3), scale.unsqueeze(-3))
    return (nll if real is None else nll.masked_fill(~real.unsqueeze(-2), 0)).sum(dim=-1)


def _summed(family: Family, locations: Tensor, targets: Tensor, scale: Tensor, real: Tensor | None) -> Tensor:
    """Compute `all_likelihoods` with the mask applied in place, which is possible without autograd."""
    nll = family.nll(targets.unsqueeze(-2) - locations.unsqueeze(-3), scale.unsqueeze(-3))
    return (nll if real is None else nll.masked_fill_(~real.unsqueeze(-2), 0)).sum(dim=-1)


def _write_likelihood_gradients(
    family: Family,
    locations: Tensor,
    targets: Tensor,
    scale: Tensor,
    real: Tensor | None,
    grad: Tensor,
    to_locations: Tensor | None,
    to_targets: Tensor | None,
    to_scale: Tensor | None,
) -> None:
    """Write the gradients of the inputs, given the gradient of the cost."""
    scale = scale.unsqueeze(-3)
    slope = grad.unsqueeze(-1) / scale
    if real is not None:
        slope = slope.masked_fill_(~real.unsqueeze(-2), 0)
    located, scaled = family.gradients(targets.unsqueeze(-2) - locations.unsqueeze(-3), scale, slope)
    for written, pull, axis in ((to_locations, located, 1), (to_scale, scaled, 1)):
        if written is not None:
            written.copy_(pull.squeeze(axis) if pull.shape[axis] == 1 else pull.sum(dim=axis))
    if to_targets is not None:
        to_targets.copy_(located.sum(dim=2).neg_())
