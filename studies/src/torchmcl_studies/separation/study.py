"""The paper's separation study on different data: four objectives, more outputs than speakers, cooling schedules."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchmcl.checks import check_positive_int
from torchmcl.errors import bad_value
from torchmcl.io import read_json, read_records, write_atomically
from torchmcl_speech import (
    DataConfig,
    SeparationConfig,
    differing_options,
    evaluate_separator,
    listed_mixtures,
    load_config,
    speaker_genders,
    train_separator,
)
from torchmcl_speech.data import AudioFolder
from torchmcl_studies.common import check_known, claimed
from torchmcl_studies.separation_records import PAPER, PARTS, SPEAKERS_FILE

__all__ = ["StudyRun", "Training", "paper_runs", "run_trainings", "study_runs"]

_OWNER = "separation study"
_METHODS = ("pit", "mcl", "relaxed-wta", "amcl")
# A quarter of the weights: in the two smaller parts only the comparison matters, not the absolute values.
_SMALL = ("model.n_blocks=3", "model.hidden_size=64")
# Settings of a smoke test for two CPU cores; its results are not meaningful.
_QUICK = (
    *("model.n_filters=16", "model.kernel_size=32", "model.stride=16", "model.segment_size=50"),
    *("model.hidden_size=16", "model.n_blocks=1"),
    *("data.crop=1.0", "data.samples_per_epoch=16", "data.validation_samples=8", "data.n_workers=0"),
    *("training.batch_size=4", "training.precision=32-true"),
)


@dataclass(frozen=True)
class StudyRun:
    """One training run.

    Args:
        name: Name of its folder, `<part>/<run>`.
        changes: Changes to the configuration `base`, as `part.option=value`.
        base: Name of a configuration of torchmcl_speech.
        evaluated: Model to evaluate: "model", the best one on the validation part, or "model-last".
    """

    name: str
    changes: tuple[str, ...]
    base: str = "study"
    evaluated: str = "model"

    @property
    def part(self) -> str:
        """One of `PARTS`, or `PAPER`."""
        return self.name.partition("/")[0]

    def configured(self, more: Sequence[str] = ()) -> SeparationConfig:
        """Return the configuration of the training run."""
        return load_config(self.base).changed([*self.changes, *more])


def study_runs(n_seeds: int = 1, *, parts: Sequence[str] = PARTS, quick: bool = False) -> list[StudyRun]:
    """Return every training run of the study, the most important first.

    Args:
        n_seeds: Number of training runs per method; the automatic schedule has four seeds, other parts one.
        parts: Parts of the study.
        quick: Whether to use tiny networks and few steps.

    Raises:
        ValueError: If a part is unknown.

    Example:
        >>> [run.name for run in study_runs()][:4]
        ['methods/2-pit-0', 'methods/2-mcl-0', 'methods/2-relaxed-wta-0', 'methods/2-amcl-0']
    """
    check_positive_int(_OWNER, "n_seeds", n_seeds)
    check_known(_OWNER, "parts", parts, PARTS)
    # The rate falls to 0 over all epochs, so a longer training run is not the continuation of a shorter one.
    epochs = {2: 3, 3: 3} if quick else {2: 26, 3: 12}
    runs = _method_runs("methods", n_seeds, {n: (*_speakers(n), *_annealed(epochs[n])) for n in (2, 3)})
    short = (*_annealed(3 if quick else 10), *_SMALL)
    runs += [
        StudyRun(
            f"hypotheses/{n_outputs}-{rule}-0",
            (*_speakers(3), f"model.n_outputs={n_outputs}", f"objective.rule={rule}", *short),
        )
        for rule in ("mcl", "amcl")
        for n_outputs in (3, 5, 10)
    ]
    # A decay of 0.9 takes fifty epochs from 23 dB to 0.1, so epochs are short. A constant rate avoids confounding.
    decay, n_epochs = (0.5, 8) if quick else (0.9, 52)
    cooling = (f"objective.decay={decay}", f"objective.annealing_epochs={n_epochs}", "data.samples_per_epoch=640")
    steady = (f"training.epochs={n_epochs}", "training.schedule=plateau", f"training.patience={n_epochs}")
    runs += [
        StudyRun(
            f"transition/{temperature}-amcl-0",
            (*_speakers(2), "objective.rule=amcl", f"objective.temperature={temperature}", *cooling, *steady, *_SMALL),
        )
        for temperature in (0.1, 5, 23)
    ]
    # Only the schedule differs; manual runs only for seeds that the table of methods does not contain.
    annealed = (*_speakers(2), *_annealed(epochs[2]))
    seeds = range(1 if quick else 4)
    runs += [
        StudyRun(f"automatic/{name}-{seed}", (*annealed, *options, f"training.seed={seed}"))
        for name, options, seeds_of_part in (
            ("2-amcl", ("objective.rule=auto",), seeds),
            ("2-hand-amcl", ("objective.rule=amcl",), seeds[n_seeds:]),
        )
        for seed in seeds_of_part
    ]
    return [replace(run, changes=(*run.changes, *(_QUICK if quick else ()))) for run in runs if run.part in parts]


def paper_runs(data: Path, numbers: Sequence[int] = (2, 3), *, n_seeds: int = 3, quick: bool = False) -> list[StudyRun]:
    """Return the training runs of the paper's tables 3 and 7, with its settings, after checking the data.

    Args:
        data: Folder of WSJ0-mix, with 2speakers and 3speakers (or wsj0-2mix and wsj0-3mix) on its first or second
            level; for one number of speakers also its folder, or the wav8k or wav8k/min in it.
        numbers: Numbers of speakers.
        n_seeds: Number of training runs per method and number of speakers.
        quick: Whether to use tiny networks and few steps.

    Raises:
        ValueError: If a folder or a file is missing, or the first recordings are not mono at 8 kHz.
    """
    small = ("training.epochs=2", "objective.annealing_epochs=1", *_QUICK) if quick else ()
    root = f"data.root={json.dumps(str(data), ensure_ascii=False)}"
    changes = {n: ("data.layout=wsj0", root, "data.n_workers=8", *_speakers(n), *small) for n in numbers}
    runs = [replace(run, base="paper-2spk", evaluated="model-last") for run in _method_runs(PAPER, n_seeds, changes)]
    for config in (run.configured().data for run in runs[: len(_METHODS) * len(numbers) : len(_METHODS)]):
        for part in ("tr", "cv", "tt"):
            try:
                first = listed_mixtures(config, part)[0]
            except ValueError as error:
                raise ValueError(f"{error} The option --speakers selects the numbers of speakers.") from error
            for name in (str(first.recorded), *(track.name for track in first.tracks)):
                if differs := AudioFolder(data).differs(name):
                    rule, got = "contain mono recordings at 8000 Hz", f"{data / name}, which would be {differs}"
                    raise ValueError(bad_value(_OWNER, "data", rule, got, "The paper uses wav8k/min."))
    return runs


def _method_runs(part: str, n_seeds: int, changes: Mapping[int, Sequence[str]]) -> list[StudyRun]:
    """Return a training run for each seed, number of speakers (with its changes) and method."""
    return [
        StudyRun(f"{part}/{n}-{rule}-{seed}", (*options, f"objective.rule={rule}", f"training.seed={seed}"))
        for seed in range(n_seeds)
        for n, options in changes.items()
        for rule in _METHODS
    ]


def _annealed(n_epochs: int) -> tuple[str, ...]:
    """Return the options of an annealed run of `n_epochs` epochs, with a positive temperature in the first half."""
    return f"training.epochs={n_epochs}", f"objective.annealing_epochs={max(n_epochs // 2, 1)}"


def _speakers(number: int) -> tuple[str, ...]:
    return (f"data.n_speakers=[{number}]", f"model.n_outputs={number}")


@dataclass(frozen=True)
class Training:
    """A training run in a folder, which several processes may share.

    Args:
        run: Training run.
        config: Its configuration, with the changes of the command.
        folder: Its folder.
        limit: Number of test mixtures to evaluate, the first ones; None for all.

    Raises:
        ValueError: If the folder contains a different training run.
    """

    run: StudyRun
    config: SeparationConfig
    folder: Path
    limit: int | None = None

    def __post_init__(self) -> None:
        """Check the folder."""
        saved = self.folder / "config.json"
        if saved.exists() and (differs := differing_options(read_json(_OWNER, saved), self.config)):
            got = f"{self.folder}, which differs in {differs}"
            advice = "Choose a different folder, or delete this one to start anew."
            raise ValueError(bad_value(_OWNER, "out", "contain this study", got, advice))

    @property
    def epoch_seconds(self) -> list[float]:
        """Seconds of each recorded epoch."""
        path = self.folder / "records.jsonl"
        return [record["seconds"] for record in read_records(_OWNER, path)] if path.exists() else []

    @property
    def is_finished(self) -> bool:
        """Whether the model was trained, and evaluated on all requested test mixtures."""
        path = self.folder / "evaluation-tt.jsonl"
        n_evaluated = len(path.read_text().splitlines()) if path.exists() else 0
        return n_evaluated > 0 and n_evaluated == len(listed_mixtures(self.config.data, "tt")[: self.limit])


def run_trainings(trainings: Sequence[Training], *, device: str = "cpu", progress: bool = True) -> list[Training]:
    """Train and evaluate the runs that are neither finished nor in progress in another process; return finished ones.

    A run that was killed resumes after its last epoch, also if the process that was killed was another one.

    Args:
        trainings: Training runs.
        device: "cpu", "cuda" or, for example, "cuda:1".
        progress: Whether to show progress bars.
    """
    done: set[str] = set()
    n_before = -1
    while len(done) > n_before:  # again, because a process that had claimed a run may have been killed
        n_before = len(done)
        for number, training in enumerate(trainings, start=1):
            name, folder, data = training.run.name, training.folder, training.config.data
            if name in done:
                continue
            with claimed(folder) as is_free:
                if is_free and not training.is_finished:
                    if progress:
                        print(f"{name} ({number} of {len(trainings)})", flush=True)
                    train_separator(training.config, folder, device=device, progress=progress)
                    model = folder / training.run.evaluated
                    evaluate_separator(model, data, out=folder, limit=training.limit, device=device, progress=progress)
                    _write_genders(folder.parents[1] / SPEAKERS_FILE, data)
                done |= {name} if is_free else set()
    return [training for training in trainings if training.run.name in done or training.is_finished]


def _write_genders(path: Path, data: DataConfig) -> None:
    """Write the genders of the speakers beside the runs, for a report without access to the data."""
    if genders := speaker_genders(data.root):
        lines = ["speaker,gender", *(f"{speaker},{gender}" for speaker, gender in sorted(genders.items()))]
        write_atomically(path, "\n".join(lines) + "\n")
