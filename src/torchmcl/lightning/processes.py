"""Trainings in several processes: what to say when one of them is gone."""

import torch

__all__ = ["note_lost_process"]

# How gloo and NCCL say that another process closed its connection, or has been silent for too long.
_SIGNS = ("connection closed by peer", "connection reset by peer", "broken pipe", "gloo", "nccl", "timed out")


def note_lost_process(error: BaseException, *, rank: int, n_processes: int, saved: str) -> bool:
    """Add a note to an error that another process of the training has caused by ending; return whether it is one.

    Python prints the note behind the error, which of itself speaks of sockets only.

    Args:
        error: that ends this process.
        rank: of this process.
        n_processes: of the training.
        saved: in words, what the next run goes on from.

    Example:
        >>> error = RuntimeError("[gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer")
        >>> note_lost_process(error, rank=0, n_processes=4, saved="Saved are 3 epochs in 'run'.")
        True
        >>> print(error.__notes__[0])
        torchmcl: process 0 of 4 ends because another process of the training is gone or silent: look for its message,
        or for one of the machine it ran on (out of memory, killed). Saved are 3 epochs in 'run'.
    """
    known = isinstance(error, torch.distributed.DistError) if torch.distributed.is_available() else False
    if n_processes < 2 or not isinstance(error, RuntimeError):
        return False
    if not known and not any(sign in str(error).lower() for sign in _SIGNS):
        return False
    error.add_note(
        f"torchmcl: process {rank} of {n_processes} ends because another process of the training is gone or silent: "
        f"look for its message, or for one of the machine it ran on (out of memory, killed). {saved}"
    )
    return True
