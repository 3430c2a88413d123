"""Tables on disk: CSV, TSV, Parquet and JSON lines, the text formats also with gzip.

Columns of text files are read as text. `schema.py` decides their type from all of their values, not from the first
hundred, so that a message can name the row that does not fit.
"""

import csv
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from torchmcl._files import replaced_file
from torchmcl._limits import NESTING, check_limit
from torchmcl._messages import bad_value, nearest_hint
from torchmcl._reading import unpacked
from torchmcl_tables.data.arrow import read_parquet
from torchmcl_tables.data.text import PACKED, in_utf8, never_unpacked, opened, read_text

__all__ = ["FORMATS", "Table", "check_writable_columns", "read_table", "table_format", "write_table"]

# The format of each ending of a file name.
FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
# Rows that become objects of Python at once.
_ROWS_AT_ONCE = 65_536
_MARK = "\ufeff".encode()
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_BRACKETS = re.compile(rb"[\[\]{}]")


@dataclass(frozen=True)
class Table:
    """A table and where it came from.

    Attributes:
        name: the file, for messages.
        frame: a polars data frame; all columns of CSV files are text, and those of lists and structures in Parquet
            files hold nulls.
        notes: what was decided when it was read.
        has_semicolons: whether its fields are separated by semicolons, as where numbers have decimal commas.
        path: of the file, for advice that can be pasted.
    """

    name: str
    frame: Any
    notes: tuple[str, ...] = ()
    has_semicolons: bool = False
    path: str = ""

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.frame.height)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.frame.columns)

    def column(self, owner: str, name: str, argument: str = "table") -> Any:
        """Return a column as a polars series.

        Raises:
            ValueError: if there is no such column; the nearest name is suggested.
        """
        if name not in self.frame.columns:
            rule = f"have a column {name!r}" if argument == "table" else f"name a column of {self.name}"
            got = f"the columns {self.listed()}" if argument == "table" else repr(name)
            subject = self.name if argument == "table" else argument
            raise ValueError(bad_value(owner, subject, rule, got, self.hint(name)))
        return self.frame.get_column(name)

    def listed(self) -> str:
        """Return the first names of the columns, for messages."""
        known = self.columns
        return ", ".join(map(repr, known[:8])) + (" ..." if len(known) > 8 else "")

    def hint(self, name: str) -> str:
        """Return the sentence about the column that has nearly this name, empty if there is none."""
        return nearest_hint(name, self.columns).strip()

    def take(self, rows: Any) -> "Table":
        """Return the table of some rows, given by their places."""
        return replace(self, frame=self.frame[rows])


