"""Inner products and energies of every pair, for costs of angles and lengths."""

from typing import NamedTuple

from torch import Tensor

from torchmcl._eager import without_autocast
from torchmcl.accel import accelerated, in_torch
from torchmcl.accel.eager.products import wide_dtype, wide_products

__all__ = ["SILENCE", "InnerProducts", "inner_products"]

# A vector with less energy than this counts as zero (a waveform as silence): gradients would leave float32.
SILENCE = 1e-30


class InnerProducts(NamedTuple):
    """Inner products and squared lengths of two sets of vectors.

    Attributes:
        cross: [..., targets, hypotheses], the inner product of each pair.
        hypothesis_energy: [..., hypotheses], squared lengths.
        target_energy: [..., targets], squared lengths.
    """

    cross: Tensor
    hypothesis_energy: Tensor
    target_energy: Tensor


def inner_products(hypotheses: Tensor, targets: Tensor) -> InnerProducts:
    """Return the products of all pairs, accumulated in float64 if the device supports it."""
    return InnerProducts(*_products(hypotheses, targets))


@accelerated(in_torch(wide_products))
def _products(hypotheses: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    h, t = hypotheses.to(wide_dtype(hypotheses)), targets.to(wide_dtype(targets))
    with without_autocast(h):
        return t @ h.mT, h.square().sum(dim=-1), t.square().sum(dim=-1)
