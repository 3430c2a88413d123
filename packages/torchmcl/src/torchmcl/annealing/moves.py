"""Moves of redundant hypotheses to modes that share one hypothesis.

A redundant hypothesis is one whose samples the others fit nearly as well: it wins nothing, duplicates another, or
shares a mode with it. Its removal costs the difference between the best and the second best distance of the samples
it wins. A hypothesis that covers two modes has residuals with two centers: splitting it gains the distance to their
mean less the distance to the nearer center. A move pays if the gain, less its standard error, exceeds the
loss. The centers are found on one half of the samples, the gain is measured on the other.

The hypothesis that moves gets the weights of the one that is split, and both are shifted by the centers through their
biases. Gain and loss are squared distances of the same samples, so scale and number of dimensions do not matter.

A split requires two answers at one input. The residuals of a network that has not yet learned a function without noise
also have two centers, but neighbors in the input agree on the center; a moved hypothesis would only get in the way.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchmcl.nn import MultiHypothesisHead
from torchmcl.types import Batch, Predictions, StepOutput

__all__ = [
    "HeadTensors",
    "Moves",
    "Samples",
    "head_of",
    "planned_moves",
]

# Power iterations for the direction of largest variance, and Lloyd iterations for the two centers of the residuals.
_N_ITERATIONS = 8
# Largest agreement of neighbors on the side of their residuals, beyond chance, for a split (Cohen's kappa).
_MOST_AGREEMENT = 0.5
# Maximum number of entries in a tensor.
_MOST_NUMBERS = 1 << 26


class Samples(NamedTuple):
    """Targets and hypotheses of samples.

    Attributes:
        hypotheses: Predicted points, [models, samples, hypotheses, coordinates].
        targets: Target points, [models, samples, coordinates].
        real: Valid samples, [models, samples]; False for padding.
    """

    hypotheses: Tensor
    targets: Tensor
    real: Tensor

    @classmethod
    def of(cls, predictions: Predictions, batch: Batch, real_rows: Tensor | None = None) -> "Samples | None":
        """Return the samples of stacked models; None if the targets cannot be compared with the hypotheses.

        Args:
            predictions: Predictions for inputs [models, rows, ...].
            batch: Targets, [models, rows, targets, ...] or [models, rows, ...], and their mask.
            real_rows: Valid rows, [models, rows]; False for rows that pad shorter data sets.
        """
        hypotheses, targets, mask = predictions.hypotheses.detach(), batch.targets, batch.mask
        event = hypotheses.shape[3:]
        if targets.ndim < hypotheses.ndim and targets.shape[2:].numel() == event.numel():  # one target per row
            targets = targets.reshape(*targets.shape[:2], 1, *event)
        if targets.shape[3:] != event or not targets.is_floating_point():
            return None
        n_targets = targets.shape[2]
        real = torch.ones(targets.shape[:3], dtype=torch.bool, device=targets.device)
        if mask is not None:
            if mask.numel() != real.numel():  # a mask of steps
                return None
            real = mask.view_as(real)
        real = real if real_rows is None else real & real_rows.unsqueeze(-1)
        hypotheses = hypotheses.flatten(3).repeat_interleave(n_targets, dim=1).float()
        targets = targets.flatten(3).flatten(1, 2).float()
        real = real.flatten(1) & targets.isfinite().all(dim=-1) & hypotheses.isfinite().all(dim=-1).all(dim=-1)
        return cls(hypotheses, targets.nan_to_num(0.0, 0.0, 0.0), real)

    @classmethod
    def of_step(cls, output: StepOutput) -> "Samples | None":
        """Return the samples of the step of a single model, with an axis of length 1 for the model."""
        if output.matching.cost.ndim != 3:
            return None
        batch, mask = output.batch, output.matching.mask
        if batch.mask is not None and batch.mask.ndim > mask.ndim:  # padded steps are 0 and must not count as targets
            return None
        hypotheses = output.predictions.hypotheses.unsqueeze(0)
        return cls.of(Predictions(hypotheses), Batch(mask, batch.targets.unsqueeze(0), mask.unsqueeze(0)))


class Moves(NamedTuple):
    """Changes of the hypotheses of stacked models.

    Attributes:
        source: Index of the hypothesis whose weights are copied, [models, hypotheses].
        shift: Offsets added to the outputs, [models, hypotheses, coordinates].
    """

    source: Tensor
    shift: Tensor

    @property
    def n_moves(self) -> int:
        """Number of hypotheses that move, in all models."""
        return int((self.source != torch.arange(self.source.shape[-1], device=self.source.device)).sum())


@torch.no_grad()
def planned_moves(samples: Samples, allowed: Tensor) -> Moves:
    """Return the moves that lower the distortion.

    Args:
        samples: Hypotheses and targets of at least a few hundred samples per model.
        allowed: Models that may be changed, [models].

    Example:
        >>> y = torch.tensor([-1.0, 1.0, 5.0]).repeat(100).view(1, 300, 1)
        >>> h = torch.tensor([0.0, 5.0, 5.01]).view(1, 1, 3, 1).expand(1, 300, 3, 1)  # the first covers two modes
        >>> samples = Samples(h, y, torch.ones(1, 300, dtype=torch.bool))
        >>> source, shift = planned_moves(samples, torch.tensor([True]))
        >>> source.tolist(), (h[0, 0, source[0]] + shift[0]).flatten().sort().values.tolist()
        ([[0, 1, 0]], [-1.0, 1.0, 5.0])
    """
    n_models, n_samples, n_hypotheses, n_coordinates = samples.hypotheses.shape
    if not bool(allowed.all()):
        source = torch.arange(n_hypotheses, device=allowed.device).expand(n_models, -1).clone()
        shift = samples.targets.new_zeros(n_models, n_hypotheses, n_coordinates)
        if bool(allowed.any()):
            some = planned_moves(Samples(*(part[allowed] for part in samples)), allowed[allowed])
            source[allowed], shift[allowed] = some
        return Moves(source, shift)
    at_once = max(1, _MOST_NUMBERS // (n_samples * max(n_samples, n_hypotheses * (n_coordinates + 2))))
    if n_models > at_once:
        parts = [
            planned_moves(Samples(*(part[i : i + at_once] for part in samples)), allowed[i : i + at_once])
            for i in range(0, n_models, at_once)
        ]
        return Moves(*map(torch.cat, zip(*parts, strict=True)))
    cost = (samples.hypotheses - samples.targets.unsqueeze(2)).square().sum(dim=-1)
    gain, centers = _splits(samples, cost)
    cost = cost.masked_fill(~samples.real.unsqueeze(-1), 0.0)  # equal for all hypotheses, so padding adds no loss
    n_real = samples.real.sum(dim=1, keepdim=True).clamp_min(1)
    numbers = torch.arange(n_hypotheses, device=cost.device)
    source = numbers.expand(len(cost), -1).clone()
    shift = cost.new_zeros(len(cost), n_hypotheses, n_coordinates)
    closed = torch.zeros_like(source, dtype=torch.bool)  # split or moved already
    for _ in range(n_hypotheses // 2):
        (best, second), (winner, _) = (part.unbind(dim=-1) for part in cost.topk(2, dim=-1, largest=False))
        loss = _members(winner, n_hypotheses, second - best).sum(dim=1) / n_real
        split = gain.masked_fill(closed, -math.inf).argmax(dim=-1, keepdim=True)
        moved = loss.masked_fill(closed | (numbers == split), math.inf).argmin(dim=-1, keepdim=True)
        pays = gain.gather(1, split) > loss.gather(1, moved)
        pays = pays & ~closed.gather(1, split) & ~closed.gather(1, moved)
        is_split, is_moved = pays & (numbers == split), pays & (numbers == moved)
        both = centers.gather(1, split.view(-1, 1, 1, 1).expand(-1, 1, *centers.shape[2:]))
        source = torch.where(is_moved, split, source)
        shift = torch.where(is_split.unsqueeze(-1), both[:, :, 0], shift)
        shift = torch.where(is_moved.unsqueeze(-1), both[:, :, 1], shift)
        closed = closed | is_split | is_moved
        cost = torch.where(is_moved.unsqueeze(1), math.inf, cost)
    return Moves(source, shift)


def _splits(samples: Samples, cost: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gain [models, hypotheses] of splitting each hypothesis, and the two centers of its residuals.

    The gain is minus infinity if there is nothing to split, because neighbors agree on the center.
    """
    n_models, _, n_hypotheses, n_coordinates = samples.hypotheses.shape
    winner = cost.argmin(dim=-1)
    place = winner.unsqueeze(-1).expand(-1, -1, n_coordinates)
    residual = samples.targets - samples.hypotheses.gather(2, place.unsqueeze(2)).squeeze(2)
    real = samples.real.to(residual.dtype)
    alternate = (real.cumsum(dim=1) % 2) * real
    fitted, judged = alternate, real - alternate

    def means(values: Tensor, group: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
        members = _members(group, n_groups, fitted)
        count = members.sum(dim=1)
        return members.mT @ values / count.clamp_min(1).unsqueeze(-1), count

    middle, _ = means(residual, winner, n_hypotheses)
    centered = residual - middle.gather(1, place)
    # Any start that is not orthogonal to the direction works.
    start = torch.arange(n_hypotheses * n_coordinates, device=cost.device).view(1, n_hypotheses, n_coordinates)
    direction = torch.sin(1.0 + start.to(residual.dtype)).expand(n_models, -1, -1)
    for _ in range(_N_ITERATIONS if n_coordinates > 1 else 0):
        along = (centered * direction.gather(1, place)).sum(dim=-1, keepdim=True)
        direction, _ = means(centered * along, winner, n_hypotheses)
        direction = nn.functional.normalize(direction, dim=-1, eps=torch.finfo(direction.dtype).tiny)
    side = ((centered * direction.gather(1, place)).sum(dim=-1) > 0).long()
    centers, distances = middle, cost
    for _ in range(_N_ITERATIONS):
        centers, count = means(residual, 2 * winner + side, 2 * n_hypotheses)
        centers = torch.where(count.unsqueeze(-1) > 0, centers, middle.repeat_interleave(2, dim=1))
        near = [centers.gather(1, 2 * place + i) for i in (0, 1)]
        distances = torch.stack([(residual - center).square().sum(dim=-1) for center in near], dim=-1)
        side = distances.argmin(dim=-1)
    gained = (residual.square().sum(dim=-1) - distances.amin(dim=-1)) * judged
    n_judged = judged.sum(dim=1, keepdim=True).clamp_min(1)
    gain = _members(winner, n_hypotheses, gained).sum(dim=1)
    error = _members(winner, n_hypotheses, gained.square()).sum(dim=1).sqrt()
    gain = (gain - error) / n_judged
    gain = gain.masked_fill(_agreement(samples, winner, side) > _MOST_AGREEMENT, -math.inf)
    return gain, centers.unflatten(1, (n_hypotheses, 2))


def _agreement(samples: Samples, winner: Tensor, side: Tensor) -> Tensor:
    """Return how far samples and their nearest neighbors agree on a side, beyond chance, [models, hypotheses].

    This is Cohen's kappa: 0 by chance, 1 if the input determines the side. The neighbor has the same winner. Inputs are
    close if their vectors of all hypotheses are.

    Args:
        samples: Hypotheses and valid samples.
        winner: Nearest hypothesis of each sample, [models, samples].
        side: Nearer one of the two centers of its residuals, [models, samples].
    """
    places = samples.hypotheses.flatten(2)
    places = places - places.mean(dim=1, keepdim=True)  # distances are computed from products
    distance = torch.cdist(places, places)
    distance.masked_fill_((winner.unsqueeze(2) != winner.unsqueeze(1)) | ~samples.real.unsqueeze(1), math.inf)
    distance.diagonal(dim1=1, dim2=2).fill_(math.inf)
    nearest, neighbor = distance.min(dim=2)
    known = (samples.real & nearest.isfinite()).to(places.dtype)
    agrees = known * (side == side.gather(1, neighbor))
    n_hypotheses = samples.hypotheses.shape[2]
    count, first, same = (_members(winner, n_hypotheses, value).sum(dim=1) for value in (known, known * side, agrees))
    by_chance = (first.square() + (count - first).square()) / count.clamp_min(1)
    return (same - by_chance) / (count - by_chance).clamp_min(torch.finfo(places.dtype).tiny)


def _members(group: Tensor, n_groups: int, values: Tensor) -> Tensor:
    """Return [models, samples, groups] with the value of each sample in its group, for sums in a fixed order."""
    return nn.functional.one_hot(group, n_groups).to(values.dtype) * values.unsqueeze(-1)


def head_of(module: nn.Module) -> tuple[str, MultiHypothesisHead] | None:
    """Return the name and the module of the head of a model; None unless there is exactly one with trained weights."""
    heads = [(name, part) for name, part in module.named_modules() if isinstance(part, MultiHypothesisHead)]
    if len(heads) != 1:
        return None
    trained = {name for name, parameter in heads[0][1].linear.named_parameters() if parameter.requires_grad}
    return heads[0] if trained == {"weight", "bias"} else None


class HeadTensors:
    """Weights of a head with a leading axis of models, and their optimizer moments.

    Args:
        head: Module that defines which rows of the linear layer belong to which hypothesis.
        weight: Weights of the linear layer, [models, outputs, features].
        bias: Biases of the linear layer, [models, outputs].
        moments: Optimizer moments in the shape of `weight` or `bias`, which move with their hypothesis.
    """

    def __init__(self, head: MultiHypothesisHead, weight: Tensor, bias: Tensor, moments: Sequence[Tensor] = ()) -> None:
        self.weight, self.bias, self.moments = weight, bias, list(moments)
        rows, start = [], 0
        for n_outputs in head.output_sizes:  # values, scores, scales
            rows.append(torch.arange(start, start + n_outputs).view(head.n_hypotheses, -1))
            start += n_outputs
        self._values = rows[0].to(weight.device)  # [hypotheses, coordinates]
        self._rows = torch.cat(rows, dim=1).to(weight.device)

    @torch.no_grad()
    def move(self, moves: Moves) -> None:
        """Give each hypothesis the weights of its source, and shift its outputs."""
        taken = torch.empty(self.bias.shape, dtype=torch.long, device=self.bias.device)
        taken[:, self._rows.flatten()] = self._rows[moves.source].flatten(1)
        for tensor in (self.weight, self.bias, *self.moments):
            index = taken if tensor.ndim == 2 else taken.unsqueeze(-1).expand_as(tensor)
            tensor.copy_(tensor.gather(1, index))
        self.bias[:, self._values] += moves.shift.to(self.bias.dtype)

    def random_constants(self, seeds: Sequence[int]) -> Tensor:
        """Draw constants [models, hypotheses, coordinates] like initial biases, with one seed per model."""
        bound = 1 / math.sqrt(self.weight.shape[-1])
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        shape = self._values.shape
        drawn = [torch.rand(shape, generator=each, device="cpu") for each in generators]  # equal on every device
        return (bound * (2 * torch.stack(drawn) - 1)).to(self.bias)

    @torch.no_grad()
    def separate(self, factors: Tensor, constants: Tensor) -> None:
        """Set the hypotheses to their mean plus `factors` [models] times constants; 0 leaves a model unchanged."""
        factors = factors.to(self.bias.dtype).view(-1, 1, 1)
        for tensor in (self.weight, self.bias):
            values = tensor[:, self._values]
            is_separated = factors.view(-1, *[1] * (values.ndim - 1)) != 0
            tensor[:, self._values] = torch.where(is_separated, values.mean(dim=1, keepdim=True), values)
        self.bias[:, self._values] += factors * constants
