"""Bidirectional LSTMs for many short sequences along one axis of a map, the recurrent part of `DPRNN`."""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from torchmcl import dispatch

__all__ = ["BiLSTM", "FusedBiLSTM"]

# Hidden sizes that the kernels support: they pad the hidden size to a power of two and store four gates of it.
_FUSED_SIZES = range(16, 257)
_FUSED_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_ARM = platform.machine().lower() in ("aarch64", "arm64")


@torch.library.custom_op("torchmcl_speech::bilstm", mutates_args=())
def exported_bilstm(sequences: Tensor, parameters: list[Tensor]) -> Tensor:
    """Apply a bidirectional LSTM to [batch, sequences, time, features] as one operation of exported programs.

    torch.export would unroll all steps of an `nn.LSTM` and thereby fix the number of steps.
    """
    lstm = BiLSTM(sequences.shape[-1], parameters[1].shape[-1]).to(sequences.device, parameters[0].dtype)
    lstm.load_state_dict(dict(zip(lstm.state_dict(), parameters, strict=True)))
    with torch.no_grad():
        hidden: Tensor = lstm(sequences)
    return hidden.contiguous()


@exported_bilstm.register_fake
def _(sequences: Tensor, parameters: list[Tensor]) -> Tensor:
    return sequences.new_empty(*sequences.shape[:-1], 2 * parameters[1].shape[-1])


