"""Adapters for gluonts and sktime, each loaded on first use."""

from typing import TYPE_CHECKING

from torchmcl import optional

if TYPE_CHECKING:
    from torchmcl_forecast.adapters.of_gluonts import frame_of_dataset, sample_forecasts
    from torchmcl_forecast.adapters.of_sktime import SktimeForecaster

__all__ = ["SktimeForecaster", "frame_of_dataset", "sample_forecasts"]

_HOMES = {
    "of_gluonts": ("frame_of_dataset", "sample_forecasts"),
    "of_sktime": ("SktimeForecaster",),
}
__getattr__, __dir__ = optional.lazy_names(
    __name__, {name: f"torchmcl_forecast.adapters.{home}" for home, names in _HOMES.items() for name in names}
)
