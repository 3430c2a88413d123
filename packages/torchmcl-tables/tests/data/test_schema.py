"""Schemas and their encoder: types of columns, codes, inputs."""

import datetime
import json

import numpy as np
import polars as pl
import pytest

from torchmcl_tables.data import NumberColumn, Table, TableError, Unfit, infer_schema, read_table
from torchmcl_tables.data.table import as_polars


def table(**columns):
    return Table("t.csv", pl.DataFrame(columns, strict=False))


def schema_of(data, **options):
    return infer_schema(data, ["y"], **options)


Y = ["1", "2", "3", "4"]


def test_columns_are_told_apart_by_what_they_hold():
    data = table(a=["1", " 2.5", "1e3", "NA"], b=["x", "y", "", "x"], c=[True, False, True, True], y=Y)
    schema = schema_of(data)
    assert [column.name for column in schema.numbers] == ["a"]
    assert [(c.name, c.categories, c.missing) for c in schema.categories] == [
        ("b", ("x", "y"), True),
        ("c", ("true", "false"), False),
    ]
    values = schema.values(data)
    assert np.array_equal(values[:, 0], [1, 2.5, 1000, np.nan], equal_nan=True)
    assert values[:, 1].tolist() == [0, 1, 2, 0]


def test_numbers_that_are_categories_because_of_some_text_are_reported():
    counts, words = [str(i % 8) for i in range(98)] + ["two"] * 2, ["a", "b", "c", "4"] * 25
    data = table(qty=counts, word=words, y=[str(i % 13) for i in range(100)])
    schema = infer_schema(data, ["y"], task="numbers")
    assert schema.decisions() == ["qty: categories, because 2 cells are not numbers (as numbers: --numeric qty)"]
    assert infer_schema(data, ["y"], task="numbers", numeric=["qty"]).numbers[0].not_numbers == 2


def test_numbers_can_be_categories_when_told_so():
    schema = schema_of(table(shop=["1", "2", "1", "3"], y=Y), categorical=["shop"])
    assert schema.categories[0].categories == ("1", "2", "3")
    # 1.0 in another format is the same shop
    again = schema.values(table(shop=[1.0, 3.0, None, 2.0]))
    assert again[:, 0].tolist() == [0, 2, 3, 1]


def test_rare_categories_share_an_input_with_those_that_were_never_seen():
    names = [f"k{i:03d}" for i in range(80) for _ in range(2)] + ["often"] * 40
    data = table(k=names, y=[str(i) for i in range(200)])
    column = schema_of(data).categories[0]
    assert column.categories[0] == "often"
    assert len(column.categories) == 50
    assert column.is_open
    codes = schema_of(data).values(data)[:, 0]
    assert set(codes) == set(range(51))
    assert schema_of(data).values(table(k=["unseen"]), strict=True).tolist() == [[50]]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"a": ["1"] * 4}, {"drop": ["b"]}, r"`--drop` must name a column of t.csv, got 'b'"),
        ({"a": ["1"] * 4}, {"categorical": ["b"]}, r"`--categorical` must name a column"),
        ({"a": ["1"] * 4}, {"drop": ["y"]}, r"`--target` must name each column once"),
        ({"a": Y}, {"drop": ["a"]}, r"must have a column besides the targets"),
        ({"a": Y}, {"numeric": ["a"], "date": ["a"]}, r"`a` must be named by one of --drop, --categorical"),
        ({"a": ["x", "y"] * 2}, {"date": ["a"]}, r"`--date` must name a column of dates, such as 2024-12-31"),
        ({"a": ["x", "y"] * 2}, {"numeric": ["a"]}, r"`--numeric` must name a column of numbers, got 'a' with 'x'"),
        ({"a": ["", "NA"] * 2}, {"keep": ["a"]}, r"`--keep-column` must name a column with values, got 'a': all"),
        ({"a": ["1"] * 4}, {}, r"besides the targets, got 'a' is dropped, all .* Keep columns with --keep-column a"),
    ],
)
def test_options_that_cannot_be_used_are_refused(columns, options, message):
    with pytest.raises(ValueError, match=message):
        schema_of(table(**columns, y=Y), **options)


def test_all_problems_come_in_one_message():
    with pytest.raises(
        TableError, match=r"t.csv has 3 problems:\n- `--drop`.*\n- `--date`.*\n- `t.csv, target 'y'`"
    ) as error:
        schema_of(table(a=Y, y=["5"] * 4), drop=["b"], date=["c"])
    assert len(error.value.problems) == 3


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        (["", "NA", "?", None], "all of its cells are missing"),
        ([None] * 4, "all of its cells are missing"),
        ([float("nan")] * 4, "all of its cells are missing"),
        ([[1]] * 4, "its cells are of type List"),
        ([b"x"] * 4, "its cells are of type Binary"),
        (["7"] * 4, "all of its cells are 7"),
        (["x"] * 4, "all of its cells are 'x'"),
        ([datetime.date(2024, 1, 1)] * 4, "all of its dates are the same"),
    ],
)
def test_columns_that_nothing_can_be_learned_from_are_dropped(cells, reason):
    (dropped,) = schema_of(table(a=cells, b=Y, y=Y)).dropped
    assert dropped.name == "a"
    assert reason in dropped.reason


