"""Readers and writers of tables: CSV, TSV, Parquet and JSON lines; text formats may be compressed with gzip.

Columns of text files are read as text. `kinds.py` determines their kind from all values instead of the first hundred,
so that an error message can name the row that does not fit.
"""

import contextlib
import csv
import gzip
import json
import math
import re
import zlib
from collections.abc import Sequence
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import polars as pl

from torchmcl import io
from torchmcl.errors import bad_value
from torchmcl_tables.data.table import Table, unique_names
from torchmcl_tables.data.values import NUMBER


def read_parquet(path: Path) -> tuple[Any, tuple[str, ...]]:
    """Read a Parquet file as a polars data frame, with notes on renamed columns.

    Lists and structures, which no model accepts, are not decoded: their columns keep their names and types, but contain
    nulls.

    Raises:
        ValueError: If the file has duplicate column names, or exceeds the size limit of tables.
        PolarsError, PanicException: If the file is damaged.
        OSError: If the file cannot be read.
    """
    content = path.read_bytes()  # polars would expand wildcards in the path, and map a file that may change
    table = pl.scan_parquet(content)
    try:
        schema = table.collect_schema()
    except pl.exceptions.DuplicateError as error:
        rule, name = "have unique column names", str(error).partition("'")[2].rpartition("'")[0]
        advice = "Rename the column when writing the file."
        raise ValueError(bad_value("read_table", path.name, rule, f"{name!r} twice", advice)) from error
    n_rows = table.select(pl.len()).collect().item()
    io.check_limit("read_table", path.name, "table_bytes", 8 * n_rows * len(schema))  # a few bytes can encode many rows
    nulls = [pl.lit(None, dtype).alias(name) for name, dtype in schema.items() if dtype.is_nested()]
    frame = table.with_columns(nulls).collect()
    if frame.height != n_rows:
        raise pl.exceptions.ShapeError(f"it has {frame.height:,} rows, not the {n_rows:,} that its footer states")
    categories = [name for name in _categories(content) if name in schema]
    frame = frame.cast(dict.fromkeys(categories, pl.String)).cast(dict.fromkeys(categories, pl.Categorical))
    frame.columns, notes = unique_names(frame.columns)
    return frame, tuple(notes)


def _categories(content: bytes) -> list[str]:
    """Return the columns that pandas wrote as categories, which Parquet stores with the type of their values."""
    try:
        notes = json.loads(pl.read_parquet_metadata(content)["pandas"])
        return [str(column["name"]) for column in notes["columns"] if column["pandas_type"] == "categorical"]
    except (LookupError, TypeError, ValueError, RecursionError):  # no pandas metadata
        return []


# Maximum nesting depth of a JSON line: the parser of polars crashes at a depth of about a thousand.
_NESTING = 64
# Format of each file extension.
FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
# Number of rows converted to Python objects at once.
_ROWS_AT_ONCE = 65_536


