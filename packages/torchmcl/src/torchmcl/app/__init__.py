"""Command line: parsing and dispatch."""

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any

from torchmcl._version import __version__
from torchmcl.app.arguments import CommandParser, say
from torchmcl.app.commands import add_diagnose_command, add_play_command
from torchmcl.optional import install_command

__all__ = ["main"]

# Sibling packages add commands through entry points in this group: functions that take the subparsers.
_GROUP = "torchmcl.commands"
_HOMES = dict.fromkeys(("describe", "fit", "predict", "report"), "torchmcl-tables") | {
    "demo": "torchmcl-fleet",
    "forecast": "torchmcl-forecast",
    "separation": "torchmcl-speech",
    "data": "torchmcl-speech",
    "reproduce": "torchmcl-studies",
}


def _missing_message(command: str) -> str:
    """Return how to install the package that provides a command."""
    if command == "reproduce":
        return "This command comes with the studies in the repository: clone it and run `make install`."
    return f"This command comes with {_HOMES[command]}: {install_command(_HOMES[command])}."


def _missing() -> set[str]:
    """Return the commands of packages that are not installed."""
    return _HOMES.keys() - {entry.name for entry in entry_points(group=_GROUP)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `torchmcl ...`; return the exit code.

    1 is a training run with a non-finite loss, 2 invalid input, 130 and 143 termination by Ctrl-C and SIGTERM.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser(words[0] if words else "")
    if words and words[0] in _missing():
        parser.exit(2, f"torchmcl {words[0]}: {_missing_message(words[0])}\n")
    options = parser.parse_args(words)
    options.words = words
    if options.version:
        say("\n".join(_versions()) if options.verbose else f"torchmcl {__version__}")
        parser.exit()
    if options.verbose:
        parser.error("`--verbose` requires `--version`")
    if options.run is None:
        parser.print_help()
        return 0
    try:
        # Invalid input is detected before torch is imported, which takes seconds. A check may return a plan to run.
        plan = None if options.check is None else options.check(options)
        return _run(options.run, options if plan is None else plan)
    except KeyboardInterrupt:  # before signals are handled, while packages are loaded
        say("torchmcl: Stopped by SIGINT.", error=True)
        return 130
    except FloatingPointError as error:  # a non-finite loss
        say(f"torchmcl: {error}", error=True)
        return 1
    except (ValueError, ImportError, OSError) as error:
        say(error if str(error).startswith("torchmcl ") else f"torchmcl: {_text(error)}", error=True)
        return 2


def _text(error: Exception) -> str:
    """Return the message of an error, without the number of an error of the operating system."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return f"{str(error.filename)!r} cannot be read or written: {error.strerror}. Check its name and its folder."
    return str(error)


def _run(run: Callable[[Any], None], plan: Any) -> int:
    from torchmcl.io import TrainingInterrupted, stop_on_signals

    try:
        with stop_on_signals():
            run(plan)
    except TrainingInterrupted as stopped:
        say(f"torchmcl: {stopped}", error=True)
        return stopped.code
    return 0


def _parser(command: str = "") -> argparse.ArgumentParser:
    """Return the parser of a command, or of all commands for any other word."""
    parser = CommandParser(
        prog="torchmcl",
        description="Multiple choice learning and annealed MCL for PyTorch: several hypotheses and their scores.",
        epilog=_epilog(),
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument("--verbose", action="store_true", help="with --version: details for a bug report")
    parser.set_defaults(check=None, run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    add_play_command(commands)
    add_diagnose_command(commands)
    entries = sorted(entry_points(group=_GROUP), key=lambda entry: [*_HOMES, entry.name].index(entry.name))
    for entry in [entry for entry in entries if entry.name == command] or entries:
        entry.load()(commands)
    return parser


def _epilog() -> str:
    if not (missing := sorted(_missing())):
        return "Start with: torchmcl demo, or with a table: torchmcl fit --example -o model/"
    return f"Start with: torchmcl demo. Not installed: {', '.join(missing)}; run one to read how to install it."


def _versions() -> list[str]:
    from torchmcl.app.environment import environment

    return [f"{name:<18}{value}" for name, value in environment().items()]
