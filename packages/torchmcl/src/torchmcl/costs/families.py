"""Families of distributions around hypotheses: normals with correlated coordinates.

A family is a pairwise cost (the negative log-likelihood). It also defines the scales of a `MultiHypothesisHead` and the
components of a `torch.distributions` mixture, for training, sampling and prediction sets.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal

from torchmcl.checks import check_tensor
from torchmcl.costs.declared import CostDeclaration, aligned_events, n_valid_steps
from torchmcl.costs.distances import wide_dtype
from torchmcl.dispatch import broadcast_shapes, without_autocast
from torchmcl.errors import bad_value

__all__ = [
    "BivariateNormal",
    "FullNormal",
    "HypothesisFamily",
]

_LOG_TAU = math.log(2 * math.pi)
# Number of coordinates up to which substitution is faster than a triangular solver (7 times at 2, 1.5 times at 4).
_SMALL = 4
# The density of two coordinates grows without limit as the correlation approaches 1.
_LARGEST_CORRELATION = 0.99


@dataclass(frozen=True)
class HypothesisFamily(ABC):
    """Base class of families of distributions over the last axis of an event; steps are independent.

    An instance is a cost: call it, or pass it to `mcl_step` or `MixtureNLL`.
    """

    declaration = CostDeclaration(event_dims=...)

    @abstractmethod
    def scale_shape(self, dim: int) -> tuple[int, ...]:
        """Return the shape of the scale for `dim` coordinates."""

    @abstractmethod
    def n_scales(self, dim: int) -> int:
        """Return the number of network outputs that define the scale for `dim` coordinates."""

    @abstractmethod
    def scale(self, raw: Tensor, smallest: float) -> Tensor:
        """Return a valid scale from unconstrained numbers [..., n_scales]."""

    @abstractmethod
    def distribution(self, locations: Tensor, scale: Tensor) -> Distribution:
        """Return a torch distribution over [..., dim]."""

    @abstractmethod
    def _nll(self, offsets: Tensor, scale: Tensor) -> Tensor:
        """Return the negative log density [..., pairs] at offsets [..., dim, pairs] from the location."""

    def __call__(
        self,
        *,
        hypotheses: Tensor,
        targets: Tensor,
        scale: Tensor,
        mask: Tensor | None = None,
        event_dims: int = 1,
        per_step: bool = False,
    ) -> Tensor:
        """Return the negative log-density of every target under every hypothesis, [..., targets, hypotheses].

        Args:
            hypotheses: Locations, [..., hypotheses, dim], or [..., hypotheses, steps, dim] with `event_dims=2`.
            targets: Targets, [..., targets, dim] or [..., targets, steps, dim]; masked steps are ignored, even NaN.
            scale: Scales, [..., hypotheses, (steps,)] followed by the axes of `scale_shape(dim)`.
            mask: Valid steps, [..., targets, steps]; None if all are valid.
            event_dims: Number of axes of one hypothesis; supplied by `mcl_step`.
            per_step: Whether to divide by the number of valid steps, so that long and short sequences count alike.
        """
        owner = type(self).__name__
        scale = self.checked_scale(owner, scale, hypotheses)
        if mask is not None and event_dims < 2:
            rule = "be None for vectors, because their coordinates are correlated"
            raise ValueError(bad_value(owner, "mask", rule, "a mask", "Sequences have a step mask."))
        hypotheses, targets, mask = aligned_events(owner, hypotheses, targets, mask, event_dims, whole_steps=True)
        scale_axes = len(self.scale_shape(hypotheses.shape[-1]))
        scale = scale.to(hypotheses.dtype).expand(*hypotheses.shape[:-1], *scale.shape[scale.ndim - scale_axes :])
        steps = hypotheses.shape[-event_dims:-1]
        n_steps = n_valid_steps(mask, targets, event_dims) if per_step else 1
        hypotheses, targets = (_one_axis_of_steps(x, event_dims, 1) for x in (hypotheses, targets))
        scale = _one_axis_of_steps(scale, event_dims, scale_axes)
        columns = targets.movedim(-3, -1).unsqueeze(-4)  # [..., 1, steps, dim, targets]
        with without_autocast(hypotheses):
            nll = self._nll(columns - hypotheses.unsqueeze(-1), scale).movedim(
                -1, -3
            )  # [..., targets, hypotheses, steps]
        if mask is None:
            return nll.sum(dim=-1) / n_steps
        real = mask.view(*mask.shape, *[1] * (len(steps) - 1)).expand(*mask.shape, *steps[1:]).flatten(mask.ndim - 1)
        return (nll * real.unsqueeze(-2)).sum(dim=-1) / n_steps

    def checked_scale(self, owner: str, scale: Tensor, hypotheses: Tensor) -> Tensor:
        """Check a scale, which has as many axes as documented, and expand it to all hypotheses."""
        check_tensor(owner, "hypotheses", hypotheses)
        if scale is None:
            advice = f"A head with scales={owner}(...) gives them: Distributions(hypotheses, score_logits, scale)."
            raise ValueError(f"{owner}: `scale` is required. {advice}")
        check_tensor(owner, "scale", scale)
        last = self.scale_shape(hypotheses.shape[-1])
        whole = torch.Size((*hypotheses.shape[:-1], *last))
        try:  # all axes are required, because standard deviations could be mistaken for a matrix
            axes = (scale.ndim, scale.shape[-len(last) :])
            fits = axes == (len(whole), last) and broadcast_shapes(scale.shape, whole) == whole
        except RuntimeError:
            fits = False
        if not fits:
            rule = f"broadcast to {tuple(whole)} for `hypotheses` {tuple(hypotheses.shape)}"
            raise ValueError(bad_value(owner, "scale", rule, tuple(scale.shape)))
        return scale.expand(whole)


@dataclass(frozen=True)
class FullNormal(HypothesisFamily):
    """Normal distribution with a full covariance; the scale is its Cholesky factor, [..., dim, dim].

    Example:
        >>> hypotheses, targets = torch.zeros(1, 2), torch.tensor([[1.0, 1.0]])
        >>> factor = torch.tensor([[[1.0, 0.0], [0.8, 0.6]]])  # correlation 0.8
        >>> FullNormal()(hypotheses=hypotheses, targets=targets, scale=factor)
        tensor([[1.8826]])
        >>> import torchmcl as mcl
        >>> model = mcl.MultiHypothesisMLP(in_features=3, out_features=2, n_hypotheses=4, scales=FullNormal())
        >>> model(torch.randn(8, 3)).scale.shape
        torch.Size([8, 4, 2, 2])
    """

    def scale_shape(self, dim: int) -> tuple[int, ...]:
        """Return (dim, dim)."""
        return (dim, dim)

    def n_scales(self, dim: int) -> int:
        """Return the number of entries of a lower triangle."""
        return dim * (dim + 1) // 2

    def scale(self, raw: Tensor, smallest: float) -> Tensor:
        """Return the Cholesky factor: softplus of its diagonal, followed by the rows below the diagonal."""
        dim = (math.isqrt(8 * raw.shape[-1] + 1) - 1) // 2
        diagonal = torch.nn.functional.softplus(raw[..., :dim]) + smallest
        entries = torch.cat([torch.zeros_like(raw[..., :1]), diagonal, raw[..., dim:]], dim=-1)
        column = torch.arange(dim, device=raw.device)
        row = column.unsqueeze(-1)
        below = dim + 1 + row * (row - 1) // 2 + column  # the index of each entry, 0 above the diagonal
        return entries[..., torch.where(row == column, row + 1, below.masked_fill(row < column, 0))]

    def distribution(self, locations: Tensor, scale: Tensor) -> Distribution:
        """Return a `MultivariateNormal`."""
        return MultivariateNormal(locations, scale_tril=self._factor(scale), validate_args=False)

    def _factor(self, scale: Tensor) -> Tensor:
        """Return the lower triangle [..., dim, dim]."""
        return scale.tril()

    def _nll(self, offsets: Tensor, scale: Tensor) -> Tensor:
        factor = self._factor(scale)
        white = _solved(factor, offsets)
        volume = factor.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1) + 0.5 * _LOG_TAU * factor.shape[-1]
        return 0.5 * white.square().sum(dim=-2) + volume.unsqueeze(-1)


@dataclass(frozen=True)
class BivariateNormal(FullNormal):
    """Normal distribution in the plane; the scale is two standard deviations and their correlation, [..., 3].

    It is used by MTR, Trajectron and Social-LSTM. The head keeps the correlation within 0.99.

    Example:
        >>> one = {"hypotheses": torch.zeros(1, 2), "targets": torch.tensor([[1.0, 1.0]])}
        >>> BivariateNormal()(**one, scale=torch.tensor([[1.0, 1.0, 0.8]]))
        tensor([[1.8826]])
    """

    def scale_shape(self, dim: int) -> tuple[int, ...]:
        """Return (3,), for two coordinates.

        Raises:
            ValueError: For other numbers of coordinates.
        """
        if dim != 2:
            advice = "FullNormal() supports any number."
            raise ValueError(bad_value("BivariateNormal", "hypotheses", "have two coordinates", dim, advice))
        return (3,)

    def n_scales(self, dim: int) -> int:
        """Return 3."""
        return self.scale_shape(dim)[0]

    def scale(self, raw: Tensor, smallest: float) -> Tensor:
        """Return the scale: softplus of two numbers, and tanh of the third."""
        deviations = torch.nn.functional.softplus(raw[..., :2]) + smallest
        return torch.cat([deviations, _LARGEST_CORRELATION * raw[..., 2:].tanh()], dim=-1)

    def _factor(self, scale: Tensor) -> Tensor:
        first, second, correlation = scale.unbind(dim=-1)
        zero, own = torch.zeros_like(first), second * (1 - correlation.square()).sqrt()
        return torch.stack([first, zero, correlation * second, own], dim=-1).unflatten(-1, (2, 2))


def _one_axis_of_steps(tensor: Tensor, event_dims: int, n_last: int) -> Tensor:
    """Return a tensor [..., n, *steps, *last] with exactly one axis of steps, which has length 1 for vectors."""
    first = tensor.ndim - n_last - (event_dims - 1)
    return tensor.unsqueeze(first) if event_dims == 1 else tensor.flatten(first, first + event_dims - 2)


def _solved(factor: Tensor, columns: Tensor) -> Tensor:
    """Return factor^-1 @ columns for a lower triangle [..., dim, dim] and columns [..., dim, n]."""
    dim = factor.shape[-1]
    if dim > _SMALL:
        wide = wide_dtype(columns)  # not rounded by autocast, not even in the backward pass
        return torch.linalg.solve_triangular(factor.to(wide), columns.to(wide), upper=False).to(columns.dtype)
    rows: list[Tensor] = []
    for i in range(dim):
        row = columns[..., i, :]
        for j in range(i):
            row = row - factor[..., i, j, None] * rows[j]
        rows.append(row / factor[..., i, i, None])
    return torch.stack(rows, dim=-2)
