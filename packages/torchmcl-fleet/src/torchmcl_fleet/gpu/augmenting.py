"""Cheapest one-to-one assignments for a batch of cost matrices, one GPU program per matrix.

The kernel implements the shortest augmenting path algorithm of Jonker and Volgenant. The entries of the smaller side
("rows" below) are inserted one by one, each along the shortest path of reduced costs to a free entry of the other side
("columns"). The state consists of a few vectors over the columns: price, owner (the row assigned to the column),
shortest distance, and previous column on the shortest path. The price of a row follows from the column that it owns, so
no state is stored for rows, and no thread reads what another thread writes. Distances are float64 for every cost dtype.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["MAX_SIDE", "one_to_one_rows"]

# A program holds about ten vectors of the larger side in registers.
MAX_SIDE = 2048

# With few columns a program is one warp, whose reductions need no barrier; with more, warps share the work.
_COLUMNS_PER_WARP = 128


@triton.jit
def _entry(vector, column, place):
    """Return the entry of a vector at an index known only at run time."""
    return tl.sum(tl.where(column == place, vector, 0), axis=0)


@triton.jit(do_not_specialize=("n_targets", "n_hypotheses"))
def _assign(cost, mask, weights, n_targets, n_hypotheses, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    sample = tl.program_id(0).to(tl.int64)
    cost += sample * n_targets * n_hypotheses
    weights += sample * n_targets * n_hypotheses
    column = tl.arange(0, BLOCK)
    # Flags are integers: a vector of booleans and a single one do not combine in all versions of Triton.
    target_is_real = (column < n_targets).to(tl.int32)
    if MASKED:
        mask += sample * n_targets
        target_is_real = tl.load(mask + column, mask=column < n_targets, other=0).to(tl.int32)
    tall = (tl.sum(target_is_real, axis=0) > n_hypotheses).to(tl.int32)  # the smaller side are the rows
    n_rows = tl.where(tall != 0, n_hypotheses, n_targets)
    n_columns = tl.where(tall != 0, n_targets, n_hypotheses)
    row_stride = tl.where(tall != 0, 1, n_hypotheses)
    column_stride = tl.where(tall != 0, n_hypotheses, 1)
    takes_part = (column < n_columns) & (target_is_real >= tall)

    owner = tl.full((BLOCK,), -1, tl.int32)
    price = tl.zeros((BLOCK,), tl.float64)
    row_price = tl.zeros((BLOCK,), tl.float64)  # of the row that owns the column
    spoilt = tl.zeros((BLOCK,), tl.int32)
    feasible = tall * 0 + 1
    row = tall * 0
    while row < n_rows * feasible:
        inserted = feasible
        if MASKED:
            inserted = tl.maximum(tall, tl.load(mask + row).to(tl.int32))
        distance = tl.full((BLOCK,), float("inf"), tl.float64)
        before = tl.full((BLOCK,), -1, tl.int32)
        visited = tl.zeros((BLOCK,), tl.int32)
        lowest = tl.sum(price, axis=0) * 0
        base = lowest
        at = row * 0 - 1  # the column on which the path stands; -1 at its start
        line = row  # the row whose costs are looked at: the owner of that column
        searching = inserted
        while searching != 0:
            value = tl.load(cost + line * row_stride + column * column_stride, mask=takes_part, other=float("inf"))
            value = value.to(tl.float64)
            sound = value > float("-inf")  # neither minus infinity nor NaN
            spoilt = tl.where(sound, spoilt, 1)
            reach = tl.where(sound, value, float("inf")) - price + base
            closer = (reach < distance) & (visited == 0)
            distance = tl.where(closer, reach, distance)
            before = tl.where(closer, at, before)
            candidate = tl.where(visited == 0, distance, float("inf"))
            lowest = tl.min(candidate, axis=0)
            feasible = (lowest < float("inf")).to(tl.int32)
            # Among equals a free column, which ends the path: its key is smaller than that of any owned column.
            key = tl.where((candidate == lowest) & (visited == 0), (owner + 1) * BLOCK + column, 2147483647)
            best = tl.min(key, axis=0)
            at = best % BLOCK
            line = best // BLOCK - 1
            visited = tl.where(column == at, 1, visited)
            base = lowest - _entry(row_price, column, at)
            searching = feasible * (line >= 0).to(tl.int32)
        assigned = inserted * feasible
        price = tl.where(visited * assigned != 0, price + distance - lowest, price)
        turn = tl.where(assigned != 0, at, -1)
        while turn >= 0:  # each column of the path goes to the owner of the column before it, the first to the new row
            origin = _entry(before, column, turn)
            heir = tl.where(origin < 0, row, _entry(owner, column, origin))
            owner = tl.where(column == turn, heir, owner)
            turn = origin
        owned = tl.load(cost + owner * row_stride + column * column_stride, mask=owner >= 0, other=0.0)
        row_price = tl.where(owner >= 0, owned.to(tl.float64) - price, 0.0)
        row += 1

    failed = tl.maximum(1 - feasible, tl.max(spoilt, axis=0))
    index = tall * 0
    while index < n_rows:
        spoils = tl.zeros((BLOCK,), tl.int32) + failed
        if MASKED:
            spoils *= tl.where(tall != 0, target_is_real, tl.load(mask + index).to(tl.int32))
        value = tl.where(spoils != 0, float("nan"), tl.where(owner == index, 1.0, 0.0))
        place = weights + index * row_stride + column * column_stride
        tl.store(place, value.to(weights.dtype.element_ty), mask=column < n_columns)
        index += 1


def one_to_one_rows(cost: Tensor, mask: Tensor | None) -> Tensor:
    """Return the weights of the cheapest assignment of each sample, as defined in `torchmcl.rules.transport`.

    Args:
        cost: Cost, [samples, targets, hypotheses], float32 or float64; neither side above `MAX_SIDE`.
        mask: Mask of real targets, [samples, targets]; None if all are real.
    """
    n_samples, n_targets, n_hypotheses = cost.shape
    cost = cost.contiguous()
    weights = torch.empty_like(cost)
    flags = cost if mask is None else mask.contiguous().view(torch.uint8)
    block = 1 << (max(n_targets, n_hypotheses) - 1).bit_length()
    warps = max(1, block // _COLUMNS_PER_WARP)
    _assign[(n_samples,)](
        cost, flags, weights, n_targets, n_hypotheses, MASKED=mask is not None, BLOCK=block, num_warps=warps
    )
    return weights