def table_format(owner: str, path: Path) -> tuple[str, bool]:
    """Return the format of a file by its name, and whether it is compressed.

    Raises:
        ValueError: if the ending is unknown.

    Example:
        >>> table_format("example", Path("houses.csv.gz"))
        ('csv', True)
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    zipped = bool(suffixes) and suffixes[-1] == ".gz"
    kind = FORMATS.get("".join((suffixes[:-1] if zipped else suffixes)[-1:]))
    if kind is None or (zipped and kind == "parquet"):
        rule = f"end in {', '.join(FORMATS)} (text formats also with .gz)"
        raise ValueError(bad_value(owner, "file", rule, repr(str(path))))
    return kind, zipped


def read_table(owner: str, path: Path) -> Table:
    """Return the table in a file.

    Raises:
        ValueError: if the file is not what its name says, or has no rows.
        OSError: if it cannot be read.
    """
    kind, zipped = table_format(owner, path)
    if not path.exists():
        raise FileNotFoundError(bad_value(owner, "file", "exist", repr(str(path))))
    if path.is_dir():
        raise ValueError(bad_value(owner, "file", "be a table", f"the folder {str(path)!r}"))
    try:
        source: Any = path
        if zipped:
            source = io.BytesIO(unpacked(owner, path, "table_bytes"))
        else:
            check_limit(owner, path.name, "table_bytes", path.stat().st_size)
            if path.stat().st_size == 0:
                raise pl.exceptions.NoDataError("the file is empty")
            _check_unpacked(owner, path, kind)
        table = replace(_read(owner, path, source, kind), path=str(path))
    except pl.exceptions.PanicException as error:  # not an Exception: a failed assertion inside polars
        raise ValueError(bad_value(owner, "file", "be a table", f"{str(path)!r} that cannot be read")) from error
    except (pl.exceptions.PolarsError, UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error, csv.Error) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        rule = f"be a table in {kind} format, UTF-8" if kind != "parquet" else "be a Parquet file"
        raise ValueError(bad_value(owner, "file", rule, f"{str(path)!r}: {reason.rstrip('.')}")) from error
    frame = table.frame
    if frame.height == 0 or frame.width == 0:
        raise ValueError(bad_value(owner, "file", "have at least one row under its header", repr(str(path))))
    check_limit(owner, path.name, "table_cells", frame.height * frame.width)
    return table


def _check_unpacked(owner: str, path: Path, kind: str) -> None:
    """Refuse packed content under the name of a text format, with the way to read it."""
    with path.open("rb") as file:
        start = file.read(4)
    rule = f"be a table in {kind} format, as its name says"
    if kind != "parquet" and start.startswith(b"\x1f\x8b"):
        got = f"{str(path)!r}, which is compressed with gzip"
        raise ValueError(bad_value(owner, "file", rule, got, f"Name it {path.name}.gz, or unpack it."))
    if start == b"PK\x03\x04":
        got = f"{str(path)!r}, which is a ZIP archive or a spreadsheet"
        raise ValueError(bad_value(owner, "file", rule, got, "Unpack it, or save the sheet as CSV."))


def _read(owner: str, path: Path, source: Any, kind: str) -> Table:
    if kind == "parquet":
        frame, renamed = read_parquet(owner, path)
        return Table(path.name, frame, tuple(renamed))
    if kind == "jsonl":
        source, encoding = in_utf8(owner, path, source)
        frame = _read_lines(owner, path, never_unpacked(source))
        return Table(path.name, frame, (f"the file is in {encoding}",) if encoding else ())
    frame, notes, has_semicolons = read_text(owner, path, source, kind)
    return Table(path.name, frame, notes, has_semicolons)


def _read_lines(owner: str, path: Path, source: Any) -> Any:
    """Read JSON lines; a field that has several types in different lines becomes text."""
    with opened(source) as file:
        content = file.read(len(_MARK))
        if content == _MARK and not file.read(4).startswith(PACKED):
            file.seek(len(_MARK))
            source = io.BytesIO(file.read())
    _check_nesting(owner, path, source)
    try:
        return pl.read_ndjson(source, infer_schema_length=None)
    except (pl.exceptions.ComputeError, pl.exceptions.SchemaError):
        with opened(source) as file:
            content = file.read()
        check_limit(owner, path.name, "records_bytes", len(content))  # as objects of Python they take more memory
        rows = []
        for number, line in enumerate(content.splitlines(), start=1):
            if line.strip():
                rows.append(_row_of_line(owner, path, number, line))
        if not rows:
            raise
    names = dict.fromkeys(name for row in rows for name in row)
    check_limit(owner, path.name, "table_cells", len(rows) * len(names))
    return pl.DataFrame({name: [_plain(row.get(name)) for row in rows] for name in names})


def _row_of_line(owner: str, path: Path, number: int, line: bytes) -> dict[str, Any]:
    rule = "have one JSON object in each line"
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        got = f"{_shown(line)} in line {number:,}, which is not JSON"
        raise ValueError(bad_value(owner, path.name, rule, got, "Correct or remove the line.")) from error
    if not isinstance(row, dict):
        raise ValueError(bad_value(owner, path.name, rule, f"{_shown(line)} in line {number:,}"))
    return row


def _shown(line: bytes) -> str:
    return repr(line[:40].decode("utf-8", errors="replace"))


def _plain(value: Any) -> str | None:
    """Return a value of JSON as text."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _check_nesting(owner: str, path: Path, source: Any) -> None:
    """Refuse deeply nested lists: the parser of polars ends the process at a depth of a thousand."""
    with opened(source) as file:
        for number, line in enumerate(file, start=1):
            if line.count(b"{") + line.count(b"[") <= NESTING:  # nearly always, and quick
                continue
            depth = deepest = 0
            for mark in _BRACKETS.findall(_STRINGS.sub(b"", line)):
                depth += 1 if mark in b"{[" else -1
                deepest = max(deepest, depth)
            if deepest > NESTING:
                rule = f"nest lists and objects at most {NESTING} deep"
                raise ValueError(bad_value(owner, path.name, rule, f"{deepest} in line {number}"))


def check_writable_columns(owner: str, path: Path, table: Table, names: Sequence[str]) -> None:
    """Check that columns of a table can be copied into a file, before work is done for the rest of it.

    Raises:
        ValueError: if the format of the file cannot hold one of them, or it was not read.
    """
    kind, _ = table_format(owner, path)
    for name in names:
        series = table.column(owner, name, "--keep")
        impossible = {"parquet": (), "jsonl": (pl.Binary,)}.get(kind, (pl.Binary, pl.Duration))
        if series.dtype.is_nested() or series.dtype in (pl.Object, *impossible):
            rule, got = f"name columns that a {kind} file can hold", f"{name!r} of type {series.dtype}"
            raise ValueError(bad_value(owner, "--keep", rule, got, "Leave it out, or make text of it first."))


def write_table(owner: str, path: Path, frame: Any) -> None:
    """Write a polars data frame in the format of the file's name; a half-written file is never left behind.

    Raises:
        ValueError: if the ending is unknown.
        OSError: if the file cannot be written.
    """
    kind, zipped = table_format(owner, path)
    with replaced_file(path) as file:
        if zipped:
            with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file) as packed:
                _write(frame, kind, packed)
        else:
            _write(frame, kind, file)


def _write_lines(frame: Any, target: Any) -> None:
    """Write JSON lines. JSON has no infinite numbers: they are written as the text "inf", since null means missing."""
    infinite = [series.name for series in frame if series.dtype.is_float() and series.is_infinite().any()]
    if not infinite:
        frame.write_ndjson(target)
        return
    for low in range(0, frame.height, _ROWS_AT_ONCE):
        part = frame.slice(low, _ROWS_AT_ONCE)
        buffer = io.BytesIO()
        part.write_ndjson(buffer)
        ends = {name: part.get_column(name).to_list() for name in infinite}
        lines = []
        for place, line in enumerate(buffer.getvalue().splitlines()):
            row = json.loads(line)
            row |= {name: str(values[place]) for name, values in ends.items() if values[place] in (math.inf, -math.inf)}
            lines.append(json.dumps(row, ensure_ascii=False) + "\n")
        target.write("".join(lines).encode())


def _write(frame: Any, kind: str, target: Any) -> None:
    if kind == "parquet":
        frame.write_parquet(target)
    elif kind == "jsonl":
        _write_lines(frame, target)
    else:
        frame.write_csv(target, separator="\t" if kind == "tsv" else ",")
