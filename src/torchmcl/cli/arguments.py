"""What the arguments of several commands share."""

import argparse
import re
from typing import TypeAlias

__all__ = ["Commands", "device", "device_or_auto", "names", "natural", "positive", "sizes"]

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def positive(text: str) -> int:
    """Return a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number >= 1, got {text!r}")
    return int(text)


def natural(text: str) -> int:
    """Return a whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number >= 0, got {text!r}")
    return int(text)


def names(text: str) -> list[str]:
    """Return names that are separated by commas."""
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise argparse.ArgumentTypeError("must name at least one, separated by commas")
    return found


def sizes(text: str) -> tuple[int, ...]:
    """Return whole numbers that are separated by commas."""
    return tuple(positive(size) for size in names(text))


def device(text: str) -> str:
    """Return the name of a device."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"must be cpu, cuda or cuda:NUMBER, got {text!r}")
    return text


def device_or_auto(text: str) -> str:
    """Return the name of a device, or "auto"."""
    return text if text == "auto" else device(text)
