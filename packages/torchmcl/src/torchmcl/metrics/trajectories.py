"""Metrics of trajectories: several hypotheses for each agent, and one true trajectory.

Papers compute quantities of the same name differently; `docs/sequences.rst` lists their conventions. An agent without
a valid step is ignored, and without agents the result is NaN. NaN or infinity at a valid step is an error. Targets and
masks may have an axis of one target, [batch, 1, steps, dim] and [batch, 1, steps], as in the batch of a `StepOutput`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from torchmcl.checks import (
    check_boolean,
    check_choice,
    check_finite,
    check_fraction,
    check_positive,
    check_positive_int,
    check_shape,
    check_tensor,
)
from torchmcl.errors import bad_value
from torchmcl.metrics.inputs import Sums, masked_sums, metric

__all__ = [
    "brier_min_fde",
    "collision_rate",
    "joint_min_ade",
    "joint_min_fde",
    "min_ade",
    "min_fde",
    "miss_rate",
]

# Number of values per chunk of pairs; a crowded scene has millions of pairs and steps.
_CHUNK = 1 << 24


class _Errors(NamedTuple):
    """Distances to the target of each agent, over its valid steps.

    Attributes:
        ade: Mean distance, [batch, hypotheses].
        fde: Distance at the last valid step, [batch, hypotheses].
        largest: Largest distance, [batch, hypotheses].
        real: Mask [batch] of agents with a valid step.
        scores: Scores, [batch, hypotheses], or None.
    """

    ade: Tensor
    fde: Tensor
    largest: Tensor
    real: Tensor
    scores: Tensor | None


class _Scenes(NamedTuple):
    """Scene of each agent, numbered from 0, [batch], and the number of scenes."""

    number: Tensor
    n: int

    def sums(self, values: Tensor) -> Tensor:
        """Return the sums of the values of agents [batch, ...] in each scene, [scenes, ...]."""
        return values.new_zeros(self.n, *values.shape[1:]).index_add(0, self.number, values)


@metric()
def min_ade(
    *,
    hypotheses: Tensor,
    targets: Tensor,
    mask: Tensor | None = None,
    scores: Tensor | None = None,
    k: int | None = None,
    best_by: str = "ade",
) -> Sums:
    """Average displacement error of the best hypothesis of each agent, averaged over agents.

    Args:
        hypotheses: Predicted paths, [batch, hypotheses, steps, dim].
        targets: True paths, [batch, steps, dim].
        mask: Valid steps, [batch, steps]; None if all are valid.
        scores: Scores, [batch, hypotheses], logits or probabilities, higher is better; required by `k` below the number
            of hypotheses.
        k: Number of hypotheses with the highest scores to use; 1 is the error of the most likely one. All by default.
        best_by: Error that selects the best hypothesis, "ade" or "fde".

    Raises:
        ValueError: For shapes that do not fit, `k` above the number of hypotheses or without scores, or NaN.

    Example:
        >>> import torch
        >>> targets = torch.tensor([[[1.0, 0.0], [2.0, 0.0]]])
        >>> hypotheses = torch.tensor([[[[1.0, 0.0], [2.0, 3.0]], [[1.0, 2.0], [2.0, 2.0]]]])
        >>> min_ade(hypotheses=hypotheses, targets=targets)
        tensor(1.5000)
        >>> min_ade(hypotheses=hypotheses, targets=targets, best_by="fde")
        tensor(2.)
    """
    check_choice("min_ade", "best_by", best_by, ("ade", "fde"))
    errors = _best_scored("min_ade", _errors("min_ade", hypotheses, targets, mask, scores), k)
    best = (errors.ade if best_by == "ade" else errors.fde).argmin(dim=-1, keepdim=True)
    return masked_sums(errors.ade.gather(-1, best).squeeze(-1), errors.real)


@metric()
def min_fde(
    *,
    hypotheses: Tensor,
    targets: Tensor,
    mask: Tensor | None = None,
    scores: Tensor | None = None,
    k: int | None = None,
) -> Sums:
    """Displacement error at the last valid step of the best hypothesis of each agent, averaged over agents.

    Args:
        hypotheses: Predicted paths, [batch, hypotheses, steps, dim].
        targets: True paths, [batch, steps, dim].
        mask: Valid steps, [batch, steps]; None if all are valid.
        scores: Scores, [batch, hypotheses], higher is better.
        k: Number of hypotheses with the highest scores to use; all by default.

    Raises:
        ValueError: As for `min_ade`.

    Example:
        >>> import torch
        >>> targets = torch.tensor([[[1.0, 0.0], [2.0, 0.0]]])
        >>> hypotheses = torch.tensor([[[[1.0, 0.0], [2.0, 3.0]], [[1.0, 2.0], [2.0, 2.0]]]])
        >>> min_fde(hypotheses=hypotheses, targets=targets)
        tensor(2.)
        >>> min_fde(hypotheses=hypotheses, targets=targets, mask=torch.tensor([[True, False]]))
        tensor(0.)
    """
    errors = _best_scored("min_fde", _errors("min_fde", hypotheses, targets, mask, scores), k)
    return masked_sums(errors.fde.amin(dim=-1), errors.real)


@metric()
def miss_rate(
    *,
    hypotheses: Tensor,
    targets: Tensor,
    mask: Tensor | None = None,
    scores: Tensor | None = None,
    threshold: float = 2.0,
    distance: str = "final",
    k: int | None = None,
) -> Sums:
    """Fraction of agents for which all hypotheses are farther away than a threshold.

    Args:
        hypotheses: Predicted paths, [batch, hypotheses, steps, dim].
        targets: True paths, [batch, steps, dim].
        mask: Valid steps, [batch, steps]; None if all are valid.
        scores: Scores, [batch, hypotheses], higher is better.
        threshold: Distance in the unit of the targets; a distance equal to it is not a miss.
        distance: Compared distance: "final", at the last valid step, or "largest", over all valid steps.
        k: Number of hypotheses with the highest scores to use; all by default.

    Raises:
        ValueError: As for `min_ade`.

    Example:
        >>> import torch
        >>> targets = torch.zeros(1, 2, 2)
        >>> hypotheses = torch.tensor([[[[3.0, 0.0], [1.0, 0.0]]]])
        >>> miss_rate(hypotheses=hypotheses, targets=targets)
        tensor(0.)
        >>> miss_rate(hypotheses=hypotheses, targets=targets, distance="largest")
        tensor(1.)
    """
    check_positive("miss_rate", "threshold", threshold)
    check_choice("miss_rate", "distance", distance, ("final", "largest"))
    errors = _best_scored("miss_rate", _errors("miss_rate", hypotheses, targets, mask, scores), k)
    distances = errors.fde if distance == "final" else errors.largest
    return masked_sums((distances.amin(dim=-1) > threshold).to(distances.dtype), errors.real)


@metric()
def brier_min_fde(
    *,
    hypotheses: Tensor,
    targets: Tensor,
    probabilities: Tensor,
    mask: Tensor | None = None,
    k: int | None = None,
) -> Sums:
    """Lowest final displacement error plus (1 - p)^2, averaged; p is the probability of that hypothesis.

    Args:
        hypotheses: Predicted paths, [batch, hypotheses, steps, dim].
        targets: True paths, [batch, steps, dim].
        probabilities: Probabilities, [batch, hypotheses], in [0, 1]; `torchmcl.normalized_scores` computes them from
            score logits.
        mask: Valid steps, [batch, steps]; None if all are valid.
        k: Number of most likely hypotheses to use; all by default.

    Raises:
        ValueError: As for `min_ade`, or for probabilities outside [0, 1].

    Example:
        >>> import torch
        >>> hypotheses, targets = torch.tensor([[[[1.0, 0.0]], [[3.0, 0.0]]]]), torch.zeros(1, 1, 2)
        >>> brier_min_fde(hypotheses=hypotheses, targets=targets, probabilities=torch.tensor([[0.5, 0.5]]))
        tensor(1.2500)
    """
    owner = "brier_min_fde"
    check_tensor(owner, "probabilities", probabilities)
    check_fraction(owner, "probabilities", probabilities, always=True)
    errors = _best_scored(owner, _errors(owner, hypotheses, targets, mask, probabilities), k)
    assert errors.scores is not None
    fde, best = errors.fde.min(dim=-1, keepdim=True)
    return masked_sums((fde + (1 - errors.scores.to(fde.dtype).gather(-1, best)).square()).squeeze(-1), errors.real)


@metric()
def joint_min_ade(
    *,
    hypotheses: Tensor,
    targets: Tensor,
    scene: Tensor,
    mask: Tensor | None = None,
    scores: Tensor | None = None,
    k: int | None = None,
    average_over: str = "scenes",
) -> Sums:
    """Average displacement error of the best joint hypothesis of each scene, averaged.

    Hypothesis number i of all agents of a scene is one future of the scene: the errors are first averaged over its
    agents, then the minimum over the hypotheses is taken.

    Args:
        hypotheses: Predicted paths, [batch, hypotheses, steps, dim].
        targets: True paths, [batch, steps, dim].
        scene: Integer for each agent, [batch]; scenes may have any number of agents, in any order.
        mask: Valid steps, [batch, steps]; None if all are valid.
        scores: Scores, [batch, hypotheses], higher is better; the score of a scene is the mean over its agents.
        k: Number of hypotheses of each scene with the highest scores to use; all by default.
        average_over: Unit of the average: "scenes" for equal weights, "agents" to weight scenes by their number of
            agents.

    Raises:
        ValueError: As for `min_ade`.

    Example:
        >>> import torch
        >>> targets, scene = torch.zeros(2, 1, 2), torch.tensor([0, 0])
        >>> hypotheses = torch.tensor([[[[0.0, 0.0]], [[1.0, 0.0]]], [[[3.0, 0.0]], [[1.0, 0.0]]]])
        >>> joint_min_ade(hypotheses=hypotheses, targets=targets, scene=scene)
        tensor(1.)
    """
    errors = _errors("joint_min_ade", hypotheses, targets, mask, scores)
    scenes = _scenes("joint_min_ade", scene, errors.real)
    joint = _best_scored("joint_min_ade", _joint(errors, scenes), k)
    return _averaged("joint_min_ade", joint.ade.amin(dim=-1), errors.real, scenes, average_over)


@metric()
def joint_min_fde(
    *,
    hypotheses: Tensor,
    targets: Tensor,
    scene: Tensor,
    mask: Tensor | None = None,
    scores: Tensor | None = None,
    k: int | None = None,
    average_over: str = "scenes",
) -> Sums:
    """Final displacement error of the best joint hypothesis of each scene, averaged.

    Args:
        hypotheses: Predicted paths, [batch, hypotheses, steps, dim].
        targets: True paths, [batch, steps, dim].
        scene: Integer for each agent, [batch].
        mask: Valid steps, [batch, steps]; None if all are valid.
        scores: Scores, [batch, hypotheses], higher is better; the score of a scene is the mean over its agents.
        k: Number of hypotheses of each scene with the highest scores to use; all by default.
        average_over: Unit of the average, "scenes" or "agents", as in `joint_min_ade`.

    Raises:
        ValueError: As for `min_ade`.

    Example:
        >>> import torch
        >>> targets, scene = torch.zeros(2, 1, 2), torch.tensor([0, 0])
        >>> hypotheses = torch.tensor([[[[0.0, 0.0]], [[1.0, 0.0]]], [[[3.0, 0.0]], [[1.0, 0.0]]]])
        >>> joint_min_fde(hypotheses=hypotheses, targets=targets, scene=scene)
        tensor(1.)
    """
    errors = _errors("joint_min_fde", hypotheses, targets, mask, scores)
    scenes = _scenes("joint_min_fde", scene, errors.real)
    joint = _best_scored("joint_min_fde", _joint(errors, scenes), k)
    return _averaged("joint_min_fde", joint.fde.amin(dim=-1), errors.real, scenes, average_over)


@metric()
def collision_rate(
    *,
    hypotheses: Tensor,
    scene: Tensor,
    distance: float,
    mask: Tensor | None = None,
    average_over: str = "agents",
) -> Sums:
    """Fraction of agents that collide with another one, over all hypotheses.

    Two agents of a scene collide in a hypothesis if their positions in that same hypothesis are closer than
    `distance` at the same step, for any step that is valid for both. Nothing is interpolated between the steps.

    Args:
        hypotheses: Predicted paths, [batch, hypotheses, steps, dim]; the true future is targets.unsqueeze(1).
        scene: Integer for each agent, [batch].
        distance: Distance below which agents collide: twice the radius of an agent.
        mask: Valid steps, [batch, steps], where an agent is present; None if all are valid.
        average_over: Unit of the average: "agents" for equal weights of agents, "scenes" for equal weights of scenes.

    Raises:
        ValueError: For shapes that do not fit, a distance that is not positive, or NaN.

    Example:
        >>> import torch
        >>> hypotheses = torch.tensor([[[[0.0, 0.0]]], [[[0.1, 0.0]]], [[[5.0, 0.0]]]])
        >>> collision_rate(hypotheses=hypotheses, scene=torch.tensor([0, 0, 0]), distance=0.2)
        tensor(0.6667)
    """
    owner = "collision_rate"
    check_positive(owner, "distance", distance)
    hypotheses, present = _paths(owner, hypotheses, mask)
    scenes = _scenes(owner, scene, present.any(dim=-1))
    hits = torch.zeros(hypotheses.shape[:2], dtype=torch.long, device=hypotheses.device)
    n_pairs = max(1, _CHUNK // max(hypotheses[:1].numel(), 1))
    for left, right in zip(*(agents.split(n_pairs) for agents in _pairs(scenes)), strict=True):
        near = torch.linalg.vector_norm(hypotheses[left] - hypotheses[right], dim=-1) < distance
        collided = (near & (present[left] & present[right]).unsqueeze(1)).any(dim=-1).long()  # [pairs, hypotheses]
        hits = hits.index_add(0, left, collided).index_add(0, right, collided)
    rates, real = (hits > 0).to(hypotheses.dtype).mean(dim=-1), present.any(dim=-1)
    means = scenes.sums(rates * real) / scenes.sums(real.long()).clamp_min(1)
    return _averaged(owner, means, real, scenes, average_over)


def _paths(owner: str, hypotheses: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return checked hypotheses, 0 at invalid steps, and the mask of valid steps [batch, steps]."""
    check_tensor(owner, "hypotheses", hypotheses)
    if hypotheses.ndim != 4 or 0 in hypotheses.shape[1:]:
        rule = "have shape [batch, hypotheses, steps, dim]"
        advice = "One trajectory for each agent is hypotheses.unsqueeze(1)."
        raise ValueError(bad_value(owner, "hypotheses", rule, tuple(hypotheses.shape), advice))
    batch, _, n_steps, _ = hypotheses.shape
    if mask is None:
        mask = torch.ones(batch, n_steps, dtype=torch.bool, device=hypotheses.device)
    check_boolean(owner, "mask", mask)
    if mask.ndim == 3 and mask.shape[1] == 1:
        mask = mask.squeeze(1)
    check_shape(owner, "mask", mask, (batch, n_steps), "[batch, steps]")
    # An evaluation may wait for the device. NaN would count as no miss and as no collision.
    check_finite(owner, "hypotheses", hypotheses, mask[:, None, :, None], always=True)
    hypotheses = hypotheses.to(torch.promote_types(hypotheses.dtype, torch.float32))
    return hypotheses.where(mask[:, None, :, None], 0), mask