def table_format(path: Path) -> tuple[str, bool]:
    """Return the format of a file according to its name, and whether the file is compressed.

    Raises:
        ValueError: If the file extension is unknown.

    Example:
        >>> table_format(Path("houses.csv.gz"))
        ('csv', True)
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    zipped = bool(suffixes) and suffixes[-1] == ".gz"
    kind = FORMATS.get("".join((suffixes[:-1] if zipped else suffixes)[-1:]))
    if kind is None or (zipped and kind == "parquet"):
        rule = f"end in {', '.join(FORMATS)} (text formats also with .gz)"
        raise ValueError(bad_value("table_format", "file", rule, repr(str(path))))
    return kind, zipped


def read_table(path: Path, decimal: str = "") -> Table:
    """Read the table in a file.

    Args:
        path: Path of the file.
        decimal: Decimal separator, "." or ","; by default detected in all columns together.

    Raises:
        ValueError: If the content does not match the file extension, has no rows, or exceeds the size limit of tables.
        OSError: If the file cannot be read.
    """
    kind, zipped = table_format(path)
    if not path.exists():
        raise FileNotFoundError(bad_value("read_table", "file", "exist", repr(str(path)), "Check the path."))
    if path.is_dir():
        advice = "Give the path of a file in this folder."
        raise ValueError(bad_value("read_table", "file", "be a table", f"the folder {str(path)!r}", advice))
    io.check_limit("read_table", path.name, "table_bytes", path.stat().st_size)
    try:
        table = _read(path, kind, zipped)
    except pl.exceptions.PanicException as error:  # a panic inside polars is not an Exception
        raise _not_a_table(path, kind, "it cannot be read") from error
    except (pl.exceptions.PolarsError, UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error, csv.Error) as error:
        raise _not_a_table(path, kind, str(error).strip() or type(error).__name__) from error
    if not table.frame.height or not table.frame.width:
        raise ValueError(bad_value("read_table", "file", "have at least one row under its header", repr(str(path))))
    if decimal:
        table.decide_decimal((), decimal, chosen=True)
    return table


def _not_a_table(path: Path, kind: str, reason: str) -> ValueError:
    rule = "be a Parquet file" if kind == "parquet" else f"be a table in {kind} format, UTF-8"
    got = f"{str(path)!r}: {reason.splitlines()[0].rstrip('.')[:200]}"
    return ValueError(bad_value("read_table", "file", rule, got))


def _read(path: Path, kind: str, zipped: bool) -> Table:
    if kind == "parquet":
        return Table(path.name, *read_parquet(path))
    content = io.unpacked("read_table", path, "table_bytes") if zipped else path.read_bytes()
    if not content:
        raise pl.exceptions.NoDataError("the file is empty")
    if not zipped:
        _check_not_archive(path, kind, content[:4])
    content, encoding = _in_utf8(content)
    if kind == "jsonl":
        converted = (f"the file is in {encoding}",) if encoding else ()
        return Table(path.name, _read_lines(path, content), converted)
    return Table(path.name, *_read_text(path.name, content, kind, encoding))


def _check_not_archive(path: Path, kind: str, start: bytes) -> None:
    """Check that a file with the extension of a text format is not compressed."""
    rule = f"be a table in {kind} format, according to its name"
    if start.startswith(b"\x1f\x8b"):
        got = f"{str(path)!r}, which is compressed with gzip"
        raise ValueError(bad_value("read_table", "file", rule, got, f"Name it {path.name}.gz, or unpack it."))
    if start == b"PK\x03\x04":
        got = f"{str(path)!r}, which is a ZIP archive or a spreadsheet"
        raise ValueError(bad_value("read_table", "file", rule, got, "Unpack it, or save the sheet as CSV."))


def _read_lines(path: Path, content: bytes) -> Any:
    """Read JSON lines as a polars data frame; a field with several types becomes text."""
    content = _not_packed(content.removeprefix("\ufeff".encode()))
    lines = content.splitlines()
    # The polars parser crashes the process at a nesting depth of about a thousand: such lines are not passed to it.
    if all(line.count(b"{") + line.count(b"[") <= _NESTING for line in lines):
        try:
            return pl.read_ndjson(BytesIO(content), infer_schema_length=None)
        except (pl.exceptions.ComputeError, pl.exceptions.SchemaError):
            pass
    rows = [_row_of_line(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    names = dict.fromkeys(name for row in rows for name in row)
    return pl.DataFrame({name: [_plain(row.get(name)) for row in rows] for name in names})


def _row_of_line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    rule, advice = "have one JSON object in each line", ""
    got = f"{line[:40].decode('utf-8', errors='replace')!r} in line {number:,}"
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row, got, advice = None, f"{got}, which is not JSON", "Correct or remove the line."
    if not isinstance(row, dict):
        raise ValueError(bad_value("read_table", path.name, rule, got, advice))
    return row


def _plain(value: Any) -> str | None:
    """Return a JSON value as text."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


def check_writable_columns(path: Path, table: Table, names: Sequence[str]) -> None:
    """Check that columns of a table can be written to a file, before any predictions are computed.

    Raises:
        ValueError: If a column does not exist, or the file format does not support its type.
    """
    kind, _ = table_format(path)
    for name in names:
        dtype = table.series(name, "--keep").dtype
        impossible = {"parquet": (), "jsonl": (pl.Binary,)}.get(kind, (pl.Binary, pl.Duration))
        if dtype.is_nested() or dtype in (pl.Object, *impossible):
            rule, got = f"name columns that a {kind} file supports", f"{name!r} of type {dtype}"
            raise ValueError(
                bad_value("write_table", "--keep", rule, got, "Omit this column, or convert it to text first.")
            )


