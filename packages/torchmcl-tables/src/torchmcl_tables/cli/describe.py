"""Show how `torchmcl fit` would read a table.

For each column, the description states its kind, the fraction of missing values, and its range or categories. Dropped
and suspicious columns are listed with the options that override these decisions.

Examples:
  torchmcl describe houses.csv
  torchmcl describe houses.csv --target price --drop house_id
"""

import argparse
from pathlib import Path

from torchmcl.app import arguments
from torchmcl_tables.cli.parts import add_column_options, add_target_options, chosen_columns, new_command


def add_describe_command(commands: arguments.Commands) -> None:
    """Add the command `describe`."""
    summary = "show how `fit` would read a table"
    describe = new_command(commands, "describe", __doc__, summary, check=_describe, run=_done)
    describe.add_argument("table", type=Path, help="table: CSV, TSV, Parquet or JSON lines; text also with .gz")
    add_target_options(describe, default=[])
    add_column_options(describe)


def _describe(options: argparse.Namespace) -> None:
    """Print the description without importing torch."""
    from torchmcl_tables.data import infer_schema, read_table
    from torchmcl_tables.data.kinds import check_rows
    from torchmcl_tables.data.splits import description

    table = read_table(options.table, options.decimal)
    schema = infer_schema(table, options.target, task=options.task, interpret=True, **chosen_columns(options))
    arguments.say(description(table, schema))
    check_rows(table)


def _done(_: object) -> None:
    """Do nothing: the description was printed when the options were checked."""
