"""HTML report of a separated recording: plots and players of the mixture and the outputs."""

import base64
import math
import os
import struct
import zlib
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from torchmcl import io
from torchmcl.app import report
from torchmcl.errors import bad_value
from torchmcl_speech.data.audio import StoredSound

__all__ = ["Array", "decibels_over_time", "write_separation_page"]

Array = npt.NDArray[np.float64]

# Maximum number of columns of a plot; more would not be visible.
_N_COLUMNS = 1000
# Number of frames whose mean represents a column in a long recording.
_FRAMES_A_COLUMN = 8
# 32 ms resolve the harmonics of most voices and still follow syllables.
_WINDOW_SECONDS = 0.032
# Speech that is quieter than the loudest part by more than this is inaudible.
_RANGE_DB = 70.0
# Colors from silent to loud, with increasing lightness, so that the plot can be read without color.
_SHADES = ("#0c1024", "#35215f", "#7b2a74", "#c8475f", "#f28c4f", "#fdf2c0")


class Sound(Protocol):
    """Sequence of samples with a length and slices, which need not be in memory."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, place: slice, /) -> npt.NDArray[np.floating]:
        """Return the samples of a slice without steps."""
        ...


def extremes_over_time(samples: Sound) -> Array:
    """Compute the lowest and the highest sample of each column, [2, columns], for at most 1000 columns.

    Example:
        >>> extremes_over_time(np.array([0.0, 1.0, -1.0])).tolist()
        [[0.0, 1.0, -1.0], [0.0, 1.0, -1.0]]
    """
    edges = np.linspace(0, len(samples), min(_N_COLUMNS, len(samples)) + 1).astype(int).tolist()
    blocks = [samples[start:stop] for start, stop in pairwise(edges)]
    return np.array([[block.min() for block in blocks], [block.max() for block in blocks]], dtype=np.float64)


def waveform_path(extremes: Array, peak: float) -> str:
    """Return the SVG path of the area between the extremes, 1000 wide and 100 high.

    Args:
        extremes: Lowest and highest samples [2, columns], from `extremes_over_time`.
        peak: Sample value at the upper edge.

    Example:
        >>> waveform_path(extremes_over_time(np.array([0.0, 1.0, -1.0])), peak=1.0)
        'M0 50L500 0L1000 100L1000 100L500 0L0 50Z'
    """
    x = np.linspace(0, 1000, extremes.shape[-1])
    bottoms, tops = 50 - extremes * (50 / peak if peak > 0 else 0.0)
    there = [f"{a:.4g} {b:.4g}" for a, b in zip(x, tops, strict=True)]
    back = [f"{a:.4g} {b:.4g}" for a, b in zip(x[::-1], bottoms[::-1], strict=True)]
    return f"M{'L'.join([*there, *back])}Z"


def decibels_over_time(samples: Sound, sample_rate: int) -> Array:
    """Compute the power at each frequency and time in decibels.

    Args:
        samples: Samples [length].
        sample_rate: Samples per second.

    Returns:
        Decibels [frequencies, columns], low frequencies first, at most 1000 columns; silence is -200.
    """
    size = max(2, round(_WINDOW_SECONDS * sample_rate))
    # Half a window of silence on both sides, so that the first and the last sample are in the middle of a window.
    n_wanted = max(1, len(samples) // max(1, size // 4))
    per_column = min(_FRAMES_A_COLUMN, -(-n_wanted // _N_COLUMNS))
    n_columns = min(_N_COLUMNS, n_wanted)
    starts = np.linspace(0, len(samples), n_columns * per_column).astype(int) - size // 2
    window = np.hanning(size + 1)[:-1].astype(np.float32)
    columns = []
    for of_column in starts.reshape(n_columns, per_column):
        frames = np.stack([_frame(samples, int(start), size) for start in of_column]) * window
        columns.append((np.abs(np.fft.rfft(frames)) ** 2).mean(axis=0))
    return 10 * np.log10(np.maximum(np.stack(columns, axis=-1), 1e-20))


def _frame(samples: Sound, start: int, size: int) -> npt.NDArray[np.float32]:
    """Return `size` samples from `start`, with silence outside of the recording."""
    inside = np.asarray(samples[max(start, 0) : max(min(start + size, len(samples)), 0)], dtype=np.float32)
    before = max(-start, 0)
    return np.pad(inside, (before, size - before - len(inside)))


def spectrogram_png(decibels: Array, loudest: float) -> bytes:
    """Return a PNG image of `decibels_over_time`, with low frequencies at the bottom.

    Args:
        decibels: Power in decibels, [frequencies, columns].
        loudest: Power of the lightest color; power that is lower by 70 dB or more is black.
    """
    shade = np.clip((decibels - loudest) / _RANGE_DB + 1, 0, 1)
    rows = np.round(255 * shade[::-1]).astype(np.uint8)
    height, width = rows.shape
    stops = np.array([[int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in _SHADES], dtype=np.float64)
    places = np.linspace(0, len(stops) - 1, 256)
    palette = np.stack([np.interp(places, np.arange(len(stops)), stop) for stop in stops.T], axis=-1)
    lines = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1)  # each line begins with its filter type, 0
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (
            _png_part(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),  # 8 bits, by palette
            _png_part(b"PLTE", palette.round().astype(np.uint8).tobytes()),
            _png_part(b"IDAT", zlib.compress(lines.tobytes(), 9)),
            _png_part(b"IEND", b""),
        )
    )


def _png_part(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


_OWNER = "write_separation_page"
# Maximum number of audio bytes (about four minutes at 8 kHz) that the report embeds, so that it is self-contained.
_EMBEDDED_BYTES = 4_000_000
_NUMBERS = {"score": "score", "energy": "fraction of the energy"}
_MEANINGS = {
    "score": "A score is the probability that an output is a voice.",
    "energy": "The fractions of the energy sum to 1.",
}


class _Sound(NamedTuple):
    """Section of the report for one audio file: heading, file, score if any, note, and the data of its plots."""

    title: str
    file: str
    number: float | None
    note: str
    extremes: Array
    decibels: Array


def write_separation_page(folder: Path) -> Path:
    """Write `index.html` for the `separation.json` in a folder and the files that it names; return the path.

    Raises:
        ValueError: If `separation.json` was not written by torchmcl, or names a file in another folder.
    """
    records = io.read_json(_OWNER, folder / "separation.json")
    target = folder / "index.html"
    with io.as_written(_OWNER, "separation.json", "`torchmcl separation separate`"):
        content = _page(folder, records)
    io.write_atomically(target, content)
    return target


def _page(folder: Path, records: dict[str, Any]) -> str:
    outputs = records["outputs"]
    sounds = [_seen(folder, records, *listed) for listed in _listed(records)]
    # A common scale, so that louder sounds look louder.
    peak = max(float(abs(sound.extremes).max()) for sound in sounds)
    loudest = max(float(sound.decibels.max()) for sound in sounds)
    embedded = sum((folder / sound.file).stat().st_size for sound in sounds) <= _EMBEDDED_BYTES
    number = _NUMBERS[records["ordered_by"]]
    cards = "".join(
        _card(sound, _source(folder, sound.file, embedded), records, peak=peak, loudest=loudest) for sound in sounds
    )
    name = Path(records["recording"]).name
    n, voices = len(outputs), "output" if len(outputs) == 1 else "outputs"
    summary = f"{n} {voices}, highest {number} first." if n else "no voice."
    silent = " The recording is silent." if records.get("silent") else ""
    quieter = f" All files are scaled by {records['gain']:.2f}." if records["gain"] != 1 else ""
    body = f"""
