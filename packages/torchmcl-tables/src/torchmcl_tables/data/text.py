"""Text files of a table: encoding, separator and header, as spreadsheets and statistics programs write them.

polars unpacks what begins like gzip, zlib or zstd without a limit, and takes a table whose first name begins with x^
for zlib. After a byte order mark it does neither.
"""

import contextlib
import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from torchmcl._limits import check_limit
from torchmcl._messages import bad_value
from torchmcl_tables.data.names import named

__all__ = ["PACKED", "TextTable", "in_utf8", "never_unpacked", "opened", "read_text"]

# Possible separators of a .csv file; many programs write semicolons where numbers have a decimal comma.
_SEPARATORS = (",", ";", "\t", "|")
_WORDS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
# A header of more bytes names more columns than are allowed.
_LONGEST_HEADER = 64 << 20
_MARK = "\ufeff".encode()
# In this many bytes a text with line feeds has one.
_LONGEST_LINE = 1 << 16
# The first bytes of gzip, zlib and zstd.
PACKED = (b"\x1f\x8b", b"x\x01", b"x\x5e", b"x\x9c", b"x\xda", b"\x28\xb5\x2f\xfd")
_CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
# Encodings by how a file begins: a byte order mark, or plain letters with a zero beside each.
_WIDE = (
    *((b"\xff\xfe\x00\x00", "utf-32"), (b"\x00\x00\xfe\xff", "utf-32")),  # begins like UTF-16
    *((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")),
)
_STARTS: dict[tuple[int, ...], str] = {
    (1, 0, 1, 0): "utf-16-le",
    (0, 1, 0, 1): "utf-16-be",
    (1, 0, 0, 0): "utf-32-le",
    (0, 0, 0, 1): "utf-32-be",
}


class TextTable(NamedTuple):
    """A table from a text file, what was decided about it, and whether its numbers may have decimal commas."""

    frame: Any
    notes: tuple[str, ...]
    has_semicolons: bool


def read_text(owner: str, path: Path, source: Any, kind: str) -> TextTable:
    """Read a table with a header; the header is read as a row, so that repeated names are seen.

    Args:
        owner: named in error messages.
        path: of the file.
        source: the path, or its unpacked content.
        kind: "csv" or "tsv".
    """
    source, encoding = in_utf8(owner, path, source)
    source = _tidied(owner, path, source)
    separators = ("\t",) if kind == "tsv" else _SEPARATORS
    try:
        raw, separator = _raw(owner, path, source, separators)
    except pl.exceptions.ComputeError as error:
        if "utf-8" not in str(error) or encoding or _is_binary(source):
            raise
        source, encoding = _from_one_byte(owner, path, source)
        raw, separator = _raw(owner, path, source, separators)
    names, notes = named([(value or "").removeprefix("\ufeff").strip() for value in raw.row(0)])
    frame = raw.slice(1).rename(dict(zip(raw.columns, names, strict=True)))
    told = [f"the file is in {encoding}"] * bool(encoding and encoding != "utf-8")
    told += [f"its fields are separated by {_WORDS[separator]}"] * (kind == "csv" and separator != ",")
    return TextTable(frame, (*told, *notes), separator == ";")


def _raw(owner: str, path: Path, source: Any, separators: tuple[str, ...]) -> tuple[Any, str]:
    """Return all rows as text, the header too, and the separator."""
    separator = _separator(owner, path, source, separators)
    try:
        frame = pl.read_csv(never_unpacked(source), has_header=False, infer_schema=False, separator=separator)
    except pl.exceptions.ComputeError as error:
        if line := _stray_quote(source, separator):
            rule, got = "have double quotes in pairs around whole fields", f"a stray one in line {line:,}"
            advice = 'Write a quote inside a field twice, and the field in quotes: "6"" pipe".'
            raise ValueError(bad_value(owner, path.name, rule, got, advice)) from error
        if "more fields" not in str(error):
            raise
        raise ValueError(_ragged(owner, path, source, separator)) from error
    return frame, separator


def _separator(owner: str, path: Path, source: Any, marks: tuple[str, ...]) -> str:
    """Return the separator that splits the header into the most columns, and the first row into as many.

    Raises:
        ValueError: if there are more columns than a table may have.
    """
    with opened(source) as file:
        lines = [_record(file), _record(file)]
    header, row = ([_n_fields(line, mark) for mark in marks] for line in lines)
    check_limit(owner, path.name, "table_columns", max(header))
    fits = [width if not lines[1] or width == there else 0 for width, there in zip(header, row, strict=True)]
    widths = fits if max(fits) > 1 else header
    return marks[widths.index(max(widths))]


def _record(file: Any) -> str:
    """Return the next line, with those that a quoted line break joins to it."""
    line = file.readline(_LONGEST_HEADER)
    while line.count(b'"') % 2 and len(line) < _LONGEST_HEADER and (more := file.readline(_LONGEST_HEADER)):
        line += more
    return str(line.decode("utf-8", errors="replace")).removeprefix("\ufeff")


def _n_fields(line: str, mark: str) -> int:
    # Quoted names may hold any separator. A text without them is split at once: csv refuses long names.
    if '"' not in line or len(line) > csv.field_size_limit():
        return line.count(mark) + 1
    with contextlib.suppress(csv.Error):
        return len(next(csv.reader(io.StringIO(line, newline=""), delimiter=mark), []))
    return line.count(mark) + 1


def _stray_quote(source: Any, separator: str) -> int:
    """Return the first line with a quote inside a field, else the one of a quote that is never closed; 0 for none."""
    mark = re.escape(separator.encode())
    stray = re.compile(rb'[^"' + mark + rb'\r\n]"[^"' + mark + rb"\r\n]")
    opened_in = 0
    with opened(source) as file:
        for number, line in enumerate(file, start=1):
            if stray.search(line.replace(b'""', b"").strip()):
                return number
            if line.count(b'"') % 2:
                opened_in = 0 if opened_in else number
    return opened_in


def _ragged(owner: str, path: Path, source: Any, separator: str) -> str:
    """Return the message about lines with more fields than the header."""
    first, count, n_names, n_fields = 0, 0, 0, 0
    with opened(source) as file, contextlib.suppress(csv.Error, UnicodeDecodeError):
        rows = csv.reader(io.TextIOWrapper(io.BytesIO(file.read()), "utf-8", newline=""), delimiter=separator)
        n_names = len(next(rows, []))
        for row in rows:
            if len(row) > n_names:
                first, n_fields = (first, n_fields) if count else (rows.line_num, len(row))
                count += 1
    more = f" and in {count - 1:,} more" if count > 1 else ""
    got = f"{n_fields} in line {first:,}{more}" if count else "more in a line"
    rule = f"have at most as many fields in each line as its header, {n_names or 'which has fewer'}"
    advice = f"Put a field that contains {_WORDS[separator]} into double quotes, or name every column in the header."
    return bad_value(owner, path.name, rule, got, advice)


def in_utf8(owner: str, path: Path, source: Any) -> tuple[Any, str]:
    """Return content in UTF-8, and its encoding if it had to be converted; empty if it is taken for UTF-8."""
    with opened(source) as file:
        start = file.read(4)
        encoding = next((name for mark, name in _WIDE if start.startswith(mark)), "")
        encoding = encoding or _STARTS.get(tuple(int(byte > 0) for byte in start), "")
        if not encoding:
            return source, ""
        return _converted(owner, path, start + file.read(), encoding), encoding.upper()


def _tidied(owner: str, path: Path, source: Any) -> Any:
    """Return content that begins with its header and whose lines end with line feeds.

    Some exports begin with empty lines, and old spreadsheets write carriage returns alone.
    """
    with opened(source) as file:
        start = file.read(_LONGEST_LINE)
        begins = start.removeprefix(_MARK)
        empty = len(begins) - len(begins.lstrip(b"\r\n"))
        returns = b"\r" in start and b"\n" not in start
        if not empty and not returns:
            return source
        content = begins[empty:] + file.read()
    check_limit(owner, path.name, "table_bytes", len(content))
    return io.BytesIO(content if b"\n" in content else content.replace(b"\r", b"\n"))


def _from_one_byte(owner: str, path: Path, source: Any) -> tuple[Any, str]:
    """Return content of one byte per character in UTF-8: Windows-1252, or Latin-1 where that has no such character."""
    with opened(source) as file:
        content = file.read()
    try:
        return _converted(owner, path, content, "cp1252"), "Windows-1252 (Latin-1)"
    except UnicodeDecodeError:
        return _converted(owner, path, content, "latin-1"), "Latin-1"


def _is_binary(source: Any) -> bool:
    """Return whether content is packed, or holds characters that no text has."""
    with opened(source) as file:
        content = file.read()
    return content.startswith(PACKED) or bool(_CONTROLS.search(content))


def _converted(owner: str, path: Path, content: bytes, encoding: str) -> Any:
    converted = content.decode(encoding).encode()
    check_limit(owner, path.name, "table_bytes", len(converted))
    return io.BytesIO(converted)


def never_unpacked(source: Any) -> Any:
    """Return content that polars does not unpack."""
    with opened(source) as file:
        start = file.read(4)
        return io.BytesIO(_MARK + start + file.read()) if start.startswith(PACKED) else source


@contextlib.contextmanager
def opened(source: Any) -> Iterator[Any]:
    """Yield the bytes of a file, or of its unpacked content, from the beginning."""
    if isinstance(source, io.BytesIO):
        source.seek(0)
        yield source
        source.seek(0)
    else:
        with source.open("rb") as file:
            yield file
