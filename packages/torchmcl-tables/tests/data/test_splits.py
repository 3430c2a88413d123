"""Which rows are set apart: the last ones where dates order them, whole groups, or some at random."""

import json

import numpy as np
import pytest

pl = pytest.importorskip("polars")
pytest.importorskip("sklearn")

from house_tables import write_csv  # noqa: E402
from torchmcl.app import main  # noqa: E402
from torchmcl_tables.data import Table, infer_schema  # noqa: E402
from torchmcl_tables.data.splits import choose_split, times_of  # noqa: E402

DAYS = [str(np.datetime64("2020-01-01") + i) for i in range(100)]
UNCLEAR = [f"{1 + i % 12:02d}/02/2024" for i in range(100)]


def table(**columns):
    return Table("t.csv", pl.DataFrame({"y": np.arange(100.0), "x": np.arange(100.0) % 7} | columns))


def split_of(data, by=None, column="", **options):
    schema = infer_schema(data, ["y"], **options)
    split = choose_split(data, schema, by, column)
    return split, *split.rows(data, schema, np.arange(len(data)), 0.1, 0)


@pytest.mark.parametrize("order", ["up", "down", "shuffled"])
@pytest.mark.parametrize("options", [{}, {"drop": ["day"]}], ids=["read", "dropped"])
def test_the_last_rows_are_set_apart_where_a_column_dates_them(order, options):
    places = {"up": np.arange(100), "down": np.arange(100)[::-1], "shuffled": np.random.default_rng(0).permutation(100)}
    days = np.array(DAYS)[places[order]]
    split, train, test = split_of(table(day=days), **options)
    assert (split.by, split.column) == ("time", "day")
    assert max(days[train]) < min(days[test])
    assert (len(train), len(test)) == (90, 10)


def test_rows_of_one_moment_stay_together():
    days = np.repeat(DAYS[:14], 8)[:100]
    _, train, test = split_of(table(day=days))
    assert not set(days[train]) & set(days[test])
    assert 4 <= len(test) <= 16


@pytest.mark.parametrize(
    ("days", "by"),
    [
        (np.repeat(DAYS[:3], [34, 33, 33]), "random"),  # a third of the rows
        (np.repeat(DAYS[:2], [99, 1]), "random"),  # one late row
        (np.repeat(DAYS[:2], [96, 4]), "random"),
        (np.repeat(DAYS[:2], [95, 5]), "time"),
        (np.repeat(DAYS[:2], [80, 20]), "time"),
        (np.repeat(DAYS[:2], [79, 21]), "random"),
    ],
)
def test_the_last_rows_are_set_apart_only_if_they_are_about_as_many_as_wanted(days, by):
    split, _, test = split_of(table(day=days))
    assert (split.by, split.dated) == (by, "day")
    assert 5 <= len(test) <= 20
    assert split.describe()
    late = table(day=DAYS, y=[*range(80), *[None] * 20])  # the last rows have no target
    assert choose_split(late, infer_schema(late, ["y"])).by == "time"


def test_rows_without_a_date_are_learned_from():
    days = [None if i % 5 == 0 else day for i, day in enumerate(DAYS)]
    _, train, test = split_of(table(day=days))
    assert set(np.arange(0, 100, 5)) <= set(train)
    assert len(test) == 10


@pytest.mark.parametrize(
    "columns", [{}, {"clock": [f"{i % 24:02d}:{i % 60:02d}" for i in range(100)]}, {"unclear": UNCLEAR}]
)
def test_rows_without_dates_are_set_apart_at_random(columns):
    split, train, test = split_of(table(**columns), drop=[name for name in columns if name == "unclear"])
    assert (split.by, split.dated) == ("random", "")
    assert split.describe() == ""
    assert sorted([*train, *test]) == list(range(100))


def test_groups_are_set_apart_whole():
    who = np.array([f"p{i % 20}" for i in range(100)])
    split, train, test = split_of(table(who=who, day=DAYS), "group", "who")
    assert (split.by, split.column) == ("group", "who")
    assert not set(who[train]) & set(who[test])
    assert len(test) == 10


def test_numbers_order_rows_when_told_so():
    data = table(year=2000 + np.arange(100) // 5)
    _, train, test = split_of(data, "time", "year")
    years = times_of(data, "year", infer_schema(data, ["y"]))
    assert years[train].max() < years[test].min()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("time",), "`--split` must be used with a column of dates"),
        (("group",), "`--split group` requires `--split-column`"),
        (("group", "who"), "`--split-column` must name a column"),
        (("group", "same"), "`--split-column` must vary by group"),
        (("time", "unclear"), "column 'unclear'` must contain unambiguous dates, got '01/02/2024'"),
        (("weekly",), "`--split` must be one of time, group, random"),
    ],
)
def test_splits_that_cannot_be_made_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        split_of(table(same=["a"] * 100, unclear=UNCLEAR), *arguments, drop=["unclear"])


def series(n_rows=120, seed=0):
    """Return rows of a random walk with the day of each."""
    rng = np.random.default_rng(seed)
    level = 20 * np.cumsum(rng.normal(size=n_rows))
    return [
        {"day": str(np.datetime64("2020-01-01") + i), "x": f"{rng.normal():.3f}", "y": f"{level[i]:.2f}"}
        for i in range(n_rows)
    ]


SMALL = ["--epochs", "2", "--hidden", "4", "--restarts", "1"]


def test_fit_says_that_the_last_rows_are_set_apart_and_the_page_shows_the_error_over_time(tmp_path, capsys):
    csv, model = str(write_csv(tmp_path / "t.csv", series(300))), tmp_path / "model"
    assert main(["fit", csv, "--target", "y", "-o", str(model), *SMALL]) == 0
    said = capsys.readouterr()
    assert "the last rows by day are the test rows" in said.err
    assert "30 test rows, the last by day (since 2020-09-27)" in said.out
    metrics = json.loads((model / "metrics.json").read_text())
    assert metrics["split"] == {"by": "time", "column": "day", "dated": "day", "since": "2020-09-27"}
    assert main(["report", str(model)]) == 0
    assert "Error over time" in (model / "report.html").read_text()


def test_a_random_split_of_dated_rows_is_never_called_good(tmp_path, capsys):
    csv, model = str(write_csv(tmp_path / "t.csv", series())), tmp_path / "model"
    for options in (["--rule", "mcl"], ["--rule", "mcl", "--drop", "day"]):
        fit = ["fit", csv, "--target", "y", "-o", str(model), "--split", "random", "--overwrite", *options, *SMALL]
        assert main(fit) == 0
        assert "its rows are dated by day, but the test rows are random" in capsys.readouterr().out
