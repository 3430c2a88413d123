"""Calibration of tubes and samples on held-out windows at the ends of the series, and adaptation to later windows."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchmcl.postprocess import quantile, rows_needed
from torchmcl_forecast.frames import Panel
from torchmcl_forecast.scores import mixture_crps
from torchmcl_forecast.windows import Source

__all__ = [
    "Calibration",
    "best_shares",
    "best_spread",
    "choose_calibration",
    "path_correlation",
    "places_since",
    "tube_level",
]

# With this many independent windows, the standard deviation of the coverage of a level is below two percent.
_ENOUGH_ROWS = 300
# Windows with the same forecast origin share its shocks, for any number of series. (For M4's weekly series, a level
# from other origins had a coverage of 0.76 to 0.99 at a single origin.) A level therefore needs several origins.
_ENOUGH_ORIGINS = 8
# Maximum fraction of the times that is held out.
_LARGEST_FRACTION = 0.2
# Approximate number of steps at which the scales are measured.
_N_STEPS = 8
# Candidate factors on the scales.
_SPREADS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.4)
# Required number of windows, as a multiple of the minimum number for which a level exists.
_TIMES_NEEDED = 3
# After a fit, the level moves by `_PACE` times the difference between nominal and actual coverage of a window; by less
# if there are about `_FEW` series or fewer, because their coverage is known less precisely.
_PACE, _FEW = 0.3, 5
# Maximum numbers of windows since the fit, and of paths in all of them, that are forecast again.
_MOST_WINDOWS, _MOST_PATHS = 24, 2400
# Candidate mixture weights of a codebook, selected on held-out windows.
_WEIGHTS = tuple(k / 10 for k in range(11))
# A codebook around the linear map takes at most this fraction of the weight of the networks. The networks are trained
# further on the held-out windows, which improves them more than the map. With a limit of one half, the energy scores
# were higher: by 13 % for bike rentals and by 3 % for the load of buildings.
_LARGEST_OF_MAP = 0.2


class Calibration(NamedTuple):
    """Windows that are held out from the first part of the training.

    Attributes:
        places: Windows [windows, 2], see `Source.places`.
        n_steps: Number of steps at the end of the series that their horizons cover.
    """

    places: Tensor
    n_steps: int


def choose_calibration(source: Source, coverage: float) -> Calibration | None:
    """Choose the last windows of the series for calibration; None if the series are too short to hold out windows.

    The windows of a series are consecutive. There are more of them per series if there are few series, and they overlap
    if there would still be too few.

    Args:
        source: Source of the windows.
        coverage: Coverage of the tubes.
    """
    layout = source.layout
    horizon, n_series = layout.horizon, source.n_groups * layout.n_channels
    room = int(_LARGEST_FRACTION * source.n_times)
    if room < horizon:
        return None
    wanted = max(-(-_ENOUGH_ROWS // n_series), min(_ENOUGH_ORIGINS, room // horizon))  # windows per series
    n_steps = min(horizon * wanted, room)
    stride = max(1, min(horizon, (n_steps - horizon) // max(wanted - 1, 1)))
    late = source.places(first=source.n_times - n_steps)
    places = late[(source.n_times - horizon - late[:, 1]) % stride == 0]
    needed = _TIMES_NEEDED * rows_needed(1 - coverage)
    n_left = len(source.places(last=n_steps))
    if len(places) * layout.n_channels < needed or n_left < len(source.places()) // 2:
        return None
    return Calibration(places, n_steps)


def best_shares(drawn: Sequence[Tensor], truth: Tensor) -> tuple[float, ...]:
    """Choose mixture weights of the networks and of the codebooks that give a low mean energy score.

    The weight of the codebook around the linear map is chosen first and reduces the weight of the networks; then the
    weight of the codebook around the naive forecast is chosen. In the opposite order, the naive forecast would displace
    the better linear map.

    Args:
        drawn: Sampled paths [windows, n, values] of the networks, of the codebook around the linear map, and of the
            codebook around the naive forecast.
        truth: Target values [windows, values], NaN where missing.

    Example:
        >>> near, far = torch.zeros(9, 4, 2), torch.ones(9, 4, 2)
        >>> best_shares([far, near, far], torch.zeros(9, 2)), best_shares([far, far, near], torch.zeros(9, 2))
        ((0.8, 0.2, 0.0), (0.0, 0.0, 1.0))
    """
    known = (~truth.isnan()).unsqueeze(1)
    paths, actual = [part * known for part in drawn], truth.nan_to_num().unsqueeze(1)
    error = torch.stack([torch.cdist(part, actual).mean() for part in paths])
    between = torch.stack([torch.stack([_mean_distance(one, other) for other in paths]) for one in paths])

    def energy(candidate: tuple[float, ...]) -> float:
        weights = torch.tensor(candidate, dtype=error.dtype)
        return float(weights @ error - weights @ between @ weights / 2)

    of_map = [weight for weight in _WEIGHTS if weight <= _LARGEST_OF_MAP]
    networks, linear, _ = min(((1 - weight, weight, 0.0) for weight in of_map), key=energy)
    return min(((networks * (1 - weight), linear * (1 - weight), weight) for weight in _WEIGHTS), key=energy)


def _mean_distance(one: Tensor, other: Tensor) -> Tensor:
    """Return the mean distance between draws; for one member, between different draws."""
    if one is not other:
        return torch.cdist(one, other).mean()
    n = one.shape[1]
    return torch.cdist(one, other).mean() * n / (n - 1)


def best_spread(paths: Tensor, scales: Tensor, probabilities: Tensor, truth: Tensor) -> float:
    """Return the factor on the scales that minimizes the mean CRPS of the mixtures at single steps.

    Args:
        paths: Hypotheses [windows, hypotheses, channels, horizon].
        scales: Standard deviations of the same shape.
        probabilities: Probabilities [windows, hypotheses].
        truth: Target paths [windows, channels, horizon], NaN where missing.

    Example:
        >>> import torch
        >>> zeros, normal = torch.zeros(99, 1, 1, 4), torch.randn(99, 1, 4, generator=torch.Generator().manual_seed(0))
        >>> best_spread(zeros, zeros + 2, torch.ones(99, 1), normal)
        0.5
    """
    # Pairs of hypotheses at all steps of all channels would be too slow: use a few steps, in alternating channels.
    steps = torch.linspace(0, truth.shape[2] - 1, _N_STEPS).round().long()
    chosen = torch.stack([torch.arange(_N_STEPS) % truth.shape[1], steps]).unique(dim=1)
    centers, widths, target = (part[..., chosen[0], chosen[1]] for part in (paths, scales, truth))
    known = ~target.isnan()
    if not known.any():
        return 1.0
    target = target.nan_to_num()

    def crps(factor: float) -> float:
        return float(mixture_crps(centers, factor * widths, probabilities, target, known))

    return min(_SPREADS, key=crps)


def path_correlation(paths: Tensor, scales: Tensor, probabilities: Tensor, truth: Tensor) -> float:
    """Estimate the lag-1 autocorrelation of the errors around the realized hypothesis, in [0, 0.99].

    Forecast errors persist; samples with independent errors would oscillate around their path.

    Args:
        paths: Hypotheses [windows, hypotheses, channels, horizon].
        scales: Standard deviations of the same shape.
        probabilities: Probabilities [windows, hypotheses].
        truth: Target paths [windows, channels, horizon], NaN where missing.

    Example:
        >>> import torch
        >>> zeros, slow = torch.zeros(1, 1, 1, 50), torch.arange(50.0).mul(0.1).sin().view(1, 1, 50)
        >>> round(path_correlation(zeros, zeros + 1, torch.ones(1, 1), slow), 1)
        1.0
    """
    errors = (truth.unsqueeze(1) - paths) / scales  # NaN where missing
    far = (errors.square() / 2 + scales.log()).nanmean(dim=(2, 3))
    weights = (probabilities.log() - far).softmax(dim=1)[:, :, None, None]
    together = (weights * errors[..., 1:] * errors[..., :-1]).nansum()
    alone = (weights * (errors[..., 1:].square() + errors[..., :-1].square()) / 2).nansum()
    return float((together / alone.clamp_min(1e-12)).clamp(0.0, 0.99))


def places_since(source: Source, panel: Panel, last: Any) -> list[Tensor]:
    """Return the consecutive windows between a fit and the end of the series, by forecast origin: [windows, 2] each.

    Args:
        source: Source of the windows.
        panel: Series, which may differ from the series of the fit.
        last: Last time of the fit.
    """
    horizon, n_channels = source.layout.horizon, source.layout.n_channels
    steps = panel.grid.places(np.append(panel.ends[::n_channels], last))
    n_new = np.round(steps[:-1] - steps[-1]).astype(np.int64)  # negative for a series that ends before
    most = min(_MOST_WINDOWS, max(_MOST_PATHS // (source.n_groups * n_channels), 1))
    n_windows = min(int(n_new.max()) // horizon, most)
    if n_windows < 1:
        return []
    late = source.places(first=source.n_times - n_windows * horizon)
    back = source.n_times - late[:, 1]
    late = late[(back % horizon == 0) & (back <= torch.from_numpy(n_new)[late[:, 0]])]
    return [late[late[:, 1] == before] for before in late[:, 1].unique()]


def tube_level(scores: Tensor, coverage: float, recent: Sequence[Tensor] = ()) -> float:
    """Compute the factor on the tube widths.

    Without recent windows, it is the conformal quantile of the scores. After each recent window, the quantile level
    rises if too few paths were inside and falls if too many were inside. The coverage over time therefore approaches
    the nominal coverage even if the errors after the fit are larger or smaller than before.

    Args:
        scores: Nonconformity scores of held-out paths, [paths]: the largest offset in tube widths.
        coverage: Nominal coverage.
        recent: Nonconformity scores of the windows after the fit, by forecast origin, [paths] each.

    Example:
        >>> scores = torch.arange(1.0, 100.0)
        >>> tube_level(scores, 0.9), tube_level(scores, 0.9, [torch.full((20,), 95.0)])
        (90.0, 99.0)

    Reference:
        Gibbs and Candes, Adaptive conformal inference under distribution shift, NeurIPS 2021.
    """
    held_out, target = scores.numpy(), coverage
    most = len(held_out) / (len(held_out) + 1)  # the level of the largest score

    def level(fraction: float) -> float:
        return quantile(held_out, np.ones(len(held_out)), 1 - min(max(fraction, 0.01), most))

    for window in recent:
        inside = float((window <= level(target)).double().mean())
        target += _PACE * len(window) / (len(window) + _FEW) * (coverage - inside)
    return level(target)
