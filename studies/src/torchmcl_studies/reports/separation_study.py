"""HTML report of the separation study: tables, tests, curves, box plots and the phase transition, from records."""

import json
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchmcl.app.report import Spread, escape, html_report, image, mean_error, side_by_side, spread_of, table
from torchmcl.io import write_atomically
from torchmcl_speech import load_config
from torchmcl_studies.reports import separation_drawings as drawings
from torchmcl_studies.reports.separation_drawings import LABELS, METHODS, by_genders, over_seeds, seeds_apart
from torchmcl_studies.reports.statistics import Difference, difference, p_value, signed
from torchmcl_studies.separation_records import PAPER, RunRecords, StudyRecords, published_separation, read_study

__all__ = [
    "AUTOMATIC_HEAD",
    "HYPOTHESES_HEAD",
    "METHOD_HEAD",
    "TRANSITION_HEAD",
    "Rows",
    "automatic_rows",
    "by_hand_and_automatic",
    "gender_rows",
    "hypotheses_rows",
    "method_rows",
    "paper_text",
    "transition_rows",
    "write_separation_study_page",
]

Rows = list[list[str]]

# Text after a vertical bar becomes a smaller line of the table entry.
METHOD_HEAD = (
    *("method", "PIT SI-SDR", "MCL SI-SDR", "improvement", "against PIT"),
    "published PIT SI-SDR | WSJ0-mix: not comparable",
)
HYPOTHESES_HEAD = ("outputs", "method", "MCL SI-SDR", "median", "against fewest outputs", "against MCL")
TRANSITION_HEAD = ("from", "to", "outputs are the mixture until", "PIT SI-SDR", "MCL SI-SDR")
AUTOMATIC_HEAD = ("schedule", "seed", "PIT SI-SDR", "MCL SI-SDR", "improvement", "against by hand, same seed")
_PAPER_HEAD = ("method", "2 speakers", "published", "3 speakers", "published")
_PAPER_CAPTION = (
    "Mean ± standard deviation over seeds (the paper: 3) of the mean over test mixtures ({sizes}; the paper: 3,000). "
    "Not stated in the paper: gradients clipped at a norm of 5; a learning rate that follows the PIT SI-SDR of the "
    "first 5 s of long enough validation mixtures; weights of the last epoch; an initial temperature of 0.1 dB. "
    "Different: an epoch leaves out its last incomplete batch. Changed settings: {changed}."
)
# Options that distinguish the training runs of the paper, or do not affect their results.
_NOT_OF_THE_PAPER = ("rule", "seed", "layout", "root", "n_workers", "captured", "checkpoint_every")
# An output with a smaller gain, in dB, is essentially the mixture itself.
_UNSPLIT = 0.2


def method_rows(study: StudyRecords, n_speakers: int) -> Rows:
    """Return the rows of the table of methods, with header `METHOD_HEAD`, as plain text."""
    published = published_separation()
    groups = _methods(study, n_speakers)
    rows = []
    for rule, runs in groups.items():
        cells = [_scored(runs, "pit_si_sdr"), _scored(runs, "mcl_si_sdr"), _scored(runs, "improvement", std=False)]
        against = _against_pit(groups, rule) if rule != "pit" and "pit" in groups else ""
        printed, printed_mcl = (published.get((n_speakers, rule, m)) for m in ("pit_si_sdr", "mcl_si_sdr"))
        below = f" | MCL SI-SDR {printed_mcl}" if printed_mcl else ""
        rows.append([LABELS[rule], *cells, against, f"{printed or '—'}{below}"])
    return rows


def _paper_rows(study: StudyRecords, measure: str) -> Rows:
    """Return the rows of Table 3 (PIT SI-SDR) or Table 7, with header `_PAPER_HEAD`: means over the seeds."""
    published = published_separation()
    keys = [[(number, rule, measure) for number in (2, 3)] for rule in METHODS]
    return [
        [LABELS[pair[0][1]], *(cell for key in pair for cell in (_of_seeds(study, *key), published.get(key, "—")))]
        for pair in keys
    ]


