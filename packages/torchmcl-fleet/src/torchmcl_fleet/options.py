"""Options of a fleet: the step, validation and its monitors, checkpoints, batch sizes, values per model."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from torchmcl import Distributions, SigmoidScores, StepOutput, checks
from torchmcl.errors import bad_value
from torchmcl.scoring import ScoreObjective
from torchmcl_fleet.data import FleetData
from torchmcl_fleet.stacked import Adam, FleetOptimizer

_MIN_BATCH, _MAX_BATCH, _BATCH_PER_ROOT = 64, 1024, 3


@dataclass(frozen=True)
class StepSpec:
    """The definition of a step.

    Attributes:
        cost_fn: the matched cost.
        score_weight: weight of the score loss.
        monitor: value on held-out rows, a function of a step's output.
        loss_fn: the trained cost, None for the matched one.
        scores: how scores are trained.
        optimizer: update rule.
    """

    cost_fn: Callable[..., Tensor]
    score_weight: float
    monitor: Callable[[StepOutput], Tensor]
    loss_fn: Callable[..., Tensor] | None = None
    scores: ScoreObjective = field(default_factory=SigmoidScores)
    optimizer: FleetOptimizer = field(default_factory=Adam)


def hard_distortion(output: StepOutput) -> Tensor:
    """Return the distortion (mean cost of the best hypothesis) of each model, [models]."""
    cost, _, mask = output.matching
    costs = cost.amin(dim=-1).masked_fill(~mask, 0).flatten(1)
    return costs.sum(dim=1) / mask.flatten(1).sum(dim=1).clamp_min(1)


def current_loss(output: StepOutput) -> Tensor:
    """Return the training loss of each model under its current rule, scores included, [models]."""
    return torch.as_tensor(output.loss)


class _RowWeights:
    """Weights of held-out rows, copied to a device once: an epoch that is captured there cannot copy from the host."""

    def __init__(self, weights: Tensor | None) -> None:
        self.weights = weights

    def weights_like(self, costs: Tensor) -> Tensor:
        """Return the weights on the device and in the dtype of costs."""
        assert self.weights is not None
        copies, where = _COPIES.setdefault(self, {}), (costs.device, costs.dtype)
        if where not in copies:
            copies[where] = self.weights.to(costs)
        return copies[where]


# Not attributes: a monitor that was used must have the identity of one that was not, or no training run could resume.
_COPIES: WeakKeyDictionary[_RowWeights, dict[tuple[torch.device, torch.dtype], Tensor]] = WeakKeyDictionary()


class WeightedDistortion(_RowWeights):
    """A monitor for weighted rows shared by all models: the distortion of each model on them.

    Args:
        weights: [rows]
    """

    def __init__(self, weights: Tensor) -> None:
        super().__init__(weights / weights.sum())

    def __call__(self, output: StepOutput) -> Tensor:
        """Return [models] from a cost [models, rows, 1, hypotheses]."""
        costs = output.matching.cost.amin(dim=-1).squeeze(-1)
        return costs @ self.weights_like(costs)


class HeldOutCost(_RowWeights):
    """A monitor that evaluates another cost on held-out rows than the one that trains.

    Args:
        cost_fn: a cost of distributions with one value per target, such as `MixtureNLLWithCRPS`.
        weights: [rows], how much each held-out row counts; all alike by default.

    Example:
        >>> from torchmcl import Batch, Distributions, Matching
        >>> from torchmcl.costs import MixtureNLLWithCRPS
        >>> means, logits, scale = torch.zeros(1, 2, 1, 1), torch.zeros(1, 2, 1), torch.ones(1, 2, 1, 1)
        >>> targets = torch.tensor([[[[0.0]], [[1.0]]]])
        >>> matching = Matching(targets, targets, torch.ones(1, 2, 1, dtype=torch.bool))
        >>> output = StepOutput(means, means, None, matching, Distributions(means, logits, scale), Batch(None, targets))
        >>> HeldOutCost(MixtureNLLWithCRPS(0.0))(output)  # the mean of 0.919 and 1.419
        tensor([1.1689])
    """

    def __init__(self, cost_fn: Callable[..., Tensor], weights: Tensor | None = None) -> None:
        super().__init__(None if weights is None else weights / weights.sum())
        self.cost_fn = cost_fn

    def __call__(self, output: StepOutput) -> Tensor:
        """Return [models] from predictions for targets [models, rows, targets, ...]; padded targets do not count."""
        found, targets, mask = output.predictions, output.batch.targets, output.matching.mask
        if not isinstance(found, Distributions):
            kind, advice = type(found).__name__, "Train networks with scales, or use hard_distortion."
            raise TypeError(bad_value("HeldOutCost", "predictions", "be Distributions", kind, advice))
        if output.batch.mask is not None and output.batch.mask.ndim > mask.ndim:
            rule, advice = "be a mask of whole targets", "Use current_loss for sequences of different length."
            raise ValueError(bad_value("HeldOutCost", "mask", rule, "a mask of steps", advice))
        given = {"hypotheses": found.hypotheses, "scale": found.scale, "score_logits": found.score_logits}
        costs = self.cost_fn(targets=targets, **given).flatten(3).mean(dim=-1)  # [models, rows, targets]
        shares = mask.to(costs) if self.weights is None else mask * self.weights_like(costs).unsqueeze(-1)
        total = (costs.masked_fill(~mask, 0) * shares).sum(dim=(1, 2))
        return total / shares.sum(dim=(1, 2)).clamp_min(torch.finfo(costs.dtype).tiny)


class MixtureLogLoss(_RowWeights):
    """A monitor for `MixtureNLL`: the log-loss of the mixtures on held-out rows.

    Args:
        weights: [rows] or [models, rows], how much each held-out row counts; 0 for padding. All alike by default.
        together: use the mean over models for all of them, so that they keep the same epoch: on few rows the best
            epoch of a single model is random. They must be trained in one chunk.
    """

    def __init__(self, weights: Tensor | None = None, *, together: bool = False) -> None:
        super().__init__(weights)
        self.together = together

    def __call__(self, output: StepOutput) -> Tensor:
        """Return [models] from a cost [models, rows, 1, hypotheses]."""
        return self.of_costs(output.matching.cost)

    def of_costs(self, cost: Tensor) -> Tensor:
        """Return [models] from a cost [models, rows, 1, hypotheses]."""
        losses = -torch.logsumexp(-cost, dim=-1).squeeze(-1)
        weights = torch.ones_like(losses) if self.weights is None else self.weights_like(losses).expand_as(losses)
        total = (losses * weights).sum(dim=1)
        if self.together:
            return (total.sum() / weights.sum()).expand(len(cost))
        return total / weights.sum(dim=1)


@dataclass(frozen=True)
class Validation:
    """Rows for the evaluation of a fleet during training; each model's best weights are kept.

    Args:
        rows: held-out rows for each model.
        monitor: value to compare, lower is better: `hard_distortion`, `current_loss`, or a function of a step's output
            that returns [models].
        every: epochs between evaluations, a single value or one per model; the last epoch is always evaluated.
        patience: stop a model after this many epochs without improvement; None trains all to the end.
    """

    rows: FleetData
    monitor: Callable[[StepOutput], Tensor] = hard_distortion
    every: int | Sequence[int] = 1
    patience: int | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        check_rows("Validation", "rows", self.rows)
        checks.check_callable("Validation", "monitor", self.monitor, "torchmcl_fleet.hard_distortion")
        for every in set(per_model("every", self.every, self.rows.n_models, owner="Validation")):
            checks.check_positive_int("Validation", "every", every)
        if self.patience is not None:
            checks.check_positive_int("Validation", "patience", self.patience)


@dataclass(frozen=True)
class Checkpointing:
    """The folder of checkpoints, from which the same training run resumes.

    Args:
        folder: of the training.
        every: epochs between saves; `torchmcl.io.stop_on_signals` saves at once.
        keep: number of states to keep; if the newest is damaged, the previous one is used.
    """

    folder: str | Path
    every: int = 100
    keep: int = 2

    def __post_init__(self) -> None:
        """Check the fields."""
        if not isinstance(self.folder, str | Path):
            raise TypeError(bad_value("Checkpointing", "folder", "be a path", repr(self.folder)))
        checks.check_positive_int("Checkpointing", "every", self.every)
        checks.check_positive_int("Checkpointing", "keep", self.keep)


def validation_of(given: object, n_models: int) -> Validation | None:
    """Return the `validation` of `Fleet.fit`; rows alone are evaluated with the default options.

    Raises:
        TypeError: for something else.
        ValueError: for rows for a different number of models.
    """
    if given is None:
        return None
    if not isinstance(given, Validation | FleetData):
        rule = "be Validation or FleetData"
        raise TypeError(bad_value("Fleet.fit", "validation", rule, type(given).__name__))
    validation = given if isinstance(given, Validation) else Validation(given)
    check_data("Fleet.fit", "validation", validation.rows, n_models)
    return validation


def checkpointing_of(given: object) -> Checkpointing | None:
    """Return the `checkpoint` of `Fleet.fit`; a folder alone has the default options.

    Raises:
        TypeError: for something else.
    """
    if given is None or isinstance(given, Checkpointing):
        return given
    if not isinstance(given, str | Path):
        rule = "be Checkpointing or a path"
        raise TypeError(bad_value("Fleet.fit", "checkpoint", rule, type(given).__name__))
    return Checkpointing(given)


def per_model(name: str, value: Any, n_models: int, owner: str = "Fleet") -> list[Any]:
    """Return one value per model, from a single value, a sequence, an array or a tensor.

    Raises:
        TypeError: for a string.
        ValueError: for a sequence of the wrong length, or an array of several axes.
    """
    if isinstance(value, str | bytes):
        raise TypeError(bad_value(owner, name, "be a single value or one per model", repr(value)))
    if isinstance(value, Tensor | np.ndarray):
        if value.ndim > 1:
            raise ValueError(bad_value(owner, name, "have one axis, the models", f"shape {tuple(value.shape)}"))
        value = value.tolist()
    if not isinstance(value, Sequence):
        return [plain_number(value)] * n_models
    if len(value) != n_models:
        rule = f"have one entry for each of the {n_models} models"
        raise ValueError(bad_value(owner, name, rule, f"{len(value)} entries"))
    return [plain_number(entry) for entry in value]


def plain_number(value: Any) -> Any:
    """Return a NumPy or torch number as a Python number, other values unchanged."""
    return value.item() if isinstance(value, np.generic | Tensor) and value.ndim == 0 else value


def seeds_of(seeds: Sequence[int] | None, n_models: int) -> list[int]:
    """Return one seed per model: 0, 1, 2, ... by default.

    Raises:
        TypeError: for a seed that is not an integer.
        ValueError: for one that does not fit into 64 bits.
    """
    each = per_model("seeds", range(n_models) if seeds is None else seeds, n_models)
    for seed in each:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(bad_value("Fleet", "seeds", "be integers", repr(seed)))
        if not -(2**63) <= seed < 2**63:
            raise ValueError(bad_value("Fleet", "seeds", "lie between -2**63 and 2**63 - 1", repr(seed)))
    return each


def moments_of(given: Mapping[str, Tensor] | None, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Check and return the given initial state of the optimizer; empty if none is given.

    Raises:
        ValueError: if it does not match this optimizer and fleet.
    """
    given_shapes, wanted_shapes = (
        {name: tuple(v.shape) for name, v in state.items()} for state in (given or {}, wanted)
    )
    if given and given_shapes != wanted_shapes:
        rule = f"find the moments of this optimizer in `optimizer_state`, {wanted_shapes}"
        raise ValueError(bad_value("Fleet.fit", "continued", rule, given_shapes, "Set it to None to begin again."))
    return dict(given or {})


