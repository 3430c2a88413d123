"""Argument types of the commands, and a parser with uniform error messages.

A type converts the text of an option to its value, or raises an error with the violated rule, to which the parser adds
the names of the command and the option. This module does not import torch.
"""

import argparse
import math
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TextIO, TypeAlias

from torchmcl.errors import nearest_hint, printable, split_names

__all__ = [
    "AddNames",
    "CommandParser",
    "Commands",
    "counts",
    "device",
    "device_or_auto",
    "fraction",
    "names",
    "natural",
    "non_negative_number",
    "positive",
    "positive_number",
    "probability",
    "say",
    "seed",
    "sizes",
]

Commands: TypeAlias = "argparse._SubParsersAction[CommandParser]"

# Largest integer of an option: far above any number of rows, epochs or files, and within the range of a C int.
_MOST = 2**31 - 1
# Largest seed that NumPy and scikit-learn accept.
_LARGEST_SEED = 2**32 - 1


class CommandParser(argparse.ArgumentParser):
    """Parser that reports errors in the format of all other messages and exits with status 2."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments; unknown ones are errors of the command that was given them."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            hint = nearest_hint(unknown[0].partition("=")[0], self._option_string_actions)
            self.error(f"`{unknown[0]}` is not an argument of this command.{hint}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        """Print the message and a pointer to the help, and exit."""
        message = _formatted(message)
        end = "" if message.endswith((".", "?")) else "."
        self.exit(2, f"{self.prog}: {message}{end} See `{self.prog} --help`.\n")


def _formatted(message: str) -> str:
    """Return an error message of argparse in the format of all other messages."""
    if missing := re.fullmatch(r"the following arguments are required: (.+)", message, re.DOTALL):
        names = [name.split("/")[-1] for name in missing[1].split(", ")]
        return f"{', '.join(f'`{name}`' for name in names)} {'is' if len(names) == 1 else 'are'} required"
    about_option = re.fullmatch(r"argument (\S+): (.+)", message, re.DOTALL)
    if about_option is None:
        return message
    option, problem = about_option[1].split("/")[-1], about_option[2]
    if chosen := re.fullmatch(r"invalid choice: (.+) \(choose from (.+)\)", problem, re.DOTALL):
        hint = nearest_hint(chosen[1].strip("'"), [name.strip("'") for name in chosen[2].split(", ")])
        return f"`{option}` must be one of {chosen[2]}, got {chosen[1]}" + (f".{hint}" if hint else "")
    if problem == "expected one argument":
        return f"`{option}` must be followed by a value, got none. Write {option}=VALUE for one that begins with a dash"
    return f"`{option}` {problem}"


def positive(text: str) -> int:
    """Return an integer of at least 1."""
    return _integer(text, 1, _MOST)


def natural(text: str) -> int:
    """Return an integer of at least 0."""
    return _integer(text, 0, _MOST)


def seed(text: str) -> int:
    """Return a seed within the range of all random number generators."""
    return _integer(text, 0, _LARGEST_SEED)


def positive_number(text: str) -> float:
    """Return a finite number above 0."""
    return _number(text, lambda value: value > 0, "be a finite number > 0")


def non_negative_number(text: str) -> float:
    """Return a finite number of at least 0."""
    return _number(text, lambda value: value >= 0, "be a finite number >= 0")


def fraction(text: str) -> float:
    """Return a fraction below 1: a number in [0, 1)."""
    return _number(text, lambda value: 0 <= value < 1, "lie in [0, 1)")


def probability(text: str) -> float:
    """Return a probability strictly between 0 and 1."""
    return _number(text, lambda value: 0 < value < 1, "lie in (0, 1)")


def names(text: str) -> list[str]:
    """Return distinct names separated by commas; double quotes protect a comma in a name."""
    found = split_names(text)
    if not found:
        raise argparse.ArgumentTypeError(f"must name at least one, separated by commas, got {text!r}")
    return _without_duplicates(found)


class AddNames(argparse.Action):
    """Collect the names from an option that may be repeated."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Add the names to those of earlier options."""
        try:
            setattr(namespace, self.dest, _without_duplicates([*(getattr(namespace, self.dest) or []), *values]))
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from error


def _without_duplicates(found: list[str]) -> list[str]:
    for name in found:
        if found.count(name) > 1:
            raise argparse.ArgumentTypeError(f"must have no duplicates, got {name!r} twice")
    return found


def counts(text: str) -> list[int]:
    """Return integers of at least 0, separated by commas."""
    return [natural(number) for number in names(text)]


def sizes(text: str) -> tuple[int, ...]:
    """Return integers of at least 1, separated by commas."""
    return tuple(positive(size) for size in split_names(text) or [text])


def device(text: str) -> str:
    """Return the name of a device."""
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", text):
        raise argparse.ArgumentTypeError(f"must be cpu, cuda or cuda:NUMBER, got {text!r}")
    return text


def device_or_auto(text: str) -> str:
    """Return the name of a device, or "auto"."""
    return text if text == "auto" else device(text)


def _integer(text: str, least: int, most: int) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text) or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"must be an integer from {least} to {most}, got {text[:80]!r}")
    return int(text)


def _number(text: str, fits: Callable[[float], bool], rule: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and fits(value)):
        raise argparse.ArgumentTypeError(f"must {rule}, got {text[:80]!r}")
    return value


def say(text: object = "", *, error: bool = False) -> None:
    """Print text with control characters escaped, which terminals would otherwise execute.

    Args:
        text: Text to print.
        error: Whether to print to standard error.
    """
    stream: TextIO = sys.stderr if error else sys.stdout
    print(printable(str(text)), file=stream)