def _of_seeds(study: StudyRecords, n_speakers: int, rule: str, measure: str) -> str:
    runs = [run for run in study.of_part(PAPER) if (run.n_speakers, run.rule) == (n_speakers, rule)]
    if len(runs) < 2:
        return f"{runs[0].mean(measure):.2f} (1 seed)" if runs else "—"
    mean, std, _, n = spread_of([run.mean(measure) for run in runs])
    return f"{mean_error(mean, std, decimals=2)} ({n} seeds)"


def paper_text(study: StudyRecords) -> str:
    """Return Table 3 with its caption, for a terminal; empty without training runs on WSJ0-mix."""
    if not study.of_part(PAPER):
        return ""
    rows = [_PAPER_HEAD, *_paper_rows(study, "pit_si_sdr")]
    lines = ["".join(f"{cell:<25}" for cell in row).rstrip() for row in rows]
    return "\n".join(["PIT SI-SDR in dB, WSJ0-mix", *lines, textwrap.fill(_paper_caption(study), 120)])


def _paper_caption(study: StudyRecords) -> str:
    """Return what the values are, and how the training runs differ from those of the paper."""
    runs = study.of_part(PAPER)
    sizes = sorted({f"{len(run.mixtures):,} of {run.n_speakers} speakers" for run in runs})
    changed = sorted({setting for run in runs for setting in _changed_settings(run)})
    return _PAPER_CAPTION.format(sizes=", ".join(sizes), changed=", ".join(changed) or "none")


def _changed_settings(run: RunRecords) -> list[str]:
    paper = json.loads(json.dumps(load_config(f"paper-{run.n_speakers}spk").as_dict()))
    options = [(part, name, value) for part, values in run.config.items() for name, value in values.items()]
    changed = [(part, name, value) for part, name, value in options if value != paper[part].get(name)]
    return [f"{part}.{name} = {value}" for part, name, value in changed if name not in _NOT_OF_THE_PAPER]


def hypotheses_rows(study: StudyRecords) -> Rows:
    """Return the rows of the table of runs with more outputs than speakers, with header `HYPOTHESES_HEAD`."""
    runs = {(run.n_outputs, run.rule): run for run in study.of_part("hypotheses")}
    fewest = min((n for n, _ in runs), default=0)
    rows = []
    for (n_outputs, rule), run in sorted(runs.items(), key=lambda item: (item[0][0], METHODS.index(item[0][1]))):
        scores = run.values("mcl_si_sdr")
        others = (runs.get((fewest, rule)), runs.get((n_outputs, "mcl")))
        against = [
            _against(difference(scores, other.values("mcl_si_sdr"))) if other is not None and other is not run else ""
            for other in others
        ]
        median = statistics.median(scores.values())
        rows.append([str(n_outputs), LABELS[rule], _scored([run], "mcl_si_sdr"), f"{median:.2f}", *against])
    return rows


def transition_rows(study: StudyRecords) -> Rows:
    """Return the rows of the table of the phase transition, with header `TRANSITION_HEAD`."""
    rows = []
    for run in sorted(study.of_part("transition"), key=lambda run: run.temperature):
        temperatures = run.temperatures
        start = run.mean("input_si_sdr")
        unsplit = [
            t
            for t, record in zip(temperatures, run.epochs, strict=True)
            if abs(record["val_mcl_si_sdr"] - start) < _UNSPLIT
        ]
        until = f"{min(unsplit):.1f} dB" if unsplit else "split at once"
        scores = [_scored([run], m, std=False) for m in ("pit_si_sdr", "mcl_si_sdr")]
        rows.append([f"{run.temperature:g} dB", f"{temperatures[-1]:.2g} dB", until, *scores])
    return rows