def write_table(path: Path, frame: Any) -> None:
    """Write a polars data frame atomically, in the format given by the file extension.

    Raises:
        ValueError: If the file extension is unknown.
        OSError: If the file cannot be written.
    """
    kind, zipped = table_format(path)
    with io.replaced_file(path) as file:
        if zipped:
            with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file) as packed:
                _write(frame, kind, packed)
        else:
            _write(frame, kind, file)


def _write(frame: Any, kind: str, target: Any) -> None:
    if kind == "parquet":
        frame.write_parquet(target)
    elif kind == "jsonl":
        _write_lines(frame, target)
    else:
        frame.write_csv(target, separator="\t" if kind == "tsv" else ",")


def _write_lines(frame: Any, target: Any) -> None:
    """Write JSON lines; infinite numbers become the text "inf", because null represents missing values."""
    infinite = [series.name for series in frame if series.dtype.is_float() and series.is_infinite().any()]
    if not infinite:
        frame.write_ndjson(target)
        return
    for low in range(0, frame.height, _ROWS_AT_ONCE):
        part = frame.slice(low, _ROWS_AT_ONCE)
        buffer = BytesIO()
        part.write_ndjson(buffer)
        ends = {name: part.get_column(name).to_list() for name in infinite}
        lines = []
        for place, line in enumerate(buffer.getvalue().splitlines()):
            row = json.loads(line)
            row |= {name: str(values[place]) for name, values in ends.items() if values[place] in (math.inf, -math.inf)}
            lines.append(json.dumps(row, ensure_ascii=False) + "\n")
        target.write("".join(lines).encode())


# First characters of formulas in Excel, LibreOffice and Google Sheets, including full-width East Asian characters.
_BEGINS = r"^[=+\-@\t\r\n\uFF1D\uFF0B\uFF0D\uFF20]"
_NUMBER = f"^(?:{NUMBER.pattern})$"


def escape_formulas(frame: Any) -> Any:
    """Escape text and column names of a polars data frame that spreadsheets would execute as formulas.

    An apostrophe is put before such text, as users of spreadsheets do. Numbers, including numbers stored as text, are
    unchanged.

    Example:
        >>> frame = pl.DataFrame({"note": ["=1+1", "-3.5", "fine"]})
        >>> escape_formulas(frame)["note"].to_list()
        ["'=1+1", '-3.5', 'fine']
    """
    columns: list[Any] = []
    names: set[str] = set()
    for series in frame:
        if series.dtype in (pl.String, pl.Categorical, pl.Enum):
            text = pl.col(series.name).cast(pl.String)
            risky = text.str.contains(_BEGINS) & ~text.str.contains(_NUMBER)
            series = frame.select(pl.when(risky).then("'" + text).otherwise(text).alias(series.name)).to_series()
        name = f"'{series.name}" if re.match(_BEGINS, series.name) else series.name
        while name in names or (name != series.name and name in frame.columns):
            name = f"'{name}"
        names.add(name)
        columns.append(series.alias(name))
    return pl.DataFrame(columns)


EXAMPLE, EXAMPLE_TARGET = "diabetes.csv", "progression"
# Data of Efron, Hastie, Johnstone and Tibshirani, Least Angle Regression (2004), in the original order and units.
_COLUMNS = (
    *("age", "sex", "bmi", "blood_pressure", "total_cholesterol", "ldl", "hdl", "cholesterol_ratio"),
    *("log_triglycerides", "glucose", EXAMPLE_TARGET),
)


def write_example(path: Path) -> None:
    """Write the example table: 442 patients with diabetes and the disease progression after one year.

    Raises:
        ValueError: If the file exists and has other content.
        OSError: If the file cannot be written.
    """
    from sklearn.datasets import load_diabetes

    patients = load_diabetes(scaled=False)
    buffer = StringIO()
    rows = csv.writer(buffer, lineterminator="\n")
    rows.writerow(_COLUMNS)
    for row, target in zip(patients.data.tolist(), patients.target.tolist(), strict=True):
        rows.writerow([f"{value:g}" for value in (*row, target)])
    content = buffer.getvalue().encode()
    if path.exists() and path.read_bytes() != content:
        rule, advice = "be new, or contain the example", "Give another name: torchmcl fit --example NAME.csv"
        raise ValueError(bad_value("write_example", "table", rule, repr(str(path)), advice))
    io.write_atomically(path, content)


# ---------------------------------------------------------------------------- text files

