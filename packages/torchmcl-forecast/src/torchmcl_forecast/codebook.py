"""Mixture members without a network: cluster centers of past errors of a simple forecast, with probabilities."""

import warnings
from collections.abc import Sequence

import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from torchmcl import Distributions
from torchmcl_forecast.linear import LinearMap
from torchmcl_forecast.windows import Window

__all__ = ["Codebook", "best_shares", "new_codebooks"]

# Targets are clipped to this distance, in units of the naive forecast.
_FARTHEST = 20.0
# Maximum factor between the units of a joint path and the units of a window.
_MOST_FACTOR = 1e3
_N_ROWS = 10_000
# Candidate mixture weights of a codebook, selected on held-out windows.
_WEIGHTS = tuple(k / 10 for k in range(11))
# A codebook around the linear map takes at most this fraction of the weight of the networks. The networks are trained
# further on the held-out windows, which improves them more than the map. With a limit of one half, the energy scores
# were higher: by 13 % for bike rentals and by 3 % for the load of buildings.
_LARGEST_OF_MAP = 0.2


class Codebook(nn.Module):
    """Fixed paths around a simple forecast: k-means centers of its past errors.

    The simple forecast is the best naive forecast, or its correction by a linear map.

    If the past contains no information about the future, as for exchange rates, a network only adds noise. Paths are in
    units of the naive forecast. For several channels, the unit is the geometric mean of the current unit and the usual
    unit, because calm and volatile periods do not last. K-means weights channels by the size of their changes.

    Args:
        n_hypotheses: Number of paths.
        n_channels: Number of series per path.
        horizon: Number of steps per path.
        base: Linear map that corrects the best naive forecast; None for no correction.
    """

    def __init__(self, n_hypotheses: int, n_channels: int, horizon: int, base: LinearMap | None = None) -> None:
        super().__init__()
        self.base = base
        self.register_buffer("centers", torch.zeros(n_hypotheses, n_channels, horizon))
        self.register_buffer("scales", torch.ones(n_hypotheses, n_channels, horizon))
        self.register_buffer("logits", torch.zeros(n_hypotheses))
        self.register_buffer("usual", torch.ones(n_channels, 1, dtype=torch.float64))

    @property
    def n_hypotheses(self) -> int:
        """Number of paths."""
        return len(self.get_buffer("logits"))

    @torch.no_grad()
    def fit(self, window: Window, seed: int) -> "Codebook":
        """Fit the centers, the standard deviations around them, and their probabilities.

        Args:
            window: Past windows; windows with missing targets are left out.
            seed: Random seed of k-means.
        """
        targets, units = window.targets, window.unit
        targets = targets if self.base is None else targets - self.base(window.inputs)
        usual = units.median(dim=0).values
        self.get_buffer("usual").copy_(usual)
        whole = ~targets.isnan().flatten(1).any(dim=1)
        targets, units = targets[whole][:_N_ROWS].clamp(-_FARTHEST, _FARTHEST), units[whole][:_N_ROWS]
        n = min(self.n_hypotheses, len(targets))
        if n == 0:  # every window has missing values: all paths are the simple forecast
            return self
        rows = targets / self._factors(units)
        weighted = (rows * (usual / usual.mean())).flatten(1) if len(usual) > 1 else rows.flatten(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # with few distinct windows, some paths stay empty
            labels = KMeans(n, n_init=2, random_state=seed).fit(weighted.numpy()).labels_
        owner = torch.from_numpy(labels).long()
        spread = rows.std(dim=0, correction=0).clamp_min(1e-3)
        for k in owner.unique().tolist():
            members = rows[owner == k]
            self.get_buffer("centers")[k] = members.mean(dim=0)
            # Shrink the standard deviation of a cluster towards that of all rows, with the weight of two rows.
            square = (members - members.mean(dim=0)).square().sum(dim=0) + 2 * spread.square()
            self.get_buffer("scales")[k] = (square / (len(members) + 2)).sqrt()
        counts = torch.bincount(owner, minlength=self.n_hypotheses).float()
        self.get_buffer("logits").copy_((counts / counts.sum()).clamp_min(1e-6).log())
        return self

    def _factors(self, units: Tensor) -> Tensor:
        """Return the factors that convert paths to the units of windows, [windows, channels, 1]."""
        usual = self.get_buffer("usual")
        if len(usual) == 1:
            return torch.ones_like(units, dtype=torch.float32)
        return (usual / units).sqrt().clamp(1 / _MOST_FACTOR, _MOST_FACTOR).float()  # a channel may have been 0 so far

    def forward(self, window: Window) -> Distributions:
        """Return paths [windows, hypotheses, channels * horizon, 1] in the units of the windows."""
        factors = self._factors(window.unit).unsqueeze(1)
        centers, scales = (self.get_buffer(name) * factors for name in ("centers", "scales"))
        if self.base is not None:
            centers = centers + self.base(window.inputs).unsqueeze(1)
        logits = self.get_buffer("logits").expand(len(window.unit), -1)
        return Distributions(centers.flatten(2).unsqueeze(-1), logits, scales.flatten(2).unsqueeze(-1))


def new_codebooks(n_hypotheses: int, window: Window, linear: LinearMap, seed: int) -> list[Codebook]:
    """Return two codebooks of past errors: of a linear map, and of the naive forecast.

    Args:
        n_hypotheses: Number of paths per codebook.
        window: Past windows.
        linear: Linear map.
        seed: Random seed of k-means.
    """
    _, n_channels, horizon = window.targets.shape
    books = [Codebook(n_hypotheses, n_channels, horizon, base) for base in (linear, None)]
    return [book.fit(window, seed).requires_grad_(False) for book in books]


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
