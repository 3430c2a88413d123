"""HTML reports in one file without network requests: tables, figures and formatted numbers."""

import base64
import hashlib
import html
import io
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from torchmcl._version import __version__
from torchmcl.errors import bad_value, number_text
from torchmcl.io import check_writable
from torchmcl.optional import optional_import

__all__ = [
    "AMCL",
    "DATA",
    "GRAY",
    "INK",
    "MCL",
    "PALETTE",
    "RELAXED",
    "SOFT",
    "Html",
    "Spread",
    "check_report_folder",
    "draw_hypotheses",
    "escape",
    "html_report",
    "image",
    "mean_error",
    "method_color",
    "new_figure",
    "number",
    "percent",
    "side_by_side",
    "spread_of",
    "table",
]

#: Okabe and Ito's colors, which remain distinct for color-blind readers.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
#: Colors of the methods, of lines and text, and of data behind hypotheses.
AMCL, MCL, RELAXED = PALETTE[0], PALETTE[1], PALETTE[3]
INK, SOFT, GRAY, DATA = "#222222", "#555555", "#8a94a1", "#9fb8a0"
_METHODS = {"amcl": AMCL, "annealed mcl": AMCL, "mcl": MCL, "pit": INK, "annealed epsilon": RELAXED}
# Number of decimals above which numbers are written with an exponent.
_MAX_DECIMALS = 6
# Maximum number of plotted points; of more points, every n-th is kept, with a note in the report.
_MOST_POINTS = 3000
_SCALES = ("linear", "log")


def _beside(name: str) -> str:
    """Return the text of a file in the folder of this module."""
    return "\n" + (files("torchmcl.app") / name).read_text(encoding="utf-8")


PLOT_STYLE = _beside("plot.css")

PLOT_SCRIPT = _beside("plot.js")


_STYLE = _beside("page.css")
# Nothing is loaded from the network; audio files may lie beside the report.
_POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; media-src data: 'self' file:; "
    "style-src 'unsafe-inline'"
)


_PLOT = '<div class="plot" data-plot="'  # escaped text cannot contain it


# Text in the head of every report, by which reports are recognized.
_SIGNATURE, _SIGNED_BYTES = "<span>made by <code>torchmcl", 1 << 16


class Html(str):
    """HTML text, with external content escaped."""


def escape(text: object) -> str:
    """Return text with HTML characters escaped."""
    return html.escape(str(text), quote=True)


def check_report_folder(owner: str, folder: Path, *others: str) -> None:
    """Check that a report can be written to a folder without replacing files that torchmcl did not write.

    Args:
        owner: Name of the command in the error message.
        folder: Folder of `index.html`, which may not exist yet.
        *others: Names of further files that are replaced together with the report.

    Raises:
        ValueError: If one of them exists without a report that torchmcl wrote.
        OSError: If the folder is a file, or files cannot be written in it.
    """
    target = folder / "index.html"
    check_writable(target)
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


def html_report(title: str, body: str, script: str = "", *, command: str = "torchmcl", style: str = "") -> str:
    """Return a complete HTML report. `body`, `script` and `style` are trusted: escape external content.

    The report permits only its own script, by checksum, as a safeguard against unescaped content.

    Args:
        title: Title of the window.
        body: HTML.
        script: Script of the report; the script of interactive plots is added.
        command: Command that creates the report, shown in its header; without local paths, because reports are shared.
        style: Additional CSS.
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
    """Return an HTML table.

    Args:
        header: Heading of each column. Text is escaped unless it is `Html`; text after " | " is a smaller line below.
        rows: Table entries of each row.
        best: Index of the row to set in bold.
        identity: Identifier of the element, for links and styles.
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
    """Return parts of a report that appear side by side on wide screens."""
    return '<div class="pair">' + "".join(f"<div>{part}</div>" for part in parts) + "</div>"


