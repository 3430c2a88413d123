"""Saved estimators come back the same, and folders that are something else are named."""

import numpy as np
import pytest
import torch

import torchmcl as mcl
from forged import answers_of_forged
from tables import QUICK, forked, two_outputs
from torchmcl.io import write_checkpoint
from torchmcl.schedules import JoinedSchedule
from torchmcl_tables import Cooling, DensityRegressor, MCLClassifier, MCLRegressor

SHORT = {**QUICK, "n_epochs": 5}


@pytest.fixture
def model():
    return MCLRegressor(**SHORT).fit(*forked(100))


def assert_same_answers(one, two, X):
    np.testing.assert_array_equal(one.predict(X), two.predict(X))
    np.testing.assert_array_equal(one.transform(X), two.transform(X))
    np.testing.assert_array_equal(one.predict_interval(X).lower, two.predict_interval(X).lower)
    np.testing.assert_array_equal(one.sample(X, 3, random_state=0), two.sample(X, 3, random_state=0))


def test_a_saved_model_answers_alike(model, tmp_path):
    X, _ = forked(20, seed=1)
    model.save(tmp_path / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["model.safetensors"]
    again = MCLRegressor.load(tmp_path / "model")
    assert again.get_params() == model.get_params()
    assert_same_answers(again, model, X)


@pytest.mark.parametrize(
    "parameters",
    [
        {"rule": mcl.annealed(mcl.AnnealedWTA, temperature=mcl.CutoffAt(mcl.Linear(1.0, 0.0, 5), 4))},
        {
            "rule": mcl.RelaxedWTA(0.2),
            "learning_rate": JoinedSchedule((mcl.Constant(0.1), mcl.Constant(0.01)), (3,)),
        },
        {"rule": Cooling(), "n_restarts": 2, "ensemble": True},
        {"n_restarts": 2, "n_bins": 7, "keep_best": False},
        {"ensemble": False, "n_restarts": 2, "validation_fraction": 0.0},
        {"random_state": np.random.RandomState(0), "n_hypotheses": np.int64(3), "hidden": []},
    ],
)
def test_parameters_of_all_kinds_are_kept(parameters, tmp_path):
    X, Y = two_outputs(60)
    fitted = MCLRegressor(**{**SHORT, **parameters}).fit(X, Y)
    fitted.save(tmp_path / "model")
    again = MCLRegressor.load(tmp_path / "model")
    for name, value in parameters.items():
        assert getattr(again, name) == (None if name == "random_state" else value)
    assert_same_answers(again, fitted, X)


def test_a_loaded_model_learns_on_as_the_saved_one(tmp_path):
    X, y = forked(100)
    fitted = MCLRegressor(**SHORT).partial_fit(X, y).partial_fit(X, y)
    fitted.save(tmp_path / "model")
    again = MCLRegressor.load(tmp_path / "model")
    assert_same_answers(again.partial_fit(X, y), fitted.partial_fit(X, y), X)


def test_names_of_columns_are_kept(tmp_path):
    pandas = pytest.importorskip("pandas")
    X, y = forked(60)
    table = pandas.DataFrame(X, columns=["größe", "b"])
    fitted = MCLRegressor(**SHORT).fit(table, pandas.Series(y, name="price"))
    fitted.save(tmp_path / "model")
    again = MCLRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(table), fitted.predict(table))
    assert again.target_names_.tolist() == ["price"]


def test_a_saved_model_is_replaced_and_other_things_are_not(model, tmp_path):
    model.save(tmp_path / "model")
    other = MCLRegressor(**{**SHORT, "random_state": 5}).fit(*forked(100))
    other.save(tmp_path / "model")
    X, _ = forked(20, seed=1)
    assert_same_answers(MCLRegressor.load(tmp_path / "model"), other, X)
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("dear")
    with pytest.raises(ValueError, match="`folder` must be new, empty or contain a model"):
        model.save(tmp_path / "letters")
    assert (tmp_path / "letters" / "dear.txt").read_text() == "dear"


