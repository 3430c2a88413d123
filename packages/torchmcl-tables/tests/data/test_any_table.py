"""Any table at the first try: each of these works with the first command, or gets one message whose advice works."""

import datetime
import gzip
import json
import re

import numpy as np
import polars as pl
import pytest

from torchmcl.app import main
from torchmcl_tables.data import infer_schema, read_table

N = 60
RANDOM = np.random.default_rng(0)
PRICES = [round(float(value), 1) for value in RANDOM.normal(300, 40, N)]
AREAS = [round(float(value), 2) for value in RANDOM.normal(100, 25, N)]
WORDS = ["lorem", "ipsum", "dolor", "sit", "amet", "consectetur", "adipiscing", "elit", "sed", "do"]


def text(columns, separator=",", quote=True):
    """Return a table as text, with `price` as its last column."""
    columns = {**columns, "price": columns.get("price", PRICES)}
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    quoted = [[f'"{cell}"' if quote and separator in str(cell) else str(cell) for cell in row] for row in rows]
    return "\n".join(separator.join(row) for row in quoted) + "\n"


def cycle(*cells):
    return [cells[i % len(cells)] for i in range(N)]


def dates(form):
    first = datetime.datetime(2023, 1, 5, 7, 30)
    return [(first + datetime.timedelta(days=11 * i, hours=5 * i)).strftime(form) for i in range(N)]


def german(value, digits=2):
    return f"{value:,.{digits}f}".translate(str.maketrans(",.", ".,"))


HEAD = "area,price\n"
ROWS = [f"{a},{p}" for a, p in zip(AREAS, PRICES, strict=True)]

