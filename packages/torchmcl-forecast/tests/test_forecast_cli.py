"""`torchmcl forecast`: files and page are written, and bad input is named before anything is."""

import numpy as np
import pandas as pd
import pytest
from quick_sales import counted_steps, sales

from torchmcl.app import main
from torchmcl.app.report import html_report
from torchmcl.io import TrainingInterrupted
from torchmcl_forecast import Forecaster

QUICK = ["--steps", "2", "--quiet"]


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = sales(120, 2).rename(columns={"unique_id": "shop", "ds": "date", "y": "sold"})
    frame["shop"] = frame.shop + " <b>&"
    frame["sold"] += 1e9  # a large level costs no digits
    frame.to_csv("sales.csv", index=False)
    return [
        "forecast",
        "sales.csv",
        "--time",
        "date",
        "--value",
        "sold",
        "--series",
        "shop",
        "--horizon",
        "7",
        "-o",
        "out",
    ]


def test_futures_quantiles_page_and_model_are_written(table, tmp_path):
    assert main([*table, *QUICK]) == 0
    futures, quantiles = (pd.read_csv(tmp_path / "out" / name) for name in ("futures.csv", "quantiles.csv"))
    assert len(futures) == len(quantiles) == 14
    assert {"shop", "date", "future_5", "probability_5"} <= set(futures)
    assert {"q0.05", "q0.1", "q0.9", "q0.95", "low", "high"} <= set(quantiles)
    page = (tmp_path / "out" / "index.html").read_text()
    assert "shop 0 &lt;b&gt;&amp;" in page
    assert "<b>&<" not in page
    loaded, usual = Forecaster.load(tmp_path / "out" / "model"), Forecaster()
    predicted = loaded.predict().filter(like="future")
    np.testing.assert_allclose(futures[predicted.columns], predicted, rtol=1e-13)
    assert "7,000,000," in page
    for name in ("n_futures", "n_members", "coverage", "random_state"):  # the command has the defaults of the class
        assert getattr(loaded, name) == getattr(usual, name)
    assert main([*table, *QUICK]) == 0  # its own files are replaced


def test_the_example_runs_as_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["forecast", "--example", "-o", "out", "--steps", "2", "--horizon", "7"]) == 0
    assert "Open the report" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "sales.csv"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--value", "price"], "`--value` must name a column of sales.csv: 'shop', 'date', 'sold', got 'price'"),
        (["--series", "date"], "`date` must have each time of a series once"),
        (
            ["--time", "shop"],
            "`value` must name different columns for series, time, value and covariates, got 'shop' twice",
        ),
    ],
)
def test_bad_columns_are_named_and_nothing_is_written(table, tmp_path, capsys, change, message):
    if change == ["--series", "date"]:  # without the column of series all shops are one
        place = table.index("--series")
        table, change = table[:place] + table[place + 2 :], []
    assert main([*table, *change]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_missing_options_and_files_are_named(table, tmp_path, capsys):
    assert main(["forecast", "-o", "out"]) == 2
    assert "torchmcl forecast: `table` is required. " in capsys.readouterr().err
    assert main(["forecast", "none.csv", "--horizon", "3", "-o", "out"]) == 2
    assert "torchmcl forecast: `file` must exist, got 'none.csv'" in capsys.readouterr().err
    (tmp_path / "empty.csv").write_text("")
    assert main(["forecast", "empty.csv", "--horizon", "3", "-o", "out"]) == 2
    assert "`file` must be a table in csv format, UTF-8, got 'empty.csv'" in capsys.readouterr().err


def test_files_of_others_are_not_replaced(table, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "futures.csv").write_text("mine")
    assert main([*table, *QUICK]) == 2
    assert "must not hold files that torchmcl did not write" in capsys.readouterr().err
    assert (tmp_path / "out" / "futures.csv").read_text() == "mine"


@pytest.mark.parametrize(
    ("out", "message"), [("sales.csv", "is not a folder"), ("sales.csv/out", "is not a folder"), ("out", "`folder`")]
)
def test_outputs_that_cannot_be_written_are_refused_before_the_training(table, tmp_path, capsys, out, message):
    (tmp_path / "out" / "model").mkdir(parents=True)
    (tmp_path / "out" / "model" / "mine.txt").write_text("mine")
    (tmp_path / "out" / "index.html").write_text(html_report("Other report", ""))
    with counted_steps(1):
        assert main([*table, "-o", out]) == 2
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "sales.csv"]


def test_covariates_and_their_future_are_read(table, tmp_path, capsys):
    frame = pd.read_csv("sales.csv")
    frame["price"], frame["visitors"] = [1.0, 2.0] * 120, range(240)
    frame.to_csv("sales.csv", index=False)
    ahead = pd.DataFrame({"date": pd.date_range("2024-04-30", periods=7), "price": 1.5})
    ahead.to_csv("plan.csv", index=False)
    assert main([*table, *QUICK, "--known", "price", "--past", "visitors", "--future", "plan.csv"]) == 0
    ahead.iloc[1:].to_csv("plan.csv", index=False)
    assert main([*table, *QUICK, "--known", "price", "--future", "plan.csv"]) == 2
    assert "`future` must have values for all 7 steps" in capsys.readouterr().err
    assert main([*table, *QUICK, "--known", "price"]) == 2
    assert "`--known` requires `--future`" in capsys.readouterr().err


def test_an_unfinished_training_is_resumed_or_discarded(table, tmp_path, capsys):
    folder = tmp_path / "out.checkpoint"
    with pytest.raises(TrainingInterrupted), counted_steps(3):
        Forecaster(5, n_members=1, n_steps=4, time="date", value="sold", series="shop").fit(
            pd.read_csv("sales.csv"), horizon=7, checkpoint=folder
        )
    assert main([*table, *QUICK, "--seed", "1"]) == 2
    assert "`checkpoint` must contain the progress of the same call" in capsys.readouterr().err
    assert main([*table, *QUICK, "--seed", "1", "--restart"]) == 0
    assert not folder.exists()
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    assert main([*table, *QUICK]) == 2
    assert "`checkpoint` must be new, empty or " in capsys.readouterr().err
