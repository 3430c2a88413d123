"""Runner of the UCI study: fleets compute missing results, one data set at a time."""

import importlib.util
import shutil
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl.app.progress import Progress
from torchmcl_fleet import Fleet, FleetData, Validation, current_loss, hard_distortion
from torchmcl_studies.common import own_random_numbers
from torchmcl_studies.data.uci import Fold, load_uci, uci_set
from torchmcl_studies.uci.methods import METHODS, Method
from torchmcl_studies.uci.study import Records, UciStudy, Unit, check_device, fold_numbers, units_of

__all__ = [
    "forget_unit",
    "open_records",
    "run_study",
    "saved_training",
    "train_unit",
    "trains_side_by_side",
    "unit_rows",
]

_Rows = list[dict[str, Any]]
_BATCH_SIZE = 1024
_CHECKPOINTS = "checkpoints"
_DROPOUT_PASSES = 50
# One unit leaves most of a GPU idle, and all of it while the host prepares the next.
_UNITS_AT_ONCE = 6
_FEATURES_OF_THE_KERNEL = 63
# Seeds of different folds and members must not coincide.
_SEED_STRIDE = 1000


def run_study(study: UciStudy, out: Path, *, progress: bool = True) -> Records:
    """Train the models missing in `out/records.jsonl`, and return all records.

    Checkpoints are stored in `out/checkpoints`: a killed run resumes in the middle of a fleet, and its records equal
    the records of an uninterrupted run.
    """
    check_device(study)
    records = open_records(study, out)
    if trains_side_by_side(study):
        _run_side_by_side(study, records, out, progress=progress)
        return records
    for name in study.sets:
        folds = load_uci(name, study.data, study.folds)
        for unit in units_of(study, name, records):
            records.add(train_unit(study, unit, folds, out, progress=progress))
            forget_unit(unit, out)
    return records


def trains_side_by_side(study: UciStudy) -> bool:
    """Return whether several units are trained at once.

    A GPU has enough memory for several units of data sets with few features.
    """
    few = all(uci_set(name).n_features <= _FEATURES_OF_THE_KERNEL for name in study.sets)
    return few and torch.device(study.device).type == "cuda" and importlib.util.find_spec("triton") is not None


def _run_side_by_side(study: UciStudy, records: Records, out: Path, *, progress: bool) -> None:
    """Train several units at once, each in its own thread and stream; records are written in the usual order."""
    units = {name: list(units_of(study, name, records)) for name in study.sets}
    n_models = sum(len(unit.tasks) for units_of_set in units.values() for unit in units_of_set)

    def train(unit: Unit, folds: list[Fold]) -> list[dict[str, Any]]:
        with _own_stream(torch.device(study.device)):
            return train_unit(study, unit, folds, out, progress=False)

    with (
        Progress(n_models, "UCI study", show=progress, unit="model") as bar,
        ThreadPoolExecutor(_UNITS_AT_ONCE) as threads,
    ):
        sets = {name: load_uci(name, study.data, study.folds) for name in units if units[name]}
        # Start the longest first; the short ones run beside them.
        longest = sorted(sets, key=lambda name: len(sets[name][0].train_inputs), reverse=True)
        waiting: dict[Unit, Future[_Rows]] = {}
        try:
            for name in longest:
                waiting |= {unit: threads.submit(train, unit, sets[name]) for unit in units[name]}
            for unit in (unit for units_of_set in units.values() for unit in units_of_set):
                records.add(_result_of(waiting[unit], list(waiting.values())))
                forget_unit(unit, out, leave_folder=True)
                bar.step(len(unit.tasks))
        finally:
            threads.shutdown(cancel_futures=True)
    _forget_folder(out)


def _own_stream(device: torch.device) -> AbstractContextManager[Any]:
    return torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext()


def _result_of(awaited: Future[_Rows], others: Sequence[Future[_Rows]]) -> _Rows:
    """Return the result of a unit, or raise the first error of any unit immediately."""
    while not awaited.done():
        for future in others:  # before waiting, because one may have ended already
            if future.done() and (error := future.exception()) is not None:
                raise error
        wait([future for future in others if not future.done()], return_when=FIRST_COMPLETED)
    return awaited.result()


def open_records(study: UciStudy, out: Path) -> Records:
    """Return the records of a study in a folder.

    Raises:
        ValueError: If the records on disk belong to a different study.
    """
    settings = {"epochs": study.n_epochs, "patience": study.patience, "score_weight": study.score_weight}
    return Records(out / "records.jsonl", settings)


