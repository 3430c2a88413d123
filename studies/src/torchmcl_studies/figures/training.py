"""Training all methods and seeds of a figure as one fleet, recorded."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchmcl.annealing import AnnealingRecords
from torchmcl.fleet import Fleet, FleetRecorder, SampledData
from torchmcl.types import Batch
from torchmcl_studies.figures.settings import FigureSettings

__all__ = ["held_out_points", "train", "train_without_input"]

Draw = Callable[[int, torch.Generator], Tensor]


def train(
    settings: FigureSettings,
    rules: Sequence[Any],
    draw: Callable[[int, torch.Generator], Batch],
    *,
    held_out: Batch,
    probes: Tensor,
    progress: bool,
    what: str,
) -> list[list[AnnealingRecords]]:
    """Return the records of each method and seed.

    Args:
        settings: how.
        rules: one for each method: a rule, or a function epoch -> rule.
        draw: rows of an epoch.
        held_out: rows to measure on.
        probes: inputs whose hypotheses are kept.
        progress: show a bar.
        what: words in front of it.
    """
    n_models = len(rules) * settings.n_seeds
    fleet = Fleet(
        settings.module_factory(),
        n_models,
        rule=[rule for rule in rules for _ in range(settings.n_seeds)],
        optimizer=settings.optimizer,
        learning_rate=settings.learning_rate,
        seeds=list(range(settings.n_seeds)) * len(rules),
        device=settings.device,
    )
    recorder = FleetRecorder(fleet, settings.n_epochs, data=held_out, probes=probes, every=settings.record_every)
    fleet.fit(
        SampledData(draw, settings.n_points // settings.targets_per_row, n_models),
        settings.n_epochs,
        batch_size=settings.batch_size // settings.targets_per_row,
        after_epoch=recorder,
        models_at_once=n_models,
        progress=what if progress else False,
    )
    records = recorder.records()
    return [records[low : low + settings.n_seeds] for low in range(0, n_models, settings.n_seeds)]


def train_without_input(
    settings: FigureSettings, rules: Sequence[Any], points: Draw, *, progress: bool, what: str
) -> list[list[AnnealingRecords]]:
    """Return the records of networks with constant input 1 and targets from one distribution."""

    def draw(n_rows: int, generator: torch.Generator) -> Batch:
        targets = points(n_rows * settings.targets_per_row, generator)
        return Batch(torch.ones(n_rows, 1, device=generator.device), targets.view(n_rows, settings.targets_per_row, 2))

    held_out = Batch(torch.ones(1, 1), held_out_points(settings, points).unsqueeze(0))
    one = torch.ones(1, 1)
    return train(settings, rules, draw, held_out=held_out, probes=one, progress=progress, what=what)


def held_out_points(settings: FigureSettings, points: Draw) -> Tensor:
    """Return the test points of a figure without an input."""
    return points(settings.n_held_out, torch.Generator().manual_seed(1))
