"""Pages about a model of a table, made from records."""

from pathlib import Path
from typing import Any

from torchmcl import io

__all__ = ["write_report"]


def write_report(records: dict[str, Any], path: Path) -> Path:
    """Write the page for records from `torchmcl_tables.model.table_records`; return its path.

    Raises:
        ValueError: if the records are something else.
        OSError: if it cannot be written.
    """
    from torchmcl_tables.reports.classes import class_page
    from torchmcl_tables.reports.numbers import number_page

    with io.as_written("write_report", "model folder", "`torchmcl fit`"):
        content = (class_page if "classes" in records["evaluation"] else number_page)(records)
    io.write_atomically(path, content)
    return path
