"""Output of commands: text from files is printed with escaped control characters."""

import sys
from typing import TextIO

from torchmcl._messages import printable

__all__ = ["say"]


def say(text: object = "", *, error: bool = False) -> None:
    """Print text with escaped control characters, which could otherwise control the terminal.

    Args:
        text: to print.
        error: print to standard error.
    """
    stream: TextIO = sys.stderr if error else sys.stdout
    print(printable(str(text)), file=stream)