def test_infinite_numbers_count_as_missing():
    for cells in (["1", "inf", "2", "3"], [1.0, float("-inf"), 2.0, 3.0]):
        schema = schema_of(table(a=cells, y=Y))
        assert schema.columns == (NumberColumn("a", missing=True, not_numbers=1),)
        assert "1 cells that are not numbers (up to 1e100) count as missing" in schema.decisions()[0]
        assert np.isnan(schema.values(table(a=cells))[1, 0])
    with pytest.raises(ValueError, match=r"column 'a'` must hold finite numbers, got 'inf' in row 2"):
        schema_of(table(a=Y, y=Y)).values(table(a=["1", "inf"]))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["5", "5", "5.0", ""], r"target 'y'` must vary, got the constant 5"),
        (
            ["a", "b", "c", "d"],
            r"target 'y'` must hold at most 1,000 classes, .* got 4 distinct values in 4 rows, such as 'a'",
        ),
        (["a", "a", "a", ""], r"target 'y'` must vary, got only the class 'a'"),
        (["", "", None, "NA"], r"target 'y'` must contain numbers or classes, got only missing values"),
        (["1", "2", "x", "4"], r"target 'y'` must contain numbers, got 'x' in row 3. Correct .* --task classes"),
        (["1", "2", "-inf", "4"], r"target 'y'` must contain numbers, got '-inf' in row 3"),
    ],
)
def test_targets_that_cannot_be_learned_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        schema_of(table(a=Y, y=values))


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (["no", "yes"] * 10, ("no", "yes")),
        (["True", "FALSE"] * 10, ("false", "true")),
        (["0", "1.0"] * 10, ("0", "1")),
        (["0.5", "2.5"] * 10, ("0.5", "2.5")),
        (["3", "5", "7", "9"] * 5, ("3", "5", "7", "9")),
        (["3", "5", "x", "9"] * 5, ("3", "5", "9", "x")),
        ([f"{i % 11}" for i in range(110)], ()),  # more than ten values
        (["0.5", "1.5", "2.5"] * 10, ()),  # not integers
        (["1", "2", "3", "4"], ()),  # each once
    ],
)
def test_text_and_few_integers_are_classes(values, classes):
    data = table(a=[str(i % 13) for i in range(len(values))], y=values)
    assert schema_of(data).classes == classes
    if not {"no", "x", "True"} & set(values):
        assert infer_schema(data, ["y"], task="numbers").classes == ()
    assert infer_schema(data, ["a"], task="classes").classes if len(values) > 30 else True


def test_a_column_that_names_the_class_is_suspicious():
    kinds = ["u", "v", "w"] * 20
    data = table(a=[str(i % 7) for i in range(60)], code=[{"u": "1", "v": "2", "w": "3"}[k] for k in kinds], y=kinds)
    (found,) = schema_of(data).suspicious
    assert found.name == "code"
    assert found.reason == "it leaks y (each of its values occurs with only one class)"


def test_a_new_category_is_none_of_the_known_ones_and_an_error_if_asked():
    schema = schema_of(table(city=["Ulm", "Bonn", "Ulm", "Bonn"], y=Y))
    new = table(city=["Ulm", "Rome"])
    with pytest.raises(ValueError, match=r"categories of the training table \('Bonn', 'Ulm'\), got 'Rome' in row 2"):
        schema.values(new, strict=True)
    unfit = Unfit()
    codes = schema.values(new, unfit=unfit)
    assert unfit.notices() == ["city: 1 cell (first 'Rome' in row 2) encoded as none of the known categories"]
    assert schema.encode(codes).tolist() == [[0, 1], [0, 0]]


def test_a_missing_column_is_named():
    schema = schema_of(table(area=Y, rooms=Y, y=Y))
    with pytest.raises(ValueError, match=r"must have a column 'rooms', got .*Did you mean 'room'"):
        schema.values(table(area=Y, room=Y))


def test_everything_that_a_table_lacks_comes_in_one_message():
    schema = schema_of(table(area=Y, rooms=Y, day=[f"2024-01-0{i}" for i in range(1, 5)], y=Y))
    message = (
        r"(?s)has 3 problems:.*column 'area', got the column 'Area'. Rename 'Area' to 'area'.*'rooms'.*'x' in row 2"
    )
    with pytest.raises(TableError, match=message):
        schema.values(table(day=["2024-01-01", "x"], Area=["1", "2"]))
    same = schema.values(table(day=["2024-01-01"], rooms=["1"], other=["x"], area=["2"]))
    assert same[0, :2].tolist() == [2, 1]  # the order of columns does not matter


