"""Data sets: each returns a Batch, or samples to build one from."""

from typing import TYPE_CHECKING

from torchmcl._lazy import lazy_names

if TYPE_CHECKING:
    from torchmcl.data.synthetic import conditional_three_gaussians, folded_response, three_gaussians

__all__ = ["conditional_three_gaussians", "folded_response", "three_gaussians"]

# Tables are read without torch, which these need.
__getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(__all__, "torchmcl.data.synthetic"))
