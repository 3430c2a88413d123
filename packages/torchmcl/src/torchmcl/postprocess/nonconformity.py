"""Nonconformity scores of targets, from which conformal regions are built, and the volumes of the regions."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchmcl.checks import bad_value, check_fraction, check_non_negative, check_positive, check_positive_int
from torchmcl.costs import pairwise_euclidean
from torchmcl.costs.declared import Norm, declaration
from torchmcl.density import KernelMixture
from torchmcl.postprocess._inputs import CostFn, WeightedHypotheses, finite_tensor, pair_cost, real_targets, scored
from torchmcl.scoring import SigmoidScores
from torchmcl.types import Distributions, Predictions


def union_volume(
    centres: Tensor, radii: Tensor, *, n_samples: int = 1000, generator: torch.Generator | None = None
) -> Tensor:
    """Return the volume of a union of balls for each row, [rows].

    Args:
        centres: [rows, balls, dim]
        radii: [rows, balls], >= 0; balls of radius 0 have no volume.
        n_samples: per row, in more than two dimensions; the estimate is unbiased.
        generator: for sampling; torch's global generator by default.

    Raises:
        ValueError: for inconsistent shapes, or a negative radius.

    Example:
        >>> union_volume(torch.tensor([[[0.0], [1.0], [5.0]]]), torch.tensor([[1.0, 1.0, 0.5]]))
        tensor([4.])
        >>> union_volume(torch.tensor([[[0.0, 0.0], [0.1, 0.0]]]), torch.tensor([[1.0, 0.5]]))  # one inside the other
        tensor([3.1416])
    """
    centres, radii = finite_tensor("union_volume", "centres", centres), finite_tensor("union_volume", "radii", radii)
    check_positive_int("union_volume", "n_samples", n_samples)
    if centres.ndim != 3 or radii.shape != centres.shape[:2] or centres.shape[-1] < 1:
        rule = f"have shape [rows, balls] for centres [rows, balls, dim] {tuple(centres.shape)}"
        raise ValueError(bad_value("union_volume", "radii", rule, tuple(radii.shape)))
    radii = radii.to(centres)
    if centres.shape[1] == 0:
        return centres.new_zeros(len(centres))
    if (radii < 0).any():
        raise ValueError(bad_value("union_volume", "radii", "be >= 0", f"{radii.min().item()}"))
    if centres.shape[-1] == 1:
        return _length(centres.squeeze(-1), radii)
    # Rows processed at a time: each needs all pairs of balls, twice.
    at_once = max(4_000_000 // (4 * centres.shape[1] ** 2), 1)
    parts = zip(centres.split(at_once), radii.split(at_once), strict=True)
    if centres.shape[-1] == 2:
        return torch.cat([_area(c.double(), r.double()) for c, r in parts]).to(centres)
    return torch.cat([_sampled(c, r, n_samples, generator) for c, r in parts])


def _length(centres: Tensor, radii: Tensor) -> Tensor:
    """Return the length of a union of intervals."""
    lower, order = (centres - radii).sort(dim=-1)
    upper = (centres + radii).gather(-1, order)
    reached = torch.cat([lower[:, :1], upper.cummax(dim=-1).values[:, :-1]], dim=-1)
    return (upper - torch.maximum(lower, reached)).clamp_min(0).sum(dim=-1)


def _area(centres: Tensor, radii: Tensor) -> Tensor:
    """Return the area of a union of discs by Green's theorem: half the integral of x dy - y dx along its boundary."""
    starts, stops = _covered_arcs(centres, radii)
    starts, order = starts.sort(dim=-1)
    stops = stops.gather(-1, order)
    reached = torch.cat([torch.zeros_like(stops[..., :1]), stops.cummax(dim=-1).values], dim=-1).clamp_min(0)
    begin = reached
    end = torch.cat([starts, torch.full_like(starts[..., :1], 2 * math.pi)], dim=-1)
    end = torch.maximum(end.clamp_max(2 * math.pi), begin)  # [rows, discs, arcs], the parts that no other disc covers
    x, y = (part.unsqueeze(-1) for part in centres.unbind(dim=-1))
    radius = radii.unsqueeze(-1)
    arcs = radius * (end - begin) + x * (end.sin() - begin.sin()) - y * (end.cos() - begin.cos())
    return (radius * arcs).sum(dim=(-2, -1)) / 2


