"""Weights split across processes (FSDP2), in the same checkpoints as those of one process."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from torchmcl.lightning._backend import pl

__all__ = ["ShardedStrategy"]


class ShardedStrategy(pl.strategies.ModelParallelStrategy):  # type: ignore[name-defined]
    """Lightning's strategy for weights that do not fit on one device, with safetensors and JSON checkpoints.

    Split the weights in `configure_model` of the module, with PyTorch's `fully_shard`. A checkpoint holds the whole
    weights and moments, gathered tensor by tensor in the memory of the first process and written by it alone; each
    process reads the file and keeps its part. It is the file that one process would write: a training can resume with
    another number of processes, and with or without sharding. Lightning's own strategy reads pickles only, and numbers
    the moments by all weights of the model, so that those of frozen ones shift the others.

    Args:
        data_parallel_size: how many processes share a model and its batch; "auto" is one per node.
        tensor_parallel_size: how many share single layers; "auto" is all of a node.
        process_group_backend: "gloo" or "nccl"; chosen by the device by default.
        timeout: how long to wait for another process; that of PyTorch by default.

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
        state: dict[str, Any] = self.lightning_module.state_dict()
        return state

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Return the sharded moments."""
        state: dict[str, Any] = getattr(optimizer, "_optimizer", optimizer).state_dict()
        return state

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Gather sharded tensors on all processes, and write them in the first one."""
        whole = _gathered(checkpoint, keep=self.is_global_zero)
        if self.is_global_zero:
            self.checkpoint_io.save_checkpoint(whole, filepath, storage_options=storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Return a complete checkpoint."""
        checkpoint: dict[str, Any] = self.checkpoint_io.load_checkpoint(checkpoint_path)
        return checkpoint

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
    """Return a whole tensor sharded like another of its shape; other values unchanged.

    All processes must call it, with the same whole tensor.
    """
    if not _is_sharded(like) or not isinstance(value, Tensor) or _is_sharded(value) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)


def _is_sharded(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and hasattr(tensor, "full_tensor")


def _gathered(value: Any, *, keep: bool) -> Any:
    """Return a nested value with whole tensors, in the memory of the host; without `keep`, None for sharded ones."""
    if _is_sharded(value):
        whole = value.full_tensor()
        return whole.detach().cpu() if keep else None
    if isinstance(value, Mapping):
        return {key: _gathered(item, keep=keep) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_gathered(item, keep=keep) for item in value])
    return value
