"""Members of the mixture: networks around a linear map of the past, codebooks of past errors, and their training."""

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from torchmcl import (
    AutoAnnealing,
    Batch,
    Distributions,
    MultiHypothesisHead,
    RuleScheduler,
    SoftmaxScores,
    io,
    mcl_step,
    pairwise_gaussian_nll,
    pairwise_sq_ade,
)
from torchmcl.app.progress import Progress
from torchmcl_forecast.scores import random_crps
from torchmcl_forecast.windows import Layout, Source, Window

__all__ = [
    "Codebook",
    "LinearMap",
    "PathNetwork",
    "Ridge",
    "Training",
    "drawn",
    "marginal_crps",
    "new_codebooks",
    "train",
]

# Windows with larger targets, in units of the naive forecast, would dominate the map and are left out.
_UNUSUAL = 8.0
# Candidate strengths of the penalty; the first one is used if there are no windows to compare them.
_STRENGTHS = (1e-1, 1e-3, 1e-2, 1.0)
# Targets are clipped to this magnitude, in units of their window, so that a jump does not dominate.
_FARTHEST = 20.0
# Maximum factor between the units of a joint path and the units of a window.
_MOST_FACTOR = 1e3
_N_ROWS = 10_000
# Maximum number of parts of a training run; a part has at least one step. `AutoAnnealing` is updated after each part.
_MOST_PARTS = 40
# Maximum number of steps, drawn at random, at which the CRPS is computed.
_N_CRPS_STEPS = 16
# Fraction of training windows with a shortened past, so that the network learns to handle short series.
_SHORTENED = 0.1
_LARGEST_GRADIENT = 1.0


