"""Windows of series as inputs and targets of the network, scaled by the past of each window."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmcl_forecast.frames import Panel, padded_covariates, windows_of_covariates
from torchmcl_forecast.seasons import calendar_features, filled

__all__ = ["Layout", "Source", "Window", "choose_context", "choose_layout"]

# Minimum unit, as a fraction of the standard deviation of the whole series, so that values after a constant stretch
# stay moderate.
_LEAST_UNIT = 1e-3
# Minimum unit, as a fraction of the level; smaller differences are rounding errors of double precision. The fraction
# of the level that is an input of the network is bounded by `_LEAST_INPUT`.
_LEAST_OF_LEVEL, _LEAST_INPUT = 1e-13, 1e-6
# The changes of a series with fewer values than this are poorly known: its unit is at least a fraction of the usual
# unit, so that a series of one or two values is not forecast as constant.
_ENOUGH_VALUES = 10
# Minimum number of known past values of a window.
_LEAST_PAST = 3
# Positions in the horizon at which the errors of naive forecasts are measured. If all of them were multiples of a
# season, the last value would seem as good a forecast as the last season.
_HORIZON_FRACTIONS = (0.2, 0.45, 0.7, 1.0)
# Numbers of recent seasons whose mean is an input. A mean has less noise than a single season and covers a longer past
# than the context. On ETTh1 and ETTh2, contexts of two weeks had a higher CRPS. The series must be several times as
# long: in shorter series most windows have fewer seasons before them, and the CRPS was higher on M4's hourly series.
_MEANS, _TIMES_LONGER = (7, 28), 10
# The context contains two whole seasons if a season is at most this many horizons long (a week of hours, but not a year
# of days), and the series are at least this many times as long as the two seasons.
_MOST_HORIZONS, _TIMES_CONTEXT = 8, 4
# Minimum context length for any horizon, if the series are long enough.
_LEAST_CONTEXT = 96


@dataclass(frozen=True)
class Layout:
    """Layout of windows.

    Attributes:
        horizon: Number of steps to forecast.
        context: Number of past steps that the network reads.
        periods: Periods of the naive forecasts, which repeat the last period: 1 and the shortest season, if any.
        lags: Longer seasons, or multiples of them; the values this many steps before the horizon are inputs, too.
        n_channels: Number of series that are forecast together.
        n_calendar: Number of calendar features.
        n_known: Number of covariates with known future values.
        n_past: Number of covariates with unknown future values.
        means: Numbers of recent seasons whose mean is another naive forecast; empty without a season.
        usual_change: Median over the series of the mean absolute change over half of the horizon, relative to the mean
            absolute value.
        usual_size: Median over the series of the mean absolute value.
    """

    horizon: int
    context: int
    periods: tuple[int, ...]
    lags: tuple[int, ...]
    n_channels: int
    n_calendar: int
    n_known: int = 0
    n_past: int = 0
    means: tuple[int, ...] = ()
    usual_change: float = 0.0
    usual_size: float = 0.0

    @property
    def past(self) -> int:
        """Number of values before the horizon that a window reads."""
        return max(self.context, *self.lags, 0)

    @property
    def n_linear(self) -> int:
        """Number of inputs of the linear map per channel: covariates, changes, and naive forecasts."""
        covariates = self.horizon * self.n_known + self.n_recent * (self.n_known + self.n_past)
        return covariates + self.context + self.horizon * (len(self.periods) + 1 + len(self.lags) + len(self.means))

    @property
    def n_recent(self) -> int:
        """Number of steps before the horizon whose covariates are inputs."""
        return min(self.context, max(self.horizon, *self.periods))

    @property
    def n_of_channel(self) -> int:
        """Number of inputs per channel: the inputs of the linear map, standardized values, and statistics."""
        return self.n_linear + self.context + len(self.periods) + 3

    @property
    def n_inputs(self) -> int:
        """Number of inputs of the network: the inputs of all channels, and the calendar features."""
        return self.n_channels * self.n_of_channel + self.n_calendar


class Window(NamedTuple):
    """Inputs and targets of windows. The unit is the mean error of the best naive forecast in the past of the window.

    Attributes:
        inputs: Inputs of the network, [windows, n_inputs].
        targets: Distances from the naive forecast in units, [windows, channels, horizon]; NaN where missing.
        naive: Best naive forecast, the last season or the last value, [windows, channels, horizon].
        unit: Units, [windows, channels, 1].
    """

    inputs: Tensor
    targets: Tensor
    naive: Tensor
    unit: Tensor


def choose_means(horizon: int, season: int, n_times: int) -> tuple[int, ...]:
    """Return the numbers of recent seasons whose means are inputs: fewer for short series, none for long seasons.

    Args:
        horizon: Number of steps to forecast.
        season: Length of the shortest season; 1 without a season.
        n_times: Length of a typical series.

    Example:
        >>> choose_means(48, 24, 9000), choose_means(48, 24, 2000), choose_means(48, 24, 1000)
        ((7, 28), (7,), ())
    """
    if not 1 < season <= horizon / 2:  # the mean of seven years, for example, is far from the level of a growing series
        return ()
    return tuple(n for n in _MEANS if _TIMES_LONGER * n * season <= n_times)


def choose_context(horizon: int, seasons: tuple[int, ...], n_times: int) -> tuple[int, tuple[int, ...]]:
    """Return the context length, and the lags of all seasons but the shortest.

    Args:
        horizon: Number of steps to forecast.
        seasons: Season lengths.
        n_times: Length of a typical series.

    Example:
        >>> choose_context(48, (24, 168), 700), choose_context(48, (24, 168), 2000), choose_context(28, (7, 365), 1500)
        ((144, (168,)), (336, (168,)), (96, (365,)))
    """
    longest = min(_MOST_HORIZONS * horizon, n_times // (2 * _TIMES_CONTEXT))
    season = max((length for length in seasons if length <= longest), default=min(seasons, default=1))
    context = max(3 * horizon, 2 * season, _LEAST_CONTEXT)
    # Keep a few windows for training if the series are short.
    context = max(min(context, (n_times - horizon) * 2 // 3), _LEAST_PAST)
    lags = (season * -(-horizon // season) for season in sorted(seasons)[1:])
    return context, tuple(lag for lag in lags if lag + 2 * horizon < n_times)


def choose_layout(
    panel: Panel, horizon: int, seasons: tuple[int, ...], context: int | None, joint: bool, n_known: int, n_past: int
) -> Layout:
    """Choose the layout for the series of a panel.

    Args:
        panel: Series to forecast.
        horizon: Number of steps to forecast.
        seasons: Season lengths.
        context: Number of past steps to read; None to choose it.
        joint: Whether all series are channels of one path.
        n_known: Number of covariates with known future values.
        n_past: Number of covariates with unknown future values.
    """
    n_times = int(np.median(panel.values.shape[1] - np.argmax(~np.isnan(panel.values), axis=1)))
    chosen, lags = choose_context(horizon, seasons, n_times)
    context = chosen if context is None else context
    n_calendar = calendar_features(panel.grid, panel.ends[:1], 0).shape[-1]
    periods = (1, *(season for season in sorted(seasons)[:1] if season < context))
    n_channels, means = len(panel.names) if joint else 1, choose_means(horizon, periods[-1], n_times)
    usual = _usual_change_and_size(panel.values, horizon)
    return Layout(horizon, context, periods, lags, n_channels, n_calendar, n_known, n_past, means, *usual)


def _sizes(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean absolute value of each series; 0 for a series without values."""
    return np.nansum(np.abs(values), axis=1) / np.maximum((~np.isnan(values)).sum(axis=1), 1)


