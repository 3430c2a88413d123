"""Records of the separation study: training runs by epoch, and evaluations by mixture."""

import csv
import io
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from torchmcl.errors import bad_value
from torchmcl.io import read_json, read_records
from torchmcl_speech import speaker_genders

__all__ = [
    "PAPER",
    "PARTS",
    "SPEAKERS_FILE",
    "RunRecords",
    "StudyRecords",
    "joined_study",
    "packed_study",
    "published_separation",
    "read_packed_study",
    "read_study",
    "recorded_study",
]

#: Parts of the study: table of methods, number of hypotheses, phase transition, automatic schedule.
PARTS = ("methods", "hypotheses", "transition", "automatic")
#: Part with the training runs of the paper's own experiment, on WSJ0-mix.
PAPER = "paper"
#: File with the genders of the speakers, beside the runs.
SPEAKERS_FILE = "speakers.csv"
_OWNER = "separation study"
# Options for the location and the loading of the data, which do not affect the results.
_OF_THE_MACHINE = ("root", "pack", "n_workers")
_MEASURES = {"pit": "pit_si_sdr", "mcl": "mcl_si_sdr", "input": "input_si_sdr"}


@dataclass(frozen=True)
class RunRecords:
    """One training run of the study.

    Args:
        name: Name of the run, `<part>/<setting>-<rule>-<seed>`.
        config: Configuration, as plain values.
        epochs: Records of the epochs, see `torchmcl.lightning.RecordWriter`.
        mixtures: Records of the test mixtures, see `evaluate_separator`.
    """

    name: str
    config: Mapping[str, Any]
    epochs: Sequence[Mapping[str, Any]]
    mixtures: Sequence[Mapping[str, Any]]

    @property
    def part(self) -> str:
        """One of `PARTS`, or `PAPER`."""
        return self.name.split("/")[0]

    @property
    def rule(self) -> str:
        """Name of the objective."""
        return str(self.config["objective"]["rule"])

    @property
    def seed(self) -> int:
        """The seed of the training run."""
        return int(self.config["training"]["seed"])

    @property
    def n_speakers(self) -> int:
        """The number of speakers in a mixture."""
        return int(max(self.config["data"]["n_speakers"]))

    @property
    def n_outputs(self) -> int:
        """The number of outputs of the network."""
        return int(self.config["model"]["n_outputs"])

    @property
    def temperature(self) -> float:
        """The initial temperature, in dB."""
        return float(self.config["objective"]["temperature"])

    @property
    def sets_itself(self) -> bool:
        """Whether the temperature was set automatically during training."""
        return self.rule == "auto"

    @property
    def temperatures(self) -> list[float]:
        """Return the temperature of each epoch of an annealed training run."""
        return [float(record["temperature"]) for record in self.epochs]

    def values(self, measure: str) -> dict[str, float]:
        """Return one measure by mixture."""
        return {record["mixture"]: float(record[measure]) for record in self.mixtures}

    def mean(self, measure: str) -> float:
        """Return the mean over the mixtures."""
        return statistics.fmean(self.values(measure).values())


@dataclass(frozen=True)
class StudyRecords:
    """All training runs, the genders of the speakers if known, and notes."""

    runs: Sequence[RunRecords]
    genders: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)

    def of_part(self, part: str) -> list[RunRecords]:
        """Return the runs of a part."""
        return [run for run in self.runs if run.part == part]


def read_study(folder: Path | str) -> StudyRecords:
    """Return the records of a study below a folder; runs without an evaluation are skipped.

    Raises:
        ValueError: If there are no evaluated runs.
    """
    folder = Path(folder)
    runs = [
        RunRecords(
            evaluation.parent.relative_to(folder).as_posix(),
            read_json(_OWNER, evaluation.parent / "config.json"),
            read_records(_OWNER, evaluation.parent / "records.jsonl"),
            read_records(_OWNER, evaluation),
        )
        for part in (*PARTS, PAPER)
        for evaluation in sorted((folder / part).glob("*/evaluation-tt.jsonl"))
    ]
    if not runs:
        rule = "contain a run that was trained and evaluated"
        raise ValueError(bad_value(_OWNER, "folder", rule, str(folder)))
    return StudyRecords(runs, speaker_genders(folder))


