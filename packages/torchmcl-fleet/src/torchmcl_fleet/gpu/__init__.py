"""Kernels in Triton, imported when they are first called, so importing torchmcl does not need Triton."""

from typing import Any


def one_target_losses(*args: Any) -> Any:
    """Return cost, weights and both losses of a step with one target for each sample."""
    from torchmcl_fleet.gpu import one_target

    return one_target.one_target_losses(*args)
