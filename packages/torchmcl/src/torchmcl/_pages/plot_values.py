"""The numbers behind a plot, from the figure itself: shown under the pointer and stored as CSV in the page."""

import json
from typing import Any

__all__ = ["PLOT_SCRIPT", "PLOT_STYLE", "plot_values"]

# More points than a pointer can tell apart; of more, every n-th is kept, and the page says so.
_MOST_POINTS = 3000
_SCALES = ("linear", "log")


def plot_values(figure: Any, box: tuple[float, float, float, float]) -> str:
    """Return the points of lines, scatters and bars of a drawn figure as JSON, with the place of their axes.

    Args:
        figure: of matplotlib, drawn once.
        box: left, bottom, width and height of the saved picture, in pixels of the figure.

    Example:
        >>> from torchmcl._pages.pictures import new_figure
        >>> figure = new_figure(4, 3)
        >>> _ = figure.add_subplot().plot([1, 2], [3, 4], label="loss")
        >>> json.loads(plot_values(figure, (0, 0, 400, 300)))["axes"][0]["series"]
        [{'label': 'loss', 'x': [1.0, 2.0], 'y': [3.0, 4.0]}]
    """
    found = [_axis(axis, box) for axis in figure.axes if {axis.get_xscale(), axis.get_yscale()} <= set(_SCALES)]
    axes = [axis for axis in found if axis["series"]]
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
        # Shares of the picture, from its left and from its top.
        "box": [
            _rounded((place.x0 - left) / width),
            _rounded((place.x1 - left) / width),
            _rounded(1 - (place.y0 - bottom) / height),
            _rounded(1 - (place.y1 - bottom) / height),
        ],
        "series": _series(axis),
    }


def _series(axis: Any) -> list[dict[str, Any]]:
    found = []
    for line in axis.lines:
        if line.get_transform() == axis.transData:  # marks across the axes are no data
            found.append((line, line.get_xydata()))
    for points in axis.collections:
        if points.get_offset_transform() == axis.transData:
            found.append((points, points.get_offsets()))
    for bars in axis.containers:
        if hasattr(bars, "datavalues"):
            places = [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in bars.patches]
            found.append((bars, places))
    return [
        {"label": _label(artist), "x": [_rounded(x) for x, _ in pairs], "y": [_rounded(y) for _, y in pairs]}
        for artist, pairs in found
        if len(pairs)
    ]


def _label(artist: Any) -> str:
    label = str(artist.get_label())
    return "" if label.startswith("_") else label


def _rounded(value: Any) -> float | None:
    number = float(f"{float(value):.6g}")
    return number if number - number == 0 else None  # JSON has neither NaN nor infinities


PLOT_STYLE = """
.plot { position: relative; } .plot > p { margin: .2rem 0 0; }
.plot .value { position: absolute; pointer-events: none; padding: .15rem .5rem; border-radius: 4px; font-size: .85rem;
  background: var(--ink); color: var(--paper); white-space: nowrap; transform: translate(-50%, -140%); z-index: 1; }
.plot .dot { position: absolute; width: 10px; height: 10px; margin: -5px 0 0 -5px; border: 2px solid #000;
  border-radius: 50%; background: #fff; pointer-events: none; }
.plot [hidden] { display: none; }
"""

PLOT_SCRIPT = """
for (const plot of document.querySelectorAll(".plot")) {
  const { axes, every } = JSON.parse(plot.dataset.plot), picture = plot.querySelector("img");
  const make = (name) => plot.appendChild(Object.assign(document.createElement("span"), { className: name, hidden: true }));
  const dot = make("dot"), value = make("value"), points = [];
  const share = (v, a, b, log) => log ? Math.log(v / a) / Math.log(b / a) : (v - a) / (b - a);
  for (const axis of axes) {
    const [x0, x1, y0, y1] = axis.limits, [left, right, low, high] = axis.box;
    for (const { label, x, y } of axis.series) x.forEach((at, i) => {
      const a = share(at, x0, x1, axis.log[0]), b = share(y[i], y0, y1, axis.log[1]);
      if (at === null || y[i] === null || !(a >= -.01 && a <= 1.01 && b >= -.01 && b <= 1.01)) return;
      const name = label ? label + ": " : "";
      points.push([left + a * (right - left), low + b * (high - low), `${name}${axis.x || "x"} ${at}, ${axis.y || "y"} ${y[i]}`]);
    });
  }
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    let nearest = null, least = 30 ** 2;
    for (const point of points) {
      const d = (point[0] * box.width - event.clientX + box.left) ** 2 + (point[1] * box.height - event.clientY + box.top) ** 2;
      if (d < least) { least = d; nearest = point; }
    }
    dot.hidden = value.hidden = !nearest;
    if (!nearest) return;
    value.textContent = nearest[2];
    const half = value.offsetWidth / 2, x = nearest[0] * box.width;
    for (const part of [dot, value]) part.style.top = `${nearest[1] * box.height}px`;
    dot.style.left = `${x}px`;
    value.style.left = `${Math.min(Math.max(x, half), Math.max(box.width - half, half))}px`;
  });
  picture.addEventListener("pointerleave", () => { dot.hidden = value.hidden = true; });
  const cell = (text) => /[",\\n]/.test(text) ? `"${String(text).replaceAll('"', '""')}"` : text ?? "";
  const rows = [["panel", "series", "x axis", "y axis", "x", "y"]];
  axes.forEach((axis, place) => axis.series.forEach(({ label, x, y }) => x.forEach((at, i) =>
    rows.push([axis.title || place + 1, label, axis.x, axis.y, at, y[i]]))));
  const link = plot.querySelector("a");
  link.href = "data:text/csv;charset=utf-8," + encodeURIComponent(rows.map((row) => row.map(cell).join(",")).join("\\n") + "\\n");
  if (every > 1) link.after(` (1 of ${every} points)`);
}
"""
