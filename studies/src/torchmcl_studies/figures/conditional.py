"""The training run of two figures: annealed MCL on three Gaussians that separate with the input."""

import functools
import time

import torch
from torch import Tensor

from torchmcl.annealing import AnnealingRecords
from torchmcl.data import conditional_covariance, conditional_three_gaussians
from torchmcl.rules.winners import AnnealedWTA
from torchmcl.schedules import annealed
from torchmcl_studies.figures.settings import FigureSettings
from torchmcl_studies.figures.training import train

__all__ = ["PROBES", "critical_temperatures", "train_conditional"]

# The inputs of the paper's figures.
PROBES = (0.1, 0.6, 0.9)


@functools.lru_cache(maxsize=1)
def train_conditional(settings: FigureSettings, *, progress: bool) -> tuple[list[AnnealingRecords], float]:
    """Return the records of each seed and their seconds, cached because two figures share the training run."""
    start = time.perf_counter()
    cooling = annealed(AnnealedWTA, temperature=settings.linear(1.0))
    (seeds,) = train(
        settings,
        [cooling],
        conditional_three_gaussians,
        held_out=conditional_three_gaussians(settings.n_held_out, torch.Generator().manual_seed(1)),
        probes=torch.tensor(PROBES).unsqueeze(-1),
        progress=progress,
        what="conditional three Gaussians",
    )
    return seeds, time.perf_counter() - start


def critical_temperatures(inputs: Tensor) -> Tensor:
    """Return the theoretical first split of each input, 2 lambda_max(C(x)), Eq. (14)."""
    return 2 * torch.linalg.eigvalsh(conditional_covariance(inputs))[..., -1]
