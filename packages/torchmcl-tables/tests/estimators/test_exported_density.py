"""An exported DensityRegressor gives its answers, from columns of any kind."""

import numpy as np
import pandas as pd
import pytest
import torch

from onnx_models import check_means_of_cells, check_same, check_same_points, check_same_sets, run
from torchmcl_tables import DensityRegressor
from torchmcl_tables.estimators import exporting
from torchmcl_tables.estimators.kernels import Kernels
from torchmcl_tables.onnx.graph import Graph

pytest.importorskip("onnx")
N = 200
RNG = np.random.default_rng(0)
HOURS = pd.to_timedelta(RNG.integers(0, 25_000 * 24, N), unit="h")
FRAME = pd.DataFrame(
    {
        "size": RNG.normal(size=N),
        "age": np.where(RNG.random(N) < 0.1, np.nan, RNG.uniform(0, 50, N)),
        "city": RNG.choice(["Ulm", "Bonn", "Köln"], N),
        "built": pd.Timestamp("1951-01-01") + HOURS,
        "heated": RNG.random(N) < 0.5,
        "kind": RNG.choice(["a", "b", None], N),
    }
)
NOISY = np.where(RNG.random(N) < 0.5, 3, -3) * FRAME["size"] + FRAME["age"].fillna(9) / 20 + RNG.normal(size=N)
TARGETS = {"continuous": NOISY.to_numpy(), "few values": np.clip(np.round(NOISY.to_numpy() / 3) ** 3, -8, 8) + 0.1}


def feeds(frame):
    """Return the inputs of a file as a server without pandas would make them."""
    dates = frame["built"].to_numpy().astype("datetime64[us]")
    return {
        "size": frame["size"].to_numpy(float),
        "age": frame["age"].to_numpy(float),
        "city": frame["city"].fillna("").to_numpy(object),
        "built": np.where(np.isnat(dates), np.nan, dates.astype(np.int64) / 86_400e6),
        "heated": np.where(frame["heated"], "true", "false").astype(object),
        "kind": frame["kind"].fillna("").to_numpy(object),
    }


def awkward_rows():
    """Return rows with an unseen category, missing values of every kind, and a date of a leap year."""
    rows = FRAME.head(30).copy()
    rows.loc[0, "city"], rows.loc[1, "kind"], rows.loc[2, "city"] = "Rom", "z", None
    rows.loc[3, "built"], rows.loc[4, "size"], rows.loc[5, "built"] = pd.NaT, np.nan, pd.Timestamp("2024-02-29 23:00")
    return rows


@pytest.fixture(scope="module", params=TARGETS)
def exported(request, tmp_path_factory):
    model = DensityRegressor(n_epochs=5, hidden=(8,), n_restarts=2, random_state=0).fit(FRAME, TARGETS[request.param])
    return model, model.export(tmp_path_factory.mktemp("model") / "model.onnx")


@pytest.mark.parametrize("rows", [awkward_rows().head(1), awkward_rows(), awkward_rows().iloc[2:6]], ids=len)
def test_means_are_those_of_the_regressor(exported, rows):
    model, path = exported
    check_same(run(path, feeds(rows), ["mean"])["mean"], model.predict(rows))


def test_no_rows_have_no_answers(exported):
    _, path = exported
    found = run(path, feeds(FRAME.head(0)))
    assert {name: part.shape[0] for name, part in found.items()} == dict.fromkeys(found, 0)
    assert found["hypotheses"].shape == (0, 5, 1)


@pytest.mark.parametrize("n_outer", [1, 4, 12])
def test_trimmed_means_do_not_depend_on_how_many_kernels_are_sorted(tmp_path, n_outer):
    """With one kernel, each row has more in the trimmed share, and all are sorted."""
    values, shares = RNG.normal(size=(50, 12)), RNG.dirichlet(np.full(12, 0.3), 50)
    g = Graph("test")
    given = [g.input(name, np.float64, ["rows", 12]) for name in ("values", "shares")]
    members = exporting.Members(given[0].more(2), given[1], given[0].more(2), 12)
    g.output("mean", exporting._trimmed_means(g, members, 0.05, n_outer), ["rows", 1])
    g.save(tmp_path / "mean.onnx", {})
    found = run(tmp_path / "mean.onnx", {"values": values, "shares": shares})["mean"]
    ones = torch.ones(50, 12, 1, dtype=torch.float64)
    kernels = Kernels(torch.from_numpy(values).unsqueeze(-1), torch.from_numpy(shares), ones)
    np.testing.assert_allclose(found, kernels.trimmed(0.05).means().numpy(), atol=1e-9)


@pytest.mark.parametrize("far", [1e3, 1e9, -1e12, 1e300])
def test_rows_far_from_all_others_have_the_same_answers(tmp_path, far):
    X = FRAME[["size", "age"]].to_numpy()
    model = DensityRegressor(n_epochs=3, hidden=(8,), n_restarts=1, random_state=0).fit(X, TARGETS["continuous"])
    rows = np.array([[far, 1.0], [0.0, far], [far, np.nan]])
    for outputs in (["mean"], None):
        found = run(model.export(tmp_path / "model.onnx", outputs=outputs), {"X": rows})
        check_same(found["mean"], model.predict(rows))
    wanted = model.predict_hypotheses(rows)
    np.testing.assert_allclose(found["hypotheses"], wanted.values, rtol=1e-4, atol=1e-5 * np.ptp(wanted.values))
    np.testing.assert_allclose(found["probabilities"], wanted.probabilities, atol=1e-5)