def _covered_arcs(centres: Tensor, radii: Tensor) -> tuple[Tensor, Tensor]:
    """Return the arcs of each circle covered by the others, as angles in [0, 2 pi], [rows, discs, 2 discs]."""
    offsets = centres.unsqueeze(1) - centres.unsqueeze(2)  # from disc i to disc j
    distance = offsets.square().sum(dim=-1).sqrt()
    own, other = radii.unsqueeze(2), radii.unsqueeze(1)
    place = torch.arange(radii.shape[1], device=radii.device)
    # Of equal discs only the first counts; discs without area do not count.
    same = (distance == 0) & (own == other)
    inside = torch.where(same, place.unsqueeze(0) < place.unsqueeze(1), distance + own <= other)
    apart = (distance >= own + other) | (distance + other <= own) | (place.unsqueeze(0) == place.unsqueeze(1))
    cosine = (distance.square() + own.square() - other.square()) / (2 * distance * own).clamp_min(1e-300)
    half = torch.where(inside, math.pi, cosine.clamp(-1, 1).acos().masked_fill(apart & ~inside, 0))
    middle = torch.atan2(offsets[..., 1], offsets[..., 0]) % (2 * math.pi)
    start, stop = middle - half, middle + half
    # An arc beyond an end of [0, 2 pi] continues at the other end.
    wrap_start = torch.where(start < 0, start + 2 * math.pi, torch.where(stop > 2 * math.pi, 0.0, start))
    wrap_stop = torch.where(start < 0, 2 * math.pi, torch.where(stop > 2 * math.pi, stop - 2 * math.pi, stop))
    starts = torch.cat([start.clamp_min(0), wrap_start], dim=-1)
    return starts, torch.cat([stop.clamp_max(2 * math.pi), wrap_stop], dim=-1)


def _sampled(centres: Tensor, radii: Tensor, n_samples: int, generator: torch.Generator | None) -> Tensor:
    """Estimate the volume from samples in the balls, each weighted by 1 / (number of balls that contain it)."""
    dim = centres.shape[-1]
    unit = math.exp(dim / 2 * math.log(math.pi) - math.lgamma(dim / 2 + 1))
    volumes = unit * radii**dim
    total = volumes.sum(dim=-1)
    shares = torch.where(total.unsqueeze(-1) > 0, volumes, 1.0)
    ball = torch.multinomial(shares, n_samples, replacement=True, generator=generator)  # [rows, samples]
    shape = (*ball.shape, dim)
    direction = torch.randn(shape, dtype=centres.dtype, device=centres.device, generator=generator)
    direction = direction / direction.square().sum(dim=-1, keepdim=True).sqrt()
    length = torch.rand(ball.shape, dtype=centres.dtype, device=centres.device, generator=generator) ** (1 / dim)
    own = radii.gather(1, ball)
    points = centres.gather(1, ball.unsqueeze(-1).expand(shape)) + direction * (length * own).unsqueeze(-1)
    holds = torch.cdist(points, centres, compute_mode="donot_use_mm_for_euclid_dist") <= radii.unsqueeze(1)
    # A ball contains its own samples, despite rounding.
    count = holds.scatter(-1, ball.unsqueeze(-1), True).sum(dim=-1)
    return total * (1 / count).mean(dim=-1)


class Nonconformity(ABC):
    """A score of each target, larger for worse fits; a region contains the values with scores up to a quantile.

    It is frozen, and must not be fitted on the calibration rows.

    Attributes:
        of_cross_sections: whether `volume` is a mean over the steps of an event, and not in the space of events.
    """

    of_cross_sections: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, given: WeightedHypotheses, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the score of each row.

        Args:
            given: hypotheses [rows, hypotheses, ...] and probabilities [rows, hypotheses].
            targets: [rows, ...]
            mask: [rows, steps], True where a step is real, or None.
        """

    @abstractmethod
    def volume(
        self, given: WeightedHypotheses, level: Tensor, n_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        """Return the volume of the region of each row, [rows], for levels [rows]."""


def _positive_numbers(owner: str, argument: str, values: Any) -> tuple[float, ...] | None:
    """Return positive numbers as a tuple."""
    if values is None:
        return None
    if not isinstance(values, (tuple, list)):
        raise TypeError(bad_value(owner, argument, "be a tuple of numbers", repr(values)))
    for value in values:
        check_positive(owner, argument, value)
    return tuple(map(float, values))


def _growth(probabilities: Tensor, power: float) -> Tensor:
    """Return the size of each hypothesis's ball relative to that of a hypothesis with average probability."""
    return (probabilities * probabilities.shape[-1]).clamp_min(1e-12) ** power


