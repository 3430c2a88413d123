"""Interactive HTML page that trains hypotheses in the browser, in one file without network requests."""

import json
from importlib.resources import files
from pathlib import Path

from torchmcl.app.report import AMCL, MCL, PALETTE, RELAXED, html_report
from torchmcl.io import write_atomically

__all__ = ["COMPUTING", "play_page", "play_script", "write_play_page"]

#: Scripts without a user interface, in dependency order; they also run outside of a page.
COMPUTING = ("rules", "theory", "data", "simulation", "network", "state", "story")
_SHOWING = ("drawing", "charts", "panels", "showing", "points_page", "network_page", "page")


def play_script(names: tuple[str, ...] = COMPUTING) -> str:
    """Return the concatenated scripts of the page.

    Args:
        names: Names of the files, without extension.

    Example:
        >>> "softmin" in play_script(("rules",))
        True
    """
    return "\n".join(_text(f"{name}.js") for name in names)


def play_page() -> str:
    """Return the page as HTML.

    Example:
        >>> play_page().startswith("<!doctype html>")
        True
    """
    methods = {"wta": MCL, "relaxed": RELAXED, "annealed": AMCL, "top": PALETTE[2]}
    colors = f"globalThis.torchmclPlay = {json.dumps({'palette': PALETTE, 'methods': methods})};"
    script = "\n".join([colors, play_script(COMPUTING + _SHOWING)])
    return html_report(
        "Hypotheses by hand: torchmcl",
        _text("index.html"),
        script,
        command="torchmcl play",
        style=_text("play.css"),
    )


def write_play_page(path: Path) -> Path:
    """Write the page to a file, creating parent folders, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, play_page().encode())
    return path


def _text(name: str) -> str:
    return (files("torchmcl.app") / "play" / name).read_text(encoding="utf-8")
