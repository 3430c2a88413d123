"""The command `torchmcl describe`: what `torchmcl fit` would make of a table, before anything is trained."""

import argparse
from pathlib import Path

from torchmcl.cli.arguments import AddNames, Commands, names
from torchmcl.cli.output import say
from torchmcl_tables.cli.columns import add_column_options, chosen_columns, with_command

__all__ = ["add_describe_command"]

_OWNER = "torchmcl describe"
_DESCRIBE = """\
Say what a table holds and what `torchmcl fit` would make of it: the kind of each column, how much of it is missing, its
range or its categories, columns that would be dropped, and suspicious ones, with the options that decide otherwise.

examples:
  torchmcl describe houses.csv
  torchmcl describe houses.csv --target price --drop house_id
"""


def add_describe_command(commands: Commands) -> None:
    """Add `describe` to the commands."""
    describe = commands.add_parser(
        "describe",
        help="what a table holds, and what `fit` would make of it",
        description=_DESCRIBE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    describe.add_argument("table", type=Path, help="the table: CSV, TSV, Parquet or JSON lines; text also with .gz")
    describe.add_argument("--target", type=names, action=AddNames, default=[], help="columns to predict")
    describe.add_argument(
        "--task",
        choices=("classes", "numbers"),
        help="what to predict (default: classes where the target is text or has few values, else numbers)",
    )
    add_column_options(describe)
    describe.set_defaults(check=_describe, run=_done)


def _describe(options: argparse.Namespace) -> None:
    """Print the description; nothing of it needs torch."""
    from torchmcl_tables.data import TableError, infer_schema, read_table
    from torchmcl_tables.data.description import description
    from torchmcl_tables.data.inference import rows_problem
    from torchmcl_tables.data.problems import raise_problems

    table = read_table(_OWNER, options.table)
    try:
        schema = infer_schema(
            _OWNER, table, options.target, task=options.task, interpret=True, **chosen_columns(options)
        )
    except TableError as error:
        raise ValueError(with_command(error, options)) from error
    say(description(table, schema))
    raise_problems(_OWNER, table.name, rows_problem(table))


def _done(options: argparse.Namespace) -> None:
    """Everything was printed when the options were checked."""
