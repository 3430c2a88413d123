"""Definition of a training run: the rows of all models, the training step, and the properties that backends check.

A shuffle depends only on the seed of a model and the epoch: integer hashing gives each row a pseudo-random key, and the
rows are sorted by it. The order is bit-identical on every device and for every chunking of a fleet, and an epoch can be
shuffled without the epochs before it.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchmcl import (
    Batch,
    MixtureNLL,
    MultiHypothesisMLP,
    SigmoidScores,
    StepOutput,
    checks,
    costs,
    dispatch,
    pairwise_cross_entropy,
)
from torchmcl.errors import bad_value
from torchmcl.scoring import ScoreObjective
from torchmcl_fleet.modules.layers import has_global_hooks, is_feed_forward
from torchmcl_fleet.modules.optimizers import Adam, FleetOptimizer
from torchmcl_fleet.modules.stacked import StackedModules

__all__ = [
    "CostProperties",
    "EpochRows",
    "FleetData",
    "NetworkShape",
    "RowProperties",
    "SampledData",
    "StepSpec",
    "TrainingProblem",
    "shuffled_rows",
]


class FleetData(NamedTuple):
    """Rows for many models, stored once per set and not once per model.

    Attributes:
        inputs: Inputs, [sets, rows, ...], padded at the end of shorter sets.
        targets: Targets, [sets, rows, targets, dim], or class ids, [sets, rows, targets].
        n_rows: Number of real rows of each set, [sets].
        set_of_model: Index of the set of each model, [models].
        weights: Weights of the rows in the loss, [sets, rows], with mean 1; None for equal weights.
        mask: Mask of real targets, [sets, rows, targets] or [sets, rows, targets, steps]; None if all are real.
        source: Source of the rows of each epoch in `Fleet.fit`; None for fixed rows.
    """

    inputs: Tensor
    targets: Tensor
    n_rows: Tensor
    set_of_model: Tensor
    weights: Tensor | None = None
    mask: Tensor | None = None
    source: "SampledData | None" = None

    @classmethod
    def shared(
        cls,
        inputs: Tensor,
        targets: Tensor,
        n_models: int,
        *,
        weights: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> "FleetData":
        """Return data with the same rows for all models, [rows, ...] and [rows, targets, dim].

        Args:
            inputs: Inputs, [rows, ...].
            targets: Targets, [rows, targets, dim], or [rows, targets, steps, dim] for sequences.
            n_models: Number of models that share the rows.
            weights: Weights of the rows in the loss, [rows], with mean 1.
            mask: Mask of real targets, [rows, targets], or of real steps, [rows, targets, steps].

        Raises:
            ValueError: If there are no rows, or inputs, targets and weights differ in length.

        Example:
            >>> data = FleetData.shared(torch.zeros(10, 3), torch.zeros(10, 1, 1), n_models=4)
            >>> data.inputs.shape, data.set_of_model.tolist()
            (torch.Size([1, 10, 3]), [0, 0, 0, 0])
        """
        checks.check_positive_int("FleetData", "n_models", n_models)
        data = cls.of_sets([(inputs, targets) if mask is None else (inputs, targets, mask)], [0] * n_models)
        if weights is None:
            return data
        checks.check_tensor("FleetData", "weights", weights, floating=False)
        if weights.shape != inputs.shape[:1]:
            rule = f"have shape ({len(inputs)},), one for each row"
            raise ValueError(bad_value("FleetData", "weights", rule, tuple(weights.shape)))
        return data._replace(weights=weights.unsqueeze(0))

    @classmethod
    def of_sets(cls, sets: Sequence[tuple[Tensor, ...]], set_of_model: Sequence[int]) -> "FleetData":
        """Return data from sets of (inputs, targets) or (inputs, targets, mask), possibly of different lengths.

        Raises:
            ValueError: If a set is empty, its inputs and targets differ in length, or a model's set does not exist.
            TypeError: If inputs or targets are not tensors, or differ in dtype between the sets.
        """
        if not sets:
            raise ValueError(bad_value("FleetData", "sets", "hold at least one set", "none"))
        set_of_model = [int(number) for number in set_of_model]
        for number, rows in enumerate(sets):
            _check_set(number, rows, sets[0])
        if missing := sorted(set(set_of_model) - set(range(len(sets)))):
            rule = f"name sets from 0 to {len(sets) - 1}"
            raise ValueError(bad_value("FleetData", "set_of_model", rule, missing))
        n_rows = max(len(inputs) for inputs, *_ in sets)
        inputs, targets, *mask = (
            torch.stack([_padded(part, n_rows) for part in parts]) for parts in zip(*sets, strict=True)
        )
        lengths = torch.tensor([len(inputs) for inputs, *_ in sets])
        return cls(inputs, targets, lengths, torch.tensor(set_of_model), mask=mask[0] if mask else None)

    @property
    def n_models(self) -> int:
        """The number of models."""
        return len(self.set_of_model)

    def subset(self, models: slice, device: torch.device) -> "FleetData":
        """Return the data of a slice of the models on `device`, without unused sets."""
        used, set_of_model = self.set_of_model[models].unique(return_inverse=True)
        n_rows = self.n_rows[used]
        longest = int(n_rows.max())
        return self._replace(
            inputs=self.inputs[used, :longest].to(device),
            targets=self.targets[used, :longest].to(device),
            n_rows=n_rows.to(device),
            set_of_model=set_of_model.to(device),
            weights=None if self.weights is None else self.weights[used, :longest].to(device),
            mask=None if self.mask is None else self.mask[used, :longest].to(device),
        )

    @property
    def lengths(self) -> Tensor:
        """The number of rows of each model, [models]."""
        return self.n_rows[self.set_of_model]

    def rows(self, index: Tensor | None = None) -> tuple[Batch, Tensor | None]:
        """Return the rows `index` [models, batch] of the set of each model, and their weights.

        Without an index, all rows are returned, as views if all models share them.
        """
        inputs, targets, weights, mask = (
            None if part is None else self._taken(part, index)
            for part in (self.inputs, self.targets, self.weights, self.mask)
        )
        assert inputs is not None
        assert targets is not None
        return Batch(inputs, targets, mask), weights

    def _taken(self, part: Tensor, index: Tensor | None) -> Tensor:
        """Return rows of a tensor [sets, rows, ...] for each model, [models, batch, ...]."""
        if index is None:
            shared = len(part) == 1  # a view, no copy
            return part.expand(self.n_models, *part.shape[1:]) if shared else part[self.set_of_model]
        flat = (index + (self.set_of_model * part.shape[1])[:, None]).reshape(-1)
        return part.flatten(0, 1).index_select(0, flat).unflatten(0, tuple(index.shape))

    @property
    def is_ragged(self) -> bool:
        """Whether any set contains padding."""
        return not bool((self.n_rows == self.inputs.shape[1]).all())

    def batch(self) -> Batch:
        """Return all rows [models, rows, ...], with a mask of the real rows if there is padding."""
        batch, _ = self.rows()
        if not self.is_ragged:
            return batch
        return _with_real_rows(
            batch, torch.arange(batch.inputs.shape[1], device=batch.inputs.device) < self.lengths[:, None]
        )


def _with_real_rows(batch: Batch, real: Tensor) -> Batch:
    """Return a batch [models, rows, ...] in which only the rows that are True in `real` [models, rows] count."""
    mask = batch.mask
    if mask is None:
        mask = torch.ones(batch.targets.shape[:3], dtype=torch.bool, device=real.device)
    return batch._replace(mask=mask & real.view(*real.shape, *[1] * (mask.ndim - 2)))


def _check_set(number: int, rows: tuple[Tensor, ...], first: tuple[Tensor, ...]) -> None:
    """Check the inputs, targets and mask of a set, and that their dtypes and shapes match the first set."""
    if len(rows) not in (2, 3) or len(rows) != len(first):
        rule = "be (inputs, targets) or (inputs, targets, mask), the same in all sets"
        raise ValueError(bad_value("FleetData", "sets", rule, f"{len(rows)} parts in set {number}"))
    for name, part, like in zip(("inputs", "targets", "mask"), rows, first, strict=False):
        if not isinstance(part, Tensor) or part.ndim == 0:
            rule, advice = "be a torch.Tensor with an axis of rows", "Concatenate several inputs with torch.cat."
            raise TypeError(bad_value("FleetData", name, rule, type(part).__name__, advice))
        if part.dtype != like.dtype:
            rule = f"have the same dtype in all sets, {like.dtype} in set 0"
            raise TypeError(bad_value("FleetData", name, rule, part.dtype))
        if part.shape[1:] != like.shape[1:]:
            rule = f"have {name} with the same row shape, {tuple(like.shape[1:])} in set 0"
            raise ValueError(bad_value("FleetData", "sets", rule, f"{tuple(part.shape[1:])} in set {number}"))
    if len({len(part) for part in rows}) > 1 or len(rows[0]) == 0:
        rule = "have as many inputs as targets, at least one"
        got = f"{' and '.join(str(len(part)) for part in rows)} in set {number}"
        raise ValueError(bad_value("FleetData", "sets", rule, got))
    if len(rows) == 3:
        checks.check_boolean("FleetData", "mask", rows[2])
        checks.check_mask("FleetData", rows[2], rows[1].shape[: rows[2].ndim])


def _padded(rows: Tensor, n_rows: int) -> Tensor:
    padding = rows.new_zeros(n_rows - len(rows), *rows.shape[1:])
    return torch.cat([rows, padding])


@dataclass(frozen=True)
class SampledData:
    """Source of new training rows for every epoch, which all models of a fleet share.

    The rows of an epoch depend only on the seed and the epoch, so that chunks of a fleet and resumed training runs use
    the same rows as an uninterrupted run. The rows are drawn on the device of the fleet before the epoch begins; random
    streams of CPUs and GPUs differ.

    Args:
        draw: Function that maps a number of rows and a generator to a `Batch` of inputs [rows, ...] and targets
            [rows, targets, dim] on the device of the generator, with a mask in all epochs or in none.
        n_rows: Number of rows per epoch.
        n_models: Number of models that share the rows.
        seed: Seed of the random stream.

    Example:
        >>> from torchmcl_fleet.demo.gaussians import conditional_three_gaussians
        >>> source = SampledData(conditional_three_gaussians, n_rows=1000, n_models=4)
        >>> first, second = source.epoch(0, torch.device("cpu")), source.epoch(1, torch.device("cpu"))
        >>> first.inputs.shape, bool((first.inputs == second.inputs).any())
        (torch.Size([1, 1000, 1]), False)
    """

    draw: Callable[[int, torch.Generator], Batch]
    n_rows: int
    n_models: int
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the fields."""
        checks.check_callable(
            "SampledData", "draw", self.draw, "torchmcl_fleet.demo.gaussians.conditional_three_gaussians"
        )
        checks.check_positive_int("SampledData", "n_rows", self.n_rows)
        checks.check_positive_int("SampledData", "n_models", self.n_models)

    def epoch(self, number: int, device: torch.device) -> FleetData:
        """Return the rows of an epoch.

        Raises:
            ValueError: If `draw` does not return `n_rows` rows.
        """
        # A hash decorrelates the streams of adjacent seeds and epochs.
        digest = hashlib.sha256(f"{self.seed} {number}".encode()).digest()
        generator = torch.Generator(device).manual_seed(int.from_bytes(digest[:6], "big"))
        inputs, targets, mask, scene = self.draw(self.n_rows, generator)
        if len(inputs) != self.n_rows or len(targets) != self.n_rows or scene is not None:
            rule = f"return {self.n_rows} inputs and targets, without scenes"
            got = f"{len(inputs)} and {len(targets)}{'' if scene is None else ' with scenes'}"
            raise ValueError(bad_value("SampledData", "draw", rule, got))
        return FleetData.shared(inputs, targets, self.n_models, mask=mask)

    def refill(self, data: FleetData, number: int) -> None:
        """Overwrite the rows of an epoch in place, because captured graphs refer to the tensors."""
        new = self.epoch(number, data.inputs.device)
        for part, fresh in ((data.inputs, new.inputs), (data.targets, new.targets), (data.mask, new.mask)):
            if part is not None and fresh is not None:
                part.copy_(fresh)