def image(figure: Any, alternative: str, caption: str = "") -> str:
    """Return a matplotlib figure as an embedded image, with its values as tooltips and as CSV."""
    backend = optional_import("matplotlib.backends.backend_agg", extra="plots", needed_by="An HTML report")
    canvas = backend.FigureCanvasAgg(figure)
    canvas.draw()
    # The bounding box of a tight image is computed here because the values depend on it.
    box = figure.get_tightbbox(canvas.get_renderer()).padded(0.1)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160, bbox_inches=box)
    data = base64.b64encode(buffer.getvalue()).decode()
    values = plot_values(figure, tuple(figure.dpi * v for v in (box.x0, box.y0, box.width, box.height)))
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    image_tag = f'<img alt="{escape(alternative)}" src="data:image/png;base64,{data}">'
    link = '<p class="note"><a download="values.csv">Values of this figure (CSV)</a></p>'
    return f'<figure>{_PLOT}{escape(values)}">{image_tag}{link}</div>{below}</figure>'


def method_color(method: str) -> str:
    """Return the color of a method, given its key or its label.

    Example:
        >>> [method_color(name) for name in ("annealed MCL", "amcl-linear", "Relaxed-WTA (0.1)", "mcl")]
        ['#0072B2', '#0072B2', '#CC79A7', '#D55E00']
    """
    word = method.lower()
    return _METHODS.get(word) or _METHODS.get(word.split("-")[0], RELAXED)


def new_figure(width: float, height: float, **options: Any) -> Any:
    """Return an empty matplotlib figure without pyplot, which needs no window and no `close`."""
    figures = optional_import("matplotlib.figure", extra="plots", needed_by="Drawing the figures of a report")
    return figures.Figure(figsize=(width, height), **options)


def draw_hypotheses(axis: Any, points: Sequence[Sequence[float]], hypotheses: Sequence[Sequence[float]]) -> None:
    """Draw data in the square [-1, 1]^2 and hypotheses (x, y, score), darker for higher scores."""
    axis.scatter([p[0] for p in points], [p[1] for p in points], s=5, c=DATA, alpha=0.45, linewidths=0)
    x, y, scores = zip(*hypotheses, strict=True)
    top = max(*scores, 1e-12)
    # The outline keeps a hypothesis with score 0 visible.
    shades = [(0.0, 0.28, 0.6, 0.12 + 0.88 * score / top) for score in scores]
    axis.scatter(x, y, s=46, c=shades, edgecolors="#00345f", linewidths=0.5)
    axis.set(xlim=(-1, 1), ylim=(-1, 1), aspect="equal", xticks=(-1, 0, 1), yticks=(-1, 0, 1))


