"""The paper's study of separation on other speech: four objectives, more outputs than speakers, and cooling."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torchmcl._checks import bad_value, nearest_hint
from torchmcl.experiments.separation.config import SeparationConfig, load_config
from torchmcl.experiments.separation.evaluate import evaluate_separator
from torchmcl.experiments.separation.train import train_separator

__all__ = ["PARTS", "StudyRun", "run_separation_study", "study_runs"]

#: The parts of the study: the table, the number of hypotheses, the phase transition.
PARTS = ("methods", "hypotheses", "transition")

_METHODS = ("pit", "mcl", "relaxed-wta", "amcl")
# A quarter of the weights: what matters in the two smaller parts is the comparison, not the level.
_SMALL = ("model.n_blocks=3", "model.hidden_size=64")


@dataclass(frozen=True)
class StudyRun:
    """One training.

    Args:
        name: of its folder.
        part: one of `PARTS`.
        config: a configuration that comes with the package.
        changes: what is different here, as `part.option=value`.
    """

    name: str
    part: str
    config: str
    changes: tuple[str, ...]

    def configured(self, more: Sequence[str] = ()) -> SeparationConfig:
        """Return the configuration of the training."""
        return load_config(self.config).changed([*self.changes, *more])


def study_runs(n_seeds: int = 1) -> list[StudyRun]:
    """Return every training of the study, the most wanted first.

    Example:
        >>> [run.name for run in study_runs()][:4]
        ['methods/2-pit-0', 'methods/2-mcl-0', 'methods/2-relaxed-wta-0', 'methods/2-amcl-0']
    """
    runs = [
        StudyRun(
            f"methods/{speakers}-{rule}-{seed}",
            "methods",
            "study",
            (*_speakers(speakers), f"objective.rule={rule}", f"training.seed={seed}"),
        )
        for seed in range(n_seeds)
        for speakers in (2, 3)
        for rule in _METHODS
    ]
    short = ("training.epochs=10", "objective.annealing_epochs=5", *_SMALL)
    runs += [
        StudyRun(
            f"hypotheses/{n_outputs}-{rule}-0",
            "hypotheses",
            "study",
            (*_speakers(3), f"model.n_outputs={n_outputs}", f"objective.rule={rule}", *short),
        )
        for rule in ("mcl", "amcl")
        for n_outputs in (3, 5, 10)
    ]
    # A decay of 0.9 takes fifty epochs from 23 dB to 0.1: each is short here.
    cooling = ("objective.decay=0.9", "objective.annealing_epochs=52", "data.samples_per_epoch=640")
    steady = ("training.epochs=52", "training.schedule=plateau", "training.patience=52")
    runs += [
        StudyRun(
            f"transition/{temperature}-amcl-0",
            "transition",
            "study",
            (*_speakers(2), "objective.rule=amcl", f"objective.temperature={temperature}", *cooling, *steady, *_SMALL),
        )
        for temperature in (0.1, 5, 23)
    ]
    return runs


def _speakers(number: int) -> tuple[str, ...]:
    return (f"data.n_speakers=[{number}]", f"model.n_outputs={number}")


def run_separation_study(
    out: Path | str,
    *,
    parts: Sequence[str] = PARTS,
    n_seeds: int = 1,
    changes: Sequence[str] = (),
    device: str = "auto",
    limit: int | None = None,
    progress: bool = True,
) -> list[Path]:
    """Train and evaluate all runs; what is there already is not done again.

    Args:
        out: folder; each run has one below it.
        parts: which parts of the study.
        n_seeds: trainings of each method, for the table.
        changes: `part.option=value` for all runs, to say where the data is, for example.
        device: "auto", "cpu" or "cuda".
        limit: evaluate the first test mixtures only.
        progress: whether to show bars.

    Returns:
        The folders of the runs.
    """
    for part in parts:
        if part not in PARTS:
            advice = nearest_hint(part, PARTS)
            raise ValueError(bad_value("separation study", "parts", f"be among {PARTS}", repr(part), advice))
    folders = []
    for run in study_runs(n_seeds):
        if run.part not in parts:
            continue
        config = run.configured(changes)
        folder = Path(out) / run.name
        evaluation = folder / "evaluation-tt.jsonl"
        if not evaluation.exists():
            if progress:
                print(run.name, flush=True)
            train_separator(config, folder, device=device, progress=progress)
            where = "cuda" if device == "cuda" else "cpu"
            evaluate_separator(folder / "model", config.data, out=folder, limit=limit, device=where, progress=progress)
        folders.append(folder)
    return folders
