"""Models of tables: the functions that implement `torchmcl fit`, `predict` and `report`."""

from torchmcl_tables.model.fitting import TableFit, fit_summary, fit_table, measure_table, table_records, train_table
from torchmcl_tables.model.model import ClassModel, TableModel, load_table_model, save_table_model

__all__ = [
    "ClassModel",
    "TableFit",
    "TableModel",
    "fit_summary",
    "fit_table",
    "load_table_model",
    "measure_table",
    "save_table_model",
    "table_records",
    "train_table",
]