# The file, its content, the kind of each column that is read, words that the decisions must have.
TABLES = {
    "mixed": ("a.csv", text({"drive": cycle("f", "4", "r"), "area": AREAS}), {"drive": "category"}, ""),
    "numbers and a few words": (
        "a.csv",
        text({"area": [*AREAS[:-2], "unknown", "see notes"]}),
        {"area": "number"},
        "2 cells that are not numbers (up to 1e100) count as missing",
    ),
    "iso dates": ("a.csv", text({"sold": dates("%Y-%m-%d")}), {"sold": "date"}, "read as year, month, weekday, days"),
    "dates with zones": ("a.csv", text({"sold": dates("%Y-%m-%dT%H:%M:%S+02:00")}), {"sold": "date"}, "hour"),
    "dates in UTC": ("a.csv", text({"sold": dates("%Y-%m-%dT%H:%M:%S.250Z")}), {"sold": "date"}, "%Y-%m-%d"),
    "american dates": ("a.csv", text({"sold": dates("%m/%d/%Y %I:%M %p")}), {"sold": "date"}, "%m/%d/%Y"),
    "german dates": ("a.csv", text({"sold": dates("%d.%m.%Y")}), {"sold": "date"}, "%d.%m.%Y"),
    "dates in words": ("a.csv", text({"sold": dates("%d %b %Y")}), {"sold": "date"}, "%d %b %Y"),
    "times of day": ("a.csv", text({"at": dates("%H:%M")}), {"at": "date"}, "hour"),
    "dates with gaps": (
        "a.csv",
        text({"sold": [*dates("%Y-%m-%d")[:-3], "", "NA", "?"]}),
        {"sold": "date"},
        "sold: dates",
    ),
    "currencies": ("a.csv", text({"rent": [f"${a * 31:,.2f}" for a in AREAS]}), {"rent": "number"}, "numbers in $"),
    "a currency as target": (
        "a.csv",
        text({"area": AREAS, "price": [f"{p} €" for p in PRICES]}),
        {"area": "number"},
        "in €",
    ),
    "accounting": ("a.csv", text({"gain": [f"({a})" if a < 100 else a for a in AREAS]}), {"gain": "number"}, ""),
    "percentages": ("a.csv", text({"share": [f"{a / 2:.1f} %" for a in AREAS]}), {"share": "number"}, "numbers in %"),
    "units": ("a.csv", text({"area": [f"{a} m²" for a in AREAS]}), {"area": "number"}, "numbers in m²"),
    "a few numbers without the unit": (
        "a.csv",
        text({"views": [f"{a / 10:.3f}k" if i % 20 else "950" for i, a in enumerate(AREAS)]}),
        {"views": "number"},
        "numbers in k; 3 cells that are not numbers",
    ),
    "thousands": (
        "a.csv",
        text({"lot": [f"{1000 * a:,.0f}" for a in AREAS]}),
        {"lot": "number"},
        "",
    ),
    "swiss": (
        "a.csv",
        text({"lot": [f"{1000 * a:,.0f}".replace(",", "'") for a in AREAS]}),
        {"lot": "number"},
        "",
    ),
    "european": (
        "a.csv",
        text(
            {
                "area": [german(a) for a in AREAS],
                "lot": [german(1000 * a) for a in AREAS],
                "price": map(german, PRICES),
            },
            ";",
        ),
        {"area": "number", "lot": "number"},
        "separated by semicolons",
    ),
    "semicolons and points": ("a.csv", text({"area": AREAS}, ";"), {"area": "number"}, "semicolons"),
    "tabs": ("a.csv", text({"area": AREAS}, "\t"), {"area": "number"}, "separated by tabs"),
    "pipes": ("a.csv", text({"area": AREAS}, "|"), {"area": "number"}, "separated by vertical bars"),
    "latin-1": ("a.csv", text({"town": cycle("Köln", "Ulm")}).encode("latin-1"), {"town": "category"}, "Latin-1"),
    "windows": (
        "a.csv",
        text({"rent": [f"{a} €" for a in AREAS]}).encode("cp1252"),
        {"rent": "number"},
        "Windows-1252",
    ),
    "utf-16": ("a.csv", text({"town": cycle("Köln", "Ulm")}).encode("utf-16"), {"town": "category"}, "UTF-16"),
    "utf-16 without a mark": (
        "a.csv",
        text({"town": cycle("Ulm", "Köln")}).encode("utf-16-le"),
        {"town": "category"},
        "UTF-16",
    ),
    "a byte order mark": ("a.csv", text({"area": AREAS}).encode("utf-8-sig"), {"area": "number"}, ""),
    "identifiers": (
        "a.csv",
        text({"house_id": RANDOM.permutation(10**6)[:N], "name": [f"house no. {i}" for i in range(N)], "area": AREAS}),
        {"area": "number"},
        "name: dropped, its text differs in most rows (60 different in 60) (use it: --keep-column name)",
    ),
    "notes": (
        "a.csv",
        text({"note": [" ".join(RANDOM.choice(WORDS, 6)) for _ in range(N)], "area": AREAS}),
        {"area": "number"},
        "note: dropped",
    ),
    "empty and constant columns": (
        "a.csv",
        text({"nothing": [""] * N, "currency": ["EUR"] * N, "year": [2024] * N, "area": AREAS}),
        {"area": "number"},
        "nothing: dropped, all of its cells are missing",
    ),
    "one category and gaps": ("a.csv", text({"pool": cycle("yes", ""), "area": AREAS}), {"pool": "category"}, ""),
    "repeated and empty names": (
        "a.csv",
        "area,area,,price\n" + "".join(f"{a},{a * a},{a % 7:.3f},{p}\n" for a, p in zip(AREAS, PRICES, strict=True)),
        {"area": "number", "area_2": "number", "column_3": "number"},
        "column 2 is another 'area': 'area_2'",
    ),
    "empty lines first": ("a.csv", "\r\n\n" + text({"area": AREAS}), {"area": "number"}, ""),
    "carriage returns alone": ("a.csv", text({"area": AREAS}).replace("\n", "\r"), {"area": "number"}, ""),
    "euros in thousands": (
        "a.csv",
        text({"rent": [f"€ {german(1000 + 31 * a, 0)}" for a in AREAS], "price": map(round, PRICES)}),
        {"rent": "number"},
        "numbers have decimal commas, such as '€ ",
    ),
    "quoted line breaks": (
        "a.csv",
        '"area\nin m²",town,price\n' + "".join(f'{a},"Bad\nUlm {i % 3}",{PRICES[i]}\n' for i, a in enumerate(AREAS)),
        {"area\nin m²": "number", "town": "category"},
        "",
    ),
    "booleans": ("a.csv", text({"view": cycle("True", "False", "TRUE"), "area": AREAS}), {"view": "category"}, ""),
    "missing values": (
        "a.csv",
        text({"area": [*AREAS[:-8], "", "NA", "N/A", "null", "-", "?", "<NA>", "#N/A"]}),
        {"area": "number"},
        "",
    ),
    "a class that is a word for missing values": (
        "a.csv",
        text({"area": AREAS, "price": cycle("None", "High", "Low", "")}),
        {"area": "number"},
        "price: 15 cells such as 'None' are no class, but count as missing",
    ),
    "infinities": ("a.csv", text({"area": [*AREAS[:-2], "inf", "-Infinity"]}), {"area": "number"}, "2 cells"),
    "200 columns": (
        "a.csv",
        text({f"x{i}": RANDOM.normal(size=N).round(3) for i in range(200)}),
        {"x199": "number"},
        "",
    ),
    "gzip": ("a.csv.gz", gzip.compress(text({"area": AREAS}).encode()), {"area": "number"}, ""),
    "json lines": (
        "a.jsonl",
        "".join(
            json.dumps({"area": a, "view": i % 2 == 0, "grade": [1, "a", True][i % 3], "sold": d, "price": p}) + "\n"
            for i, (a, d, p) in enumerate(zip(AREAS, dates("%Y-%m-%d"), PRICES, strict=True))
        ),
        {"area": "number", "view": "category", "grade": "category", "sold": "date"},
        "",
    ),
    "high cardinality": (
        "a.csv",
        "town,price\n" + "".join(f"town {t},{RANDOM.normal()}\n" for t in RANDOM.integers(0, 90, 900)),
        {"town": "category"},
        "the 50 most common categories, the others share an input",
    ),
}