def automatic_rows(study: StudyRecords) -> Rows:
    """Return the rows of aMCL with a manual and with an automatic schedule, with header `AUTOMATIC_HEAD`."""
    by_hand, automatic = by_hand_and_automatic(study)
    rows = []
    for label, runs in (("by hand", by_hand), ("automatic", automatic)):
        for run in runs:
            scores = [_scored([run], m, std=False) for m in ("pit_si_sdr", "mcl_si_sdr", "improvement")]
            other = next((one for one in by_hand if one.seed == run.seed and one is not run), None)
            paired = None if other is None else difference(run.values("pit_si_sdr"), other.values("pit_si_sdr"))
            rows.append([label, str(run.seed), *scores, _against(paired)])
    return rows


def gender_rows(study: StudyRecords, n_speakers: int) -> tuple[list[str], Rows]:
    """Return header and rows of a table of the improvement by the genders in a mixture, with a column per method."""
    groups = {rule: by_genders(study, runs, "improvement") for rule, runs in _methods(study, n_speakers).items()}
    names = list(dict.fromkeys(name for spreads in groups.values() for name in spreads))
    head = ["genders", "mixtures", *(LABELS[rule] for rule in groups)]
    rows = []
    for name in names:
        count = max(spreads[name].n for spreads in groups.values() if name in spreads)
        cells = [_mean_error(spreads[name]) if name in spreads else "" for spreads in groups.values()]
        rows.append([name, str(count), *cells])
    return head, rows


def write_separation_study_page(folder: Path | str, study: StudyRecords | None = None) -> Path:
    """Write `index.html` in `folder` and return its path.

    Args:
        folder: Folder for the report.
        study: Records; by default those below `folder`.
    """
    target = Path(folder) / "index.html"
    write_atomically(target, _report(read_study(folder) if study is None else study))
    return target


def _report(study: StudyRecords) -> str:
    seconds = sum(record["seconds"] for run in study.runs for record in run.epochs)
    n_steps = sum(run.epochs[-1]["step"] for run in study.runs if run.epochs)
    body = [
        "<h1>Speech separation: PIT, MCL, Relaxed-WTA and aMCL</h1>",
        f'<p class="lead">{len(study.runs)} training runs, {n_steps:,} steps and {seconds / 60:.1f} minutes in total. '
        "Values are SI-SDR in dB (higher is better) on whole mixtures of speakers outside the training set.</p>",
        '<p class="note">PIT SI-SDR: each speaker is assigned a separate output. MCL SI-SDR: each speaker is assigned '
        "the closest output, which several may share. Improvement: PIT SI-SDR minus the SI-SDR of the mixture.</p>",
        *_paper_part(study),
        *_methods_part(study),
        *_hypotheses_part(study),
        *_transition_part(study),
        *_automatic_part(study),
    ]
    return html_report(
        "torchmcl: the study of separation", "\n".join(body), command="torchmcl reproduce separation", style=_STYLE
    )


_STYLE = """
th { vertical-align: bottom; } td { vertical-align: top; } .scroll { margin: .8rem 0; } .alone { max-width: 44rem; }
"""


def _paper_part(study: StudyRecords) -> list[str]:
    if not study.of_part(PAPER):
        return []
    pit, mcl = (table(_PAPER_HEAD, _paper_rows(study, measure)) for measure in ("pit_si_sdr", "mcl_si_sdr"))
    tables = f"<h3>Tables 3 and 7: PIT SI-SDR</h3>{pit}<h3>Table 7: MCL SI-SDR</h3>{mcl}"
    return ["<h2>WSJ0-mix</h2>", tables, f'<p class="note">{escape(_paper_caption(study))}</p>']


