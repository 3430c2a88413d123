"""Assignment rules: functions from a pairwise cost to detached weights of the same shape.

Every method of the family is such a rule, and the loss is always `sum(weights * cost)`. The rules of this module treat
targets independently, or the agents of a scene together; rules that couple the targets of a sample are in
`torchmcl.rules.transport`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any

import torch
from torch import Tensor

from torchmcl.checks import Bounds, Fraction, Value, check_cost, check_mask, check_tensor
from torchmcl.errors import bad_value

__all__ = [
    "WTA",
    "AnnealedWTA",
    "AssignmentRule",
    "RelaxedWTA",
    "SceneWinners",
    "Temperature",
    "TopK",
    "as_operand",
    "check_rule",
    "hard_where_cold",
    "softmin",
    "winner_weights",
]

Temperature = Annotated[float | Tensor, Bounds(low=0, advice="0 is hard winner-takes-all.")]


@dataclass(frozen=True, eq=False)
class AssignmentRule(Value, ABC):
    """Base class of assignment rules: immutable callables that map a cost matrix to weights.

    A subclass is a frozen dataclass (`eq=False`: equality is defined here) with one method, `weights`. Its fields are
    numbers or tensors that broadcast against the cost; bounds in their annotations are checked (`torchmcl.checks`).
    `as_operand` converts a field for arithmetic with the cost.
    """

    def __call__(self, cost: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the weights of a cost.

        Args:
            cost: Pairwise cost, [..., targets, hypotheses]; lower is better.
            mask: Valid targets, [..., targets]; None if all targets are valid.

        Returns:
            Detached, nonnegative weights, [..., targets, hypotheses], in at least single precision. Rows of valid
            targets sum to 1, rows of padded targets to 0.
        """
        check_cost(type(self).__name__, cost)
        if mask is not None:
            check_mask(type(self).__name__, mask, cost.shape[:-1])
            mask = mask.expand(cost.shape[:-1])
        return self.assign(cost, mask)

    def assign(self, cost: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the weights without checks of the arguments, for callers that have made them."""
        cost = cost.detach()
        if cost.dtype not in (torch.float32, torch.float64):
            cost = cost.float()
        if mask is None:
            weights = self.weights(cost, None)
        else:
            padded = ~mask.unsqueeze(-1)
            weights = self.weights(cost.masked_fill(padded, 0), mask).masked_fill(padded, 0)
        return weights.detach() if weights.requires_grad else weights  # a field may require a gradient

    @abstractmethod
    def weights(self, cost: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the weights of a detached cost of at least single precision, whose padded rows are 0.

        The rows of valid targets must sum to 1; padded rows are set to 0 afterwards. The method must not change the
        cost, and must not read values on the host.
        """

    def __eq__(self, other: object) -> bool:
        """Compare type and fields; tensor fields by their values."""
        if type(self) is not type(other):
            return NotImplemented
        return all(_same(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))

    def __hash__(self) -> int:
        """Hash the type and the plain fields; rules with tensors share the hash of their type."""
        plain = (getattr(self, f.name) for f in fields(self))
        return hash((type(self), *(value for value in plain if not isinstance(value, Tensor))))


def check_rule(owner: str, rule: object) -> None:
    """Check that `rule` is an assignment rule."""
    if not isinstance(rule, AssignmentRule):
        advice = "An annealed rule is called with the step first: rule(step); AutoAnnealing goes into a RuleScheduler."
        raise TypeError(bad_value(owner, "rule", "be an assignment rule", repr(rule), advice))


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return torch.equal(left, right)
    return not isinstance(left, Tensor) and not isinstance(right, Tensor) and bool(left == right)


def as_operand(value: float | Tensor, cost: Tensor) -> float | Tensor:
    """Convert a field for arithmetic with the cost.

    Tensors are converted to the dtype of the cost. Numbers stay numbers in eager mode. In a compiled graph they become
    tensors, because a graph with a constant number is recompiled for each new value.
    """
    if isinstance(value, Tensor):
        return value.to(cost.dtype)
    if torch.compiler.is_compiling():
        return cost.new_ones(()) * value
    return value


def winner_weights(cost: Tensor, winner: float | Tensor = 1.0, other: float | Tensor = 0.0) -> Tensor:
    """Return weights that are `winner` at the first cheapest hypothesis of each row, and `other` elsewhere."""
    cheapest = cost.min(dim=-1, keepdim=True).indices  # twice as fast as argmin on CPUs
    if isinstance(winner, Tensor) or isinstance(other, Tensor):
        wins = torch.zeros_like(cost, dtype=torch.bool).scatter(-1, cheapest, True)
        return torch.where(wins, winner, other)
    return torch.full_like(cost, other).scatter(-1, cheapest, winner)


@dataclass(frozen=True, eq=False)
class WTA(AssignmentRule):
    """Winner-takes-all: the cheapest hypothesis of each target has weight 1.

    Example:
        >>> WTA()(torch.tensor([[0.3, 0.1, 0.2]]))
        tensor([[0., 1., 0.]])

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, Equations (2) and (3).
    """

    def weights(self, cost: Tensor, mask: Tensor | None) -> Tensor:
        """Put the whole weight on the first of the cheapest hypotheses."""
        return winner_weights(cost)


@dataclass(frozen=True, eq=False)
class RelaxedWTA(AssignmentRule):
    """Relaxed winner-takes-all: the winner has weight 1 - epsilon, and the losers share epsilon equally.

    Args:
        epsilon: Total weight of the losers, in [0, 1]; 0 is `WTA`. A number, or a tensor that broadcasts against the
            cost. A single hypothesis has weight 1.

    Example:
        >>> RelaxedWTA(epsilon=0.1)(torch.tensor([[0.3, 0.1, 0.2]]))
        tensor([[0.0500, 0.9000, 0.0500]])

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, the weights q_epsilon
        below Equation (41).
    """

    epsilon: Fraction

    def weights(self, cost: Tensor, mask: Tensor | None) -> Tensor:
        """Divide epsilon equally among the losers."""
        n_others = cost.shape[-1] - 1
        if n_others == 0:
            return torch.ones_like(cost)
        epsilon = as_operand(self.epsilon, cost)
        return winner_weights(cost, 1 - epsilon, epsilon / n_others)


@dataclass(frozen=True, eq=False)
class AnnealedWTA(AssignmentRule):
    """Annealed winner-takes-all: weights softmin(cost / temperature), the Boltzmann distribution of annealed MCL.

    Args:
        temperature: Temperature, >= 0, in the units of the cost; 0 is `WTA`, infinity is uniform. A number, or a tensor
            that broadcasts against the cost (some entries may be 0).

    Example:
        >>> AnnealedWTA(temperature=0.1)(torch.tensor([[0.3, 0.1, 0.2]]))
        tensor([[0.0900, 0.6652, 0.2447]])
        >>> AnnealedWTA(temperature=torch.tensor([[0.0], [1e9]]))(torch.tensor([[0.3, 0.1], [0.3, 0.1]]))
        tensor([[0.0000, 1.0000],
                [0.5000, 0.5000]])

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, Equation (5).
    """

    temperature: Temperature

    def weights(self, cost: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the softmin of the cost."""
        return hard_where_cold(cost, self.temperature, softmin)


def hard_where_cold(
    cost: Tensor, temperature: float | Tensor, soft: Callable[[Tensor, float | Tensor], Tensor]
) -> Tensor:
    """Return winner-takes-all for temperature 0, and `soft(cost, temperature)` otherwise."""
    if isinstance(temperature, Tensor) or torch.compiler.is_compiling():
        temperature = as_operand(temperature, cost)
    if not isinstance(temperature, Tensor):
        return winner_weights(cost) if temperature == 0 else soft(cost, temperature)
    cold = temperature <= 0
    return torch.where(cold, winner_weights(cost), soft(cost, temperature.masked_fill(cold, 1)))


def softmin(cost: Tensor, temperature: float | Tensor) -> Tensor:
    """Compute exp(-cost / T) / sum exp(-cost / T) over the last axis, for a positive temperature T."""
    # Both factors of the exponent are finite: infinity times zero would be NaN, and the smallest excess is zero.
    largest = torch.finfo(cost.dtype).max
    excess = (cost - cost.amin(dim=-1, keepdim=True)).clamp(max=largest)
    if isinstance(temperature, Tensor):
        factor: float | Tensor = (-1 / temperature).clamp(min=-largest)
    else:
        factor = max(-1 / temperature, -largest)
    return (excess * factor).softmax(dim=-1)


@dataclass(frozen=True, eq=False)
class TopK(AssignmentRule):
    """Equal weights for the k cheapest hypotheses; evolving WTA if k decreases in training.

    Args:
        k: Number of winners, from 1, which is `WTA`, to the number of hypotheses, which gives uniform weights. A
            fractional number, as a schedule gives, is rounded to the nearest integer. A tensor broadcasts against the
            cost.

    Example:
        >>> TopK(k=2)(torch.tensor([[0.3, 0.1, 0.2]]))
        tensor([[0.0000, 0.5000, 0.5000]])
    """

    k: Annotated[float | Tensor, Bounds(low=1, advice="1 is winner-takes-all.")]

    def weights(self, cost: Tensor, mask: Tensor | None) -> Tensor:
        """Compute equal weights for the k cheapest hypotheses of each target."""
        n_hypotheses = cost.shape[-1]
        if not isinstance(self.k, Tensor) and self.k > n_hypotheses:
            rule = f"be at most the number of hypotheses, {n_hypotheses}"
            raise ValueError(bad_value("TopK", "k", rule, repr(self.k)))
        k = torch.as_tensor(as_operand(self.k, cost), dtype=cost.dtype, device=cost.device)
        k = (k + 0.5).floor().clamp(1, n_hypotheses)
        order = cost.argsort(dim=-1, stable=True)
        rank = torch.arange(n_hypotheses, device=cost.device)
        share = (rank < k).to(cost.dtype) / k
        return torch.zeros_like(cost).scatter(-1, order, share.expand_as(cost))


@dataclass(frozen=True, eq=False)
class SceneWinners(AssignmentRule):
    """Assignment rule applied to the mean cost of each scene, whose samples all have the weights of the scene.

    Hypothesis k of all agents of a scene then forms one joint trajectory. `mcl_step` applies this wrapper to batches
    with a `scene`, for the training rule and for the labels of the scores. Samples without a valid target are ignored.

    Args:
        rule: Assignment rule.
        scene: Scene number of each sample, [batch]; integers in any order, gaps allowed. Leading axes of models are
            allowed.

    Example:
        >>> from torchmcl import WTA
        >>> cost = torch.tensor([[[0.1, 0.5]], [[0.9, 0.2]], [[0.0, 1.0]]])  # three agents, the first two together
        >>> SceneWinners(WTA(), torch.tensor([7, 7, 3]))(cost).squeeze(1)
        tensor([[0., 1.],
                [0., 1.],
                [1., 0.]])
    """

    rule: AssignmentRule
    scene: Tensor

    def __post_init__(self) -> None:
        """Check the fields."""
        check_rule("SceneWinners", self.rule)
        check_tensor("SceneWinners", "scene", self.scene, floating=False)
        if self.scene.is_floating_point() or self.scene.is_complex() or self.scene.dtype == torch.bool:
            rule = "contain integers"
            raise TypeError(bad_value("SceneWinners", "scene", rule, self.scene.dtype, "Convert it: scene.long()."))

    def weights(self, cost: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the weights of the mean cost of each scene."""
        leading = cost.shape[:-2]
        fits = 1 <= self.scene.ndim <= len(leading) and self.scene.shape == leading[len(leading) - self.scene.ndim :]
        if not fits:
            shape = f"have shape [batch], the third axis from the end of the cost {tuple(cost.shape)}"
            raise ValueError(bad_value("SceneWinners", "scene", shape, tuple(self.scene.shape)))
        number = _consecutive(self.scene).expand(cost.shape[:-2])
        if mask is None:
            mask = torch.ones(cost.shape[:-1], dtype=torch.bool, device=cost.device)
        places = number[..., None, None].expand(cost.shape)
        total = torch.zeros_like(cost).scatter_add(-3, places, cost)  # at most as many scenes as samples
        n_real = torch.zeros_like(cost[..., 0]).scatter_add(-2, places[..., 0], mask.to(cost.dtype))
        means = total / n_real.clamp_min(1).unsqueeze(-1)
        # Fields of the rule that differ between samples need the axis of the samples, not an axis of scenes.
        return self.rule(means.gather(-3, places), (n_real > 0).gather(-2, places[..., 0]))


def _consecutive(scene: Tensor) -> Tensor:
    """Return 0, 1, 2, ... for the distinct numbers along the last axis, ascending, without synchronization."""
    values, order = scene.sort(dim=-1)
    is_new = torch.nn.functional.pad(values[..., 1:] != values[..., :-1], (1, 0))[..., : scene.shape[-1]]
    ranks = is_new.to(torch.int64).cumsum(dim=-1)
    return torch.zeros_like(ranks).scatter(-1, order, ranks)
