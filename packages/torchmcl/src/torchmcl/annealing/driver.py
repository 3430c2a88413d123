"""Driver of `AutoAnnealing`: the state of the policy in a training run, and the changes of models that it requests.

Loops and Lightning drive one model and measure its batches (`torchmcl.annealing.model`). Fleets drive many models and
measure them on their rows (`torchmcl_fleet.annealing`).
"""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from torchmcl.annealing.auto import AutoAnnealing, AutoDecision, AutoValues
from torchmcl.annealing.moves import Moves, Samples, head_of, planned_moves
from torchmcl.annealing.records import CostScale
from torchmcl.errors import bad_value

__all__ = ["CHANGES", "AnnealingDriver", "AnnealingEvent", "Change", "TrainedWeights"]

Change = Literal["rewind", "separation", "move"]
CHANGES: tuple[Change, ...] = ("rewind", "separation", "move")


class AnnealingEvent(NamedTuple):
    """Change of a model by `AutoAnnealing`.

    Attributes:
        epoch: Number of epochs that had ended.
        change: "rewind" to the initial weights, "separation" of the hypotheses, or "move" of hypotheses.
    """

    epoch: int
    change: Change


class TrainedWeights(Protocol):
    """Weights of the models in training, with their optimizer state."""

    def rewind(self, models: Tensor) -> None:
        """Reset the selected models to their initial weights and buffers, with fresh optimizer moments."""

    def separate(self, factors: Tensor) -> None:
        """Set the hypotheses to their mean plus random constants, times the factor of each model; 0 for no change."""

    def move(self, moves: Moves) -> None:
        """Copy the weights of each hypothesis from its source, and shift its outputs."""


class AnnealingDriver:
    """State of `AutoAnnealing` in one training run.

    Args:
        policy: Policy of one model, or stacked policies of several models.
        model: Model, or one with the structure that all models share; None if the policy must not change the model.
        n_models: Number of models trained side by side; None for a single model without a model axis.
        device: Device that stores the state.

    Attributes:
        head: Name and module of the head. Without a head, cooling begins at once.
        state: State of the policy, one entry per model.
        n_hypotheses: Number of hypotheses of a model; set by the caller once it is known.
        n_coordinates: Number of coordinates of a hypothesis; set by the caller once it is known.
        n_samples: Number of samples on which moves are planned and, in fleets, costs are measured.
    """

    n_samples = 512

    def __init__(
        self,
        policy: AutoAnnealing,
        model: nn.Module | None,
        *,
        n_models: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.head = None if model is None else head_of(model)
        self.policy = policy if self.head is not None else replace(policy, hold=False)
        self._lacks_head = model is not None and self.head is None
        self.n_hypotheses = self.n_coordinates = 1
        unknown = torch.full(() if n_models is None else (n_models,), torch.nan, device=device)
        has_zero = torch.ones_like(unknown, dtype=torch.bool)
        self.state = policy.init(CostScale(unknown, unknown, unknown, has_zero), 1.0)

    @property
    def may_move(self) -> bool:
        """Whether hypotheses can be moved: with an output activation, biases do not shift the outputs."""
        return self.head is not None and self.head[1].output_activation is None

    def warn_without_head(self) -> None:
        """Warn, once the first costs are known, if the policy would change a model that has no head."""
        if self._lacks_head and bool((self.state["has_zero"] > 0).any()):
            rule = "end in one trained MultiHypothesisHead"
            advice = "Without it there is no hold, and no hypothesis is separated or moved."
            warnings.warn(bad_value("AutoAnnealing", "model", rule, "a model without it", advice), stacklevel=3)

    def initial(self, measured: CostScale, n_epochs: float, **counts: Any) -> dict[str, Tensor]:
        """Return the initial state, from the costs of untrained models and `n_rows` and `n_steps` of the training."""
        sizes = {"n_hypotheses": self.n_hypotheses, "n_coordinates": self.n_coordinates}
        return self.policy.init(measured, n_epochs, **sizes, **counts)

    def values(self, epoch: float | Tensor, n_epochs: float) -> AutoValues:
        """Return the temperature, learning-rate factor and weight decay; see `AutoAnnealing.value`."""
        return self.policy.value(self.state, epoch, n_epochs)

    def end_epoch(
        self,
        measured: CostScale,
        epoch: float | Tensor,
        n_epochs: float,
        weights: TrainedWeights,
        samples: Callable[[], Samples | None],
        *,
        active: Tensor | None = None,
        trained: CostScale | None = None,
    ) -> list[Change]:
        """Update the policy with the costs after `epoch` epochs, and change the models if requested.

        Args:
            measured: Current costs.
            epoch: Number of epochs that have ended.
            n_epochs: Number of epochs of the whole training.
            weights: Weights of the models.
            samples: Function that returns the samples for planning moves, or None.
            active: Models that may be changed, [models]; all by default.
            trained: Costs of training rows, if `measured` are costs of held-out rows.

        Returns:
            Changes made to at least one model.
        """
        decision = self.policy.update(self.state, measured, epoch, n_epochs, trained)
        if active is not None:
            separations = torch.where(active, decision.separations, 0.0)
            decision = AutoDecision(decision.rewinds & active, separations, decision.moves & active)
        flags = torch.stack([decision.rewinds.any(), (decision.separations != 0).any(), decision.moves.any()])
        some_rewind, some_separate, some_move = flags.tolist()  # one transfer
        changes: list[Change] = []
        if some_rewind:
            weights.rewind(decision.rewinds)
            changes.append("rewind")
        if self.head is None:
            return changes
        if some_separate:
            weights.separate(decision.separations.view(-1))
            changes.append("separation")
        if some_move and self.may_move and (rows := samples()) is not None:
            moves = planned_moves(rows, decision.moves.view(-1))
            weights.move(moves)
            if moves.n_moves:
                changes.append("move")
        return changes
