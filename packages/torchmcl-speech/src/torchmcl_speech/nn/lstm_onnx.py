"""Translation of the bidirectional LSTM in exported programs to the LSTM of ONNX."""

from collections.abc import Callable, Sequence
from typing import Any

import onnxscript
import torch

__all__ = ["bilstm", "translations"]

op: Any = onnxscript.opset18


def bilstm(sequences: Any, parameters: Sequence[Any]) -> Any:
    """Return the nodes of an LSTM along the third axis of [batch, sequences, time, features]."""
    hidden = parameters[1].shape[-1]
    steps_first = op.Transpose(sequences, perm=[2, 0, 1, 3])
    rest, both = op.Constant(value_ints=[-1]), op.Constant(value_ints=[2 * hidden])
    ends = op.Shape(steps_first, start=0, end=1), op.Shape(steps_first, start=3, end=4)
    flat = op.Reshape(steps_first, op.Concat(ends[0], rest, ends[1], axis=0))
    biases = op.Concat(_by_direction(parameters[2::4]), _by_direction(parameters[3::4]), axis=1)
    weights = _by_direction(parameters[0::4]), _by_direction(parameters[1::4])
    outputs, _, _ = op.LSTM(flat, *weights, biases, hidden_size=hidden, direction="bidirectional")
    joined = op.Transpose(outputs, perm=[0, 2, 1, 3])  # [time, sequences, directions, hidden]
    shape = op.Concat(op.Shape(steps_first, start=0, end=3), both, axis=0)
    return op.Transpose(op.Reshape(joined, shape), perm=[1, 2, 0, 3])


def _by_direction(values: Sequence[Any]) -> Any:
    """Return [directions, ...] with the gate order of ONNX: input, output, forget, cell; in torch, output is last."""
    first = op.Constant(value_ints=[0])
    reordered = []
    for value in values:
        enter, forget, cell, leave = op.Split(value, axis=0, num_outputs=4)
        reordered.append(op.Unsqueeze(op.Concat(enter, leave, forget, cell, axis=0), first))
    return op.Concat(*reordered, axis=0)


def translations() -> dict[Any, Callable[..., Any]]:
    """Return a mapping from custom operators to their ONNX translations."""
    return {torch.ops.torchmcl_speech.bilstm.default: bilstm}
