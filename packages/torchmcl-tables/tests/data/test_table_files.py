"""Tables in files: every format gives the same table, and what is no table is refused with its reason."""

import contextlib
import dataclasses
import datetime
import gzip
import json
import math
import zlib

import polars as pl
import pytest

from house_tables import houses, write_csv
from torchmcl_tables.data import Table, infer_schema, read_table, write_table
from torchmcl_tables.data.table_files import check_writable_columns


def typed(rows):
    return [{k: (None if v == "" else float(v) if k != "city" else v) for k, v in row.items()} for row in rows]


def written(folder, suffix, rows):
    path = folder / f"houses{suffix}"
    if suffix in (".csv", ".tsv"):
        return write_csv(path, rows, "," if suffix == ".csv" else "\t")
    if suffix == ".parquet":
        pl.DataFrame(typed(rows), infer_schema_length=None).write_parquet(path)
    elif suffix.startswith(".jsonl"):
        text = "".join(json.dumps(row) + "\n" for row in typed(rows)).encode()
        path.write_bytes(gzip.compress(text) if suffix.endswith(".gz") else text)
    else:
        plain = write_csv(folder / "plain", rows)
        path.write_bytes(gzip.compress(plain.read_bytes()))
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".csv.gz", ".parquet", ".jsonl", ".jsonl.gz"])
def test_every_format_gives_the_same_schema_and_values(tmp_path, suffix):
    rows = houses(60)
    reference = read_table(write_csv(tmp_path / "reference.csv", rows))
    table = read_table(written(tmp_path, suffix, rows))
    assert table.columns == reference.columns
    schema, expected = (infer_schema(t, ["price"], drop=["days"]) for t in (table, reference))
    assert dataclasses.replace(schema, decimal=".", separator=",") == expected
    left, right = schema.values(table), schema.values(reference)
    assert ((left == right) | ((left != left) & (right != right))).all()


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".csv.gz", ".parquet", ".jsonl", ".ndjson", ".tsv.gz"])
def test_what_is_written_is_read_again(tmp_path, suffix):
    frame = pl.DataFrame({"a": [1.5, -2.0], "b": ["x,y", 'q"r\n']})
    path = tmp_path / f"out{suffix}"
    write_table(path, frame)
    again = read_table(path).frame
    assert again.get_column("a").cast(pl.Float64).to_list() == [1.5, -2.0]
    assert again.get_column("b").to_list() == ["x,y", 'q"r\n']
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_infinite_numbers_of_json_lines_are_text_and_not_missing(tmp_path):
    frame = pl.DataFrame({"low": [-math.inf, 1.5, None], "high": [math.inf, 2.5, 3.0], "name": ["ä", "b", "c"]})
    write_table(tmp_path / "a.jsonl", frame)
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()]
    assert rows == [
        {"low": "-inf", "high": "inf", "name": "ä"},
        {"low": 1.5, "high": 2.5, "name": "b"},
        {"low": None, "high": 3.0, "name": "c"},
    ]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_columns_that_cannot_be_written_are_refused_and_all_others_are_written(tmp_path, suffix):
    frame = many_types().with_columns(binary=pl.lit(b"a"), length=pl.lit(datetime.timedelta(1)))
    path = tmp_path / f"out{suffix}"
    for name in frame.columns:
        one = Table("t.parquet", frame.select(name))
        writable = True
        with contextlib.suppress(ValueError):
            writable = False
            check_writable_columns(path, one, [name])
            writable = True
        if writable:
            write_table(path, one.frame)
            assert read_table(path).frame.height == frame.height
    with pytest.raises(ValueError, match=rf"`--keep` must name columns that a {suffix[1:]} file supports, got 'a' of"):
        check_writable_columns(path, Table("t", pl.DataFrame({"a": [[1, 2]]})), ["a"])


def many_types():
    """Return a frame with a column of each type that people keep in Parquet files, and two that are nested."""
    day = datetime.datetime(2020, 1, 2, 3, 4)
    frame = pl.DataFrame(
        {
            "a.b": [1.5, None, -2.0],
            "a": [1, 2, None],
            "text": ["x", None, "ß"],
            "flag": [True, None, False],
            "day": [day.date(), None, day.date()],
            "time": [day, None, day],
            "nothing": [None, None, None],
            "small": pl.Series([1, None, -1], dtype=pl.Int8),
            "single": pl.Series([0.5, None, -1.0], dtype=pl.Float32),
            "list": [[1, 2], None, []],
            "structure": [{"u": 1}, {"u": 2}, None],
        }
    )
    return frame.with_columns(pl.col("text").cast(pl.Categorical).alias("category"))


@pytest.mark.parametrize(
    "options",
    [{}, {"compression": "uncompressed", "row_group_size": 1}],
    ids=["zstd", "row by row"],
)
def test_columns_of_parquet_files_keep_their_types_and_values(tmp_path, options):
    frame = many_types()
    frame.write_parquet(tmp_path / "a.parquet", **options)
    table = read_table(tmp_path / "a.parquet")
    assert table.frame.schema == frame.schema
    flat = [name for name in frame.columns if name not in ("list", "structure")]
    assert table.frame.select(flat).equals(frame.select(flat))
    reasons = {column.name: column.reason for column in infer_schema(table, ["a"]).dropped}
    for name, kind in (("list", "List"), ("structure", "Struct")):
        assert f"its cells are of type {kind}" in reasons[name]


