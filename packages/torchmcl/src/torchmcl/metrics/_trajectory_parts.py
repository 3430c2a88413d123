"""Errors of trajectories for each agent or scene, shared by the functions and the classes."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl.checks import (
    bad_value,
    check_boolean,
    check_choice,
    check_finite,
    check_fraction,
    check_positive,
    check_positive_int,
    check_shape,
    check_tensor,
)
from torchmcl.metrics._parts import RealValues

# Pairs are compared in chunks of this many numbers: a crowded scene has millions of pairs and steps.
_PIECE = 1 << 24


@dataclass(frozen=True)
class Convention:
    """The conventions in which papers differ; `torchmcl.metrics.min_ade` documents them.

    Each metric of trajectories is a subclass: checked options, and a method that turns tensors into one value per agent
    or scene. The functions average these values, the torchmetrics classes add them up over batches.
    """

    owner: str
    k: int | None = None
    best_by: str = "ade"
    average_over: str = "agents"
    last_valid_step: bool = True

    def __post_init__(self) -> None:
        if self.k is not None:
            check_positive_int(self.owner, "k", self.k)
        check_choice(self.owner, "best_by", self.best_by, ("ade", "fde"))
        check_choice(self.owner, "average_over", self.average_over, ("agents", "scenes"))
        if not isinstance(self.last_valid_step, bool):
            raise TypeError(bad_value(self.owner, "last_valid_step", "be True or False", repr(self.last_valid_step)))


class Trajectories(NamedTuple):
    """The inputs of a metric, documented in `torchmcl.metrics.min_ade`; `scores` may be probabilities."""

    hypotheses: Tensor
    targets: Tensor | None
    mask: Tensor | None = None
    scores: Tensor | None = None
    scene: Tensor | None = None


class Scenes(NamedTuple):
    """The scene of each agent, numbered from 0."""

    number: Tensor
    n: int


class Forecast(NamedTuple):
    """Checked inputs, with 0 at invalid steps.

    Attributes:
        hypotheses: [batch, hypotheses, steps, dim]
        targets: [batch, steps, dim]
        mask: [batch, steps]
        scores: [batch, hypotheses] or None
        scenes: or None
    """

    hypotheses: Tensor
    targets: Tensor
    mask: Tensor
    scores: Tensor | None
    scenes: Scenes | None


def forecast(owner: str, given: Trajectories, scores_name: str = "scores") -> Forecast:
    """Check the inputs of a metric; missing targets are 0."""
    hypotheses, targets, mask, scores, scene = given
    check_tensor(owner, "hypotheses", hypotheses)
    if hypotheses.ndim != 4 or 0 in hypotheses.shape[1:]:
        rule = "have shape [batch, hypotheses, steps, dim]"
        advice = "One trajectory for each agent is hypotheses.unsqueeze(1)."
        raise ValueError(bad_value(owner, "hypotheses", rule, tuple(hypotheses.shape), advice))
    batch, n_hypotheses, n_steps, dim = hypotheses.shape
    hypotheses = hypotheses.to(torch.promote_types(hypotheses.dtype, torch.float32))
    if targets is None:
        targets = hypotheses.new_zeros(batch, n_steps, dim)
    check_tensor(owner, "targets", targets)
    check_shape(owner, "targets", targets, (batch, n_steps, dim), "[batch, steps, dim]")
    if mask is None:
        mask = torch.ones(batch, n_steps, dtype=torch.bool, device=hypotheses.device)
    check_boolean(owner, "mask", mask)
    check_shape(owner, "mask", mask, (batch, n_steps), "[batch, steps]")
    # An evaluation may wait for the device. NaN would count as no miss and as no collision.
    check_finite(owner, "hypotheses", hypotheses, mask[:, None, :, None], always=True)
    check_finite(owner, "targets", targets, mask.unsqueeze(-1), always=True)
    if scores is not None:
        check_tensor(owner, scores_name, scores)
        check_shape(owner, scores_name, scores, (batch, n_hypotheses), "[batch, hypotheses]")
        check_finite(owner, scores_name, scores, always=True)
    absent = ~mask.unsqueeze(-1)
    return Forecast(
        hypotheses.masked_fill(absent.unsqueeze(1), 0),
        targets.masked_fill(absent, 0),
        mask,
        scores,
        None if scene is None else _numbered(owner, scene, batch),
    )


@dataclass(frozen=True)
class BestErrors(Convention):
    """The error ("ade" or "fde") of the best hypothesis of each agent, or of each scene if `joint`."""

    error: str = "ade"
    joint: bool = False

    def __call__(self, given: Trajectories) -> RealValues:
        """Return one value per agent or scene."""
        data = forecast(self.owner, given)
        scenes = _needed_scenes(self, data, self.joint)
        data = _best_scored(self, data, self.joint)
        counts = counted(self, data)
        errors = errors_of(data)
        if self.joint and scenes is not None:
            errors = {name: _scene_means(value, counts, scenes).values for name, value in errors.items()}
        best = errors[self.best_by].argmin(dim=-1, keepdim=True)
        values = errors[self.error].gather(-1, best).squeeze(-1)
        if self.joint and scenes is not None:
            if self.average_over == "agents":
                return RealValues(values[scenes.number], counts)
            return RealValues(values, _scene_sums(counts.long(), scenes) > 0)
        return _averaged(self, values, counts, scenes)


@dataclass(frozen=True)
class Misses(Convention):
    """Misses: 1 for each agent whose hypotheses are all farther away than `threshold`, otherwise 0."""

    threshold: float = 2.0
    distance: str = "final"

    def __post_init__(self) -> None:
        check_positive(self.owner, "threshold", self.threshold)
        check_choice(self.owner, "distance", self.distance, ("final", "largest"))
        super().__post_init__()

    def __call__(self, given: Trajectories) -> RealValues:
        """Return one value per agent or scene."""
        data = forecast(self.owner, given)
        scenes = _needed_scenes(self, data, joint=False)
        data = _best_scored(self, data, joint=False)
        errors = errors_of(data)["fde" if self.distance == "final" else "largest"]
        missed = (errors.amin(dim=-1) > self.threshold).to(errors.dtype)
        return _averaged(self, missed, counted(self, data), scenes)


@dataclass(frozen=True)
class BrierErrors(Convention):
    """The final error of the hypothesis that ends nearest, plus (1 - its probability)^2."""

    renormalize: bool = False

    def __call__(self, given: Trajectories) -> RealValues:
        """Return one value per agent or scene."""
        data = forecast(self.owner, given, "probabilities")
        scenes = _needed_scenes(self, data, joint=False)
        data = _best_scored(self, data, joint=False)
        if data.scores is None:
            rule = "be given, [batch, hypotheses]"
            raise ValueError(bad_value(self.owner, "probabilities", rule, "None", "Use scores=True in the model."))
        check_fraction(self.owner, "probabilities", data.scores, always=True)
        chances = data.scores.to(data.hypotheses.dtype)
        if self.renormalize:
            total = chances.sum(dim=-1, keepdim=True)
            advice = "Some hypothesis must be possible to renormalize."
            check_positive(self.owner, "probabilities", total, advice, always=True)
            chances = chances / total
        error, best = errors_of(data)["fde"].min(dim=-1, keepdim=True)
        values = (error + (1 - chances.gather(-1, best)).square()).squeeze(-1)
        return _averaged(self, values, counted(self, data), scenes)


@dataclass(frozen=True, kw_only=True)
class Collisions(Convention):
    """Collisions (1 or 0) of every pair or agent in every hypothesis, and a mask of those that count."""

    distance: float
    count: str = "pairs"

    def __post_init__(self) -> None:
        check_positive(self.owner, "distance", self.distance)
        check_choice(self.owner, "count", self.count, ("pairs", "agents"))
        super().__post_init__()

    def __call__(self, given: Trajectories) -> RealValues:
        """Return one value per pair, agent or scene, for every hypothesis."""
        data = forecast(self.owner, given)
        scenes = _needed_scenes(self, data, joint=True)
        assert scenes is not None
        left, right = _pairs(scenes)
        hypotheses, present = data.hypotheses, data.mask
        rows = max(1, _PIECE // hypotheses[:1].numel()) if len(hypotheses) else 1
        pieces = [hypotheses.new_zeros(0, hypotheses.shape[1], dtype=torch.bool)]
        for i, j in zip(left.split(rows), right.split(rows), strict=True):
            near = torch.linalg.vector_norm(hypotheses[i] - hypotheses[j], dim=-1) < self.distance
            pieces.append((near & (present[i] & present[j]).unsqueeze(1)).any(dim=-1))
        collided = torch.cat(pieces).to(hypotheses.dtype)  # [pairs, hypotheses]
        if self.count == "pairs":
            met = (present[left] & present[right]).any(dim=-1)
            return _averaged(self, collided, met, Scenes(scenes.number[left], scenes.n))
        hits = hypotheses.new_zeros(hypotheses.shape[:2]).index_add(0, left, collided).index_add(0, right, collided)
        return _averaged(self, (hits > 0).to(hits.dtype), present.any(dim=-1), scenes)


def counted(convention: Convention, data: Forecast) -> Tensor:
    """Return a mask [batch] of the agents that count."""
    return data.mask.any(dim=-1) if convention.last_valid_step else data.mask[:, -1]


def errors_of(data: Forecast) -> dict[str, Tensor]:
    """Return the mean, the last and the largest distance over the valid steps, [batch, hypotheses] each."""
    distances = torch.linalg.vector_norm(data.hypotheses - data.targets.unsqueeze(1), dim=-1)
    n_valid = data.mask.sum(dim=-1).clamp_min(1).unsqueeze(-1)
    steps = torch.arange(data.mask.shape[-1], device=data.mask.device)
    last = (data.mask * steps).amax(dim=-1)[:, None, None].expand(*distances.shape[:-1], 1)
    return {
        "ade": distances.sum(dim=-1) / n_valid,
        "fde": distances.gather(-1, last).squeeze(-1),
        "largest": distances.amax(dim=-1),
    }


def _best_scored(convention: Convention, data: Forecast, joint: bool) -> Forecast:
    """Return the `k` hypotheses with the best scores; in joint metrics the same ones for all agents of a scene."""
    n_hypotheses, k = data.hypotheses.shape[1], convention.k
    if k is None or k == n_hypotheses:
        return data
    if k > n_hypotheses:
        advice = "Leave `k` out to use all."
        rule = f"be at most the number of hypotheses, {n_hypotheses}"
        raise ValueError(bad_value(convention.owner, "k", rule, k, advice))
    if data.scores is None:
        rule = f"be given to choose the best {k} of {n_hypotheses} hypotheses"
        raise ValueError(bad_value(convention.owner, "scores", rule, "None", "Leave `k` out to use all."))
    order = data.scores
    if joint and data.scenes is not None:
        order = _scene_means(order, counted(convention, data), data.scenes).values[data.scenes.number]
    best = order.topk(k, dim=-1).indices
    shape = (-1, -1, *data.hypotheses.shape[2:])
    hypotheses = data.hypotheses.gather(1, best[:, :, None, None].expand(shape))
    return data._replace(hypotheses=hypotheses, scores=data.scores.gather(-1, best))


def _averaged(convention: Convention, values: Tensor, counts: Tensor, scenes: Scenes | None) -> RealValues:
    """Return the values, or their means over the scenes."""
    if convention.average_over == "scenes" and scenes is not None:
        return _scene_means(values, counts, scenes)
    return RealValues(values, _like(counts, values))


def _scene_means(values: Tensor, counts: Tensor, scenes: Scenes) -> RealValues:
    n = _like(_scene_sums(counts.long(), scenes), values)
    totals = _scene_sums(values.masked_fill(~_like(counts, values), 0), scenes)
    n = n.expand_as(totals)
    return RealValues(totals / n.clamp_min(1), n > 0)


def _scene_sums(values: Tensor, scenes: Scenes) -> Tensor:
    return values.new_zeros(scenes.n, *values.shape[1:]).index_add(0, scenes.number, values)


def _like(counts: Tensor, values: Tensor) -> Tensor:
    """Return counts [n] expanded to the shape of values [n, ...]."""
    return counts.reshape(-1, *[1] * (values.ndim - 1)).expand(-1, *values.shape[1:])


def _pairs(scenes: Scenes) -> tuple[Tensor, Tensor]:
    """Return both agents of every pair within a scene, [pairs] each."""
    order = scenes.number.argsort(stable=True)
    sizes = torch.bincount(scenes.number, minlength=scenes.n)
    places = torch.arange(len(order), device=order.device)
    n_later = sizes.cumsum(0)[scenes.number[order]] - 1 - places  # agents of the scene after this one
    left = places.repeat_interleave(n_later)
    first = (n_later.cumsum(0) - n_later).repeat_interleave(n_later)
    right = left + 1 + torch.arange(len(left), device=order.device) - first
    return order[left], order[right]


def _needed_scenes(convention: Convention, data: Forecast, joint: bool) -> Scenes | None:
    if data.scenes is None and (joint or convention.average_over == "scenes"):
        rule = "be given, [batch], the scene of each agent"
        raise ValueError(bad_value(convention.owner, "scene", rule, "None"))
    return data.scenes


def _numbered(owner: str, scene: Any, batch: int) -> Scenes:
    check_tensor(owner, "scene", scene, floating=False)
    if scene.is_floating_point() or scene.is_complex() or scene.dtype == torch.bool:
        raise TypeError(bad_value(owner, "scene", "be a tensor of integers", scene.dtype))
    check_shape(owner, "scene", scene, (batch,), "[batch]")
    names, index = scene.unique(return_inverse=True)
    return Scenes(index, len(names))
