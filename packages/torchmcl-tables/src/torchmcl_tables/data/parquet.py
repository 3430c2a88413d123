"""What a Parquet file becomes in memory, from its own headers, before anything is decoded.

A few kilobytes of Parquet can stand for terabytes: runs of one value, pages that compress a thousandfold, structures
nested until the reader's stack ends. The headers say so; they are read here in Thrift's compact protocol, as far as
sizes go and no further. Headers are compared with the pages themselves.

Arrow has limits, too (size of Thrift strings and containers, depth of the schema, checksums of pages), and with
these alone no file of the fuzzer ended the process. They do not bound memory: a value that a dictionary or a prefix
(DELTA_BYTE_ARRAY) stores once is copied to each row of a batch before the batch can be counted, and pyarrow does not
tell the sizes of dictionaries and pages. A file of 50 kB then allocated six times the limit of the test, in
proportion to the rows of a batch. The widest row, found here, decides how many rows a batch may have.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from torchmcl._limits import NESTING, check_limit
from torchmcl._messages import bad_value

__all__ = ["check_parquet"]

_MAGIC = b"PAR1"
# Fields by their numbers in parquet.thrift.
_SCHEMA, _N_ROWS, _ROW_GROUPS = 2, 3, 4
_TYPE, _TYPE_LENGTH, _REPETITION, _N_CHILDREN = 1, 2, 3, 5
_COLUMNS, _GROUP_ROWS, _META, _N_VALUES, _PACKED, _DATA_PAGE, _DICTIONARY_PAGE = 1, 3, 3, 5, 7, 9, 11
_PAGE_UNPACKED, _PAGE_PACKED, _PAGE_DICTIONARY, _PAGE_VALUES = 2, 3, 7, 1
_DATA_PAGES = ((5, 2), (8, 4))  # of version 1 and 2, each with the place of its encoding
# Values by their numbers there.
_REPEATED, _BYTES, _FIXED_BYTES, _DELTA_BYTES = 2, 6, 7, 7
_LONGEST_FOOTER = 64 << 20
# A header holds a few numbers and the smallest and the largest value of the page.
_USUAL_PAGE_HEADER, _LONGEST_PAGE_HEADER = 1 << 10, 1 << 20

Struct = dict[int, Any]


def check_parquet(owner: str, path: Path) -> int:
    """Check how large a file would become.

    Returns:
        The maximum number of bytes of one row.

    Raises:
        ValueError: if it is not a Parquet file, contradicts itself, or would exceed the limits.
    """
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            footer = _footer(file, size)
            leaves = _leaves(owner, path, footer[_SCHEMA])
            groups = [
                ([chunk[_META] for chunk in group[_COLUMNS]], group[_GROUP_ROWS]) for group in footer[_ROW_GROUPS]
            ]
            check_limit(owner, path.name, "table_columns", len(leaves))
            n_values = sum(chunk[_N_VALUES] for chunks, _ in groups for chunk in chunks)
            check_limit(owner, path.name, "table_cells", max(footer[_N_ROWS] * len(leaves), n_values))
            _check_counts(footer[_N_ROWS], groups, leaves)
            packed = [chunk[_PACKED] for chunks, _ in groups for chunk in chunks]
            if min([0, *packed]) < 0 or sum(packed) > size:
                raise _Broken("its columns are larger than the file")
            widest = [leaf.n_bytes for leaf in leaves]
            n_bytes = 0
            for column, chunk in ((i, chunk) for chunks, _ in groups for i, chunk in enumerate(chunks)):
                for unpacked, repeatable in _pages(file, chunk, size):
                    n_bytes += unpacked
                    check_limit(owner, path.name, "table_bytes", n_bytes)
                    if repeatable and leaves[column].holds_bytes:
                        widest[column] = max(widest[column], unpacked)
            check_limit(owner, path.name, "table_bytes", sum(widest))
            return sum(widest)
    except _Broken as error:
        raise ValueError(bad_value(owner, "file", "be a Parquet file", f"{str(path)!r}: {error}")) from error
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        got = f"{str(path)!r}: its headers are not those of one"
        raise ValueError(bad_value(owner, "file", "be a Parquet file", got)) from error


class _Leaf(NamedTuple):
    """A column of values: whether a row can have several, whether they are bytes, and of what fixed length."""

    repeated: bool
    holds_bytes: bool
    n_bytes: int


class _Broken(Exception):  # noqa: N818  (a statement about a file)
    """Bytes that are not Thrift."""


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


def _leaves(owner: str, path: Path, elements: list[Struct]) -> list[_Leaf]:
    """Return the leaves of the elements, which are in depth-first order, each with the number of its children."""
    leaves: list[_Leaf] = []
    above: list[tuple[int, bool]] = []  # of each open structure: children to come, whether it is repeated
    for element in elements:
        while above and above[-1][0] == 0:
            above.pop()
        repeated = element.get(_REPETITION) == _REPEATED
        if above:
            n_left, within = above[-1]
            above[-1] = (n_left - 1, within)
            repeated = repeated or within
        n_children = element.get(_N_CHILDREN, 0)
        length = element.get(_TYPE_LENGTH, 0) if element.get(_TYPE) == _FIXED_BYTES else 0
        if n_children < 0 or length < 0:
            raise _Broken("a column has a negative size")
        above.append((n_children, repeated))
        if len(above) > NESTING:
            rule = f"nest lists and structures at most {NESTING} deep"
            raise ValueError(bad_value(owner, path.name, rule, "more"))
        if n_children == 0 and len(above) > 1:
            leaves.append(_Leaf(repeated, element.get(_TYPE) in (_BYTES, _FIXED_BYTES), length))
    return leaves


def _check_counts(n_rows: int, groups: list[tuple[list[Struct], int]], leaves: list[_Leaf]) -> None:
    """Compare the numbers of rows and values; readers allocate memory for them without checking."""
    if any(n_group < 0 for _, n_group in groups) or n_rows != sum(n_group for _, n_group in groups):
        raise _Broken("its groups of rows are not as many rows as it promises")
    for chunks, n_group in groups:
        if len(chunks) != len(leaves):
            raise _Broken("a group of rows has not all columns")
        for chunk, leaf in zip(chunks, leaves, strict=True):
            if chunk[_N_VALUES] < 0 or (not leaf.repeated and chunk[_N_VALUES] != n_group):
                raise _Broken("a column has not as many values as there are rows")


def _pages(file: BinaryIO, chunk: Struct, size: int) -> Iterator[tuple[int, bool]]:
    """Yield the unpacked size of each page of a column, and whether every row can contain all of it.

    That is so for a dictionary, and if each value begins with a part of the previous one (DELTA_BYTE_ARRAY).
    """
    places = [place for place in (chunk.get(_DICTIONARY_PAGE), chunk[_DATA_PAGE]) if place is not None and place > 0]
    start = min(places, default=0)
    end = start + chunk[_PACKED]
    if not 0 < start <= end <= size:
        raise _Broken("a column lies outside of it")
    n_values = 0
    while start < end:
        header, length = _page_header(file, start, end)
        if header[_PAGE_PACKED] < 0 or header[_PAGE_UNPACKED] < 0:
            raise _Broken("a page has a negative size")
        dictionary = header.get(_PAGE_DICTIONARY)
        data = [(header[kind], encoding) for kind, encoding in _DATA_PAGES if kind in header]
        counts = [part[_PAGE_VALUES] for part, _ in data]
        n_values += sum(counts)
        if min([0, *counts]) < 0 or n_values > chunk[_N_VALUES]:
            raise _Broken("the pages of a column have other values than it")
        if dictionary is not None and dictionary[_PAGE_VALUES] < 0:
            raise _Broken("a dictionary has a negative size")
        deltas = any(part[encoding] == _DELTA_BYTES for part, encoding in data)
        yield header[_PAGE_UNPACKED], deltas or dictionary is not None
        start += length + header[_PAGE_PACKED]


def _page_header(file: BinaryIO, start: int, end: int) -> tuple[Struct, int]:
    """Return the header of a page and its length; a column can have a million pages, and their headers are short."""
    for size_limit in (_USUAL_PAGE_HEADER, _LONGEST_PAGE_HEADER):
        file.seek(start)
        thrift = _Thrift(file.read(min(size_limit, end - start)))
        try:
            return thrift.struct(), thrift.place
        except _Broken:
            if end - start <= size_limit or size_limit == _LONGEST_PAGE_HEADER:
                raise
    raise AssertionError("the last size returns or raises")


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
            number = number + (head >> 4) if head >> 4 else self._integer()
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind)
        self.depth -= 1
        return fields

    def _value(self, kind: int) -> Any:
        if kind in (1, 2):  # a boolean in a list
            return self._byte() == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._integer()
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
        items = [self._value(head & 15) for _ in range(length)]
        self.depth -= 1
        return items

    def _integer(self) -> int:
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
