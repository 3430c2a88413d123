"""The forward pass of mixture networks in C, `c/forward.h`, on as many threads as torch uses."""

import ctypes
from collections.abc import Sequence
from ctypes import Structure

import torch
from torch import Tensor

from torchmcl_fleet.native.extension import (
    NetworkFields,
    RowsFields,
    aligned,
    integers,
    library,
    on_threads,
    pointers,
)


class _Forward(Structure):
    _fields_ = (
        *integers("first last n_models n_parameters"),
        *pointers("flat values shares widths scratch"),
    )


def mixture_kernels(
    flat: Tensor,
    sizes: Sequence[int],
    n_hypotheses: int,
    min_scale: float,
    *,
    given: Tensor,
    lower: Tensor,
    between: Tensor,
    run_lengths: Sequence[int],
    widths: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return centers, shares and widths of the normal kernels that ReLU networks predict, in double precision.

    Args:
        flat: parameters [networks, parameters], of each layer the weight [out, in] and then the bias, float32.
        sizes: features of the inputs and of the outputs of each layer.
        n_hypotheses: of a network: values come first in the last layer, then score logits, then raw scales.
        min_scale: added to the softplus of the raw scales.
        given: [rows, columns], the inputs before the runs, float32.
        lower: [rows, runs], see `torchmcl_fleet.native.compiled.Ladders`; int32.
        between: [rows, runs], float32.
        run_lengths: columns of each run.
        widths: whether to compute them; means do not need any.

    Returns:
        Values [rows, networks * hypotheses, dims], shares [rows, networks * hypotheses], which sum to 1, and widths
        like the values, or [rows, 0, dims].
    """
    n_rows, n_kernels = len(given), len(flat) * n_hypotheses
    n_dims = (sizes[-1] // n_hypotheses - 1) // 2
    flat, given, lower, between = (part.contiguous() for part in (flat, given, lower, between))
    shape, lengths = torch.tensor(sizes, device="cpu"), torch.tensor(run_lengths, dtype=torch.int64, device="cpu")
    network = NetworkFields(
        n_layers=len(sizes) - 1,
        sizes=shape.data_ptr(),
        n_hypotheses=n_hypotheses,
        n_dims=n_dims,
        n_given=given.shape[1],
        n_runs=len(lengths),
        run_lengths=lengths.data_ptr(),
        is_mixture=1,
        min_scale=min_scale,
    )
    rows = RowsFields(n_set_rows=n_rows, inputs=given.data_ptr(), lower=lower.data_ptr(), between=between.data_ptr())
    shapes = ((n_rows, n_kernels, n_dims), (n_rows, n_kernels), (n_rows, n_kernels if widths else 0, n_dims))
    found = tuple(torch.empty(shape, dtype=torch.float64, device="cpu") for shape in shapes)

    def part(first: int, last: int) -> None:
        scratch = aligned(library().torchmcl_forward_scratch(ctypes.byref(network)), zeroed=False)
        written = (part.data_ptr() for part in (flat, *found, scratch))
        forward = _Forward(first, last, *flat.shape, *written)
        forward.widths = forward.widths if widths else None
        library().torchmcl_forward(ctypes.byref(network), ctypes.byref(rows), ctypes.byref(forward))

    on_threads(part, n_rows)
    values, shares, deviations = found
    return values, shares, deviations