def train_unit(
    study: UciStudy, unit: Unit, folds: list[Fold], out: Path | None, *, progress: bool
) -> list[dict[str, Any]]:
    """Train the models of a unit and return their records.

    Args:
        study: Study that contains the unit.
        unit: Unit to train.
        folds: Folds of its data set that are part of the study.
        out: Folder to save checkpoints in and to resume from; None saves nothing.
        progress: Whether to show a progress bar.
    """
    numbers = fold_numbers(study, unit.set)
    methods = [METHODS[task.method] for task in unit.tasks]
    own_fold = [numbers.index(task.fold) for task in unit.tasks]
    train, validation = unit_rows(unit, folds, own_fold)
    if validation is not None:
        validation = replace(validation, patience=study.patience)
    rules = {method.name: method.rule(study.n_epochs) for method in methods}
    fleet = Fleet(
        lambda: methods[0].build(folds[0].train_inputs.shape[1], uci_set(unit.set).hidden),
        len(methods),
        rule=[rules[method.name] for method in methods],
        learning_rate=0.01,
        score_weight=study.score_weight,
        seeds=[task.seed * _SEED_STRIDE**2 + task.member * _SEED_STRIDE + task.fold for task in unit.tasks],
        device=study.device,
    )
    held_out = "validation" in unit.protocols
    title = f"{unit.set}, {len(methods)} models{', a tenth held out' if held_out else ''}"
    with nullcontext() if trains_side_by_side(study) else own_random_numbers():
        history = fleet.fit(
            train,
            study.n_epochs,
            batch_size=_BATCH_SIZE,
            validation=validation,
            checkpoint=None if out is None else saved_training(unit, out),
            progress=title if progress else False,
        )
    test = FleetData.of_sets([(fold.test_inputs, fold.test_targets) for fold in folds], own_fold)
    rows = []
    for protocol in unit.protocols:
        results = _results(fleet, test, unit, methods[0], best=protocol != "last")
        for ((method, fold, seed), members), result in zip(unit.ensembles().items(), results, strict=True):
            std = folds[numbers.index(fold)].target_std
            rows.append(
                {
                    "set": unit.set,
                    "fold": fold,
                    "method": method,
                    "protocol": protocol,
                    "seed": seed,
                    "distortion": None if result.distortion is None else result.distortion * std**2,
                    "rmse": result.rmse * std,
                    "usage": result.usage,
                    "seconds": round(history.seconds * len(members) / len(methods), 6),
                }
            )
    return rows


def unit_rows(unit: Unit, folds: list[Fold], own_fold: list[int]) -> tuple[FleetData, Validation | None]:
    """Return the training rows of the models of a unit, and the rows on which epochs are selected.

    Args:
        unit: Unit to train.
        folds: Folds of its data set.
        own_fold: Index in `folds` of the fold of each model.
    """
    held_out = "validation" in unit.protocols
    # One set of rows for each fold; a held-out part is the tail of the published (random) order.
    train = FleetData.of_sets([_head(fold, held_out) for fold in folds], own_fold)
    if not held_out and "test-selected" not in unit.protocols:
        return train, None
    watched = [_tail(fold) if held_out else (fold.test_inputs, fold.test_targets) for fold in folds]
    return train, Validation(
        FleetData.of_sets(watched, own_fold),
        monitor=hard_distortion if held_out else current_loss,
        every=[1 if held_out else METHODS[task.method].evaluate_every for task in unit.tasks],
    )


def saved_training(unit: Unit, out: Path) -> Path:
    """Return the folder of a unit's checkpoints."""
    return out / _CHECKPOINTS / unit.name


def forget_unit(unit: Unit, out: Path, *, leave_folder: bool = False) -> None:
    """Remove the checkpoints of a finished unit, and their parent folder if it is empty.

    Args:
        unit: Finished unit.
        out: Folder of the study.
        leave_folder: Whether to keep the parent folder, because another thread may be about to save there.
    """
    shutil.rmtree(saved_training(unit, out), ignore_errors=True)
    if not leave_folder:
        _forget_folder(out)


def _forget_folder(out: Path) -> None:
    with suppress(OSError):  # it may contain the state of another study
        (out / _CHECKPOINTS).rmdir()


class _Result(NamedTuple):
    """Values of one record, in units of the standardized targets."""

    distortion: float | None
    rmse: float
    usage: list[float] | None


def _results(fleet: Fleet, test: FleetData, unit: Unit, method: Method, *, best: bool) -> list[_Result]:
    """Return a result for each (method, fold, seed)."""
    if not method.single_answer:
        metrics = fleet.evaluate(test, best=best)
        columns = (metrics[name].tolist() for name in ("distortion", "rmse", "usage"))
        return [
            _Result(distortion, rmse, [round(frequency, 6) for frequency in usage])
            for distortion, rmse, usage in zip(*columns, strict=True)
        ]
    inputs, targets = test.batch()[:2]
    predictions = _mean_predictions(fleet, inputs, method, best=best)  # [models, rows]
    errors = [predictions[m].mean(dim=0) - targets[m[0]].flatten() for m in unit.ensembles().values()]
    return [_Result(None, float(error.square().mean().sqrt()), None) for error in errors]


def _mean_predictions(fleet: Fleet, inputs: Tensor, method: Method, *, best: bool) -> Tensor:
    if not method.dropout:
        return fleet.predict(inputs, per_model=True, best=best).hypotheses.flatten(1)
    passes = [
        fleet.predict(inputs, per_model=True, best=best, stochastic=True, seed=seed).hypotheses.flatten(1)
        for seed in range(_DROPOUT_PASSES)
    ]
    return torch.stack(passes).mean(dim=0)


def _head(fold: Fold, held_out: bool) -> tuple[Tensor, Tensor]:
    n = _n_kept(fold) if held_out else len(fold.train_inputs)
    return fold.train_inputs[:n], fold.train_targets[:n]


def _tail(fold: Fold) -> tuple[Tensor, Tensor]:
    return fold.train_inputs[_n_kept(fold) :], fold.train_targets[_n_kept(fold) :]


def _n_kept(fold: Fold) -> int:
    return round(0.9 * len(fold.train_inputs))
