"""The package that holds tables, imported when it is needed."""

from typing import Any

from torchmcl._optional import optional_import

__all__ = ["polars"]


def polars() -> Any:
    """Return the package that reads tables."""
    return optional_import("polars", extra="table", needed_by="Reading and writing tables")
