"""Inputs with cumulative columns, such as bins of a table, whose product the compiled step replaces by sums."""

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Ladders"]

# Columns of a run, on average, from which sums of weights are faster than a product with them.
_SHORTEST_RUN = 4


class Ladders(NamedTuple):
    """Inputs with cumulative last columns: in each row of a run, ones, then at most one value between, then zeros.

    Attributes:
        given: the columns before the runs, [sets, rows, columns].
        lengths: columns of each run.
        lower: how many columns, and runs, are before the place of each row, [sets, rows, runs].
        between: the value at that place, [sets, rows, runs].
    """

    given: Tensor
    lengths: Tensor
    lower: Tensor
    between: Tensor

    @classmethod
    def of(cls, inputs: Tensor) -> "Ladders":
        """Find the runs of inputs [sets, rows, columns]; none if they are too short to be useful."""
        n_given = inputs.shape[-1]
        if bool(_between_0_and_1(inputs[..., -1:])):  # which spares most inputs a look at all columns
            n_given -= _n_trailing(_between_0_and_1(inputs))
        given, climbs = inputs[..., :n_given], inputs[..., n_given:]
        breaks = ((climbs[..., :-1] != 1) & (climbs[..., 1:] != 0)).flatten(0, -2).any(dim=0)
        bounds = [0, *(breaks.nonzero().flatten() + 1).tolist(), climbs.shape[-1]]
        if climbs.shape[-1] < _SHORTEST_RUN * len(bounds[1:]):
            given, climbs, bounds = inputs, inputs[..., :0], [0]
        lower, between = [], []
        for run, (first, end) in enumerate(itertools.pairwise(bounds)):
            place = (climbs[..., first:end] == 1).sum(dim=-1).clamp(max=end - first - 1)
            lower.append(place + first + run)  # a run of n columns has n + 1 sums
            between.append(climbs[..., first:end].gather(-1, place.unsqueeze(-1)).squeeze(-1))
        none = inputs.new_empty(*inputs.shape[:-1], 0)
        return cls(
            given.contiguous(),
            torch.tensor(bounds, device="cpu").diff(),
            torch.stack(lower, dim=-1).int() if lower else none.int(),
            torch.stack(between, dim=-1) if between else none,
        )


def _between_0_and_1(inputs: Tensor) -> Tensor:
    """Return which columns of inputs [..., columns] contain only such values."""
    return ((inputs >= 0) & (inputs <= 1)).flatten(0, -2).all(dim=0)


def _n_trailing(flags: Tensor) -> int:
    """Return the length of the run of set flags at the end."""
    return int(flags.flip(0).cumprod(dim=0).sum())
