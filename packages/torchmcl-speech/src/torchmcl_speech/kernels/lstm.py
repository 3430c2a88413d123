"""Forward and backward recurrences of a bidirectional LSTM for many short sequences.

A library LSTM processes all sequences one step at a time, with a memory round trip at each step. Here, a program
processes all steps of a tile of sequences: the state stays in registers and, for 16-bit types and up to 128 units,
the recurrent weights stay on the chip. Computations that do not depend on the previous step (products with the inputs,
gradients of the weights) are separate large matrix products. The gates are stored for the backward pass.

The gates, cells and outputs of all (sequence, time) pairs are rows of matrices in the memory order of the caller:
time t of sequence (b, s) is row b * stride_b + s * stride_s + t * stride_t.
"""

import functools
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["Rows", "lstm_backward", "lstm_forward", "takes_gates_by_unit"]


class Rows(NamedTuple):
    """Layout of the steps of the sequences: sizes [b, s, t], and strides in rows."""

    sizes: tuple[int, int, int]
    strides: tuple[int, int, int]


@triton.jit
def _tanh(x, QUICK: tl.constexpr):  # type: ignore[no-untyped-def]
    if QUICK:  # one instruction with 11 exact bits, which are enough for 16-bit types
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _sigmoid(x, QUICK: tl.constexpr):  # type: ignore[no-untyped-def]
    if QUICK:
        return 0.5 * _tanh(0.5 * x, QUICK) + 0.5
    return tl.sigmoid(x)


@triton.jit
def _load_gate(gates, row, gate, column, hidden, mask):  # type: ignore[no-untyped-def]
    return tl.load(gates + row[:, None] * (8 * hidden) + gate * hidden + column[None, :], mask=mask, other=0.0)


@triton.jit
def _store_gates(gates, row, column, hidden, i, f, g, o, mask):  # type: ignore[no-untyped-def]
    place = gates + row[:, None] * (8 * hidden) + column[None, :]
    tl.store(place, i, mask=mask)
    tl.store(place + hidden, f, mask=mask)
    tl.store(place + 2 * hidden, g, mask=mask)
    tl.store(place + 3 * hidden, o, mask=mask)


@triton.jit
def _load_row(matrix, row, column, width, mask):  # type: ignore[no-untyped-def]
    return tl.load(matrix + row[:, None] * width + column[None, :], mask=mask, other=0.0)