def _errors(owner: str, hypotheses: Tensor, targets: Tensor, mask: Tensor | None, scores: Tensor | None) -> _Errors:
    """Check the inputs of a metric and return the errors of all hypotheses."""
    hypotheses, mask = _paths(owner, hypotheses, mask)
    batch, n_hypotheses, n_steps, dim = hypotheses.shape
    check_tensor(owner, "targets", targets)
    if targets.ndim == 4 and targets.shape[1] == 1:
        targets = targets.squeeze(1)
    check_shape(owner, "targets", targets, (batch, n_steps, dim), "[batch, steps, dim]")
    check_finite(owner, "targets", targets, mask.unsqueeze(-1), always=True)
    if scores is not None:
        check_tensor(owner, "scores", scores)
        check_shape(owner, "scores", scores, (batch, n_hypotheses), "[batch, hypotheses]")
        check_finite(owner, "scores", scores, always=True)
    offsets = hypotheses - targets.where(mask.unsqueeze(-1), 0).unsqueeze(1)
    distances = torch.linalg.vector_norm(offsets, dim=-1)
    last = (mask * torch.arange(n_steps, device=mask.device)).amax(dim=-1)
    return _Errors(
        ade=distances.sum(dim=-1) / mask.sum(dim=-1).clamp_min(1).unsqueeze(-1),
        fde=distances.gather(-1, last[:, None, None].expand(-1, n_hypotheses, 1)).squeeze(-1),
        largest=distances.amax(dim=-1),
        real=mask.any(dim=-1),
        scores=scores,
    )


