"""Forecasts of time series: several futures with probabilities, quantiles, means and calibrated tubes."""

from typing import TYPE_CHECKING

from torchmcl import optional

if TYPE_CHECKING:
    from torchmcl_forecast.forecast import Forecast
    from torchmcl_forecast.forecaster import Forecaster
    from torchmcl_forecast.scenarios import Scenarios, reduce_samples

__all__ = ["Forecast", "Forecaster", "Scenarios", "reduce_samples"]

# The command can print its help without torch.
_HOMES = {
    "forecast": ("Forecast",),
    "forecaster": ("Forecaster",),
    "scenarios": ("Scenarios", "reduce_samples"),
}
__getattr__, __dir__ = optional.lazy_names(
    __name__, {name: f"torchmcl_forecast.{home}" for home, names in _HOMES.items() for name in names}
)
