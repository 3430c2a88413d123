"""The volume of a union of balls: exact on the line and in the plane, by sampling elsewhere."""

import math

import torch
from torch import Tensor

from torchmcl._checks import bad_value, check_positive_int
from torchmcl.postprocess._inputs import finite_tensor

__all__ = ["union_volume"]


def union_volume(
    centres: Tensor, radii: Tensor, *, n_samples: int = 1000, generator: torch.Generator | None = None
) -> Tensor:
    """Return the volume of a union of balls for each row, [rows].

    Args:
        centres: [rows, balls, dim]
        radii: [rows, balls], >= 0; balls of radius 0 have no volume.
        n_samples: of each row, in more than two dimensions; the estimate has no bias.
        generator: of the random numbers there; torch's own by default.

    Raises:
        ValueError: for shapes that do not fit, or a radius below 0.

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
    # Rows at a time: all pairs of balls, twice, for each.
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
    """Return the area of a union of discs by Green's theorem: half the integral of x dy - y dx along its border."""
    starts, stops = _covered_arcs(centres, radii)
    starts, order = starts.sort(dim=-1)
    stops = stops.gather(-1, order)
    reached = torch.cat([torch.zeros_like(stops[..., :1]), stops.cummax(dim=-1).values], dim=-1).clamp_min(0)
    begin = reached
    end = torch.cat([starts, torch.full_like(starts[..., :1], 2 * math.pi)], dim=-1)
    end = torch.maximum(end.clamp_max(2 * math.pi), begin)  # [rows, discs, arcs], what no other disc covers
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
    # Of equal discs the first counts, and of discs without area none.
    same = (distance == 0) & (own == other)
    inside = torch.where(same, place.unsqueeze(0) < place.unsqueeze(1), distance + own <= other)
    apart = (distance >= own + other) | (distance + other <= own) | (place.unsqueeze(0) == place.unsqueeze(1))
    cosine = (distance.square() + own.square() - other.square()) / (2 * distance * own).clamp_min(1e-300)
    half = torch.where(inside, math.pi, cosine.clamp(-1, 1).acos().masked_fill(apart & ~inside, 0))
    middle = torch.atan2(offsets[..., 1], offsets[..., 0]) % (2 * math.pi)
    start, stop = middle - half, middle + half
    # What reaches over an end of [0, 2 pi] goes on at the other end.
    wrap_start = torch.where(start < 0, start + 2 * math.pi, torch.where(stop > 2 * math.pi, 0.0, start))
    wrap_stop = torch.where(start < 0, 2 * math.pi, torch.where(stop > 2 * math.pi, stop - 2 * math.pi, stop))
    starts = torch.cat([start.clamp_min(0), wrap_start], dim=-1)
    return starts, torch.cat([stop.clamp_max(2 * math.pi), wrap_stop], dim=-1)


def _sampled(centres: Tensor, radii: Tensor, n_samples: int, generator: torch.Generator | None) -> Tensor:
    """Return the volume from draws of the balls, each divided by the number of balls that contain it."""
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
    # A ball holds its own draws, whatever rounding says.
    count = holds.scatter(-1, ball.unsqueeze(-1), True).sum(dim=-1)
    return total * (1 / count).mean(dim=-1)