def _best_scored(owner: str, errors: _Errors, k: int | None) -> _Errors:
    """Return the errors of the `k` hypotheses with the highest scores, of all without `k`."""
    n_hypotheses = errors.ade.shape[1]
    if k is None:
        return errors
    check_positive_int(owner, "k", k)
    if k > n_hypotheses:
        rule = f"be at most the number of hypotheses, {n_hypotheses}"
        raise ValueError(bad_value(owner, "k", rule, k, "Leave `k` out to use all."))
    if k == n_hypotheses:
        return errors
    if errors.scores is None:
        raise ValueError(f"{owner}: `k` requires `scores`. Leave `k` out to use all hypotheses.")
    best = errors.scores.topk(k, dim=-1).indices
    ade, fde, largest = (values.gather(-1, best) for values in errors[:3])
    return _Errors(ade, fde, largest, errors.real, errors.scores.gather(-1, best))


def _scenes(owner: str, scene: Tensor, real: Tensor) -> _Scenes:
    """Return the checked scenes of agents."""
    check_tensor(owner, "scene", scene, floating=False)
    if scene.is_floating_point() or scene.is_complex() or scene.dtype == torch.bool:
        raise TypeError(bad_value(owner, "scene", "be a tensor of integers", scene.dtype))
    check_shape(owner, "scene", scene, tuple(real.shape), "[batch]")
    names, number = scene.unique(return_inverse=True)
    return _Scenes(number, len(names))


