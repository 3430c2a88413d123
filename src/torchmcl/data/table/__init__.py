"""Tables in files: read, described by a schema, turned into numbers, and written. Needs the extra `table`."""

from torchmcl.data.table.encoder import ColumnEncoder
from torchmcl.data.table.files import FORMATS, Table, read_table, table_format, write_table
from torchmcl.data.table.schema import CategoryColumn, NumberColumn, TableSchema, infer_schema

__all__ = [
    "FORMATS",
    "CategoryColumn",
    "ColumnEncoder",
    "NumberColumn",
    "Table",
    "TableSchema",
    "infer_schema",
    "read_table",
    "table_format",
    "write_table",
]
