"""Recurrences of `lstm` for 128 units in 16-bit types, with a manual layout for the tensor cores of Hopper GPUs.

All tiles are transposed, units by sequences. A product can therefore have few sequences, one thread has all four gates
of a unit, and if the gates of a unit are adjacent in memory, a thread reads 16 bytes at once (see `lstm_layouts`).
`lstm_shares` assigns the steps of sequences to programs.
"""

from typing import Any

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

from torchmcl_speech.kernels.lstm_layouts import (
    barrier,
    from_memory,
    gates_from_memory,
    gates_to_memory,
    lines,
    places,
    product_layout,
    to_memory,
)
from torchmcl_speech.kernels.lstm_shares import (
    first_tile,
    hand_over,
    handed_over,
    last_tile,
    shares_of,
    steps_of,
    take_over,
)

__all__ = ["Sizes", "backward", "forward"]

Sizes = tuple[int, int, int]
# Sequences per tile, number of gates whose weights are in registers, and number of steps by which data are prefetched.
# Tiles of 32 sequences, with 8 or 16 warps and the weights in shared memory, took 1.1 to 1.2 times as long.
_FORWARD = {"N": 16, "HELD": 4, "AHEAD": 3, "num_warps": 8}
_BACKWARD = {"N": 16, "HELD": 4, "num_warps": 8}


@gluon.jit
def _tanh(x):  # type: ignore[no-untyped-def]
    return gl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )  # 11 exact bits are enough for 16-bit types


@gluon.jit
def _sigmoid(x):  # type: ignore[no-untyped-def]
    return 0.5 * _tanh(0.5 * x) + 0.5


@gluon.jit
def _weight_on_chip(weight, gate: gl.constexpr, HELD: gl.constexpr, TURNED: gl.constexpr, N: gl.constexpr):  # type: ignore[no-untyped-def]
    """Return the recurrent weight of a gate: in registers for the first HELD gates, in shared memory for the others."""
    if gate < HELD:
        held: gl.constexpr = gl.DotOperandLayout(0, product_layout(N), 2)
        row = gl.arange(0, 128, layout=gl.SliceLayout(1, held))[:, None]
        column = gl.arange(0, 128, layout=gl.SliceLayout(0, held))[None, :]
        return gl.load(weight + gate * 128 * 128 + (column * 128 + row if TURNED else row * 128 + column))
    else:
        layout: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [8, 1], [1, 0])
        row = gl.arange(0, 128, layout=gl.SliceLayout(1, layout))
        column = gl.arange(0, 128, layout=gl.SliceLayout(0, layout))
        values = gl.load(weight + gate * 128 * 128 + row[:, None] * 128 + column[None, :])
        kind: gl.constexpr = weight.dtype.element_ty
        shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([128, 128], kind)
        kept = gl.allocate_shared_memory(kind, [128, 128], shared, values)
        if TURNED:
            return kept.permute([1, 0])
        else:
            return kept


@gluon.jit
def _prefetch(places):  # type: ignore[no-untyped-def]
    """Prefetch cache lines, because the memory latency exceeds the duration of a step."""
    gl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [places], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _issue(x, h, weight_i, weight_f, weight_g, weight_o, N: gl.constexpr):  # type: ignore[no-untyped-def]
    """Start to add the products of the recurrent weights and the last outputs to the gates."""
    i, f, g, o = gates_from_memory(x, N)
    i = warpgroup_mma(weight_i, h, i.to(gl.float32), is_async=True)
    f = warpgroup_mma(weight_f, h, f.to(gl.float32), is_async=True)
    g = warpgroup_mma(weight_g, h, g.to(gl.float32), is_async=True)
    o = warpgroup_mma(weight_o, h, o.to(gl.float32), is_async=True)
    return i, f, g, o


