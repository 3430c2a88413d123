"""Univariate mixtures of normal kernels in C: best points, highest-density sets, and masses of denser regions.

The functions are in the same extension as the training step, in `c/line.h`; `torchmcl.density` defines them in torch.
Rows are independent of each other and are split across as many threads as torch uses.
"""

import ctypes
from ctypes import Structure, c_double
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl_fleet.native import aligned, available, integers, library, on_threads, pointers

__all__ = ["Mixtures", "Sets", "supports", "trimmed"]

# Number of rows for which memory for intervals is allocated at a time, before the number of intervals is known.
_ROWS_AT_ONCE = 1024
_DOUBLE: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}


class Sets(NamedTuple):
    """Ends of intervals [rows, intervals], padded with NaN, and depth of the deepest gap between them, [rows]."""

    lower: Tensor
    upper: Tensor
    depths: Tensor


class Mixtures(NamedTuple):
    """Mixtures with centers, weights and widths of kernels, each [rows, kernels] and of the same dtype."""

    centers: Tensor
    weights: Tensor
    widths: Tensor

    def best_points(self, n_points: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return points, masses and deviations, [rows, points] each, in double precision."""
        mixtures = _contiguous(self)
        n_rows = len(mixtures.centers)
        points, masses, deviations = (torch.empty(n_rows, n_points, **_DOUBLE) for _ in range(3))

        def part(start: int, stop: int) -> None:
            line, scratch = _arguments(mixtures, start, stop, n_points)
            line.first, line.second, line.third = (x[start:].data_ptr() for x in (points, masses, deviations))
            line.scratch = scratch.data_ptr()
            library().torchmcl_line_points(ctypes.byref(line))

        on_threads(part, n_rows)
        return points, masses, deviations

    def mass_above(self, values: Tensor) -> Tensor:
        """Return the mass, [rows], of the region denser than at the values [rows], in double precision."""
        mixtures, values = _contiguous(self), values.double().contiguous()
        masses = torch.empty(len(values), **_DOUBLE)

        def part(start: int, stop: int) -> None:
            line, scratch = _arguments(mixtures, start, stop, 1)
            line.given, line.first = values[start:].data_ptr(), masses[start:].data_ptr()
            line.scratch = scratch.data_ptr()
            library().torchmcl_line_above(ctypes.byref(line))

        on_threads(part, len(values))
        return masses

    def sets(self, masses: Tensor, fill: float) -> Sets:
        """Return the highest-density sets with the masses [rows], in double precision."""
        mixtures, masses = _contiguous(self), masses.double().contiguous()
        n_rows = len(masses)
        depths = torch.empty(n_rows, **_DOUBLE)
        parts: dict[int, tuple[Tensor, Tensor]] = {}

        def part(start: int, stop: int) -> None:
            most = mixtures.centers.shape[1] + 1
            lower, upper = (torch.empty(_ROWS_AT_ONCE, most, **_DOUBLE) for _ in range(2))
            counts = torch.empty(_ROWS_AT_ONCE, dtype=torch.int64, device="cpu")
            for low in range(start, stop, _ROWS_AT_ONCE):
                high = min(low + _ROWS_AT_ONCE, stop)
                line, scratch = _arguments(mixtures, low, high, most)
                line.fill, line.given, line.scratch = fill, masses[low:].data_ptr(), scratch.data_ptr()
                line.first, line.second, line.third = lower.data_ptr(), upper.data_ptr(), depths[low:].data_ptr()
                line.counts = counts.data_ptr()
                library().torchmcl_line_sets(ctypes.byref(line))
                n = max(int(counts[: high - low].max()), 1)
                parts[low] = lower[: high - low, :n].clone(), upper[: high - low, :n].clone()

        on_threads(part, n_rows)
        n_intervals = max((lower.shape[1] for lower, _ in parts.values()), default=1)
        lower, upper = (torch.full((n_rows, n_intervals), torch.nan, **_DOUBLE) for _ in range(2))
        for low, (lower_ends, upper_ends) in parts.items():
            lower[low : low + len(lower_ends), : lower_ends.shape[1]] = lower_ends
            upper[low : low + len(lower_ends), : lower_ends.shape[1]] = upper_ends
        return Sets(lower, upper, depths)


class _Line(Structure):
    _fields_ = (
        *integers("n_rows n_kernels is_double"),
        *pointers("centers weights widths given"),
        ("fill", c_double),
        *integers("n_columns"),
        *pointers("first second third counts scratch"),
    )


class _Trim(Structure):
    _fields_ = (*integers("n_rows n_kernels"), ("share", c_double), *pointers("values weights kept order"))


def supports(*tensors: Tensor) -> bool:
    """Return whether the extension supports the tensors: float32 or float64 on the CPU, without gradients."""
    if not available():
        return False
    return all(
        tensor.dtype in (torch.float32, torch.float64)
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad and torch.is_grad_enabled())
        for tensor in tensors
    )


def trimmed(centers: Tensor, weights: Tensor, share: float) -> Tensor:
    """Return the weights [rows, kernels] without the fraction `share` of the mass at each end, in double precision."""
    centers, weights = (part.detach().double().contiguous() for part in (centers, weights))
    kept = torch.empty_like(weights)

    def part(start: int, stop: int) -> None:
        order = torch.empty(weights.shape[1], dtype=torch.int64, device="cpu")
        addresses = (x[start:].data_ptr() for x in (centers, weights, kept))
        trim = _Trim(stop - start, weights.shape[1], share, *addresses, order.data_ptr())
        library().torchmcl_trim(ctypes.byref(trim))

    on_threads(part, len(weights))
    return kept


def _contiguous(mixtures: Mixtures) -> Mixtures:
    dtype = torch.promote_types(mixtures.centers.dtype, mixtures.widths.dtype)
    return Mixtures(*(part.detach().to(dtype).contiguous() for part in mixtures))


def _arguments(mixtures: Mixtures, start: int, stop: int, n_columns: int) -> tuple[_Line, Tensor]:
    """Return the C arguments for rows `start` to `stop`, and scratch memory that must stay alive during the call."""
    centers = mixtures.centers
    line = _Line(stop - start, centers.shape[1], centers.dtype == torch.float64)
    line.centers, line.weights, line.widths = (part[start:].data_ptr() for part in mixtures)
    line.n_columns = n_columns
    return line, aligned(library().torchmcl_line_scratch(ctypes.byref(line)), zeroed=False)
