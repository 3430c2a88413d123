"""Tables in files: read, described by a schema, turned into numbers, and written. Needs the extra `table`."""

from torchmcl.data.table.columns import CategoryColumn, Column, DateColumn, DroppedColumn, NumberColumn
from torchmcl.data.table.encoder import ColumnEncoder
from torchmcl.data.table.files import FORMATS, Table, read_table, table_format, write_table
from torchmcl.data.table.inference import infer_schema
from torchmcl.data.table.numbers import NumberForm
from torchmcl.data.table.problems import TableError
from torchmcl.data.table.schema import Suspicion, TableSchema, Unfit

__all__ = [
    "FORMATS",
    "CategoryColumn",
    "Column",
    "ColumnEncoder",
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
