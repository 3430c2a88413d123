"""A table in, several answers out: what `torchmcl fit`, `predict` and `report` do, as functions."""

from torchmcl.estimators.table.fitting import TableFit, fit_summary, fit_table, table_records
from torchmcl.estimators.table.folder import FORMAT, check_file, check_folder, load_table_model, save_table_model
from torchmcl.estimators.table.model import TableModel

__all__ = [
    "FORMAT",
    "TableFit",
    "TableModel",
    "check_file",
    "check_folder",
    "fit_summary",
    "fit_table",
    "load_table_model",
    "save_table_model",
    "table_records",
]