def test_nothing_is_left_when_writing_fails(model, tmp_path, monkeypatch):
    model.save(tmp_path / "model")

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        MCLRegressor(**{**SHORT, "random_state": 5}).fit(*forked(100)).save(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    X, _ = forked(20, seed=1)
    assert_same_answers(MCLRegressor.load(tmp_path / "model"), model, X)


def test_what_json_cannot_hold_is_named(tmp_path):
    fitted = MCLRegressor(**{**SHORT, "rule": lambda epoch: mcl.WTA()}).fit(*forked(60))
    with pytest.raises(ValueError, match=r"MCLRegressor.save: .*torchmcl's own rules.*`parameters.rule`"):
        fitted.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_folders_without_a_model_are_refused(model, tmp_path):
    with pytest.raises(ValueError, match=r"MCLRegressor.load: `folder` must be a folder that `save` wrote.*not exist"):
        MCLRegressor.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"MCLRegressor.load: `folder` must be .* has no model.safetensors"):
        MCLRegressor.load(tmp_path)
    folder = tmp_path / "model"
    model.save(folder)
    with pytest.raises(ValueError, match=r"MCLClassifier.load: `folder` must hold a saved MCLClassifier, got 'MCLReg"):
        MCLClassifier.load(folder)
    write_checkpoint(folder / "model.safetensors", "torchmcl other", state={}, tensors={})
    with pytest.raises(ValueError, match="must be of kind 'torchmcl estimator', got 'torchmcl other'"):
        MCLRegressor.load(folder)


def test_a_changed_file_is_detected(model, tmp_path):
    model.save(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 16
    path.write_bytes(data)
    message = r"MCLRegressor.load: `folder` must contain what `save` wrote, got .*changed since it was written"
    with pytest.raises(ValueError, match=message):
        MCLRegressor.load(tmp_path / "model")


@pytest.mark.parametrize("kind", [MCLRegressor, DensityRegressor, MCLClassifier])
def test_networks_have_single_precision_whatever_the_default_dtype(kind, tmp_path):
    X, y = forked(60)
    try:
        torch.set_default_dtype(torch.bfloat16)
        model = kind(**SHORT).fit(X, y > 0 if kind is MCLClassifier else y)
        model.save(tmp_path / "model")
        again = kind.load(tmp_path / "model")
    finally:
        torch.set_default_dtype(torch.float32)
    predictions = [each.predict_proba(X) if kind is MCLClassifier else each.predict(X) for each in (model, again)]
    np.testing.assert_array_equal(*predictions)


@pytest.mark.parametrize("kind", [MCLRegressor, MCLClassifier])
def test_a_fit_that_was_saved_is_not_repeated_and_another_one_is_refused(kind, tmp_path):
    X, y = forked(60)
    y = y > 0 if kind is MCLClassifier else y
    whole = kind(**SHORT).fit(X, y)
    saved = kind(**SHORT).fit(X, y, checkpoint=tmp_path)
    plans = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("plan.json"))
    runs = {"encoder-0/plan.json", "encoder-1/plan.json"}  # and all rows with the better encoder
    assert plans == ["plan.json"] if kind is MCLClassifier else runs < set(plans) and len(plans) == 3
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    again = kind(**SHORT).fit(X, y, checkpoint=tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == times
    for model in (saved, again):
        np.testing.assert_array_equal(model.predict(X), whole.predict(X))
    with pytest.raises(ValueError, match=r"Fleet.fit: `checkpoint` must be empty or contain this training run"):
        kind(**{**SHORT, "random_state": 5}).fit(X, y, checkpoint=tmp_path)


@pytest.mark.parametrize("kind", [MCLRegressor, MCLClassifier])
def test_arrays_that_do_not_fit_are_refused_and_others_give_numbers(kind, tmp_path):
    X, y = forked(60)
    X = X.round(1)
    X[::7, 0] = np.nan
    kind(**{**QUICK, "n_epochs": 1, "n_restarts": 1, "n_bins": 4}).fit(X, y if kind is MCLRegressor else y > 0).save(
        tmp_path
    )
    answers = answers_of_forged(kind, tmp_path, X[:5])
    for change, (mean, (values, _)) in answers.items():
        assert np.isfinite(np.asarray(mean, dtype=float)).all(), change
        assert np.isfinite(np.asarray(values, dtype=float)).all(), change
    assert not [name for name, _ in answers if "encoder" in name or "modules" in name]


def test_another_kind_of_model_is_refused(tmp_path):
    mcl.MultiHypothesisMLP(2, 1, 3).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"MCLRegressor.load: `folder` must contain what `save` wrote"):
        MCLRegressor.from_pretrained(tmp_path)
