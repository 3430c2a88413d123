"""All commands read a CSV file identically, however it is written, or refuse it with the same reason."""

import datetime
import gzip

import numpy as np
import pandas as pd
import polars
import pytest

from torchmcl_forecast.frames import Columns, read_future, read_panel
from torchmcl_forecast.spreadsheets import read_series
from torchmcl_tables.data import infer_schema, read_table
from torchmcl_tables.data.splits import choose_split, description

N = 16
Y = [round(850 + 37.75 * i * (-1) ** i, 2) for i in range(N)]
WHOLE = [1001 + 500 * i * i for i in range(N)]  # 1001 to 113501
START = datetime.datetime(2024, 1, 22)  # a Monday
DAYS = [START + datetime.timedelta(days=i) for i in range(N)]
WEEKS = [START + datetime.timedelta(weeks=i) for i in range(N)]
HOURS = [START + datetime.timedelta(hours=i) for i in range(N)]
MONTHS = [datetime.datetime(2019 + i // 12, 1 + i % 12, 1) for i in range(N)]
QUARTERS = [datetime.datetime(2019 + i // 4, 1 + i % 4 * 3, 1) for i in range(N)]
GERMAN = str.maketrans(",.", ".,")


def quarter(form):
    return lambda day: form.format(day.year, 1 + day.month // 3)


# Times: the notation and what it means.
TIMES = {
    **dict.fromkeys(("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%d-%m-%Y"), DAYS),
    **dict.fromkeys(("%m-%d-%Y", "%d %b %Y", "%d-%b-%Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y"), DAYS),
    **dict.fromkeys(("%d.%m.%y", "%m/%d/%y", "%d/%m/%y", "%d-%b-%y", "%Y%m%d"), DAYS),
    **dict.fromkeys(("%Y-%m", "%Y/%m", "%Y.%m", "%m.%Y", "%m/%Y", "%b-%y", "%b-%Y", "%b %Y", "%B %Y", "%Y%m"), MONTHS),
    **dict.fromkeys(("%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%d.%m.%Y %H:%M", "%m/%d/%Y %I:%M %p"), HOURS),
    **dict.fromkeys(("%Y-%m-%d %I:%M:%S %p", "%Y%m%d%H", "%Y%m%d%H%M", "%Y%m%d%H%M%S"), HOURS),
    "%G-W%V": WEEKS,
    **dict.fromkeys(map(quarter, ("{}Q{}", "{}-Q{}", "{} Q{}", "Q{1} {0}", "Q{1}/{0}")), QUARTERS),
}
# Numbers: the separator of the fields, the notation, and the values.
NUMBERS = {
    "points": (",", "{}".format, Y),
    "points, semicolons": (";", "{}".format, Y),
    "points, tabs": ("\t", "{:.1f}".format, np.round(Y, 1)),
    "integers": (",", "{}".format, WHOLE),
    "integers, semicolons": (";", "{}".format, WHOLE),
    "exponents": (",", "{:.6e}".format, Y),
    "american thousands": (",", "{:,.2f}".format, Y),
    "whole american thousands": (",", "{:,}".format, WHOLE),
    "Indian thousands": (",", lambda y: f"1,{y // 1000:03d},{y % 1000:03d}.5", [10**6 + y + 0.5 for y in WHOLE]),
    "commas": (";", lambda y: f"{y}".translate(GERMAN), Y),
    "commas in quotes": (",", lambda y: f"{y:.2f}".translate(GERMAN), Y),
    "commas, tabs": ("\t", lambda y: f"{y:.2f}".translate(GERMAN), Y),
    "german thousands": (";", lambda y: f"{y:,.2f}".translate(GERMAN), Y),
    "whole german millions": (";", lambda y: f"{y * 1000:,}".translate(GERMAN), [y * 1000 for y in WHOLE]),
    "swiss thousands": (";", lambda y: f"{y:,.2f}".replace(",", "'"), Y),
    "typographic apostrophes": (";", lambda y: f"{y:,.2f}".replace(",", "\u2019"), Y),
    "french thousands": (";", lambda y: f"{y:,.2f}".translate(GERMAN).replace(".", "\u202f"), Y),
    "blanks": (";", lambda y: f"{y:,.2f}".replace(",", " "), Y),
    "dollars": (",", "${:,.2f}".format, Y),
    "euros": (";", lambda y: f"{y:,.2f} €".translate(GERMAN), Y),
    "whole dollars": (",", "${:,}".format, WHOLE),
    "whole euros": (";", lambda y: f"{y:,} €".translate(GERMAN), WHOLE),
    "pounds": (",", "£{:.2f}".format, Y),
    "francs": (";", lambda y: f"CHF {y:,.2f}".replace(",", "'"), Y),
    "percent": (",", "{} %".format, Y),
    "a unit": (",", "{} kg".format, Y),
    "accounting": (",", lambda y: f"({y - 850:.2f})", [850 - y for y in Y]),
    "signs": (";", lambda y: f"{850 - y:+.2f}".translate(GERMAN), [850 - y for y in Y]),
    "typographic minus": (",", lambda y: f"{850 - y:.2f}".replace("-", "\u2212"), [850 - y for y in Y]),
    "no leading zero": (",", lambda y: f"{y / 10**4:.6f}".removeprefix("0"), [y / 10**4 for y in Y]),
}
NUMBERS["accounting"] = (",", lambda y: f"({y:.2f})", [-y for y in Y])


def written(times=DAYS, form="%Y-%m-%d", separator=",", number="{}".format, values=Y, head="ds{}y\n", end="\n"):
    texts = [time.strftime(form) if isinstance(form, str) else form(time) for time in times]
    rows = [[text, number(y)] for text, y in zip(texts, values, strict=True)]
    quoted = [[f'"{cell}"' if separator in cell else cell for cell in row] for row in rows]
    return head.format(separator) + "".join(separator.join(row) + end for row in quoted)


PLAIN = written()
# Files with the plain times and values: their names and contents.
FILES = {
    "utf-8-sig": PLAIN.encode("utf-8-sig"),
    "utf-16": PLAIN.encode("utf-16"),
    "utf-16-le": PLAIN.encode("utf-16-le"),
    "cp1252": written(number="{} €".format).encode("cp1252"),
    "pipes": written(separator="|").encode(),
    "sep=": f"sep=;\n{written(separator=';')}".encode(),
    "sep= after a mark": f"\ufeffsep=;\r\n{written(separator=';')}".encode(),
    "windows line ends": PLAIN.replace("\n", "\r\n").encode(),
    "old line ends": PLAIN.replace("\n", "\r").encode(),
    "empty lines first": f"\n\n{PLAIN}".encode(),
    "empty rows": f"{PLAIN}\n,\n,\n".encode(),
    "all fields in quotes": "".join(f'"{line}"\n'.replace(",", '","') for line in PLAIN.split()).encode(),
    "blanks around names": PLAIN.replace("ds,y", " ds , y ").encode(),
    "blanks around cells": PLAIN.replace(",", " , ").encode(),
    "separators at the end": PLAIN.replace("\n", ",\n").encode(),
    "an index": "".join(f"{i - 1 if i else ''},{line}\n" for i, line in enumerate(PLAIN.split())).encode(),
    "an index twice": "".join(f"{i - 1 if i else 'Unnamed: 0'},{x}\n" for i, x in enumerate(PLAIN.split())).encode(),
    "gzip": gzip.compress(PLAIN.encode()),
}
# Files that allow two readings, or none, and the reason.
REFUSED = {
    "8.654 or 8654": (written(separator=";", number="{:,}".format, values=WHOLE).replace(",", "."), "distinguish dec"),
    "8,654 or 8654": (written(separator="\t", number="{:,}".format, values=WHOLE), "distinguish decimal separators"),
    "8,654 € or 8654 €": (
        written(separator=";", number="{:,} €".format, values=WHOLE),
        "distinguish decimal separators",
    ),
    "€ 8.654 and 1.5": (
        "ds,y,x\n" + "".join(f"2024-01-{i:02d},€ {i}.500,{i}.5\n" for i in range(10, 26)),
        "have one decimal separator in all columns, got '€ 10.500' in column 'y' and '10.5' in column 'x'",
    ),
    "1,5 and 1.5": (
        written(separator=";") + "2024-03-01;1,5\n",
        "have one decimal separator in all columns, got '850.0' in column 'y' and '1,5' in column 'y'",
    ),
    "separators after all rows but the header": (PLAIN.replace("\n", ",\n").replace("y,", "y"), "as many fields"),
    "a stray quote": (PLAIN + '2024-03-01,6" pipe\n', "double quotes in pairs"),
    "an empty file": ("", "be a table in csv format"),
    "a header": ("ds,y\n", "at least one row"),
    "01/02/2024": (written(MONTHS, "%d/%m/%Y"), "contain unambiguous dates"),
    "68 or 1968": (written([day.replace(year=1940 + 6 * i) for i, day in enumerate(DAYS)], "%d.%m.%y"), "unambiguous"),
    "01-02-2024": (written(MONTHS, "%d-%m-%Y"), "contain unambiguous dates"),
}


def cases():
    for form, times in TIMES.items():
        yield f"times {form if isinstance(form, str) else form(MONTHS[0])}", written(times, form).encode(), times, Y
    for name, (separator, number, values) in NUMBERS.items():
        inputs = Y if name in ("accounting", "signs", "typographic minus", "no leading zero") else values
        inputs = WHOLE if name in ("Indian thousands", "whole german millions") else inputs
        yield name, written(separator=separator, number=number, values=inputs).encode(), DAYS, values
    for name, content in FILES.items():
        yield name, content, DAYS, Y


CASES = list(cases())


def by_fit(path):
    table = read_table(path)
    schema = infer_schema(table, ["y"], task="numbers", interpret=True, keep=["ds"])
    assert choose_split(table, schema).by == "time"
    assert "ds" in description(table, schema)
    again = read_table(path)  # as predict reads it
    np.testing.assert_array_equal(schema.values(again), schema.values(table))
    days = schema.values(table)[:, [name.endswith("days") for name in schema.input_names]].ravel()
    return days, schema.target_values(again).ravel()


def test_there_are_more_than_85_variants():
    assert len(CASES) + len(REFUSED) >= 85


@pytest.mark.parametrize(("content", "times", "values"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_file_is_read_identically_by_all_commands(tmp_path, content, times, values):
    path = tmp_path / ("a.csv.gz" if content.startswith(b"\x1f") else "a.csv")
    path.write_bytes(content)
    frame, schema = read_series(path, Columns())
    assert list(frame.columns) == ["ds", "y"]
    assert frame.ds.tolist() == [pd.Timestamp(time) for time in times]
    np.testing.assert_allclose(frame.y, values, rtol=1e-12)
    days, targets = by_fit(path)
    np.testing.assert_allclose(days, [(time - datetime.datetime(1970, 1, 1)) / datetime.timedelta(1) for time in times])
    np.testing.assert_allclose(targets, values, rtol=1e-12)
    again, _ = read_series(path, Columns(), like=schema)
    pd.testing.assert_frame_equal(again, frame)


@pytest.mark.parametrize("case", REFUSED)
def test_an_ambiguous_file_is_refused_by_all_commands_for_the_same_reason(tmp_path, case):
    content, reason = REFUSED[case]
    path = tmp_path / "a.csv"
    path.write_text(content, encoding="utf-8")
    messages = []
    for read in (lambda: read_series(path, Columns(past=("x",))), lambda: by_fit(path)):
        with pytest.raises(ValueError, match=reason) as error:
            read()
        messages.append(str(error.value).partition(": ")[2])
    assert messages[0] == messages[1]


def test_future_values_are_read_like_the_past_ones(tmp_path):
    columns = Columns(known=("price",))
    past, ahead, other = (tmp_path / name for name in ("past.csv", "ahead.csv", "other.csv"))
    past.write_text("ds;y;price\n" + "".join(f"{i:02d}/01/2024;{i};0,{i}\n" for i in range(1, 32)))
    ahead.write_text("ds;price\n01/02/2024;1.349\n02/02/2024;2\n")
    other.write_text("ds;price\n01/02/2024;1.5\n02/02/2024;2\n")
    frame, schema = read_series(past, columns)
    assert schema.notes[-1] == "numbers have decimal commas, such as '0,1' in column 'price'"
    panel = read_panel("forecast", frame, columns)
    future, _ = read_series(ahead, columns, like=schema)
    assert read_future("forecast", future, columns, panel, 2).ravel().tolist() == [1349, 2]
    with pytest.raises(ValueError, match=r"`other.csv` must have one .* got '1.5' in column 'price', unlike the train"):
        read_series(other, columns, like=schema)


@pytest.mark.parametrize(("decimal", "values"), [(".", [1.001, 2.002]), (",", [1001, 2002])])
def test_a_chosen_decimal_separator_settles_an_ambiguous_file(tmp_path, decimal, values):
    (tmp_path / "a.csv").write_text("ds;y\n2024-01-01;1.001\n2024-01-02;2.002\n")
    assert read_series(tmp_path / "a.csv", Columns(), decimal)[0].y.tolist() == values
    table = read_table(tmp_path / "a.csv", decimal)
    assert infer_schema(table, ["y"]).target_values(table).ravel().tolist() == values


def test_a_table_of_another_program_is_read_with_its_own_decimal_separator(tmp_path):
    (tmp_path / "a.csv").write_text("x, net;y\n" + "".join(f"{i},5;{i}\n" for i in range(9)))
    (tmp_path / "b.csv").write_text('"x, net",y\n1.534,1\n2.125,2\n')
    schema = infer_schema(read_table(tmp_path / "a.csv"), ["y"], task="numbers")
    with pytest.raises(ValueError, match="must distinguish decimal separators from thousands separators"):
        schema.values(read_table(tmp_path / "b.csv"))
    assert schema.values(read_table(tmp_path / "b.csv", ".")).ravel().tolist() == [1.534, 2.125]


def test_a_parquet_file_is_read_as_a_csv_file(tmp_path):
    (tmp_path / "a.csv").write_text(PLAIN)
    polars.DataFrame({"ds": DAYS, "y": Y}).write_parquet(tmp_path / "a.parquet")
    one, other = (read_series(tmp_path / f"a.{kind}", Columns())[0] for kind in ("csv", "parquet"))
    pd.testing.assert_frame_equal(one, other)


def test_names_of_series_are_texts_and_indices_are_no_series(tmp_path):
    (tmp_path / "a.csv").write_text(",ds,NA,b,\n5,2024-01-01,1,007,\n9,2024-01-02,2,3,\n,,,,\n")
    frame, _ = read_series(tmp_path / "a.csv", Columns())
    assert read_panel("forecast", frame, Columns()).names.tolist() == ["NA", "b"]
    (tmp_path / "a.csv").write_text("unique_id,ds,y\nNA,1,1\nNA,2,\n007,1,3\n007,2,NA\n")
    frame, _ = read_series(tmp_path / "a.csv", Columns())
    panel = read_panel("forecast", frame, Columns())
    assert panel.names.tolist() == ["NA", "007"]
    np.testing.assert_array_equal(panel.values, [[1, np.nan], [3, np.nan]])


@pytest.mark.parametrize(
    "times", [[20241, 20242, 20243, 20244, 20251], [202401, 202452, 202501, 202502], ["today", "later"], ["", 2]]
)
def test_times_that_are_neither_numbers_nor_dates_are_refused(tmp_path, times):
    (tmp_path / "a.csv").write_text("ds,y\n" + "".join(f"{time},1\n" for time in times))
    with pytest.raises(ValueError, match=r"`a.csv, column 'ds'` must contain numbers or dates, got|time in every row"):
        read_panel("forecast", read_series(tmp_path / "a.csv", Columns())[0], Columns())
