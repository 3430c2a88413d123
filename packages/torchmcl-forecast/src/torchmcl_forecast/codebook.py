"""A mixture member without a network: cluster centers of past errors of the naive forecast, and its weight."""

import warnings

import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from torchmcl.types import Distributions

__all__ = ["Codebook", "best_share"]

# Targets are clipped to this distance, in units of the naive forecast.
_FARTHEST = 20.0
_N_ROWS = 10_000
# Candidate shares of the codebook, selected on held-out windows.
_SHARES = tuple(k / 10 for k in range(11))


class Codebook(nn.Module):
    """The same paths around every naive forecast: k-means centers of past errors.

    If the past contains no information about the future, as for exchange rates, a network only adds noise. Paths are in
    units of the naive forecast. For several channels the unit is the geometric mean of the current and the usual one,
    because calm and volatile times do not last, and channels are weighted in k-means by the size of their changes.

    Args:
        n_hypotheses: the number of paths.
        n_channels: series of a path.
        horizon: steps of a path.
    """

    def __init__(self, n_hypotheses: int, n_channels: int, horizon: int) -> None:
        super().__init__()
        self.register_buffer("centers", torch.zeros(n_hypotheses, n_channels, horizon))
        self.register_buffer("scales", torch.ones(n_hypotheses, n_channels, horizon))
        self.register_buffer("logits", torch.zeros(n_hypotheses))
        self.register_buffer("usual", torch.ones(n_channels, 1, dtype=torch.float64))

    @property
    def n_hypotheses(self) -> int:
        """The number of paths."""
        return len(self.get_buffer("logits"))

    def fit(self, targets: Tensor, units: Tensor, seed: int) -> "Codebook":
        """Fit the centers, the deviations around them, and their probabilities.

        Args:
            targets: [windows, channels, horizon], NaN where missing; windows with missing values are left out.
            units: [windows, channels, 1], the units of the targets.
            seed: of k-means.
        """
        whole = ~targets.isnan().flatten(1).any(dim=1)
        targets, units = targets[whole][:_N_ROWS].clamp(-_FARTHEST, _FARTHEST), units[whole][:_N_ROWS]
        n = min(self.n_hypotheses, len(targets))
        if n == 0:  # every window has missing values: one path, the naive forecast
            return self
        usual = units.median(dim=0).values
        self.get_buffer("usual").copy_(usual)
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
        return (usual / units).sqrt().float() if len(usual) > 1 else torch.ones_like(units, dtype=torch.float32)

    def forward(self, units: Tensor) -> Distributions:
        """Return paths [windows, hypotheses, channels * horizon, 1] in units [windows, channels, 1]."""
        factors = self._factors(units).unsqueeze(1)
        centers, scales = ((self.get_buffer(name) * factors).flatten(2).unsqueeze(-1) for name in ("centers", "scales"))
        return Distributions(centers, self.get_buffer("logits").expand(len(units), -1), scales)


def best_share(ours: Tensor, others: Tensor, truth: Tensor) -> float:
    """Return the share of `others` that gives the mixture the lowest mean energy score.

    Args:
        ours: paths [windows, n, values] drawn from the networks.
        others: paths [windows, m, values] drawn from the codebook.
        truth: [windows, values], NaN where missing.

    Example:
        >>> near, far = torch.zeros(9, 4, 2), torch.ones(9, 4, 2)
        >>> best_share(far, near, torch.zeros(9, 2))
        1.0
    """
    known = (~truth.isnan()).unsqueeze(1)
    parts = [part * known for part in (ours, others, truth.nan_to_num().unsqueeze(1))]
    ours_far, others_far = (float(torch.cdist(part, parts[2]).mean()) for part in parts[:2])
    ours_wide, others_wide, between = (
        float(torch.cdist(parts[a], parts[b]).mean()) for a, b in ((0, 0), (1, 1), (0, 1))
    )

    def energy(share: float) -> float:
        rest = 1 - share
        wide = rest**2 * ours_wide + share**2 * others_wide + 2 * share * rest * between
        return rest * ours_far + share * others_far - wide / 2

    return min(_SHARES, key=energy)
