"""The page of the demonstration, from its records."""

import json
import statistics
from pathlib import Path
from typing import Any

from torchmcl._files import write_atomically
from torchmcl._optional import optional_import
from torchmcl.reports.page import escape, image, page, table

__all__ = ["demo_summary", "write_demo_page"]

# Colours that stay apart for colour-blind readers (Okabe-Ito).
_COLOURS = {"mcl": "#D55E00", "relaxed": "#CC79A7", "amcl": "#0072B2"}
_DATA_COLOUR = "#9fb8a0"


def write_demo_page(folder: Path) -> Path:
    """Read `records.json` in `folder`, write `index.html` beside it and return its path."""
    records = json.loads((folder / "records.json").read_text())
    target = folder / "index.html"
    write_atomically(target, _page(records))
    return target


def demo_summary(records: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return method, distortion, distance to k-means and starved hypotheses, each as mean ± std over seeds."""
    best = records["kmeans"]["distortion"]
    rows = []
    for method in records["methods"]:
        excess = [100 * (value / best - 1) for value in method["distortion"]]
        rows.append(
            (
                method["label"],
                _mean_and_std(method["distortion"], ".5f"),
                _mean_and_std(excess, "+.1f") + " %",
                _mean_and_std(method["starved"], ".1f"),
            )
        )
    return rows


def _page(records: dict[str, Any]) -> str:
    settings = records["settings"]
    n, n_seeds = settings["n_hypotheses"], settings["n_seeds"]
    rows: list[tuple[str, ...]] = [tuple(map(escape, row)) for row in demo_summary(records)]
    kmeans = f"{records['kmeans']['distortion']:.5f}"
    rows.append(
        (f"k-means, best of {settings['n_restarts']} restarts", kmeans, "reference", str(records["kmeans"]["starved"]))
    )
    keys = [method["key"] for method in records["methods"]]
    body = f"""
<h1>{n} answers to one question</h1>
<p class="lead">Each picture shows a network that answers with {n} points (blue; the darker, the higher its score)
where the truth is a draw from three clouds (green). Winner-takes-all leaves some answers unused and Relaxed-WTA drags
the unused ones to the middle, while annealing puts all of them to work.</p>
{
        image(
            _predictions(records),
            "Predictions of the three methods on the data",
            "Predictions of the first seed at the end of training.",
        )
    }
<h2>How well do they cover the data?</h2>
{table(["method", "distortion", "above k-means", f"starved of {n}"], rows, best=keys.index("amcl"), identity="results")}
<p class="note">Distortion is the mean squared distance from {settings["n_held_out"]:,} fresh points to the nearest
answer; a starved answer is the nearest of none of them. Mean ± standard deviation over {n_seeds} seeds. k-means sees
the same {settings["n_points"]:,} training points, without a network in between.</p>
<h2>What happens on the way</h2>
{
        image(
            _curves(records),
            "Temperature and distortion during training",
            "Left: the temperature of annealed MCL; the dashed line is the first critical temperature, twice the largest "
            "variance of the data, where theory says the answers split. Right: distortion of every seed; the dotted line "
            "is k-means.",
        )
    }
<h2>Watch it</h2>
<canvas id="film" width="1500" height="540" role="img" aria-label="Animation of the three trainings"></canvas>
<div class="controls"><button id="play" type="button">Pause</button>
<input id="frame" type="range" min="0" max="{len(records["epochs"]) - 1}" value="0" aria-label="epoch">
<span id="label" class="note"></span></div>
<p class="note">Trained in {records["seconds"]:.0f} s: {len(keys) * n_seeds} networks of two hidden layers as one fleet,
{settings["n_epochs"]} epochs. The numbers behind this page are in <code>records.json</code> beside it.</p>
"""
    film = {
        "points": records["points"],
        "epochs": records["epochs"],
        "methods": [
            {
                "label": m["label"],
                "frames": m["frames"],
                "temperature": m["temperature"],
                "annealed": m["key"] == "amcl",
            }
            for m in records["methods"]
        ],
    }
    # "<" could end the script element; inside JSON strings its escape means the same.
    data = json.dumps(film).replace("<", "\\u003c")
    return page(f"torchmcl: {n} answers to one question", body, f"const film = {data};\n{_FILM}")


def _predictions(records: dict[str, Any]) -> Any:
    plt = _pyplot()
    figure, axes = plt.subplots(1, len(records["methods"]), figsize=(13, 4.6), sharex=True, sharey=True)
    points = records["points"]
    for axis, method in zip(axes, records["methods"], strict=True):
        axis.scatter([p[0] for p in points], [p[1] for p in points], s=5, c=_DATA_COLOUR, alpha=0.45, linewidths=0)
        x, y, scores = zip(*method["frames"][-1], strict=True)
        top = max(scores)
        # A faint outline keeps even an answer with score 0 in sight.
        axis.scatter(
            x,
            y,
            s=46,
            c=[(0.0, 0.28, 0.6, 0.12 + 0.88 * s / top) for s in scores],
            edgecolors="#00345f",
            linewidths=0.5,
        )
        axis.set_title(f"{method['label']}\n{method['starved'][0]} of {len(x)} starved", fontsize=12)
        axis.set(xlim=(-1, 1), ylim=(-1, 1), aspect="equal", xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    figure.tight_layout()
    return figure


def _curves(records: dict[str, Any]) -> Any:
    plt = _pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 4.2))
    epochs = records["epochs"]
    for method in records["methods"]:
        colour = _COLOURS[method["key"]]
        if any(method["temperature"]):
            shown = [(e, t) for e, t in zip(epochs, method["temperature"], strict=True) if t > 0]
            left.plot(*zip(*shown, strict=True), color=colour, lw=2)
        for number, curve in enumerate(method["curves"]):
            label = method["label"] if number == 0 else None
            right.plot(epochs, curve, color=colour, lw=1.2, alpha=0.75, label=label)
    critical = _first_critical_temperature(records["points"])
    left.axhline(critical, color="#555", ls="--", lw=1)
    left.text(epochs[-1], critical * 1.15, "first critical temperature", ha="right", fontsize=10, color="#555")
    left.set(xlabel="epoch", ylabel="temperature", yscale="log", xlim=(0, epochs[-1]), title="Cooling")
    right.axhline(records["kmeans"]["distortion"], color="#222", ls=":", lw=1.5, label="k-means, best restart")
    right.set(xlabel="epoch", ylabel="distortion", yscale="log", xlim=(0, epochs[-1]), title="Distortion")
    right.legend(frameon=False, fontsize=10)
    figure.tight_layout()
    return figure


def _first_critical_temperature(points: list[list[float]]) -> float:
    """Return 2 lambda_max of the covariance of points in the plane, Eq. (14)."""
    mean = [statistics.fmean(p[i] for p in points) for i in (0, 1)]
    (a, b), (_, d) = (
        [statistics.fmean((p[i] - mean[i]) * (p[j] - mean[j]) for p in points) for j in (0, 1)] for i in (0, 1)
    )
    return float(a + d + ((a - d) ** 2 + 4 * b * b) ** 0.5)


def _mean_and_std(values: list[float], form: str) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):{form}} ± {deviation:{form.lstrip('+')}}"


def _pyplot() -> Any:
    matplotlib = optional_import("matplotlib", extra="demo", needed_by="torchmcl demo")
    matplotlib.use("Agg")
    return optional_import("matplotlib.pyplot", extra="demo", needed_by="torchmcl demo")


_FILM = """
const canvas = document.getElementById("film"), context = canvas.getContext("2d");
const slider = document.getElementById("frame"), button = document.getElementById("play");
const label = document.getElementById("label"), side = canvas.width / film.methods.length;
const place = (x, y, panel) => [panel * side + (x + 1) / 2 * side, 40 + (1 - y) / 2 * (canvas.height - 40)];
function draw(frame) {
  context.fillStyle = "#fff"; context.fillRect(0, 0, canvas.width, canvas.height);
  film.methods.forEach((method, panel) => {
    context.save(); context.beginPath();
    context.rect(panel * side + 2, 40, side - 4, canvas.height - 40); context.clip();
    context.fillStyle = "rgba(110,150,112,0.35)";
    for (const [x, y] of film.points) { const [px, py] = place(x, y, panel); context.fillRect(px - 1.5, py - 1.5, 3, 3); }
    const hypotheses = method.frames[frame], top = Math.max(...hypotheses.map(h => h[2]), 1e-6);
    for (const [x, y, score] of hypotheses) {
      const [px, py] = place(x, y, panel);
      context.beginPath(); context.arc(px, py, 7, 0, 2 * Math.PI);
      context.fillStyle = `rgba(0,72,153,${0.12 + 0.88 * score / top})`; context.fill();
      context.strokeStyle = "#00345f"; context.lineWidth = 1; context.stroke();
    }
    context.restore();
    context.fillStyle = "#1c2430"; context.font = "20px system-ui, sans-serif"; context.textAlign = "center";
    const heat = method.annealed ? `, T = ${method.temperature[frame].toPrecision(2)}` : "";
    context.fillText(method.label + heat, (panel + 0.5) * side, 27);
    if (panel) { context.strokeStyle = "#d9dee5"; context.beginPath();
      context.moveTo(panel * side, 0); context.lineTo(panel * side, canvas.height); context.stroke(); }
  });
  label.textContent = `epoch ${film.epochs[frame]}`; slider.value = frame;
}
let frame = 0, playing = true, hold = 0;
function tick() {
  if (playing) {
    draw(frame);
    if (frame < film.epochs.length - 1) frame += 1;
    else if (++hold > 15) { frame = 0; hold = 0; }
  }
}
slider.addEventListener("input", () => { playing = false; button.textContent = "Play"; frame = +slider.value; draw(frame); });
button.addEventListener("click", () => { playing = !playing; button.textContent = playing ? "Pause" : "Play"; });
draw(film.epochs.length - 1); setInterval(tick, 120);
"""
