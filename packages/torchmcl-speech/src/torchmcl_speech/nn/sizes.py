"""Checks of the description of a separator from a file."""

from typing import Any

from torch import Tensor

_SIZES = ("n_outputs", "n_filters", "kernel_size", "stride", "segment_size", "hidden_size", "width", "n_blocks")
# Maximum size of a filter, segment or layer.
_MAX_SIZE = 1_000_000


def check_sizes(config: dict[str, Any], weights: dict[str, Tensor]) -> None:
    """Reject a description of a larger model than the saved weights, before memory is allocated."""
    for name in _SIZES:
        value = config[name]
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{name} is {str(value)[:80]!r}, which is not an integer")
        if not 1 <= value <= _MAX_SIZE:
            raise ValueError(f"{name} is {str(value)[:80]}, which is not from 1 to {_MAX_SIZE}")
    width, hidden, n_filters = config["width"], config["hidden_size"], config["n_filters"]
    needed = 16 * config["n_blocks"] * hidden * (width + hidden) + config["n_outputs"] * width**2 + n_filters * width
    if needed + n_filters * config["kernel_size"] > sum(value.numel() for value in weights.values()):
        raise ValueError("it describes a larger model")
