"""Metrics of trajectories as pure functions: several hypotheses for each agent, one true future.

Papers compute quantities of the same name differently. Each difference is an argument here:

- k: how many hypotheses, the best by score if there are more;
- best_by: whether ADE and FDE each have their own best hypothesis or come from the same one;
- average_over: whether agents or scenes are weighted equally;
- last_valid_step: how FDE is defined where the future is cut short.

An agent without any valid step is left out. Without anything to average the result is NaN. NaN or infinity at a valid
step is an error.
"""

from torch import Tensor

from torchmcl.metrics import _trajectory_parts as parts


def min_ade(
    *,
    hypotheses: Tensor,
    targets: Tensor,
    mask: Tensor | None = None,
    scores: Tensor | None = None,
    scene: Tensor | None = None,
    k: int | None = None,
    best_by: str = "ade",
    average_over: str = "agents",
    last_valid_step: bool = True,
) -> Tensor:
    """Return the average displacement error of the best hypothesis of each agent, averaged.

    Args:
        hypotheses: [batch, hypotheses, steps, dim]
        targets: [batch, steps, dim]
        mask: [batch, steps], True where the target is known; None when it is everywhere.
        scores: [batch, hypotheses], higher is better, logits or probabilities; needed for `k` below the number of
            hypotheses.
        scene: [batch], an integer for each agent; needed to average over scenes.
        k: use the k hypotheses with the highest scores; 1 is the error of the most likely one. All by default.
        best_by: the best hypothesis is that of the lowest "ade" or "fde".
        average_over: "agents" for equal weights, or "scenes": the mean within each scene, then over scenes.
        last_valid_step: FDE is that of the last valid step. If False, agents whose last step is not valid are left out.

    Raises:
        ValueError: for shapes that do not fit, `k` above the number of hypotheses or without scores, no scenes where
            they are needed, or NaN.

    Example:
        >>> import torch
        >>> targets = torch.tensor([[[1.0, 0.0], [2.0, 0.0]]])
        >>> hypotheses = torch.tensor([[[[1.0, 0.0], [2.0, 3.0]], [[1.0, 2.0], [2.0, 2.0]]]])
        >>> min_ade(hypotheses=hypotheses, targets=targets)
        tensor(1.5000)
        >>> min_ade(hypotheses=hypotheses, targets=targets, best_by="fde")
        tensor(2.)
    """
    errors = parts.BestErrors("min_ade", k, best_by, average_over, last_valid_step, error="ade")
    return errors(parts.Trajectories(hypotheses, targets, mask, scores, scene)).mean()


def min_fde(
    *,
    hypotheses: Tensor,
    targets: Tensor,
    mask: Tensor | None = None,
    scores: Tensor | None = None,
    scene: Tensor | None = None,
    k: int | None = None,
    best_by: str = "fde",
    average_over: str = "agents",
    last_valid_step: bool = True,
) -> Tensor:
    """Return the final displacement error of the best hypothesis of each agent, averaged.

    Args:
        hypotheses: [batch, hypotheses, steps, dim]
        targets: [batch, steps, dim]
        mask: [batch, steps], True where the target is known; None when it is everywhere.
        scores: [batch, hypotheses], higher is better.
        scene: [batch], an integer for each agent.
        k: use the k hypotheses with the highest scores.
        best_by: the best hypothesis is that of the lowest "ade" or "fde".
        average_over: "agents" or "scenes".
        last_valid_step: FDE is that of the last valid step. If False, agents whose last step is not valid are left out.

    Raises:
        ValueError: as for `min_ade`.

    Example:
        >>> import torch
        >>> targets = torch.tensor([[[1.0, 0.0], [2.0, 0.0]]])
        >>> hypotheses = torch.tensor([[[[1.0, 0.0], [2.0, 3.0]], [[1.0, 2.0], [2.0, 2.0]]]])
        >>> min_fde(hypotheses=hypotheses, targets=targets)
        tensor(2.)
        >>> min_fde(hypotheses=hypotheses, targets=targets, mask=torch.tensor([[True, False]]))
        tensor(0.)
    """
    errors = parts.BestErrors("min_fde", k, best_by, average_over, last_valid_step, error="fde")
    return errors(parts.Trajectories(hypotheses, targets, mask, scores, scene)).mean()