class EpochRows:
    """Rows of a chunk during training, shuffled or sampled for every epoch and split into batches.

    Args:
        data: Rows of the models, on their device.
        seeds: Seeds for the shuffles, [models].
        batch_size: Number of rows per batch; the last batch may have fewer.

    Attributes:
        batches: Slices of the rows, in the order of each model.
        order: Permutations of the rows in this epoch, [orders, rows]; None without shuffling.
        order_of_model: Index of the permutation of each model, [models].
    """

    def __init__(self, data: FleetData, seeds: Tensor, batch_size: int) -> None:
        self.data, self.batch_size = data, batch_size
        self.lengths, self.is_ragged = data.lengths, data.is_ragged
        n_rows, device = data.inputs.shape[1], data.inputs.device
        starts = range(0, n_rows, batch_size)
        self.batches = [slice(start, min(start + batch_size, n_rows)) for start in starts]
        self.order: Tensor | None = None
        self.order_of_model = torch.zeros_like(self.lengths)
        # With one batch per epoch the order does not matter, and newly drawn rows are in random order already.
        if len(self.batches) > 1 and data.source is None:
            # Models with the same seed and the same number of rows share an order.
            streams = torch.stack([seeds.to(device), self.lengths])
            (self._seeds, self._stream_lengths), self.order_of_model = streams.unique(dim=1, return_inverse=True)
            self.order = torch.zeros(len(self._seeds), n_rows, dtype=torch.long, device=device)

    def begin(self, epoch: int) -> None:
        """Shuffle or sample the rows of an epoch."""
        if self.order is not None:
            self.order.copy_(shuffled_rows(self._seeds, epoch, self._stream_lengths, self.order.shape[1]))
        if self.data.source is not None:
            self.data.source.refill(self.data, epoch)

    def orders(self, first: int, stop: int) -> Tensor | None:
        """Return the permutations of a range of epochs, [epochs, orders, rows]; None without shuffling."""
        if self.order is None:
            return None
        epochs = torch.arange(first, stop, device=self.order.device).unsqueeze(-1)
        return shuffled_rows(self._seeds, epochs, self._stream_lengths, self.order.shape[1])

    def batch(self, rows: slice) -> tuple[Batch, Tensor | None]:
        """Return the rows of a batch [models, rows, ...] and their weights [models, rows]."""
        if self.order is not None:
            batch, weights = self.data.rows(self.order[:, rows].index_select(0, self.order_of_model))
        else:
            whole, weights = self._as_they_are
            batch = Batch(*(None if part is None else part[:, rows] for part in whole))  # type: ignore[arg-type]
            weights = None if weights is None else weights[:, rows]
        if not self.is_ragged:
            return batch, weights
        inputs = batch.inputs
        real = torch.arange(inputs.shape[1], device=inputs.device) < self.n_real(rows)[:, None]
        inputs = inputs.masked_fill(~real.view(*real.shape, *[1] * (inputs.ndim - 2)), 0)
        return _with_real_rows(batch._replace(inputs=inputs), real), weights

    def n_real(self, rows: slice) -> Tensor:
        """Return the number of rows of each model in a batch, [models]."""
        return (self.lengths - rows.start).clamp(0, rows.stop - rows.start)

    def fraction(self, rows: slice) -> Tensor | float:
        """Return the fraction of the rows of each model that are in a batch; 0 for a model without rows in it."""
        if self.is_ragged:
            return self.n_real(rows) / self.lengths
        return (rows.stop - rows.start) / self.data.inputs.shape[1]

    @property
    def n_steps(self) -> Tensor:
        """The number of batches of an epoch with rows of each model, [models]."""
        return torch.ceil(self.lengths / self.batch_size)

    def n_points(self, n_epochs: int) -> Tensor:
        """Return the number of targets seen by each model in a training run, [models]."""
        return self.lengths * self.data.targets.shape[2] * (1 if self.data.source is None else n_epochs)

    @cached_property
    def _as_they_are(self) -> tuple[Batch, Tensor | None]:
        return self.data.rows()


