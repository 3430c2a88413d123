"""A small table of sales and a quick training, for the tests of the forecaster."""

import contextlib
import os
import signal

import numpy as np
import pandas as pd
import torch

from torchmcl.io import stop_on_signals
from torchmcl_forecast.network import PathNetwork

#: A training of a second: what is tested here is not how good it is.
QUICK = {"n_members": 1, "n_steps": 40, "hidden": (16,), "n_hypotheses": 4, "batch_size": 64, "n_futures": 3}
#: For tests that do not look at what was learned.
UNTRAINED = QUICK | {"n_steps": 2}


def sales(n_days=150, n_series=3, seed=0):
    rng = np.random.default_rng(seed)
    days = pd.date_range("2024-01-01", periods=n_days)
    week = np.tile([1.0, 1.0, 1.1, 1.2, 1.6, 1.8, 0.7], n_days // 7 + 1)[:n_days]
    parts = [
        pd.DataFrame({"unique_id": f"shop {k}", "ds": days, "y": 20 * (k + 1) * week + rng.normal(size=n_days)})
        for k in range(n_series)
    ]
    return pd.concat(parts, ignore_index=True)


@contextlib.contextmanager
def counted_steps(stop_at=None):
    """Count steps of training, and send the signal of a cluster in one of them."""
    steps = []

    def count(module, inputs, output):
        if isinstance(module, PathNetwork) and module.training:
            steps.append(module)
            if len(steps) == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)

    hook = torch.nn.modules.module.register_module_forward_hook(count)
    try:
        with stop_on_signals():
            yield steps
    finally:
        hook.remove()
