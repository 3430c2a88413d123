"""Work split across the machines of a dask cluster."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from torchmcl._checks import bad_value

__all__ = ["connected", "results_from"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Seconds until a scheduler that does not answer, or has no worker, counts as missing.
_PATIENCE = 30
_START = "`dask scheduler` and `dask worker ADDRESS --nthreads 1` start one."


@contextmanager
def connected(owner: str, address: str, *, patience: float = _PATIENCE) -> Iterator[Any]:
    """Connect to a dask cluster inside a `with` block.

    Args:
        owner: who speaks in messages.
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
    """Return items with their results, in the order of completion.

    The task of a lost worker is given to another one; finished results are not requested
    again.

    Args:
        owner: who speaks in messages.
        client: from `connected`.
        work: importable on the workers; must not mind being run again for an item whose worker was lost.
        items: to work on, the largest first.

    Raises:
        OSError: if an item has ended several workers.
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