<h1>{_shown(name)}</h1>
<p class="lead">{_time(records["seconds"], records["seconds"])} of audio, {summary}{silent}</p>
<p>{_separator(records)}</p>
{_speakers(records)}
{_numbers(records)}
{cards}
{_about(records)}
<p class="note">Top: waveform. Bottom: spectrogram, in which lighter is louder. All plots use the same scale. Click a
plot to play from there. {_MEANINGS[records["ordered_by"]]}{quieter} <code>separation.json</code> beside this report
contains its values.</p>
"""
    return report.html_report(
        f"Separated: {_text(name)}", body, _SCRIPT, command="torchmcl separation separate", style=_STYLE
    )


def _listed(records: dict[str, Any]) -> list[tuple[str, str, float | None, str]]:
    """Return title, file, score and note of the mixture, of each output, and of its true voice if known."""
    listed: list[tuple[str, str, float | None, str]] = [("Mixture", records["mixture"], None, "")]
    truth = {reference["output"]: reference for reference in records.get("references", [])}
    for place, output in enumerate(records["outputs"], start=1):
        true = truth.get(output["output"])
        note = "" if true is None else f"SI-SDR {true['before']:.1f} dB before, {true['after']:.1f} dB here. "
        listed.append((f"Output {place}", output["file"], output["score"], note))
        if true is not None:
            listed.append((f"True voice of output {place}: {report.escape(true['name'])}", true["file"], None, ""))
    return listed


def _seen(folder: Path, records: dict[str, Any], title: str, name: str, number: float | None, note: str) -> _Sound:
    file, rate = _checked_name(name), records["sample_rate"]
    with StoredSound(folder / file) as sound:
        decibels = decibels_over_time(sound, rate)
        n_frequencies = math.ceil(len(decibels) * _heard_rate(records) / rate)  # higher frequencies have no energy
        return _Sound(title, file, number, note, extremes_over_time(sound), decibels[:n_frequencies])


def _checked_name(name: Any) -> str:
    """Check that a name refers to a file in the same folder, and return it."""
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise ValueError(bad_value(_OWNER, "separation.json", "name a file in the same folder", repr(name)[:200]))
    return name


def _heard_rate(records: dict[str, Any]) -> int:
    """Return twice the highest frequency contained in the files."""
    return min(int(records["sample_rate"]), int(records.get("model_rate", records["sample_rate"])))


def _speakers(records: dict[str, Any]) -> str:
    """Return a table with the probability of each number of speakers; empty if the model has no scores."""
    probabilities = records.get("speakers")
    if not probabilities:
        return ""
    likely = max(range(len(probabilities)), key=lambda number: probabilities[number])
    rows = [[number, f"{100 * value:.1f} %"] for number, value in enumerate(probabilities)]
    head = f"<h2>Number of speakers: most likely {likely}</h2>"
    return head + report.table(["voices", "probability"], rows, best=likely, identity="speakers")


def _numbers(records: dict[str, Any]) -> str:
    """Return a table of the improvement of each true voice; empty if the true voices are unknown."""
    references = records.get("references")
    if not references:
        return ""
    measured = [(reference["name"], reference["before"], reference["after"]) for reference in references]
    rows = [[name, f"{before:.1f}", f"{after:.1f}", f"{after - before:+.1f}"] for name, before, after in measured]
    header = ["voice", "SI-SDR in the mixture | dB", "SI-SDR of its output | dB", "improvement | dB"]
    return report.table(header, rows, identity="references")


def _separator(records: dict[str, Any]) -> str:
    """Return a sentence about the model and its frequency range."""
    name = Path(str(records["model"])).name if "model" in records else "a model"
    sentence = f"Separated by <code>{_shown(name)}</code>"
    if "model_rate" not in records:
        return f"{sentence}."
    sentence += f", which covers frequencies up to {records['model_rate'] / 2000:g} kHz"
    duller = records["sample_rate"] > records["model_rate"]
    return f"{sentence}: the files lack the higher frequencies of the recording." if duller else f"{sentence}."


def _about(records: dict[str, Any]) -> str:
    """Return the attribution of the voices; empty if none is required."""
    credit = records.get("attribution")
    return f'<p class="note">{report.escape(credit)}</p>' if credit else ""


def _card(sound: _Sound, source: str, records: dict[str, Any], *, peak: float, loudest: float) -> str:
    label = f"{sound.title} of {_text(Path(records['recording']).name)}"
    spectrogram = base64.b64encode(spectrogram_png(sound.decibels, loudest)).decode()
    badge = ""
    if sound.number is not None:
        width = 100 * min(max(sound.number, 0.0), 1.0)
        badge = (
            f'<span class="number">{_NUMBERS[records["ordered_by"]]} <b>{sound.number:.3f}</b>'
            f'<span class="meter"><span style="width:{width:.1f}%"></span></span></span>'
        )
    seconds, top = records["seconds"], _heard_rate(records) / 2000
    marks = "".join(f"<span>{_time(seconds * part / 4, seconds)}</span>" for part in range(5))
    return f"""
