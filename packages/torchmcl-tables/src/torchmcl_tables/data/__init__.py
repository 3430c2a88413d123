"""Tables in files: reading, schema inference, conversion to numbers, and writing."""

from torchmcl_tables.data.columns import CategoryColumn, Column, DateColumn, DroppedColumn, NumberColumn
from torchmcl_tables.data.kinds import infer_schema, series_schema
from torchmcl_tables.data.table import Suspicion, Table, TableError, TableSchema, Unfit, speaking_for
from torchmcl_tables.data.table_files import FORMATS, read_table, table_format, write_table

__all__ = [
    "FORMATS",
    "CategoryColumn",
    "Column",
    "DateColumn",
    "DroppedColumn",
    "NumberColumn",
    "Suspicion",
    "Table",
    "TableError",
    "TableSchema",
    "Unfit",
    "infer_schema",
    "read_table",
    "series_schema",
    "speaking_for",
    "table_format",
    "write_table",
]