@dataclass(frozen=True)
class BallScore(Nonconformity):
    """The cost of the nearest hypothesis: regions are unions of balls around the hypotheses.

    Args:
        cost_fn: any `pairwise_*` function.
        power: balls grow with the probability of their hypothesis: the cost of each is divided by (n p)^power. With 0,
            all balls of a row are equal.

    Example:
        >>> two = WeightedHypotheses(torch.tensor([[[0.0], [4.0]]]), torch.tensor([[0.5, 0.5]]))
        >>> BallScore()(two, torch.tensor([[3.0]]))
        tensor([1.])
    """

    cost_fn: CostFn = pairwise_euclidean
    power: float = 0.0

    def __post_init__(self) -> None:
        """Check the field."""
        check_non_negative("BallScore", "power", self.power)

    def __call__(self, given: WeightedHypotheses, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the lowest cost relative to the size of the ball."""
        steps = None if mask is None else mask.unsqueeze(1)
        cost = pair_cost("BallScore", self.cost_fn, given.hypotheses, targets.unsqueeze(1), steps).squeeze(1)
        return (cost / _growth(given.probabilities, self.power)).amin(dim=-1)

    def radii(self, given: WeightedHypotheses, level: Tensor) -> Tensor:
        """Return the radius of each ball, [rows, hypotheses].

        Raises:
            ValueError: for a cost that is not a function of the Euclidean distance.
        """
        norm = declaration(self.cost_fn).formula
        if not isinstance(norm, Norm) or norm.order != 2 or norm.mean_over_steps:
            rule = "be declared as a power of the Euclidean distance for a radius or a volume"
            name = getattr(self.cost_fn, "__name__", repr(self.cost_fn))
            raise ValueError(bad_value("BallScore", "cost_fn", rule, name, "`TubeScore` has a volume for sequences."))
        reach = level.unsqueeze(-1) * _growth(given.probabilities, self.power)
        return reach if norm.power == 1 else reach ** (1 / norm.power)

    def volume(
        self, given: WeightedHypotheses, level: Tensor, n_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        """Return the volume of the union of balls."""
        radii = self.radii(given, level)
        return union_volume(given.hypotheses.flatten(2), radii, n_samples=n_samples, generator=generator)


@dataclass(frozen=True)
class TubeScore(Nonconformity):
    """The largest scaled distance over the steps to the nearest hypothesis: regions are tubes around hypotheses.

    A target is in the region if all its steps are in the tube of the same hypothesis: coverage is joint over the steps.
    Coordinates of a vector are steps of dimension 1.

    Args:
        scales: the radius of each step relative to the others, from `TubeScore.fit`. None for equal radii.
        power: tubes grow with the probability of their hypothesis, as in `BallScore`.

    Example:
        >>> one = WeightedHypotheses(torch.zeros(1, 1, 2, 2), torch.ones(1, 1))
        >>> TubeScore(scales=(1.0, 2.0))(one, torch.tensor([[[0.0, 1.0], [3.0, 0.0]]]))
        tensor([1.5000])
    """

    scales: tuple[float, ...] | None = None
    power: float = 0.0
    of_cross_sections: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the fields."""
        check_non_negative("TubeScore", "power", self.power)
        object.__setattr__(self, "scales", _positive_numbers("TubeScore", "scales", self.scales))

    @classmethod
    def fit(
        cls,
        predictions: Predictions | Distributions,
        targets: Any,
        mask: Tensor | None = None,
        *,
        share: float = 0.9,
        power: float = 0.0,
    ) -> "TubeScore":
        """Return tubes whose scales are a quantile of the distance to the nearest hypothesis at each step.

        Args:
            predictions: of rows other than the calibration rows.
            targets: [rows, ...]; the contents of masked steps are ignored, even NaN.
            mask: [rows, steps], True where a step is real, or None.
            share: which quantile.
            power: as above.
        """
        given = scored("TubeScore.fit", predictions, SigmoidScores())
        shape = (len(given.hypotheses), *given.hypotheses.shape[2:])
        truth, mask = real_targets("TubeScore.fit", targets, mask, shape)
        if len(truth) == 0:
            raise ValueError(bad_value("TubeScore.fit", "targets", "have at least one row", tuple(truth.shape)))
        check_fraction("TubeScore.fit", "share", share)
        distances = _distances(given.hypotheses, truth.to(given.hypotheses))  # [rows, hypotheses, steps]
        spread = distances if mask is None else distances.masked_fill(~mask.unsqueeze(1), 0)
        # The nearest hypothesis by the mean over steps, each in units of its typical size: no single step dominates.
        n_real = len(truth) if mask is None else mask.sum(dim=0).clamp_min(1)
        unit = (spread.amin(dim=1).sum(dim=0) / n_real).clamp_min(1e-12)
        nearest = (spread / unit).mean(dim=-1).argmin(dim=-1)
        own = distances[torch.arange(len(distances), device=nearest.device), nearest]
        own = own if mask is None else own.masked_fill(~mask, torch.nan)
        scales = torch.nanquantile(own.double(), share, dim=0).nan_to_num(1.0).clamp_min(1e-12)
        return cls(tuple(scales.tolist()), power)

    def __call__(self, given: WeightedHypotheses, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the largest scaled distance along the nearest hypothesis."""
        distances = _distances(given.hypotheses, targets)
        scaled = distances / self._scales(distances)
        if mask is not None:
            scaled = scaled.masked_fill(~mask.unsqueeze(1), 0)
        return (scaled.amax(dim=-1) / _growth(given.probabilities, self.power)).amin(dim=-1)

    def radii(self, given: WeightedHypotheses, level: Tensor) -> Tensor:
        """Return the radius at each step, [rows, hypotheses, steps]."""
        n_steps = given.hypotheses.shape[2]
        grown = level.unsqueeze(-1) * _growth(given.probabilities, self.power)
        return grown.unsqueeze(-1) * self._scales(grown.unsqueeze(-1).expand(*grown.shape, n_steps))

    def volume(
        self, given: WeightedHypotheses, level: Tensor, n_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        """Return the volume of the union of the tubes' cross-sections, as a mean over the steps."""
        events = _as_steps(given.hypotheses).transpose(1, 2)  # [rows, steps, hypotheses, dim]
        radii = self.radii(given, level).transpose(1, 2)
        volumes = union_volume(
            events.flatten(0, 1), radii.flatten(0, 1).to(events), n_samples=n_samples, generator=generator
        )
        return volumes.view(radii.shape[:2]).mean(dim=-1)

    def _scales(self, like: Tensor) -> Tensor:
        if self.scales is None:
            return like.new_ones(like.shape[-1])
        if len(self.scales) != like.shape[-1]:
            rule = f"have one number for each of {like.shape[-1]} steps"
            raise ValueError(bad_value("TubeScore", "scales", rule, len(self.scales)))
        return like.new_tensor(self.scales)


def _distances(hypotheses: Tensor, targets: Tensor) -> Tensor:
    """Return the distance of each hypothesis to the target at each step, [rows, hypotheses, steps]."""
    return (_as_steps(hypotheses) - _as_steps(targets.unsqueeze(1))).square().sum(dim=-1).sqrt()


def _as_steps(events: Tensor) -> Tensor:
    """Return events [rows, n, steps, dim]; the coordinates of a vector are steps of one dimension."""
    return events.unsqueeze(-1) if events.ndim == 3 else events.flatten(3)


@dataclass(frozen=True)
class DensityLevels(Nonconformity):
    """The negative log density of Gaussian kernels around the hypotheses: regions are level sets.

    Args:
        bandwidth: standard deviation of the kernels; `torchmcl.density.fit_bandwidth` fits one.
        scale: the unit of each coordinate of the flattened event; 1 by default.

    Example:
        >>> one = WeightedHypotheses(torch.zeros(1, 1, 1), torch.ones(1, 1))
        >>> DensityLevels(bandwidth=1.0)(one, torch.tensor([[0.0]]))
        tensor([0.9189])
    """

    bandwidth: float
    scale: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        check_positive("DensityLevels", "bandwidth", self.bandwidth)
        object.__setattr__(self, "scale", _positive_numbers("DensityLevels", "scale", self.scale))

    def __call__(self, given: WeightedHypotheses, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the negative log density at the targets."""
        if mask is not None:
            advice = "Leave out rows that are cut short, or use `TubeScore`."
            raise ValueError(bad_value("DensityLevels", "mask", "be None", "a mask", advice))
        return -self._density(given).log_prob(targets.flatten(1))

    def volume(
        self, given: WeightedHypotheses, level: Tensor, n_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        """Return the volume of the level set as the mean of 1 / density over samples inside it."""
        density = self._density(given)
        logs = density.log_prob(density.sample((n_samples,), generator))  # [samples, rows]
        inside = -logs <= level
        exponents = torch.where(inside, -logs, -math.inf)
        return exponents.logsumexp(dim=0).exp() / n_samples

    def _density(self, given: WeightedHypotheses) -> KernelMixture:
        hypotheses = given.hypotheses.flatten(2)
        scale: Sequence[float] | None = self.scale
        if scale is not None and len(scale) != hypotheses.shape[-1]:
            rule = f"have one number for each of {hypotheses.shape[-1]} coordinates"
            raise ValueError(bad_value("DensityLevels", "scale", rule, len(scale)))
        unit = None if scale is None else hypotheses.new_tensor(scale)
        return KernelMixture(hypotheses, given.probabilities, self.bandwidth, unit)
