"""The UCI study on a cluster: workers train its units, and one process writes the records."""

import functools
import json
import platform
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from torchmcl import __version__
from torchmcl.app.progress import Progress
from torchmcl.errors import bad_value
from torchmcl.io import read_json, write_atomically
from torchmcl_studies.data.uci import Fold, load_uci
from torchmcl_studies.uci.run import forget_unit, open_records, saved_training, train_unit
from torchmcl_studies.uci.study import Records, UciStudy, Unit, check_device, units_of

__all__ = ["connected", "results_from", "run_study_on_cluster"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Seconds to wait for a response of the scheduler, and for a worker.
_PATIENCE = 30
_START = "Start one with `dask scheduler` and `dask worker ADDRESS --nthreads 1`."


@contextmanager
def connected(owner: str, address: str, *, patience: float = _PATIENCE) -> Iterator[Any]:
    """Connect to a dask cluster inside a `with` block.

    Args:
        owner: Name of the command in error messages.
        address: Address of the scheduler, such as tcp://host:8786.
        patience: Seconds to wait for the scheduler, and then for a first worker.

    Raises:
        ImportError: If dask.distributed is not installed.
        ValueError: If there is no scheduler at the address, or it has no workers.
    """
    import distributed

    try:
        client = distributed.Client(address, timeout=patience, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        rule = "be the address of a running dask scheduler"
        raise ValueError(bad_value(owner, "cluster", rule, repr(address), _START)) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=patience)
        except TimeoutError as error:
            rule = "be the address of a scheduler with at least one worker"
            raise ValueError(bad_value(owner, "cluster", rule, f"{address!r} without workers", _START)) from error
        yield client


def results_from(
    owner: str, client: Any, work: Callable[[_Item], _Result], items: Sequence[_Item]
) -> Iterator[tuple[_Item, _Result]]:
    """Yield items with their results, in the order of completion.

    The item of a lost worker is sent to another one; finished results are not computed again.

    Args:
        owner: Name of the command in error messages.
        client: Client, as returned by `connected`.
        work: Function that workers can import, and that can safely be rerun for the item of a lost worker.
        items: Items to process, the largest first.

    Raises:
        OSError: If an item has crashed several workers.
    """
    from distributed import KilledWorker, as_completed

    futures = {future: item for item, future in zip(items, client.map(work, items, pure=False), strict=True)}
    try:
        for future in as_completed(list(futures), loop=client.loop):
            yield futures.pop(future), future.result()
            future.release()
    except KilledWorker as error:
        advice = "Check their memory. Finished units are in the records; rerun the same command to resume."
        raise OSError(f"{owner}: one unit of work has crashed several workers. {advice}") from error


_OWNER = "reproduce uci"
# The methods of one set with one seed form a unit, so that its records are bit-identical to those of a single machine;
# more seeds make more units.
_MODELS_OF_A_UNIT = 200
_RECORDS = "records.json"
# Initial weights and dropout use torch's global generator: the threads of a worker train one after another.
_ONE_AT_A_TIME = threading.Lock()


def run_study_on_cluster(study: UciStudy, out: Path, address: str, *, progress: bool = True) -> Records:
    """Train the models missing from `out/records.jsonl` on a dask cluster, and return all records.

    If the workers can access `out`, on a shared file system, they save their training state there: the unit of a lost
    worker resumes from its last checkpoint, and a finished unit is never trained again. Otherwise the unit of a lost
    worker starts from scratch. The data must be available on the workers, or they download it.

    Args:
        study: Options of the study; its device is the device of the workers.
        out: Folder that stores the records.
        address: Address of the scheduler, such as tcp://host:8786.
        progress: Whether to show a progress bar.

    Raises:
        ValueError: If there is no such cluster, or its workers have a different version of torchmcl.
        OSError: If a unit has crashed several workers.
    """
    records = open_records(study, out)
    units = [unit for name in study.sets for unit in units_of(study, name, records)]
    parts = [part for unit in units for part in unit.parts(_MODELS_OF_A_UNIT)]
    if not parts:
        return records
    out.mkdir(parents=True, exist_ok=True)
    token = out.resolve() / f".shared-{uuid.uuid4().hex}"
    token.touch(exist_ok=False)
    try:
        with (
            connected(_OWNER, address) as client,
            Progress(sum(len(part.tasks) for part in parts), f"{len(parts)} units", show=progress, unit="model") as bar,
        ):
            data = None if study.data is None else study.data.resolve()
            work = _Work(replace(study, data=data), str(token), __version__)
            for part, rows in results_from(_OWNER, client, work, parts):
                records.add(rows)
                forget_unit(part, out)
                bar.step(len(part.tasks))
    finally:
        token.unlink(missing_ok=True)
    records.arrange(key for unit in units for key in unit.keys)
    return records


@dataclass(frozen=True)
class _Work:
    """The task of a worker for a unit."""

    study: UciStudy
    token: str
    version: str

    def __call__(self, unit: Unit) -> list[dict[str, Any]]:
        if self.version != __version__:
            rule = f"have workers with torchmcl {self.version}"
            raise ValueError(bad_value(_OWNER, "cluster", rule, f"{__version__} on {platform.node()}"))
        with _ONE_AT_A_TIME:
            check_device(self.study)
            folds = _folds(unit.set, self.study.data, None if self.study.folds is None else tuple(self.study.folds))
            token = Path(self.token)
            if not token.exists():
                return train_unit(self.study, unit, folds, None, progress=False)
            finished = saved_training(unit, token.parent) / _RECORDS
            if not finished.exists():
                rows = train_unit(self.study, unit, folds, token.parent, progress=False)
                write_atomically(finished, json.dumps(rows))
            return read_json(_OWNER, finished)


@functools.lru_cache(maxsize=1)
def _folds(name: str, data: Path | None, folds: Sequence[int] | None) -> list[Fold]:
    """Return the folds of a set; cached, because the units of a set often follow each other."""
    return load_uci(name, data, folds)