BERLIN = pl.datetime_range(
    datetime.datetime(2024, 3, 30, 20), datetime.datetime(2024, 3, 31, 20), "1h", time_zone="Europe/Berlin", eager=True
)
OFFSETS = BERLIN.dt.to_string("%Y-%m-%dT%H:%M:%S%z")  # +0100, later +0200


@pytest.mark.parametrize("times", [BERLIN, OFFSETS, OFFSETS.str.replace(r"\d\d$", ":00"), pl.Series(BERLIN.to_list())])
def test_dates_with_a_time_zone_stay_in_it_and_dates_without_one_are_refused(times):
    data = table(t=times, y=[str(i % 7) for i in range(len(times))])
    schema = infer_schema(data, ["y"], task="numbers")
    (column,) = schema.dates
    hours = schema.values(data)[:, list(column.parts).index("hour")]
    assert (hours == BERLIN.dt.hour().to_numpy()).sum() >= 18  # after a change of the clocks, an offset differs
    utc = times.str.to_datetime(time_zone="UTC") if times.dtype == pl.String else times.dt.convert_time_zone("UTC")
    np.testing.assert_allclose(schema.values(table(t=utc)), schema.values(data))
    as_pandas = as_polars(pytest.importorskip("pandas").DataFrame({"t": utc.to_list()}))
    np.testing.assert_allclose(schema.values(Table("X", as_pandas)), schema.values(data))
    without = (utc.dt.replace_time_zone(None), utc.dt.to_string("%Y-%m-%d %H:%M"), utc.dt.date())
    for other in without:
        with pytest.raises(
            ValueError, match=r"column 't'` must hold dates in the format %Y-%m-%d and a time zone, got"
        ):
            schema.values(table(t=other))
    plain = infer_schema(table(t=without[0], y=data.frame["y"]), ["y"], task="numbers")
    with pytest.raises(ValueError, match=r"must hold dates in the format %Y-%m-%d without a time zone, got '?2024"):
        plain.values(data)


def test_the_inputs_of_a_small_table():
    data = table(a=[1.0, None, 3.0, 8.0], c=["x", "y", "x", None], y=Y)
    schema = schema_of(data)
    expected = np.stack([[1, np.nan, 3, 8], [1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]], axis=1)
    np.testing.assert_array_equal(schema.encode(schema.values(data)), expected)
    assert schema.input_names == ["a", "c = x", "c = y", "c is missing"]


def test_a_number_is_one_category_however_it_is_written():
    data = table(shop=["3", "3.0", "1e3", "1000", "2.50", "", "-0"], y=["1", "2"] * 3 + ["4"])
    schema = schema_of(data, categorical=["shop"])
    (shop,) = schema.categories
    assert shop.numeric
    assert set(shop.categories) == {"3", "1000", "2.5", "0"}
    written = (
        [3, 1000, None, 0],
        [3.0, 1000.0, None, -0.0],
        ["3.00", "1E+3", "NA", "0.0"],
        pl.Series([3.0, 1000.0, None, 0.0], dtype=pl.Float32),
    )
    codes = [schema.values(table(shop=values)).ravel().tolist() for values in written]
    assert codes == [codes[0]] * 4
    with pytest.raises(ValueError, match=r"must hold categories of the training table .*, got '2.6' in row 1"):
        schema.values(table(shop=["2.60"]), strict=True)


def test_codes_with_leading_zeros_and_words_are_no_numbers():
    for texts in (["007", "7", "007", "7.0"], ["1.1", "1.10", "1.1", "beta"]):
        (column,) = schema_of(table(code=texts, y=Y), categorical=["code"]).categories
        assert not column.numeric
        assert set(column.categories) == set(texts)


def categories_of(frame):
    return [column.categories for column in infer_schema(Table("X", frame), []).categories]


@pytest.mark.parametrize("values", [[3, 3, 5], [2.0, 2.0, 7.5]])
def test_categories_of_numbers_stay_categories(tmp_path, values):
    pandas = pytest.importorskip("pandas")
    expected = [tuple(f"{value:g}" for value in (values[0], values[2]))]
    frame = pandas.DataFrame({"c": pandas.Series(values * 4, dtype="category"), "x": range(12)})
    assert categories_of(as_polars(frame)) == expected
    as_pandas = {"columns": [{"name": "c", "pandas_type": "categorical"}, {"name": "x", "pandas_type": "int64"}]}
    plain = pl.DataFrame({"c": values * 4, "x": range(12)})
    plain.write_parquet(tmp_path / "t.parquet", metadata={"pandas": json.dumps(as_pandas)})
    assert categories_of(read_table(tmp_path / "t.parquet").frame) == expected


