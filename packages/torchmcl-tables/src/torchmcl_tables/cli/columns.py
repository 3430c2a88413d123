"""Options about the columns of a table, descriptions of the decisions, and commands to paste."""

import argparse
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchmcl._messages import option_text
from torchmcl.cli.arguments import AddNames, names
from torchmcl.cli.output import say

if TYPE_CHECKING:  # reading tables is loaded by the commands that need it
    from torchmcl_tables.data import Table, TableError, TableSchema

__all__ = ["add_column_options", "chosen_columns", "print_decisions", "schema_of"]

# Options, their names in `infer_schema`, and what they are for.
_OPTIONS = {
    "--drop": ("drop", "columns to drop"),
    "--categorical": ("categorical", "columns to read as categories, for any content"),
    "--numeric": ("numeric", "columns to read as numbers; other cells count as missing"),
    "--date": ("date", "columns to read as dates; other cells count as missing"),
    "--keep-column": ("keep", "columns to keep that would be dropped: constants, row names"),
}


def add_column_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that determine the kinds of columns."""
    for option, (_, summary) in _OPTIONS.items():
        parser.add_argument(option, type=names, action=AddNames, default=[], help=summary)


def _value(options: argparse.Namespace, option: str) -> Any:
    return getattr(options, option.removeprefix("--").replace("-", "_"))


def chosen_columns(options: argparse.Namespace) -> dict[str, Sequence[str]]:
    """Return the options as arguments of `infer_schema`."""
    return {name: _value(options, option) for option, (name, _) in _OPTIONS.items()}


def schema_of(table: "Table", options: argparse.Namespace) -> "TableSchema":
    """Return the schema of a table under the options.

    Raises:
        ValueError: if the table or the options cannot be used; with the command that avoids it.
    """
    from torchmcl_tables.data import TableError, infer_schema

    try:
        return infer_schema(table, options.target, task=options.task, interpret=True, **chosen_columns(options))
    except TableError as error:
        raise ValueError(_with_command(error, options)) from error


def print_decisions(schema: "TableSchema", options: argparse.Namespace, split: str = "") -> None:
    """Print, once and on standard error, the decisions about a table and its suspicious columns."""
    decided = [*schema.decisions(), *([split] if split else [])]
    for title, lines in (("Decided about the table", decided), ("Warning", schema.warnings())):
        if lines:
            say("\n".join([f"{title}:", *(f"  {line}" for line in lines)]), error=True)
    if 0 < len(schema.suspicious) < len(schema.columns):
        dropped = option_text("--drop", *(column.name for column in schema.suspicious))
        say(f"  Without all of these: {_command(options.words)} {dropped}", error=True)


def _with_command(error: "TableError", options: argparse.Namespace) -> str:
    """Return the message of an error with a command that avoids it, if other column names do."""
    wrong = [problem for problem in error.problems if problem.wrong]
    if not wrong or any(problem.subject == "--target" and not problem.right for problem in wrong):
        return str(error)
    words = list(options.words)
    ends = []
    for option in dict.fromkeys(problem.subject for problem in wrong):
        corrections = {problem.wrong: problem.right for problem in wrong if problem.subject == option}
        words = _without(words, option)
        corrected = [corrections.get(name, name) for name in _value(options, option)]
        kept = list(dict.fromkeys(name for name in corrected if name))
        ends += [option_text(option, *kept)] if kept else []
    return f"{error}\nPerhaps: {' '.join([_command(words), *ends])}"


def _command(words: Sequence[str]) -> str:
    return f"torchmcl {shlex.join(words)}"


def _without(words: Sequence[str], option: str) -> list[str]:
    """Return the words of a command without an option and its value."""
    kept = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word == option:
            skip = True
        elif not word.startswith(f"{option}="):
            kept.append(word)
    return kept
