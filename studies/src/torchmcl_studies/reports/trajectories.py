"""HTML report of the trajectory study: every method under every protocol, forks, calibration, joint winners."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchmcl.app.report import (
    AMCL,
    GRAY,
    INK,
    PALETTE,
    escape,
    html_report,
    image,
    mean_error,
    new_figure,
    percent,
    spread_of,
    table,
)
from torchmcl.io import as_written, read_records, write_atomically
from torchmcl_studies.data.pedestrians import SCENES
from torchmcl_studies.reports.statistics import difference, p_value, signed
from torchmcl_studies.trajectories.methods import METHODS, PUBLISHED

__all__ = [
    "OVERALL_HEAD",
    "PROTOCOLS",
    "TESTS_HEAD",
    "Records",
    "Results",
    "Rows",
    "bin_of",
    "draw_calibration",
    "draw_forks",
    "overall_rows",
    "paired_rows",
    "published_rows",
    "results_of",
    "scene_rows",
    "write_trajectories_page",
]

Records = list[dict[str, Any]]
Rows = list[list[str]]

# Title and metrics of each column.
PROTOCOLS = (
    ("minADE20 / minFDE20", ("min_ade", "min_fde")),
    ("ADE of the best end", ("min_ade_of_final",)),
    ("likeliest ADE / FDE", ("top1_ade", "top1_fde")),
    ("misses (2 m)", ("misses",)),
    ("Brier-minFDE20", ("brier_fde",)),
    ("joint ADE / FDE", ("joint_ade", "joint_fde")),
    ("collisions", ("collisions",)),
    ("NLL", ("nll",)),
)
OVERALL_HEAD = ("method", "seeds", *(title for title, _ in PROTOCOLS))
TESTS_HEAD = ("method", "minADE20", "minFDE20", "likeliest FDE", "joint FDE", "collisions")
_TESTED = ("min_ade", "min_fde", "top1_fde", "joint_fde", "collisions")
_FRACTIONS = ("misses", "collisions")
_EXPLAINED = (
    ("minADE20 / minFDE20", "the lowest errors of 20 hypotheses, two separate minima; reported in most papers."),
    ("ADE of the best end", "the ADE of the hypothesis with the lowest FDE."),
    ("likeliest ADE / FDE", "the errors of the hypothesis with the highest score, selected without the true future."),
    ("misses", "the fraction of people for whom all hypotheses end more than 2 m away."),
    ("Brier-minFDE20", "minFDE plus (1 - p)², where p is the score of that hypothesis."),
    (
        "joint ADE / FDE",
        "hypotheses k of all people of a scene form one future; the errors are averaged over people, minimized over "
        "hypotheses, and averaged over scenes.",
    ),
    ("collisions", "the fraction of people who come closer than 0.2 m to another person, averaged over scenes."),
    ("NLL", "the negative log-likelihood of the true 12 steps, for methods with a density."),
)


class Results(NamedTuple):
    """Results computed from records.

    Attributes:
        scenes: Scenes in the records, in the order of the benchmark.
        methods: Methods in the records, in the order of the tables.
        values: Values by (scene, method, metric), then by seed.
    """

    scenes: list[str]
    methods: list[str]
    values: dict[tuple[str, str, str], dict[int, float]]

    def over_scenes(self, method: str, metric: str) -> dict[int, float]:
        """Return the mean over the scenes by seed, for seeds with results on all scenes."""
        columns = [self.values[scene, method, metric] for scene in self.scenes]
        seeds = set(columns[0]).intersection(*columns[1:]) if columns else set()
        return {seed: sum(column[seed] for column in columns) / len(columns) for seed in sorted(seeds)}

    def paired(self, method: str, metric: str) -> dict[tuple[str, int], float]:
        """Return the values by (scene, seed)."""
        columns = {scene: self.values[scene, method, metric] for scene in self.scenes}
        return {(scene, seed): value for scene, column in columns.items() for seed, value in column.items()}


def results_of(records: Records) -> Results:
    """Return the results computed from records.

    Raises:
        ValueError: If a scene or method is unknown.
    """
    values: dict[tuple[str, str, str], dict[int, float]] = defaultdict(dict)
    for row in records:
        if row["scene"] not in SCENES or row["method"] not in METHODS:
            raise ValueError(f"unknown scene or method: {row['scene']!r}, {row['method']!r}")
        for metric in (metric for _, metrics in PROTOCOLS for metric in metrics):
            if row[metric] is not None:
                values[row["scene"], row["method"], metric][int(row["seed"])] = float(row[metric])
    scenes, methods = ({row[name] for row in records} for name in ("scene", "method"))
    return Results([name for name in SCENES if name in scenes], [name for name in METHODS if name in methods], values)


def overall_rows(results: Results) -> Rows:
    """Return the rows of the table over all scenes, with header `OVERALL_HEAD`: mean ± deviation over seeds."""
    rows = []
    for method in results.methods:
        n_seeds = len(results.over_scenes(method, "min_ade"))
        cells = [_cell([results.over_scenes(method, m) for m in metrics], metrics) for _, metrics in PROTOCOLS]
        rows.append([METHODS[method].label, str(n_seeds), *cells])
    return rows


def published_rows() -> Rows:
    """Return (method, minADE20 / minFDE20, protocol) of published results."""
    return [
        [line.name, f"{line.min_ade:.2f} / {line.min_fde:.2f}", line.protocol or "each agent separately"]
        for line in PUBLISHED
    ]


def scene_rows(results: Results, metrics: Sequence[str]) -> tuple[list[str], Rows]:
    """Return header and rows of the table of one protocol, with a column per scene."""
    rows = []
    for method in results.methods:
        cells = [_cell([results.values[scene, method, m] for m in metrics], metrics) for scene in results.scenes]
        if any(cells):
            rows.append([METHODS[method].label, *cells])
    return ["method", *results.scenes], rows


def paired_rows(results: Results, against: str = "mcl", methods: Sequence[str] | None = None) -> Rows:
    """Return the rows of paired differences from a method over (scene, seed), with header `TESTS_HEAD`."""
    rows = []
    for method in results.methods if methods is None else methods:
        differences = [difference(results.paired(method, m), results.paired(against, m)) for m in _TESTED]
        if method != against and METHODS[method].kind != "none" and any(differences):
            cells = [
                "" if entry is None else f"{_signed(entry.mean, metric)} | {p_value(entry.p)}"
                for entry, metric in zip(differences, _TESTED, strict=True)
            ]
            rows.append([METHODS[method].label, *cells])
    return rows


def write_trajectories_page(folder: Path) -> Path:
    """Read `records.jsonl` and `forks.jsonl` in `folder`, write `index.html` beside them and return its path.

    Raises:
        ValueError: If the records were not written by `torchmcl reproduce trajectories`.
    """
    owner, command = "reproduce trajectories", "`torchmcl reproduce trajectories`"
    records = read_records(owner, folder / "records.jsonl")
    forks = read_records(owner, folder / "forks.jsonl") if (folder / "forks.jsonl").exists() else []
    target = folder / "index.html"
    with as_written(owner, "records.jsonl", command):
        content = _report(records, forks)
    write_atomically(target, content)
    return target


def _report(records: Records, forks: Records) -> str:
    results = results_of(records)
    seconds = sum(float(row["seconds"]) for row in records)
    windows = {row["scene"]: int(row["windows"]) for row in records}
    body = [
        "<h1>Where people walk next</h1>",
        f'<p class="lead">{len(records)} results of {len(results.methods)} methods on {len(results.scenes)} of the '
        f"five scenes of ETH/UCY ({sum(windows.values()):,} windows, 3.2 s observed, 4.8 s predicted), "
        f"{int(records[0]['epochs'])} epochs of 20 steps, {seconds:.0f} s of training. Networks are evaluated on "
        "scenes outside their training data.</p>",
        "<h2>All methods and protocols</h2>",
        table(OVERALL_HEAD, overall_rows(results), identity="overall"),
        '<p class="note">Meters, lower is better. Mean over scenes ± standard deviation over seeds, which differ in '
        "initial weights and dropout and use the same rows.</p>",
        "<ul>" + "".join(f"<li><b>{escape(name)}</b>: {escape(text)}</li>" for name, text in _EXPLAINED) + "</ul>",
        "<h3>Published results</h3>",
        table(("method", "minADE20 / minFDE20", "minimum over"), published_rows(), identity="published"),
        '<p class="note">Mean over the five scenes. Training, windows and selection of hyperparameters differ; compare '
        "only with minADE20 / minFDE20 above, and only if it includes all five scenes.</p>",
        *_tests_part(results),
        _annealing_part(results),
        *_joint_part(results),
        *_forks_part(forks),
        *_calibration_part(records, results),
        "<h2>By scene</h2>",
    ]
    for title, metrics in PROTOCOLS:
        head, rows = scene_rows(results, metrics)
        if rows:
            body.append(f"<h3>{escape(title)}</h3>" + table(head, rows, identity=f"scene-{metrics[0]}"))
    return html_report(
        "torchmcl: where people walk next",
        "\n".join(part for part in body if part),
        command="torchmcl reproduce trajectories",
    )


def _tests_part(results: Results) -> list[str]:
    rows = paired_rows(results)
    if not rows:
        return []
    return [
        "<h2>Paired tests against MCL (WTA)</h2>",
        table(TESTS_HEAD, rows, identity="tests"),
        '<p class="note">Mean difference over (scene, seed), and p-value of Wilcoxon\'s signed-rank test. Seeds of a '
        "scene share its data: the test compares training runs, and five scenes say little about other locations.</p>",
    ]


def _annealing_part(results: Results) -> str:
    pairs = (("mcl", "amcl", "min_ade", "minADE20", 4), ("mdn", "mdn-annealed", "nll", "NLL of the mixtures", 2))
    measured = []
    for plain, cooled, metric, name, decimals in pairs:
        both = [results.over_scenes(method, metric) for method in (plain, cooled)]
        if all(both):
            spreads = [spread_of([*values.values()]) for values in both]
            texts = [mean_error(spread.mean, spread.std, decimals) for spread in spreads]
            measured.append(f"{name}: {texts[0]} without annealing, {texts[1]} with it. ")
    return (
        f"<h2>Does annealing help?</h2><p>{escape(''.join(measured))}In the full study it does not: aMCL from 3 m and "
        "WTA differ by less than the noise, AutoAnnealing is half a percent worse, and the likelihood of mixtures does "
        "not change. Annealing helps with a bad initialization: with all initial hypotheses 10 m away, WTA reaches "
        "0.320 / 0.594 and aMCL from 1 m 0.255 / 0.432, still far from the results with a good initialization. With a "
        "twentieth of the data it is slightly worse (0.215 / 0.359 against 0.212 / 0.351). The last two comparisons "
        "were made separately, in training runs of 3000 steps with three seeds.</p>"
    )


def _joint_part(results: Results) -> list[str]:
    separate, joint = "mcl-scenes", "mcl-joint"
    if not {separate, joint} <= set(results.methods):
        return []
    kinds = (("min_ade", "min_fde"), ("joint_ade", "joint_fde"), ("collisions",))
    rows = [
        [METHODS[name].label, *(_cell([results.over_scenes(name, m) for m in kind], kind) for kind in kinds)]
        for name in (separate, joint)
    ]
    tests = paired_rows(results, separate, [joint])
    return [
        "<h2>Joint winners</h2><p>Both methods are trained on batches of whole scenes, for fewer steps than the other "
        "methods; with joint winners, hypotheses k of all people of a scene win or lose together.</p>",
        table(("method", "minADE20 / minFDE20", "joint ADE / FDE", "collisions"), rows, identity="joint"),
        table(TESTS_HEAD, tests, identity="joint-tests") if tests else "",
        '<p class="note">Second table: joint minus separate winners, over (scene, seed).</p>' if tests else "",
    ]


def _forks_part(forks: Records) -> list[str]:
    parts = []
    for scene in [name for name in SCENES if any(row["scene"] == name for row in forks)]:
        figure = draw_forks([row for row in forks if row["scene"] == scene])
        parts.append(f"<h3>{escape(scene)}</h3>" + image(figure, f"Sharp turns in {scene}"))
    if not parts:
        return []
    caption = (
        '<p class="note">The sharpest turns of each scene, selected by the true future. Black: observed path; green: '
        "true future; blue: 20 hypotheses, darker for higher scores; gray: people nearby, with dotted futures.</p>"
    )
    return ["<h2>Forks</h2>", caption, *parts]


def _calibration_part(records: Records, results: Results) -> list[str]:
    methods = [name for name in results.methods if METHODS[name].kind != "none"]
    if not methods:
        return []
    figure = draw_calibration({METHODS[name].label: _of_method(records, name) for name in methods})
    caption = (
        "Fraction of wins of a hypothesis by its score, over all scenes and seeds; on the diagonal, scores are "
        "probabilities. In mixtures, the nearest hypothesis need not be the component with the highest likelihood."
    )
    return ["<h2>Are scores probabilities?</h2>", image(figure, "Calibration of the scores", escape(caption))]


def _of_method(records: Records, method: str) -> list[list[float]]:
    """Return (mean score, fraction of wins, count) of each score bin of a method, over scenes and seeds."""
    bins: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for row in records:
        if row["method"] == method:
            for score, fraction, count in row["calibration"]:
                total = bins[bin_of(score)]
                for place, value in enumerate((score * count, fraction * count, count)):
                    total[place] += float(value)
    return [[score / count, wins / count, count] for _, (score, wins, count) in sorted(bins.items())]


def _cell(columns: Sequence[dict[int, float]], metrics: Sequence[str]) -> str:
    """Return the text "mean | ± std" of each metric; for one seed only the mean, and for none an empty string."""
    if not all(columns):
        return ""
    spreads = [spread_of([*column.values()]) for column in columns]

    def text(name: str) -> str:
        values = [getattr(spread, name) for spread in spreads]
        if metrics[0] in _FRACTIONS:
            return " / ".join(percent(value, 2) for value in values)
        return " / ".join(f"{value:.{2 if metrics[0] == 'nll' else 3}f}" for value in values)

    return f"{text('mean')} | ± {text('std')}" if spreads[0].n > 1 else text("mean")


def _signed(value: float, metric: str) -> str:
    return f"{signed(100 * value, 2)} %" if metric in _FRACTIONS else signed(value, 4)


_N_OBSERVED = 8
_SHOWN = ("mcl", "amcl", "mdn", "mcl-joint")
_EDGES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
# Margin around the drawn paths, in meters.
_MARGIN = 1.0


def bin_of(score: float) -> int:
    """Return the bin of a score, as in the records."""
    return bisect_left(_EDGES, score)


def draw_forks(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Draw the forks of one scene: a row for each person, a column for each method."""
    by_method = {row["method"]: row["forks"] for row in rows}
    methods = [name for name in _SHOWN if name in by_method] or list(by_method)[:1]
    n_forks = len(by_method[methods[0]])
    figure = new_figure(3.2 * len(methods), 2.9 * max(n_forks, 1), layout="constrained")
    axes = figure.subplots(max(n_forks, 1), len(methods), squeeze=False)
    for column, method in enumerate(methods):
        for place, fork in enumerate(by_method[method]):
            _draw_fork(axes[place][column], fork)
        axes[0][column].set_title(METHODS[method].label, fontsize=10)
    return figure


