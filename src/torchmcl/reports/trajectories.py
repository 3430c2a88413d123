"""The page of the study of pedestrians: every method by every protocol, forks, calibration, joint winners."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchmcl.data.pedestrians import SCENES
from torchmcl.experiments.trajectories.methods import METHODS
from torchmcl.experiments.trajectories.published import PUBLISHED
from torchmcl.extending import as_written, read_records, write_atomically
from torchmcl.reports import trajectory_drawings as drawings
from torchmcl.reports.numbers import difference, mean_error, p_value, percent, signed, spread_of
from torchmcl.reports.page import escape, image, page, table

__all__ = [
    "OVERALL_HEAD",
    "TESTS_HEAD",
    "overall_rows",
    "published_rows",
    "scene_rows",
    "test_rows",
    "write_trajectories_page",
]

Records = list[dict[str, Any]]
Rows = list[list[str]]

# Title and the metrics of a cell.
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
_SHARES = ("misses", "collisions")
_EXPLAINED = (
    ("minADE20 / minFDE20", "the lowest error of 20 hypotheses, each its own minimum; what most papers print."),
    ("ADE of the best end", "the ADE of the hypothesis with the lowest FDE: both by one mode."),
    ("likeliest ADE / FDE", "of the hypothesis with the highest score: no look at the truth."),
    ("misses", "share of people of whom all hypotheses end more than 2 m away."),
    ("Brier-minFDE20", "minFDE plus (1 - p)², p the score of that hypothesis."),
    (
        "joint ADE / FDE",
        "hypothesis k of all people of a scene is one future; mean over people, then the minimum, then the mean over "
        "scenes.",
    ),
    ("collisions", "share of people who come closer than 0.2 m to another in the same hypothesis, mean over scenes."),
    ("NLL", "negative log-likelihood of the true 12 steps, for methods with a density."),
)


def overall_rows(records: Records) -> Rows:
    """Return the lines of the table over all scenes, under `OVERALL_HEAD`: mean ± standard deviation over seeds."""
    scenes = _scenes(records)
    rows = []
    for method in _methods(records):
        n_seeds = len(_over_scenes(records, method, "min_ade", scenes))
        cells = [_cell([_over_scenes(records, method, m, scenes) for m in metrics], metrics) for _, metrics in PROTOCOLS]
        rows.append([METHODS[method].label, str(n_seeds), *cells])
    return rows


def published_rows() -> Rows:
    """Return (method, minADE20 / minFDE20, protocol) of what others report."""
    return [
        [line.name, f"{line.min_ade:.2f} / {line.min_fde:.2f}", line.protocol or "each agent's own minimum"]
        for line in PUBLISHED
    ]


def scene_rows(records: Records, metrics: Sequence[str]) -> tuple[list[str], Rows]:
    """Return heading and lines of one protocol by scene."""
    scenes = _scenes(records)
    values = _values(records)
    rows = []
    for method in _methods(records):
        cells = [_cell([values[scene, method, m] for m in metrics], metrics) for scene in scenes]
        if any(cells):
            rows.append([METHODS[method].label, *cells])
    return ["method", *scenes], rows


def test_rows(records: Records, against: str = "mcl") -> Rows:
    """Return the lines of paired differences to a method over (scene, seed), under `TESTS_HEAD`."""
    values = _values(records)
    scenes = _scenes(records)

    def paired(method: str, metric: str) -> dict[tuple[str, int], float]:
        return {(scene, seed): value for scene in scenes for seed, value in values[scene, method, metric].items()}

    rows = []
    for method in _methods(records):
        found = [difference(paired(method, m), paired(against, m)) for m in _TESTED]
        if method != against and METHODS[method].kind != "none" and any(found):
            cells = ["" if d is None else f"{_signed(d.mean, m)} | {p_value(d.p)}" for d, m in zip(found, _TESTED)]
            rows.append([METHODS[method].label, *cells])
    return rows


def write_trajectories_page(folder: Path) -> Path:
    """Read `records.jsonl` and `forks.jsonl` in `folder`, write `index.html` beside them and return its path.

    Raises:
        ValueError: if the records are not as `torchmcl reproduce trajectories` wrote them.
    """
    owner, command = "reproduce trajectories", "`torchmcl reproduce trajectories`"
    records = read_records(owner, folder / "records.jsonl")
    forks = read_records(owner, folder / "forks.jsonl") if (folder / "forks.jsonl").exists() else []
    target = folder / "index.html"
    with as_written(owner, "records.jsonl", command):
        content = _page(records, forks)
    write_atomically(target, content)
    return target


def _page(records: Records, forks: Records) -> str:
    scenes, methods = _scenes(records), _methods(records)
    seconds = sum(float(row["seconds"]) for row in records)
    windows = {row["scene"]: int(row["windows"]) for row in records}
    body = [
        "<h1>Where people walk next</h1>",
        f'<p class="lead">{len(records)} results of {len(methods)} methods on {len(scenes)} of the five scenes of '
        f"ETH/UCY ({sum(windows.values()):,} windows, 3.2 s observed, 4.8 s to come), {int(records[0]['epochs'])} "
        f"epochs of 20 steps, {seconds:.0f} s of training. Each scene is tested on by networks that never saw it.</p>",
        "<h2>Every method by every protocol</h2>",
        table(OVERALL_HEAD, overall_rows(records), identity="overall"),
        '<p class="note">Metres, lower is better. Mean over scenes, ± standard deviation over seeds, which differ in '
        "initial weights and dropout and see the same rows.</p>",
        "<ul>" + "".join(f"<li><b>{escape(name)}</b>: {escape(text)}</li>" for name, text in _EXPLAINED) + "</ul>",
        "<h3>Reported by others</h3>",
        table(("method", "minADE20 / minFDE20", "minimum over"), published_rows(), identity="published"),
        '<p class="note">Mean over the five scenes, as printed. Their training, windows and choice of hyperparameters '
        "differ; compare only with minADE20 / minFDE20 above, and only if all five scenes are there.</p>",
        *_tests_part(records),
        _annealing_part(records),
        *_joint_part(records),
        *_forks_part(forks),
        *_calibration_part(records),
        "<h2>By scene</h2>",
    ]
    for title, metrics in PROTOCOLS:
        head, rows = scene_rows(records, metrics)
        if rows:
            body.append(f"<h3>{escape(title)}</h3>" + table(head, rows, identity=f"scene-{metrics[0]}"))
    return page("torchmcl: where people walk next", "\n".join(part for part in body if part))


def _tests_part(records: Records) -> list[str]:
    rows = test_rows(records)
    if not rows:
        return []
    return [
        "<h2>Paired tests against MCL (WTA)</h2>",
        table(TESTS_HEAD, rows, identity="tests"),
        '<p class="note">Mean difference over (scene, seed), and p of Wilcoxon\'s signed-rank test. Seeds of a scene '
        "share its data: the test tells trainings apart, five scenes are few to tell what holds elsewhere.</p>",
    ]


def _annealing_part(records: Records) -> str:
    scenes = _scenes(records)
    both = [_over_scenes(records, name, "min_ade", scenes) for name in ("mcl", "amcl")]
    measured = ""
    if all(both):
        hard, soft = (spread_of([*values.values()]) for values in both)
        measured = (
            f" Here: {mean_error(hard.mean, hard.std, 4)} by WTA, {mean_error(soft.mean, soft.std, 4)} by aMCL "
            "(minADE20)."
        )
    return (
        "<h2>Does annealing help?</h2><p>Hardly, with a good start. Hypotheses begin as small offsets from constant "
        f"velocity, where all of them win from the first step, and WTA has no dead hypothesis to rescue.{measured} "
        "It does help where the start is bad: with all hypotheses 10 m away WTA ends at 0.320 / 0.594 and aMCL from 1 m "
        "at 0.255 / 0.432; and it helps the likelihood of a mixture (earlier trainings of 3000 steps, three seeds). "
        "With a twentieth of the data it hurts (0.215 / 0.359 against 0.212 / 0.351).</p>"
    )


def _joint_part(records: Records) -> list[str]:
    scenes = _scenes(records)
    pair = [name for name in ("mcl-scenes", "mcl-joint") if name in _methods(records)]
    if len(pair) < 2:
        return []
    kinds = (("min_ade", "min_fde"), ("joint_ade", "joint_fde"), ("collisions",))
    rows = [
        [METHODS[name].label, *(_cell([_over_scenes(records, name, m, scenes) for m in kind], kind) for kind in kinds)]
        for name in pair
    ]
    tests = [row for row in test_rows(records, pair[0]) if row[0] == METHODS[pair[1]].label]
    return [
        "<h2>Joint winners</h2><p>Both are trained on the same batches of whole scenes, for fewer steps than the others; "
        "with joint winners hypothesis k of all people of a scene wins or loses as one future.</p>",
        table(("method", "minADE20 / minFDE20", "joint ADE / FDE", "collisions"), rows, identity="joint"),
        table(TESTS_HEAD, tests, identity="joint-tests") if tests else "",
        '<p class="note">The second table: joint winners minus own winners, over (scene, seed).</p>' if tests else "",
    ]


def _forks_part(forks: Records) -> list[str]:
    parts = []
    for scene in [name for name in SCENES if any(row["scene"] == name for row in forks)]:
        figure = drawings.draw_forks([row for row in forks if row["scene"] == scene])
        parts.append(f"<h3>{escape(scene)}</h3>" + image(figure, f"Sharp turns in {scene}"))
    if not parts:
        return []
    caption = (
        '<p class="note">The sharpest turns of each scene, chosen by the truth. Black: observed; green: the true future; '
        "lines: 20 hypotheses, the darker the likelier; grey: people nearby, dashed where they will go.</p>"
    )
    return ["<h2>Forks</h2>", caption, *parts]


def _calibration_part(records: Records) -> list[str]:
    methods = [name for name in _methods(records) if METHODS[name].kind != "none"]
    if not methods:
        return []
    figure = drawings.draw_calibration({METHODS[name].label: _of_method(records, name) for name in methods})
    caption = (
        "How often a hypothesis wins, by its score; on the diagonal scores are probabilities. All scenes and seeds. In "
        "mixtures the winner of the distance need not be the component that explains the path best."
    )
    return ["<h2>Are scores probabilities?</h2>", image(figure, "Calibration of the scores", escape(caption))]


def _of_method(records: Records, method: str) -> list[list[float]]:
    """Return (mean score, share of wins, count) of the bins of a method, over scenes and seeds."""
    bins: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for row in records:
        if row["method"] == method:
            for score, share, count in row["calibration"]:
                total = bins[drawings.bin_of(score)]
                for place, value in enumerate((score * count, share * count, count)):
                    total[place] += float(value)
    return [[score / count, share / count, count] for _, (score, share, count) in sorted(bins.items())]


def _scenes(records: Records) -> list[str]:
    present = {row["scene"] for row in records}
    if unknown := present - SCENES.keys():
        raise ValueError(f"unknown scenes {sorted(unknown)}")
    return [scene for scene in SCENES if scene in present]


def _methods(records: Records) -> list[str]:
    present = {row["method"] for row in records}
    return [method for method in METHODS if method in present]


def _values(records: Records) -> dict[tuple[str, str, str], dict[int, float]]:
    """Return the values by seed of each (scene, method, metric)."""
    values: dict[tuple[str, str, str], dict[int, float]] = defaultdict(dict)
    for row in records:
        for _, metrics in PROTOCOLS:
            for metric in metrics:
                if row[metric] is not None:
                    values[row["scene"], row["method"], metric][int(row["seed"])] = float(row[metric])
    return values


def _over_scenes(records: Records, method: str, metric: str, scenes: Sequence[str]) -> dict[int, float]:
    """Return the mean over the scenes by seed, for the seeds that have them all."""
    values = _values(records)
    columns = [values[scene, method, metric] for scene in scenes]
    seeds = set(columns[0]).intersection(*columns[1:]) if columns else set()
    return {seed: sum(column[seed] for column in columns) / len(columns) for seed in sorted(seeds)}


def _cell(columns: Sequence[dict[int, float]], metrics: Sequence[str]) -> str:
    """Return a mean | ± standard deviation for each metric of a cell, of one seed the value; empty without any."""
    if not all(columns):
        return ""
    spreads = [spread_of([*column.values()]) for column in columns]

    def text(name: str) -> str:
        values = [getattr(spread, name) for spread in spreads]
        if metrics[0] in _SHARES:
            return " / ".join(percent(value, 2) for value in values)
        return " / ".join(f"{value:.{2 if metrics[0] == 'nll' else 3}f}" for value in values)

    return f"{text('mean')} | ± {text('std')}" if spreads[0].n > 1 else text("mean")


def _signed(value: float, metric: str) -> str:
    return f"{signed(100 * value, 2)} %" if metric in _SHARES else signed(value, 4)