# Possible separators of a .csv file; many programs write semicolons where numbers have a decimal comma.
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_MARK = "\ufeff".encode()
# First line in which a spreadsheet declares the separator, and the first index of a data frame that may be a year.
_DECLARED, _FIRST_YEAR = re.compile(rb"(?:\xef\xbb\xbf)?sep=([,;|\t])\r?\n"), 1000
# Text with line feeds has a line feed within this many bytes.
_LONGEST_LINE = 1 << 16
# First bytes of gzip, zlib and zstd data.
_PACKED = (b"\x1f\x8b", b"x\x01", b"x\x5e", b"x\x9c", b"x\xda", b"\x28\xb5\x2f\xfd")
_CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
# UTF-16 by the first bytes of a file: a byte order mark, or ASCII characters interleaved with zero bytes.
_WIDE = {
    re.compile(rb"\xff\xfe|\xfe\xff"): "utf-16",
    re.compile(rb"[^\0]\0[^\0]\0"): "utf-16-le",
    re.compile(rb"\0[^\0]\0[^\0]"): "utf-16-be",
}


def _read_text(name: str, content: bytes, kind: str, encoding: str = "") -> tuple[Any, tuple[str, ...], str]:
    """Read a delimited text table; the header is read as a row to detect repeated names.

    Args:
        name: Name of the file, for messages.
        content: Content of the file, in UTF-8 or a single-byte encoding.
        kind: Format, "csv" or "tsv".
        encoding: Encoding of the file before the conversion by `_in_utf8`; empty if it was not converted.

    Returns:
        The columns as text, notes on the file, and the separator.
    """
    content = _tidied(content)
    separators = ("\t",) if kind == "tsv" else tuple(_SEPARATORS)
    if declared := _DECLARED.match(content):
        content, separators = content[declared.end() :], (declared[1].decode(),)
    try:
        raw, separator = _raw(name, content, separators)
    except pl.exceptions.ComputeError as error:
        if "utf-8" not in str(error) or encoding or content.startswith(_PACKED) or _CONTROLS.search(content):
            raise
        content, encoding = _from_one_byte(content)
        raw, separator = _raw(name, content, separators)
    titles = [(value or "").removeprefix("\ufeff").strip() for value in raw.row(0)]
    names, notes = unique_names(titles)
    frame = raw.slice(1).rename(dict(zip(raw.columns, names, strict=True)))
    decisions = [f"the file is in {encoding}"] * bool(encoding)
    decisions += [f"its fields are separated by {_SEPARATORS[separator]}"] * (kind == "csv" and separator != ",")
    if frame.width > 1 and (kept := frame.filter(~pl.all_horizontal(pl.all().is_null()))).height < frame.height:
        decisions.append(f"{frame.height - kept.height:,} rows without any value are left out")
        frame = kept
    if titles[0] in ("", "Unnamed: 0") and _is_index(frame.to_series(0)):  # the second after another pass of pandas
        frame, notes = frame.drop(names[0]), ["column 1 numbers the rows and has no name: it is left out", *notes[1:]]
    unnamed = [name for name, title in zip(names, titles, strict=True) if not title and name in frame.columns]
    frame = frame.drop([name for name in unnamed if frame.get_column(name).null_count() == frame.height])
    return frame, (*decisions, *notes), separator


def _is_index(series: Any) -> bool:
    """Return whether a column without a name is the index of a data frame; years and dates are not."""
    numbers = series.cast(pl.Int64, strict=False).to_numpy()
    return bool(len(numbers) and 0 <= numbers[0] < _FIRST_YEAR and (numbers[1:] > numbers[:-1]).all())


def _raw(name: str, content: bytes, separators: tuple[str, ...]) -> tuple[Any, str]:
    """Parse all rows as text, including the header, and return the separator too."""
    separator = _separator(content, separators)
    try:
        source = BytesIO(_not_packed(content))
        frame = pl.read_csv(source, has_header=False, infer_schema=False, separator=separator)
    except pl.exceptions.ComputeError as error:
        if line := _stray_quote(content, separator):
            rule, got = "have double quotes in pairs around whole fields", f"a stray one in line {line:,}"
            advice = 'Write a quote inside a field twice, and enclose the field in quotes: "6"" pipe".'
            raise ValueError(bad_value("read_table", name, rule, got, advice)) from error
        if "more fields" not in str(error):
            raise
        raise ValueError(_ragged(name, content, separator)) from error
    return frame, separator


