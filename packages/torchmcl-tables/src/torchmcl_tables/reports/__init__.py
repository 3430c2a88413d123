"""HTML report on a model of a table."""

from pathlib import Path
from typing import Any

from torchmcl import io

__all__ = ["write_report"]


def write_report(records: dict[str, Any], path: Path) -> Path:
    """Write the HTML report for records from `torchmcl_tables.model.table_records`.

    Args:
        records: Records of a model.
        path: Path of the report.

    Returns:
        The path.

    Raises:
        ValueError: If the records have another format.
        OSError: If the report cannot be written.
    """
    from torchmcl_tables.reports.sections import class_report, number_report

    with io.as_written("write_report", "model folder", "`torchmcl fit`"):
        content = (class_report if "classes" in records["evaluation"] else number_report)(records)
    io.write_atomically(path, content)
    return path
