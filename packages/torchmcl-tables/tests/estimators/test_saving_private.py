"""Saved estimators: what they tell of the rows, and files that were written by others."""

import numpy as np
import pytest
import torch

from forged import forge
from tables import QUICK
from torchmcl.persistence import read_checkpoint, write_checkpoint
from torchmcl_tables.estimators import MCLClassifier, MCLRegressor, load_estimator

RNG = np.random.default_rng(0)
X = RNG.normal(size=(150, 3))
Y = 100 * X[:, 0] + RNG.normal(size=150)


@pytest.fixture(scope="module")
def regressor():
    return MCLRegressor(**{**QUICK, "n_epochs": 3}).fit(X, Y)


def numbers_in(folder):
    """Return all numbers in the arrays of a saved model."""
    tensors = read_checkpoint(folder / "model.safetensors").tensors.values()
    return np.concatenate([tensor.double().numpy().ravel() for tensor in tensors])


def test_a_private_model_holds_no_row_and_answers_nearly_the_same(regressor, tmp_path):
    regressor.save(tmp_path / "plain")
    regressor.save(tmp_path / "private", private=True)
    targets = regressor._targets
    units = (Y - targets.mean[0]) / targets.scale[0]
    leaves = numbers_in(tmp_path / "plain")
    assert np.isclose(units[:, None], leaves[None], atol=1e-9).any(axis=1).mean() > 0.8  # the need for it
    kept = numbers_in(tmp_path / "private")
    for values in (Y, units):
        assert np.isclose(values[:, None], kept[None], rtol=0, atol=1e-9).any(axis=1).mean() < 0.02
    assert not any("_held_out" in name for name in read_checkpoint(tmp_path / "private" / "model.safetensors").tensors)
    answers = load_estimator(tmp_path / "private").predict(X)
    assert np.corrcoef(answers, regressor.predict(X))[0, 1] > 0.95
    np.testing.assert_array_equal(load_estimator(tmp_path / "plain").predict(X), regressor.predict(X))
    assert load_estimator(tmp_path / "private").predict_interval(X[:3]).lower.shape[0] == 3


@pytest.mark.parametrize("kind", [MCLRegressor, MCLClassifier])
def test_private_models_with_a_rule_and_of_classes_can_be_saved(kind, tmp_path):
    y = Y if kind is MCLRegressor else (Y > 0).astype(int)
    model = kind(**{**QUICK, "n_epochs": 3, "rule": "annealed"}).fit(X, y)
    model.save(tmp_path / "model", private=True)
    assert np.array_equal(load_estimator(tmp_path / "model").predict(X), model.predict(X))


FORGERIES = [
    ({"fitted___n_points": 10**8}, "_n_points.* must be an integer from 1 to 10,000"),
    ({"fitted___n_points": "5"}, "_n_points.* must be an integer"),
    ({"parameters__n_hypotheses": 10**8}, "n_hypotheses.* must be an integer from 1 to 10,000"),
    ({"fitted___blend__$Blend__factor": {"$float": "nan"}}, "the widths of a blend are not finite"),
    ({"fitted___blend__$Blend__floor": 0.0}, "the widths of a blend are not finite and positive"),
    ({"fitted___blend__$Blend__trim": 0.7}, "trim.* must lie in"),
    ({"fitted___blend__$Blend__n_networks": [1, 10**9]}, "another number of networks"),
]


@pytest.mark.parametrize(("values", "message"), FORGERIES)
def test_counts_and_numbers_that_no_fit_writes_are_refused_when_a_model_is_read(regressor, tmp_path, values, message):
    regressor.save(tmp_path / "model")
    forge(tmp_path / "model", **values)
    with pytest.raises(ValueError, match=message):
        load_estimator(tmp_path / "model")


ARRAYS = [
    ("_blend.forest.roots", lambda roots: np.resize(roots, 3_000_000), "depths"),
    ("_blend.forest.values", lambda values: np.full_like(values, np.inf), None),
    ("_blend.shares", lambda shares: shares * np.nan, None),
    ("_blend.shares", lambda shares: shares * 3, None),
    ("_targets.scale", lambda scale: scale * np.inf, None),
    ("_targets.scale", lambda scale: scale * 0, None),
    ("_inputs.mean", lambda mean: mean * np.nan, None),
    ("modules_.0.head.linear.weight", lambda weight: weight * np.nan, None),
]


@pytest.mark.parametrize(("name", "change", "also"), ARRAYS)
def test_arrays_that_no_fit_writes_are_refused_when_a_model_is_read(regressor, tmp_path, name, change, also):
    regressor.save(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    kind, state, tensors, _ = read_checkpoint(path)
    names = [key for key in tensors if key.startswith("fitted.") and name.rsplit(".", 1)[0] in key]
    chosen = [key for key in names if key.endswith(name.rsplit(".", 1)[1])][:1]
    assert chosen, sorted(tensors)
    chosen += [key for key in names if also and key.endswith(also)]
    for key in chosen:
        tensors[key] = torch.from_numpy(np.ascontiguousarray(change(tensors[key].numpy())))
    write_checkpoint(path, kind, state=state, tensors=tensors)
    with pytest.raises(ValueError, match="must be as `save` wrote it"):
        load_estimator(tmp_path / "model")
