"""A self-contained HTML page: one file, no network, readable on a phone."""

import base64
import hashlib
import html
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torchmcl._messages import bad_value
from torchmcl._optional import optional_import
from torchmcl._pages.plot_values import PLOT_SCRIPT, PLOT_STYLE, plot_values
from torchmcl._version import __version__

__all__ = ["Html", "check_page", "escape", "image", "page", "side_by_side", "table"]

_STYLE = """
:root { --ink: #1c2430; --soft: #5b6675; --line: #d9dee5; --paper: #ffffff; --accent: #0b6e99; --wash: #f4f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8ebef; --soft: #a2acb9; --line: #363e49; --paper: #14181d; --accent: #62b5dc; --wash: #1d232b; }
  img { background: #fff; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 70rem; margin: 0 auto; padding: 2rem 1.2rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .6rem; } h2 { font-size: 1.25rem; margin: 2.4rem 0 .6rem; }
p { max-width: 46rem; } .lead { font-size: 1.1rem; } .note { color: var(--soft); font-size: .92rem; }
img { width: 100%; height: auto; border-radius: 6px; display: block; }
figure { margin: 0; } figcaption { color: var(--soft); font-size: .92rem; margin-top: .4rem; max-width: 46rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .95rem; }
th, td { padding: .4rem .8rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } thead th { border-bottom: 2px solid var(--ink); }
td small, th small { color: var(--soft); display: block; font-weight: 400; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); gap: 1.4rem; }
tr.best td { font-weight: 650; } td u { text-underline-offset: 3px; }
button { font: inherit; padding: .3rem 1rem; border-radius: 6px; border: 1px solid var(--line);
  background: var(--wash); color: var(--ink); cursor: pointer; }
input[type=range] { flex: 1; min-width: 8rem; accent-color: var(--accent); }
.controls { display: flex; gap: .8rem; align-items: center; margin: .6rem 0; flex-wrap: wrap; }
canvas { width: 100%; border: 1px solid var(--line); border-radius: 6px; background: #fff; display: block; }
code { background: var(--wash); padding: .1rem .3rem; border-radius: 4px; font-size: .9em; overflow-wrap: anywhere; }
pre { background: var(--wash); border: 1px solid var(--line); border-radius: 6px; padding: .8rem 1rem; overflow-x: auto;
  font-size: .9rem; line-height: 1.45; } pre code { padding: 0; background: none; overflow-wrap: normal; }
a { color: var(--accent); }
body > header { border-bottom: 1px solid var(--line); color: var(--soft); font-size: .9rem; padding: .6rem 1.2rem;
  display: flex; flex-wrap: wrap; gap: .2rem 1.4rem; align-items: baseline; } body > header b { color: var(--ink); }
@media print { body > header { padding: 0; } main { padding: 1rem 0; } h2, figure, tr { break-inside: avoid; } }
"""
# Nothing is loaded from the network; sounds may be files beside the page.
_POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; media-src data: 'self' file:; "
    "style-src 'unsafe-inline'"
)


_PLOT = '<div class="plot" data-plot="'  # escaped text cannot contain it


# In the head of every page; pages are recognized by it.
_SIGNATURE, _SIGNED_BYTES = "<span>made by <code>torchmcl", 1 << 16


class Html(str):
    """Text in HTML form, with external content escaped."""


def escape(text: object) -> str:
    """Return text with HTML characters escaped."""
    return html.escape(str(text), quote=True)


def check_page(owner: str, folder: Path, *others: str) -> None:
    """Check that the page of a folder can be written without replacing a foreign file.

    Args:
        owner: named in the error.
        folder: for `index.html`; it may not exist.
        *others: further files that are replaced together with the page.

    Raises:
        ValueError: if one of them exists without a page that torchmcl wrote.
    """
    target = folder / "index.html"
    if target.is_file():
        with target.open("rb") as file:
            if _SIGNATURE in file.read(_SIGNED_BYTES).decode(errors="replace"):
                return
    foreign = [name for name in (target.name, *others) if (folder / name).exists()]
    if foreign:
        rule, got = (
            "not hold files that torchmcl did not write",
            f"{str(folder)!r} with {', '.join(map(repr, foreign))}",
        )
        raise ValueError(bad_value(owner, "--out", rule, got, "Give another folder, or remove them first."))


def page(title: str, body: str, script: str = "", *, command: str = "torchmcl", style: str = "") -> str:
    """Return a complete page. `body`, `script` and `style` are trusted: escape external content.

    The page allows its own script, by the checksum of its text, and no other, should an escape ever be forgotten.

    Args:
        title: of the window.
        body: HTML.
        script: of the page; plots bring theirs.
        command: that makes such a page, for its head. Without the paths of a machine: pages are sent to others.
        style: beside that of all pages.
    """
    if _PLOT in body:
        script, style = f"{script}\n{PLOT_SCRIPT}", f"{PLOT_STYLE}{style}"
    code = f"\n{script}\n"
    checksum = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    scripts = f"<script>{code}</script>" if script else ""
    allowed = f"{_POLICY}; script-src 'sha256-{checksum}'" if script else _POLICY
    policy = f'<meta http-equiv="Content-Security-Policy" content="{allowed}">\n'
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'{policy}<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n"
        f"<body>\n<header><b>torchmcl {escape(__version__)}</b> <span>made by <code>{escape(command)}</code></span>"
        f"</header>\n<main>\n{body}\n</main>\n{scripts}\n</body>\n</html>\n"
    )


def table(
    header: Iterable[object], rows: Iterable[Iterable[object]], best: int | None = None, identity: str = ""
) -> str:
    """Return a table.

    Args:
        header: a cell for each column; text is escaped, and what follows " | " is a smaller line below; `Html` stays.
        rows: of cells.
        best: the row to set in bold.
        identity: of the element, for links and styles.
    """
    head = "".join(f"<th>{_cell(cell)}</th>" for cell in header)
    lines = []
    for place, row in enumerate(rows):
        mark = ' class="best"' if place == best else ""
        lines.append(f"<tr{mark}>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>")
    name = f' id="{escape(identity)}"' if identity else ""
    return (
        f'<div class="scroll"><table{name}><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
    )


def _cell(content: object) -> str:
    if isinstance(content, Html):
        return content
    main, *below = str(content).split(" | ")
    return escape(main) + "".join(f"<small>{escape(line)}</small>" for line in below)


def side_by_side(parts: Iterable[str]) -> str:
    """Return parts of a page side by side on wide screens."""
    return '<div class="pair">' + "".join(f"<div>{part}</div>" for part in parts) + "</div>"


def image(figure: Any, alternative: str, caption: str = "") -> str:
    """Return a matplotlib figure as an embedded picture, with its values under the pointer and as CSV."""
    backend = optional_import("matplotlib.backends.backend_agg", extra="demo", needed_by="Drawing pages")
    canvas = backend.FigureCanvasAgg(figure)
    canvas.draw()
    # The box that a tight picture has, taken here because the values need it too.
    box = figure.get_tightbbox(canvas.get_renderer()).padded(0.1)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160, bbox_inches=box)
    data = base64.b64encode(buffer.getvalue()).decode()
    values = plot_values(figure, tuple(figure.dpi * v for v in (box.x0, box.y0, box.width, box.height)))
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    picture = f'<img alt="{escape(alternative)}" src="data:image/png;base64,{data}">'
    link = '<p class="note"><a download="values.csv">Values of this picture (CSV)</a></p>'
    return f'<figure>{_PLOT}{escape(values)}">{picture}{link}</div>{below}</figure>'
