"""Joint winners of a scene: one mode for all agents of a scene, by their mean cost."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchmcl._checks import bad_value, check_tensor
from torchmcl.rules.winners import AssignmentRule


@dataclass(frozen=True, eq=False)
class SceneWinners(AssignmentRule):
    """A rule applied to the mean cost of all samples of a scene; all of them share the weights of their scene.

    Hypothesis k of all agents of a scene then forms one joint future. A batch with a `scene` index gets this wrapper
    in `mcl_step`, for the training rule and for the labels of the scores. Samples without a real target do not count.

    Args:
        rule: any assignment rule.
        scene: [batch], integers in any order and with gaps; samples with the same number belong together. Axes of
            models in front of it are welcome.

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
        if not isinstance(self.rule, AssignmentRule):
            advice = "An annealed rule is called with the step first: rule(step)."
            raise TypeError(bad_value("SceneWinners", "rule", "be an assignment rule", repr(self.rule), advice))
        check_tensor("SceneWinners", "scene", self.scene, floating=False)
        if self.scene.is_floating_point() or self.scene.is_complex() or self.scene.dtype == torch.bool:
            rule = "hold integers"
            raise TypeError(bad_value("SceneWinners", "scene", rule, self.scene.dtype, "Convert it: scene.long()."))

    def _check_against(self, cost: Tensor) -> None:
        leading = cost.shape[:-2]
        fits = 1 <= self.scene.ndim <= len(leading) and self.scene.shape == leading[len(leading) - self.scene.ndim :]
        if not fits:
            shape = f"have shape [batch], the third axis from the end of the cost {tuple(cost.shape)}"
            raise ValueError(bad_value("SceneWinners", "scene", shape, tuple(self.scene.shape)))

    def _assign(self, cost: Tensor, mask: Tensor | None) -> Tensor:
        number = _consecutive(self.scene).expand(cost.shape[:-2])
        if mask is None:
            mask = torch.ones(cost.shape[:-1], dtype=torch.bool, device=cost.device)
        places = number[..., None, None].expand(cost.shape)
        total = torch.zeros_like(cost).scatter_add(-3, places, cost)  # as many places as samples: scenes are not more
        n_real = torch.zeros_like(cost[..., 0]).scatter_add(-2, places[..., 0], mask.to(cost.dtype))
        weights = self.rule(total / n_real.clamp_min(1).unsqueeze(-1), n_real > 0)
        return weights.gather(-3, places)


def _consecutive(scene: Tensor) -> Tensor:
    """Return 0, 1, 2, ... for the distinct numbers along the last axis, ascending, without synchronization."""
    values, order = scene.sort(dim=-1)
    is_new = torch.nn.functional.pad(values[..., 1:] != values[..., :-1], (1, 0))[..., : scene.shape[-1]]
    ranks = is_new.to(torch.int64).cumsum(dim=-1)
    return torch.zeros_like(ranks).scatter(-1, order, ranks)
