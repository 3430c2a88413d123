"""Show how `torchmcl fit` would read a table.

That is the kind of each column, its share of missing values, its range or its categories, and dropped and suspicious
columns, with the options that override these decisions.

Examples:
  torchmcl describe houses.csv
  torchmcl describe houses.csv --target price --drop house_id
"""

import argparse
from pathlib import Path

from torchmcl.app import arguments
from torchmcl_tables.cli.parts import add_column_options, add_target_options, new_command, schema_of


def add_describe_command(commands: arguments.Commands) -> None:
    """Add `describe` to the commands."""
    summary = "show how `fit` would read a table"
    describe = new_command(commands, "describe", __doc__, summary, check=_describe, run=_done)
    describe.add_argument("table", type=Path, help="table: CSV, TSV, Parquet or JSON lines; text also with .gz")
    add_target_options(describe, default=[])
    add_column_options(describe)


def _describe(options: argparse.Namespace) -> None:
    """Print the description, without torch."""
    from torchmcl_tables.data import read_table
    from torchmcl_tables.data.inference import check_rows
    from torchmcl_tables.data.splits import description

    table = read_table(options.table)
    arguments.say(description(table, schema_of(table, options)))
    check_rows(table)


def _done(options: argparse.Namespace) -> None:
    """Do nothing: the check of the options has printed everything."""
