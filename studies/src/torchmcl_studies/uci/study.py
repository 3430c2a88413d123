"""Definition of the UCI study: data sets, methods, protocols, and units of work that are trained together.

Three protocols:

- `last`: weights after the last epoch; nothing is selected.
- `validation`: the last tenth of the training fold is held out, and the epoch with the lowest distortion on it is
  evaluated on the test fold. No selection on test rows, and slightly less training data.
- `test-selected`: epoch with the lowest loss ON THE TEST FOLD, as in the authors' released code. Only for comparison
  with the published values.

`last` and `test-selected` evaluate the same training run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchmcl.checks import available_device, check_positive_int, device_of
from torchmcl.io import digest
from torchmcl_studies.common import KeyedRecords, check_known
from torchmcl_studies.data.uci import UCI_SETS, uci_set
from torchmcl_studies.uci.methods import METHODS, Method

__all__ = [
    "KEYS",
    "PROTOCOLS",
    "QUICK_METHODS",
    "QUICK_SETS",
    "Records",
    "Task",
    "UciStudy",
    "Unit",
    "check_device",
    "fold_numbers",
    "units_of",
]

KEYS = ("set", "fold", "method", "protocol", "seed")


class Records(KeyedRecords):
    """Records by (set, fold, method, protocol, seed); see `KeyedRecords`."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        super().__init__("reproduce uci", KEYS, path, settings)


PROTOCOLS = ("last", "test-selected", "validation")
QUICK_SETS = ("yacht", "boston", "energy", "concrete")
# The six methods of tables 1, 4 and 5.
QUICK_METHODS = ("mcl", "relaxed-0.1", "relaxed-0.5", "relaxed-annealed", "amcl-exponential", "amcl-linear")


@dataclass(frozen=True)
class UciStudy:
    """Options of the study.

    Attributes:
        sets: Data sets, by default all but year.
        methods: Methods.
        protocols: Protocols.
        n_seeds: Number of seeds of each fold.
        n_epochs: Number of epochs.
        folds: Folds; all by default.
        data: Folder of the data sets.
        device: "cpu" or "cuda".
        patience: Number of epochs without a lower monitored loss after which a network stops, under the protocols that
            select an epoch; None trains all networks to the end.
        score_weight: Weight of the score loss. 1 is the mean over the hypotheses, as in the authors' code; their number
            is the sum of Equation (4).

    Raises:
        ValueError: If a set, method, protocol or device is unknown, or a count is below 1.
    """

    sets: Sequence[str] = tuple(name for name in UCI_SETS if name != "year")
    methods: Sequence[str] = tuple(METHODS)
    protocols: Sequence[str] = PROTOCOLS
    n_seeds: int = 1
    n_epochs: int = 1000
    folds: Sequence[int] | None = None
    data: Path | None = None
    device: str = "cpu"
    patience: int | None = None
    score_weight: float = 1.0

    def __post_init__(self) -> None:
        """Check the fields; `check_device` checks the availability of the device."""
        device_of("reproduce uci", self.device)
        for name in self.sets:
            uci_set(name)
        check_known("reproduce uci", "methods", self.methods, METHODS)
        check_known("reproduce uci", "protocol", self.protocols, PROTOCOLS)
        for field in ("sets", "methods", "protocols"):  # remove duplicates
            object.__setattr__(self, field, tuple(dict.fromkeys(getattr(self, field))))
        check_positive_int("reproduce uci", "seeds", self.n_seeds)
        check_positive_int("reproduce uci", "epochs", self.n_epochs)


def check_device(study: UciStudy) -> None:
    """Check that the device of a study is available in this process.

    Raises:
        ValueError: If it is not available.
    """
    available_device("reproduce uci", study.device)


@dataclass(frozen=True)
class Task:
    """One model to train, alone or as a member of an ensemble."""

    method: str
    fold: int
    seed: int
    member: int


@dataclass(frozen=True)
class Unit:
    """A unit of work: models of one architecture on one set, under protocols that share a training run."""

    set: str
    protocols: tuple[str, ...]
    n_epochs: int
    tasks: tuple[Task, ...]

    @property
    def name(self) -> str:
        """Name of the files of the unit, unique also among other studies in the same folder."""
        models = [(task.method, task.fold, task.seed, task.member) for task in self.tasks]
        return f"{self.set}-{digest([models, list(self.protocols), self.n_epochs])[:16]}"

    @property
    def keys(self) -> list[tuple[Any, ...]]:
        """Keys of the records of the unit, in order."""
        return [(self.set, fold, method, p, seed) for p in self.protocols for method, fold, seed in self.ensembles()]

    def ensembles(self) -> dict[tuple[str, int, int], list[int]]:
        """Return the indices in `tasks` of the members of each (method, fold, seed)."""
        groups: dict[tuple[str, int, int], list[int]] = {}
        for place, task in enumerate(self.tasks):
            groups.setdefault((task.method, task.fold, task.seed), []).append(place)
        return groups

    def parts(self, n_models: int) -> "list[Unit]":
        """Split the unit into units of at most `n_models` models, or of one ensemble.

        Units with dropout are never split, because their models share one stream of random numbers.
        """
        if METHODS[self.tasks[0].method].dropout:
            return [self]
        cuts: list[list[Task]] = [[]]
        for members in self.ensembles().values():
            if cuts[-1] and len(cuts[-1]) + len(members) > n_models:
                cuts.append([])
            cuts[-1] += [self.tasks[place] for place in members]
        return [replace(self, tasks=tuple(cut)) for cut in cuts]


def units_of(study: UciStudy, name: str, records: Records) -> Iterator[Unit]:
    """Return the units of a set, with the models missing in the records."""
    numbers = fold_numbers(study, name)
    for kind in (False, True):
        methods = [METHODS[m] for m in study.methods if METHODS[m].single_answer is kind]
        # Methods with the same architecture share a fleet; dropout and ensembles have separate fleets.
        groups = [methods] if not kind else [[method] for method in methods]
        for group in groups:
            for protocols in (("last", "test-selected"), ("validation",)):
                wanted = tuple(p for p in protocols if p in study.protocols)
                tasks = [
                    Task(method.name, fold, seed, member)
                    for method in group
                    for seed in range(study.n_seeds)
                    for fold in numbers
                    for member in range(method.n_members)
                    if _is_missing(records, name, method, seed, wanted, numbers if method.dropout else [fold])
                ]
                if tasks:
                    yield Unit(name, wanted, study.n_epochs, tuple(tasks))


def fold_numbers(study: UciStudy, name: str) -> list[int]:
    """Return the requested folds of a set."""
    return list(range(uci_set(name).n_splits)) if study.folds is None else list(study.folds)


def _is_missing(
    records: Records, name: str, method: Method, seed: int, protocols: Sequence[str], folds: list[int]
) -> bool:
    """Return whether any record is missing; folds that share random numbers are trained together."""
    return any((name, fold, method.name, protocol, seed) not in records for protocol in protocols for fold in folds)
