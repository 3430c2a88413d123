"""HTML report of the demonstration, generated from its records."""

from pathlib import Path
from typing import Any

import torch

from torchmcl import io
from torchmcl.app import animation, report
from torchmcl.theory import local_critical_temperature

__all__ = ["demo_film", "demo_summary", "write_demo_report"]


def write_demo_report(folder: Path) -> Path:
    """Read `records.json` in `folder`, write the HTML report and the animation beside it, and return the report's path.

    Raises:
        ValueError: If the records are not in the format of `torchmcl demo`.
    """
    records = io.read_json("torchmcl demo", folder / "records.json")
    target = folder / "index.html"
    with io.as_written("torchmcl demo", "records.json", "`torchmcl demo`"):
        content = _report(records)
        animation.write_animation(demo_film(records), folder / "film.gif")
    io.write_atomically(target, content)
    return target


def demo_summary(records: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return method, distortion, excess over k-means and unused hypotheses, as mean ± std over seeds."""
    best = records["kmeans"]["distortion"]
    rows = []
    for method in records["methods"]:
        distortion, starved = report.spread_of(method["distortion"]), report.spread_of(method["starved"])
        excess = report.spread_of([100 * (value / best - 1) for value in method["distortion"]])
        rows.append(
            (
                method["label"],
                report.mean_error(distortion.mean, distortion.std, decimals=5),
                f"+{report.mean_error(excess.mean, excess.std, decimals=1)} %".replace("+-", "-"),
                report.mean_error(starved.mean, starved.std, decimals=1),
            )
        )
    return rows


def demo_film(records: dict[str, Any]) -> dict[str, Any]:
    """Return the animation of the training runs, in the format of the player and the GIF writer."""
    return {
        "points": records["points"],
        "epochs": records["epochs"],
        "methods": [
            {name: m[name] for name in ("label", "frames", "temperature")} | {"annealed": m["key"] == "amcl"}
            for m in records["methods"]
        ],
    }


def _report(records: dict[str, Any]) -> str:
    settings = records["settings"]
    n, n_seeds = int(settings["n_hypotheses"]), int(settings["n_seeds"])
    body = f"""
<h1>{n} hypotheses for one input</h1>
<p class="lead">Annealing uses all {n} hypotheses of a network; winner-takes-all leaves some unused, and Relaxed-WTA
pulls the unused ones to the center. Hypotheses are blue (darker for higher scores), and targets are samples of three
Gaussians (green). Annealing starts with all hypotheses together, and they split as the temperature falls.</p>
{animation.film_player(len(records["epochs"]))}
{_coverage(records, n)}
<h2>Temperature and distortion</h2>
{
        report.image(
            _curves(records),
            "Temperature and distortion during training",
            "Left: the temperature of annealed MCL; the dashed line is the local critical temperature, twice the "
            "largest variance of the data, below which merged hypotheses split in theory. Right: distortion of every "
            "seed; the dotted line is k-means.",
        )
    }
{_conditional(records["conditional"])}
{_WHERE_NEXT}
<p class="note">Trained in {records["seconds"]:.0f} s: {len(records["methods"]) * n_seeds} networks of two hidden layers
as one fleet, {report.escape(settings["n_epochs"])} epochs. The raw results are in <code>records.json</code> beside this
report; the animation is <code>film.gif</code>.</p>
"""
    command = f"torchmcl demo --seeds {n_seeds} --epochs {settings['n_epochs']}"
    return report.html_report(
        f"torchmcl: {n} hypotheses for one input", body, animation.film_script(demo_film(records)), command=command
    )


def _coverage(records: dict[str, Any], n: int) -> str:
    settings, kmeans = records["settings"], records["kmeans"]
    label = f"k-means, best of {settings['n_restarts']} restarts"
    rows = [*demo_summary(records), (label, f"{kmeans['distortion']:.5f}", "reference", kmeans["starved"])]
    best = [method["key"] for method in records["methods"]].index("amcl")
    figure = report.image(
        _predictions(records),
        "Predictions of the three methods on the data",
        "Predictions of the first seed at the end of training.",
    )
    return f"""
<h2>Distortion and unused hypotheses</h2>
{report.table(["method", "distortion", "above k-means", f"unused of {n}"], rows, best=best, identity="results")}
<p class="note">Distortion is the mean squared distance from {settings["n_held_out"]:,} new points to the nearest
hypothesis; an unused one is the nearest to none of them. Mean ± standard deviation over {int(settings["n_seeds"])}
seeds. k-means uses the same {settings["n_points"]:,} training points, without a network.</p>
{figure}
"""


def _conditional(records: dict[str, Any]) -> str:
    figure = report.image(
        _forks(records),
        "One hypothesis and four hypotheses as functions of the input",
        "Left: a network with one hypothesis predicts the mean of the branches, far from every target. Right: four "
        "hypotheses; larger discs have higher scores.",
    )
    return f"""
<h2>Hypotheses that depend on an input</h2>
<p>In most problems, the hypotheses depend on an input. The following code trains the network of the figure; adapt it to
your model and training loop.</p>
<pre><code>import torch
import torchmcl as mcl

{report.escape(records["code"])}</code></pre>
{figure}
"""


_WHERE_NEXT = """
<h2>Next steps</h2>
<ul>
<li><code>torchmcl play --open</code>: change the temperature and watch the hypotheses split.</li>
<li><code>torchmcl fit --example -o model/</code>: several predictions for each row of a table, then
<code>torchmcl report model/</code>.</li>
<li><code>python -m pydoc torchmcl.mcl_step</code>: the loss for a PyTorch loop like the one above.</li>
<li>The documentation (<code>make docs</code>) has pages for tables, trajectories, time series, images, robots and
recordings, each with a complete program.</li>
</ul>
"""


def _predictions(records: dict[str, Any]) -> Any:
    figure = report.new_figure(13, 4.6, layout="tight")
    axes = figure.subplots(1, len(records["methods"]), sharex=True, sharey=True)
    for axis, method in zip(axes, records["methods"], strict=True):
        hypotheses = method["frames"][-1]
        report.draw_hypotheses(axis, records["points"], hypotheses)
        axis.set_title(f"{method['label']}\n{method['starved'][0]} of {len(hypotheses)} unused", fontsize=12)
    return figure


def _curves(records: dict[str, Any]) -> Any:
    figure = report.new_figure(13, 4.2, layout="tight")
    left, right = figure.subplots(1, 2)
    epochs = records["epochs"]
    for method in records["methods"]:
        color = report.method_color(method["key"])
        if any(method["temperature"]):
            shown = [(e, t) for e, t in zip(epochs, method["temperature"], strict=True) if t > 0]
            left.plot(*zip(*shown, strict=True), color=color, lw=2)
        for number, curve in enumerate(method["curves"]):
            label = method["label"] if number == 0 else None
            right.plot(epochs, curve, color=color, lw=1.2, alpha=0.75, label=label)
    critical = float(local_critical_temperature(torch.tensor(records["points"])))
    left.axhline(critical, color=report.SOFT, ls="--", lw=1)
    left.text(epochs[-1], critical * 1.15, "local critical temperature", ha="right", fontsize=10, color=report.SOFT)
    left.set(xlabel="epoch", ylabel="temperature", yscale="log", xlim=(0, epochs[-1]), title="Cooling")
    right.axhline(records["kmeans"]["distortion"], color=report.INK, ls=":", lw=1.5, label="k-means, best restart")
    right.set(xlabel="epoch", ylabel="distortion", yscale="log", xlim=(0, epochs[-1]), title="Distortion")
    right.legend(frameon=False, fontsize=10)
    return figure


def _forks(records: dict[str, Any]) -> Any:
    figure = report.new_figure(13, 4.6, layout="tight")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, (n, rows) in zip(axes, records["answers"].items(), strict=True):
        axis.scatter(*zip(*records["points"], strict=True), s=8, c=report.DATA, linewidths=0, label="data")
        for k in range(int(n)):
            values, scores = zip(*(row[k] for row in rows), strict=True)
            sizes = [60 * score for score in scores]
            label = f"hypothesis {k + 1}"
            axis.scatter(records["grid"], values, s=sizes, c=report.PALETTE[k], linewidths=0, label=label)
        axis.set(xlabel="x", title="One hypothesis" if n == "1" else f"{int(n)} hypotheses")
    axes[0].set_ylabel("y")
    return figure