def _draw_fork(axis: Any, fork: Mapping[str, Any]) -> None:
    path = fork["path"]
    observed, future = path[:_N_OBSERVED], path[_N_OBSERVED - 1 :]
    for other in fork["near"]:
        axis.plot(*_columns(other[:_N_OBSERVED]), color=GRAY, lw=1)
        axis.plot(*_columns(other[_N_OBSERVED - 1 :]), color=GRAY, lw=0.8, ls=":")
    top = max([*fork["probabilities"], 1e-9])
    for hypothesis, score in zip(fork["hypotheses"], fork["probabilities"], strict=True):
        shade = 0.12 + 0.88 * score / top  # keep hypotheses with score 0 visible
        axis.plot(*_columns([observed[-1], *hypothesis]), color=AMCL, alpha=shade, lw=1.3)
        axis.plot(*hypothesis[-1], "o", color=AMCL, alpha=shade, ms=2.5)
    axis.plot(*_columns(future), color="#009E73", lw=2.2)
    axis.plot(*_columns(observed), color=INK, lw=2.2)
    axis.plot(*observed[-1], "o", color=INK, ms=4)
    x, y = _columns([*path, *(point for hypothesis in fork["hypotheses"] for point in hypothesis)])
    axis.set(xlim=(min(x) - _MARGIN, max(x) + _MARGIN), ylim=(min(y) - _MARGIN, max(y) + _MARGIN), aspect="equal")
    axis.tick_params(labelsize=7)


def _columns(points: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    return [point[0] for point in points], [point[1] for point in points]


def draw_calibration(bins: Mapping[str, Sequence[Sequence[float]]]) -> Any:
    """Draw the fraction of wins against the score, with a line per label of bins (mean score, fraction, count)."""
    figure = new_figure(6.2, 4.6, layout="constrained")
    axis = figure.subplots()
    axis.plot([1e-3, 1], [1e-3, 1], color=GRAY, lw=1)
    colors = (*PALETTE, INK, GRAY)
    for (label, points), color in zip(bins.items(), colors, strict=False):
        drawn = [(score, wins) for score, wins, count in points if count >= 20 and score > 0 and wins > 0]
        axis.plot(*_columns(drawn), "o-", color=color, ms=4, lw=1.2, label=label)
    axis.set(xscale="log", yscale="log", xlabel="score", ylabel="fraction of wins", xlim=(2e-3, 1), ylim=(2e-3, 1))
    axis.legend(fontsize=8, frameon=False)
    return figure