def written(folder, name, content):
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("case", TABLES)
def test_the_table_is_read_decided_and_encoded(tmp_path, case):
    name, content, kinds, words = TABLES[case]
    table = read_table(written(tmp_path, name, content))
    schema = infer_schema(table, ["price"])
    found = {column.name: column.kind for column in schema.columns}
    assert kinds.items() <= found.items()
    assert words in "\n".join(schema.decisions())
    assert not schema.suspicious
    values = schema.values(table)
    inputs = schema.encode(values)
    assert inputs.shape == (len(table), len(schema.input_names))
    assert (np.nanstd(inputs, axis=0) > 0).any()
    targets = schema.target_values(table)
    assert abs(np.nanmean(targets) - np.mean(PRICES)) < 1 or case == "high cardinality" or schema.classes


def test_numbers_are_what_people_mean(tmp_path):
    for case, expected in {
        "currencies": [a * 31 for a in AREAS],
        "accounting": [-a if a < 100 else a for a in AREAS],
        "european": AREAS,
        "units": AREAS,
        "swiss": [round(1000 * a) for a in AREAS],
        "percentages": [a / 2 for a in AREAS],
    }.items():
        name, content, _, _ = TABLES[case]
        table = read_table(written(tmp_path, name, content))
        values = infer_schema(table, ["price"]).values(table)
        np.testing.assert_allclose(values[:, 0], expected, atol=0.051, err_msg=case)


def test_dates_of_parquet_files_are_those_of_text(tmp_path):
    moments = [datetime.datetime(2023, 1, 5, 7, 30) + datetime.timedelta(days=11 * i, hours=5 * i) for i in range(N)]
    frame = pl.DataFrame({"sold": moments, "price": PRICES}).with_columns(
        day=pl.col("sold").cast(pl.Date),
        zoned=pl.col("sold").dt.replace_time_zone("Europe/Berlin"),
        clock=pl.col("sold").cast(pl.Time),
        spent=pl.duration(hours=pl.int_range(N) ** 2),
        parts=pl.concat_list("price", "price"),
    )
    frame.write_parquet(tmp_path / "a.parquet")
    table = read_table(tmp_path / "a.parquet")
    schema = infer_schema(table, ["price"])
    kinds = {column.name: column.kind for column in schema.columns}
    assert kinds == {"sold": "date", "day": "date", "zoned": "date", "clock": "date", "spent": "number"}
    assert [column.name for column in schema.dropped] == ["parts"]
    as_text = frame.select("sold", "day", "zoned", "clock", spent=pl.col("spent").dt.total_seconds())
    as_text.with_columns(zoned=pl.col("zoned").dt.to_string("iso")).write_csv(tmp_path / "b.csv")
    other = read_table(tmp_path / "b.csv")
    np.testing.assert_allclose(schema.values(other), schema.values(table))


SMALL = "--epochs 2 --hidden 4 --restarts 1 --hypotheses 2"
SMALLEST = [*SMALL.split(), "--rule", "mcl"]  # without a forest
THROUGH = ["european", "json lines"]