# The constants of the SplitMix64 generator, as signed integers.
_GOLDEN = -7046029254386353131
_MIX_1 = -4658895280553007687
_MIX_2 = -7723592293110705685


def shuffled_rows(seeds: Tensor, epoch: int | Tensor, lengths: Tensor, n_rows: int) -> Tensor:
    """Return a permutation of each model's rows, [..., models, n_rows]; padding stays at the end.

    Args:
        seeds: Seeds of the models, [models], integers.
        epoch: Epoch, or several epochs, [..., 1].
        lengths: Number of real rows of each model, [models].
        n_rows: Number of rows including padding.

    Example:
        >>> shuffled_rows(torch.tensor([0, 1]), 0, torch.tensor([4, 3]), 4)
        tensor([[2, 1, 3, 0],
                [2, 1, 0, 3]])
    """
    row = torch.arange(n_rows, device=seeds.device)
    stream = mixed(mixed(seeds + 1) + epoch)
    keys = mixed(stream.unsqueeze(-1) + row * _GOLDEN) >> 1 & 0x3FFFFFFFFFFFFFFF  # not negative
    keys = torch.where(row < lengths[:, None], keys, row | 1 << 62)  # padding comes last, in order
    if keys.device.type == "cpu":
        return torch.from_numpy(keys.numpy().argsort(axis=-1))  # a quarter of the time of torch
    return keys.argsort(dim=-1)


