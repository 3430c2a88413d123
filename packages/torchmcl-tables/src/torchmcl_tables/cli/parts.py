"""Shared parts of the table commands: column options, checks of output files, and printed decisions."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmcl import io
from torchmcl.app import arguments
from torchmcl.app.progress import peak_mebibytes, seconds_since_start
from torchmcl.errors import bad_value

if TYPE_CHECKING:  # imported only by the commands that read tables
    from torchmcl_tables.data import TableSchema


FORMATS = "CSV, TSV, Parquet or JSON lines, by file extension; text formats also with .gz"


def new_command(
    commands: arguments.Commands,
    name: str,
    description: str | None,
    summary: str,
    *,
    check: Callable[[argparse.Namespace], Any],
    run: Callable[[Any], None],
) -> argparse.ArgumentParser:
    """Return the argument parser of a new command, whose description is printed unchanged.

    Args:
        commands: Subparsers to which the command is added.
        name: Name of the command, which precedes its error messages.
        description: Help text of the command.
        summary: Summary for the list of commands.
        check: Function that checks the options without importing torch and returns the plan of the command.
        run: Function that executes the plan.
    """
    as_written = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser(name, help=summary, description=description, formatter_class=as_written)
    parser.set_defaults(check=_named(f"torchmcl {name}", check), run=_named(f"torchmcl {name}", run))
    return parser


def _named(owner: str, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap a step of a command so that its error messages begin with the command, not with the raising function."""

    def named_step(value: Any) -> Any:
        from torchmcl_tables.data.table import speaking_for

        with speaking_for(owner):
            return step(value)

    return named_step


def add_target_options(parser: argparse.ArgumentParser, *, default: list[str] | None) -> None:
    """Add the options that select the columns to predict."""
    parser.add_argument(
        "--target", type=arguments.names, action=arguments.AddNames, default=default, help="columns to predict"
    )
    parser.add_argument(
        "--task",
        choices=("classes", "numbers"),
        help="kind of target (default: classes if the target is text or has few distinct values, otherwise numbers)",
    )


def check_file(path: Path, *inputs: Path | None) -> None:
    """Check that a file can be written.

    Args:
        path: Path of the file.
        *inputs: Input files of the command, which must not be overwritten.

    Raises:
        ValueError: If the file is one of the inputs.
        OSError: If the file cannot be written.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{str(path)!r} cannot be written: it is a folder. Give the name of a file.")
    for other in inputs:
        if other is not None and path.exists() and other.exists() and path.samefile(other):
            rule, got = "differ from the file that is read", repr(str(path))
            raise ValueError(bad_value("check_file", "--out", rule, got, "Give another name."))
    io.check_writable(path)


def spent() -> str:
    """Return the run time and the peak memory of the command as text."""
    memory = peak_mebibytes()
    return f"({seconds_since_start():.1f} s" + (f", {memory:,.0f} MiB at most)" if memory else ")")


# Options, the names of the arguments of `infer_schema`, and help texts.
_OPTIONS = {
    "--drop": ("drop", "columns to drop"),
    "--categorical": ("categorical", "columns to read as categories"),
    "--numeric": ("numeric", "columns to read as numbers; other cells count as missing"),
    "--date": ("date", "columns to read as dates; other cells count as missing"),
    "--keep-column": ("keep", "columns to keep that would be dropped by default"),
}


def add_column_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that determine the kinds of columns."""
    for option, (_, summary) in _OPTIONS.items():
        parser.add_argument(option, type=arguments.names, action=arguments.AddNames, default=[], help=summary)
    add_decimal_option(parser)


def add_decimal_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the decimal separator."""
    parser.add_argument("--decimal", choices=(".", ","), default="", help="decimal separator (default: detected)")


def chosen_columns(options: argparse.Namespace) -> dict[str, Sequence[str]]:
    """Return the column options as arguments of `infer_schema`."""
    return {name: getattr(options, attribute(option)) for option, (name, _) in _OPTIONS.items()}


def attribute(option: str) -> str:
    """Return the attribute name of an option in the parsed arguments."""
    return option.removeprefix("--").replace("-", "_")


def print_decisions(schema: "TableSchema", split: str = "") -> None:
    """Print the decisions about a table and its suspicious columns to standard error."""
    decided = [*schema.decisions(), *([split] if split else [])]
    for title, lines in (("Decisions on the table", decided), ("Warning", schema.warnings())):
        if lines:
            arguments.say("\n".join([f"{title}:", *(f"  {line}" for line in lines)]), error=True)
