"""The figures of the paper, drawn from their records: a picture each, a caption, and one page with all of them."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torchmcl._checks import bad_value
from torchmcl._pages.page import escape, image, page
from torchmcl._pages.pictures import film_player, film_script, save_picture
from torchmcl.persistence.reading import as_written, read_json, read_text
from torchmcl.persistence.writing import write_atomically
from torchmcl_studies.reports import figure_drawings as drawings

Row = dict[str, Any]
_OWNER = "torchmcl reproduce"


class _Picture(NamedTuple):
    title: str
    text: str
    draw: Callable[[dict[str, list[Row]], dict[str, Any]], Any]
    tables: tuple[str, ...]


_PICTURES = {
    "figure1": _Picture(
        "Figure 1: 49 answers, three ways to train them",
        "Predictions (blue, the darker the higher the score) of the first seed over the data (green); below, "
        "distortion on fresh points and the number of answers that are nearest to none of them, for every seed.",
        drawings.draw_figure1,
        ("results", "frames", "points"),
    ),
    "rate-distortion": _Picture(
        "Trajectories in the rate-distortion plane",
        "Each line is a training on one Gaussian: its expected distortion under its own weights, and the mutual "
        "information of answer and target. R(D) is the minimum rate that any assignment needs (reverse water-filling), "
        "the Shannon lower bound is equal to it at low distortion, and + is where R(D) = log2(n).",
        drawings.draw_rate_distortion,
        ("trajectories", "curve"),
    ),
    "distortion-vs-temperature": _Picture(
        "Distortion against temperature",
        "Distortion on held-out points while the temperature falls linearly from 1 to 0 (right to left in time), for "
        "each seed. Dashed: the upper bound of the first critical temperature, twice the largest variance of the "
        "targets at x = 1. Dotted: the critical temperature of a single Gaussian.",
        drawings.draw_distortion_vs_temperature,
        ("curve",),
    ),
    "phase-transitions": _Picture(
        "Phase transitions at three inputs",
        "Answers at the inputs x = 0.1, 0.6 and 0.9 (rows) at four temperatures of one training (columns); right, the "
        "number of distinct answers while the temperature falls, with the critical temperature of theory (dashed).",
        drawings.draw_phase_transitions,
        ("hypotheses", "points", "counts"),
    ),
    "annealed-epsilon": _Picture(
        "Relaxed-WTA with an annealed epsilon",
        "Answers of one training at falling epsilon, and how many of them stay within the circle in the middle, for "
        "each seed of both methods.",
        drawings.draw_annealed_epsilon,
        ("frames", "counts", "points"),
    ),
}


def read_table(path: Path) -> list[Row]:
    """Return the rows of a CSV file, numbers as numbers.

    Raises:
        ValueError: if it is not a CSV file.
    """
    text = read_text("read_table", path)
    try:
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise ValueError(bad_value("read_table", str(path), "be a CSV file", str(error))) from error
    return [{name: _number(cell) for name, cell in row.items()} for row in rows]


def write_figure(name: str, folder: Path) -> Path:
    """Draw the figure whose records are in `folder / name`; write PNG, SVG and `caption.txt` beside them.

    Raises:
        ValueError: if there is no such figure.
        OSError: if its records are missing.
    """
    if name not in _PICTURES:
        raise ValueError(bad_value("write_figure", "name", f"be one of {', '.join(_PICTURES)}", repr(name)))
    target = folder / name / name
    with as_written(_OWNER, str(folder / name), "`torchmcl reproduce`"):
        tables, summary = _records(name, folder)
        figure = _PICTURES[name].draw(tables, summary)
        claims = [
            claim["text"] if claim["holds"] else f"(Not borne out by this run: {claim['text']})"
            for claim in summary["claims"]
        ]
    save_picture(figure, target)
    caption = " ".join([f"{_PICTURES[name].title}.", _PICTURES[name].text, *claims])
    write_atomically(folder / name / "caption.txt", caption + "\n")
    return target.with_suffix(".png")


def write_figures_page(folder: Path) -> Path:
    """Write `index.html` with every figure whose records are below `folder`, and the film of Figure 1.

    Raises:
        ValueError: if records are not as `torchmcl reproduce` wrote them.
    """
    target = folder / "index.html"
    with as_written(_OWNER, str(folder), "`torchmcl reproduce`"):
        content = _page(folder)
    write_atomically(target, content)
    return target


def _page(folder: Path) -> str:
    parts = ["<h1>The figures of annealed multiple choice learning</h1>"]
    script = ""
    for name, picture in _PICTURES.items():
        if not (folder / name / "summary.json").exists():
            continue
        tables, summary = _records(name, folder)
        figure = picture.draw(tables, summary)
        settings = summary["settings"]
        files = ", ".join(f'<a href="{name}/{table}.csv">{table}.csv</a>' for table in picture.tables)
        parts.append(
            f'<h2 id="{name}">{escape(picture.title)}</h2>\n{image(figure, picture.title)}\n'
            f"<p>{escape(picture.text)}</p>\n"
            f"{_claims(summary)}\n"
            f'<p class="note">Preset {escape(settings["preset"])}: {escape(settings["n_epochs"])} epochs of '
            f"{settings['n_points']:,} fresh points, {escape(settings['n_seeds'])} seeds, {summary['seconds']:.0f} s. "
            f'<a href="{name}/{name}.png">PNG</a>, <a href="{name}/{name}.svg">SVG</a>, {files}.</p>'
        )
        if name == "figure1":
            film = drawings.film_of_figure1(tables)
            parts.append("<h3>Watch it</h3>" + film_player(len(film["epochs"])))
            script = film_script(film)
    return page("torchmcl: the figures", "\n".join(parts), script, command="torchmcl reproduce all")


def _records(name: str, folder: Path) -> tuple[dict[str, list[Row]], dict[str, Any]]:
    """Return the tables and the summary of a figure."""
    summary = read_json("write_figure", folder / name / "summary.json")
    return {table: read_table(folder / name / f"{table}.csv") for table in _PICTURES[name].tables}, summary


def _claims(summary: dict[str, Any]) -> str:
    rows = "".join(
        f"<li>{escape(claim['text'])}{'' if claim['holds'] else ' <strong>(not borne out by this run)</strong>'}</li>"
        for claim in summary["claims"]
    )
    return f'<ul class="claims">{rows}</ul>'


def _number(cell: Any) -> Any:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return cell
