"""Rows that are drawn anew for every epoch, as in the paper's synthetic studies."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from torchmcl._checks import bad_value, check_callable, check_positive_int
from torchmcl.fleet.data import FleetData
from torchmcl.types import Batch

__all__ = ["FreshRows"]


@dataclass(frozen=True)
class FreshRows:
    """A source of training rows: all models of a fleet see the same new rows in each epoch.

    The rows of an epoch depend on the seed and the epoch alone, so that chunks of a fleet and a training
    that goes on from a checkpoint see what an uninterrupted one does. They are drawn where the fleet trains,
    before the epoch begins; random streams of CPUs and GPUs differ.

    Args:
        draw: called with a number of rows and a generator; returns a Batch of inputs [rows, ...] and targets
            [rows, targets, dim] on the device of the generator, without a mask.
        n_rows: rows of an epoch.
        n_models: how many models share them.
        seed: of the stream.

    Example:
        >>> from torchmcl.data.synthetic import conditional_three_gaussians
        >>> source = FreshRows(conditional_three_gaussians, n_rows=1000, n_models=4)
        >>> first, second = source.epoch(0, torch.device("cpu")), source.epoch(1, torch.device("cpu"))
        >>> first.inputs.shape, bool((first.inputs == second.inputs).any())
        (torch.Size([1, 1000, 1]), False)
    """

    draw: Callable[[int, torch.Generator], Batch]
    n_rows: int
    n_models: int
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the fields."""
        check_callable("FreshRows", "draw", self.draw, "torchmcl.data.synthetic.conditional_three_gaussians")
        check_positive_int("FreshRows", "n_rows", self.n_rows)
        check_positive_int("FreshRows", "n_models", self.n_models)

    def epoch(self, number: int, device: torch.device) -> FleetData:
        """Return the rows of an epoch.

        Raises:
            ValueError: if `draw` returns another number of rows, or a mask.
        """
        # A hash keeps the streams of neighbouring seeds and epochs apart.
        digest = hashlib.sha256(f"{self.seed} {number}".encode()).digest()
        generator = torch.Generator(device).manual_seed(int.from_bytes(digest[:6], "big"))
        inputs, targets, mask = self.draw(self.n_rows, generator)
        if len(inputs) != self.n_rows or len(targets) != self.n_rows or mask is not None:
            rule = f"return {self.n_rows} inputs and targets without a mask"
            got = f"{len(inputs)} and {len(targets)}{'' if mask is None else ' with a mask'}"
            raise ValueError(bad_value("FreshRows", "draw", rule, got))
        return FleetData.shared(inputs, targets, self.n_models)

    def refill(self, data: FleetData, number: int) -> None:
        """Write the rows of an epoch over those of another, for what holds on to the tensors."""
        new = self.epoch(number, data.inputs.device)
        data.inputs.copy_(new.inputs)
        data.targets.copy_(new.targets)
