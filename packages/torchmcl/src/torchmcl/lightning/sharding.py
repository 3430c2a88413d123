"""Training in several processes: weights sharded across them (FSDP2), with the checkpoint format of one process."""

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchmcl.lightning._backend import pl

# Messages of gloo and NCCL if another process closed its connection or timed out.
_SIGNS = ("connection closed by peer", "connection reset by peer", "broken pipe", "gloo", "nccl", "timed out")


def launcher_options(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the `Trainer` options for processes started by torchrun or SLURM, {} without a launcher.

    Args:
        environment: the environment variables of the launcher; those of this process by default.

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

    Python prints the note after the error, which alone only mentions sockets.

    Args:
        error: the error that ends this process.
        rank: of this process.
        n_processes: of the training.
        saved: a phrase that says where the next run resumes.

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


class ShardedStrategy(pl.strategies.ModelParallelStrategy):  # type: ignore[name-defined]
    """Lightning's strategy for weights that do not fit on one device, with safetensors and JSON checkpoints.

    Split the weights in `configure_model` of the module, with PyTorch's `fully_shard`. A checkpoint contains the full
    weights and moments, gathered tensor by tensor in the memory of the first process, which writes the file; each
    process reads the file and keeps its part. The file is the same as from a single process: training can resume with
    any number of processes, and with or without sharding. Lightning's own strategy reads pickles only, and numbers
    the moments by all weights of the model, so that those of frozen ones shift the others.

    Args:
        data_parallel_size: number of processes that share a model and its batch; "auto" is one per node.
        tensor_parallel_size: number of processes that share single layers; "auto" is all of a node.
        process_group_backend: "gloo" or "nccl"; chosen by the device by default.
        timeout: how long to wait for another process; PyTorch's default if None.

    Example:
        >>> from torch.distributed.fsdp import fully_shard
        >>> from torchmcl.lightning import MCLModule, ShardedStrategy
        >>> class Sharded(MCLModule):
        ...     def configure_model(self):
        ...         fully_shard(self.model, mesh=self.device_mesh["data_parallel"])
        >>> strategy = ShardedStrategy(data_parallel_size=8, tensor_parallel_size=1)  # for Trainer(strategy=...)
    """

    def __init__(
        self,
        data_parallel_size: Any = "auto",
        tensor_parallel_size: Any = "auto",
        process_group_backend: str | None = None,
        timeout: Any = None,
    ) -> None:
        options = {"process_group_backend": process_group_backend} | ({} if timeout is None else {"timeout": timeout})
        super().__init__(data_parallel_size, tensor_parallel_size, save_distributed_checkpoint=False, **options)

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Whether Lightning passes the moments of a checkpoint to this strategy."""
        return True

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the sharded weights."""
        return self.lightning_module.state_dict()

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Return the sharded moments."""
        return getattr(optimizer, "_optimizer", optimizer).state_dict()

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Gather sharded tensors on all processes, and write them in the first one."""
        whole = _gathered(checkpoint, keep=self.is_global_zero)
        if self.is_global_zero:
            self.checkpoint_io.save_checkpoint(whole, filepath, storage_options=storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Return a complete checkpoint."""
        return self.checkpoint_io.load_checkpoint(checkpoint_path)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load this process's part of the weights."""
        module = self.lightning_module
        current = module.state_dict()
        saved = {name: _sharded_like(value, current.get(name)) for name, value in checkpoint["state_dict"].items()}
        module.load_state_dict(saved, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load this process's part of the moments."""
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            numbers = [number for group in saved["param_groups"] for number in group["params"]]
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            of_number = dict(zip(numbers, weights, strict=True))
            state = {
                number: {name: _sharded_like(value, of_number[number]) for name, value in moments.items()}
                for number, moments in saved["state"].items()
            }
            optimizer.load_state_dict({**saved, "state": state})


def _sharded_like(value: Any, like: Any) -> Any:
    """Return a full tensor sharded like another tensor of the same shape; other values unchanged.

    All processes must call it, with the same full tensor.
    """
    if not _is_sharded(like) or not isinstance(value, Tensor) or _is_sharded(value) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)


def _is_sharded(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and hasattr(tensor, "full_tensor")


def _gathered(value: Any, *, keep: bool) -> Any:
    """Return a nested value with full tensors, in host memory; without `keep`, None for sharded ones."""
    if _is_sharded(value):
        whole = value.full_tensor()
        return whole.detach().cpu() if keep else None
    if isinstance(value, Mapping):
        return {key: _gathered(item, keep=keep) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_gathered(item, keep=keep) for item in value])
    return value