def _separator(content: bytes, marks: tuple[str, ...]) -> str:
    """Return the separator that splits the header into the most columns, and the first row into the same number.

    If there are several, commas are decimal separators.
    """
    file = BytesIO(content)
    lines = [_record(file), _record(file)]
    header, row = ([_n_fields(line, mark) for mark in marks] for line in lines)
    fits = [width if not lines[1] or width == there else 0 for width, there in zip(header, row, strict=True)]
    widths = fits if max(fits) > 1 else header
    return marks[0] if max(widths) == 1 else marks[-1 - widths[::-1].index(max(widths))]


def _record(file: BytesIO) -> str:
    """Read the next record, including quoted line breaks."""
    line = file.readline()
    while line.count(b'"') % 2 and (more := file.readline()):
        line += more
    return line.decode("utf-8", errors="replace").removeprefix("\ufeff")


def _n_fields(line: str, mark: str) -> int:
    # Quoted names may contain separators. A line without quotes is split directly, because csv rejects long names.
    if '"' not in line or len(line) > csv.field_size_limit():
        return line.count(mark) + 1
    with contextlib.suppress(csv.Error):
        return len(next(csv.reader(StringIO(line, newline=""), delimiter=mark), []))
    return line.count(mark) + 1


def _stray_quote(content: bytes, separator: str) -> int:
    """Return the number of the first line with a quote inside a field or an unclosed quote; 0 if there is none."""
    mark = re.escape(separator.encode())
    stray = re.compile(rb'[^"' + mark + rb'\r\n]"[^"' + mark + rb"\r\n]")
    opened_in = 0
    for number, line in enumerate(BytesIO(content), start=1):
        if stray.search(line.replace(b'""', b"").strip()):
            return number
        if line.count(b'"') % 2:
            opened_in = 0 if opened_in else number
    return opened_in


def _ragged(name: str, content: bytes, separator: str) -> str:
    """Return the error message about lines with more fields than the header."""
    first, count, n_names, n_fields = 0, 0, 0, 0
    with contextlib.suppress(csv.Error, UnicodeDecodeError):
        rows = csv.reader(TextIOWrapper(BytesIO(content), "utf-8", newline=""), delimiter=separator)
        n_names = len(next(rows, []))
        for row in rows:
            if len(row) > n_names:
                first, n_fields = (first, n_fields) if count else (rows.line_num, len(row))
                count += 1
    more = f" and in {count - 1:,} more" if count > 1 else ""
    got = f"{n_fields} in line {first:,}{more}" if count else "more in a line"
    rule = f"have at most as many fields in each line as in its header ({n_names or 'which has fewer'})"
    marks = _SEPARATORS[separator]
    advice = f"Put a field that contains {marks} into double quotes, or name every column in the header."
    return bad_value("read_table", name, rule, got, advice)


def _in_utf8(content: bytes) -> tuple[bytes, str]:
    """Convert UTF-16 content to UTF-8, and return the original encoding; empty if nothing was converted."""
    encoding = next((name for mark, name in _WIDE.items() if mark.match(content)), "")
    return (content.decode(encoding).encode(), encoding.upper()) if encoding else (content, "")


def _tidied(content: bytes) -> bytes:
    """Remove leading empty lines, and convert line ends to line feeds.

    Some programs write empty lines first, and old spreadsheets end lines with a carriage return only.
    """
    start = content[:_LONGEST_LINE].removeprefix(_MARK)
    if start.lstrip(b"\r\n") != start:
        content = content.removeprefix(_MARK).lstrip(b"\r\n")
    if b"\r" in start and b"\n" not in start and b"\n" not in content:
        content = content.replace(b"\r", b"\n")
    return content


def _from_one_byte(content: bytes) -> tuple[bytes, str]:
    """Convert single-byte content to UTF-8, from Windows-1252 or, if that is impossible, from Latin-1."""
    try:
        return content.decode("cp1252").encode(), "Windows-1252 (Latin-1)"
    except UnicodeDecodeError:
        return content.decode("latin-1").encode(), "Latin-1"


def _not_packed(content: bytes) -> bytes:
    """Return content that polars reads as text: without a mark, a header that begins with x^ looks like zlib data."""
    return _MARK + content if content.startswith(_PACKED) else content
