"""The recurrences of `lstm` for 128 units in 16-bit types, laid out by hand for the tensor cores of Hopper.

Two chains of sequences share the recurrent weights of a multiprocessor: while the products of one chain run, the other
computes its gates. Everything is transposed, units by sequences: so a product can have few sequences, all four gates of
a unit meet in one thread, and where the gates of a unit are neighbors in memory a thread reads 16 bytes at once.

The rows of a product are not units in order: rows m and m + 8 of a group of 16 belong to one thread, so they are given
neighboring units. `weight_in_product_order` permutes the recurrent weights accordingly.
"""

import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

__all__ = ["HIDDEN", "backward", "forward", "weight_in_product_order"]

HIDDEN = 128
Sizes = tuple[int, int, int]
# Sequences of a program, gates whose weights are in registers, and how many steps before its turn a step is fetched.
_FORWARD = {"N": 16, "HELD": 4, "AHEAD": 3, "num_warps": 8}
_BACKWARD = {"N": 16, "HELD": 4, "num_warps": 8}


@gluon.constexpr_function
def _product_layout(n):  # type: ignore[no-untyped-def]
    """Return how [units, sequences] lie in the registers after a product."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[8, 1], instr_shape=[16, n, 16])


@gluon.constexpr_function
def _memory_layout(n, width):  # type: ignore[no-untyped-def]
    """Return the same for [sequences, columns] in memory, with 1 or 4 columns for each unit."""
    gates = [[0, 1 << bit] for bit in range(2)] if width == 4 else []
    more = [[8 << bit, 0] for bit in range((n // 8).bit_length() - 1)]
    registers = [*gates, [0, width], [1, 0], *more]
    lanes = [[2, 0], [4, 0], [0, 2 * width], [0, 4 * width], [0, 8 * width]]
    warps = [[0, 16 * width], [0, 32 * width], [0, 64 * width]]
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [n, 128 * width])


@gluon.jit
def _from_memory(x, N: gl.constexpr):  # type: ignore[no-untyped-def]
    """Return [units, sequences] of [sequences, units]: no data moves between threads."""
    ordered = x.reshape([N, 8, 8, 2]).permute([1, 3, 2, 0]).reshape([128, N])
    return gl.convert_layout(ordered, _product_layout(N), assert_trivial=True)


@gluon.jit
def _to_memory(x, N: gl.constexpr):  # type: ignore[no-untyped-def]
    """Return [sequences, units] of [units, sequences]: no data moves between threads."""
    ordered = x.reshape([8, 2, 8, N]).permute([3, 0, 2, 1]).reshape([N, 128])
    return gl.convert_layout(ordered, _memory_layout(N, 1), assert_trivial=True)


@gluon.jit
def _gates_from_memory(x, N: gl.constexpr):  # type: ignore[no-untyped-def]
    even, odd = gl.split(x.reshape([N, 128, 2, 2]))
    i, g = gl.split(even)
    f, o = gl.split(odd)
    return _from_memory(i, N), _from_memory(f, N), _from_memory(g, N), _from_memory(o, N)


@gluon.jit
def _gates_to_memory(i, f, g, o, N: gl.constexpr):  # type: ignore[no-untyped-def]
    even = gl.join(_to_memory(i, N), _to_memory(g, N))
    odd = gl.join(_to_memory(f, N), _to_memory(o, N))
    return gl.convert_layout(gl.join(even, odd).reshape([N, 512]), _memory_layout(N, 4), assert_trivial=True)


@gluon.jit
def _tanh(x):  # type: ignore[no-untyped-def]
    return gl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )  # exact to 11 bits: enough for 16-bit types


@gluon.jit
def _sigmoid(x):  # type: ignore[no-untyped-def]
    return 0.5 * _tanh(0.5 * x) + 0.5


@gluon.jit
def _places(start, n_sequences, n_inner, stride_b, stride_s, N: gl.constexpr, WIDTH: gl.constexpr):  # type: ignore[no-untyped-def]
    """Return where the first steps of a chain stand, in a matrix of 2 * 128 * WIDTH columns, and which are real."""
    layout: gl.constexpr = _memory_layout(N, WIDTH)
    sequence = start + gl.arange(0, N, layout=gl.SliceLayout(1, layout))
    column = gl.arange(0, 128 * WIDTH, layout=gl.SliceLayout(0, layout))
    inside = gl.minimum(sequence, n_sequences - 1)
    row = (inside // n_inner) * stride_b + (inside % n_inner) * stride_s
    offset = row[:, None] * (256 * WIDTH) + column[None, :]
    real = (sequence < n_sequences)[:, None] & (column >= 0)[None, :]
    return offset, real


@gluon.jit
def _weight_on_chip(weight, gate: gl.constexpr, HELD: gl.constexpr, TURNED: gl.constexpr, N: gl.constexpr):  # type: ignore[no-untyped-def]
    """Return the recurrent weight of a gate: in registers for the first HELD gates, in shared memory for the others."""
    if gate < HELD:
        held: gl.constexpr = gl.DotOperandLayout(0, _product_layout(N), 2)
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
def _lines(gates, start, n_sequences, n_inner, stride_b, stride_s, N: gl.constexpr):  # type: ignore[no-untyped-def]
    """Return where the lines of the cache begin that hold the gates of a step."""
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [4, 8], [8, 1], [1, 0])
    sequence = start + gl.arange(0, N, layout=gl.SliceLayout(1, layout))
    inside = gl.minimum(sequence, n_sequences - 1)
    row = (inside // n_inner) * stride_b + (inside % n_inner) * stride_s
    line = gl.arange(0, 8, layout=gl.SliceLayout(0, layout)) * 64
    return gates + (row[:, None] * 1024 + line[None, :])


@gluon.jit
def _prefetch(places):  # type: ignore[no-untyped-def]
    """Bring lines into the cache: memory takes longer to answer than a step."""
    gl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [places], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _issue(x, h, weight_i, weight_f, weight_g, weight_o, N: gl.constexpr):  # type: ignore[no-untyped-def]
    """Begin to add the products of the last outputs to the gates."""
    i, f, g, o = _gates_from_memory(x, N)
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
    n_sequences,
    n_inner,
    n_steps,
    stride_b,
    stride_s,
    stride_t,
    N: gl.constexpr,
    HELD: gl.constexpr,
    AHEAD: gl.constexpr,
):
    direction = gl.program_id(1)
    start = gl.program_id(0) * N
    kind: gl.constexpr = outputs.dtype.element_ty
    weight += direction * (4 * 128 * 128)
    weight_i = _weight_on_chip(weight, 0, HELD, False, N)
    weight_f = _weight_on_chip(weight, 1, HELD, False, N)
    weight_g = _weight_on_chip(weight, 2, HELD, False, N)
    weight_o = _weight_on_chip(weight, 3, HELD, False, N)
    wide, _ = _places(start, n_sequences, n_inner, stride_b, stride_s, N, 4)
    thin, real = _places(start, n_sequences, n_inner, stride_b, stride_s, N, 1)
    c = gl.full([128, N], 0.0, gl.float32, _product_layout(N))
    h = gl.allocate_shared_memory(kind, [128, N], gl.NVMMASharedLayout.get_default_for([128, N], kind), c.to(kind))
    fence_async_shared()
    # The second direction walks from the last step to the first.
    first = (direction * (n_steps - 1) * stride_t).to(gl.int64)
    advance = ((1 - 2 * direction) * stride_t).to(gl.int64)
    gates += direction * 512 + first * 1024
    outputs += direction * 128 + first * 256
    cells += direction * 128 + first * 256
    lines = _lines(gates, start, n_sequences, n_inner, stride_b, stride_s, N)
    x = gl.load(gates + wide)
    for step in range(n_steps):
        i, f, g, o = _issue(x, h, weight_i, weight_f, weight_g, weight_o, N)
        # What the next step reads is asked for while the products run; beyond the end, the last step again.
        _prefetch(lines + gl.minimum(step + AHEAD, n_steps - 1) * advance * 1024)
        x = gl.load(gates + gl.minimum(step + 1, n_steps - 1) * advance * 1024 + wide)
        i, f, g, o = warpgroup_mma_wait(0, deps=[i, f, g, o])
        c = _sigmoid(f) * c + _sigmoid(i) * _tanh(g)
        out = (_sigmoid(o) * _tanh(c)).to(kind)
        h.store(out)
        fence_async_shared()
        gl.store(outputs + step * advance * 256 + thin, _to_memory(out, N), mask=real)
        gl.store(cells + step * advance * 256 + thin, _to_memory(c.to(kind), N), mask=real)


@gluon.jit
def _pull(x, c, c_before, to_h, to_c, KIND: gl.constexpr, N: gl.constexpr):  # type: ignore[no-untyped-def]
    """Return the gradients of the gates, and that of the cell before."""
    i, f, g, o = _gates_from_memory(x, N)
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
    weight,
    cells,
    grad,
    n_sequences,
    n_inner,
    n_steps,
    stride_b,
    stride_s,
    stride_t,
    N: gl.constexpr,
    HELD: gl.constexpr,
):
    direction = gl.program_id(1)
    start = gl.program_id(0) * N
    kind: gl.constexpr = gates.dtype.element_ty
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
    # From the last step of the direction to its first.
    first = ((1 - direction) * (n_steps - 1) * stride_t).to(gl.int64)
    advance = ((2 * direction - 1) * stride_t).to(gl.int64)
    gates += direction * 512 + first * 1024
    cells += direction * 128 + first * 256
    grad += direction * 128 + first * 256
    wide, real = _places(start, n_sequences, n_inner, stride_b, stride_s, N, 4)
    thin, _ = _places(start, n_sequences, n_inner, stride_b, stride_s, N, 1)
    x, c, pull = gl.load(gates + wide), gl.load(cells + thin), gl.load(grad + thin)
    nothing = gl.full([128, N], 0.0, gl.float32, _product_layout(N))
    to_c = nothing
    to_before = nothing
    for step in range(n_steps):
        earlier = gl.minimum(step + 1, n_steps - 1) * advance
        exists = (step + 1 < n_steps).to(gl.float32)  # before the first step there is nothing
        before = gl.load(cells + earlier * 256 + thin)
        to_h = to_before + _from_memory(pull, N).to(gl.float32)
        c_now, c_before = _from_memory(c, N).to(gl.float32), _from_memory(before, N).to(gl.float32) * exists
        i, f, g, o, to_c = _pull(x, c_now, c_before, to_h, to_c, kind, N)
        gl.store(gates + step * advance * 1024 + wide, _gates_to_memory(i, f, g, o, N), mask=real)
        c = before
        # What the step before reads is asked for before the products: after them it comes later, and all takes longer.
        x, pull = gl.load(gates + earlier * 1024 + wide), gl.load(grad + earlier * 256 + thin)
        kept_i.store(i)
        kept_f.store(f)
        kept_g.store(g)
        kept_o.store(o)
        fence_async_shared()
        to_before = gl.full([128, N], 0.0, gl.float32, _product_layout(N))
        to_before = warpgroup_mma(weight_i, kept_i, to_before, use_acc=False, is_async=True)
        to_before = warpgroup_mma(weight_f, kept_f, to_before, is_async=True)
        to_before = warpgroup_mma(weight_g, kept_g, to_before, is_async=True)
        to_before = warpgroup_mma(weight_o, kept_o, to_before, is_async=True)
        to_before = warpgroup_mma_wait(0, deps=[to_before])


def weight_in_product_order(weight: Tensor) -> Tensor:
    """Return [2, 4, rows, rows] of recurrent weights [2, 4 * 128, 128]."""
    parts = weight.view(2, 4, 8, 8, 2, 8, 8, 2)
    return parts.permute(0, 1, 2, 4, 3, 5, 7, 6).reshape(2, 4, HIDDEN, HIDDEN)


def forward(gates: Tensor, weight: Tensor, outputs: Tensor, cells: Tensor, sizes: Sizes, strides: Sizes) -> None:
    """Fill outputs and cells; see `lstm.lstm_forward`."""
    n_outer, n_inner, n_steps = sizes
    grid = (triton.cdiv(n_outer * n_inner, _FORWARD["N"]), 2)
    ordered = weight_in_product_order(weight)
    _forward[grid](gates, ordered, outputs, cells, n_outer * n_inner, n_inner, n_steps, *strides, **_FORWARD)


def backward(gates: Tensor, weight: Tensor, cells: Tensor, grad: Tensor, sizes: Sizes, strides: Sizes) -> None:
    """Replace the gates by their gradients; see `lstm.lstm_backward`."""
    n_outer, n_inner, n_steps = sizes
    grid = (triton.cdiv(n_outer * n_inner, _BACKWARD["N"]), 2)
    ordered = weight_in_product_order(weight)
    _backward[grid](gates, ordered, cells, grad, n_outer * n_inner, n_inner, n_steps, *strides, **_BACKWARD)
