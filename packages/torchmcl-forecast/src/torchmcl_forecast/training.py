"""Training of the network on the likelihood of the winning paths, their scores, and the CRPS of each step."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchmcl import Batch, RuleScheduler, SoftmaxScores, io, mcl_step, pairwise_gaussian_nll, pairwise_sq_ade
from torchmcl.app.progress import Progress
from torchmcl_forecast.crps import random_crps
from torchmcl_forecast.network import PathNetwork
from torchmcl_forecast.windows import Source

__all__ = ["Training", "drawn", "marginal_crps", "train"]

# Maximum number of parts of a training run; a part has at least one step. `AutoAnnealing` is updated after each part.
_MOST_PARTS = 40
# Maximum number of steps, drawn at random, at which the CRPS is computed.
_N_CRPS_STEPS = 16
# Targets are clipped to this magnitude, in units of their window, so that a jump does not dominate a batch.
_FARTHEST = 20.0
# Fraction of training windows with a shortened past, so that the network learns to handle short series.
_SHORTENED = 0.1
_LARGEST_GRADIENT = 1.0


@dataclass(frozen=True)
class Training:
    """Settings of a training run.

    Attributes:
        n_steps: Number of optimizer steps.
        batch_size: Windows per step.
        learning_rate: Initial learning rate, which decays to 0.
        weight_decay: Decoupled weight decay of AdamW.
        crps: Weight of the CRPS relative to the likelihood of whole paths.
        device: Device to train on.
    """

    n_steps: int
    batch_size: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    crps: float = 20.0
    device: str = "cpu"

    @property
    def n_parts(self) -> int:
        """Number of parts of the training run."""
        return min(_MOST_PARTS, self.n_steps)

    def steps_of(self, part: int) -> int:
        """Return the number of steps of a part.

        Example:
            >>> settings = Training(n_steps=100)
            >>> settings.steps_of(0), sum(settings.steps_of(part) for part in range(settings.n_parts))
            (2, 100)
        """
        return (part + 1) * self.n_steps // self.n_parts - part * self.n_steps // self.n_parts


def train(
    network: PathNetwork,
    source: Source,
    places: Tensor,
    rule: Any,
    settings: Training,
    *,
    stage: str,
    checkpoint: io.Checkpoint,
    bar: Progress,
) -> None:
    """Train a network on windows.

    Args:
        network: Network to train, in place.
        source: Source of the windows.
        places: Windows to draw from, [windows, 2].
        rule: Assignment rule, function from the index of the training part to a rule, or `AutoAnnealing`.
        settings: Settings of the training run.
        stage: Name of the training run in the checkpoint.
        checkpoint: Checkpoint of the whole fit.
        bar: Progress bar, with a step for each part.

    Raises:
        FloatingPointError: If the loss is not finite.
    """
    network.to(settings.device).train().requires_grad_(True)
    source = source.to(settings.device)
    places = places.to(source.known.device)
    optimizer = torch.optim.AdamW(
        network.parameters(),
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
        fused=torch.device(settings.device).type in ("cpu", "cuda"),  # one pass over the parameters instead of a dozen
    )
    scheduler = RuleScheduler(rule, optimizer, model=network, n_epochs=settings.n_parts)
    sets_rate = hasattr(rule, "init")  # `AutoAnnealing` sets the learning rate itself
    cosine = None if sets_rate else torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.n_steps)
    objects: dict[str, Any] = {"network": network, "optimizer": optimizer, "scheduler": scheduler}
    objects |= {} if cosine is None else {"cosine": cosine}
    n_shown = 0
    for part in checkpoint.steps(stage, objects, settings.n_parts):
        for _ in range(settings.steps_of(part)):
            batch = drawn(source, places, settings)
            output = mcl_step(
                network, batch, scheduler.rule, cost_fn=pairwise_sq_ade, loss_fn=_path_nll, scores=SoftmaxScores()
            )
            assert batch.mask is not None
            loss = output.loss + settings.crps * marginal_crps(output.predictions, batch.targets, batch.mask)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), _LARGEST_GRADIENT)
            optimizer.step()
            scheduler.observe(output)
            if cosine is not None:
                cosine.step()
        scheduler.step()
        if not torch.isfinite(loss):
            raise FloatingPointError("Forecaster: the loss is not finite. Lower `learning_rate`.")
        bar.step(part + 1 - n_shown)
        n_shown = part + 1
    bar.step(settings.n_parts - n_shown)
    network.to("cpu").eval().requires_grad_(False)


def drawn(source: Source, places: Tensor, settings: Training) -> Batch:
    """Return a random batch of windows, with targets [windows, 1, channels * horizon, 1]."""
    home, size = places.device, (settings.batch_size,)
    chosen = places[torch.randint(len(places), size, device=home)]
    past = source.layout.past
    lengths = torch.randint(min(4, past), past + 1, size, device=home)
    whole = torch.rand(size, device=home) >= _SHORTENED
    window = source.window(chosen, torch.where(whole, past, lengths))
    targets = window.targets.flatten(1)[:, None, :, None].to(settings.device)
    mask = ~targets.isnan().squeeze(-1)
    return Batch(window.inputs.to(settings.device), targets.nan_to_num().clamp(-_FARTHEST, _FARTHEST), mask)


def _path_nll(*, hypotheses: Tensor, targets: Tensor, scale: Tensor, mask: Tensor, event_dims: int) -> Tensor:
    """Return the negative log-likelihood per step of each path, so that its scale does not depend on the horizon."""
    return pairwise_gaussian_nll(
        hypotheses=hypotheses, targets=targets, scale=scale, mask=mask, event_dims=event_dims, per_step=True
    )


def marginal_crps(predictions: Any, targets: Tensor, mask: Tensor) -> Tensor:
    """Estimate the mean CRPS of the mixtures at single steps.

    Unlike the likelihood of whole paths, the CRPS is sensitive to the distance of a step from a narrow mixture.

    Args:
        predictions: Paths [windows, hypotheses, steps, 1] with scales and score logits.
        targets: Target paths [windows, 1, steps, 1].
        mask: Step mask [windows, 1, steps], True where a step is known.

    Example:
        >>> from torchmcl import Distributions
        >>> narrow = Distributions(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1), torch.full((1, 1, 1, 1), 1e-6))
        >>> marginal_crps(narrow, torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, dtype=torch.bool))
        tensor(1.0000)
    """
    steps = torch.randperm(targets.shape[2], device=targets.device)[:_N_CRPS_STEPS]
    centers, scales = (part[:, :, steps, 0] for part in (predictions.hypotheses, predictions.scale))
    probabilities = predictions.score_logits.softmax(dim=-1)
    return random_crps(centers, scales, probabilities, targets[:, 0, steps, 0], mask[:, 0, steps])