def _methods_part(study: StudyRecords) -> list[str]:
    runs = study.of_part("methods")
    if not runs:
        return []
    n_seeds = len({run.seed for run in runs})
    body = ["<h2>Four objectives</h2>"]
    numbers = sorted({run.n_speakers for run in runs})
    for number in numbers:
        first = next(run for run in runs if run.n_speakers == number)
        body.append(f"<h3>{number} speakers, {len(first.mixtures)} mixtures</h3>")
        body.append(f'<p class="note">{escape(_network(first))}, {first.epochs[-1]["step"]:,} steps.</p>')
        body.append(table(METHOD_HEAD, method_rows(study, number), identity=f"methods-{number}"))
    read = (
        "Mean ± standard deviation over mixtures, below it the standard error of the mean. Against PIT: difference in "
        "PIT SI-SDR ± standard error over the same mixtures, its median, and the p-value of Wilcoxon's test, which "
        "compares networks, not objectives. Each method is trained once, so that the variance over seeds is unknown. "
    )
    if n_seeds > 1:
        read = (
            f"Mean over {n_seeds} seeds, with the value of each seed in parentheses; below it standard deviation and "
            "standard error over mixtures, whose values are averaged over the seeds. Against PIT: difference in PIT "
            "SI-SDR. The p-value over mixtures is from Wilcoxon's test, which compares networks, not objectives; the "
            "p-value over seeds is from Tukey's test with one value per training run, which compares objectives. "
        )
    body.append(
        f'<p class="note">{read}'
        "The <b>published</b> values (mean ± standard deviation over three seeds) were computed on WSJ0-mix, a "
        "different corpus, with far longer training: they are <b>not comparable</b> with our values.</p>"
    )
    body.append("<h2>Learning curves</h2>")
    figures = [
        image(
            drawings.draw_learning_curves([run for run in runs if run.n_speakers == number]),
            f"Validation SI-SDR over training, {number} speakers",
        )
        for number in numbers
    ]
    body.append(side_by_side(figures))
    body.append(
        '<p class="note">PIT SI-SDR on crops of validation mixtures after each epoch; seeds other than the first are '
        "lighter.</p>"
    )
    if study.genders:
        body.append("<h2>By gender</h2>")
        for number in numbers:
            head, rows = gender_rows(study, number)
            body.append(f"<h3>{number} speakers</h3>" + table(head, rows, identity=f"genders-{number}"))
        body.append(
            '<p class="note">Improvement in dB, mean ± standard error over mixtures. F and M as in the metadata of the '
            "corpus.</p>"
        )
    return body


def _hypotheses_part(study: StudyRecords) -> list[str]:
    runs = study.of_part("hypotheses")
    if not runs:
        return []
    caption = (
        "Boxes: quartiles and median; whiskers: 5 and 95 %; points: means. "
        f"{_network(runs[0])}, {runs[0].epochs[-1]['step']:,} steps, {len(runs[0].mixtures)} mixtures of "
        f"{runs[0].n_speakers} speakers."
    )
    return [
        "<h2>More outputs than speakers</h2>",
        _alone(drawings.draw_hypotheses(runs), "MCL SI-SDR by the number of outputs", caption),
        table(HYPOTHESES_HEAD, hypotheses_rows(study), identity="hypotheses"),
        '<p class="note">The best output is selected with the true sources, so that a part of the gain from more '
        "outputs comes from this selection, not from separation. Differences are paired, ± standard error, with "
        "p-values of Wilcoxon's test.</p>",
    ]


def _transition_part(study: StudyRecords) -> list[str]:
    runs = study.of_part("transition")
    if not runs:
        return []
    decay = runs[0].config["objective"]["decay"]
    caption = (
        f"The temperature falls by a factor of {decay:g} per epoch, from right to left. While all "
        "outputs equal the mixture, they have its SI-SDR. On crops of validation mixtures. "
        f"{_network(runs[0])}, constant learning rate."
    )
    return [
        "<h2>Phase transition</h2>",
        _alone(drawings.draw_transition(runs), "Negative MCL SI-SDR against temperature", caption),
        table(TRANSITION_HEAD, transition_rows(study), identity="transition"),
        '<p class="note">Last two columns: whole test mixtures, mean ± standard error. All training runs are equally '
        "long; runs with a high initial temperature therefore spend less time below the transition.</p>",
    ]


