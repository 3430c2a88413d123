"""A small table of sales and a quick training, for the tests of the forecaster."""

import numpy as np
import pandas as pd

#: A training of a second: what is tested here is not how good it is.
QUICK = {"n_members": 1, "n_steps": 40, "hidden": (16,), "n_hypotheses": 4, "batch_size": 64, "n_futures": 3}


def sales(n_days=150, n_series=3, seed=0):
    rng = np.random.default_rng(seed)
    days = pd.date_range("2024-01-01", periods=n_days)
    week = np.tile([1.0, 1.0, 1.1, 1.2, 1.6, 1.8, 0.7], n_days // 7 + 1)[:n_days]
    parts = [
        pd.DataFrame({"unique_id": f"shop {k}", "ds": days, "y": 20 * (k + 1) * week + rng.normal(size=n_days)})
        for k in range(n_series)
    ]
    return pd.concat(parts, ignore_index=True)
