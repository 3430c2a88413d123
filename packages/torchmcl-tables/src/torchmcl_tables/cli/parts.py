"""Parts of the table commands: options for columns, printed decisions, and suggested commands."""

import argparse
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmcl import io
from torchmcl.app import arguments
from torchmcl.app.progress import peak_mebibytes, seconds_since_start
from torchmcl.errors import bad_value, option_text

if TYPE_CHECKING:  # imported only by the commands that read tables
    from torchmcl_tables.data import Table, TableError, TableSchema


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
    """Return the parser of a command, whose description is printed unchanged.

    Args:
        commands: Subparsers to which the command is added.
        name: Name of the command, which its errors name.
        description: Description for its own help.
        summary: Summary for the list of commands.
        check: Function that checks the options without torch and returns the plan of the command.
        run: Function that executes the plan.
    """
    as_written = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser(name, help=summary, description=description, formatter_class=as_written)
    parser.set_defaults(check=_named(f"torchmcl {name}", check), run=_named(f"torchmcl {name}", run))
    return parser


def _named(owner: str, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a step of a command whose errors name the command instead of the raising function."""

    def named_step(value: Any) -> Any:
        from torchmcl_tables.data.table import speaking_for

        with speaking_for(owner):
            return step(value)

    return named_step


def add_target_options(parser: argparse.ArgumentParser, *, default: list[str] | None) -> None:
    """Add the options about the columns to predict."""
    parser.add_argument(
        "--target", type=arguments.names, action=arguments.AddNames, default=default, help="columns to predict"
    )
    parser.add_argument(
        "--task",
        choices=("classes", "numbers"),
        help="kind of target (default: classes if the target is text or has few values, otherwise numbers)",
    )


def check_file(path: Path, *inputs: Path | None) -> None:
    """Check that a file can be written.

    Args:
        path: Path of the file.
        *inputs: Inputs of the command, which it must not overwrite.

    Raises:
        ValueError: If it is one of the inputs.
        OSError: If it cannot be written.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{str(path)!r} cannot be written: it is a folder. Give the name of a file.")
    for other in inputs:
        if other is not None and path.exists() and other.exists() and path.samefile(other):
            rule, got = "differ from the file that is read", repr(str(path))
            raise ValueError(bad_value("check_file", "--out", rule, got, "Give another name."))
    io.check_writable(path)


def spent() -> str:
    """Return the run time and memory use of the command, as text."""
    memory = peak_mebibytes()
    return f"({seconds_since_start():.1f} s" + (f", {memory:,.0f} MiB at most)" if memory else ")")


# Options, their names in `infer_schema`, and their purposes.
_OPTIONS = {
    "--drop": ("drop", "columns to drop"),
    "--categorical": ("categorical", "columns to read as categories"),
    "--numeric": ("numeric", "columns to read as numbers; other cells count as missing"),
    "--date": ("date", "columns to read as dates; other cells count as missing"),
    "--keep-column": ("keep", "columns to keep although they would be dropped"),
}


def add_column_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that determine the kinds of columns."""
    for option, (_, summary) in _OPTIONS.items():
        parser.add_argument(option, type=arguments.names, action=arguments.AddNames, default=[], help=summary)


def chosen_columns(options: argparse.Namespace) -> dict[str, Sequence[str]]:
    """Return the options as arguments of `infer_schema`."""
    return {name: getattr(options, attribute(option)) for option, (name, _) in _OPTIONS.items()}


def attribute(option: str) -> str:
    """Return the attribute of the parsed options that has the value of an option."""
    return option.removeprefix("--").replace("-", "_")


def schema_of(
    table: "Table", targets: Sequence[str], task: str | None, chosen: Mapping[str, Sequence[str]], words: Sequence[str]
) -> "TableSchema":
    """Return the schema of a table under the options.

    Args:
        table: Table to describe.
        targets: Names of the columns to predict.
        task: Kind of target; None to decide by its cells.
        chosen: Result of `chosen_columns`.
        words: Words of the command.

    Raises:
        ValueError: If the table or the options cannot be used; with the command that avoids it.
    """
    from torchmcl_tables.data import TableError, infer_schema

    try:
        return infer_schema(table, targets, task=task, interpret=True, **chosen)
    except TableError as error:
        names = {"--target": targets} | {option: chosen[name] for option, (name, _) in _OPTIONS.items()}
        raise ValueError(_with_command(error, names, words)) from error


def print_decisions(schema: "TableSchema", words: Sequence[str], split: str = "") -> None:
    """Print, once and on standard error, the decisions about a table and its suspicious columns."""
    decided = [*schema.decisions(), *([split] if split else [])]
    for title, lines in (("Decisions on the table", decided), ("Warning", schema.warnings())):
        if lines:
            arguments.say("\n".join([f"{title}:", *(f"  {line}" for line in lines)]), error=True)
    if 0 < len(schema.suspicious) < len(schema.columns):
        dropped = option_text("--drop", *(column.name for column in schema.suspicious))
        arguments.say(f"  To drop all of these: {_command(words)} {dropped}", error=True)


def _with_command(error: "TableError", names: Mapping[str, Sequence[str]], words: Sequence[str]) -> str:
    """Return the message of an error, with a corrected command if different column names would avoid it."""
    wrong = [problem for problem in error.problems if problem.wrong]
    if not wrong or any(problem.subject == "--target" and not problem.right for problem in wrong):
        return str(error)
    ends = []
    for option in dict.fromkeys(problem.subject for problem in wrong):
        corrections = {problem.wrong: problem.right for problem in wrong if problem.subject == option}
        words = _without(words, option)
        corrected = [corrections.get(name, name) for name in names[option]]
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