@pytest.mark.parametrize("case", THROUGH)
def test_the_first_command_works_and_so_do_the_others(tmp_path, case, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, content, _, words = TABLES[case]
    written(tmp_path, name, content)
    assert main(["fit", name, "--target", "price", "-o", "model", *SMALL.split()]) == 0
    assert words in capsys.readouterr().err
    assert main(["predict", "model", name, "-o", "answers.csv"]) == 0
    assert "rows" not in capsys.readouterr().err  # no notice: all cells fit
    assert len(read_table(tmp_path / "answers.csv")) == N
    assert main(["describe", name, "--target", "price"]) == 0
    assert "missing  values" in capsys.readouterr().out


@pytest.mark.parametrize("target", ["town", "sold"])
def test_a_target_of_classes_is_learned_and_answered(tmp_path, capsys, monkeypatch, target):
    monkeypatch.chdir(tmp_path)
    columns = {"area": AREAS, "town": cycle("Ulm", "Bonn", ""), "rooms": cycle(3, 4, 5), "sold": cycle("True", "False")}
    written(tmp_path, "a.csv", text(columns))
    assert main(["describe", "a.csv", "--target", target]) == 0
    assert "target with" in capsys.readouterr().out
    assert main(["fit", "a.csv", "--target", target, "-o", "model", *SMALL.split(), "--drop", "price"]) == 0
    assert re.search(r"the first guess is right in [\d.]+%", capsys.readouterr().out)
    typed = columns | {"sold": [cell == "True" for cell in columns["sold"]]}
    pl.DataFrame(typed).write_parquet("new.parquet")  # with booleans where the other had text
    assert main(["predict", "model", "new.parquet", "-o", "b.csv", "--interval", "0.9", "--keep", target]) == 0
    answers = pl.read_csv("b.csv", infer_schema=False)
    known = {str(cell).lower() if target == "sold" else str(cell) for cell in columns[target]} - {""}
    assert set(answers[f"{target}_1"]) | set(answers[f"{target}_2"]) <= known
    shares = answers.select(pl.col("^probability_.*$").cast(float))
    assert (shares.sum_horizontal() - 1).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("content", "target", "message"),
    [
        (text({"area": AREAS, "price": [5] * N}), "price", r"got the constant 5. There is nothing to learn. Name"),
        (HEAD + "\n".join(ROWS[:3]), "price", r"must have at least 10 rows, got 3. .*Add rows"),
        (HEAD + "\n".join([*ROWS, "1,2,3", "4,5,6,7"]), "price", r"header \(2\), got 3 in line 62 and in 1 more. Put"),
        (text({"sold": dates("%Y-%m-%d")}), "sold", r"target 'sold'` must contain numbers, got '2023-01-05' in row 1"),
        (text({"area": [""] * N}), "price", r"have a column besides the targets, got 'area' is dropped"),
        (text({"Area": AREAS, "price": [5] * N}), "area,price", r"(?s)2 problems.*Did you mean 'Area'"),
    ],
    ids=["constant target", "3 rows", "ragged", "a date as target", "nothing to learn from", "two at once"],
)
def test_what_cannot_be_learned_gets_one_message(tmp_path, capsys, monkeypatch, content, target, message):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "a.csv", content)
    assert main(["fit", "a.csv", "--target", target, "-o", "model"]) == 2
    told = capsys.readouterr().err
    assert re.search(message, told)
    assert told.count("torchmcl fit:") == 1


def test_kept_columns_dates_and_numbers_can_be_chosen(tmp_path):
    columns = {
        "day": [20230101 + i % 28 for i in range(N)],
        "grade": cycle("1", "2", "x"),
        "name": [f"n{i}" for i in range(N)],
    }
    table = read_table(written(tmp_path, "a.csv", text(columns)))
    schema = infer_schema(table, ["price"], date=["day"], numeric=["grade"], keep=["name"])
    assert [column.kind for column in schema.columns] == ["date", "number", "category"]
    assert "20 cells that are not numbers (up to 1e100) count as missing" in schema.decisions()[1]


def test_a_file_of_answers_that_does_not_fit_gets_one_message(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "a.csv", text({"area": AREAS, "rooms": cycle(1, 2, 3), "town": cycle("Ulm", "Bonn")}))
    assert main(["fit", "a.csv", "--target", "price", "-o", "model", *SMALLEST, "--quiet"]) == 0
    written(tmp_path, "new.csv", "town,Area,rooms\nUlm,1,many\n")
    assert main(["predict", "model", "new.csv", "-o", "answers.csv"]) == 2
    told = capsys.readouterr().err
    assert "new.csv has 2 problems" in told
    assert "Rename 'Area' to 'area'" in told
    assert "column 'rooms'` must hold finite numbers, got 'many' in row 1" in told
    written(tmp_path, "new.csv", "town,rooms,area\nRome,1,100\n")
    assert main(["predict", "model", "new.csv", "-o", "answers.csv"]) == 0
    assert "town: 1 cell (first 'Rome' in row 1)" in capsys.readouterr().err
    assert main(["predict", "model", "new.csv", "-o", "answers.csv", "--strict"]) == 2