def test_numbers_made_of_nines_far_from_all_others_are_missing_and_it_is_said():
    rng = np.random.default_rng(0)
    far, near = rng.normal(20, 5, 200).round(1), rng.uniform(0, 990, 200).round(0)
    far[::50], near[::50] = -9999, 999
    data = table(far=far.astype(str), near=near, y=np.arange(200.0))
    schema = schema_of(data, interpret=True)
    assert np.isnan(schema.values(data)).sum(axis=0).tolist() == [4, 0]
    assert schema.decisions() == ["far: numbers; -9999 counts as missing (as a number: --numeric far)"]
    assert np.isnan(schema.values(table(far=["-9999.0", "3"], near=[1, 2]))[:, 0]).tolist() == [True, False]
    assert not np.isnan(schema_of(data, interpret=True, numeric=["far"]).values(data)).any()


def test_a_target_of_nines_is_missing_unless_it_is_named_as_numbers():
    y = np.arange(200.0)
    y[:3] = -999.9
    data = table(x=np.arange(200.0) % 7, y=y)
    assert np.isnan(schema_of(data, interpret=True).target_values(data)).sum() == 3
    chosen = schema_of(data, interpret=True, numeric=["y"])
    assert not np.isnan(chosen.target_values(data)).any()


@pytest.mark.parametrize("cells", [["0.45", "0.3"], [0.45, 0.3]])
def test_numbers_without_the_percent_sign_of_the_column_are_no_percentages(cells):
    schema = schema_of(table(p=["45%", "12 %", "0", "7.5%"], y=Y))
    assert schema.values(table(p=["30%", "0", "-2 %"])).ravel().tolist() == [30, 0, -2]
    with pytest.raises(ValueError, match=r"column 'p'` must hold finite numbers in %, got '0.45' in row 1 and 1 more"):
        schema.values(table(p=cells))


def test_columns_that_number_the_rows_are_dropped_unless_kept_or_alone():
    data = table(
        n=range(1, 31), down=range(29, -1, -1), x=[i * i % 11 for i in range(30)], y=[i % 7 for i in range(30)]
    )
    schema = schema_of(data, interpret=True, task="numbers")
    assert schema.features == ("x",)
    assert schema.decisions() == [
        "n: dropped, it counts the rows (use it: --keep-column n)",
        "down: dropped, it counts the rows (use it: --keep-column down)",
    ]
    kept = schema_of(data, interpret=True, task="numbers", keep=["n"])
    assert (kept.features, kept.suspicious) == (("n", "x"), ())
    alone = table(height=range(58, 73), y=[115.0, 117, 120, 123, 126, 129, 132, 135, 139, 142, 146, 150, 154, 159, 164])
    found = schema_of(alone, interpret=True)
    assert found.features == ("height",)
    assert not any("--drop" in warning for warning in found.warnings())
    assert schema_of(table(t=range(30), y=[i % 7 for i in range(30)]), interpret=True, task="numbers").features == (
        "t",
    )


def test_categories_that_give_numbers_away_are_suspicious():
    rng = np.random.default_rng(0)
    grade = rng.integers(0, 20, 600)
    rate = 5 + grade + rng.uniform(-0.3, 0.3, 600)
    data = table(grade=[f"{'ABCDE'[g // 4]}{g % 4}" for g in grade], home=rng.choice(["rent", "own"], 600), y=rate)
    assert [column.name for column in schema_of(data).suspicious] == ["grade"]


@pytest.mark.parametrize("cell", ["1e300", "-1e101", "inf"])
def test_numbers_that_nothing_can_be_learned_from_count_as_missing_and_are_an_error_later(cell):
    cells = [str(i / 7) for i in range(30)]
    schema = schema_of(table(a=[*cells, cell], y=[*map(str, range(30)), "1e300"]))
    assert [column.not_numbers for column in (*schema.columns, *schema.target_columns)] == [1, 1]
    plain = schema_of(table(a=cells, y=range(30)))
    with pytest.raises(ValueError, match=rf"column 'a'` must hold finite numbers, got '{cell}' in row 2"):
        plain.values(table(a=["1", cell]))


def test_a_column_is_parsed_once_and_its_values_go_with_the_rows_that_are_taken():
    data = table(a=["1", "2,5", "3", "4"], day=[f"2024-01-0{i}" for i in range(1, 5)], c=["x", "y", "x", "y"], y=Y)
    schema = schema_of(data)
    for column in (*schema.columns, *schema.target_columns):
        assert data.reading(column) is data.reading(column)
        rows = np.array([3, 1])
        taken, again = data.take(rows), table(**{name: data.frame[name].to_list() for name in data.columns})
        np.testing.assert_array_equal(taken.reading(column).values, again.reading(column).values[rows])