def _usual_change_and_size(values: NDArray[np.float64], horizon: int) -> tuple[float, float]:
    """Return the medians over the series of the relative change over half of the horizon, and of the absolute value.

    Example:
        >>> _usual_change_and_size(np.tile([9.0, 11.0], (3, 10)), horizon=2)
        (0.2, 10.0)
    """
    lag = -(-horizon // 2)
    changes = values[:, lag:] - values[:, :-lag]
    sizes, n_changes = _sizes(values), (~np.isnan(changes)).sum(axis=1)
    known = (n_changes >= _ENOUGH_VALUES) & (sizes > 0)
    if not known.any():
        return 0.0, 0.0
    return float(np.median(_sizes(changes)[known] / sizes[known])), float(np.median(sizes[known]))


class Source:
    """Windows of a panel, computed on demand.

    Args:
        panel: Series; with several channels, all series form one group.
        layout: Layout of the windows.
        season: Season length with which missing values are filled.
    """

    def __init__(self, panel: Panel, layout: Layout, season: int) -> None:
        self.layout = layout
        past, horizon = layout.past, layout.horizon
        values = panel.values
        shape = (-1, layout.n_channels, past + values.shape[1] + horizon)
        known = filled(values, season)
        size, n_values = _sizes(values), (~np.isnan(values)).sum(axis=1)
        unknown = (1 - n_values / _ENOUGH_VALUES).clip(0, 1)
        usual = unknown * layout.usual_change * np.where(size > 0, size, layout.usual_size)
        floor = np.maximum(_LEAST_UNIT * np.nanstd(values, axis=1), usual)
        # Padding for windows that begin before the series, and for the horizon after the series.
        room = ((0, 0), (past, horizon))
        self.known = torch.from_numpy(np.pad(known, room, constant_values=np.nan)).view(shape)
        self.truth = torch.from_numpy(np.pad(values, room, constant_values=np.nan)).view(shape)
        self.floor = torch.from_numpy(floor).view(-1, layout.n_channels, 1)
        # Computed once, because each window would have to read months of values.
        self.means = [_seasonal_means(self.known, layout.periods[-1], n) for n in layout.means]
        self.covariates = padded_covariates(panel, past, horizon).unflatten(0, (-1, layout.n_channels))
        groups = panel.ends[:: layout.n_channels]
        self.calendar = torch.from_numpy(calendar_features(panel.grid, groups, values.shape[1] - 1))
        self.n_times = values.shape[1]
        observed = (~torch.isnan(self.truth)).any(dim=1).double()  # [groups, times]
        self._n_observed = observed.cumsum(dim=1)

    @property
    def n_groups(self) -> int:
        """Number of groups: of single series, or of joint channels."""
        return len(self.known)

    def places(self, last: int = 0, first: int = 0) -> Tensor:
        """Return all windows, [windows, 2]: the group, and the number of values before the horizon.

        Args:
            last: Number of steps to leave out at the end of the series.
            first: Number of steps to leave out at the beginning.
        """
        past, horizon = self.layout.past, self.layout.horizon
        before = torch.arange(self.n_times)
        before = before[(before >= max(first, 1)) & (before <= self.n_times - horizon - last)]
        at = self._n_observed[:, before + past - 1]
        ahead = self._n_observed[:, before + past + horizon - 1] - at
        group, place = ((at >= _LEAST_PAST) & (ahead > 0)).nonzero(as_tuple=True)
        return torch.stack([group, before[place]], dim=1)

    def to(self, device: str) -> "Source":
        """Return the same windows on a CUDA device; on the CPU for others, which may lack double precision."""
        moved = copy.copy(self)
        home = device if torch.device(device).type == "cuda" else "cpu"
        for name in ("known", "truth", "floor", "covariates", "calendar"):
            setattr(moved, name, getattr(self, name).to(home))
        moved.means = [mean.to(home) for mean in self.means]
        return moved

    def ends(self) -> Tensor:
        """Return the windows whose horizon begins after the end of each series."""
        return torch.stack([torch.arange(self.n_groups), torch.full((self.n_groups,), self.n_times)], dim=1)

    def window(self, places: Tensor, shortened: Tensor | None = None) -> Window:
        """Return the inputs and targets of windows.

        Args:
            places: Windows [windows, 2] from `places` or `ends`.
            shortened: Number of past values to read, [windows]; all by default.
        """
        layout = self.layout
        group, before = places.unbind(dim=1)
        read = _cut(self.known, group, before, layout.past)  # [windows, channels, past]
        if shortened is not None:
            steps = torch.arange(layout.past, device=places.device)
            read = read.masked_fill(steps < layout.past - shortened.view(-1, 1, 1), torch.nan)
        season = layout.periods[-1]
        means = [_cut(mean, group, before + layout.past - season, season) for mean in self.means]
        if shortened is not None:  # as if the earlier seasons had not been observed; whole windows keep their means
            cut = shortened < layout.past
            short = [(cut & (shortened < n * season)).view(-1, 1, 1) for n in layout.means]
            means = [mean.masked_fill(few, torch.nan) for mean, few in zip(means, short, strict=True)]
        inputs, naive, unit = described(read, self.floor[group], layout, means)
        begin, length = before + layout.past - layout.n_recent, layout.n_recent + layout.horizon
        beside = _cut(self.covariates.transpose(-1, -2), group, begin, length).transpose(-1, -2)
        beside = windows_of_covariates(beside, layout.n_known, layout.n_recent)
        inputs = torch.cat([beside, inputs], dim=-1)
        calendar = self.calendar[group, (before - 1).clamp_max(self.n_times - 1)]
        targets = (_cut(self.truth, group, before + layout.past, layout.horizon) - naive) / unit
        return Window(torch.cat([inputs.flatten(1).float(), calendar], dim=1), targets.float(), naive, unit)


def described(
    read: Tensor, floor: Tensor, layout: Layout, means: Sequence[Tensor] = ()
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute inputs [windows, channels, features], the best naive forecast, and the unit from the past of windows.

    Args:
        read: Past values, [windows, channels, past]; NaN before the series begins.
        floor: Minimum unit, [windows, channels, 1].
        layout: Layout of the windows.
        means: Means of the recent seasons, [windows, channels, season] for each of `Layout.means`; NaN where unknown.
    """
    context, horizon = layout.context, layout.horizon
    recent = read[..., layout.past - context :]
    present = ~recent.isnan()
    n_present = present.sum(dim=-1, keepdim=True)
    level = recent.nan_to_num().sum(dim=-1, keepdim=True) / n_present.clamp_min(1)
    square = (recent - level).nan_to_num().square().sum(dim=-1, keepdim=True)
    smallest = torch.maximum(floor, (_LEAST_OF_LEVEL * level.abs()).clamp_min(1e-100))
    deviation = torch.maximum((square / n_present.clamp_min(1)).sqrt(), smallest)
    values = _from_first(recent, level)
    repeats = torch.stack([_repeated(values, period, horizon) for period in layout.periods])
    errors = torch.cat([_naive_error(values, present, period, horizon, deviation) for period in layout.periods], dim=-1)
    best = errors.argmin(dim=-1, keepdim=True)  # [windows, channels, 1]
    unit = torch.maximum(errors.gather(-1, best), smallest)
    naive = repeats.gather(0, best.expand(*best.shape[:2], horizon).unsqueeze(0))[0]
    pad = torch.nn.functional.pad  # changes in the first period are 0
    changes = torch.stack([pad(values[..., n:] - values[..., :-n], (n, 0)) for n in layout.periods])
    changes = changes.gather(0, best.expand_as(values).unsqueeze(0))[0]
    others = [*repeats, level.expand_as(naive)]
    for lag in layout.lags:
        season = read[..., layout.past - lag : layout.past - lag + horizon]
        others.append(torch.where(season.isnan(), naive, season))
    for mean in means:
        usual = _repeated(mean, layout.periods[-1], horizon)
        others.append(torch.where(usual.isnan(), naive, usual))
    linear = torch.cat([changes / unit, *((other - naive) / unit for other in others)], dim=-1).clamp(-20, 20)
    fraction = n_present / context
    relative = (deviation / (deviation + level.abs())).clamp_min(_LEAST_INPUT)
    sizes = [relative.log(), (unit / deviation).log(), fraction]
    chosen = torch.nn.functional.one_hot(best.squeeze(-1), len(layout.periods))
    standard = ((values - level) / deviation).clamp(-10, 10)
    return torch.cat([linear, standard, chosen, *sizes], dim=-1), naive, unit


def _cut(series: Tensor, group: Tensor, start: Tensor, length: int) -> Tensor:
    """Return slices [windows, ..., length] of padded series [groups, ..., times], copied as whole rows."""
    slices = series.unfold(-1, length, 1).movedim(-2, 1)  # a view, [groups, starts, ..., length]
    return slices[group, start]


def _repeated(values: Tensor, period: int, horizon: int) -> Tensor:
    """Repeat the last period over the horizon, [windows, channels, horizon]."""
    return values[..., values.shape[-1] - period + torch.arange(horizon, device=values.device) % period]


def _seasonal_means(values: Tensor, season: int, n: int) -> Tensor:
    """Return the mean of each value and the values 1 to n - 1 seasons before it; NaN if less than half are known.

    Example:
        >>> _seasonal_means(torch.tensor([[1.0, 5.0, 3.0, torch.nan]]), season=2, n=2)
        tensor([[1., 5., 2., 5.]])
    """
    n_times = values.shape[-1]
    room = (0, -n_times % season)
    known = torch.nn.functional.pad((~values.isnan()).double(), room).unflatten(-1, (-1, season))
    level = values.nanmean(dim=-1, keepdim=True)  # sums of distances from it are exact for large values too
    apart = torch.nn.functional.pad((values - level).nan_to_num(), room).unflatten(-1, (-1, season))
    sums, counts = (part.cumsum(dim=-2) for part in (apart.double(), known))
    back = min(n, sums.shape[-2])
    sums, counts = (
        part - torch.nn.functional.pad(part, (0, 0, back, 0))[..., : part.shape[-2], :] for part in (sums, counts)
    )
    means = torch.where(2 * counts >= n, sums / counts, torch.nan).flatten(-2)[..., :n_times]
    return (means + level).to(values)


def _naive_error(values: Tensor, present: Tensor, period: int, horizon: int, deviation: Tensor) -> Tensor:
    """Return the mean error of repeating a period, over a few steps of the horizon, [windows, channels, 1]."""
    total, count = torch.zeros_like(deviation), torch.zeros_like(deviation)
    for lag in sorted({period * math.ceil(position * horizon / period) for position in _HORIZON_FRACTIONS}):
        known = present[..., lag:] & present[..., : max(values.shape[-1] - lag, 0)]
        error = (values[..., lag:] - values[..., : max(values.shape[-1] - lag, 0)]).abs() * known
        n_known = known.sum(dim=-1, keepdim=True)
        # Lags with too few pairs are ignored.
        total += torch.where(n_known >= _LEAST_PAST, error.sum(dim=-1, keepdim=True) / n_known.clamp_min(1), 0.0)
        count += n_known >= _LEAST_PAST
    # Without pairs, the error of the last value is the deviation.
    return torch.where(count > 0, total / count.clamp_min(1), deviation if period == 1 else torch.inf)


def _from_first(recent: Tensor, level: Tensor) -> Tensor:
    """Replace missing values by the first known value, or by the level if no value is known."""
    known = ~recent.isnan()
    first = known.to(torch.uint8).argmax(dim=-1, keepdim=True)
    value = torch.where(known.any(dim=-1, keepdim=True), recent.gather(-1, first), level)
    return torch.where(known, recent, value)
