"""What a Parquet file becomes in memory, from its own headers, before anything is decoded.

A few kilobytes of Parquet can stand for terabytes: runs of one value, pages that compress a thousandfold, structures
nested until the reader's stack ends. The headers say so; they are read here in Thrift's compact protocol, as far as
sizes go and no further. A header that lies is held against the pages themselves.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from torchmcl._checks import bad_value
from torchmcl._limits import NESTING, check_limit

__all__ = ["check_parquet"]

_MAGIC = b"PAR1"
# Fields by their numbers in parquet.thrift.
_SCHEMA, _N_ROWS, _ROW_GROUPS = 2, 3, 4
_N_CHILDREN = 5
_COLUMNS, _META, _N_VALUES, _PACKED, _DATA_PAGE, _DICTIONARY_PAGE = 1, 3, 5, 7, 9, 11
_PAGE_UNPACKED, _PAGE_PACKED = 2, 3
_LONGEST_FOOTER = 64 << 20
# A header holds a few numbers and the least and the greatest value of the page.
_LONGEST_PAGE_HEADER = 1 << 20

Struct = dict[int, Any]


def check_parquet(owner: str, path: Path) -> None:
    """Check what a file would become.

    Raises:
        ValueError: if it is no Parquet file, or would become more than the limits allow.
    """
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            footer = _footer(file, size)
            _check_schema(owner, path, footer[_SCHEMA])
            chunks = [chunk[_META] for group in footer[_ROW_GROUPS] for chunk in group[_COLUMNS]]
            n_columns = sum(not element.get(_N_CHILDREN) for element in footer[_SCHEMA])
            check_limit(owner, path.name, "table_columns", n_columns)
            n_cells = max(footer[_N_ROWS] * n_columns, sum(chunk[_N_VALUES] for chunk in chunks))
            check_limit(owner, path.name, "table_cells", n_cells)
            n_bytes = 0
            for unpacked in (page for chunk in chunks for page in _pages(file, chunk, size)):
                n_bytes += unpacked
                check_limit(owner, path.name, "table_bytes", n_bytes)
    except _Broken as error:
        raise ValueError(bad_value(owner, "file", "be a Parquet file", f"{str(path)!r}: {error}")) from error
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        got = f"{str(path)!r}: its headers are not those of one"
        raise ValueError(bad_value(owner, "file", "be a Parquet file", got)) from error


class _Broken(Exception):  # noqa: N818  (a statement about a file)
    """Bytes that are no Thrift."""


def _footer(file: BinaryIO, size: int) -> Struct:
    if size < 12:
        raise _Broken("it is too short")
    file.seek(size - 8)
    tail = file.read(8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or length > min(size - 12, _LONGEST_FOOTER):
        raise _Broken("it has no footer")
    file.seek(size - 8 - length)
    return _Thrift(file.read(length)).struct()


def _check_schema(owner: str, path: Path, elements: list[Struct]) -> None:
    """Walk the elements, which stand in depth-first order, each with the number of its children."""
    left: list[int] = []
    for element in elements:
        while left and left[-1] == 0:
            left.pop()
        if left:
            left[-1] -= 1
        left.append(element.get(_N_CHILDREN, 0))
        if len(left) > NESTING:
            rule = f"nest lists and structures at most {NESTING} deep"
            raise ValueError(bad_value(owner, path.name, rule, "more"))


def _pages(file: BinaryIO, chunk: Struct, size: int) -> Iterator[int]:
    """Yield the unpacked size of each page of a column chunk."""
    places = [place for place in (chunk.get(_DICTIONARY_PAGE), chunk[_DATA_PAGE]) if place is not None and place > 0]
    start = min(places, default=0)
    end = start + chunk[_PACKED]
    if not 0 < start <= end <= size:
        raise _Broken("a column lies outside of it")
    while start < end:
        file.seek(start)
        thrift = _Thrift(file.read(min(_LONGEST_PAGE_HEADER, end - start)))
        header = thrift.struct()
        if header[_PAGE_PACKED] < 0 or header[_PAGE_UNPACKED] < 0:
            raise _Broken("a page has a negative size")
        yield header[_PAGE_UNPACKED]
        start += thrift.place + header[_PAGE_PACKED]


class _Thrift:
    """Bytes in the compact protocol, read from the beginning."""

    def __init__(self, content: bytes) -> None:
        self.content, self.place, self.depth = content, 0, 0

    def struct(self) -> Struct:
        """Return the fields of a structure by their numbers."""
        self.depth += 1
        if self.depth > NESTING:
            raise _Broken("its headers are nested without end")
        fields: Struct = {}
        number = 0
        while (head := self._byte()) != 0:
            kind = head & 15
            number = number + (head >> 4) if head >> 4 else self._whole()
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind)
        self.depth -= 1
        return fields

    def _value(self, kind: int) -> Any:
        if kind in (1, 2):  # a boolean in a list
            return self._byte() == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._whole()
        if kind == 7:
            return self._skip(8)
        if kind == 8:
            return self._skip(self._unsigned())
        if kind in (9, 10):
            return self._list()
        if kind == 12:
            return self.struct()
        raise _Broken("its headers hold something unknown")

    def _list(self) -> list[Any]:
        head = self._byte()
        length = head >> 4 if head >> 4 < 15 else self._unsigned()
        if length > len(self.content) - self.place:  # each takes a byte at least
            raise _Broken("its headers are cut short")
        self.depth += 1
        if self.depth > NESTING:
            raise _Broken("its headers are nested without end")
        made = [self._value(head & 15) for _ in range(length)]
        self.depth -= 1
        return made

    def _whole(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)  # zigzag

    def _unsigned(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise _Broken("its headers hold a number without end")

    def _byte(self) -> int:
        if self.place >= len(self.content):
            raise _Broken("its headers are cut short")
        self.place += 1
        return self.content[self.place - 1]

    def _skip(self, n_bytes: int) -> None:
        if n_bytes > len(self.content) - self.place:
            raise _Broken("its headers are cut short")
        self.place += n_bytes
