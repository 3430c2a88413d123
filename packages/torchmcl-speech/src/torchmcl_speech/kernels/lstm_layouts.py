"""Layouts of the tiles of `lstm_hopper` in registers and memory, without data exchange between threads.

The rows of a product are not units in order. Rows m and m + 8 of a group of 16 belong to one thread, so neighboring
units are assigned to them. `lstm_weights` permutes the recurrent weights accordingly.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

__all__ = [
    "barrier",
    "from_memory",
    "gates_from_memory",
    "gates_to_memory",
    "lines",
    "places",
    "product_layout",
    "to_memory",
]

# The function has different names in Triton 3.6 and in later versions.
barrier = getattr(gl, "barrier", None) or gl.thread_barrier


@gluon.constexpr_function
def product_layout(n):  # type: ignore[no-untyped-def]
    """Return the register layout of the product [units, sequences]."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[8, 1], instr_shape=[16, n, 16])


@gluon.constexpr_function
def memory_layout(n, width):  # type: ignore[no-untyped-def]
    """Return the matching register layout of [sequences, columns] in memory, with 1 or 4 columns per unit."""
    gates = [[0, 1 << bit] for bit in range(2)] if width == 4 else []
    more = [[8 << bit, 0] for bit in range((n // 8).bit_length() - 1)]
    registers = [*gates, [0, width], [1, 0], *more]
    lanes = [[2, 0], [4, 0], [0, 2 * width], [0, 4 * width], [0, 8 * width]]
    warps = [[0, 16 * width], [0, 32 * width], [0, 64 * width]]
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [n, 128 * width])


@gluon.jit
def from_memory(x, N: gl.constexpr):  # type: ignore[no-untyped-def]
    """Transpose [sequences, units] to [units, sequences] without data exchange between threads."""
    ordered = x.reshape([N, 8, 8, 2]).permute([1, 3, 2, 0]).reshape([128, N])
    return gl.convert_layout(ordered, product_layout(N), assert_trivial=True)


@gluon.jit
def to_memory(x, N: gl.constexpr):  # type: ignore[no-untyped-def]
    """Transpose [units, sequences] to [sequences, units] without data exchange between threads."""
    ordered = x.reshape([8, 2, 8, N]).permute([3, 0, 2, 1]).reshape([N, 128])
    return gl.convert_layout(ordered, memory_layout(N, 1), assert_trivial=True)


@gluon.jit
def gates_from_memory(x, N: gl.constexpr):  # type: ignore[no-untyped-def]
    even, odd = gl.split(x.reshape([N, 128, 2, 2]))
    i, g = gl.split(even)
    f, o = gl.split(odd)
    return from_memory(i, N), from_memory(f, N), from_memory(g, N), from_memory(o, N)


@gluon.jit
def gates_to_memory(i, f, g, o, N: gl.constexpr):  # type: ignore[no-untyped-def]
    even = gl.join(to_memory(i, N), to_memory(g, N))
    odd = gl.join(to_memory(f, N), to_memory(o, N))
    return gl.convert_layout(gl.join(even, odd).reshape([N, 512]), memory_layout(N, 4), assert_trivial=True)


@gluon.jit
def places(start, n_sequences, n_inner, stride_b, stride_s, N: gl.constexpr, WIDTH: gl.constexpr):  # type: ignore[no-untyped-def]
    """Return the offsets of the first steps of a tile in a matrix of 2 * 128 * WIDTH columns.

    Positions after the last sequence repeat this sequence, which reads and writes the same values.
    """
    layout: gl.constexpr = memory_layout(N, WIDTH)
    sequence = start + gl.arange(0, N, layout=gl.SliceLayout(1, layout))
    column = gl.arange(0, 128 * WIDTH, layout=gl.SliceLayout(0, layout))
    inside = gl.minimum(sequence, n_sequences - 1)
    row = (inside // n_inner) * stride_b + (inside % n_inner) * stride_s
    return row[:, None] * (256 * WIDTH) + column[None, :]


@gluon.jit
def lines(gates, start, n_sequences, n_inner, stride_b, stride_s, N: gl.constexpr):  # type: ignore[no-untyped-def]
    """Return the addresses of the cache lines that contain the gates of a step."""
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [4, 8], [8, 1], [1, 0])
    sequence = start + gl.arange(0, N, layout=gl.SliceLayout(1, layout))
    inside = gl.minimum(sequence, n_sequences - 1)
    row = (inside // n_inner) * stride_b + (inside % n_inner) * stride_s
    line = gl.arange(0, 8, layout=gl.SliceLayout(0, layout)) * 64
    return gates + (row[:, None] * 1024 + line[None, :])
