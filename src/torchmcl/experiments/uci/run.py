"""Running the study: whatever is missing from the records is trained, a set at a time, as fleets.

Three protocols:

- `last`: the weights after the last epoch; nothing is selected.
- `validation`: the last tenth of the training fold is held out, and the epoch with its lowest
  distortion is reported on the test fold. Honest, with a little less training data.
- `test-selected`: the epoch with the lowest loss ON THE TEST FOLD, as the authors' released code does.
  Only for comparison with the published numbers.

`last` and `test-selected` come from the same training.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchmcl.checkpoints.files import digest_of_json
from torchmcl.data.uci import UCI_SETS, Fold, load_uci, uci_set
from torchmcl.experiments.uci.methods import METHODS, Method, method_named
from torchmcl.experiments.uci.records import KEYS, Records
from torchmcl.fleet import Fleet, FleetData, current_loss, hard_distortion

__all__ = ["PROTOCOLS", "QUICK_METHODS", "QUICK_SETS", "UciStudy", "run_study"]

PROTOCOLS = ("last", "test-selected", "validation")
QUICK_SETS = ("yacht", "boston", "energy", "concrete")
# The six methods of tables 1, 4 and 5.
QUICK_METHODS = ("mcl", "relaxed-0.1", "relaxed-0.5", "relaxed-annealed", "amcl-exponential", "amcl-linear")
_BATCH_SIZE = 1024
_CHECKPOINTS = "checkpoints"
_DROPOUT_PASSES = 50
# Seeds of different folds and members must not meet.
_SEED_STRIDE = 1000


@dataclass(frozen=True)
class UciStudy:
    """What to run.

    Raises:
        ValueError: for an unknown set, method or protocol, or a count below 1.
    """

    sets: Sequence[str] = tuple(name for name in UCI_SETS if name != "year")
    methods: Sequence[str] = tuple(METHODS)
    protocols: Sequence[str] = PROTOCOLS
    n_seeds: int = 1
    n_epochs: int = 1000
    folds: Sequence[int] | None = None
    data: Path | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Check the fields."""
        if torch.device(self.device).type == "cuda" and not torch.cuda.is_available():
            raise ValueError("reproduce uci: `device` must be at hand, got 'cuda' without a CUDA device. Use cpu.")
        for name in self.sets:
            uci_set(name)
        for name in self.methods:
            method_named(name)
        for protocol in self.protocols:
            if protocol not in PROTOCOLS:
                known = ", ".join(PROTOCOLS)
                raise ValueError(f"reproduce uci: `protocol` must be among {known}, got {protocol!r}.")
        for field in ("sets", "methods", "protocols"):  # named twice is meant once
            object.__setattr__(self, field, tuple(dict.fromkeys(getattr(self, field))))
        for name, value in (("seeds", self.n_seeds), ("epochs", self.n_epochs)):
            if value < 1:
                raise ValueError(f"reproduce uci: `{name}` must be >= 1, got {value}.")


def run_study(study: UciStudy, out: Path, *, progress: bool = True) -> Records:
    """Train what `out/records.jsonl` does not hold yet, and return all records.

    What is being trained is saved in `out/checkpoints` on the way: a run that was killed goes on in the middle of a
    fleet, and its records are those of an undisturbed run.
    """
    settings = {"epochs": study.n_epochs}
    records = Records(out / "records.jsonl", settings)
    for name in study.sets:
        folds = load_uci(name, study.data, study.folds, progress=progress)
        numbers = list(range(len(folds))) if study.folds is None else list(study.folds)
        for kind in (False, True):
            methods = [method_named(m) for m in study.methods if method_named(m).single_answer is kind]
            # Methods of one architecture share a fleet; dropout and ensembles differ, so each is its own.
            groups = [methods] if not kind else [[method] for method in methods]
            for group in groups:
                for protocols in (("last", "test-selected"), ("validation",)):
                    wanted = [p for p in protocols if p in study.protocols]
                    _run_group(study, name, folds, numbers, group, wanted, records, progress)
    return records


@dataclass(frozen=True)
class _Task:
    """One model (or ensemble of members) to train."""

    method: Method
    fold: int
    seed: int
    member: int


def _run_group(
    study: UciStudy,
    name: str,
    folds: list[Fold],
    numbers: list[int],
    methods: list[Method],
    protocols: list[str],
    records: Records,
    progress: bool,
) -> None:
    tasks = [
        _Task(method, position, seed, member)
        for method in methods
        for seed in range(study.n_seeds)
        for position, fold in enumerate(numbers)
        for member in range(method.n_members)
        if _is_missing(records, name, method, seed, protocols, numbers if method.dropout else [fold])
    ]
    if not tasks:
        return
    held_out = "validation" in protocols
    # One set of rows for each fold; a held-out part is the tail of the published (random) order.
    train = [_head(fold, held_out) for fold in folds]
    watched = [_tail(fold) if held_out else (fold.test_inputs, fold.test_targets) for fold in folds]
    own = [task.fold for task in tasks]
    fleet = Fleet(
        lambda: methods[0].build(folds[0].train_inputs.shape[1], uci_set(name).hidden),
        len(tasks),
        rules=_rules(tasks, study.n_epochs),
        lr=0.01,
        seeds=[task.seed * _SEED_STRIDE**2 + task.member * _SEED_STRIDE + numbers[task.fold] for task in tasks],
        device=study.device,
    )
    saved = records.path.parent / _CHECKPOINTS / _group_name(name, tasks, numbers, protocols, study.n_epochs)
    watch = held_out or "test-selected" in protocols
    with _own_random_numbers():
        history = fleet.fit(
            FleetData.of_sets(train, own),
            study.n_epochs,
            batch_size=_BATCH_SIZE,
            validation=FleetData.of_sets(watched, own) if watch else None,
            monitor=hard_distortion if held_out else current_loss,
            validate_every=[1 if held_out else task.method.looks_every for task in tasks],
            checkpoint=saved,
            progress=progress,
            what=f"{name}, {len(tasks)} models{', a tenth held out' if held_out else ''}",
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
    # What is on disk already stays as it is.
    records.add([row for row in rows if tuple(row[key] for key in KEYS) not in records])
    shutil.rmtree(saved, ignore_errors=True)
    with suppress(OSError):  # another study may have left its state
        saved.parent.rmdir()


def _group_name(name: str, tasks: list[_Task], numbers: list[int], protocols: list[str], n_epochs: int) -> str:
    """Return a name for what is trained together: another study in the same folder has other names."""
    models = [(task.method.name, numbers[task.fold], task.seed, task.member) for task in tasks]
    return f"{name}-{digest_of_json([models, protocols, n_epochs])[:16]}"


def _is_missing(records: Records, name: str, method: Method, seed: int, protocols: list[str], folds: list[int]) -> bool:
    """Return whether something is missing; folds that share random numbers are trained together or not at all."""
    return any((name, fold, method.name, protocol, seed) not in records for protocol in protocols for fold in folds)


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