@gluon.jit
def _forward(  # type: ignore[no-untyped-def]
    gates,
    weight,
    outputs,
    cells,
    states,
    flags,
    n_sequences,
    n_inner,
    n_steps,
    n_tiles,
    each,
    stride_b,
    stride_s,
    stride_t,
    N: gl.constexpr,
    HELD: gl.constexpr,
    AHEAD: gl.constexpr,
    KEEP: gl.constexpr,
):
    direction = gl.program_id(1)
    # A share waits for the next one, which must not start later.
    share = gl.num_programs(0) - 1 - gl.program_id(0)
    slot = direction * gl.num_programs(0) + share
    kind: gl.constexpr = outputs.dtype.element_ty
    layout: gl.constexpr = product_layout(N)
    weight += direction * (4 * 128 * 128)
    weight_i = _weight_on_chip(weight, 0, HELD, False, N)
    weight_f = _weight_on_chip(weight, 1, HELD, False, N)
    weight_g = _weight_on_chip(weight, 2, HELD, False, N)
    weight_o = _weight_on_chip(weight, 3, HELD, False, N)
    h = gl.allocate_shared_memory(kind, [128, N], gl.NVMMASharedLayout.get_default_for([128, N], kind))
    # The second direction runs from the last step to the first.
    first = (direction * (n_steps - 1) * stride_t).to(gl.int64)
    advance = ((1 - 2 * direction) * stride_t).to(gl.int64)
    gates += direction * 512 + first * 1024
    outputs += direction * 128 + first * 256
    cells += direction * 128 + first * 256
    for tile in range(first_tile(share, each, n_steps), last_tile(share, each, n_steps, n_tiles)):
        begin, end = steps_of(tile, share, each, n_steps)
        start = tile * N
        wide = places(start, n_sequences, n_inner, stride_b, stride_s, N, 4)
        thin = places(start, n_sequences, n_inner, stride_b, stride_s, N, 1)
        ahead = lines(gates, start, n_sequences, n_inner, stride_b, stride_s, N)
        x = gl.load(gates + begin * advance * 1024 + wide)
        c = gl.full([128, N], 0.0, gl.float32, layout)
        out = c
        if begin > 0:
            c, out = take_over(states, flags, slot, N, layout)
        out = out.to(kind)
        barrier()
        h.store(out)
        fence_async_shared()
        for step in range(begin, end):
            i, f, g, o = _issue(x, h, weight_i, weight_f, weight_g, weight_o, N)
            # Prefetch the data of the next step during the products; at the end, prefetch the last step again.
            _prefetch(ahead + gl.minimum(step + AHEAD, end - 1) * advance * 1024)
            x = gl.load(gates + gl.minimum(step + 1, end - 1) * advance * 1024 + wide)
            i, f, g, o = warpgroup_mma_wait(0, deps=[i, f, g, o])
            if KEEP:
                full = gates_to_memory(i.to(kind), f.to(kind), g.to(kind), o.to(kind), N)
                gl.store(gates + step * advance * 1024 + wide, full)
            c = _sigmoid(f) * c + _sigmoid(i) * _tanh(g)
            out = (_sigmoid(o) * _tanh(c)).to(kind)
            h.store(out)
            fence_async_shared()
            gl.store(outputs + step * advance * 256 + thin, to_memory(out, N))
            gl.store(cells + step * advance * 256 + thin, to_memory(c.to(kind), N))
        if end < n_steps:
            hand_over(states, flags, slot - 1, c, out.to(gl.float32), N, layout)


@gluon.jit
def _pull(x, c, c_before, to_h, to_c, KIND: gl.constexpr, N: gl.constexpr):  # type: ignore[no-untyped-def]
    """Compute the gradients of the gates and of the previous cell."""
    i, f, g, o = gates_from_memory(x, N)
    i, f = _sigmoid(i.to(gl.float32)), _sigmoid(f.to(gl.float32))
    g, o = _tanh(g.to(gl.float32)), _sigmoid(o.to(gl.float32))
    curve = _tanh(c)
    to_c += to_h * o * (1 - curve * curve)
    to_o = (to_h * curve * o * (1 - o)).to(KIND)
    to_i = (to_c * g * i * (1 - i)).to(KIND)
    to_f = (to_c * c_before * f * (1 - f)).to(KIND)
    to_g = (to_c * i * (1 - g * g)).to(KIND)
    return to_i, to_f, to_g, to_o, to_c * f