@triton.jit
def _load_weight(weight, gate, out, into, hidden, mask):  # type: ignore[no-untyped-def]
    """Return a block of a gate's recurrent weight at the index tensors `out` and `into`."""
    return tl.load(weight + (gate * hidden + out) * hidden + into, mask=mask, other=0.0)


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    gates,
    weight,
    outputs,
    cells,
    n_sequences,
    n_inner,
    n_steps,
    hidden,
    stride_b,
    stride_s,
    stride_t,
    KEEP: tl.constexpr,
    ON_CHIP: tl.constexpr,
    QUICK: tl.constexpr,
    PRECISION: tl.constexpr,
    TILE: tl.constexpr,
    H: tl.constexpr,
    CHUNK: tl.constexpr,
):
    direction = tl.program_id(1)
    sequence = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.arange(0, H)
    real = (sequence < n_sequences)[:, None] & (column < hidden)[None, :]
    first = ((sequence // n_inner) * stride_b + (sequence % n_inner) * stride_s).to(tl.int64)
    gates += direction * 4 * hidden
    weight += direction * 4 * hidden * hidden
    cells += direction * hidden
    outputs += direction * hidden
    kind = outputs.dtype.element_ty
    if ON_CHIP:
        into = tl.arange(0, H)
        both = (into < hidden)[:, None] & (column < hidden)[None, :]
        weight_i = _load_weight(weight, 0, column[None, :], into[:, None], hidden, both)
        weight_f = _load_weight(weight, 1, column[None, :], into[:, None], hidden, both)
        weight_g = _load_weight(weight, 2, column[None, :], into[:, None], hidden, both)
        weight_o = _load_weight(weight, 3, column[None, :], into[:, None], hidden, both)
    h = tl.zeros((TILE, H), kind)
    c = tl.zeros((TILE, H), tl.float32)
    row = first + direction * (n_steps - 1) * stride_t
    advance = (1 - 2 * direction) * stride_t
    next_i = _load_gate(gates, row, 0, column, hidden, real)
    next_f = _load_gate(gates, row, 1, column, hidden, real)
    next_g = _load_gate(gates, row, 2, column, hidden, real)
    next_o = _load_gate(gates, row, 3, column, hidden, real)
    for step in range(n_steps):
        i, f, g, o = next_i.to(tl.float32), next_f.to(tl.float32), next_g.to(tl.float32), next_o.to(tl.float32)
        # Prefetch the data of the next step before computing this one.
        coming = real & ((column * 0 + step + 1) < n_steps)[None, :]
        next_i = _load_gate(gates, row + advance, 0, column, hidden, coming)
        next_f = _load_gate(gates, row + advance, 1, column, hidden, coming)
        next_g = _load_gate(gates, row + advance, 2, column, hidden, coming)
        next_o = _load_gate(gates, row + advance, 3, column, hidden, coming)
        if ON_CHIP:
            i = tl.dot(h, weight_i, acc=i, input_precision=PRECISION)
            f = tl.dot(h, weight_f, acc=f, input_precision=PRECISION)
            g = tl.dot(h, weight_g, acc=g, input_precision=PRECISION)
            o = tl.dot(h, weight_o, acc=o, input_precision=PRECISION)
        else:
            for start in range(0, hidden, CHUNK):
                into = start + tl.arange(0, CHUNK)
                # there are no outputs before the first step
                known = (sequence < n_sequences)[:, None] & ((into < hidden) & (into * 0 + step > 0))[None, :]
                # volatile, because other threads of this program have just written it
                place = outputs + (row - advance)[:, None] * (2 * hidden) + into[None, :]
                part = tl.load(place, mask=known, other=0.0, volatile=True)
                both = (into < hidden)[:, None] & (column < hidden)[None, :]
                block = _load_weight(weight, 0, column[None, :], into[:, None], hidden, both)
                i = tl.dot(part, block, acc=i, input_precision=PRECISION)
                block = _load_weight(weight, 1, column[None, :], into[:, None], hidden, both)
                f = tl.dot(part, block, acc=f, input_precision=PRECISION)
                block = _load_weight(weight, 2, column[None, :], into[:, None], hidden, both)
                g = tl.dot(part, block, acc=g, input_precision=PRECISION)
                block = _load_weight(weight, 3, column[None, :], into[:, None], hidden, both)
                o = tl.dot(part, block, acc=o, input_precision=PRECISION)
        if KEEP:
            _store_gates(gates, row, column, hidden, i.to(kind), f.to(kind), g.to(kind), o.to(kind), real)
        c = _sigmoid(f, QUICK) * c + _sigmoid(i, QUICK) * _tanh(g, QUICK)
        h = (_sigmoid(o, QUICK) * _tanh(c, QUICK)).to(kind)
        tl.store(outputs + row[:, None] * (2 * hidden) + column[None, :], h, mask=real)
        tl.store(cells + row[:, None] * (2 * hidden) + column[None, :], c.to(kind), mask=real)
        if not ON_CHIP:
            tl.debug_barrier()  # the next step reads the results of all threads
        row += advance


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    gates,
    to_gates,
    weight,
    cells,
    grad,
    n_sequences,
    n_inner,
    n_steps,
    hidden,
    stride_b,
    stride_s,
    stride_t,
    ON_CHIP: tl.constexpr,
    QUICK: tl.constexpr,
    PRECISION: tl.constexpr,
    TILE: tl.constexpr,
    H: tl.constexpr,
    CHUNK: tl.constexpr,
):
    direction = tl.program_id(1)
    sequence = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.arange(0, H)
    real = (sequence < n_sequences)[:, None] & (column < hidden)[None, :]
    first = ((sequence // n_inner) * stride_b + (sequence % n_inner) * stride_s).to(tl.int64)
    gates += direction * 4 * hidden
    to_gates += direction * 4 * hidden
    weight += direction * 4 * hidden * hidden
    cells += direction * hidden
    grad += direction * hidden
    kind = gates.dtype.element_ty
    if ON_CHIP:
        out = tl.arange(0, H)
        both = (out < hidden)[:, None] & (column < hidden)[None, :]
        weight_i = _load_weight(weight, 0, out[:, None], column[None, :], hidden, both)
        weight_f = _load_weight(weight, 1, out[:, None], column[None, :], hidden, both)
        weight_g = _load_weight(weight, 2, out[:, None], column[None, :], hidden, both)
        weight_o = _load_weight(weight, 3, out[:, None], column[None, :], hidden, both)
    # The backward pass runs from the last step of the direction to the first step.
    row = first + (1 - direction) * (n_steps - 1) * stride_t
    advance = (2 * direction - 1) * stride_t
    to_h = tl.zeros((TILE, H), tl.float32)
    to_c = tl.zeros((TILE, H), tl.float32)
    c = _load_row(cells, row, column, 2 * hidden, real)
    next_i = _load_gate(gates, row, 0, column, hidden, real)
    next_f = _load_gate(gates, row, 1, column, hidden, real)
    next_g = _load_gate(gates, row, 2, column, hidden, real)
    next_o = _load_gate(gates, row, 3, column, hidden, real)
    next_grad = _load_row(grad, row, column, 2 * hidden, real)
    for step in range(n_steps):
        i, f, g, o = next_i.to(tl.float32), next_f.to(tl.float32), next_g.to(tl.float32), next_o.to(tl.float32)
        to_h += next_grad.to(tl.float32)
        # Prefetch the data of the previous step before computing this one; zero before the first step.
        earlier = real & ((column * 0 + step + 1) < n_steps)[None, :]
        c_before = _load_row(cells, row + advance, column, 2 * hidden, earlier)
        next_i = _load_gate(gates, row + advance, 0, column, hidden, earlier)
        next_f = _load_gate(gates, row + advance, 1, column, hidden, earlier)
        next_g = _load_gate(gates, row + advance, 2, column, hidden, earlier)
        next_o = _load_gate(gates, row + advance, 3, column, hidden, earlier)
        next_grad = _load_row(grad, row + advance, column, 2 * hidden, earlier)
        i, f, g, o = _sigmoid(i, QUICK), _sigmoid(f, QUICK), _tanh(g, QUICK), _sigmoid(o, QUICK)
        curve = _tanh(c.to(tl.float32), QUICK)
        to_c += to_h * o * (1 - curve * curve)
        to_o = (to_h * curve * o * (1 - o)).to(kind)
        to_i = (to_c * g * i * (1 - i)).to(kind)
        to_f = (to_c * c_before.to(tl.float32) * f * (1 - f)).to(kind)
        to_g = (to_c * i * (1 - g * g)).to(kind)
        to_c = to_c * f
        _store_gates(to_gates, row, column, hidden, to_i, to_f, to_g, to_o, real)
        if ON_CHIP:
            to_h = tl.dot(to_i, weight_i, input_precision=PRECISION)
            to_h = tl.dot(to_f, weight_f, acc=to_h, input_precision=PRECISION)
            to_h = tl.dot(to_g, weight_g, acc=to_h, input_precision=PRECISION)
            to_h = tl.dot(to_o, weight_o, acc=to_h, input_precision=PRECISION)
        else:
            tl.debug_barrier()  # wait for all threads, because a thread reads results of other threads next
            to_h = tl.zeros((TILE, H), tl.float32)
            for start in range(0, 4 * hidden, CHUNK):
                out = start + tl.arange(0, CHUNK)
                known = (sequence < n_sequences)[:, None] & (out < 4 * hidden)[None, :]
                written = to_gates + row[:, None] * (8 * hidden) + out[None, :]
                part = tl.load(written, mask=known, other=0.0, volatile=True)
                both = (out < 4 * hidden)[:, None] & (column < hidden)[None, :]
                block = tl.load(weight + out[:, None] * hidden + column[None, :], mask=both, other=0.0)
                to_h = tl.dot(part, block, acc=to_h, input_precision=PRECISION)
        c = c_before
        row += advance


class _Launch(NamedTuple):
    """Grid and options of a kernel launch."""

    grid: tuple[int, int]
    options: dict[str, Any]


class _Tile(NamedTuple):
    """Numbers of sequences and warps per program, and relative duration of a round on Hopper."""

    size: int
    warps: int
    cost: float


_FORWARD_TILES = (_Tile(16, 8, 0.17), _Tile(32, 8, 0.33), _Tile(64, 16, 0.48))
_BACKWARD_TILES = (_Tile(16, 8, 0.31),)
# If the weights do not fit on the chip, a program reads them at each step, `_CHUNK` units at a time.
_OFF_CHIP = _Tile(16, 8, 1.0)
_CHUNK = 32


def _launch(rows: Rows, hidden: int, gates: Tensor, tiles: tuple[_Tile, ...]) -> _Launch:
    size = max(16, triton.next_power_of_2(hidden))
    on_chip = gates.dtype != torch.float32 and size <= 128
    n_sequences = rows.sizes[0] * rows.sizes[1]
    # The weights fill the chip's memory, so a multiprocessor takes one program at a time.
    n_at_once = torch.cuda.get_device_properties(gates.device).multi_processor_count if gates.is_cuda else 1

    def seconds(tile: _Tile) -> float:
        return tile.cost * triton.cdiv(2 * triton.cdiv(n_sequences, tile.size), n_at_once)

    tile = min(tiles, key=seconds) if on_chip else _OFF_CHIP
    options = {
        "ON_CHIP": on_chip,
        "QUICK": gates.dtype != torch.float32 and gates.is_cuda,
        "PRECISION": "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32",
        "TILE": tile.size,
        "H": size,
        "CHUNK": min(_CHUNK, size),
        "num_warps": tile.warps,
        "num_stages": 1,
    }
    return _Launch((triton.cdiv(n_sequences, tile.size), 2), options)


def lstm_forward(gates: Tensor, weight: Tensor, rows: Rows, keep: bool) -> tuple[Tensor, Tensor]:
    """Compute the outputs and the cells of both directions, each [rows, 2 * hidden].

    Args:
        gates: Contributions of the inputs and the biases to the gates i, f, g, o of both directions,
            [rows, 2 * 4 * hidden].
        weight: Recurrent weights [2, 4 * hidden, hidden], see `lstm_weights.Weights`.
        rows: Layout of the steps of the sequences.
        keep: Whether to add the recurrent contributions to `gates` in place, for the backward pass.
    """
    n_rows, width = gates.shape
    hidden = width // 8
    outputs = gates.new_empty(n_rows, 2 * hidden)
    cells = torch.empty_like(outputs)
    if takes_gates_by_unit(gates, hidden):
        from torchmcl_speech.kernels import lstm_hopper

        lstm_hopper.forward(gates, weight, outputs, cells, rows.sizes, rows.strides, keep)
        return outputs, cells
    launch = _launch(rows, hidden, gates, _FORWARD_TILES)
    n_outer, n_inner, n_steps = rows.sizes
    _forward[launch.grid](
        gates,
        weight,
        outputs,
        cells,
        n_outer * n_inner,
        n_inner,
        n_steps,
        hidden,
        *rows.strides,
        KEEP=keep,
        **launch.options,
    )
    return outputs, cells


def takes_gates_by_unit(like: Tensor, hidden: int) -> bool:
    """Return whether the kernels expect the four gates of each unit to be adjacent.

    Args:
        like: Matrix with the number of rows, the type and the device of the gates.
        hidden: Number of units.
    """
    return (
        like.is_cuda
        and like.dtype != torch.float32
        and hidden == 128
        and len(like) * 8 * hidden < 2**31  # its offsets are 32-bit integers
        and _is_hopper(like.device)
    )


@functools.cache
def _is_hopper(device: torch.device) -> bool:
    try:  # if this experimental part of Triton has changed, fall back to the kernel above
        from torchmcl_speech.kernels import lstm_hopper  # noqa: F401
    except (ImportError, AttributeError):
        return False
    return torch.cuda.get_device_capability(device) == (9, 0)


def lstm_backward(gates: Tensor, weight: Tensor, cells: Tensor, grad: Tensor, rows: Rows) -> Tensor:
    """Compute the gradients of the gates.

    Args:
        gates: Gates before their activations, stored by `lstm_forward`, [rows, 2 * 4 * hidden].
        weight: Recurrent weights [2, 4 * hidden, hidden], see `lstm_weights.Weights`.
        cells: Cells of the forward pass, [rows, 2 * hidden].
        grad: Gradient of the outputs, [rows, 2 * hidden].
        rows: Layout of the steps of the sequences.
    """
    hidden = gates.shape[1] // 8
    to_gates = torch.empty_like(gates)
    if takes_gates_by_unit(gates, hidden):
        from torchmcl_speech.kernels import lstm_hopper

        lstm_hopper.backward(gates, to_gates, weight, cells, grad, rows.sizes, rows.strides)
        return to_gates
    launch = _launch(rows, hidden, gates, _BACKWARD_TILES)
    n_outer, n_inner, n_steps = rows.sizes
    _backward[launch.grid](
        gates,
        to_gates,
        weight,
        cells,
        grad,
        n_outer * n_inner,
        n_inner,
        n_steps,
        hidden,
        *rows.strides,
        **launch.options,
    )
    return to_gates
