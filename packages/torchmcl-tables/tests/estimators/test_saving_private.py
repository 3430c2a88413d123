"""Saved estimators without the rows that they learned from, and models whose numbers no fit writes."""

import numpy as np
import pytest
import torch

from forged import answers_of_forged, forge
from tables import QUICK
from torchmcl.io import read_checkpoint, write_checkpoint
from torchmcl_tables import DensityRegressor

RNG = np.random.default_rng(0)
X = RNG.normal(size=(150, 3))
Y = 100 * X[:, 0] + RNG.normal(size=150)


@pytest.fixture(scope="module")
def regressor():
    return DensityRegressor(**{**QUICK, "n_epochs": 3, "n_restarts": 1}).fit(X, Y)


def numbers_in(folder):
    """Return all numbers in the arrays of a saved model."""
    tensors = read_checkpoint(folder / "model.safetensors").tensors.values()
    return np.concatenate([tensor.double().numpy().ravel() for tensor in tensors])


def test_a_private_model_holds_no_row_and_answers_nearly_the_same(regressor, tmp_path):
    regressor.save(tmp_path / "plain")
    regressor.save(tmp_path / "private", private=True)
    targets = regressor._fitted.targets.scaler
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


BLEND = "fitted___fitted__$FittedDensity__predictive__$Blend__"
FORGERIES = [
    ({f"{BLEND}n_points": 10**8}, "must be an integer from 1 to 10,000"),
    ({f"{BLEND}n_points": "5"}, "must be an integer from 1 to 10,000"),
    ({"parameters__n_hypotheses": 10**8}, "must be an integer from 1 to 10,000"),
    ({f"{BLEND}factor": {"$float": "nan"}}, "the widths of a blend must be finite"),
    ({f"{BLEND}floor": 0.0}, "the widths of a blend must be finite and positive"),
    ({f"{BLEND}trim": 0.7}, r"the trim of a blend must lie in \[0, 0.5\)"),
    ({f"{BLEND}networks": []}, "must have networks for each encoder"),
]


@pytest.mark.parametrize(("values", "message"), FORGERIES)
def test_counts_and_numbers_that_no_fit_writes_are_refused_when_a_model_is_read(regressor, tmp_path, values, message):
    regressor.save(tmp_path / "model")
    forge(tmp_path / "model", **values)
    with pytest.raises(ValueError, match=message):
        DensityRegressor.load(tmp_path / "model")


ARRAYS = [
    ("forest.roots", lambda roots: np.resize(roots, 3_000_000), "forest.depths"),
    ("forest.values", lambda values: np.full_like(values, np.inf), None),
    ("predictive.weights", lambda weights: weights * np.nan, None),
    ("predictive.weights", lambda weights: weights * 3, None),
    ("targets.scaler.scale", lambda scale: scale * np.inf, None),
    ("targets.scaler.scale", lambda scale: scale * 0, None),
    ("encoders.0.scaler.mean", lambda mean: mean * np.nan, None),
    ("networks.0.0.head.linear.weight", lambda weight: weight * np.nan, None),
]


@pytest.mark.parametrize(("name", "change", "also"), ARRAYS)
def test_arrays_that_no_fit_writes_are_refused_when_a_model_is_read(regressor, tmp_path, name, change, also):
    regressor.save(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    kind, state, tensors, _ = read_checkpoint(path)
    chosen = [key for key in tensors if key.endswith(name) or (also and key.endswith(also))]
    assert chosen, sorted(tensors)
    for key in chosen:
        tensors[key] = torch.from_numpy(np.ascontiguousarray(change(tensors[key].numpy())))
    write_checkpoint(path, kind, state=state, tensors=tensors)
    with pytest.raises(ValueError, match="must be as `save` wrote it"):
        DensityRegressor.load(tmp_path / "model")


@pytest.mark.parametrize(("few_values", "n_bins"), [(False, 0), (True, 5)])
def test_arrays_that_do_not_fit_are_refused_and_others_give_numbers(tmp_path, few_values, n_bins):
    settings = {**QUICK, "n_epochs": 1, "n_restarts": 1, "hidden": (4,), "n_bins": n_bins}
    DensityRegressor(**settings).fit(X.round(1), Y.round(-2) if few_values else Y).save(tmp_path)
    answers = answers_of_forged(DensityRegressor, tmp_path, X[:3])
    for change, (mean, (values, _)) in answers.items():
        assert np.isfinite(mean).all(), change
        assert np.isfinite(values).all(), change
    assert not [name for name, _ in answers if "encoders" in name or "stretches" in name]
