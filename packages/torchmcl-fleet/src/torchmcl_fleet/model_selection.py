"""Selection of the number of hypotheses by cross-validation: held-out distortions and their theoretical lower bound."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchmcl import AutoAnnealing, SigmoidScores, checks, pairwise_sq_euclidean
from torchmcl.density import Mixture, equal_mass_medians, fit_bandwidth
from torchmcl.errors import bad_value
from torchmcl.postprocess.inputs import finite_tensor
from torchmcl.scoring import ScoreObjective
from torchmcl.theory import RatePoints, blahut_arimoto
from torchmcl_fleet.fleet import Fleet
from torchmcl_fleet.problem import FleetData

__all__ = ["HypothesisCounts", "choose_n_hypotheses", "least_distortions"]

_OWNER = "choose_n_hypotheses"


@dataclass(frozen=True, eq=False)
class HypothesisCounts:
    """Distortion by number of hypotheses, and the recommended number.

    Attributes:
        n_hypotheses: Numbers of hypotheses that were tried, in increasing order.
        distortions: Mean squared distance of held-out targets to the nearest hypothesis, [numbers, folds, restarts].
        floor: Lowest possible distortion for each number if the density predicted by the largest networks were the
            true one, scaled down if it exceeds a measured distortion; None if unknown.
        share: Required fraction of the possible reduction of the distortion.
        recommended: Recommended number of hypotheses.
        reason: Reason for the recommendation, a sentence.
    """

    n_hypotheses: tuple[int, ...]
    distortions: Tensor
    floor: tuple[float | None, ...]
    share: float
    recommended: int
    reason: str

    @property
    def means(self) -> tuple[float, ...]:
        """Mean distortion for each number of hypotheses."""
        return tuple(self.distortions.mean(dim=(1, 2)).tolist())

    @property
    def errors(self) -> tuple[float, ...]:
        """Standard error of each mean over the folds, after averaging the restarts."""
        return tuple(_errors(self.distortions.mean(dim=-1)).tolist())

    @property
    def restart_spreads(self) -> tuple[float, ...]:
        """Standard deviation over restarts within a fold, as a root mean square over the folds."""
        if self.distortions.shape[-1] < 2:
            return (0.0,) * len(self.n_hypotheses)
        return tuple(self.distortions.var(dim=-1).mean(dim=-1).sqrt().tolist())

    def __str__(self) -> str:
        """Return a small table and the recommendation."""
        lines = ["hypotheses  distortion  +-        restarts  floor"]
        columns = zip(self.n_hypotheses, self.means, self.errors, self.restart_spreads, self.floor, strict=True)
        for number, mean, error, spread, least in columns:
            end = "" if least is None else f"{least:.4g}"
            mark = "*" if number == self.recommended else " "
            lines.append(f"{number:>9}{mark}  {mean:<10.4g}  {error:<8.2g}  {spread:<8.2g}  {end}".rstrip())
        return "\n".join([*lines, "", self.reason])


def choose_n_hypotheses(
    factory: Callable[[int], nn.Module],
    inputs: Tensor,
    targets: Tensor,
    *,
    candidates: Sequence[int] = (1, 2, 3, 5, 8, 12, 20),
    n_epochs: int = 300,
    n_folds: int = 5,
    n_restarts: int = 2,
    share: float = 0.9,
    rule: Any = None,
    learning_rate: Any = 0.01,
    batch_size: int | Literal["all"] | None = None,
    scores: ScoreObjective | None = None,
    device: str | torch.device = "cpu",
    seed: int = 0,
    progress: bool = False,
) -> HypothesisCounts:
    """Return the held-out distortion by number of hypotheses, and the recommended number.

    For each number of hypotheses, one fleet trains the models of all folds and restarts. The recommended number is the
    smallest one that achieves the fraction `share` of the reduction from the smallest to the best candidate, or whose
    distortion is within one standard error (of the paired difference over the folds) of the best candidate.

    Args:
        factory: Function that builds an untrained module with a given number of hypotheses.
        inputs: Inputs, [rows, ...], standardized if the module requires it.
        targets: Targets, [rows, dim], or several per row, [rows, targets, dim].
        candidates: Numbers of hypotheses to try.
        n_epochs: Number of epochs of each training run.
        n_folds: Number of folds; each row is held out in one of them.
        n_restarts: Number of training runs per fold, with different initial weights.
        share: Required fraction of the reduction, in (0, 1].
        rule: Assignment rule of the models, as in `Fleet`, `AutoAnnealing()` by default.
        learning_rate: Number, or schedule epoch -> number.
        batch_size: Number of rows per minibatch, as for `Fleet.fit`.
        scores: Score objective, `SigmoidScores()` by default.
        device: Device to train on.
        seed: Seed for the folds and the initial weights.
        progress: Whether to show a progress bar for each number of hypotheses.

    Raises:
        ValueError: If there are fewer than two candidates, a candidate is below 1, shapes are inconsistent, or there
            are fewer than two rows per fold.

    Example:
        >>> import torchmcl as mcl
        >>> generator = torch.Generator().manual_seed(0)
        >>> x = torch.rand(200, 1, generator=generator)
        >>> y = x * (2.0 * torch.randint(2, (200, 1), generator=generator) - 1)  # two branches
        >>> counts = choose_n_hypotheses(
        ...     lambda n: mcl.MultiHypothesisMLP(1, 1, n, hidden=(16,)), x, y, candidates=(1, 2, 4),
        ...     n_epochs=60, n_folds=2, n_restarts=1,
        ... )
        >>> counts.recommended
        2
    """
    numbers = _numbers(candidates)
    checks.check_callable(_OWNER, "factory", factory, "lambda n: MultiHypothesisMLP(n_inputs, dim, n)")
    for name, value in (("n_epochs", n_epochs), ("n_folds", n_folds), ("n_restarts", n_restarts)):
        checks.check_positive_int(_OWNER, name, value)
    checks.check_interval(_OWNER, "share", share, "(0, 1]")
    inputs, targets = _rows(inputs, targets, n_folds)
    reader = scores or SigmoidScores()
    fold = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed)) % n_folds
    of_model = [place for place in range(n_folds) for _ in range(n_restarts)]
    train, held = (
        FleetData.of_sets(
            [(inputs[rows], targets[rows]) for rows in (_members(fold, f, held_out=held_out) for f in range(n_folds))],
            of_model,
        )
        for held_out in (False, True)
    )
    distortions, fleet = [], None
    for number in numbers:
        fleet = Fleet(
            lambda number=number: factory(number),  # type: ignore[misc]
            len(of_model),
            rule=AutoAnnealing() if rule is None else rule,
            learning_rate=learning_rate,
            seeds=[seed + place for place in range(len(of_model))],
            scores=reader,
            device=device,
        )
        bar = f"{number} hypotheses" if progress else False
        fleet.fit(train, n_epochs, batch_size=batch_size, progress=bar)
        distortions.append(fleet.evaluate(held)["distortion"].double().view(n_folds, n_restarts))
    assert fleet is not None
    values = torch.stack(distortions)
    floor = _below(_floor(fleet, held, n_restarts, reader, numbers), values.mean(dim=(1, 2)))
    return _recommended(numbers, values, floor, float(share))


def _recommended(
    numbers: tuple[int, ...], distortions: Tensor, floor: tuple[float | None, ...], share: float
) -> HypothesisCounts:
    of_folds = distortions.mean(dim=-1)  # [numbers, folds]
    means = of_folds.mean(dim=-1)
    best = int(means.argmin())
    behind = _errors(of_folds - of_folds[best])  # paired: folds differ more than numbers of hypotheses
    saved = (means[0] - means) / (means[0] - means[best]).clamp_min(1e-30)
    close = means - means[best] <= behind
    enough = saved >= share
    place = int((close | enough).nonzero()[0])
    number, top = numbers[place], numbers[best]
    if best == 0:
        reason = f"{number}: more hypotheses do not lower the held-out distortion."
    elif place == best:
        reason = f"{number}: it has the lowest held-out distortion, {means[place]:.3g}."
    elif bool(close[place]):
        reason = f"{number}: the further reduction with up to {top} hypotheses is within one standard error."
    else:
        reason = (
            f"{number}: it achieves {float(saved[place]):.0%} of the reduction with {top} hypotheses, a distortion of "
            f"{means[place]:.3g} against {means[best]:.3g}."
        )
    if number == numbers[-1]:
        reason += " It is the largest candidate; larger numbers may be better."
    least = floor[place]
    if least is not None and least > 0 and math.isfinite(least):
        reason += f" The distortion is {float(means[place]) / least - 1:.0%} above the floor for {number}, {least:.3g}."
    return HypothesisCounts(numbers, distortions, floor, share, number, reason)


def _errors(values: Tensor) -> Tensor:
    """Return the standard error over the folds, [numbers]; 0 for a single fold."""
    n_folds = values.shape[-1]
    return values.std(dim=-1) / math.sqrt(n_folds) if n_folds > 1 else torch.zeros_like(values[:, 0])


def _floor(
    fleet: Fleet, held: FleetData, n_restarts: int, reader: ScoreObjective, numbers: tuple[int, ...]
) -> tuple[float | None, ...]:
    """Return the lowest possible distortions, means over folds, from the networks with the most hypotheses."""
    if held.targets.shape[2] > 1:
        return (None,) * len(numbers)
    of_folds = []
    for place in range(len(held.inputs)):
        n_rows = int(held.n_rows[place])
        predictions = fleet.predict(held.inputs[place, :n_rows])
        models = slice(place * n_restarts, (place + 1) * n_restarts)
        hypotheses = predictions.hypotheses[models].flatten(3).transpose(0, 1).flatten(1, 2).cpu()
        probabilities = torch.full(hypotheses.shape[:2], 1 / hypotheses.shape[1])
        if predictions.score_logits is not None:
            of_models = reader.probabilities(predictions.score_logits[models].cpu())
            probabilities = of_models.transpose(0, 1).flatten(1) / n_restarts
        truth = held.targets[place, :n_rows, 0].flatten(1).cpu()
        unit = float(truth.double().var(dim=0, correction=0).mean().sqrt()) or 1.0  # widths are fitted near 1
        hypotheses = hypotheses / unit
        bandwidth = fit_bandwidth(hypotheses, probabilities, truth / unit)
        density = Mixture(hypotheses, probabilities, bandwidth(hypotheses, probabilities))
        of_folds.append([None if least is None else least * unit**2 for least in least_distortions(density, numbers)])
    columns = zip(*of_folds, strict=True)
    return tuple(None if None in column else sum(column) / len(column) for column in columns)


def _below(floor: tuple[float | None, ...], measured: Tensor) -> tuple[float | None, ...]:
    """Return the floor, scaled down if it exceeds a measured value: the predicted density was then too wide."""
    ratios = [mean / least for least, mean in zip(floor, measured.tolist(), strict=True) if least]
    ratio = min([1.0, *ratios])
    return tuple(None if least is None else ratio * least for least in floor)


def _members(fold: Tensor, place: int, *, held_out: bool) -> Tensor:
    """Return the held-out rows of a fold, or its training rows; a single fold is used for both."""
    return ((fold == place) if held_out or int(fold.max()) == 0 else (fold != place)).nonzero().flatten()


def _numbers(candidates: Sequence[int]) -> tuple[int, ...]:
    for number in candidates:
        checks.check_positive_int(_OWNER, "candidates", number)
    numbers = tuple(sorted({int(number) for number in candidates}))
    if len(numbers) < 2:
        raise ValueError(bad_value(_OWNER, "candidates", "contain at least two different numbers", list(candidates)))
    return numbers


def _rows(inputs: Any, targets: Any, n_folds: int) -> tuple[Tensor, Tensor]:
    inputs, targets = finite_tensor(_OWNER, "inputs", inputs), finite_tensor(_OWNER, "targets", targets)
    if targets.ndim not in (2, 3) or len(targets) != len(inputs) or inputs.ndim < 2:
        rule = f"have shape [rows, dim] or [rows, targets, dim] for inputs [rows, ...] {tuple(inputs.shape)}"
        raise ValueError(bad_value(_OWNER, "targets", rule, tuple(targets.shape)))
    if not 2 <= n_folds <= len(inputs) // 2:
        rule = f"be at least 2, and at most {len(inputs) // 2} for {len(inputs)} rows"
        raise ValueError(bad_value(_OWNER, "n_folds", rule, n_folds))
    return inputs, targets.unsqueeze(1) if targets.ndim == 2 else targets


_N_ROWS, _N_SAMPLES = 32, 64
# In several dimensions samples are drawn, and their rate-distortion curve ends at the logarithm of their number.
_N_DRAWN = 256
# Temperatures relative to the variance of a row: from one hypothesis to more than any table requires.
_TEMPERATURES = tuple(2.0 * 0.5**step for step in range(12))


def least_distortions(density: Mixture, numbers: Sequence[int]) -> list[float | None]:
    """Return D(R = log2 n) for each number n of hypotheses, the mean over rows; None beyond the end of the curve.

    The Blahut-Arimoto curve is computed from samples of the density at evenly spaced rows, relative to the variance of
    each row, and scaled to the mean variance over all rows.

    Args:
        density: Predicted mixtures, with batch shape [rows].
        numbers: Numbers of hypotheses, each at least 1.

    Example:
        >>> density = Mixture(torch.tensor([[[-1.0], [1.0]]]), torch.tensor([[0.5, 0.5]]), widths=0.1)
        >>> one, two = least_distortions(density, [1, 2])
        >>> round(one), round(two, 1)
        (1, 0.0)
    """
    variances = density.variance.sum(dim=-1)
    n_rows = len(variances)
    places = torch.linspace(0, n_rows - 1, min(n_rows, _N_ROWS)).round().long().unique()
    samples = _samples(density.rows(places))
    samples = samples - samples.mean(dim=-2, keepdim=True)
    spread = samples.square().sum(dim=-1).mean(dim=-1).clamp_min(1e-12)  # [rows]
    unit = (samples / spread.sqrt().view(-1, 1, 1)).float()
    cost = pairwise_sq_euclidean(hypotheses=unit, targets=unit)
    curve: list[RatePoints] = []
    for temperature in _TEMPERATURES:
        curve.append(blahut_arimoto(cost, temperature, n_iters=100, tolerance=5e-3))
        if bool((curve[-1].rate > math.log2(max(numbers))).all()):
            break
    weights = spread / spread.sum()
    longest = torch.stack([point.rate for point in curve]).amax(dim=0).amin()
    distortions: list[float | None] = []
    for number in numbers:
        rate = math.log2(number)
        relative = _at_rate(curve, rate)
        known = rate == 0 or rate <= float(longest)
        distortions.append(float((weights * relative).sum() * variances.mean()) if known else None)
    return distortions


def _samples(density: Mixture) -> Tensor:
    """Return samples [rows, samples, dim]."""
    if density.dim > 1:
        return density.sample((_N_DRAWN,), torch.Generator(density.hypotheses.device).manual_seed(0)).transpose(0, 1)
    # Midpoints of cells of equal mass represent the density without sampling noise.
    return equal_mass_medians(density, _N_SAMPLES).unsqueeze(-1)


def _at_rate(curve: Sequence[RatePoints], rate: float) -> Tensor:
    """Return a lower bound on the distortion of each row at a rate, in units of its variance, [rows].

    A convex curve lies above its tangents, whose slopes are the temperatures; a chord between two points would lie
    above the curve, so it would not be a lower bound. The convergence `gap` of a point is subtracted.
    """
    if rate == 0:
        return torch.ones_like(curve[0].distortion)
    tangents = [point.distortion + point.temperature * math.log(2) * (point.rate - point.gap - rate) for point in curve]
    return torch.stack(tangents).amax(dim=0).clamp(0, 1)
