"""The search for a way to train, on the training rows of an estimator."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from torchmcl.fleet import Candidate
from torchmcl.sklearn.examples import Examples, mean_one
from torchmcl.sklearn.rows import Rows

__all__ = ["searched"]


def searched(
    estimator: Any,
    factory: Callable[[], nn.Module],
    rows: Rows,
    examples: Examples,
    *,
    seed: int,
    n_epochs: int,
    batch_size: int,
    **options: Any,
) -> tuple[Candidate, dict[str, Any]]:
    """Return the best of many ways to train, by rows held out inside the training rows, and the attributes of it.

    Args:
        estimator: with the `FleetSearch`.
        factory: makes an untrained network.
        rows: to train on.
        examples: the same as tensors.
        seed: of the search.
        n_epochs: of each training.
        batch_size: of each training.
        **options: further options of `FleetSearch.run`.
    """
    units = np.unique(rows.units, return_inverse=True)[1].ravel()
    trials = estimator.search.run(
        factory,
        examples.inputs,
        examples.targets,
        n_epochs,
        batch_size=batch_size,
        seed=seed % 2**31,
        device=estimator.device,
        progress=bool(estimator.progress),
        weights=mean_one(rows.weights),
        groups=torch.from_numpy(units) if rows.in_groups else None,
        **options,
    )
    best = trials.candidates[trials.best]
    return best, {"trials_": trials.records(), "best_candidate_": best.name}
