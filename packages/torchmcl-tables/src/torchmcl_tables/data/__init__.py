"""Tables in files: reading, schema inference, conversion to numbers, and writing."""

from torchmcl_tables.data.columns import CategoryColumn, Column, DateColumn, DroppedColumn, NumberColumn
from torchmcl_tables.data.kinds import infer_schema
from torchmcl_tables.data.table import Suspicion, Table, TableError, TableSchema, Unfit
from torchmcl_tables.data.table_files import FORMATS, read_table, table_format, write_table
from torchmcl_tables.data.values import NumberForm

__all__ = [
    "FORMATS",
    "CategoryColumn",
    "Column",
    "DateColumn",
    "DroppedColumn",
    "NumberColumn",
    "NumberForm",
    "Suspicion",
    "Table",
    "TableError",
    "TableSchema",
    "Unfit",
    "infer_schema",
    "read_table",
    "table_format",
    "write_table",
]
