"""A tree of modes: winner-takes-all and automatic annealing on nine branches at two scales, as a film."""

from typing import Any

import torch
from torch import Tensor

from torchmcl.annealing.auto import AutoAnnealing
from torchmcl.data.modes import mode_problem
from torchmcl.fleet import EpochInfo, Fleet, FleetData
from torchmcl.nn import MultiHypothesisMLP
from torchmcl.rules.winners import WTA
from torchmcl.schedules import Cosine
from torchmcl.types import Predictions

__all__ = ["tree_records"]

PROBLEM = "3 x 3 branches"
_BATCH, _N_POINTS, _N_TEST = 180, 800, 4000
_GRID = torch.linspace(-1, 1, 25).unsqueeze(-1)
# A network that lost a mode is this many times above the lowest distortion, or more.
_LOST = 2.0


def tree_records(n_seeds: int, n_epochs: int, n_frames: int) -> dict[str, Any]:
    """Train both rules, and return a film of the first seed and the distortions of all.

    Args:
        n_seeds: networks of each rule.
        n_epochs: of each training, with 15 optimizer steps each.
        n_frames: pictures of the film, at most.
    """
    problem = mode_problem(PROBLEM)
    inputs, targets, *_ = problem.rows(problem.n_rows, seed=0)
    fresh = problem.rows(_N_TEST, seed=1)
    scale, highest = targets.std(), 1.05 * targets.abs().max()
    floor = problem.floor(n_inputs=12, n_draws=4000)
    rate = problem.learning_rate
    methods = []
    for key, label, rule, learning_rate in (
        ("mcl", "Winner-takes-all", WTA(), Cosine(rate, 0.0, n_epochs)),
        ("amcl", "Automatic annealing", AutoAnnealing(), rate),
    ):
        fleet = Fleet(
            lambda: MultiHypothesisMLP(1, 1, problem.n_hypotheses, hidden=problem.hidden, detach_scores=True),
            n_seeds,
            rule=rule,
            learning_rate=learning_rate,
        )
        camera = _Camera(max(1, n_epochs // n_frames), n_epochs, float(scale / highest))
        n_train = problem.n_rows - problem.n_rows // 10
        train, held_out = (
            FleetData.shared(inputs[rows], targets[rows] / scale, n_seeds)
            for rows in (slice(n_train), slice(n_train, None))
        )
        fleet.fit(train, n_epochs, batch_size=_BATCH, validation=held_out, after_epoch=camera, progress=False)
        hypotheses = fleet.predict(fresh.inputs).hypotheses * scale
        cost = torch.cdist(fresh.targets.expand(n_seeds, -1, -1, -1), hypotheses).square()
        ratios = (cost.amin(dim=-1).mean(dim=(1, 2)) / floor).tolist()
        methods.append(
            {
                "key": key,
                "label": label,
                "annealed": key == "amcl",
                "ratios": ratios,
                "lost": sum(ratio > _LOST for ratio in ratios),
                "temperature": camera.temperatures,
                "frames": camera.frames,
            }
        )
    shown = torch.cat([inputs, targets[:, 0] / highest], dim=-1)[:_N_POINTS]
    return {
        "points": _rounded(shown),
        "size": 0.5,  # the discs of close branches must not touch
        "epochs": camera.epochs,
        "n_seeds": n_seeds,
        "methods": methods,
    }


class _Camera:
    """Keep the hypotheses of the first model on a grid of inputs, every few epochs, scaled to the picture."""

    def __init__(self, every: int, n_epochs: int, scale: float) -> None:
        self.every, self.n_epochs, self.scale = every, n_epochs, scale
        self.epochs: list[int] = []
        self.temperatures: list[float] = []
        self.frames: list[list[list[float]]] = []

    def __call__(self, end: EpochInfo) -> None:
        if (end.epoch + 1) % self.every and end.epoch + 1 != self.n_epochs:
            return
        with torch.no_grad():
            found: Predictions = end.stacked(_GRID.expand(len(end.stacked), -1, -1))
        assert found.score_logits is not None
        values, logits = found.hypotheses[0, ..., 0] * self.scale, found.score_logits[0]  # [grid, hypotheses]
        drawn = torch.stack([_GRID.expand_as(values), values, logits.sigmoid()], dim=-1)
        self.epochs.append(end.epoch + 1)
        self.temperatures.append(float(end.temperatures[0]))
        self.frames.append(_rounded(drawn.flatten(0, 1)))


def _rounded(values: Tensor) -> list[list[float]]:
    return [[round(value, 3) for value in row] for row in values.tolist()]
