"""Shared parts of the commands for tables."""

import argparse
from collections.abc import Callable
from pathlib import Path

from torchmcl._messages import bad_value
from torchmcl._resources import peak_mebibytes, seconds_since_start
from torchmcl.cli.arguments import AddNames, Commands, names
from torchmcl.persistence.writing import check_writable

__all__ = ["FORMATS", "add_target_options", "check_file", "new_command", "spent"]

FORMATS = "CSV, TSV, Parquet or JSON lines by the end of its name; text also with .gz"
Step = Callable[[argparse.Namespace], None]


def new_command(
    commands: Commands, name: str, description: str, summary: str, *, check: Step, run: Step
) -> argparse.ArgumentParser:
    """Return the parser of a command, whose description is printed unchanged.

    Args:
        commands: to add it to.
        name: of the command, which its errors name.
        description: for its own help.
        summary: for the list of commands.
        check: all that can be checked without torch.
        run: the work itself.
    """
    as_written = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser(name, help=summary, description=description, formatter_class=as_written)
    parser.set_defaults(check=_named(f"torchmcl {name}", check), run=_named(f"torchmcl {name}", run))
    return parser


def _named(owner: str, step: Step) -> Step:
    """Return a step of a command whose errors name the command instead of the raising function."""

    def named_step(options: argparse.Namespace) -> None:
        from torchmcl_tables.data.problems import speaking_for

        with speaking_for(owner):
            step(options)

    return named_step


def add_target_options(parser: argparse.ArgumentParser, *, default: list[str] | None) -> None:
    """Add the options about the columns to predict."""
    parser.add_argument("--target", type=names, action=AddNames, default=default, help="columns to predict")
    parser.add_argument(
        "--task",
        choices=("classes", "numbers"),
        help="what to predict (default: classes where the target is text or has few values, else numbers)",
    )


def check_file(path: Path, *inputs: Path | None) -> None:
    """Check that a file can be written.

    Args:
        path: of the file.
        *inputs: the inputs of the command, which it must not overwrite.

    Raises:
        ValueError: if it is one of the inputs.
        OSError: if it cannot be written.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{str(path)!r} cannot be written: it is a folder.")
    for other in inputs:
        if other is not None and path.exists() and other.exists() and path.samefile(other):
            rule, got = "differ from the file that is read", repr(str(path))
            raise ValueError(bad_value("check_file", "--out", rule, got, "Give another name."))
    check_writable(path)


def spent() -> str:
    """Return the time and the memory of the command."""
    memory = peak_mebibytes()
    return f"({seconds_since_start():.1f} s" + (f", {memory:,.0f} MiB at most)" if memory else ")")
