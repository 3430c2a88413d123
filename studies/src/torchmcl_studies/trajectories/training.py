"""Training of the networks of one scene: fleets of seeds and rules, and a separate loop for joint winners."""

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from torchmcl import AutoAnnealing, metrics
from torchmcl.app.progress import Progress
from torchmcl.costs import MixtureNLL, pairwise_gaussian_nll
from torchmcl.rules.winners import WTA
from torchmcl.schedules import Cosine, JoinedSchedule, Linear, Schedule
from torchmcl.scoring import SoftmaxScores
from torchmcl.step import mcl_step
from torchmcl.types import Batch, Distributions, Predictions
from torchmcl_fleet import Adam, Fleet, SampledData
from torchmcl_studies.common import own_random_numbers
from torchmcl_studies.trajectories.methods import Method, path_cost
from torchmcl_studies.trajectories.network import N_OBSERVED, Drawing, PathNetwork, Rows, own_frame

__all__ = [
    "STEPS_PER_EPOCH",
    "Forecast",
    "constant_velocity",
    "fork_rows",
    "forks_of",
    "numbers_of",
    "predicted",
    "train_fleet",
    "train_jointly",
]

# New rows are drawn for every epoch; learning rates and temperatures change by epoch.
STEPS_PER_EPOCH = 20
# Scenes have up to 32 people; larger crowds are split. Most scenes have three or four people, so that a batch of scenes
# has four times as many rows as a batch of windows.
GROUP_SIZE, _ROOM = 32, 4
_RATE, _DECAY, _BETA2 = 2e-3, 0.3, 0.98
# Fraction of the training in which the learning rate increases: 200 of 7400 steps.
_WARM_UP = 1 / 37
_SCORE_WEIGHT = 0.3


def train_fleet(
    models: Sequence[tuple[Method, int]],
    drawing: Drawing,
    n_epochs: int,
    *,
    batch_size: int,
    device: str,
    progress: str | bool,
) -> list[nn.Module]:
    """Train methods of one kind with their seeds side by side, and return a network for each.

    All networks see the same rows; seeds differ in their initial weights and in dropout.

    Args:
        models: Pairs of a method and a seed.
        drawing: Sampler of the training rows.
        n_epochs: Number of epochs of `STEPS_PER_EPOCH` steps.
        batch_size: Number of windows per batch; a batch of scenes has four times as many rows.
        device: Device to train on.
        progress: Label of the progress bar; False to hide it.
    """
    kind = models[0][0].kind
    mixture = kind == "mixture"
    batch_size = _ROOM * batch_size if kind == "scenes" else batch_size
    rules = {method.name: method.rule(n_epochs) for method, _ in models}
    fleet = Fleet(
        lambda: PathNetwork(scales=mixture),
        len(models),
        rule=[rules[method.name] for method, _ in models],
        optimizer=Adam(beta2=_BETA2),
        # AutoAnnealing lowers the rate itself at the end.
        learning_rate=[_rate(n_epochs, falls=not isinstance(rules[m.name], AutoAnnealing)) for m, _ in models],
        weight_decay=_DECAY,
        seeds=[seed for _, seed in models],
        cost_fn=MixtureNLL(pairwise_gaussian_nll) if mixture else path_cost,
        scores=SoftmaxScores(),
        score_weight=0.0 if mixture else _SCORE_WEIGHT,
        device=device,
    )
    rows = SampledData(drawing, STEPS_PER_EPOCH * batch_size, len(models))
    with own_random_numbers(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "AutoAnnealing: `model`")  # the network has no head of hypotheses to move
        fleet.fit(rows, n_epochs, batch_size=batch_size, progress=progress)
    return list(fleet.models)


