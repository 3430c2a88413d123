"""What commands print: text from files is shown as text, whatever it holds."""

import sys
from typing import TextIO

from torchmcl._messages import printable

__all__ = ["say"]


def say(text: object = "", *, error: bool = False) -> None:
    """Print text in which control characters, with which a name could command the terminal, are visible.

    Args:
        text: to print.
        error: print to standard error.
    """
    stream: TextIO = sys.stderr if error else sys.stdout
    print(printable(str(text)), file=stream)
