"""Exported estimators give the answers of the estimator, without torch."""

import subprocess
import sys

import numpy as np
import pytest

from onnx_models import check_means_of_cells, check_same, check_same_points, check_same_sets, run
from torchmcl_tables.mcl import MCLClassifier, MCLRegressor

pytest.importorskip("onnx")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(160, 3))
X[RNG.random(X.shape) < 0.1] = np.nan
X[:, 2] = X[:, 2].round()
SIDES = np.where(RNG.random(160) < 0.5, 1, -1)
Y = 10 + 3 * SIDES * np.nan_to_num(X[:, 0]) + 0.2 * RNG.normal(size=160)
# Rows with nothing known, and far from all others.
AWKWARD = np.vstack([X[:30], np.full((1, 3), np.nan), [[50.0, -50.0, 0.0]]])
SMALL = {"n_epochs": 8, "hidden": (8,), "random_state": 0}
REGRESSORS = {
    "one network": (MCLRegressor(n_restarts=1, **SMALL), Y),
    "bins": (MCLRegressor(n_restarts=1, n_bins=8, **SMALL), Y),
    "two outputs": (MCLRegressor(n_restarts=1, **SMALL), np.stack([Y, -2 * Y + np.nan_to_num(X[:, 2])], axis=1)),
    "several networks": (MCLRegressor(n_restarts=3, **SMALL), Y),
}


@pytest.fixture(scope="module", params=REGRESSORS)
def regressor(request, tmp_path_factory):
    model, y = REGRESSORS[request.param]
    model.fit(X, y)
    return model, model.export(tmp_path_factory.mktemp("model") / "model.onnx")


@pytest.mark.parametrize("rows", [slice(0, 1), slice(0, 32), slice(29, 32)], ids=["one row", "all", "awkward"])
def test_means_are_those_of_the_regressor(regressor, rows):
    model, path = regressor
    check_same(run(path, {"X": AWKWARD[rows]}, ["mean"])["mean"], model.predict(AWKWARD[rows]))


def test_no_rows_have_no_answers(regressor):
    model, path = regressor
    found = run(path, {"X": X[:0]})
    assert found["mean"].shape == model.predict(X[:1])[:0].shape
    assert {len(part) for part in found.values()} == {0}


def test_rows_far_from_all_others_have_the_same_answers(regressor):
    model, path = regressor
    rows = np.array([[1e9, 0.0, 1.0], [1e300, np.nan, -1e12], [0.0, 1e5, 0.0]])
    found, expected = run(path, {"X": rows}), model.predict_hypotheses(rows)
    check_same(found["mean"], model.predict(rows))
    if len(model.modules_) == 1:
        check_same(found["hypotheses"], expected.values)
        assert np.isfinite(model.predict_interval(rows).hull).all()


def test_single_precision_columns_have_the_same_answers(regressor):
    model, path = regressor
    narrow = AWKWARD.astype(np.float32)
    check_same(run(path, {"X": narrow.astype(np.float64)}, ["mean"])["mean"], model.predict(narrow))


def test_hypotheses_are_those_of_the_networks_or_the_means_of_their_cells(regressor):
    model, path = regressor
    found, expected = run(path, {"X": X[:40]}), model.predict_hypotheses(X[:40])
    assert found["hypotheses"].shape == expected.values.shape
    if len(model.modules_) == 1:
        check_same(found["hypotheses"], expected.values)
        check_same(found["probabilities"], expected.probabilities)
        return
    wanted = expected.values[..., 0], expected.probabilities
    check_same_points((found["hypotheses"][..., 0], found["probabilities"]), wanted, share=1.0)
    predictive = model._answers.predictive
    values, shares = (part.numpy() for part in predictive._hypotheses(X[:40]))
    widths = predictive.bandwidth(*predictive._hypotheses(X[:40]))[..., 0].numpy() * np.ones_like(shares)
    points = (found["hypotheses"] - predictive.targets.scaler.mean) / predictive.targets.scaler.scale
    inside = (np.abs(points[..., 0]) < np.abs(predictive.targets.bounded(predictive.means(X[:40]) + 99).numpy())).all(1)
    kernels = [part[inside] for part in (values[..., 0], shares, widths)]
    check_means_of_cells(points[inside, :, 0], found["probabilities"][inside], kernels)


