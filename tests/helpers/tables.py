"""Small tables and quick settings for the tests of the estimators."""

from dataclasses import dataclass, field

import numpy as np

from torchmcl import WTA, AssignmentRule

QUICK = {"n_epochs": 40, "hidden": (16,), "learning_rate": 0.05, "random_state": 0}


def forked(n=300, seed=0, n_features=2):
    """Return a table with two branches: y is plus or minus 1 + x, with little noise."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, size=(n, n_features))
    branch = rng.choice([-1.0, 1.0], size=n)
    return X, branch * (1 + X[:, 0]) + 0.05 * rng.normal(size=n)


def noisy(n=300, seed=0):
    """Return a table with one branch whose noise grows with x."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, size=(n, 1))
    return X, 3 * X[:, 0] + (0.1 + X[:, 0]) * rng.normal(size=n)


def two_outputs(n=300, seed=0):
    """Return a table with two outputs of very different scale."""
    X, y = forked(n, seed)
    return X, np.stack([y, 1000 * X[:, 1]], axis=1)


@dataclass(frozen=True, eq=False)
class Counting(AssignmentRule):
    """Hard winner-takes-all that writes down how many rows it is asked about: those of a step, or all held-out ones."""

    rows: list[int] = field(default_factory=list)

    def weights(self, cost, mask):
        self.rows.append(cost.shape[-3])
        return WTA().weights(cost, mask)
