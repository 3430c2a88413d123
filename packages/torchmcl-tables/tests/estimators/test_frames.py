"""Data frames of pandas, polars and Arrow, as they are."""

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.pipeline import make_pipeline

from tables import QUICK
from torchmcl.sklearn import MCLClassifier
from torchmcl_tables import DensityRegressor, TableEncoder

FAST = {**QUICK, "n_epochs": 4, "n_restarts": 2}
N = 80
RANDOM = np.random.default_rng(0)
DAYS = [datetime.date(2024, 1, 1) + datetime.timedelta(days=7 * i) for i in range(N)]
TOWNS = [("Ulm", "Bonn", None, "Jena")[i % 4] for i in range(N)]
AREAS = [None if i % 9 == 0 else float(a) for i, a in enumerate(RANDOM.normal(100, 20, N))]
PRICE = RANDOM.normal(300, 40, N)


def pandas_frame():
    return pd.DataFrame(
        {
            "area": AREAS,
            "rooms": pd.array([None if i % 7 == 0 else i % 5 for i in range(N)], dtype="Int64"),
            "town": pd.Categorical(TOWNS),
            "sold": pd.to_datetime(DAYS),
            "pool": [i % 3 == 0 for i in range(N)],
            "mixed": [4 if i % 2 else "r" for i in range(N)],
        }
    )


def polars_frame():
    return pl.DataFrame(
        {
            "area": AREAS,
            "rooms": [None if i % 7 == 0 else i % 5 for i in range(N)],
            "town": pl.Series(TOWNS, dtype=pl.Categorical),
            "sold": DAYS,
            "pool": [i % 3 == 0 for i in range(N)],
            "mixed": ["4" if i % 2 else "r" for i in range(N)],
        }
    )


def arrow_table():
    return polars_frame().to_arrow()


@pytest.mark.parametrize("frame", [pandas_frame, polars_frame, arrow_table])
def test_frames_are_taken_as_they_are(frame, tmp_path):
    X, y = frame(), PRICE
    model = DensityRegressor(**FAST).fit(X, y)
    kinds = {column.name: column.kind for column in model.schema_.columns}
    assert kinds["area"] == kinds["rooms"] == "number"
    assert kinds["town"] == kinds["mixed"] == "category"
    assert kinds["sold"] == "date"
    assert model.n_features_in_ == 6
    assert model.feature_names_in_.tolist() == ["area", "rooms", "town", "sold", "pool", "mixed"]
    answers = model.predict(X)
    model.save(tmp_path / "model")
    again = DensityRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(X), answers)
    # A frame of another package with the same cells, in another order.
    other = polars_frame().select("mixed", "town", "sold", "pool", "area", "rooms")
    np.testing.assert_array_equal(again.predict(other), answers)


@pytest.mark.parametrize("frame", [pandas_frame, polars_frame])
def test_frames_of_numbers_with_gaps_are_arrays(frame):
    X = frame()[["area", "rooms"]]
    model = DensityRegressor(**FAST).fit(X, PRICE)
    assert not hasattr(model, "schema_")
    assert model.feature_names_in_.tolist() == ["area", "rooms"]
    array = np.array(
        [[np.nan if cell is None else cell for cell in row] for row in polars_frame()["area", "rooms"].rows()]
    )
    same = DensityRegressor(**FAST).fit(array, PRICE)
    np.testing.assert_array_equal(model.predict(X), same.predict(array))


def test_arrow_tables_of_numbers_are_arrays():
    X = polars_frame().select("area", "rooms").to_arrow()
    model = DensityRegressor(**FAST).fit(X, PRICE)
    assert not hasattr(model, "schema_")
    assert model.predict(X).shape == (N,)


def test_missing_numbers_are_told_to_the_regressor():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 2))
    y = rng.choice([-5.0, 5.0], size=300)
    X[y > 0, 1] = np.nan
    model = DensityRegressor(**{**QUICK, "n_epochs": 60}).fit(X, y)
    assert np.abs(model.predict(X) - y).mean() < 2.5  # 5 without


def test_another_fit_forgets_the_frame():
    model = DensityRegressor(**FAST).fit(pandas_frame(), PRICE)
    with pytest.raises(
        ValueError, match=r"DensityRegressor: `X` must be a data frame with the columns 'area', .*ndarray"
    ):
        model.predict(np.zeros((2, 6)))
    model.fit(RANDOM.normal(size=(N, 2)), PRICE)
    assert not hasattr(model, "schema_")
    assert not hasattr(model, "feature_names_in_")


def test_all_that_is_wrong_with_a_frame_is_in_one_message():
    model = DensityRegressor(**FAST).fit(pandas_frame(), PRICE)
    other = pandas_frame().rename(columns={"town": "Town"}).drop(columns="rooms").assign(area="wide")
    with pytest.raises(ValueError, match=r"(?s)X has 3 problems:.*'area'.*'wide'.*'rooms'.*Rename 'Town' to 'town'"):
        model.predict(other)
    useless = pd.DataFrame({"a": ["x"] * N, "b": [f"name {i}" for i in range(N)]})
    with pytest.raises(ValueError, match=r"(?s)besides the targets.*'a' is dropped.*'b' is dropped.*ColumnTran"):
        DensityRegressor(**FAST).fit(useless, PRICE)


@pytest.mark.parametrize("frame", [pandas_frame, polars_frame, arrow_table])
def test_an_encoder_makes_numbers_of_frames_for_other_estimators(frame):
    model = make_pipeline(TableEncoder(), MCLClassifier(**FAST)).fit(frame(), PRICE > 300)
    np.testing.assert_array_equal(model.predict_proba(polars_frame()), model.predict_proba(frame()))
    assert {column.name: column.kind for column in model[0].schema_.columns}["town"] == "category"
    assert len(model[0].get_feature_names_out()) == model[1].n_features_in_
    with pytest.raises(TypeError, match="TableEncoder: `X` must be a data frame, got ndarray"):
        TableEncoder().fit(np.zeros((3, 2)))
