"""Forecasts: a mixture of whole paths for each series, and the frames computed from it."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from torchmcl import Predictions, SoftmaxScores, checks
from torchmcl.app import report
from torchmcl.density import Mixture
from torchmcl.errors import bad_value
from torchmcl.postprocess import reduce
from torchmcl_forecast.frames import Columns, Panel, read_panel, written_like
from torchmcl_forecast.scenarios import settled
from torchmcl_forecast.scores import distortion, path_scores, weighted_quantile_loss

__all__ = ["LEVELS", "Forecast", "drawn_paths", "mixture_quantiles", "tube_offsets"]

# Number of bisections in single precision, in which the error function is several times as fast. Double precision is
# used if a hypothesis is narrower than this fraction of the range of the mixture.
_HALVINGS, _NARROW = 24, 1e-4
# Number of paths sampled per group to compute a few representative paths, and again to check them; fewer if they are
# long.
_N_DRAWN, _FEWEST_DRAWN = 3200, 200
# Maximum number of values sampled at a time, limited by memory.
_NUMBERS = 8_000_000
# Line widths in points: the minimum, and the additional width at probability 1.
_THINNEST, _WIDER = 0.7, 5.0
#: Default quantile levels, those of GIFT-Eval.
LEVELS = tuple(round(0.1 * n, 1) for n in range(1, 10))


@dataclass(frozen=True, eq=False)
class Forecast:
    """Mixtures of whole paths for several series.

    Attributes:
        panel: Series that were forecast.
        columns: Column names of frames.
        paths: Hypotheses, [groups, hypotheses, channels, horizon]; a group is one series, or all series if joint.
        scales: Standard deviations of each step around its path, of the same shape.
        probabilities: Probabilities of the hypotheses, [groups, hypotheses].
        n_futures: Default number of futures.
        tube_level: Factor on the tube widths for tubes of `coverage`; None without calibration.
        coverage: Probability with which a tube contains the whole path.
        least: Lower bound of all values; minus infinity without a bound.
        correlation: Lag-1 autocorrelation of the error of a sampled path around its hypothesis.
    """

    panel: Panel
    columns: Columns
    paths: Tensor
    scales: Tensor
    probabilities: Tensor
    n_futures: int
    tube_level: float | None
    coverage: float
    least: float
    correlation: float = 0.0
    _few: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False, repr=False)

    @property
    def horizon(self) -> int:
        """Number of steps to forecast."""
        return self.paths.shape[-1]

    def futures(self, n: int | None = None) -> Any:
        """Return the futures: columns future_1 ... future_n and probability_1 ... probability_n, most likely first.

        Args:
            n: Number of futures, at most the number of hypotheses; `n_futures` of the forecaster by default.
        """
        few, probabilities = self.reduced(n)
        names = range(1, few.shape[1] + 1)
        values = {f"future_{k}": few[:, k - 1] for k in names}
        n_rows = self.paths.shape[2] * self.horizon
        repeated = {f"probability_{k}": probabilities[:, k - 1].double().repeat_interleave(n_rows) for k in names}
        return self._frame(values | repeated)

    def reduced(self, n: int | None = None) -> tuple[Tensor, Tensor]:
        """Return n representative paths [groups, n, channels, horizon], and their probabilities [groups, n].

        The hypotheses are reduced to n paths, which are then moved to reduce the mean distance between a sampled path
        and the nearest of them. Distances between joint paths assume that all series have the same unit. The result is
        computed once.
        """
        most = self.paths.shape[1]
        k = min(self.n_futures, most) if n is None else n
        checks.check_positive_int("Forecast.futures", "n", k)
        if k > most:
            raise ValueError(bad_value("Forecast.futures", "n", f"be at most the number of hypotheses, {most}", k))
        if k not in self._few:
            self._few[k] = self._representative(k)
        return self._few[k]

    def _representative(self, k: int) -> tuple[Tensor, Tensor]:
        """Return k paths and their probabilities, most likely first."""
        middle = self.paths.mean(dim=1, keepdim=True)
        apart = self.paths - middle
        unit = (apart.square() + self.scales.square()).mean(dim=(1, 2, 3), keepdim=True).sqrt().clamp_min(1e-12)
        every = Predictions(apart / unit, self.probabilities.clamp_min(1e-12).log())  # some probabilities may be 0
        few = reduce(every, k, scores=SoftmaxScores()).hypotheses * unit + middle
        moved, probabilities = self._settled(few, unit)
        order = probabilities.argsort(dim=-1, descending=True, stable=True)
        places = order[:, :, None, None].expand_as(few)
        return moved.gather(1, places).clamp_min(self.least), probabilities.gather(1, order)

    def _settled(self, few: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
        """Move paths to the medians of sampled paths; return them, and the fraction of other samples near each path."""
        size, generator, parts = few[0, 0].numel(), torch.Generator().manual_seed(0), []
        n_drawn = min(_N_DRAWN, max(_NUMBERS // size, _FEWEST_DRAWN))
        # All groups use the same random numbers, so that the futures of a series do not depend on the other series.
        errors = [_errors((n_drawn, *few.shape[2:]), self.correlation, generator) for _ in range(2)]
        levels = (torch.arange(n_drawn) + 0.5) / n_drawn
        for rows in torch.arange(len(few)).split(max(_NUMBERS // (n_drawn * max(size, few.shape[1])), 1)):
            middle, scale = few[rows].mean(dim=1, keepdim=True), unit[rows]
            paths, start, least = (
                ((part - middle) / scale).float() for part in (self.paths[rows], few[rows], self.least)
            )
            scales, cumulative = (self.scales[rows] / scale).float(), self.probabilities[rows].float().cumsum(dim=1)
            chosen = torch.searchsorted(cumulative / cumulative[:, -1:], levels.expand(len(rows), -1).contiguous())
            drawn = (_around(paths, scales, chosen, noise).maximum(least).flatten(2) for noise in errors)
            moved, fractions = settled(start.flatten(2), *drawn)
            parts.append((moved.double().view_as(start) * scale + middle, fractions))
        moved, fractions = (torch.cat(part) for part in zip(*parts, strict=True))
        return moved, fractions

    def quantiles(self, levels: Any = LEVELS) -> Any:
        """Return quantiles of each step: columns q0.1, q0.2 and so on.

        Args:
            levels: Quantile levels between 0 and 1.
        """
        wanted = [float(level) for level in np.atleast_1d(levels)]
        if not wanted or not all(0 < level < 1 for level in wanted):
            raise ValueError(bad_value("Forecast.quantiles", "levels", "lie in (0, 1)", wanted))
        values = mixture_quantiles(self.paths, self.scales, self.probabilities, wanted)
        return self._frame({f"q{level:g}": v for level, v in zip(wanted, values.clamp_min(self.least), strict=True)})

    def mean(self) -> Any:
        """Return the mean of each step in the column `mean`."""
        means = _bounded_means(self.paths, self.scales, self.least)
        return self._frame({"mean": (self.probabilities[:, :, None, None] * means).sum(dim=1)})

    def tube(self) -> Any:
        """Return the columns `low` and `high`, between which the whole path lies with probability `coverage`.

        Raises:
            ValueError: If the series were too short to calibrate the tubes.
        """
        if self.tube_level is None:
            advice = "Use longer or more series."
            rule = "have enough windows at the end of the series to calibrate tubes"
            raise ValueError(bad_value("Forecast.tube", "frame", rule, "too few", advice))
        low, high = self.tube_ends()
        return self._frame({"low": low, "high": high})

    def tube_ends(self) -> tuple[Tensor, Tensor]:
        """Return the lower and upper ends of the tube, [groups, channels, horizon] each."""
        assert self.tube_level is not None
        low, middle, high = tube_parts(self.paths, self.scales, self.probabilities)
        low, high = middle - self.tube_level * low, middle + self.tube_level * high
        return low.clamp_min(self.least), high.clamp_min(self.least)

    def plot(self, series: Any = None, axis: Any = None, *, n: int | None = None, n_past: int | None = None) -> Any:
        """Plot a series: its history, the futures with line widths by probability, and the tube.

        Args:
            series: Name of the series; the first series by default.
            axis: Axis of matplotlib to draw on; a new one by default.
            n: Number of futures; `n_futures` of the forecaster by default.
            n_past: Number of past steps to show; twice the horizon by default.

        Returns:
            The axis.
        """
        if axis is None:
            axis = report.new_figure(8.0, 4.0).subplots()
        panel, horizon = self.panel, self.horizon
        places = [0] if series is None else np.flatnonzero(panel.names == series).tolist()
        if not places:
            names = ", ".join(map(repr, panel.names[:5].tolist())) + ", ..." * (len(panel.names) > 5)
            raise ValueError(bad_value("Forecast.plot", "series", f"be one of {names}", repr(series)))
        place = places[0]
        shown = panel.values[place, -(2 * horizon if n_past is None else n_past) or panel.values.shape[1] :]
        before, ahead = (
            np.asarray(panel.grid.shown(panel.grid.around(panel.ends[place], steps)))
            for steps in (np.arange(1 - len(shown), 1), np.arange(1, horizon + 1))
        )
        group, channel = divmod(place, self.paths.shape[2])
        axis.plot(before, shown, color=report.INK, linewidth=1.2, label="history")
        if self.tube_level is not None:
            low, high = (end[group, channel].numpy() for end in self.tube_ends())
            label = f"tube of {report.percent(self.coverage)}"
            axis.fill_between(ahead, low, high, color=report.GRAY, alpha=0.25, linewidth=0, label=label)
        paths, probabilities = self.reduced(n)
        for k, probability in enumerate(probabilities[group].tolist()):
            axis.plot(
                ahead,
                paths[group, k, channel].numpy(),
                color=report.PALETTE[k % len(report.PALETTE)],
                linewidth=_THINNEST + _WIDER * probability,
                alpha=0.85,
                zorder=3 - k / len(probabilities[group]),  # the most probable future on top
                label=f"future {k + 1}, {report.percent(probability)}",
            )
        axis.set_title(str(panel.names[place]), loc="left")
        return axis

    def sample(self, n: int = 100, random_state: int = 0) -> Any:
        """Return n paths sampled from the mixture: columns sample_1 ... sample_n."""
        drawn = self.sample_paths(n, random_state)
        return self._frame({f"sample_{k + 1}": drawn[:, k] for k in range(n)})

    def sample_paths(self, n: int, random_state: int = 0) -> Tensor:
        """Return n paths sampled from the mixture, [groups, n, channels, horizon]."""
        checks.check_positive_int("Forecast.sample", "n", n)
        generator = torch.Generator().manual_seed(random_state)
        parts = (self.paths, self.scales, self.probabilities)
        return drawn_paths(*parts, n, self.correlation, generator).clamp_min(self.least)

    def scores(self, actual: Any, *, n_samples: int = 200) -> dict[str, float]:
        """Compute scores of the forecast. Lower is better except for `coverage`. Missing values are left out.

        - `crps`: weighted quantile loss, averaged over the levels 0.1 ... 0.9 and divided by the sum of |actual|, as in
          GIFT-Eval.
        - `energy`: mean energy score of sampled paths, normalized by their length, in units of the values.
        - `variogram`: mean variogram score of order 0.5 of sampled paths, averaged over pairs of steps; it measures the
          dependence between steps.
        - `distortion`: root mean squared error of the nearest of `n_futures` futures, averaged over groups.
        - `coverage`: fraction of whole paths inside their tubes; missing without calibration.

        Args:
            actual: Data frame with the values that followed, in the same form as the frame of `fit`. Only the order of
                the times matters, and each series must have exactly `horizon` values.
            n_samples: Number of sampled paths for the energy and variogram scores.
        """
        truth = self._actual(actual)  # [groups, channels, horizon]
        quantiles = mixture_quantiles(self.paths, self.scales, self.probabilities, LEVELS).clamp_min(self.least)
        scores = {
            "crps": weighted_quantile_loss(quantiles, truth, LEVELS),
            **path_scores(self.sample_paths(n_samples), truth),
            "distortion": distortion(self.reduced()[0], truth),
        }
        if self.tube_level is not None:
            offsets = tube_offsets(self.paths, self.scales, self.probabilities, truth).nan_to_num()
            scores["coverage"] = float((offsets.abs().amax(dim=-1) <= self.tube_level).double().mean())
        return scores

    def _actual(self, actual: Any) -> Tensor:
        owner = "Forecast.scores"
        columns = replace(self.columns, known=(), past=())
        panel = read_panel(owner, actual, columns, grid=self.panel.grid, aligned=self.paths.shape[2] > 1)
        places = {name: row for row, name in enumerate(panel.names)}
        lost = [name for name in self.panel.names if name not in places]
        if lost:
            raise ValueError(bad_value(owner, "actual", "contain every series of the forecast", f"no {lost[0]!r}"))
        if panel.values.shape[1] != self.horizon:
            rule = f"contain the {self.horizon} steps of the horizon"
            raise ValueError(bad_value(owner, "actual", rule, panel.values.shape[1]))
        rows = [places[name] for name in self.panel.names]
        steps = [self.panel.grid.places(ends) for ends in (panel.ends[rows], self.panel.ends)]
        if np.ptp(steps[0] - steps[1]) > 0.5:  # the last values of a series would be compared with earlier steps
            rule, got = "have the same steps after the end of every series", "different steps for some series"
            raise ValueError(bad_value(owner, "actual", rule, got, "Write missing values as NaN."))
        return torch.from_numpy(panel.values[rows]).view(-1, *self.paths.shape[2:])

    def _frame(self, parts: dict[str, Tensor]) -> Any:
        """Return values [groups, channels, horizon] as columns, after the columns of series and times."""
        panel, horizon = self.panel, self.horizon
        times = panel.grid.shown(panel.times_after(horizon))
        frame = {self.columns.series: np.repeat(panel.names, horizon), self.columns.time: times}
        columns = {name: values.reshape(-1).numpy() for name, values in parts.items()}
        return written_like(pd.DataFrame(frame | columns), panel.like, self.columns.time)


def drawn_paths(
    paths: Tensor, scales: Tensor, probabilities: Tensor, n: int, correlation: float, generator: Any = None
) -> Tensor:
    """Sample n paths with autocorrelated errors from mixtures, [groups, n, channels, horizon].

    Args:
        paths: Hypotheses [groups, hypotheses, channels, horizon].
        scales: Standard deviations of the same shape.
        probabilities: Probabilities [groups, hypotheses].
        n: Number of paths.
        correlation: Lag-1 autocorrelation of the errors, in [0, 1).
        generator: Generator of the random numbers.

    Example:
        >>> zeros = torch.zeros(1, 1, 1, 500)
        >>> drawn = drawn_paths(zeros, zeros + 1, torch.ones(1, 1), 20, 0.9, torch.Generator().manual_seed(0))
        >>> round(float((drawn[..., 1:] * drawn[..., :-1]).mean()), 1), round(float(drawn.std()), 1)
        (0.9, 1.0)
    """
    chosen = torch.multinomial(probabilities, n, replacement=True, generator=generator)
    errors = _errors((*chosen.shape, *paths.shape[2:]), correlation, generator, paths.dtype)
    return _around(paths, scales, chosen, errors)


def _bounded_means(paths: Tensor, scales: Tensor, least: float) -> Tensor:
    """Compute the means of normal variables that are clipped from below at `least`.

    Example:
        >>> [_bounded_means(torch.zeros(1), torch.ones(1), least) for least in (0.0, -torch.inf)]
        [tensor([0.3989]), tensor([0.])]
    """
    if least == -torch.inf:
        return paths
    above = paths - least
    z = above / scales
    bell = torch.exp(-z.square() / 2) * (0.5 / torch.pi) ** 0.5
    return least + above * torch.special.ndtr(z) + scales * bell


def _errors(shape: Any, correlation: float, generator: Any, dtype: torch.dtype = torch.float32) -> Tensor:
    """Sample standard normal variables that are autocorrelated along the last axis."""
    noise = torch.randn(shape, dtype=dtype, generator=generator)
    fresh = (1 - correlation**2) ** 0.5
    for step in range(1, noise.shape[-1]):
        noise[..., step] = correlation * noise[..., step - 1] + fresh * noise[..., step]
    return noise


def _around(paths: Tensor, scales: Tensor, chosen: Tensor, errors: Tensor) -> Tensor:
    """Return the paths with the indices `chosen` [groups, n], with errors in units of their scales."""
    places = chosen[:, :, None, None].expand(-1, -1, *paths.shape[2:])
    return paths.gather(1, places) + scales.gather(1, places) * errors


def mixture_quantiles(paths: Tensor, scales: Tensor, probabilities: Tensor, levels: Any) -> Tensor:
    """Compute quantiles [levels, groups, channels, horizon] of mixtures at each step by bisection.

    Example:
        >>> paths, scales = torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, 1)
        >>> mixture_quantiles(paths, scales, torch.ones(1, 1), [0.1587, 0.8413])[:, 0, 0, 0].round(decimals=2)
        tensor([-1., 1.])
    """
    centers, widths = (part.permute(0, 2, 3, 1).flatten(0, 2) for part in (paths, scales))  # [steps, hypotheses]
    weights = probabilities[:, None, None].expand(*probabilities.shape[:1], *paths.shape[2:], -1).flatten(0, 2)
    middle = centers.mean(dim=-1, keepdim=True)
    reach = ((centers - middle).abs() + 8 * widths).amax(dim=-1, keepdim=True)
    scaled = ((centers - middle) / reach, widths / reach, weights)  # between -1 and 1
    quantiles = _bisected(levels, _HALVINGS, *(part.float() for part in scaled))
    # If one path is far from the others, single precision is too coarse for the others.
    far = scaled[1].amin(dim=-1) < _NARROW
    if far.any():
        quantiles[:, far] = _bisected(levels, 2 * _HALVINGS, *(part[far].double() for part in scaled))
    return (middle[:, 0] + quantiles * reach[:, 0]).unflatten(-1, (len(paths), *paths.shape[2:])).to(paths)


def _bisected(levels: Any, n_halvings: int, centers: Tensor, widths: Tensor, weights: Tensor) -> Tensor:
    """Compute quantiles [levels, steps] of mixtures [steps, hypotheses] between -1 and 1; return double precision."""
    steps = Mixture(centers.unsqueeze(-1), weights, widths.unsqueeze(-1))
    wanted = torch.tensor(levels, dtype=centers.dtype).view(-1, 1)
    low = torch.full((len(wanted), len(centers)), -1.0, dtype=centers.dtype)
    for halving in range(n_halvings):
        half = low + 0.5**halving
        low = torch.where(steps.cdf(half.unsqueeze(-1)) < wanted, half, low)
    return low.double() + 0.5**n_halvings


def tube_parts(paths: Tensor, scales: Tensor, probabilities: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the width below the median, the median, and the width above it, [groups, channels, horizon] each."""
    low, middle, high = mixture_quantiles(paths, scales, probabilities, [0.1, 0.5, 0.9])
    # A fraction of the mean scale bounds the widths from below, so that they do not vanish.
    least = 0.05 * (probabilities[:, :, None, None] * scales).sum(dim=1)
    return (middle - low).maximum(least), middle, (high - middle).maximum(least)


def tube_offsets(paths: Tensor, scales: Tensor, probabilities: Tensor, truth: Tensor) -> Tensor:
    """Compute the offset of each step from the median in tube widths, [groups, channels, horizon]; NaN if missing."""
    low, middle, high = tube_parts(paths, scales, probabilities)
    offset = truth - middle
    return offset / torch.where(offset < 0, low, high)
