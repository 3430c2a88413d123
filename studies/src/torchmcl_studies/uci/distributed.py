"""The study on a cluster: workers train its units, and one process writes the records."""

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
_START = "`dask scheduler` and `dask worker ADDRESS --nthreads 1` start one."


@contextmanager
def connected(owner: str, address: str, *, patience: float = _PATIENCE) -> Iterator[Any]:
    """Connect to a dask cluster inside a `with` block.

    Args:
        owner: named in messages.
        address: of the scheduler, as in tcp://host:8786.
        patience: seconds to wait for the scheduler, and then for a first worker.

    Raises:
        ImportError: if dask.distributed is not installed.
        ValueError: if there is no scheduler at the address, or it has no workers.
    """
    import distributed

    try:
        client = distributed.Client(address, timeout=patience, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        rule = "be the address of a dask scheduler that answers"
        raise ValueError(bad_value(owner, "cluster", rule, repr(address), _START)) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=patience)
        except TimeoutError as error:
            rule = "be that of a scheduler with at least one worker"
            raise ValueError(bad_value(owner, "cluster", rule, f"{address!r} without one", _START)) from error
        yield client


def results_from(
    owner: str, client: Any, work: Callable[[_Item], _Result], items: Sequence[_Item]
) -> Iterator[tuple[_Item, _Result]]:
    """Yield items with their results, in the order of completion.

    The task of a lost worker is given to another one; finished results are not requested
    again.

    Args:
        owner: named in messages.
        client: from `connected`.
        work: importable on the workers; it must be safe to rerun for an item whose worker was lost.
        items: to process, the largest first.

    Raises:
        OSError: if an item has crashed several workers.
    """
    from distributed import KilledWorker, as_completed

    futures = {future: item for item, future in zip(items, client.map(work, items, pure=False), strict=True)}
    try:
        for future in as_completed(list(futures), loop=client.loop):
            yield futures.pop(future), future.result()
            future.release()
    except KilledWorker as error:
        advice = "Is its memory enough? What was finished is in the records; rerun the same command to resume."
        raise OSError(f"{owner}: one unit of work has ended several workers. {advice}") from error


_OWNER = "reproduce uci"
# The methods of one set with one seed form a unit, so that its records are bit-identical to those of a single machine;
# more seeds make more units.
_MODELS_OF_A_UNIT = 200
_RECORDS = "records.json"
# Initial weights and dropout use torch's global generator: the threads of a worker train one after another.
_ONE_AT_A_TIME = threading.Lock()


def run_study_on_cluster(study: UciStudy, out: Path, address: str, *, progress: bool = True) -> Records:
    """Train the models missing from `out/records.jsonl` on a dask cluster, and return all records.

    If the workers can access `out`, on a shared filesystem, they save their training state there: the unit of a
    lost worker resumes from its last save, and a finished one is never trained again. Otherwise the unit of a lost
    worker starts from scratch. The data must be available on the workers, or they download it.

    Args:
        study: what to run; its device is that of the workers.
        out: folder for the records.
        address: of the scheduler, as in tcp://host:8786.
        progress: show a bar.

    Raises:
        ValueError: if there is no such cluster, or its workers have another version of torchmcl.
        OSError: if a unit has crashed several workers.
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