def miss_rate(
    *,
    hypotheses: Tensor,
    targets: Tensor,
    mask: Tensor | None = None,
    scores: Tensor | None = None,
    scene: Tensor | None = None,
    threshold: float = 2.0,
    distance: str = "final",
    k: int | None = None,
    average_over: str = "agents",
    last_valid_step: bool = True,
) -> Tensor:
    """Return the share of agents for which all hypotheses are farther away than a threshold.

    Args:
        hypotheses: [batch, hypotheses, steps, dim]
        targets: [batch, steps, dim]
        mask: [batch, steps], True where the target is known; None when it is everywhere.
        scores: [batch, hypotheses], higher is better.
        scene: [batch], an integer for each agent.
        threshold: in the unit of the targets; a distance equal to it is not a miss.
        distance: "final", at the last valid step, or "largest", over all valid steps.
        k: use the k hypotheses with the highest scores.
        average_over: "agents" or "scenes".
        last_valid_step: if False, agents whose last step is not valid are left out.

    Raises:
        ValueError: as for `min_ade`.

    Example:
        >>> import torch
        >>> targets = torch.zeros(1, 2, 2)
        >>> hypotheses = torch.tensor([[[[3.0, 0.0], [1.0, 0.0]]]])
        >>> miss_rate(hypotheses=hypotheses, targets=targets)
        tensor(0.)
        >>> miss_rate(hypotheses=hypotheses, targets=targets, distance="largest")
        tensor(1.)
    """
    misses = parts.Misses("miss_rate", k, "fde", average_over, last_valid_step, threshold, distance)
    return misses(parts.Trajectories(hypotheses, targets, mask, scores, scene)).mean()


def brier_min_fde(
    *,
    hypotheses: Tensor,
    targets: Tensor,
    probabilities: Tensor,
    mask: Tensor | None = None,
    scene: Tensor | None = None,
    k: int | None = None,
    renormalize: bool = False,
    average_over: str = "agents",
    last_valid_step: bool = True,
) -> Tensor:
    """Return the lowest final displacement error plus (1 - p)^2, averaged; p is the probability of that hypothesis.

    Args:
        hypotheses: [batch, hypotheses, steps, dim]
        targets: [batch, steps, dim]
        probabilities: [batch, hypotheses], in [0, 1]; `torchmcl.normalized_scores` computes them from score logits.
        mask: [batch, steps], True where the target is known; None when it is everywhere.
        scene: [batch], an integer for each agent.
        k: use the k most likely hypotheses.
        renormalize: divide the probabilities of the hypotheses used by their sum.
        average_over: "agents" or "scenes".
        last_valid_step: FDE is that of the last valid step. If False, agents whose last step is not valid are left out.

    Raises:
        ValueError: as for `min_ade`, or for probabilities outside [0, 1].

    Example:
        >>> import torch
        >>> hypotheses, targets = torch.tensor([[[[1.0, 0.0]], [[3.0, 0.0]]]]), torch.zeros(1, 1, 2)
        >>> brier_min_fde(hypotheses=hypotheses, targets=targets, probabilities=torch.tensor([[0.5, 0.5]]))
        tensor(1.2500)
    """
    errors = parts.BrierErrors("brier_min_fde", k, "fde", average_over, last_valid_step, renormalize)
    return errors(parts.Trajectories(hypotheses, targets, mask, probabilities, scene)).mean()


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
        average_over: "scenes" for equal weights, or "agents": scenes are weighted by their number of agents.
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
    return errors(parts.Trajectories(hypotheses, targets, mask, scores, scene)).mean()


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
    return errors(parts.Trajectories(hypotheses, targets, mask, scores, scene)).mean()


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
        mask: [batch, steps], True where an agent is present; None when all are.
        count: "pairs": of all pairs within the scenes that share a valid step, times hypotheses, those that collide.
            NaN if no scene has a pair. "agents": of all agents times hypotheses, those that collide with any other
            agent; a single agent has no collisions.
        average_over: all pairs or "agents" are weighted equally, or all "scenes" that have any.

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
    return collisions(parts.Trajectories(hypotheses, None, mask, scene=scene)).mean()
