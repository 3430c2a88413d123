"""Running the study: whatever is missing from the records is trained, a set at a time, as fleets."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchmcl.data.uci import Fold, load_uci, uci_set
from torchmcl.experiments.uci.methods import Method, method_named
from torchmcl.experiments.uci.records import Records
from torchmcl.experiments.uci.study import (
    PROTOCOLS,
    QUICK_METHODS,
    QUICK_SETS,
    UciStudy,
    Unit,
    check_device,
    fold_numbers,
    units_of,
)
from torchmcl.fleet import Fleet, FleetData, Validation, current_loss, hard_distortion

__all__ = [
    "PROTOCOLS",
    "QUICK_METHODS",
    "QUICK_SETS",
    "UciStudy",
    "forget_unit",
    "open_records",
    "run_study",
    "saved_training",
    "train_unit",
]

_BATCH_SIZE = 1024
_CHECKPOINTS = "checkpoints"
_DROPOUT_PASSES = 50
# Seeds of different folds and members must not meet.
_SEED_STRIDE = 1000


def run_study(study: UciStudy, out: Path, *, progress: bool = True) -> Records:
    """Train what `out/records.jsonl` does not hold yet, and return all records.

    What is being trained is saved in `out/checkpoints` on the way: a run that was killed resumes in the middle of a
    fleet, and its records are those of an undisturbed run.
    """
    check_device(study)
    records = open_records(study, out)
    for name in study.sets:
        folds = load_uci(name, study.data, study.folds, progress=progress)
        for unit in units_of(study, name, records):
            records.add(train_unit(study, unit, folds, out, progress=progress))
            forget_unit(unit, out)
    return records


def open_records(study: UciStudy, out: Path) -> Records:
    """Return the records of a study in a folder.

    Raises:
        ValueError: if those on disk are of another study.
    """
    return Records(out / "records.jsonl", {"epochs": study.n_epochs})


def train_unit(
    study: UciStudy, unit: Unit, folds: list[Fold], out: Path | None, *, progress: bool
) -> list[dict[str, Any]]:
    """Train the models of a unit and return their records.

    Args:
        study: that the unit is part of.
        unit: what to train.
        folds: of its set, those of the study.
        out: the folder to save the training in, and to resume from; None saves nothing.
        progress: show a bar.
    """
    numbers = fold_numbers(study, unit.set)
    name, protocols = unit.set, list(unit.protocols)
    tasks = [_Task(method_named(t.method), numbers.index(t.fold), t.seed, t.member) for t in unit.tasks]
    held_out = "validation" in protocols
    # One set of rows for each fold; a held-out part is the tail of the published (random) order.
    train = [_head(fold, held_out) for fold in folds]
    watched = [_tail(fold) if held_out else (fold.test_inputs, fold.test_targets) for fold in folds]
    own = [task.fold for task in tasks]
    fleet = Fleet(
        lambda: tasks[0].method.build(folds[0].train_inputs.shape[1], uci_set(name).hidden),
        len(tasks),
        rule=_rules(tasks, study.n_epochs),
        learning_rate=0.01,
        seeds=[task.seed * _SEED_STRIDE**2 + task.member * _SEED_STRIDE + numbers[task.fold] for task in tasks],
        device=study.device,
    )
    validation = None
    if held_out or "test-selected" in protocols:
        validation = Validation(
            FleetData.of_sets(watched, own),
            monitor=hard_distortion if held_out else current_loss,
            every=[1 if held_out else task.method.evaluate_every for task in tasks],
        )
    what = f"{name}, {len(tasks)} models{', a tenth held out' if held_out else ''}"
    with _own_random_numbers():
        history = fleet.fit(
            FleetData.of_sets(train, own),
            study.n_epochs,
            batch_size=_BATCH_SIZE,
            validation=validation,
            checkpoint=None if out is None else saved_training(unit, out),
            progress=what if progress else False,
        )
    test = FleetData.of_sets([(fold.test_inputs, fold.test_targets) for fold in folds], own)
    rows = []
    for protocol in protocols:
        results = _results(fleet, test, tasks, folds, best=protocol != "last")
        for (task, members), result in zip(_ensembles(tasks).items(), results, strict=True):
            rows.append(
                {
                    "set": name,
                    "fold": numbers[task[1]],
                    "method": task[0],
                    "protocol": protocol,
                    "seed": task[2],
                    **result,
                    "seconds": round(history.seconds * len(members) / len(tasks), 6),
                }
            )
    return rows


def saved_training(unit: Unit, out: Path) -> Path:
    """Return the folder in which the training of a unit is saved on the way."""
    return out / _CHECKPOINTS / unit.name


def forget_unit(unit: Unit, out: Path) -> None:
    """Remove the saved training of a unit whose records are written."""
    shutil.rmtree(saved_training(unit, out), ignore_errors=True)
    with suppress(OSError):  # another study may have left its state
        (out / _CHECKPOINTS).rmdir()


@dataclass(frozen=True)
class _Task:
    """A task with its method, and the place of its fold among those of the study."""

    method: Method
    fold: int
    seed: int
    member: int


@contextmanager
def _own_random_numbers() -> Iterator[None]:
    """Make dropout independent of what was drawn before, and leave no trace of it on the CPU."""
    # The generator of a GPU is left as it ends: captured graphs hold on to its state.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def _rules(tasks: list[_Task], n_epochs: int) -> list[Any]:
    made = {task.method.name: task.method.rule(n_epochs) for task in tasks}
    return [made[task.method.name] for task in tasks]


def _ensembles(tasks: list[_Task]) -> dict[tuple[str, int, int], list[int]]:
    """Return the models of each (method, fold, seed)."""
    groups: dict[tuple[str, int, int], list[int]] = {}
    for index, task in enumerate(tasks):
        groups.setdefault((task.method.name, task.fold, task.seed), []).append(index)
    return groups


def _results(
    fleet: Fleet, test: FleetData, tasks: list[_Task], folds: list[Fold], *, best: bool
) -> list[dict[str, Any]]:
    """Return distortion, rmse and usage in the original units, one for each (method, fold, seed)."""
    if not tasks[0].method.single_answer:
        metrics = fleet.evaluate(test, best=best)
        return [
            {
                "distortion": float(metrics["distortion"][i]) * folds[task.fold].target_std ** 2,
                "rmse": float(metrics["rmse"][i]) * folds[task.fold].target_std,
                "usage": [round(float(share), 6) for share in metrics["usage"][i]],
            }
            for i, task in enumerate(tasks)
        ]
    inputs, targets = test.all_rows()
    answers = _mean_answers(fleet, inputs, tasks[0].method, best=best)  # [models, rows]
    results = []
    for (_, fold, _), members in _ensembles(tasks).items():
        error = answers[members].mean(dim=0) - targets[members[0]].flatten()
        rmse = float(error.square().mean().sqrt()) * folds[fold].target_std
        results.append({"distortion": None, "rmse": rmse, "usage": None})
    return results


def _mean_answers(fleet: Fleet, inputs: Tensor, method: Method, *, best: bool) -> Tensor:
    if not method.dropout:
        return fleet.predict(inputs, per_model=True, best=best).hypotheses.flatten(1)
    with _own_random_numbers():
        passes = [
            fleet.predict(inputs, per_model=True, best=best, stochastic=True).hypotheses.flatten(1)
            for _ in range(_DROPOUT_PASSES)
        ]
    return torch.stack(passes).mean(dim=0)


def _head(fold: Fold, held_out: bool) -> tuple[Tensor, Tensor]:
    n = _n_kept(fold) if held_out else len(fold.train_inputs)
    return fold.train_inputs[:n], fold.train_targets[:n]


def _tail(fold: Fold) -> tuple[Tensor, Tensor]:
    return fold.train_inputs[_n_kept(fold) :], fold.train_targets[_n_kept(fold) :]


def _n_kept(fold: Fold) -> int:
    return round(0.9 * len(fold.train_inputs))