@pytest.mark.parametrize("n_rows", [1, 77, 1000])
def test_sets_are_those_of_the_model(regressor, n_rows):
    model, path = regressor
    rows = np.tile(X, (7, 1))[:n_rows] + np.linspace(0, 1, n_rows)[:, None]
    found, expected = run(path, {"X": rows}, ["lower", "upper"]), model.predict_interval(rows)
    if len(model.modules_) == 1:
        check_same_sets(found, expected)
        return
    # Several networks may have other points, and kernels around those.
    hull, widths = expected.hull, expected.width
    off = np.abs(np.nanmin(found["lower"], axis=-1) - hull[0]) + np.abs(np.nanmax(found["upper"], axis=-1) - hull[1])
    assert np.median(off / widths) < 1e-3


@pytest.mark.parametrize("labels", [["a", "b", "c"], [3, 5, 9]], ids=["texts", "numbers"])
def test_probabilities_and_labels_are_those_of_the_classifier(labels, tmp_path):
    y = np.array(labels)[(X[:, 2] > 0).astype(int) + (Y > 10)]
    model = MCLClassifier(n_hypotheses=2, **SMALL).fit(X, y)
    path = model.export(tmp_path / "model.onnx")
    for rows in (AWKWARD[:1], AWKWARD):
        found = run(path, {"X": rows})
        check_same(found["probabilities"], model.predict_proba(rows))
        assert (found["label"] == model.predict(rows)).all()
        assert (found["hypotheses"] == model.predict_hypotheses(rows).values).all()
        check_same(found["hypothesis_probabilities"], model.predict_hypotheses(rows).probabilities)


def test_too_few_calibrating_rows_give_the_whole_line(tmp_path):
    model = MCLRegressor(n_restarts=1, **SMALL).fit(X, Y)
    found = run(model.export(tmp_path / "model.onnx", coverage=0.999), {"X": X[:3]})
    assert np.isneginf(found["lower"]).all()
    assert np.isposinf(found["upper"]).all()
    assert found["lower"].shape == (3, 1)


def test_an_exported_model_needs_onnxruntime_and_numpy_only(regressor):
    _, path = regressor
    program = (
        "import sys; sys.modules |= dict.fromkeys(['torch', 'torchmcl', 'sklearn', 'scipy', 'onnx'])\n"
        "import numpy, onnxruntime\n"
        f"found = onnxruntime.InferenceSession({str(path)!r}).run(['mean'], {{'X': numpy.zeros((2, 3))}})\n"
        "assert numpy.isfinite(found[0]).all()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("model.pt2", {}, r"MCLRegressor.export: `path` must end with .onnx, got 'model.pt2'"),
        ("model.onnx", {"coverage": 1.5}, r"MCLRegressor.export: `coverage` must lie in \(0, 1\), got 1.5"),
    ],
)
def test_bad_arguments_of_export_are_named(path, options, message):
    with pytest.raises(ValueError, match=message):
        MCLRegressor(n_restarts=1, **SMALL).fit(X, Y).export(path, **options)


def test_of_several_networks_with_several_outputs_the_mean_can_be_exported(tmp_path):
    model = MCLRegressor(n_restarts=2, **SMALL).fit(X, np.stack([Y, -Y], axis=1))
    found = run(model.export(tmp_path / "model.onnx", outputs=["mean"]), {"X": AWKWARD})
    check_same(found["mean"], model.predict(AWKWARD))
    with pytest.raises(ValueError, match=r"MCLRegressor.export: `outputs` must be some of mean .*, got None. Pass"):
        model.export(tmp_path / "model.onnx")
