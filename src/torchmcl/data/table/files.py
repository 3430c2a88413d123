"""Tables on disk: CSV, TSV, Parquet and JSON lines, the text formats also with gzip.

Columns of text files are read as text. `schema.py` decides their type from all of their values, not from the first
hundred, so that a message can name the row that does not fit.
"""

import contextlib
import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchmcl._files import replaced_file
from torchmcl._limits import NESTING, check_limit
from torchmcl._messages import bad_value, nearest_hint
from torchmcl._optional import optional_import
from torchmcl._reading import unpacked
from torchmcl.data.table.arrow import read_parquet
from torchmcl.data.table.names import check_names

__all__ = ["FORMATS", "Table", "polars", "read_table", "table_format", "write_table"]

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
# Possible separators of a .csv file; many programs write semicolons where numbers have a decimal comma.
_SEPARATORS = (",", ";", "\t")
# A header of more bytes names more columns than are allowed.
_LONGEST_HEADER = 64 << 20
_MARK = "\ufeff".encode()
# The first bytes of gzip, zlib and zstd.
_PACKED = (b"\x1f\x8b", b"x\x01", b"x\x5e", b"x\x9c", b"x\xda", b"\x28\xb5\x2f\xfd")
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_BRACKETS = re.compile(rb"[\[\]{}]")


def polars() -> Any:
    """Return the package that reads tables."""
    return optional_import("polars", extra="table", needed_by="Reading and writing tables")


@dataclass(frozen=True)
class Table:
    """A table and where it came from.

    Attributes:
        name: the file, for messages.
        frame: a polars data frame; all columns of CSV files are text, and those of lists and structures in Parquet
            files hold nulls.
    """

    name: str
    frame: Any

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
            known = self.columns
            hint = nearest_hint(name, known)
            listed = ", ".join(map(repr, known[:8])) + (" ..." if len(known) > 8 else "")
            rule = f"have a column {name!r}" if argument == "table" else f"name a column of {self.name}"
            got = f"the columns {listed}" if argument == "table" else repr(name)
            raise ValueError(bad_value(owner, self.name if argument == "table" else argument, rule, got) + hint)
        return self.frame.get_column(name)

    def take(self, rows: Any) -> "Table":
        """Return the table of some rows, given by their places."""
        return Table(self.name, self.frame[rows])


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
        ValueError: if the file is not what its name says, has no rows, or has a column name twice or empty.
        OSError: if it cannot be read.
    """
    kind, zipped = table_format(owner, path)
    pl = polars()
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
        if kind == "parquet":
            frame = read_parquet(owner, path)
        elif kind == "jsonl":
            source = _never_unpacked(source)
            _check_nesting(owner, path, source)
            frame = pl.read_ndjson(source, infer_schema_length=None)
        else:
            frame = _read_text(owner, path, source, kind)
    except pl.exceptions.PanicException as error:  # not an Exception: a failed assertion inside polars
        raise ValueError(bad_value(owner, "file", "be a table", f"{str(path)!r} that cannot be read")) from error
    except (pl.exceptions.PolarsError, UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error, csv.Error) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        rule = f"be a table in {kind} format, UTF-8" if kind != "parquet" else "be a Parquet file"
        raise ValueError(bad_value(owner, "file", rule, f"{str(path)!r}: {reason.rstrip('.')}")) from error
    if frame.height == 0 or frame.width == 0:
        raise ValueError(bad_value(owner, "file", "have at least one row under its header", repr(str(path))))
    check_limit(owner, path.name, "table_cells", frame.height * frame.width)
    return Table(path.name, frame)


def _read_text(owner: str, path: Path, source: Any, kind: str) -> Any:
    """Read a table with a header; the header is read as a row, so that duplicate names are detected."""
    pl = polars()
    separator = _separator(owner, path, source, ("\t",) if kind == "tsv" else _SEPARATORS)
    raw = pl.read_csv(_never_unpacked(source), has_header=False, infer_schema=False, separator=separator)
    names = [(value or "").removeprefix("\ufeff").strip() for value in raw.row(0)]
    check_names(owner, path, names)
    return raw.slice(1).rename(dict(zip(raw.columns, names, strict=True)))


def _separator(owner: str, path: Path, source: Any, marks: tuple[str, ...]) -> str:
    """Return the separator that splits the header into the most columns; the first one if none does.

    Raises:
        ValueError: if there are more columns than a table may have.
    """
    with _lines(source) as file:
        text = file.readline(_LONGEST_HEADER).decode("utf-8", errors="replace")
    # Quoted names may hold any of these. A text without them is split at once: csv refuses long names.
    quoted = '"' in text and len(text) <= csv.field_size_limit()
    widths = [len(next(csv.reader([text], delimiter=mark), [])) if quoted else text.count(mark) + 1 for mark in marks]
    check_limit(owner, path.name, "table_columns", max(widths))
    return marks[widths.index(max(widths))]


def _never_unpacked(source: Any) -> Any:
    """Return content that polars does not unpack.

    It unpacks what begins like gzip, zlib or zstd without a limit, and takes a table whose first name begins with x^
    for zlib. After a byte order mark it does neither.
    """
    with _lines(source) as file:
        start = file.read(4)
        return io.BytesIO(_MARK + start + file.read()) if start.startswith(_PACKED) else source


def _check_nesting(owner: str, path: Path, source: Any) -> None:
    """Refuse deeply nested lists: the parser of polars ends the process at a depth of a thousand."""
    with _lines(source) as file:
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


@contextlib.contextmanager
def _lines(source: Any) -> Iterator[Any]:
    """Yield the bytes of a file, or of its unpacked content, from the beginning."""
    if isinstance(source, io.BytesIO):
        source.seek(0)
        yield source
        source.seek(0)
    else:
        with source.open("rb") as file:
            yield file


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


def _write(frame: Any, kind: str, target: Any) -> None:
    if kind == "parquet":
        frame.write_parquet(target)
    elif kind == "jsonl":
        frame.write_ndjson(target)
    else:
        frame.write_csv(target, separator="\t" if kind == "tsv" else ",")
