"""Data frames of pandas, polars and Arrow, as they are."""

import copy
import datetime
import functools
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.pipeline import make_pipeline

from tables import QUICK
from torchmcl_tables import DensityRegressor, MCLClassifier, TableEncoder

FAST = {**QUICK, "n_epochs": 4, "n_restarts": 1, "n_bins": 0}
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
    pytest.importorskip("pyarrow")
    return polars_frame().to_arrow()


FRAMES = [pandas_frame, polars_frame, arrow_table]


@functools.cache
def fitted(frame, n_outputs=1):
    """Return a model of a frame."""
    y = pd.DataFrame({f"price{k}": PRICE * (k + 1) for k in range(n_outputs)})
    return DensityRegressor(**FAST).fit(frame(), y.iloc[:, 0] if n_outputs == 1 else y)


@pytest.mark.parametrize("frame", FRAMES)
def test_frames_are_taken_as_they_are(frame, tmp_path):
    X, model = frame(), fitted(frame)
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


def test_missing_numbers_are_told_to_the_regressor():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 2))
    y = rng.choice([-5.0, 5.0], size=300)
    X[y > 0, 1] = np.nan
    model = DensityRegressor(**{**QUICK, "n_epochs": 60}).fit(X, y)
    assert np.abs(model.predict(X) - y).mean() < 2.5  # 5 without


def test_all_that_is_wrong_with_a_frame_is_in_one_message():
    other = pandas_frame().rename(columns={"town": "Town"}).drop(columns="rooms").assign(area="wide")
    with pytest.raises(ValueError, match=r"(?s)X has 3 problems:.*'area'.*'wide'.*'rooms'.*Rename 'Town' to 'town'"):
        fitted(pandas_frame).predict(other)
    useless = pd.DataFrame({"a": ["x"] * N, "b": [f"name {i}" for i in range(N)]})
    with pytest.raises(ValueError, match=r"(?s)besides the targets.*'a' is dropped.*'b' is dropped.*ColumnTran"):
        DensityRegressor(**FAST).fit(useless, PRICE)


@pytest.mark.parametrize("frame", FRAMES)
def test_an_encoder_makes_numbers_of_frames_for_other_estimators(frame):
    quick = {**QUICK, "n_epochs": 4, "n_restarts": 1}
    model = make_pipeline(TableEncoder(), MCLClassifier(**quick)).fit(frame(), PRICE > 300)
    np.testing.assert_array_equal(model.predict_proba(polars_frame()), model.predict_proba(frame()))
    assert {column.name: column.kind for column in model[0].schema_.columns}["town"] == "category"
    assert len(model[0].get_feature_names_out()) == model[1].n_features_in_
    with pytest.raises(TypeError, match="TableEncoder: `X` must be a data frame, got ndarray"):
        TableEncoder().fit(np.zeros((3, 2)))


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("n_outputs", [1, 2])
def test_results_are_frames_of_the_library_of_x(frame, n_outputs):
    X, model = frame(), fitted(frame, n_outputs)
    answers, sets = model.predict_hypotheses(X), model.predict_interval(X, 0.5)
    found, ends = answers.to_frame(), sets.to_frame()
    library = pd.DataFrame if frame is arrow_table else type(X)
    assert type(found) is type(ends) is library
    names = list(found.columns)
    assert names == model.get_feature_names_out().tolist()
    assert names[n_outputs] == "price0_hypothesis1"
    for place in range(n_outputs):
        column = np.asarray(found[f"price{place}_hypothesis1"])
        np.testing.assert_array_equal(column, answers.values[:, 1, place])
    assert list(ends.columns) == [f"price{k}_{end}" for k in range(n_outputs) for end in ("lower", "upper", "pieces")]
    lower = np.asarray(ends[f"price{n_outputs - 1}_lower"])
    np.testing.assert_array_equal(lower, sets.hull[0].reshape(len(lower), -1)[:, -1])


def test_frames_of_pandas_keep_their_index_and_arrays_get_a_new_one():
    X = pandas_frame().set_index(np.arange(len(PRICE))[::-1] * 10)
    model = fitted(pandas_frame)
    assert model.predict_hypotheses(X[:3]).to_frame().index.equals(X.index[:3])
    assert model.predict_interval(X[:3]).to_frame().index.equals(X.index[:3])
    numbers = np.linspace(0, 1, len(PRICE))[:, None]
    table = DensityRegressor(**FAST).fit(numbers, PRICE).predict_hypotheses(numbers[:2]).to_frame()
    assert isinstance(table, pd.DataFrame)
    assert table.index.tolist() == [0, 1]


def test_labels_survive_pickle_and_change_no_unpacking():
    answers = fitted(pandas_frame).predict_hypotheses(pandas_frame())
    values, probabilities = pickle.loads(pickle.dumps(answers))
    assert values.shape[:2] == probabilities.shape
    assert pickle.loads(pickle.dumps(answers)).to_frame().equals(answers.to_frame())
    assert copy.deepcopy(answers).to_frame().equals(answers.to_frame())


def test_a_shared_model_gives_the_same_answers(tmp_path):
    model, X = fitted(pandas_frame), pandas_frame()
    model.save_pretrained(tmp_path)
    np.testing.assert_array_equal(DensityRegressor.from_pretrained(tmp_path).predict(X), model.predict(X))


def test_classes_are_frames_too():
    X = pd.DataFrame({"a": np.arange(80.0), "b": np.arange(80.0) % 7}, index=range(5, 85))
    model = MCLClassifier(**{**QUICK, "n_epochs": 4}, n_hypotheses=2, n_restarts=1).fit(X, np.arange(80) % 3)
    found = model.predict_hypotheses(X[:4])
    frame = found.to_frame()
    assert frame.columns.tolist() == ["class0", "class1", "probability0", "probability1"]
    assert frame.index.equals(X.index[:4])
    np.testing.assert_array_equal(frame[["class0", "class1"]], found.values)