@gluon.jit
def _backward(  # type: ignore[no-untyped-def]
    gates,
    to_gates,
    weight,
    cells,
    grad,
    states,
    flags,
    n_sequences,
    n_inner,
    n_steps,
    n_tiles,
    each,
    stride_b,
    stride_s,
    stride_t,
    N: gl.constexpr,
    HELD: gl.constexpr,
):
    direction = gl.program_id(1)
    share = gl.num_programs(0) - 1 - gl.program_id(0)
    slot = direction * gl.num_programs(0) + share
    kind: gl.constexpr = gates.dtype.element_ty
    layout: gl.constexpr = product_layout(N)
    weight += direction * (4 * 128 * 128)
    weight_i = _weight_on_chip(weight, 0, HELD, True, N)
    weight_f = _weight_on_chip(weight, 1, HELD, True, N)
    weight_g = _weight_on_chip(weight, 2, HELD, True, N)
    weight_o = _weight_on_chip(weight, 3, HELD, True, N)
    shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([128, N], kind)
    kept_i = gl.allocate_shared_memory(kind, [128, N], shared)
    kept_f = gl.allocate_shared_memory(kind, [128, N], shared)
    kept_g = gl.allocate_shared_memory(kind, [128, N], shared)
    kept_o = gl.allocate_shared_memory(kind, [128, N], shared)
    # The backward pass runs from the last step of the direction to the first step.
    first = ((1 - direction) * (n_steps - 1) * stride_t).to(gl.int64)
    advance = ((2 * direction - 1) * stride_t).to(gl.int64)
    gates += direction * 512 + first * 1024
    to_gates += direction * 512 + first * 1024
    cells += direction * 128 + first * 256
    grad += direction * 128 + first * 256
    for tile in range(first_tile(share, each, n_steps), last_tile(share, each, n_steps, n_tiles)):
        begin, end = steps_of(tile, share, each, n_steps)
        wide = places(tile * N, n_sequences, n_inner, stride_b, stride_s, N, 4)
        thin = places(tile * N, n_sequences, n_inner, stride_b, stride_s, N, 1)
        now = begin * advance
        x, c = gl.load(gates + now * 1024 + wide), gl.load(cells + now * 256 + thin)
        pull = gl.load(grad + now * 256 + thin)
        before = gl.load(cells + gl.minimum(begin + 1, n_steps - 1) * advance * 256 + thin)
        to_c = gl.full([128, N], 0.0, gl.float32, layout)
        to_before = to_c
        if begin > 0:
            to_c, to_before = take_over(states, flags, slot, N, layout)
        for step in range(begin, end):
            earlier = gl.minimum(step + 1, n_steps - 1) * advance
            exists = (step + 1 < n_steps).to(gl.float32)  # zero before the first step
            to_h = to_before + from_memory(pull, N).to(gl.float32)
            c_now, c_before = from_memory(c, N).to(gl.float32), from_memory(before, N).to(gl.float32) * exists
            i, f, g, o, to_c = _pull(x, c_now, c_before, to_h, to_c, kind, N)
            gl.store(to_gates + step * advance * 1024 + wide, gates_to_memory(i, f, g, o, N))
            c = before
            # Prefetch the data of the previous step before the products, because this is faster than after them.
            x, pull = gl.load(gates + earlier * 1024 + wide), gl.load(grad + earlier * 256 + thin)
            before = gl.load(cells + gl.minimum(step + 2, n_steps - 1) * advance * 256 + thin)
            kept_i.store(i)
            kept_f.store(f)
            kept_g.store(g)
            kept_o.store(o)
            fence_async_shared()
            to_before = gl.full([128, N], 0.0, gl.float32, layout)
            to_before = warpgroup_mma(weight_i, kept_i, to_before, use_acc=False, is_async=True)
            to_before = warpgroup_mma(weight_f, kept_f, to_before, is_async=True)
            to_before = warpgroup_mma(weight_g, kept_g, to_before, is_async=True)
            to_before = warpgroup_mma(weight_o, kept_o, to_before, is_async=True)
            to_before = warpgroup_mma_wait(0, deps=[to_before])
        if end < n_steps:
            hand_over(states, flags, slot - 1, to_c, to_before, N, layout)


def forward(
    gates: Tensor, weight: Tensor, outputs: Tensor, cells: Tensor, sizes: Sizes, strides: Sizes, keep: bool
) -> None:
    """Fill outputs and cells; see `lstm.lstm_forward`."""
    _launch(_forward, _FORWARD | {"KEEP": keep}, (gates, weight, outputs, cells), sizes, strides)


def backward(
    gates: Tensor, to_gates: Tensor, weight: Tensor, cells: Tensor, grad: Tensor, sizes: Sizes, strides: Sizes
) -> None:
    """Fill the gradients of the gates; see `lstm.lstm_backward`."""
    _launch(_backward, _BACKWARD, (gates, to_gates, weight, cells, grad), sizes, strides)


def _launch(kernel: Any, options: dict[str, int], matrices: tuple[Tensor, ...], sizes: Sizes, strides: Sizes) -> None:
    (n_outer, n_inner, n_steps), device, tile = sizes, matrices[0].device, options["N"]
    shares = shares_of(n_outer * n_inner, n_steps, tile, device)
    counts = n_outer * n_inner, n_inner, n_steps, shares.n_tiles, shares.n_steps
    room = handed_over(shares, tile, device)
    kernel[(shares.n_programs, 2)](*matrices, *room, *counts, *strides, **options)