def _automatic_part(study: StudyRecords) -> list[str]:
    by_hand, runs = by_hand_and_automatic(study)
    if not runs:
        return []
    caption = "aMCL with 2 speakers and the same number of steps, on crops of validation mixtures."
    return [
        "<h2>An automatic schedule</h2>",
        image(drawings.draw_automatic(by_hand, runs), "Temperature and SI-SDR over training", escape(caption)),
        table(AUTOMATIC_HEAD, automatic_rows(study), identity="automatic"),
        '<p class="note">Mean ± standard error over whole test mixtures. Differences are in PIT SI-SDR.</p>',
    ]


def by_hand_and_automatic(study: StudyRecords) -> tuple[list[RunRecords], list[RunRecords]]:
    """Return the training runs of aMCL with a manual and with an automatic schedule, by seed."""
    runs = study.of_part("automatic")
    # The manual runs have seeds that were missing in the table of methods at the time; it may contain them now.
    by_hand = {run.seed: run for run in runs if not run.sets_itself}
    by_hand |= {run.seed: run for run in _methods(study, 2).get("amcl", [])}
    automatic = {run.seed: run for run in runs if run.sets_itself}
    first, second = ([runs[seed] for seed in sorted(runs)] for runs in (by_hand, automatic))
    return first, second


def _network(run: RunRecords) -> str:
    model = run.config["model"]
    return f"Networks of {model.get('n_blocks', 6)} blocks with {model.get('hidden_size', 128)} units"


def _methods(study: StudyRecords, n_speakers: int) -> dict[str, list[RunRecords]]:
    runs = [run for run in study.of_part("methods") if run.n_speakers == n_speakers]
    groups = {rule: sorted((run for run in runs if run.rule == rule), key=lambda run: run.seed) for rule in METHODS}
    return {rule: group for rule, group in groups.items() if group}


def _alone(figure: Any, alternative: str, caption: str) -> str:
    return f'<div class="alone">{image(figure, alternative, escape(caption))}</div>'


def _scored(runs: Sequence[RunRecords], measure: str, *, std: bool = True) -> str:
    """Return "mean ± standard deviation | standard error" over mixtures; for several runs "mean (seeds) | both errors".

    Without `std`, the standard deviation is left out.
    """
    spread = spread_of(list(over_seeds(runs, measure).values()))
    if len(runs) == 1:
        return (
            f"{mean_error(spread.mean, spread.std, decimals=2)} | SE {spread.error:.2f}" if std else _mean_error(spread)
        )
    seeds = ", ".join(f"{run.mean(measure):.2f}" for run in runs)
    return f"{spread.mean:.2f} ({seeds}) | {f'± {spread.std:.2f}, ' if std else ''}SE {spread.error:.2f}"


def _against_pit(groups: Mapping[str, Sequence[RunRecords]], rule: str) -> str:
    """Return the difference in PIT SI-SDR from PIT training: over mixtures, for each common seed, and p-values."""
    ours, theirs = groups[rule], groups["pit"]
    paired = difference(over_seeds(ours, "pit_si_sdr"), over_seeds(theirs, "pit_si_sdr"))
    pairs = [(one, other) for one in ours for other in theirs if one.seed == other.seed]
    if paired is None or len(pairs) < 2:
        return _against(paired)
    seeds = ", ".join(signed(one.mean("pit_si_sdr") - other.mean("pit_si_sdr")) for one, other in pairs)
    p = seeds_apart({name: [run.mean("pit_si_sdr") for run in runs] for name, runs in groups.items()}, rule, "pit")
    by_seed = "" if p is None else f" | seeds {p_value(p)}"
    return f"{signed(paired.mean)} ({seeds}) | SE {paired.error:.2f} | mixtures {p_value(paired.p)}{by_seed}"


def _mean_error(spread: Spread) -> str:
    return mean_error(spread.mean, spread.error, decimals=2)


def _against(paired: Difference | None) -> str:
    """Return a paired difference | its median and p-value."""
    if paired is None:
        return ""
    p = "" if paired.p is None else f", {p_value(paired.p)}"
    return f"{signed(paired.mean)} ± {paired.error:.2f} | median {signed(paired.median)}{p}"
