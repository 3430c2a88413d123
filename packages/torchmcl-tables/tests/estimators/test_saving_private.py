"""Saved estimators without the rows that they learned from."""

import numpy as np
import pytest

from tables import QUICK
from torchmcl.persistence import read_checkpoint
from torchmcl_tables import DensityRegressor

RNG = np.random.default_rng(0)
X = RNG.normal(size=(150, 3))
Y = 100 * X[:, 0] + RNG.normal(size=150)


@pytest.fixture(scope="module")
def regressor():
    return DensityRegressor(**{**QUICK, "n_epochs": 3}).fit(X, Y)


def numbers_in(folder):
    """Return all numbers in the arrays of a saved model."""
    tensors = read_checkpoint(folder / "model.safetensors").tensors.values()
    return np.concatenate([tensor.double().numpy().ravel() for tensor in tensors])


def test_a_private_model_holds_no_row_and_answers_nearly_the_same(regressor, tmp_path):
    regressor.save(tmp_path / "plain")
    regressor.save(tmp_path / "private", private=True)
    targets = regressor._answers.targets.scaler
    units = (Y - targets.mean[0]) / targets.scale[0]
    leaves = numbers_in(tmp_path / "plain")
    assert np.isclose(units[:, None], leaves[None], atol=1e-9).any(axis=1).mean() > 0.8  # the need for it
    kept = numbers_in(tmp_path / "private")
    for values in (Y, units):
        assert np.isclose(values[:, None], kept[None], rtol=0, atol=1e-9).any(axis=1).mean() < 0.02
    assert not any("held_out" in name for name in read_checkpoint(tmp_path / "private" / "model.safetensors").tensors)
    answers = DensityRegressor.load(tmp_path / "private").predict(X)
    assert np.corrcoef(answers, regressor.predict(X))[0, 1] > 0.95
    np.testing.assert_array_equal(DensityRegressor.load(tmp_path / "plain").predict(X), regressor.predict(X))
    assert DensityRegressor.load(tmp_path / "private").predict_interval(X[:3]).lower.shape[0] == 3
