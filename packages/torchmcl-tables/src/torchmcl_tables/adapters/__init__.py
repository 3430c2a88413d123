"""An adapter for skpro, loaded on first use."""

from typing import TYPE_CHECKING

from torchmcl import optional

if TYPE_CHECKING:
    from torchmcl_tables.adapters.of_skpro import KernelDistribution, SkproRegressor

__all__ = ["KernelDistribution", "SkproRegressor"]

__getattr__, __dir__ = optional.lazy_names(__name__, dict.fromkeys(__all__, "torchmcl_tables.adapters.of_skpro"))
