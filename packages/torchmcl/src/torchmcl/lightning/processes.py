"""Training in several processes: the options of the launcher, and a note after the loss of a process."""

import os
from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["launcher_options", "note_lost_process"]

# How gloo and NCCL say that another process closed its connection, or has been silent for too long.
_SIGNS = ("connection closed by peer", "connection reset by peer", "broken pipe", "gloo", "nccl", "timed out")


def launcher_options(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the `Trainer` options for processes started by torchrun or SLURM, {} without a launcher.

    Args:
        environment: the variables that the launcher has set; those of this process by default.

    Example:
        >>> from torchmcl.lightning import launcher_options
        >>> launcher_options({"TORCHELASTIC_RUN_ID": "1", "LOCAL_WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "4"})
        {'devices': 8, 'num_nodes': 4, 'strategy': 'ddp'}
        >>> launcher_options({"SLURM_NTASKS": "32", "SLURM_NNODES": "4", "SLURM_JOB_NAME": "train"})
        {'devices': 8, 'num_nodes': 4, 'strategy': 'ddp'}
        >>> launcher_options({})
        {}
    """
    variables = os.environ if environment is None else environment
    if "TORCHELASTIC_RUN_ID" in variables:
        n_nodes, n_per_node = int(variables["GROUP_WORLD_SIZE"]), int(variables["LOCAL_WORLD_SIZE"])
    elif "SLURM_NTASKS" in variables and variables.get("SLURM_JOB_NAME") not in (None, "bash", "interactive"):
        n_nodes = int(variables.get("SLURM_NNODES", 1))
        n_per_node = int(variables["SLURM_NTASKS"]) // n_nodes
    else:
        return {}
    strategy = {"strategy": "ddp"} if n_nodes * n_per_node > 1 else {}
    return {"devices": n_per_node, "num_nodes": n_nodes, **strategy}


def note_lost_process(error: BaseException, *, rank: int, n_processes: int, saved: str) -> bool:
    """Add a note to an error that was caused by the end of another process; return whether it was.

    Python prints the note after the error, which alone speaks of sockets only.

    Args:
        error: that ends this process.
        rank: of this process.
        n_processes: of the training.
        saved: in words, where the next run resumes.

    Example:
        >>> error = RuntimeError("[gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer")
        >>> note_lost_process(error, rank=0, n_processes=4, saved="3 epochs are saved in 'run'.")
        True
        >>> print(error.__notes__[0])
        torchmcl: process 0 of 4 ends because another process of the training is gone or silent: look for its message,
        or for one of the machine it ran on (out of memory, killed). 3 epochs are saved in 'run'.
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
