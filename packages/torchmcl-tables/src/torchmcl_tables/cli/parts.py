"""What the commands for tables share."""

import argparse
from typing import TYPE_CHECKING, Any

from torchmcl._resources import peak_mebibytes, seconds_since_start
from torchmcl.cli.arguments import Commands

if TYPE_CHECKING:  # torch is loaded by the commands that need it
    from torchmcl_tables.data import Table

__all__ = ["FORMATS", "new_command", "records_of", "spent"]

FORMATS = "CSV, TSV, Parquet or JSON lines by the end of its name; text also with .gz"


def new_command(commands: Commands, name: str, description: str, summary: str) -> argparse.ArgumentParser:
    """Return the parser of a command, whose description is printed as it is."""
    as_written = argparse.RawDescriptionHelpFormatter
    return commands.add_parser(name, help=summary, description=description, formatter_class=as_written)


def spent() -> str:
    """Return the time and the memory that the command took."""
    memory = peak_mebibytes()
    return f"({seconds_since_start():.1f} s" + (f", {memory:,.0f} MiB at most)" if memory else ")")


def records_of(owner: str, model: Any, data: "Table | None" = None) -> dict[str, Any]:
    """Return the records that a report is drawn from, with the shares of what answers together."""
    from torchmcl_tables.model import table_records

    return table_records(owner, model, data) | {"shares": getattr(model.estimator, "member_weights_", None)}
