"""Sums over pixels of functions of logits. The backward pass recomputes the functions instead of storing them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from torchmcl.costs.distances import wide_dtype, wide_products
from torchmcl.dispatch import may_work_in_place, without_autocast

# Samples are processed in chunks with at least this many logits, in at most this many chunks.
_ENTRIES, _MAX_CHUNKS = 1 << 18, 16


class PixelFunctions(NamedTuple):
    """A function of logits to be multiplied by targets, one to be summed over all pixels, and their derivatives."""

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
    """Return the two sums over pixels, [samples, targets, hypotheses].

    Args:
        functions: Functions of the logits.
        logits: [samples, hypotheses, pixels]
        targets: [samples, targets, pixels], of the dtype of the logits.
        real: [samples, targets, pixels], True where a pixel counts; None when all do.
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