def joined_study(study: StudyRecords, more: StudyRecords) -> StudyRecords:
    """Return the training runs of both studies, part by part, with the notes of the first.

    Raises:
        ValueError: If both studies have a training run with the same name.
    """
    if twice := sorted({run.name for run in study.runs} & {run.name for run in more.runs}):
        advice = "Records can be added but not replaced."
        raise ValueError(bad_value(_OWNER, "more", "contain other training runs", ", ".join(twice), advice))
    runs = sorted([*study.runs, *more.runs], key=lambda run: ((*PARTS, PAPER).index(run.part), run.name))
    return StudyRecords(runs, {**more.genders, **study.genders}, study.notes)


def packed_study(study: StudyRecords, notes: Mapping[str, Any]) -> tuple[str, str]:
    """Return a study as two small texts, which `read_packed_study` reads.

    Args:
        study: Study to pack.
        notes: Notes on how the study was run.

    Returns:
        JSON lines, first the notes and genders, then the configuration and the epochs of each run; and a CSV table
        with a row for each run and mixture, SI-SDR rounded to 0.001 dB. Mixtures are numbered in table order.
    """
    heard = {speaker for run in study.runs for record in run.mixtures for speaker in record["speakers"]}
    genders = {speaker: gender for speaker, gender in sorted(study.genders.items()) if speaker in heard}
    lines: list[dict[str, Any]] = [{**notes, "genders": genders}]
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["run", "mixture", "speakers", *_MEASURES])
    for run in study.runs:
        config = {part: dict(options) for part, options in run.config.items()}
        for name in _OF_THE_MACHINE:
            config["data"].pop(name, None)
        lines.append({"run": run.name, "config": config})
        lines += [{"run": run.name, **_rounded(record)} for record in run.epochs]
        for number, record in enumerate(run.mixtures):
            speakers = "+".join(record["speakers"])
            writer.writerow([run.name, number, speakers, *(f"{record[m]:.3f}" for m in _MEASURES.values())])
    return "".join(json.dumps(line) + "\n" for line in lines), table.getvalue()


def read_packed_study(training: Path | str, evaluation: Path | str) -> StudyRecords:
    """Return a study from the two files of `packed_study`."""
    configs: dict[str, Any] = {}
    epochs: dict[str, list[Any]] = {}
    notes, *lines = read_records(_OWNER, Path(training))
    for line in lines:
        name = line.pop("run")
        if "config" in line:
            configs[name] = line["config"]
            epochs[name] = []
        else:
            epochs[name].append(line)
    mixtures: dict[str, list[Any]] = {name: [] for name in configs}
    with Path(evaluation).open(newline="") as file:
        for row in csv.DictReader(file):
            record: dict[str, Any] = {"mixture": row["mixture"], "speakers": row["speakers"].split("+")}
            record |= {measure: float(row[column]) for column, measure in _MEASURES.items()}
            record["improvement"] = record["pit_si_sdr"] - record["input_si_sdr"]
            mixtures[row["run"]].append(record)
    runs = [RunRecords(name, configs[name], epochs[name], mixtures[name]) for name in configs]
    genders = notes.pop("genders")
    return StudyRecords(runs, genders, notes)


def recorded_study() -> StudyRecords:
    """Return the study of the documentation, which was trained on one H200.

    Example:
        >>> len(recorded_study().runs)
        31
    """
    folder = files("torchmcl_studies.separation") / "recorded"
    with as_file(folder / "training.jsonl") as training, as_file(folder / "evaluation.csv") as evaluation:
        return read_packed_study(training, evaluation)


def published_separation() -> dict[tuple[int, str, str], str]:
    """Return the published WSJ0-mix values, mean ± standard deviation over seeds, by (speakers, rule, measure).

    Example:
        >>> published_separation()[2, "pit", "pit_si_sdr"]
        '16.88 ± 0.10'
    """
    source = files("torchmcl_studies.separation") / "published" / "separation_wsj0mix.csv"
    names = {"relaxed_wta_eps0.05": "relaxed-wta"}
    return {
        (int(row["speakers"]), names.get(row["method"], row["method"]), row["metric"]): (
            f"{float(row['mean_db']):.2f} ± {float(row['std_db']):.2f}"
        )
        for row in csv.DictReader(source.read_text().splitlines())
    }


def _rounded(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in record.items()}
