"""Checks of requested names, and the random numbers of a training run."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

import torch

from torchmcl._checks import bad_value, nearest_hint

__all__ = ["check_known", "own_random_numbers"]


def check_known(owner: str, argument: str, names: Iterable[str], known: Collection[str]) -> None:
    """Check that all names are known.

    Raises:
        ValueError: for the first that is not, with the nearest known one.
    """
    for name in names:
        if name not in known:
            advice = nearest_hint(str(name), list(known)).strip()
            raise ValueError(bad_value(owner, argument, f"be among {', '.join(known)}", repr(name), advice))


@contextmanager
def own_random_numbers() -> Iterator[None]:
    """Make dropout independent of earlier draws, and restore the CPU generator afterwards."""
    # The generator of a GPU is left as it ends: captured graphs hold on to its state.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
