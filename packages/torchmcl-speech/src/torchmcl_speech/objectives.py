"""Assignment rules, costs, metrics and learning rates of a training configuration."""

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchmcl import (
    PIT,
    WTA,
    AnnealedWTA,
    AssignmentRule,
    AutoAnnealing,
    CutoffAt,
    Exponential,
    Linear,
    Matching,
    RelaxedWTA,
    Sinkhorn,
    StepOutput,
    annealed,
    assign,
    mcl_loss,
    pairwise_neg_si_sdr,
)
from torchmcl.annealing import RuleLike
from torchmcl.schedules import Schedule
from torchmcl_speech.config import ObjectiveConfig, TrainingConfig

__all__ = [
    "CosineBudget",
    "OrderedPIT",
    "count_accuracy",
    "mcl_si_sdr",
    "of_mixtures",
    "pit_si_sdr",
    "rate_schedule",
    "rule_of",
    "si_sdr_under",
    "trained_cost",
]


@dataclass(frozen=True, eq=False)
class OrderedPIT(PIT):
    """`PIT` that assigns n real sources to the first n outputs.

    With `PIT`, every output is unused in some mixtures, and scores cannot distinguish voices from residues.

    Example:
        >>> one_source = torch.tensor([[3.0, 1.0, 0.0]])
        >>> OrderedPIT()(one_source), PIT()(one_source)
        (tensor([[1., 0., 0.]]), tensor([[0., 0., 1.]]))
    """

    def weights(self, cost: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the cheapest one-to-one assignment to the first outputs."""
        places = torch.arange(cost.shape[-1], device=cost.device)
        n_real = cost.shape[-2] if mask is None else mask.sum(dim=-1)[..., None, None]
        return super().weights(cost.masked_fill(places >= n_real, torch.inf), mask)  # an infinite cost excludes a pair


def rule_of(objective: ObjectiveConfig) -> RuleLike:
    """Return an assignment rule, a function from epoch to assignment rule, or `AutoAnnealing`.

    Example:
        >>> rule_of(ObjectiveConfig(rule="amcl", temperature=0.1, annealing_epochs=100))(50)
        AnnealedWTA(temperature=0.05)

    Reference:
        Eq. (38) for PIT, (39) to (41) for the others; Eq. (43) and (44) for the schedules.
    """
    if objective.rule == "amcl":
        start, end = objective.temperature, objective.annealing_epochs
        cooling = Linear(start, 0.0, end) if objective.decay is None else Exponential(start, objective.decay)
        return annealed(AnnealedWTA, temperature=CutoffAt(cooling, end))
    rules: dict[str, RuleLike] = {
        "pit": OrderedPIT() if objective.in_order else PIT(),
        "mcl": WTA(),
        "relaxed-wta": RelaxedWTA(objective.epsilon),
        "sinkhorn": Sinkhorn(objective.temperature),
        # Decibels have no natural zero. At this temperature a softmin begins to distinguish the untrained outputs.
        "auto": AutoAnnealing(begin=2.1),
    }
    return rules[objective.rule]


def si_sdr_under(rule: AssignmentRule, matching: Matching) -> Tensor:
    """Compute the mean SI-SDR in dB over all real sources, with the outputs assigned by `rule`."""
    return -mcl_loss(assign(matching.cost, rule, matching.mask))


def pit_si_sdr(output: StepOutput) -> Tensor:
    """Compute the SI-SDR of the best one-to-one assignment."""
    return si_sdr_under(PIT(), output.matching)


def mcl_si_sdr(output: StepOutput) -> Tensor:
    """Compute the SI-SDR of the best output for each source; one output may be the best for several sources."""
    return si_sdr_under(WTA(), output.matching)


def of_mixtures(metric: Callable[[StepOutput], Tensor]) -> Callable[[StepOutput], Tensor]:
    """Restrict a metric to samples with several sources, because the SI-SDR of a single source is unbounded."""

    def metric_of_mixtures(output: StepOutput) -> Tensor:
        mask = output.matching.mask
        several = mask & (mask.sum(dim=-1, keepdim=True) > 1)
        return metric(output._replace(matching=output.matching._replace(mask=several)))

    return metric_of_mixtures


def count_accuracy(output: StepOutput) -> Tensor:
    """Compute the fraction of mixtures in which the number of scores above 0.5 equals the number of sources."""
    logits = output.predictions.score_logits
    assert logits is not None
    return ((logits > 0).sum(dim=-1) == output.matching.mask.sum(dim=-1)).float().mean()


def limited_neg_si_sdr(*, hypotheses: Tensor, targets: Tensor, limit_db: float) -> Tensor:
    """Compute the negative SI-SDR, smoothly bounded below by -limit_db to limit the gradients of easy sources.

    Example:
        >>> target = torch.tensor([[1.0, -1.0, 1.0, -1.0]])
        >>> limited_neg_si_sdr(hypotheses=target, targets=target, limit_db=30.0)
        tensor([[-30.]])
    """
    cost = pairwise_neg_si_sdr(hypotheses=hypotheses, targets=targets)
    both = torch.stack([cost, torch.full_like(cost, -limit_db)]) * (math.log(10) / 10)
    return both.logsumexp(dim=0) * (10 / math.log(10))


def trained_cost(objective: ObjectiveConfig) -> Callable[..., Tensor] | None:
    """Return the training cost if it differs from the matching cost, else None."""
    if objective.limit_db is None:
        return None
    return functools.partial(limited_neg_si_sdr, limit_db=objective.limit_db)


@dataclass
class CosineBudget:
    """Schedule of the learning rate: a warm-up, and then a cosine decay to 0.

    Args:
        rate: Maximum learning rate.
        n_epochs: Number of epochs after which the learning rate is 0.
        warmup: Number of warm-up epochs.
        seconds: Time after which the learning rate is 0 in any case, from the construction of this object; a resumed
            training run has the full time again for its remaining epochs.
        clock: Function that returns the time in seconds.

    Example:
        >>> falling = CosineBudget(1.0, n_epochs=8, warmup=1)
        >>> [round(falling(epoch), 2) for epoch in (0, 1, 4, 8)]
        [0.5, 0.96, 0.5, 0.0]
    """

    rate: float
    n_epochs: int
    warmup: int = 0
    seconds: float = math.inf
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)

    def __post_init__(self) -> None:
        """Start the clock."""
        self._began = self.clock()

    def __call__(self, step: float) -> float:
        """Return the learning rate of the epoch `step`, which starts now."""
        done = step / self.n_epochs
        if math.isfinite(self.seconds):
            done = max(done, (self.clock() - self._began) / max(self.seconds, 1e-9))
        falling = (1 + math.cos(math.pi * min(done, 1.0))) / 2
        return self.rate * falling * min((step + 1) / (self.warmup + 1), 1.0)


def rate_schedule(training: TrainingConfig, minutes: float) -> float | Schedule:
    """Return the learning rate of a configuration: a constant, or a schedule over epochs."""
    if training.schedule == "plateau":
        return training.learning_rate
    seconds = 60 * minutes if training.schedule == "budget" else math.inf
    return CosineBudget(training.learning_rate, training.epochs, training.warmup, seconds)
