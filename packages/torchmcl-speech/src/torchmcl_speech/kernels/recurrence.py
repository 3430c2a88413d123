"""Bidirectional LSTMs in C, for inference on CPUs: `lstm.h` in the extension of torchmcl.

`nn.LSTM` is its definition. Sequences are split across as many threads as torch uses; the calls release the GIL.
"""

import ctypes
from collections.abc import Sequence
from ctypes import Structure, c_int64, c_void_p

import torch
from torch import Tensor

from torchmcl.accel.native.extension import aligned, available, library, on_threads


class _Recurrence(Structure):
    _fields_ = (
        ("first", c_int64),
        ("last", c_int64),
        ("n_inner", c_int64),
        ("n_steps", c_int64),
        ("outer_stride", c_int64),
        ("inner_stride", c_int64),
        ("step_stride", c_int64),
        ("n_in", c_int64),
        ("n_hidden", c_int64),
        ("inputs", c_void_p),
        ("weights", c_void_p),
        ("bias", c_void_p),
        ("outputs", c_void_p),
        ("scratch", c_void_p),
    )


def serves(*tensors: Tensor) -> bool:
    """Return whether the extension is available and supports the tensors: single precision, CPU, no gradients."""
    return (
        available()
        and all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors)
        and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
    )


def bilstm(rows: Tensor, shape: Sequence[int], strides: Sequence[int], parameters: Sequence[Tensor]) -> Tensor:
    """Return the hidden states [rows, 2 * hidden] of both directions.

    Args:
        rows: [rows, features], contiguous.
        shape: outer and inner number of sequences, and their steps.
        strides: rows between neighbors along each of the three.
        parameters: of a bidirectional `nn.LSTM`, in its order.
    """
    n_outer, n_inner, n_steps = shape
    hidden = parameters[1].shape[1]
    outputs = rows.new_empty(len(rows), 2 * hidden)
    weights, bias = _packed(parameters)

    def part(start: int, stop: int) -> None:
        sizes = (start, stop, n_inner, n_steps, *strides, rows.shape[1], hidden)
        problem = _Recurrence(*sizes, rows.data_ptr(), weights.data_ptr(), bias.data_ptr(), outputs.data_ptr())
        scratch = aligned(library().torchmcl_lstm_scratch(ctypes.byref(problem)))
        problem.scratch = scratch.data_ptr()
        library().torchmcl_lstm(ctypes.byref(problem))

    on_threads(part, n_outer * n_inner)
    return outputs


def _packed(parameters: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return weights [2, panels, features + hidden, 4, lanes] and biases [2, panels, 4, lanes] in the C layout."""
    lanes = library().torchmcl_lstm_lanes()
    hidden = parameters[1].shape[1]
    more = -hidden % lanes
    both = []
    for weight_in, weight_rec, bias_in, bias_rec in (parameters[:4], parameters[4:]):
        columns = torch.cat([weight_in, weight_rec, (bias_in + bias_rec).unsqueeze(1)], dim=1)
        gates = torch.nn.functional.pad(columns.view(4, hidden, -1), (0, 0, 0, more))
        both.append(gates.view(4, -1, lanes, columns.shape[1]).permute(1, 3, 0, 2))
    packed = torch.stack(both)
    return _in_aligned(packed[:, :, :-1]), _in_aligned(packed[:, :, -1])


def _in_aligned(values: Tensor) -> Tensor:
    memory = aligned(values.numel())[: values.numel()]
    return memory.copy_(values.reshape(-1))
