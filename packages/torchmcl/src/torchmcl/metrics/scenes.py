"""Metrics of scenes as pure functions: hypothesis number i of all agents of a scene is one future of the scene.

The conventions are those of `torchmcl.metrics.trajectories`.
"""

from torch import Tensor

from torchmcl.metrics import _trajectory_parts as parts

__all__ = ["collision_rate", "joint_min_ade", "joint_min_fde"]


def joint_min_ade(
    *,
    hypotheses: Tensor,
    targets: Tensor,
    scene: Tensor,
    mask: Tensor | None = None,
    scores: Tensor | None = None,
    k: int | None = None,
    best_by: str = "ade",
    average_over: str = "scenes",
    last_valid_step: bool = True,
) -> Tensor:
    """Return the average displacement error of the best joint hypothesis of each scene, averaged.

    Hypothesis number i of all agents of a scene is one future of the scene: the errors are first averaged over its
    agents, then the minimum over the hypotheses is taken.

    Args:
        hypotheses: [batch, hypotheses, steps, dim]
        targets: [batch, steps, dim]
        scene: [batch], an integer for each agent; scenes may have any number of agents, in any order.
        mask: [batch, steps], True where the target is known; None when it is everywhere.
        scores: [batch, hypotheses], higher is better; that of a scene is the mean over its agents.
        k: use the k hypotheses of each scene with the highest scores.
        best_by: the best hypothesis is that of the lowest "ade" or "fde" of the scene.
        average_over: "scenes" weigh the same, or "agents": a scene weighs as much as it has agents.
        last_valid_step: FDE is that of the last valid step. If False, agents whose last step is not valid are left out.

    Raises:
        ValueError: as for `min_ade`.

    Example:
        >>> import torch
        >>> targets, scene = torch.zeros(2, 1, 2), torch.tensor([0, 0])
        >>> hypotheses = torch.tensor([[[[0.0, 0.0]], [[1.0, 0.0]]], [[[3.0, 0.0]], [[1.0, 0.0]]]])
        >>> joint_min_ade(hypotheses=hypotheses, targets=targets, scene=scene)
        tensor(1.)
    """
    errors = parts.BestErrors("joint_min_ade", k, best_by, average_over, last_valid_step, error="ade", joint=True)
    return errors(hypotheses=hypotheses, targets=targets, mask=mask, scores=scores, scene=scene).mean()


def joint_min_fde(
    *,
    hypotheses: Tensor,
    targets: Tensor,
    scene: Tensor,
    mask: Tensor | None = None,
    scores: Tensor | None = None,
    k: int | None = None,
    best_by: str = "fde",
    average_over: str = "scenes",
    last_valid_step: bool = True,
) -> Tensor:
    """Return the final displacement error of the best joint hypothesis of each scene, averaged.

    Args:
        hypotheses: [batch, hypotheses, steps, dim]
        targets: [batch, steps, dim]
        scene: [batch], an integer for each agent.
        mask: [batch, steps], True where the target is known; None when it is everywhere.
        scores: [batch, hypotheses], higher is better; that of a scene is the mean over its agents.
        k: use the k hypotheses of each scene with the highest scores.
        best_by: the best hypothesis is that of the lowest "ade" or "fde" of the scene.
        average_over: "scenes" or "agents".
        last_valid_step: FDE is that of the last valid step. If False, agents whose last step is not valid are left out.

    Raises:
        ValueError: as for `min_ade`.

    Example:
        >>> import torch
        >>> targets, scene = torch.zeros(2, 1, 2), torch.tensor([0, 0])
        >>> hypotheses = torch.tensor([[[[0.0, 0.0]], [[1.0, 0.0]]], [[[3.0, 0.0]], [[1.0, 0.0]]]])
        >>> joint_min_fde(hypotheses=hypotheses, targets=targets, scene=scene)
        tensor(1.)
    """
    errors = parts.BestErrors("joint_min_fde", k, best_by, average_over, last_valid_step, error="fde", joint=True)
    return errors(hypotheses=hypotheses, targets=targets, mask=mask, scores=scores, scene=scene).mean()


def collision_rate(
    *,
    hypotheses: Tensor,
    scene: Tensor,
    distance: float,
    mask: Tensor | None = None,
    count: str = "pairs",
    average_over: str = "agents",
) -> Tensor:
    """Return the share of pairs of agents, or of agents, that collide.

    Two agents of a scene collide in a hypothesis if their positions in that same hypothesis are closer than
    `distance` at the same step, for any step that is valid for both. Nothing is interpolated between the steps.

    Args:
        hypotheses: [batch, hypotheses, steps, dim]; the true future is targets.unsqueeze(1).
        scene: [batch], an integer for each agent.
        distance: agents nearer to each other than this collide: twice the radius of an agent.
        mask: [batch, steps], True where an agent is there; None when all are.
        count: "pairs": of all pairs within the scenes that share a valid step, times hypotheses, those that collide.
            NaN if no scene has a pair. "agents": of all agents times hypotheses, those that collide with anybody;
            an agent alone collides with nobody.
        average_over: all pairs or "agents" weigh the same, or "scenes" that have any.

    Raises:
        ValueError: for shapes that do not fit, a distance that is not positive, or NaN.

    Example:
        >>> import torch
        >>> hypotheses = torch.tensor([[[[0.0, 0.0]]], [[[0.1, 0.0]]], [[[5.0, 0.0]]]])
        >>> scene = torch.tensor([0, 0, 0])
        >>> collision_rate(hypotheses=hypotheses, scene=scene, distance=0.2)
        tensor(0.3333)
        >>> collision_rate(hypotheses=hypotheses, scene=scene, distance=0.2, count="agents")
        tensor(0.6667)
    """
    collisions = parts.Collisions("collision_rate", average_over=average_over, distance=distance, count=count)
    return collisions(hypotheses=hypotheses, scene=scene, mask=mask).mean()
