"""Wider networks, trained for longer, where training on the usual course still helped at its end."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tables import noisy
from torchmcl_tables import DensityRegressor
from torchmcl_tables.estimators.blend import width_of
from torchmcl_tables.estimators.density import _not_failed, still_learn
from torchmcl_tables.estimators.training import Trained

SMALL = {"hidden": (8,), "n_bins": 0, "n_restarts": 1, "random_state": 0}


def smooth(n=400):
    X = np.random.default_rng(0).uniform(-1, 1, size=(n, 2))
    return X, np.abs(X[:, 0]) + X[:, 1]


def widened(X, y, **options):
    """Return the first of eight fits in which wide networks prevail: a single network may stop early by chance."""
    fits = (DensityRegressor(**SMALL | options | {"random_state": seed}).fit(X, y) for seed in range(8))
    return next(fit for fit in fits if width_of(fit.modules_[-1]) > 8 and _wide_share(fit) > 0.5)


def _wide_share(fit):
    return fit.member_weights_["wide networks"] if fit.ensemble else 1.0


@pytest.fixture(scope="module")
def model():
    return widened(*smooth())


def test_a_table_without_noise_gets_wider_networks(model):
    assert list(model.member_weights_) == ["networks", "wide networks", "forest", "background"]
    assert [module.trunk[0].out_features for module in model.modules_] == [8, 32]
    X, y = smooth()
    assert model.predict_interval(X).contains(y).mean() > 0.85


def test_a_noisy_table_has_none():
    assert "wide networks" not in DensityRegressor(**SMALL).fit(*noisy(200)).member_weights_


@pytest.mark.slow
def test_columns_of_little_relevance_stay_small_in_wide_networks_with_bins():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(400, 6))
    X[::7, 0] = np.nan
    y = np.abs(X[:, 1])
    model = widened(X, y, n_bins=4)
    narrow, wide = (module.trunk[0].weight.detach().abs().mean(dim=0) for module in model.modules_)
    first, bins = slice(1, 7), slice(7, None)  # an indicator of missing values comes first

    def noise_relative_to_signal(weights):
        columns, of_bins = weights[first], weights[bins].view(6, 4).mean(dim=1)
        return max(float(part[2:].mean() / part[1]) for part in (columns, of_bins))

    assert noise_relative_to_signal(wide) < 0.15 < noise_relative_to_signal(narrow)
    assert model.predict_interval(X).contains(y).mean() > 0.85


TRAINED = Trained([], None, torch.tensor([0.1, 0.2, 0.3]), torch.tensor([9, 79, 99]), {})


@pytest.mark.parametrize(
    ("options", "best", "learn"),
    [
        ({}, [9, 79, 99], True),
        ({}, [9, 78, 99], False),
        ({"n_epochs": 100}, [99, 99, 99], False),
        ({"weight_decay": 0.1}, [99, 99, 99], False),
        ({"patience": 5}, [99, 99, 99], False),
        ({"keep_best": False}, [-1, -1, -1], False),
        ({"hidden": ()}, [99, 99, 99], False),
        ({"learning_rate": lambda epoch: 0.01}, [99, 99, 99], False),
    ],
)
def test_networks_still_learn_if_half_of_them_were_best_late(options, best, learn):
    trained = replace(TRAINED, best_epochs=torch.tensor(best))
    assert still_learn(DensityRegressor(**options), trained, 100) is learn


def test_without_held_out_rows_nothing_is_known():
    trained = replace(TRAINED, held_out_losses=torch.full((3,), torch.inf), best_epochs=torch.full((3,), -1))
    assert not still_learn(DensityRegressor(), trained, 100)


def test_a_network_fails_by_a_clear_difference_only():
    assert _not_failed(torch.tensor([0.02, 0.05, 0.3, -0.12, 0.01])) == [0, 1, 2, 3, 4]  # the score may be close to 0
    assert _not_failed(torch.tensor([100.0, 120.0, 500.0])) == [0, 1]
    assert _not_failed(torch.tensor([torch.nan, torch.nan])) == [0, 1]