def uncompressed(folder, columns):
    path = folder / "a.parquet"
    pl.DataFrame(columns).write_parquet(path, compression="uncompressed", statistics=False)
    return path


def test_duplicate_column_names_of_parquet_files_are_refused(tmp_path):
    path = uncompressed(tmp_path, {"first": [1], "other": [2]})
    path.write_bytes(path.read_bytes().replace(b"other", b"first"))
    with pytest.raises(ValueError, match=r"`a.parquet` must have unique column names, got 'first' twice. Rename"):
        read_table(path)


@pytest.mark.parametrize("n_rows", [1, 9_999, 10_001])
def test_parquet_files_with_another_number_of_rows_than_stated_are_refused(tmp_path, n_rows):
    path = uncompressed(tmp_path, {"a": [0] * 10_000})
    # The first of these numbers is the row count of the file. The others are those of the row group and its column.
    stated, changed = (bytes([2 * n & 127 | 128, n >> 6 & 127 | 128, n >> 13]) for n in (10_000, n_rows))
    content = path.read_bytes()
    place = content.index(b"\x16" + stated, -int.from_bytes(content[-8:-4], "little") - 8) + 1
    path.write_bytes(content[:place] + changed + content[place + 3 :])
    with pytest.raises(ValueError, match=rf"be a Parquet file, got .*: it has 10,000 rows, not the {n_rows:,} that"):
        read_table(path)


def test_semicolons_and_a_byte_order_mark_are_understood(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("\ufeffa;b\n1;2\n3;4\n".encode())
    assert read_table(path).frame.to_dict(as_series=False) == {"a": ["1", "3"], "b": ["2", "4"]}


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.csv.gz"])
def test_compressed_content_that_does_not_say_so_is_never_unpacked(tmp_path, name, pack):
    content = pack(b"a,b\n1,2\n")
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(ValueError, match=r"must be a table in|must have one JSON object in each line"):
        read_table(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", r"must be a table in csv format, UTF-8, got .*empty"),
        ("a.csv", b"a,b\n", r"at least one row under its header"),
        ("a.csv", b"a,b\n1,2\n1,2,3\n", r"as many fields in each line as in its header \(2\), got 3 in line 3. Put"),
        ("a.csv", b'a,b\n"1\n",2\n1,2,3\n1,2,3,4\n', r"got 3 in line 4 and in 1 more"),
        ("a.csv.gz", b"not gzip at all", r"must be a table in csv format"),
        ("a.parquet", b"PAR1 no, it is not", r"must be a Parquet file"),
        (
            "a.jsonl",
            b'{"a": 1}\n{"a": \n',
            r"one JSON object in each line, got '\{\"a\": ' in line 2, which is not JSON",
        ),
        ("a.jsonl", b'{"a": 1}\n[1, 2]\n', r"one JSON object in each line, got '\[1, 2\]' in line 2"),
        (
            "a.csv",
            b'a,b\n1,x\n2,6" pipe\n3,y\n',
            r"double quotes in pairs around whole fields, got a stray one in line 3",
        ),
        ("a.csv", b'a,b\n1,x\n2,"6" pipe\n3,y\n', r"got a stray one in line 3. Write a quote inside a field twice"),
        ("a.csv", b'a,b\n1,"two\nlines"\n2,"pipe\n3,y\n', r"got a stray one in line 4"),
        ("a.csv", gzip.compress(b"a,b\n1,2\n", mtime=0), r"compressed with gzip. Name it a.csv.gz, or unpack it"),
        ("a.csv", b"PK\x03\x04 a sheet", r"a ZIP archive or a spreadsheet. Unpack it, or save the sheet as CSV"),
        ("a.xlsx", b"", r"`file` must end in .csv, .tsv"),
        ("a.parquet.gz", b"", r"`file` must end in"),
        ("a", b"", r"`file` must end in"),
    ],
)
def test_what_is_no_table_is_refused_with_its_reason(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_table(path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_wide_encodings_are_read_and_named(tmp_path, encoding):
    (tmp_path / "a.csv").write_bytes("a,b\nß,2\n".encode(encoding))
    table = read_table(tmp_path / "a.csv")
    assert table.frame.to_dict(as_series=False) == {"a": ["ß"], "b": ["2"]}
    assert table.notes == (f"the file is in {encoding.upper()}",)


def test_a_file_that_is_not_there_is_an_error_of_the_system(tmp_path):
    with pytest.raises(OSError, match=r"none\.csv"):
        read_table(tmp_path / "none.csv")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "out.csv"
    path.write_text("old")
    nested = pl.DataFrame({"a": [[1, 2]]})  # CSV cannot hold lists
    with pytest.raises(pl.exceptions.PolarsError):
        write_table(path, nested)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_unknown_column_gets_the_nearest_name():
    table = Table("t.csv", pl.DataFrame({"price": [1], "area": [2]}))
    with pytest.raises(
        ValueError,
        match=r"`--target` must name a column of t.csv, got 'prize'. Its columns are .* Did you mean 'price'",
    ):
        table.series("prize", "--target")