def mixed(number: Tensor) -> Tensor:
    """Return pseudo-random integers: the SplitMix64 hash of each integer."""
    for bits, factor in ((30, _MIX_1), (27, _MIX_2), (31, 1)):
        shifted = (number >> bits).bitwise_and_((1 << (64 - bits)) - 1)  # without the sign
        number = shifted.bitwise_xor_(number).mul_(factor)
    return number


@dataclass(frozen=True)
class StepSpec:
    """Definition of a training step.

    Attributes:
        cost_fn: Cost that is used for matching.
        score_weight: Weight of the score loss.
        monitor: Function that computes the monitored value on held-out rows from the output of a step.
        loss_fn: Cost that is minimized; None for the matching cost.
        scores: Score objective.
        optimizer: Update rule.
    """

    cost_fn: Callable[..., Tensor]
    score_weight: float
    monitor: Callable[[StepOutput], Tensor]
    loss_fn: Callable[..., Tensor] | None = None
    scores: ScoreObjective = field(default_factory=SigmoidScores)
    optimizer: FleetOptimizer = field(default_factory=Adam)


_CLASS_MIXTURE = MixtureNLL(pairwise_cross_entropy)


class CostProperties(NamedTuple):
    """Properties of a cost function.

    Attributes:
        is_squared: Whether it is the squared Euclidean distance.
        is_absolute: Whether it is the sum of absolute differences.
        is_class_mixture: Whether it is the log-loss of a mixture over classes.
        crps: Weight of the CRPS in `MixtureNLLWithCRPS`; None for other costs.
        trains_scores: Whether it trains the scores itself.
    """

    is_squared: bool
    is_absolute: bool
    is_class_mixture: bool
    crps: float | None
    trains_scores: bool

    @classmethod
    def of(cls, cost_fn: Callable[..., Tensor]) -> "CostProperties":
        """Return the properties of a cost function."""
        declared = costs.cost_declaration(cost_fn)
        return cls(
            is_squared=declared.formula == costs.NormFormula(order=2, power=2),
            is_absolute=declared.formula == costs.NormFormula(order=1),
            is_class_mixture=cost_fn == _CLASS_MIXTURE,
            crps=declared.formula.crps if isinstance(declared.formula, costs.NormalMixtureFormula) else None,
            trains_scores="score_logits" in declared.needs,
        )

    @property
    def is_distance(self) -> bool:
        """Whether the cost is one of the distances implemented by backends."""
        return self.is_squared or self.is_absolute


