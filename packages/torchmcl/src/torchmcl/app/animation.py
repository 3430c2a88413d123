"""Animations of training runs: a canvas of an HTML report, and GIF files."""

import io
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from torchmcl.app.report import DATA, INK
from torchmcl.io import write_atomically
from torchmcl.optional import optional_import

__all__ = ["film_player", "film_script", "write_animation"]

_SIDE, _HEAD = 300, 34  # height of a panel and of the line above it, in pixels
_SHARPER = 2  # drawn twice as large and reduced, which smooths the edges
_COLORS = 40  # 60 frames stay well below a megabyte
_MILLISECONDS, _LAST_MILLISECONDS = 110, 2500


def write_animation(film: dict[str, Any], path: Path) -> Path:
    """Write an animation, in the format of `film_script`, as a GIF, and return its path.

    Raises:
        ImportError: If Pillow, a dependency of matplotlib, is missing.
    """
    owner = "An animation"
    images, drawing, fonts = (
        optional_import(f"PIL.{name}", extra="plots", needed_by=owner) for name in ("Image", "ImageDraw", "ImageFont")
    )
    font_file = optional_import("matplotlib.font_manager", extra="plots", needed_by=owner).findfont("DejaVu Sans")
    font = fonts.truetype(font_file, size=15 * _SHARPER)  # included in matplotlib, with Greek letters
    size = (_SHARPER * _SIDE * len(film["methods"]), _SHARPER * (_SIDE + _HEAD))
    background = images.new("RGB", size, "white")
    _draw_points(drawing.Draw(background), film)
    frames = []
    for place, epoch in enumerate(film["epochs"]):
        frame = background.copy()
        _draw_frame(drawing.Draw(frame, "RGBA"), film, place, int(epoch), font)
        frames.append(frame.resize((size[0] // _SHARPER, size[1] // _SHARPER), images.Resampling.LANCZOS))
    # One palette for all frames: with separate ones, colors would flicker and compression would fail.
    palette = frames[-1].quantize(_COLORS)
    indexed = [frame.quantize(palette=palette, dither=images.Dither.NONE) for frame in frames]
    durations = [_MILLISECONDS] * (len(frames) - 1) + [_LAST_MILLISECONDS]
    buffer = io.BytesIO()
    indexed[0].save(
        buffer, "GIF", save_all=True, append_images=indexed[1:], duration=durations, loop=0, optimize=True, disposal=1
    )
    write_atomically(path, buffer.getvalue())
    return path


def _place(x: float, y: float, panel: int) -> tuple[float, float]:
    return _SHARPER * _SIDE * (panel + (x + 1) / 2), _SHARPER * (_HEAD + _SIDE * (1 - y) / 2)


def _draw_points(pencil: Any, film: dict[str, Any]) -> None:
    for panel in range(len(film["methods"])):
        for x, y in film["points"]:
            left, top = _place(x, y, panel)
            pencil.rectangle((left, top, left + _SHARPER, top + _SHARPER), fill=DATA)
        if panel:
            edge = panel * _SHARPER * _SIDE
            pencil.line((edge, 0, edge, _SHARPER * (_SIDE + _HEAD)), fill="#d9dee5", width=_SHARPER)


def _draw_frame(pencil: Any, film: dict[str, Any], place: int, epoch: int, font: Any) -> None:
    for panel, method in enumerate(film["methods"]):
        hypotheses = method["frames"][place]
        top = max(*(score for _, _, score in hypotheses), 1e-6)
        for x, y, score in (hypothesis for hypothesis in hypotheses if max(map(abs, hypothesis[:2])) <= 1):
            cx, cy = _place(x, y, panel)
            radius = 4.5 * _SHARPER
            opacity = round(255 * (0.12 + 0.88 * score / top))
            box = (cx - radius, cy - radius, cx + radius, cy + radius)
            pencil.ellipse(box, fill=(0, 72, 153, opacity), outline="#00345f", width=_SHARPER)
        heat = f", T = {method['temperature'][place]:.2g}" if method["annealed"] else ""
        middle = _SHARPER * _SIDE * (panel + 0.5)
        pencil.text((middle, _SHARPER * _HEAD / 2), f"{method['label']}{heat}", INK, font=font, anchor="mm")


def film_player(n_frames: int) -> str:
    """Return the canvas of the animation and its controls."""
    return f"""
<canvas id="film" width="1500" height="550" role="img" aria-label="Animation of the training runs"></canvas>
<div class="controls"><button id="film-play" type="button">Pause</button>
<input id="film-frame" type="range" min="0" max="{n_frames - 1}" value="0" aria-label="epoch">
<span id="film-label" class="note"></span></div>"""


def film_script(film: dict[str, Any]) -> str:
    """Return the script of a report with `film_player`.

    Args:
        film: Dictionary of the `points` [[x, y], ...] behind the hypotheses, the `epochs` of the frames, and `methods`;
            each method has a `label`, `frames` [[[x, y, score], ...], ...], a `temperature` for each frame, and the
            flag `annealed`.
    """
    # "<" could end the script element; inside JSON strings its escape means the same.
    data = json.dumps(film).replace("<", "\\u003c")
    return f"(function (film) {{{_SCRIPT}}})({data});"


_SCRIPT = "\n" + (files("torchmcl.app") / "film.js").read_text(encoding="utf-8")
