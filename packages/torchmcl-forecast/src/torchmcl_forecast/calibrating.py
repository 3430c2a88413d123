"""Which windows at the ends of the series are kept apart to calibrate tubes."""

from typing import NamedTuple

from torch import Tensor

from torchmcl.postprocess.regions import rows_needed
from torchmcl_forecast.windows import Source

__all__ = ["Calibration", "choose_calibration"]

# The standard deviation of the coverage of a level from this many independent windows is below two percent.
_ENOUGH_ROWS = 300
# At most this share of the times is kept apart.
_LARGEST_SHARE = 0.2
# Fewer windows than this, times those without which no level exists, are not trusted.
_TIMES_NEEDED = 3


class Calibration(NamedTuple):
    """Windows that the first training does not see.

    Attributes:
        places: [windows, 2], see `Source.places`.
        n_steps: how many steps at the end of the series their horizons take.
    """

    places: Tensor
    n_steps: int


def choose_calibration(source: Source, coverage: float) -> Calibration | None:
    """Return the last windows of the series, or None if they are too short to spare any.

    One window of each series where there are many series, several ones of each, one after the other, where there are
    few, and overlapping ones where those would be too few.

    Args:
        source: of the windows.
        coverage: of the tubes.
    """
    layout = source.layout
    horizon, n_series = layout.horizon, source.n_groups * layout.n_channels
    room = int(_LARGEST_SHARE * source.n_times)
    if room < horizon:
        return None
    wanted = -(-_ENOUGH_ROWS // n_series)  # windows of each series
    n_steps = min(horizon * wanted, room)
    stride = max(1, min(horizon, (n_steps - horizon) // max(wanted - 1, 1))) if wanted > 1 else horizon
    late = source.places(first=source.n_times - n_steps)
    places = late[(source.n_times - horizon - late[:, 1]) % stride == 0]
    needed = _TIMES_NEEDED * rows_needed(1 - coverage)
    n_left = len(source.places(last=n_steps))
    if len(places) * layout.n_channels < needed or n_left < len(source.places()) // 2:
        return None
    return Calibration(places, n_steps)