def plot_values(figure: Any, box: tuple[float, float, float, float]) -> str:
    """Return the points of the lines, scatter plots and bars of a figure as JSON, with the positions of the axes.

    Args:
        figure: Matplotlib figure that has been drawn.
        box: Left edge, bottom edge, width and height of the saved image, in pixels of the figure.

    Example:
        >>> figure = new_figure(4, 3)
        >>> _ = figure.add_subplot().plot([1, 2], [3, 4], label="loss")
        >>> json.loads(plot_values(figure, (0, 0, 400, 300)))["axes"][0]["series"]
        [{'label': 'loss', 'x': [1.0, 2.0], 'y': [3.0, 4.0]}]
    """
    axes = [_axis(axis, box) for axis in figure.axes if {axis.get_xscale(), axis.get_yscale()} <= set(_SCALES)]
    axes = [axis for axis in axes if axis["series"]]
    total = sum(len(series["x"]) for axis in axes for series in axis["series"])
    every = -(-total // _MOST_POINTS) or 1
    if every > 1:
        for series in (series for axis in axes for series in axis["series"]):
            series["x"], series["y"] = series["x"][::every], series["y"][::every]
    return json.dumps({"axes": axes, "every": every}, separators=(",", ":"))


def _axis(axis: Any, box: tuple[float, float, float, float]) -> dict[str, Any]:
    left, bottom, width, height = box
    place = axis.get_window_extent()
    return {
        "title": axis.get_title().replace("\n", ", "),
        "x": axis.get_xlabel(),
        "y": axis.get_ylabel(),
        "log": [axis.get_xscale() == "log", axis.get_yscale() == "log"],
        "limits": [_rounded(v) for v in (*axis.get_xlim(), *axis.get_ylim())],
        # Fractions of the image, from its left and top edges.
        "box": [
            _rounded((place.x0 - left) / width),
            _rounded((place.x1 - left) / width),
            _rounded(1 - (place.y0 - bottom) / height),
            _rounded(1 - (place.y1 - bottom) / height),
        ],
        "series": _series(axis),
    }


def _series(axis: Any) -> list[dict[str, Any]]:
    artists = []
    for line in axis.lines:
        if line.get_transform() == axis.transData:  # lines across the axes are not data
            artists.append((line, line.get_xydata()))
    for points in axis.collections:
        if points.get_offset_transform() == axis.transData:
            artists.append((points, points.get_offsets()))
    for bars in axis.containers:
        if hasattr(bars, "datavalues"):
            places = [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in bars.patches]
            artists.append((bars, places))
    return [
        {"label": _label(artist), "x": [_rounded(x) for x, _ in pairs], "y": [_rounded(y) for _, y in pairs]}
        for artist, pairs in artists
        if len(pairs)
    ]


def _label(artist: Any) -> str:
    label = str(artist.get_label())
    return "" if label.startswith("_") else label


def _rounded(value: Any) -> float | None:
    number = float(f"{float(value):.6g}")
    return number if number - number == 0 else None  # JSON supports neither NaN nor infinities


class Spread(NamedTuple):
    """Mean, standard deviation and standard error of the mean of some values."""

    mean: float
    std: float
    error: float
    n: int


def spread_of(values: Sequence[float]) -> Spread:
    """Compute mean, standard deviation and standard error.

    Example:
        >>> spread_of([1.0, 3.0])
        Spread(mean=2.0, std=1.4142135623730951, error=1.0, n=2)
    """
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    return Spread(statistics.fmean(values), std, std / math.sqrt(len(values)), len(values))


def number(value: float | None, scale: float | None = None) -> str:
    """Return a number as text, with a precision suitable for values that differ by `scale`.

    Example:
        >>> number(123456.7), number(123456.7, scale=0.5), number(None)
        ('123,457', '123,456.7', 'none')
    """
    return number_text(value, abs(value or 0.0) if scale is None else scale, grouped=True)


def percent(fraction: float, decimals: int = 0) -> str:
    """Return a fraction as a percentage.

    Example:
        >>> percent(0.123), percent(0.123, decimals=1)
        ('12 %', '12.3 %')
    """
    return f"{100 * fraction:.{decimals}f} %"


def mean_error(mean: float, error: float, decimals: int | None = None) -> str:
    """Return a mean with its standard error or standard deviation, as text.

    Args:
        mean: Mean of the values.
        error: Number after the ±.
        decimals: Number of decimals; by default, two significant digits of the error are shown.

    Example:
        >>> mean_error(5.6789, 0.331), mean_error(250.26, 31.0), mean_error(1.5, 0.25, decimals=1)
        ('5.68 ± 0.33', '250 ± 31', '1.5 ± 0.2')
        >>> mean_error(1.2345e-9, 2e-11), mean_error(0.5, 0.0)
        ('1.23e-09 ± 2.00e-11', '0.5 ± 0')
    """
    if decimals is None and (error == 0 or not math.isfinite(error)):
        return f"{number(mean)} ± {error:g}"
    places = max(0, 1 - math.floor(math.log10(error))) if decimals is None else decimals
    form = ".2e" if places > _MAX_DECIMALS else f".{places}f"
    return f"{mean:{form}} ± {error:{form}}"
