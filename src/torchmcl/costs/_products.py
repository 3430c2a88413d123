"""Inner products and energies of every pair: the matrix products behind the costs of long vectors."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl._eager import in_forward_mode, is_plain_eager, may_work_in_place
from torchmcl.costs._shapes import without_autocast

__all__ = ["SILENCE", "InnerProducts", "inner_products", "wide_dtype"]

# Upcasting goes a few samples at a time, about this many entries, so that the wide copies stay in the cache.
_CHUNK_ENTRIES = 1 << 20
# A vector with less energy than this counts as zero (a waveform as silence): gradients would leave float32.
SILENCE = 1e-30
# From this many entries on, a GPU needs the rows cut into pieces to be busy.
_LONG = 4096


class InnerProducts(NamedTuple):
    """Everything that a cost built on angles and lengths needs.

    Attributes:
        cross: [..., targets, hypotheses], the inner product of each pair.
        hypothesis_energy: [..., hypotheses], squared lengths.
        target_energy: [..., targets], squared lengths.
    """

    cross: Tensor
    hypothesis_energy: Tensor
    target_energy: Tensor


def wide_dtype(tensor: Tensor) -> torch.dtype:
    """Return float64, or float32 on devices without it."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def inner_products(hypotheses: Tensor, targets: Tensor) -> InnerProducts:
    """Return the products of all pairs, accumulated in float64 where the device has it.

    Only the inputs are kept for the backward pass, which works in the dtype of the inputs.
    """
    if in_forward_mode():
        return InnerProducts(*_wide_products(hypotheses, targets))
    return InnerProducts(*_InnerProducts.apply(hypotheses, targets))


class _InnerProducts(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(hypotheses: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if hypotheses.device.type != "cpu" and hypotheses.shape[-1] >= _LONG:
            dtype = wide_dtype(hypotheses)
            energies = [torch.linalg.vector_norm(x, dim=-1, dtype=dtype).square() for x in (hypotheses, targets)]
            with without_autocast(hypotheses):
                return _split_products(hypotheses, targets), energies[0], energies[1]
        if hypotheses.ndim < 3 or hypotheses.device.type != "cpu" or not is_plain_eager():
            return _wide_products(hypotheses, targets)
        return _wide_products_in_chunks(hypotheses, targets)

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
                to_hypotheses = _pull(hypotheses, grad_hypotheses, grad_cross.mT, targets)
            if ctx.needs_input_grad[1]:
                to_targets = _pull(targets, grad_targets, grad_cross, hypotheses)
        return to_hypotheses, to_targets


def _split_products(hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Return the cross products by way of many short pieces: flat products of long rows leave a GPU idle."""
    n_pieces = next((n for n in (64, 50, 40, 32, 20, 16, 10, 8) if hypotheses.shape[-1] % n == 0), 1)
    pieces = [
        rows.unflatten(-1, (n_pieces, -1)).movedim(-2, -3).to(wide_dtype(rows), memory_format=torch.contiguous_format)
        for rows in (hypotheses, targets)
    ]  # [..., pieces, rows, samples of a piece]
    return (pieces[1] @ pieces[0].mT).sum(dim=-3)


def _wide_products(hypotheses: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dtype = wide_dtype(hypotheses)
    hypotheses, targets = hypotheses.to(dtype), targets.to(dtype)
    energies = [_energy(rows) for rows in (hypotheses, targets)]
    # Autocast would round the products to half precision behind our back.
    with without_autocast(hypotheses):
        return targets @ hypotheses.mT, energies[0], energies[1]


def _energy(rows: Tensor) -> Tensor:
    if in_forward_mode():  # the length of a zero vector has no second derivative
        return rows.square().sum(dim=-1)
    # vector_norm squares and adds in one pass, without a squared copy.
    return torch.linalg.vector_norm(rows, dim=-1).square()


def _wide_products_in_chunks(hypotheses: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Do the same a few samples at a time, on all cores: CPU libraries give such flat products one core."""
    per_sample = max(hypotheses.numel(), targets.numel(), 1) // max(len(hypotheses), 1)
    n_samples = max(1, _CHUNK_ENTRIES // max(per_sample, 1))
    if n_samples >= len(hypotheses):
        return _wide_products(hypotheses, targets)

    def products(chunk: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():  # the grad mode is a thread's own
            return _wide_products(*chunk)

    chunks = zip(hypotheses.split(n_samples), targets.split(n_samples), strict=True)
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        parts = list(threads.map(products, chunks))
    cross, hypothesis_energy, target_energy = (torch.cat(part) for part in zip(*parts, strict=True))
    return cross, hypothesis_energy, target_energy


def _pull(rows: Tensor, energy_grad: Tensor, cross_grad: Tensor, others: Tensor) -> Tensor:
    """Return the gradient at `rows`: 2 * energy_grad * rows + cross_grad @ others."""
    scaled = (2 * energy_grad).to(rows.dtype).unsqueeze(-1) * rows
    if rows.ndim == 3 and may_work_in_place():
        return scaled.baddbmm_(cross_grad, others)
    return scaled + cross_grad @ others