def check_rows(owner: str, name: str, rows: object) -> None:
    """Check that rows are `FleetData`."""
    if not isinstance(rows, FleetData):
        advice = "FleetData.shared(inputs, targets, n_models) makes it."
        raise TypeError(bad_value(owner, name, "be FleetData", type(rows).__name__, advice))


def check_data(owner: str, name: str, data: object, n_models: int) -> None:
    """Check that there are rows for each of the models."""
    check_rows(owner, name, data)
    assert isinstance(data, FleetData)
    if data.n_models != n_models:
        raise ValueError(bad_value(owner, name, f"be for {n_models} models", data.n_models))


def default_batch_size(n_rows: int) -> int:
    """Return 3 sqrt(n_rows), clipped to [64, 1024]: small tables need more steps, large ones need speed.

    Example:
        >>> [default_batch_size(n_rows) for n_rows in (100, 10_000, 1_000_000)]
        [64, 300, 1024]
    """
    return max(_MIN_BATCH, min(_MAX_BATCH, round(_BATCH_PER_ROOT * math.sqrt(n_rows))))


def batch_rows(owner: str, batch_size: int | Literal["all"] | None, n_rows: int) -> int:
    """Return the batch size: about `default_batch_size` by default, and at most the number of rows."""
    if batch_size is None:
        return _even(n_rows, default_batch_size(n_rows))
    if isinstance(batch_size, str) and batch_size == "all":
        return n_rows
    checks.check_positive_int(owner, "batch_size", batch_size, "All rows are 'all'.")
    return min(batch_size, n_rows)


def even_batch_size(n_rows: int, at_most: int) -> int:
    """Return a batch size without a small remainder: the last batch has at least 3/4 of the size of the others.

    A last batch of a few rows has a gradient far larger than the optimizer expects.

    Args:
        n_rows: to split.
        at_most: rows of a batch.

    Example:
        >>> even_batch_size(1027, 256)  # instead of four times 256 and then 3
        206
    """
    checks.check_positive_int("even_batch_size", "n_rows", n_rows)
    checks.check_positive_int("even_batch_size", "at_most", at_most)
    return _even(n_rows, at_most)


def _even(n_rows: int, at_most: int) -> int:
    evenly = math.ceil(n_rows / math.ceil(n_rows / at_most))
    return next(size for size in range(evenly, 0, -1) if n_rows % size == 0 or 4 * (n_rows % size) >= 3 * size)