def train_jointly(
    seeds: Sequence[int], drawing: Drawing, n_epochs: int, *, batch_size: int, device: str, progress: str | bool
) -> list[nn.Module]:
    """Train networks with winners shared by all people of a scene, by `Batch.scene`.

    Fleets do not support scenes, so this is a manual loop of `mcl_step` over stacked networks.
    """
    networks: list[nn.Module] = []
    n_rows = _ROOM * batch_size
    generator = torch.Generator(device).manual_seed(0)
    scene = drawing.scenes(n_rows, device)
    rate = _rate(n_epochs)
    title = progress if isinstance(progress, str) else "joint winners"
    with own_random_numbers(), Progress(n_epochs, title, show=bool(progress), unit="epoch") as bar:
        for seed in seeds:
            torch.manual_seed(seed)
            networks.append(PathNetwork().to(device))
        parameters, _ = stack_module_state(networks)
        model = _stacked(networks[0], parameters)
        matrices = [value for value in parameters.values() if value.ndim == 3]
        biases = [value for value in parameters.values() if value.ndim == 2]
        groups = [{"params": matrices, "weight_decay": _DECAY}, {"params": biases, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=_RATE, betas=(0.9, _BETA2))
        for epoch in range(n_epochs):
            for group in optimizer.param_groups:
                group["lr"] = rate(epoch)
            for _ in range(STEPS_PER_EPOCH):
                drawn = (part for part in drawing(n_rows, generator) if part is not None)
                inputs, targets, mask = (part.expand(len(seeds), *part.shape) for part in drawn)
                batch = Batch(inputs, targets, mask, scene)
                output = mcl_step(
                    model,
                    batch,
                    WTA(),
                    cost_fn=path_cost,
                    scores=SoftmaxScores(),
                    score_weight=_SCORE_WEIGHT,
                    stacked=True,
                )
                optimizer.zero_grad()
                output.loss.sum().backward()
                optimizer.step()
            bar.step()
    for index, network in enumerate(networks):
        network.load_state_dict({name: value[index].detach() for name, value in parameters.items()})
    return networks


def _stacked(network: nn.Module, parameters: dict[str, Tensor]) -> Callable[[Tensor], Predictions]:
    """Return a model that runs each network on its own rows, [models, batch, ...]."""
    template = copy.deepcopy(network)

    def one(tensors: dict[str, Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
        hypotheses, score_logits = functional_call(template, tensors, (inputs,))
        return hypotheses, score_logits

    every = torch.vmap(one, randomness="different")
    return lambda inputs: Predictions(*every(parameters, inputs))


def _rate(n_epochs: int, *, falls: bool = True) -> Schedule:
    """Return the learning rate: a warm-up, then half a cosine down to 0, or constant."""
    warm_up = max(1, round(_WARM_UP * n_epochs))
    n_left = max(1, n_epochs - warm_up)
    return JoinedSchedule(
        (Linear(_RATE / warm_up, _RATE, warm_up), Cosine(_RATE, 0.0 if falls else _RATE, n_left)), (warm_up,)
    )


_CHUNK = 8192
# Two people closer than this collide, as in Weng et al., "Joint Metrics Matter".
_COLLISION = 0.2
# Most of the 20 scores are small, so the lower bins are narrow.
_BINS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
_N_FORKS = 3
# Rows of a recording that are closer than this show the same event.
_APART = 40


class Forecast(NamedTuple):
    """The predictions of a method for the test rows.

    Attributes:
        paths: Positions in meters, [rows, hypotheses, 12, 2].
        probabilities: Probabilities of the hypotheses, [rows, hypotheses].
        nll: Negative log-likelihood of the true future, [rows]; None for methods without a density.
    """

    paths: Tensor
    probabilities: Tensor
    nll: Tensor | None = None


def constant_velocity(rows: Rows) -> Forecast:
    """Return one hypothesis with constant velocity, the last step repeated."""
    observed = rows.paths[:, :N_OBSERVED]
    step = observed[:, -1] - observed[:, -2]
    steps = torch.arange(1.0, rows.paths.shape[1] - N_OBSERVED + 1, device=observed.device)
    paths = observed[:, -1:] + steps.unsqueeze(-1) * step.unsqueeze(-2)
    return Forecast(paths.unsqueeze(1), torch.ones(len(paths), 1, device=observed.device))


@torch.no_grad()
def predicted(network: nn.Module, rows: Rows) -> Forecast:
    """Return the predictions of a network for rows, on their device."""
    network = network.to(rows.paths.device).eval()
    paths, probabilities, nll = [], [], []
    for chunk, near in zip(rows.paths.split(_CHUNK), rows.near.split(_CHUNK), strict=True):
        inputs, frame = own_frame(chunk[:, :N_OBSERVED], near)
        output = network(inputs)
        paths.append(frame.positions(output.hypotheses))
        probabilities.append(output.score_logits.softmax(dim=-1))
        if isinstance(output, Distributions):
            targets = frame.offsets(chunk[:, N_OBSERVED:]).unsqueeze(1)
            extras: dict[str, Any] = {"score_logits": output.score_logits, "scale": output.scale}
            cost = MixtureNLL(pairwise_gaussian_nll)(
                hypotheses=output.hypotheses, targets=targets, event_dims=2, **extras
            )
            nll.append(-torch.logsumexp(-cost.squeeze(1), dim=-1))
    return Forecast(torch.cat(paths), torch.cat(probabilities), torch.cat(nll) if nll else None)


def numbers_of(forecast: Forecast, rows: Rows) -> dict[str, Any]:
    """Return the metrics of one record; distances are in meters.

    Returns:
        Metrics by name. min_ade and min_fde are separate minima over the hypotheses; min_ade_of_final is the ADE of the
        hypothesis with the lowest FDE; top1_* are the errors of the likeliest hypothesis; misses is the miss rate
        beyond 2 m; brier_fde; joint_* are the errors of the best joint hypothesis of each scene; collisions is the
        fraction of agents that come closer than 0.2 m to another agent; nll; calibration is a list of (mean
        probability, fraction of wins, count) for bins of the scores.
    """
    paths, scores = forecast.paths, forecast.probabilities
    future, scene = rows.paths[:, N_OBSERVED:], rows.scene
    best: dict[str, Any] = {"hypotheses": paths, "targets": future}
    likeliest: dict[str, Any] = {**best, "scores": scores, "k": 1}
    moving: dict[str, Any] = {"distance": _COLLISION, "average_over": "scenes", "scene": scene}
    numbers: dict[str, Tensor] = {
        "min_ade": metrics.min_ade(**best),
        "min_fde": metrics.min_fde(**best),
        "min_ade_of_final": metrics.min_ade(**best, best_by="fde"),
        "top1_ade": metrics.min_ade(**likeliest),
        "top1_fde": metrics.min_fde(**likeliest),
        "misses": metrics.miss_rate(**best),
        "brier_fde": metrics.brier_min_fde(**best, probabilities=scores.clamp(0, 1)),
        "joint_ade": metrics.joint_min_ade(**best, scene=scene),
        "joint_fde": metrics.joint_min_fde(**best, scene=scene),
        "collisions": metrics.collision_rate(hypotheses=paths, **moving),
    }
    record: dict[str, Any] = {name: round(float(value), 6) for name, value in numbers.items()}
    record["nll"] = None if forecast.nll is None else round(float(forecast.nll.mean()), 4)
    record["calibration"] = _calibration(forecast, future)
    return record


def _calibration(forecast: Forecast, future: Tensor) -> list[list[float]]:
    cost = torch.cat(
        [
            path_cost(hypotheses=paths, targets=true.unsqueeze(1)).squeeze(1)
            for paths, true in zip(forecast.paths.split(_CHUNK), future.split(_CHUNK), strict=True)
        ]
    )
    won = torch.nn.functional.one_hot(cost.argmin(dim=-1), cost.shape[-1]).flatten().double()
    scores = forecast.probabilities.flatten().double()
    edges = torch.tensor(_BINS[1:-1], dtype=torch.float64, device=scores.device)
    place = torch.bucketize(scores, edges)
    count, score, wins = (
        torch.zeros(len(_BINS) - 1, dtype=torch.float64, device=scores.device).index_add(0, place, part)
        for part in (torch.ones_like(scores), scores, won)
    )
    return [
        [round(float(s / n), 5), round(float(w / n), 5), int(n)]
        for n, s, w in zip(count, score, wins, strict=True)
        if n > 0
    ]


def fork_rows(rows: Rows) -> list[int]:
    """Return the indices of test rows to draw: the sharpest turns of pedestrians, at different times.

    They are selected by the true future only, independently of the methods.
    """
    _, frame = own_frame(rows.paths[:, :N_OBSERVED], rows.near)
    sideways = frame.offsets(rows.paths[:, N_OBSERVED:])[:, -1, 1].abs()
    walking = frame.velocity[:, 0] > 0.25
    chosen: list[int] = []
    for row in torch.where(walking, sideways, -1.0).argsort(descending=True).tolist():
        if all(abs(row - other) >= _APART for other in chosen):
            chosen.append(row)
        if len(chosen) == _N_FORKS:
            break
    return chosen


def forks_of(forecast: Forecast, rows: Rows, chosen: Sequence[int]) -> list[dict[str, Any]]:
    """Return the data for drawing the chosen rows: hypotheses, and paths of the person and of people nearby."""
    forks = []
    for row in chosen:
        together = (rows.scene == rows.scene[row]) & (torch.arange(len(rows.scene), device=rows.scene.device) != row)
        forks.append(
            {
                "path": _rounded(rows.paths[row]),
                "near": _rounded(rows.paths[together]),
                "hypotheses": _rounded(forecast.paths[row]),
                "probabilities": [round(p, 4) for p in forecast.probabilities[row].tolist()],
            }
        )
    return forks


def _rounded(positions: Tensor) -> Any:
    return (positions.double().cpu() * 100).round().div(100).tolist()
