"""Inner products and energies of every pair, accumulated in float64 if the device supports it."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from torchmcl._eager import is_plain_eager, may_work_in_place, without_autocast

__all__ = ["wide_dtype", "wide_products"]

# Upcasting goes a few samples at a time, about this many entries, so that the wide copies stay in the cache.
_CHUNK_ENTRIES = 1 << 20
# From this many entries on, a GPU needs the rows cut into pieces to be busy.
_LONG = 4096


def wide_dtype(tensor: Tensor) -> torch.dtype:
    """Return float64, or float32 on devices without it."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def wide_products(hypotheses: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return cross products [..., targets, hypotheses] and the energies of hypotheses and of targets.

    Only the inputs are kept for the backward pass, which works in the dtype of the inputs.
    """
    products: tuple[Tensor, Tensor, Tensor] = _WideProducts.apply(hypotheses, targets)
    return products


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
                to_hypotheses = _pull(hypotheses, grad_hypotheses, grad_cross.mT, targets)
            if ctx.needs_input_grad[1]:
                to_targets = _pull(targets, grad_targets, grad_cross, hypotheses)
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
    """Compute the same by many short products: flat products of long rows leave a GPU idle."""
    n_pieces = next((n for n in (64, 50, 40, 32, 20, 16, 10, 8) if hypotheses.shape[-1] % n == 0), 1)
    pieces = [
        rows.unflatten(-1, (n_pieces, -1)).movedim(-2, -3).to(wide_dtype(rows), memory_format=torch.contiguous_format)
        for rows in (hypotheses, targets)
    ]  # [..., pieces, rows, samples of a piece]
    with without_autocast(hypotheses):
        return (pieces[1] @ pieces[0].mT).sum(dim=-3), _energy(hypotheses), _energy(targets)


def _in_chunks(hypotheses: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the same for a few samples at a time, on all cores: CPU libraries use one core for flat products."""
    if hypotheses.ndim < 3 or not is_plain_eager():
        return _at_once(hypotheses, targets)
    per_sample = max(hypotheses.numel(), targets.numel(), 1) // max(len(hypotheses), 1)
    n_samples = max(1, _CHUNK_ENTRIES // max(per_sample, 1))
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


def _pull(rows: Tensor, energy_grad: Tensor, cross_grad: Tensor, others: Tensor) -> Tensor:
    """Return the gradient at `rows`: 2 * energy_grad * rows + cross_grad @ others."""
    scaled = (2 * energy_grad).to(rows.dtype).unsqueeze(-1) * rows
    if rows.ndim == 3 and may_work_in_place():
        return scaled.baddbmm_(cross_grad, others)
    return scaled + cross_grad @ others
