"""Exported estimators compute the means and probabilities of the estimator without torch."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from torchmcl_tables import DensityRegressor, MCLClassifier, MCLRegressor

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
N = 160
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3))
X[RNG.random(X.shape) < 0.1] = np.nan
X[:, 2] = X[:, 2].round()
Y = 10 + 3 * np.where(RNG.random(N) < 0.5, 1, -1) * np.nan_to_num(X[:, 0]) + 0.2 * RNG.normal(size=N)
# Ordinary rows, a row of missing values, and rows far from all others.
ROWS = np.vstack([X[:30], np.full((1, 3), np.nan), [[50.0, -50.0, 0.0], [1e9, 0.0, 1.0], [1e300, np.nan, -1e12]]])
FRAME = pd.DataFrame(
    {
        "size": RNG.normal(size=N),
        "age": np.where(RNG.random(N) < 0.1, np.nan, RNG.uniform(0, 50, N)),
        "city": RNG.choice(["Ulm", "Bonn", "Köln"], N),
        "built": pd.Timestamp("1951-01-01") + pd.to_timedelta(RNG.integers(0, 25_000 * 24, N), unit="h"),
        "heated": RNG.random(N) < 0.5,
        "kind": RNG.choice(["a", "b", None], N),
    }
)
SHORT = {"n_epochs": 5, "hidden": (8,), "random_state": 0}
REGRESSORS = {
    "one network": (MCLRegressor(n_restarts=1, **SHORT), Y),
    "networks with bins, two outputs": (MCLRegressor(n_restarts=2, n_bins=8, **SHORT), np.stack([Y, -Y], axis=1)),
    "blend": (DensityRegressor(n_restarts=2, **SHORT), Y),
    "blend of two outputs": (DensityRegressor(n_restarts=1, **SHORT), np.stack([Y, X[:, 0] * 0 + Y**2], axis=1)),
    "blend of few values": (DensityRegressor(n_restarts=1, **SHORT), np.clip(np.round(Y / 3), 1, 5)),
}


def run(path, feeds):
    session = onnxruntime.InferenceSession(path)
    return dict(zip([each.name for each in session.get_outputs()], session.run(None, feeds), strict=True))


def check_same(result, expected):
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5 * np.nanstd(expected))


@pytest.mark.parametrize("name", REGRESSORS)
def test_means_are_those_of_the_regressor(name, tmp_path):
    model, y = REGRESSORS[name]
    y = np.nan_to_num(y, nan=1.0)
    outputs = run(model.fit(X, y).export(tmp_path / "model.onnx"), {"X": ROWS})
    check_same(outputs["mean"], model.predict(ROWS))
    if name == "one network":
        expected = model.predict_hypotheses(ROWS)
        check_same(outputs["hypotheses"], expected.values)
        check_same(outputs["probabilities"], expected.probabilities)
        program = (
            "import sys; sys.modules |= dict.fromkeys(['torch', 'torchmcl', 'sklearn', 'scipy', 'onnx'])\n"
            "import numpy, onnxruntime\n"
            f"session = onnxruntime.InferenceSession({str(tmp_path / 'model.onnx')!r})\n"
            "assert numpy.isfinite(session.run(['mean'], {'X': numpy.zeros((1, 3))})[0]).all()"
        )
        subprocess.run([sys.executable, "-c", program], check=True)


def test_columns_of_a_data_frame_are_inputs(tmp_path):
    model = DensityRegressor(n_restarts=1, **SHORT).fit(FRAME, Y)
    rows = FRAME.head(30).copy()  # with an unseen category, missing values of every kind, and a leap day
    rows.loc[0, "city"], rows.loc[1, "kind"], rows.loc[2, "city"] = "Rom", "z", None
    rows.loc[3, "built"], rows.loc[4, "size"], rows.loc[5, "built"] = pd.NaT, np.nan, pd.Timestamp("2024-02-29 23:00")
    dates = rows["built"].to_numpy().astype("datetime64[us]")
    feeds = {
        "size": rows["size"].to_numpy(float),
        "age": rows["age"].to_numpy(float),
        "city": rows["city"].fillna("").to_numpy(object),
        "built": np.where(np.isnat(dates), np.nan, dates.astype(np.int64) / 86_400e6),
        "heated": np.where(rows["heated"], "true", "false").astype(object),
        "kind": rows["kind"].fillna("").to_numpy(object),
    }
    check_same(run(model.export(tmp_path / "model.onnx"), feeds)["mean"], model.predict(rows))


def test_probabilities_are_those_of_the_classifier(tmp_path):
    model = MCLClassifier(n_hypotheses=2, **SHORT).fit(
        X, np.array(["a", "b", "c"])[(X[:, 2] > 0).astype(int) + (Y > 10)]
    )
    outputs = run(model.export(tmp_path / "model.onnx"), {"X": ROWS})
    check_same(outputs["probabilities"], model.predict_proba(ROWS))


def test_another_suffix_is_rejected(tmp_path):
    with pytest.raises(ValueError, match=r"MCLRegressor.export: `path` must end with .onnx, got 'model.pt2'"):
        MCLRegressor(n_restarts=1, **SHORT).fit(X, Y).export("model.pt2")
