"""Data sets: each returns a Batch, or samples to build one from."""

from typing import TYPE_CHECKING

from torchmcl._lazy import lazy_names

if TYPE_CHECKING:
    from torchmcl.data import modes, pedestrians, speech, table, uci
    from torchmcl.data.synthetic import (
        CENTRES,
        DEVIATION,
        conditional_covariance,
        conditional_three_gaussians,
        folded_response,
        three_gaussians,
    )

__all__ = [
    "CENTRES",
    "DEVIATION",
    "conditional_covariance",
    "conditional_three_gaussians",
    "folded_response",
    "modes",
    "pedestrians",
    "speech",
    "table",
    "three_gaussians",
    "uci",
]

# Tables are read without torch, which these need; modules are found by their names.
__getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(__all__, "torchmcl.data.synthetic"))