def _joint(errors: _Errors, scenes: _Scenes) -> _Errors:
    """Return the means over the agents of each scene, [scenes, hypotheses]."""
    n_agents = scenes.sums(errors.real.long()).unsqueeze(-1)

    def means(values: Tensor) -> Tensor:
        return scenes.sums(values.masked_fill(~errors.real.unsqueeze(-1), 0)) / n_agents.clamp_min(1)

    scores = None if errors.scores is None else means(errors.scores)
    return _Errors(means(errors.ade), means(errors.fde), means(errors.largest), n_agents.squeeze(-1) > 0, scores)


def _averaged(owner: str, values: Tensor, real: Tensor, scenes: _Scenes, average_over: str) -> Sums:
    """Return the sums of the values of scenes [scenes], each counted once, or once for each valid agent."""
    check_choice(owner, "average_over", average_over, ("agents", "scenes"))
    n_agents = scenes.sums(real.long())
    counts = n_agents if average_over == "agents" else (n_agents > 0).long()
    return Sums((values * counts).sum(), counts.sum())


def _pairs(scenes: _Scenes) -> tuple[Tensor, Tensor]:
    """Return both agents of every pair within a scene, [pairs] each."""
    order = scenes.number.argsort(stable=True)
    sizes = torch.bincount(scenes.number, minlength=scenes.n)
    positions = torch.arange(len(order), device=order.device)
    n_later = sizes.cumsum(0)[scenes.number[order]] - 1 - positions  # agents of the scene after this one
    left = positions.repeat_interleave(n_later)
    first = (n_later.cumsum(0) - n_later).repeat_interleave(n_later)
    right = left + 1 + torch.arange(len(left), device=order.device) - first
    return order[left], order[right]