@pytest.mark.parametrize("exported", ["few values"], indirect=True)
def test_answers_and_sets_of_a_target_with_few_values_are_the_same(exported):
    model, path = exported
    assert model._answers.predictive.values is not None
    rows = awkward_rows()
    found, answers, sets = run(path, feeds(rows)), model.predict_hypotheses(rows), model.predict_interval(rows)
    check_same(found["hypotheses"], answers.values)
    check_same(found["probabilities"], answers.probabilities)
    check_same(found["lower"], sets.lower)
    check_same(found["upper"], sets.upper)


@pytest.mark.parametrize("exported", ["continuous"], indirect=True)
def test_points_of_a_density_are_as_defined(exported):
    model, path = exported
    blend = model._answers.predictive
    assert blend.values is None
    rows = awkward_rows()
    found, numbers = run(path, feeds(rows)), model._numbers(rows)
    scaler = blend.targets.scaler
    kernels = [part.reshape(len(rows), -1).numpy() for part in blend.kernels(numbers, knowing=True)]
    points = ((found["hypotheses"] - scaler.mean) / scaler.scale)[..., 0]
    low, high = ((blend.targets.bounds - scaler.mean) / scaler.scale)[:, 0]
    free = ((points > low + 1e-9) & (points < high - 1e-9)).all(axis=1)
    check_means_of_cells(points[free], found["probabilities"][free], [kernels[place][free] for place in (0, 1, 2)])


@pytest.mark.parametrize("exported", ["continuous"], indirect=True)
def test_points_of_a_density_are_those_of_the_regressor(exported):
    model, path = exported
    found, expected = run(path, feeds(FRAME), ["hypotheses", "probabilities"]), model.predict_hypotheses(FRAME)
    wanted = expected.values[..., 0], expected.probabilities
    check_same_points((found["hypotheses"][..., 0], found["probabilities"]), wanted, share=0.99)


@pytest.mark.parametrize("exported", ["continuous"], indirect=True)
def test_a_file_of_means_holds_no_widths(exported, tmp_path):
    model, path = exported
    small = model.export(tmp_path / "mean.onnx", outputs=["mean"])
    assert small.stat().st_size < 0.9 * path.stat().st_size
    check_same(run(small, feeds(FRAME))["mean"], model.predict(FRAME))


def test_columns_that_say_nothing_make_trees_of_one_leaf(tmp_path):
    X, y = np.column_stack([np.ones(60), np.full(60, np.nan)]), RNG.normal(size=60)
    model = DensityRegressor(n_epochs=2, hidden=(4,), n_restarts=1, random_state=0).fit(X, y)
    found = run(model.export(tmp_path / "model.onnx"), {"X": X[:4]})
    check_same(found["mean"], model.predict(X[:4]))
    check_same_sets(found, model.predict_interval(X[:4]))


@pytest.mark.parametrize("exported", ["continuous"], indirect=True)
@pytest.mark.parametrize("n_rows", [1, 77, 400])
def test_sets_of_a_density_are_the_same(exported, n_rows):
    model, path = exported
    rows = pd.concat([awkward_rows()] * 34, ignore_index=True).head(n_rows)
    sizes = rows["size"] + np.linspace(0, 3, len(rows))
    rows = rows.assign(size=np.where(np.arange(len(rows)) % 9 == 8, 1e3, sizes))  # some are far from all others
    check_same_sets(run(path, feeds(rows), ["lower", "upper"]), model.predict_interval(rows))


@pytest.fixture(scope="module")
def of_two_outputs():
    X = FRAME[["size", "age"]].to_numpy()
    model = DensityRegressor(n_epochs=3, hidden=(8,), n_restarts=1, random_state=0)
    return X, model.fit(X, np.stack([TARGETS["continuous"], -2 * NOISY + FRAME["size"]], axis=1))


def test_means_and_sets_of_several_outputs_are_the_same(of_two_outputs, tmp_path):
    X, model = of_two_outputs
    found = run(model.export(tmp_path / "model.onnx", outputs=["mean", "lower", "upper"]), {"X": X})
    check_same(found["mean"], model.predict(X))
    check_same_sets(found, model.predict_interval(X))


@pytest.mark.parametrize("outputs", [None, ["mean", "hypotheses"]])
def test_points_of_several_outputs_cannot_be_exported(of_two_outputs, tmp_path, outputs):
    message = r"DensityRegressor.export: `outputs` must be some of mean, lower, upper .* 2 columns of y, got .*Pass"
    with pytest.raises(ValueError, match=message):
        of_two_outputs[1].export(tmp_path / "model.onnx", outputs=outputs)


def test_arrays_with_missing_numbers(tmp_path):
    X = FRAME[["size", "age"]].to_numpy()
    model = DensityRegressor(n_epochs=3, hidden=(8,), n_restarts=1, random_state=0).fit(X, TARGETS["continuous"])
    found = run(model.export(tmp_path / "model.onnx"), {"X": X[:20]}, ["mean"])
    check_same(found["mean"], model.predict(X[:20]))


def test_sets_of_narrow_kernels_at_the_same_place_have_their_mass(tmp_path):
    """Rounded targets have leaves with equal targets, whose kernels coincide."""
    rng = np.random.default_rng(1)
    X = np.stack([rng.normal(size=300), np.ones(300), rng.integers(0, 3, 300)], axis=1)
    model = DensityRegressor(n_epochs=8, random_state=0).fit(X, np.round(X[:, 0] + 0.3 * rng.normal(size=300)))
    found = run(model.export(tmp_path / "model.onnx"), {"X": X}, ["lower", "upper"])
    lengths = np.where(np.isfinite(found["lower"]), found["upper"] - found["lower"], 0.0)
    assert (lengths >= 0).all()
    expected = model.predict_interval(X)
    expected_lengths = np.where(np.isfinite(expected.lower), expected.upper - expected.lower, 0.0).sum(axis=1)
    assert (np.abs(lengths.sum(axis=1) - expected_lengths) < 0.01).mean() > 0.98
