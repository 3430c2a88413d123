"""The edges by name. Nothing of torchmcl is imported before an edge runs: a fuzzer must see the imports."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuzz.feed import Feed

__all__ = ["EDGES"]


def _tensors(name: str) -> Callable[[Feed], None]:
    def run(feed: Feed) -> None:
        from fuzz import tensors

        getattr(tensors, name)(feed)

    return run


def _files(name: str) -> Callable[[Feed], None]:
    def run(feed: Feed) -> None:
        from fuzz import files

        getattr(files, name)(feed)

    return run


def _commands(feed: Feed) -> None:
    from fuzz.commands import commands

    commands(feed)


# Edge -> what it does with a feed, and its share of the inputs.
EDGES: dict[str, tuple[Callable[[Feed], None], int]] = {
    "rules": (_tensors("rules"), 25),
    "costs": (_tensors("costs"), 20),
    "losses": (_tensors("losses"), 15),
    "metrics": (_tensors("metric_values"), 8),
    "schedules": (_tensors("schedules"), 15),
    "tables": (_files("tables"), 8),
    "speech": (_files("speech"), 8),
    "models": (_files("models"), 4),
    "checkpoints": (_files("checkpoints"), 3),
    "records": (_files("records"), 4),
    "configurations": (_files("configurations"), 4),
    "commands": (_commands, 1),
}