<section class="sound">
<h2>{sound.title}{badge}</h2>
<div class="pictures">
<svg viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" aria-label="Waveform: {report.escape(label)}">
<path d="{waveform_path(sound.extremes, peak)}"/></svg>
<div class="frequencies"><img alt="Spectrogram: {report.escape(label)}" src="data:image/png;base64,{spectrogram}">
<span class="top">{top:g} kHz</span><span class="bottom">0</span></div>
<div class="head"></div>
</div>
<div class="marks">{marks}</div>
<audio controls preload="metadata" src="{source}" aria-label="{report.escape(label)}"></audio>
<p class="note">{sound.note}<a href="{_address(sound.file)}" download>{_shown(sound.file)}</a></p>
</section>"""


def _source(folder: Path, file: str, embedded: bool) -> str:
    if not embedded:
        return _address(file)
    return f"data:audio/wav;base64,{base64.b64encode((folder / file).read_bytes()).decode()}"


def _address(file: str) -> str:
    """Return the escaped address of a file beside the report."""
    return f"./{quote(os.fsencode(file), safe='')}"


def _text(name: str) -> str:
    """Return a file name as text, in which question marks replace invalid bytes."""
    return name.encode(errors="replace").decode()


def _shown(name: str) -> str:
    return report.escape(_text(name))


def _time(seconds: float, whole: float) -> str:
    """Format a time in a recording: 1.25 s in recordings below a minute, else 0:05 or 1:00:05."""
    if whole < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


_STYLE = "\n" + (files("torchmcl_speech.reports") / "page.css").read_text(encoding="utf-8")

# Plays one sound at a time, with a line at the current position, and seeks on a click.
_SCRIPT = "\n" + (files("torchmcl_speech.reports") / "page.js").read_text(encoding="utf-8")
