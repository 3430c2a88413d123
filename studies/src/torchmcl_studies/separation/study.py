"""The paper's separation study on different data: four objectives, more outputs than speakers, cooling schedules."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torchmcl.checks import available_device, check_positive_int
from torchmcl.errors import bad_value
from torchmcl.io import read_json, write_atomically
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
from torchmcl_studies.common import check_known
from torchmcl_studies.separation_records import PARTS, SPEAKERS_FILE

__all__ = ["StudyRun", "run_separation_study", "study_runs"]

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
_QUICK_LIMIT = 10


@dataclass(frozen=True)
class StudyRun:
    """One training run.

    Args:
        name: Name of its folder, `<part>/<run>`.
        changes: Changes to the configuration "study" of torchmcl_speech, as `part.option=value`.
    """

    name: str
    changes: tuple[str, ...]

    @property
    def part(self) -> str:
        """One of `PARTS`."""
        return self.name.partition("/")[0]

    def configured(self, more: Sequence[str] = ()) -> SeparationConfig:
        """Return the configuration of the training run."""
        return load_config("study").changed([*self.changes, *more])


def study_runs(n_seeds: int = 1, *, quick: bool = False) -> list[StudyRun]:
    """Return every training run of the study, the most important first.

    Args:
        n_seeds: Number of training runs per method; the automatic schedule has four seeds, other parts one.
        quick: Whether to use tiny networks and few steps.

    Example:
        >>> [run.name for run in study_runs()][:4]
        ['methods/2-pit-0', 'methods/2-mcl-0', 'methods/2-relaxed-wta-0', 'methods/2-amcl-0']
    """
    check_positive_int("separation study", "n_seeds", n_seeds)
    # The rate falls to 0 over all epochs, so a longer training run is not the continuation of a shorter one.
    epochs = {2: 3, 3: 3} if quick else {2: 26, 3: 12}
    runs = [
        StudyRun(
            f"methods/{speakers}-{rule}-{seed}",
            (*_speakers(speakers), *_annealed(epochs[speakers]), f"objective.rule={rule}", f"training.seed={seed}"),
        )
        for seed in range(n_seeds)
        for speakers in (2, 3)
        for rule in _METHODS
    ]
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
    return [StudyRun(run.name, (*run.changes, *_QUICK)) for run in runs] if quick else runs


def _annealed(n_epochs: int) -> tuple[str, ...]:
    """Return the options of an annealed run of `n_epochs` epochs, with a positive temperature in the first half."""
    return f"training.epochs={n_epochs}", f"objective.annealing_epochs={max(n_epochs // 2, 1)}"


def _speakers(number: int) -> tuple[str, ...]:
    return (f"data.n_speakers=[{number}]", f"model.n_outputs={number}")


def run_separation_study(
    out: Path | str,
    *,
    parts: Sequence[str] = PARTS,
    n_seeds: int = 1,
    quick: bool = False,
    changes: Sequence[str] = (),
    device: str = "cpu",
    limit: int | None = None,
    progress: bool = True,
) -> list[Path]:
    """Train and evaluate all runs; finished runs are skipped.

    Args:
        out: Folder of the study; each run has a folder below it.
        parts: Parts of the study to run.
        n_seeds: Number of training runs per method.
        quick: Whether to use tiny networks, few steps and the first ten test mixtures, as a smoke test.
        changes: Changes to the configuration of all runs, as `part.option=value`; for example the location of the data.
        device: "cpu" or "cuda".
        limit: Number of test mixtures to evaluate, the first ones; all by default.
        progress: Whether to show progress bars.

    Returns:
        Folders of the runs.

    Raises:
        ValueError: If a part is unknown, or the folder of a run contains a different training run.
    """
    check_known("separation study", "parts", parts, PARTS)
    if limit is not None:
        check_positive_int("separation study", "limit", limit)
    available_device("separation study", device)
    limit = _QUICK_LIMIT if quick and limit is None else limit
    wanted = [run for run in study_runs(n_seeds, quick=quick) if run.part in parts]
    folders = []
    for number, run in enumerate(wanted, start=1):
        config = run.configured(changes)
        folder = Path(out) / run.name
        if not _is_done(folder, config, limit):
            if progress:
                print(f"{run.name} ({number} of {len(wanted)})", flush=True)
            train_separator(config, folder, device=device, progress=progress)
            evaluate_separator(folder / "model", config.data, out=folder, limit=limit, device=device, progress=progress)
        _write_genders(Path(out) / SPEAKERS_FILE, config.data)
        folders.append(folder)
    return folders


def _is_done(folder: Path, config: SeparationConfig, limit: int | None) -> bool:
    """Return whether this training run exists and was evaluated on the same number of mixtures."""
    evaluation = folder / "evaluation-tt.jsonl"
    if not evaluation.exists():
        return False
    if differs := differing_options(read_json("separation study", folder / "config.json"), config):
        got = f"{folder}, which differs in {differs}"
        advice = "Choose a different folder, or delete this one to start anew."
        raise ValueError(bad_value("separation study", "out", "contain this study", got, advice))
    return len(evaluation.read_text().splitlines()) == len(listed_mixtures(config.data, "tt")[:limit])


def _write_genders(path: Path, data: DataConfig) -> None:
    """Write the genders of the speakers beside the runs, for a report without access to the data."""
    if genders := speaker_genders(data.root):
        lines = ["speaker,gender", *(f"{speaker},{gender}" for speaker, gender in sorted(genders.items()))]
        write_atomically(path, "\n".join(lines) + "\n")