class BiLSTM(nn.LSTM):
    """Bidirectional LSTM over one axis of a map, which `DPRNN` allows to replace.

    A replacement must accept the same two arguments, have the parameters of a bidirectional `nn.LSTM` with the same
    names, and accept and return the same logical shapes. Its result may have any memory layout in which the features
    are the last axis.

    Args:
        input_size: Number of input features.
        hidden_size: Number of output features per direction.

    Example:
        >>> BiLSTM(8, 16)(torch.randn(2, 5, 7, 8)).shape
        torch.Size([2, 5, 7, 32])
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size, bidirectional=True)

    def forward(self, sequences: Tensor) -> Tensor:  # type: ignore[override]
        """Return [batch, sequences, time, 2 * hidden] for [batch, sequences, time, features]."""
        if torch.compiler.is_exporting():
            exported: Tensor = exported_bilstm(sequences, list(self._parameters.values()))
            return exported
        batch_shape = sequences.shape[:2]
        time_first = sequences.permute(2, 0, 1, 3).flatten(1, 2)  # layout of cuDNN; the only copy
        if sequences.device.type == "cpu":
            hidden = self._on_cpu(time_first)
        else:
            n_sequences = time_first.shape[1]
            # The tensor core kernels of cuDNN require a multiple of eight sequences; its other kernels are seven
            # times slower.
            if n_sequences % 8:
                time_first = F.pad(time_first, (0, 0, 0, -n_sequences % 8))
            hidden = super().forward(time_first)[0][:, :n_sequences]
        return hidden.unflatten(1, batch_shape).permute(1, 2, 0, 3)

    def onnx_translations(self) -> dict[Any, Any]:
        """Return the ONNX translations of the custom operators of this module, for `torchmcl.export`."""
        from torchmcl_speech.nn.lstm_onnx import translations

        return translations()

    def _on_cpu(self, time_first: Tensor) -> Tensor:
        """Return the hidden states of sequences on a CPU."""
        with torch.autocast("cpu", enabled=False):
            if torch.compiler.is_compiling():  # torch.compile does not support the context manager below
                return self._at_least_single(time_first)
            with _fastest_lstm():
                return self._at_least_single(time_first)

    def _at_least_single(self, time_first: Tensor) -> Tensor:
        """Compute at least in float32, because some processors have no half-precision LSTM."""
        parameters: list[Tensor] = list(self._flat_weights)  # type: ignore[arg-type]
        narrow = parameters[0].dtype
        wide = torch.promote_types(narrow, torch.float32)
        if narrow == wide:
            hidden, _ = nn.LSTM.forward(self, time_first.to(torch.promote_types(time_first.dtype, wide)))
            return hidden
        start = time_first.new_zeros(2, time_first.shape[1], self.hidden_size, dtype=wide)
        weights = [weight.to(wide) for weight in parameters]
        options = (self.bias, self.num_layers, self.dropout, self.training, self.bidirectional, self.batch_first)
        hidden = torch._VF.lstm(time_first.to(wide), (start, start), weights, *options)[0]
        return hidden.to(narrow)


@contextmanager
def _fastest_lstm() -> Iterator[None]:
    """Use the LSTM of torch on ARM, where the LSTM of oneDNN takes twice as long."""
    if not _ARM or not torch._C._get_mkldnn_enabled():
        yield
        return
    torch._C._set_mkldnn_enabled(False)  # like torch.backends.mkldnn.flags, but without its warnings about Intel GPUs
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(True)


class FusedBiLSTM(BiLSTM):
    """`BiLSTM` that is several times faster on GPUs for many short sequences and up to 256 hidden units.

    A GPU program processes all steps of a tile of sequences with the state in registers. The products with the inputs
    and the gradients of the weights are large matrix products. Gates, outputs and cells are stored for the backward
    pass. Parameters and results are those of a bidirectional `nn.LSTM`, which is used on CPUs, for other sizes and
    types, and without Triton.

    Args:
        input_size: Number of input features.
        hidden_size: Number of output features per direction.

    Example:
        >>> lstm = nn.LSTM(8, 32, bidirectional=True, batch_first=True)
        >>> fused = FusedBiLSTM(8, 32)
        >>> fused.load_state_dict(lstm.state_dict())
        <All keys matched successfully>
        >>> sequences = torch.randn(5, 7, 8)
        >>> bool(torch.allclose(fused(sequences), lstm(sequences)[0], atol=1e-6))
        True
    """

    def forward(self, sequences: Tensor) -> Tensor:  # type: ignore[override]
        """Return [..., time, 2 * hidden] for [..., time, features] with one or two leading axes.

        A transposed view is used without a copy.
        """
        if sequences.ndim == 3:
            return self.forward(sequences.unsqueeze(0)).squeeze(0)
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else sequences.dtype
        if not self._can_fuse(sequences, dtype):
            return super().forward(sequences)
        with torch.autocast("cuda", enabled=False):
            keep = torch.is_grad_enabled()
            fused: Tensor = _FusedRecurrence.apply(keep, sequences.to(dtype), *self._parameters.values())
        return fused

    def _can_fuse(self, sequences: Tensor, dtype: torch.dtype) -> bool:
        return (
            dtype in _FUSED_TYPES
            and self.hidden_size in _FUSED_SIZES
            and sequences.numel() > 0
            and dispatch.runs_triton(sequences)
        )


def _in_memory_order(sequences: Tensor) -> tuple[Tensor, list[int]]:
    """Permute the leading axes so that the tensor is contiguous, or copy it; return the tensor and the axis order."""
    strides = sequences.stride()
    order = sorted(range(3), key=lambda axis: -strides[axis])
    if not sequences.permute(*order, 3).is_contiguous():
        return sequences.contiguous(), [0, 1, 2]
    return sequences.permute(*order, 3), order


class _FusedRecurrence(torch.autograd.Function):
    """Both directions of an LSTM on [batch, sequences, time, features].

    The parameters have the order of nn.LSTM, so that autograd records no stacking, casting and splitting.
    """

    @staticmethod
    def forward(ctx: Any, keep: bool, sequences: Tensor, *parameters: Tensor) -> Tensor:
        from torchmcl_speech.kernels.lstm import Rows, lstm_forward, takes_gates_by_unit
        from torchmcl_speech.kernels.lstm_weights import weights_in_order

        ordered, order = _in_memory_order(sequences)
        flat = ordered.reshape(-1, ordered.shape[-1])
        steps = [ordered.stride(order.index(axis)) // ordered.shape[-1] for axis in range(3)]
        n_outer, n_inner, n_steps, _ = sequences.shape
        rows = Rows((n_outer, n_inner, n_steps), (steps[0], steps[1], steps[2]))
        ctx.by_unit = takes_gates_by_unit(flat, parameters[1].shape[1])
        weights = weights_in_order(parameters, flat.dtype, ctx.by_unit)
        gates = torch.addmm(weights.bias, flat, weights.inputs.T)
        outputs, cells = lstm_forward(gates, weights.recurrent, rows, keep)
        ctx.save_for_backward(flat, weights.inputs, weights.recurrent, gates, outputs, cells)
        ctx.rows, ctx.order, ctx.ordered_shape, ctx.dtype = rows, order, ordered.shape[:3], parameters[0].dtype
        return _restored(outputs, ctx.ordered_shape, order)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from torchmcl_speech.kernels.lstm import lstm_backward
        from torchmcl_speech.kernels.lstm_gradients import weight_sums
        from torchmcl_speech.kernels.lstm_weights import parameter_gradients

        flat, weight_in, weight_rec, gates, outputs, cells = ctx.saved_tensors
        pull = grad.permute(*ctx.order, 3).reshape(len(flat), -1)
        to_gates = lstm_backward(gates, weight_rec, cells, pull, ctx.rows)
        to_sequences = None
        if ctx.needs_input_grad[1]:
            to_sequences = _restored(to_gates @ weight_in, ctx.ordered_shape, ctx.order)
        sums = weight_sums(to_gates, flat, outputs, ctx.rows.sizes[2], ctx.rows.strides[2])
        return None, to_sequences, *parameter_gradients(sums, flat.shape[1], ctx.dtype, ctx.by_unit)


def _restored(flat: Tensor, ordered_shape: torch.Size, order: list[int]) -> Tensor:
    """Convert rows in memory order to [batch, sequences, time, features]."""
    back = [order.index(axis) for axis in range(3)]
    return flat.view(*ordered_shape, -1).permute(*back, 3)
