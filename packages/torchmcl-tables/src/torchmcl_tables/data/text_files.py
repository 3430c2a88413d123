"""Tables in text files: encoding, separator and header, as written by spreadsheets and statistics programs."""

import contextlib
import csv
import io
import re
from typing import Any

import polars as pl

from torchmcl.errors import bad_value
from torchmcl_tables.data.table import unique_names

# Possible separators of a .csv file; many programs write semicolons where numbers have a decimal comma.
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_MARK = "\ufeff".encode()
# A text with line feeds has one within this many bytes.
_LONGEST_LINE = 1 << 16
# The first bytes of gzip, zlib and zstd.
_PACKED = (b"\x1f\x8b", b"x\x01", b"x\x5e", b"x\x9c", b"x\xda", b"\x28\xb5\x2f\xfd")
_CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
# Encodings by the first bytes of a file: a byte order mark, or ASCII characters interleaved with zero bytes.
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


def read_text(name: str, content: bytes, kind: str, encoding: str = "") -> tuple[Any, tuple[str, ...], bool]:
    """Read a table with a header, which is read as a row to detect repeated names.

    Args:
        name: of the file, for messages.
        content: of the file, in UTF-8 or one byte for each character.
        kind: "csv" or "tsv".
        encoding: of the file before `in_utf8`.

    Returns:
        The columns as text, the decisions about the file, and whether numbers may have decimal commas.
    """
    content = _tidied(content)
    separators = ("\t",) if kind == "tsv" else tuple(_SEPARATORS)
    try:
        raw, separator = _raw(name, content, separators)
    except pl.exceptions.ComputeError as error:
        if "utf-8" not in str(error) or encoding or content.startswith(_PACKED) or _CONTROLS.search(content):
            raise
        content, encoding = _from_one_byte(content)
        raw, separator = _raw(name, content, separators)
    names, notes = unique_names([(value or "").removeprefix("\ufeff").strip() for value in raw.row(0)])
    frame = raw.slice(1).rename(dict(zip(raw.columns, names, strict=True)))
    told = [f"the file is in {encoding}"] * bool(encoding)
    told += [f"its fields are separated by {_SEPARATORS[separator]}"] * (kind == "csv" and separator != ",")
    return frame, (*told, *notes), separator == ";"


def _raw(name: str, content: bytes, separators: tuple[str, ...]) -> tuple[Any, str]:
    """Return all rows as text, including the header, and the separator."""
    separator = _separator(content, separators)
    try:
        source = io.BytesIO(not_packed(content))
        frame = pl.read_csv(source, has_header=False, infer_schema=False, separator=separator)
    except pl.exceptions.ComputeError as error:
        if line := _stray_quote(content, separator):
            rule, got = "have double quotes in pairs around whole fields", f"a stray one in line {line:,}"
            advice = 'Write a quote inside a field twice, and the field in quotes: "6"" pipe".'
            raise ValueError(bad_value("read_table", name, rule, got, advice)) from error
        if "more fields" not in str(error):
            raise
        raise ValueError(_ragged(name, content, separator)) from error
    return frame, separator


def _separator(content: bytes, marks: tuple[str, ...]) -> str:
    """Return the separator that splits the header into the most columns, and the first row into as many."""
    file = io.BytesIO(content)
    lines = [_record(file), _record(file)]
    header, row = ([_n_fields(line, mark) for mark in marks] for line in lines)
    fits = [width if not lines[1] or width == there else 0 for width, there in zip(header, row, strict=True)]
    widths = fits if max(fits) > 1 else header
    return marks[widths.index(max(widths))]


def _record(file: io.BytesIO) -> str:
    """Return the next line, including quoted line breaks."""
    line = file.readline()
    while line.count(b'"') % 2 and (more := file.readline()):
        line += more
    return line.decode("utf-8", errors="replace").removeprefix("\ufeff")


def _n_fields(line: str, mark: str) -> int:
    # Quoted names may contain separators. A line without quotes is split directly, because csv rejects long names.
    if '"' not in line or len(line) > csv.field_size_limit():
        return line.count(mark) + 1
    with contextlib.suppress(csv.Error):
        return len(next(csv.reader(io.StringIO(line, newline=""), delimiter=mark), []))
    return line.count(mark) + 1


def _stray_quote(content: bytes, separator: str) -> int:
    """Return the number of the first line with a quote inside a field or an unclosed quote; 0 for none."""
    mark = re.escape(separator.encode())
    stray = re.compile(rb'[^"' + mark + rb'\r\n]"[^"' + mark + rb"\r\n]")
    opened_in = 0
    for number, line in enumerate(io.BytesIO(content), start=1):
        if stray.search(line.replace(b'""', b"").strip()):
            return number
        if line.count(b'"') % 2:
            opened_in = 0 if opened_in else number
    return opened_in


def _ragged(name: str, content: bytes, separator: str) -> str:
    """Return the message about lines with more fields than the header."""
    first, count, n_names, n_fields = 0, 0, 0, 0
    with contextlib.suppress(csv.Error, UnicodeDecodeError):
        rows = csv.reader(io.TextIOWrapper(io.BytesIO(content), "utf-8", newline=""), delimiter=separator)
        n_names = len(next(rows, []))
        for row in rows:
            if len(row) > n_names:
                first, n_fields = (first, n_fields) if count else (rows.line_num, len(row))
                count += 1
    more = f" and in {count - 1:,} more" if count > 1 else ""
    got = f"{n_fields} in line {first:,}{more}" if count else "more in a line"
    rule = f"have at most as many fields in each line as its header, {n_names or 'which has fewer'}"
    marks = _SEPARATORS[separator]
    advice = f"Put a field that contains {marks} into double quotes, or name every column in the header."
    return bad_value("read_table", name, rule, got, advice)


def in_utf8(content: bytes) -> tuple[bytes, str]:
    """Return content in UTF-8, and its encoding if it was converted; empty for UTF-8."""
    encoding = next((name for mark, name in _WIDE if content.startswith(mark)), "")
    encoding = encoding or _STARTS.get(tuple(int(byte > 0) for byte in content[:4]), "")
    return (content.decode(encoding).encode(), encoding.upper()) if encoding else (content, "")


def _tidied(content: bytes) -> bytes:
    """Return content without leading empty lines, with line feeds as line ends.

    Some exports begin with empty lines, and old spreadsheets write carriage returns alone.
    """
    start = content[:_LONGEST_LINE].removeprefix(_MARK)
    if start.lstrip(b"\r\n") != start:
        content = content.removeprefix(_MARK).lstrip(b"\r\n")
    if b"\r" in start and b"\n" not in start and b"\n" not in content:
        content = content.replace(b"\r", b"\n")
    return content


def _from_one_byte(content: bytes) -> tuple[bytes, str]:
    """Return single-byte content in UTF-8: Windows-1252, or Latin-1 for characters without an equivalent."""
    try:
        return content.decode("cp1252").encode(), "Windows-1252 (Latin-1)"
    except UnicodeDecodeError:
        return content.decode("latin-1").encode(), "Latin-1"


def not_packed(content: bytes) -> bytes:
    """Return content that polars reads as text; it takes a header that begins with x^ for zlib data."""
    return _MARK + content if content.startswith(_PACKED) else content