class LinearMap(nn.Linear):
    """Correction of the best naive forecast, linear in the past changes and shared by all channels.

    Args:
        layout: Layout of the windows.

    Example:
        >>> layout = Layout(horizon=3, context=5, periods=(1,), lags=(), n_channels=2, n_calendar=0)
        >>> LinearMap(layout)(torch.zeros(7, layout.n_inputs)).shape
        torch.Size([7, 2, 3])
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout.n_linear, layout.horizon)
        self.layout = layout

    def past(self, inputs: Tensor) -> Tensor:
        """Return the inputs of the map for each channel, [windows, channels, n_linear]."""
        layout = self.layout
        of_channels = inputs[:, : layout.n_channels * layout.n_of_channel]
        return of_channels.view(-1, layout.n_channels, layout.n_of_channel)[..., : layout.n_linear]

    def forward(self, inputs: Tensor) -> Tensor:
        """Return corrections [windows, channels, horizon] for inputs [windows, n_inputs]."""
        return super().forward(self.past(inputs))


class Ridge:
    """Ridge regression of window targets on window pasts, whose sums are shared by all penalties.

    Args:
        layout: Layout of the windows.
        window: Past windows; windows with missing or unusually large targets are left out.

    Example:
        >>> layout = Layout(horizon=1, context=3, periods=(1,), lags=(), n_channels=1, n_calendar=0)
        >>> inputs = torch.randn(500, layout.n_inputs, generator=torch.Generator().manual_seed(0))
        >>> window = Window(inputs, 2 * inputs[:, None, :1], torch.zeros(500, 1, 1), torch.ones(500, 1, 1))
        >>> Ridge(layout, window).solved(1e-6).weight.detach()[0, :2].abs().round(decimals=2)
        tensor([2., 0.])
    """

    def __init__(self, layout: Layout, window: Window) -> None:
        self._layout = layout
        past = LinearMap(layout).past(window.inputs).flatten(0, 1)
        truth = window.targets.flatten(0, 1)
        usual = (truth.abs() < _UNUSUAL).all(dim=-1)  # NaN compares as False
        past, truth = past[usual].double(), truth[usual].double()
        ones = torch.cat([past, torch.ones_like(past[:, :1])], dim=1)
        self._n_rows, self._square, self._product = len(ones), ones.mT @ ones, ones.mT @ truth

    @torch.no_grad()
    def solved(self, strength: float = 1e-3) -> LinearMap:
        """Compute the linear map.

        Args:
            strength: Strength of the penalty per window; inputs and targets are in units of the naive forecast.
        """
        penalty = (strength * self._n_rows + 1e-6) * torch.eye(len(self._square), dtype=self._square.dtype)
        solution = torch.linalg.solve(self._square + penalty, self._product)
        linear = LinearMap(self._layout)
        linear.weight.copy_(solution[:-1].mT)
        linear.bias.copy_(solution[-1])
        return linear

    @torch.no_grad()
    def best_strength(self, held_out: Window | None) -> float:
        """Return the strength with the smallest mean absolute error on held-out windows; the first one by default."""
        if held_out is None:
            return _STRENGTHS[0]

        def error(strength: float) -> float:
            return float((self.solved(strength)(held_out.inputs) - held_out.targets).abs().nanmean().nan_to_num())

        return min(_STRENGTHS, key=error)


class PathNetwork(nn.Module):
    """Network that maps the inputs of windows to distributions over paths.

    All paths are relative to the best naive forecast of the window. A linear map of the past changes and of the other
    naive forecasts, shared by all channels, corrects this forecast, and a perceptron adds the hypotheses. The paths of
    all channels form one hypothesis, [channels * horizon, 1].

    Args:
        layout: Layout of the windows.
        n_hypotheses: Number of paths.
        hidden: Sizes of the hidden layers.
        dropout: Probability with which a hidden unit is dropped in training.
        linear: Initial linear map; a random one by default.

    Example:
        >>> layout = Layout(horizon=3, context=5, periods=(1,), lags=(), n_channels=2, n_calendar=0)
        >>> PathNetwork(layout, n_hypotheses=4, hidden=(8,))(torch.zeros(7, layout.n_inputs)).scale.shape
        torch.Size([7, 4, 6, 1])
    """

    def __init__(
        self,
        layout: Layout,
        n_hypotheses: int,
        hidden: tuple[int, ...],
        dropout: float = 0.0,
        linear: LinearMap | None = None,
    ) -> None:
        super().__init__()
        self.layout = layout
        layers: list[nn.Module] = []
        width = layout.n_inputs + layout.n_channels * layout.horizon
        for size in hidden:
            layers += [nn.Linear(width, size), nn.ReLU(), nn.Dropout(dropout)]
            width = size
        self.linear = LinearMap(layout) if linear is None else linear
        self.trunk = nn.Sequential(*layers)
        self.head = MultiHypothesisHead(width, (layout.n_channels * layout.horizon, 1), n_hypotheses, scales=True)

    def forward(self, inputs: Tensor) -> Distributions:
        """Return paths [windows, hypotheses, channels * horizon, 1] for inputs [windows, n_inputs]."""
        base = self.linear(inputs).flatten(1)
        deviations: Distributions = self.head(self.trunk(torch.cat([inputs, base.detach()], dim=1)))
        return Distributions(deviations.hypotheses + base[:, None, :, None], deviations.score_logits, deviations.scale)


class Codebook(nn.Module):
    """Fixed paths around a simple forecast: k-means centers of its past errors.

    The simple forecast is the best naive forecast, or its correction by a linear map.

    If the past contains no information about the future, as for exchange rates, a network only adds noise. Paths are in
    units of the naive forecast. For several channels, the unit is the geometric mean of the current unit and the usual
    unit, because calm and volatile periods do not last. K-means weights channels by the size of their changes.

    Args:
        n_hypotheses: Number of paths.
        n_channels: Number of series per path.
        horizon: Number of steps per path.
        base: Linear map that corrects the best naive forecast; None for no correction.
    """

    def __init__(self, n_hypotheses: int, n_channels: int, horizon: int, base: LinearMap | None = None) -> None:
        super().__init__()
        self.base = base
        self.register_buffer("centers", torch.zeros(n_hypotheses, n_channels, horizon))
        self.register_buffer("scales", torch.ones(n_hypotheses, n_channels, horizon))
        self.register_buffer("logits", torch.zeros(n_hypotheses))
        self.register_buffer("usual", torch.ones(n_channels, 1, dtype=torch.float64))

    @torch.no_grad()
    def fit(self, window: Window, seed: int) -> "Codebook":
        """Fit the centers, the standard deviations around them, and their probabilities.

        Args:
            window: Past windows; windows with missing targets are left out.
            seed: Random seed of k-means.
        """
        targets, units = window.targets, window.unit
        targets = targets if self.base is None else targets - self.base(window.inputs)
        usual = units.median(dim=0).values
        self.get_buffer("usual").copy_(usual)
        whole = ~targets.isnan().flatten(1).any(dim=1)
        targets, units = targets[whole][:_N_ROWS].clamp(-_FARTHEST, _FARTHEST), units[whole][:_N_ROWS]
        n_hypotheses = len(self.get_buffer("logits"))
        n = min(n_hypotheses, len(targets))
        if n == 0:  # every window has missing values: all paths are the simple forecast
            return self
        rows = targets / self._factors(units)
        weighted = (rows * (usual / usual.mean())).flatten(1) if len(usual) > 1 else rows.flatten(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # with few distinct windows, some paths stay empty
            labels = KMeans(n, n_init=2, random_state=seed).fit(weighted.numpy()).labels_
        owner = torch.from_numpy(labels).long()
        spread = rows.std(dim=0, correction=0).clamp_min(1e-3)
        for k in owner.unique().tolist():
            members = rows[owner == k]
            self.get_buffer("centers")[k] = members.mean(dim=0)
            # Shrink the standard deviation of a cluster towards that of all rows, with the weight of two rows.
            square = (members - members.mean(dim=0)).square().sum(dim=0) + 2 * spread.square()
            self.get_buffer("scales")[k] = (square / (len(members) + 2)).sqrt()
        counts = torch.bincount(owner, minlength=n_hypotheses).float()
        self.get_buffer("logits").copy_((counts / counts.sum()).clamp_min(1e-6).log())
        return self

    def _factors(self, units: Tensor) -> Tensor:
        """Return the factors that convert paths to the units of windows, [windows, channels, 1]."""
        usual = self.get_buffer("usual")
        if len(usual) == 1:
            return torch.ones_like(units, dtype=torch.float32)
        return (usual / units).sqrt().clamp(1 / _MOST_FACTOR, _MOST_FACTOR).float()  # a channel may have been 0 so far

    def forward(self, window: Window) -> Distributions:
        """Return paths [windows, hypotheses, channels * horizon, 1] in the units of the windows."""
        factors = self._factors(window.unit).unsqueeze(1)
        centers, scales = (self.get_buffer(name) * factors for name in ("centers", "scales"))
        if self.base is not None:
            centers = centers + self.base(window.inputs).unsqueeze(1)
        logits = self.get_buffer("logits").expand(len(window.unit), -1)
        return Distributions(centers.flatten(2).unsqueeze(-1), logits, scales.flatten(2).unsqueeze(-1))


def new_codebooks(n_hypotheses: int, window: Window, linear: LinearMap, seed: int) -> list[Codebook]:
    """Return two codebooks of past errors: of a linear map, and of the naive forecast.

    Args:
        n_hypotheses: Number of paths per codebook.
        window: Past windows.
        linear: Linear map.
        seed: Random seed of k-means.
    """
    _, n_channels, horizon = window.targets.shape
    books = [Codebook(n_hypotheses, n_channels, horizon, base) for base in (linear, None)]
    return [book.fit(window, seed).requires_grad_(False) for book in books]


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
    sets_rate = isinstance(rule, AutoAnnealing) and rule.rate
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
