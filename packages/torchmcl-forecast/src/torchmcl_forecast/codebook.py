"""Members of the mixture without a network: cluster centers of past errors of a simple forecast, and their weights."""

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
# Limit of the factor between the units of a joint path and those of a window.
_MOST_FACTOR = 1e3
_N_ROWS = 10_000
# Candidate shares of a codebook, selected on held-out windows.
_SHARES = tuple(k / 10 for k in range(11))
# A codebook around the linear map takes at most this part of the share of the networks: they are trained further on the
# held-out windows, which helps them more than it helps the map. With a limit of one half, the energy score of bike
# rentals was 13 % and that of the load of buildings 3 % higher.
_LARGEST_OF_MAP = 0.2


class Codebook(nn.Module):
    """The same paths around every simple forecast: k-means centers of its past errors.

    The simple forecast is the best naive one, or that one corrected by a linear map.

    If the past contains no information about the future, as for exchange rates, a network only adds noise. Paths are in
    units of the naive forecast. For several channels the unit is the geometric mean of the current and the usual one,
    because calm and volatile times do not last, and channels are weighted in k-means by the size of their changes.

    Args:
        n_hypotheses: the number of paths.
        n_channels: series of a path.
        horizon: steps of a path.
        base: the linear map; None for the best naive forecast itself.
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
        """The number of paths."""
        return len(self.get_buffer("logits"))

    @torch.no_grad()
    def fit(self, window: Window, seed: int) -> "Codebook":
        """Fit the centers, the deviations around them, and their probabilities.

        Args:
            window: past windows; those with missing targets are left out.
            seed: of k-means.
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
        weighed = (rows * (usual / usual.mean())).flatten(1) if len(usual) > 1 else rows.flatten(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # with few distinct windows, some paths stay empty
            labels = KMeans(n, n_init=2, random_state=seed).fit(weighed.numpy()).labels_
        owner = torch.from_numpy(labels).long()
        spread = rows.std(dim=0, correction=0).clamp_min(1e-3)
        for k in owner.unique().tolist():
            own = rows[owner == k]
            self.get_buffer("centers")[k] = own.mean(dim=0)
            # Shrink the width of a center towards that of all rows, with the weight of two rows.
            square = (own - own.mean(dim=0)).square().sum(dim=0) + 2 * spread.square()
            self.get_buffer("scales")[k] = (square / (len(own) + 2)).sqrt()
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
    """Return codebooks of past errors of a linear map, and of the naive forecast.

    Args:
        n_hypotheses: paths of each.
        window: past windows.
        linear: the map.
        seed: of k-means.
    """
    _, n_channels, horizon = window.targets.shape
    books = [Codebook(n_hypotheses, n_channels, horizon, base) for base in (linear, None)]
    return [book.fit(window, seed).requires_grad_(False) for book in books]


def best_shares(drawn: Sequence[Tensor], truth: Tensor) -> tuple[float, ...]:
    """Return the shares of the networks and of codebooks that give their mixture a low mean energy score.

    First the share of the codebook around the linear map, which takes a part of that of the networks, then that of the
    one around the naive forecast. In the other order, the naive forecast would take the place of the better map.

    Args:
        drawn: paths [windows, n, values] drawn from the networks, from the codebook around the linear map, and from
            that around the naive forecast.
        truth: [windows, values], NaN where missing.

    Example:
        >>> near, far = torch.zeros(9, 4, 2), torch.ones(9, 4, 2)
        >>> best_shares([far, near, far], torch.zeros(9, 2)), best_shares([far, far, near], torch.zeros(9, 2))
        ((0.8, 0.2, 0.0), (0.0, 0.0, 1.0))
    """
    known = (~truth.isnan()).unsqueeze(1)
    paths, actual = [part * known for part in drawn], truth.nan_to_num().unsqueeze(1)
    error = torch.stack([torch.cdist(part, actual).mean() for part in paths])
    between = torch.stack([torch.stack([_mean_distance(one, other) for other in paths]) for one in paths])

    def energy(shares: tuple[float, ...]) -> float:
        weights = torch.tensor(shares, dtype=error.dtype)
        return float(weights @ error - weights @ between @ weights / 2)

    parts = [part for part in _SHARES if part <= _LARGEST_OF_MAP]
    networks, linear, _ = min(((1 - part, part, 0.0) for part in parts), key=energy)
    return min(((networks * (1 - share), linear * (1 - share), share) for share in _SHARES), key=energy)


def _mean_distance(one: Tensor, other: Tensor) -> Tensor:
    """Return the mean distance between draws; of two different draws of the same member."""
    if one is not other:
        return torch.cdist(one, other).mean()
    n = one.shape[1]
    return torch.cdist(one, other).mean() * n / (n - 1)
