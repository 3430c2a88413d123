"""Kernels in Triton, imported when they are first called, so importing torchmcl does not need Triton."""

import importlib
from collections.abc import Callable
from typing import Any


def _kernel(module: str, name: str) -> Callable[..., Any]:
    """Return a function of a sibling module, which is imported on the first call."""

    def call(*args: Any) -> Any:
        return getattr(importlib.import_module(f"torchmcl.accel.triton.{module}"), name)(*args)

    return call


#: The softmin of each row for a single finite temperature.
softmin = _kernel("rows", "softmin")
#: One number at the cheapest hypothesis of each row and a different one elsewhere.
winner_weights = _kernel("rows", "winner_weights")
#: The sum of weights * cost over the last axis.
weighted_sum = _kernel("rows", "weighted_sum")
#: The sum of all values divided by the number of entries in a mask.
mean_of_real = _kernel("rows", "mean_of_real")
#: The sum of all values, each multiplied by a factor.
total = _kernel("rows", "total")
#: The binary cross-entropy of logits, summed over the last axis.
summed_cross_entropy = _kernel("rows", "summed_cross_entropy")
#: Cost, weights and both losses of a step with one target for each sample.
one_target_losses = _kernel("one_target", "one_target_losses")