@dataclass(frozen=True)
class NetworkShape:
    """The shape of a `MultiHypothesisMLP` of linear layers and ReLUs with all parameters trained.

    Attributes:
        sizes: Number of input features, followed by the number of output features of each layer.
        n_hypotheses: Number of hypotheses per row.
        event: Shape of a hypothesis.
        has_scores: Whether the module returns score logits.
        detach_scores: Whether gradients of the score loss stop at the last layer.
        has_scales: Whether the module returns scales.
        min_scale: Smallest scale.
        dropout: Dropout rate after each ReLU; None without dropout layers.
    """

    sizes: tuple[int, ...]
    n_hypotheses: int
    event: tuple[int, ...]
    has_scores: bool
    detach_scores: bool
    has_scales: bool
    min_scale: float
    dropout: float | None

    @classmethod
    def of(cls, module: nn.Module) -> "NetworkShape | None":
        """Return the shape of a supported module; None for other modules."""
        if type(module) is not MultiHypothesisMLP or has_global_hooks() or not is_feed_forward(module):
            return None
        head, trunk = module.head, module.trunk
        if head.output_activation is not None or type(trunk) is not nn.Sequential or type(head.linear) is not nn.Linear:
            return None
        kinds = [type(part) for part in trunk]
        layers = [part for part in module.modules() if type(part) is nn.Linear]
        if (
            not any(kinds == block * (len(kinds) // len(block)) for block in _HIDDEN_LAYERS)
            or any(layer.bias is None for layer in layers)
            or not all(parameter.requires_grad for parameter in module.parameters())
            or head.linear.out_features != sum(head.output_sizes)
            or not isinstance(head.scales, bool)
        ):
            return None
        _, n_scores, n_scales = head.output_sizes
        dropped = [part.p if part.training else 0.0 for part in trunk if isinstance(part, nn.Dropout)]
        return cls(
            sizes=(layers[0].in_features, *(layer.out_features for layer in layers)),
            n_hypotheses=head.n_hypotheses,
            event=tuple(head.event),
            has_scores=n_scores > 0,
            detach_scores=head.detach_scores,
            has_scales=n_scales > 0,
            min_scale=head.min_scale,
            dropout=dropped[0] if dropped else None,
        )

    def takes(self, rows: "RowProperties", event: tuple[int | None, ...]) -> bool:
        """Return whether the module accepts the inputs of rows and returns hypotheses of the required shape."""
        return (self.sizes[0], self.event) == (rows.n_features, event)


_HIDDEN_LAYERS = ([nn.Linear, nn.ReLU], [nn.Linear, nn.ReLU, nn.Dropout])


class RowProperties(NamedTuple):
    """Properties of the rows of a fleet.

    Attributes:
        n_features: Number of features of vector inputs; None for other inputs.
        n_targets: Number of targets per row.
        n_dims: Number of dimensions of vector targets; None for other targets.
        are_classes: Whether targets are class ids.
        is_single: Whether inputs and targets are float32.
        is_ragged: Whether sets differ in length.
        has_mask: Whether some targets are padding.
        has_weights: Whether rows are weighted.
        is_sampled: Whether new rows are drawn for every epoch.
    """

    n_features: int | None
    n_targets: int
    n_dims: int | None
    are_classes: bool
    is_single: bool
    is_ragged: bool
    has_mask: bool
    has_weights: bool
    is_sampled: bool

    @classmethod
    def of(cls, data: FleetData) -> "RowProperties":
        """Return the properties of rows."""
        inputs, targets = data.inputs, data.targets
        return cls(
            n_features=inputs.shape[-1] if inputs.ndim == 3 else None,
            n_targets=targets.shape[2] if targets.ndim > 2 else 1,
            n_dims=targets.shape[-1] if targets.ndim == 4 else None,
            are_classes=targets.ndim == 3,
            is_single={inputs.dtype, targets.dtype} == {torch.float32},
            is_ragged=data.is_ragged,
            has_mask=data.mask is not None,
            has_weights=data.weights is not None,
            is_sampled=data.source is not None,
        )


@dataclass(frozen=True)
class TrainingProblem:
    """All properties that determine which backends support a training run.

    Attributes:
        device: Device that trains the models.
        spec: Definition of the training step.
        cost: Properties of the matching cost.
        network: Shape of the networks; None if they are not supported ReLU networks.
        is_single: Whether the models are float32.
        rows: Properties of the training rows.
        held_out: Properties of the held-out rows; None without validation.
        per_target_rules: Whether all rules are WTA, RelaxedWTA or AnnealedWTA.
        checks_values: Whether `debug_checks` is on.
    """

    device: torch.device
    spec: StepSpec
    cost: CostProperties
    network: NetworkShape | None
    is_single: bool
    rows: RowProperties
    held_out: RowProperties | None
    per_target_rules: bool
    checks_values: bool

    @classmethod
    def of(
        cls,
        models: StackedModules,
        data: FleetData,
        held_out: FleetData | None,
        spec: StepSpec,
        *,
        device: torch.device,
        per_target_rules: bool,
    ) -> "TrainingProblem":
        """Return the properties of a training run."""
        return cls(
            device=device,
            spec=spec,
            cost=CostProperties.of(spec.cost_fn),
            network=NetworkShape.of(models.template),
            is_single=models.flat.dtype == torch.float32,
            rows=RowProperties.of(data),
            held_out=None if held_out is None else RowProperties.of(held_out),
            per_target_rules=per_target_rules,
            checks_values=dispatch.debug_checks_enabled(),
        )
