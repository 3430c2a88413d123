"""Whether operations run one by one on real tensors, so that tricks for eager mode apply."""

import torch

__all__ = ["is_plain_eager", "may_work_in_place"]


def is_plain_eager() -> bool:
    """Return False inside torch.compile and under torch.vmap and the other transforms of torch.func."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is None


def may_work_in_place() -> bool:
    """Return whether a backward pass may overwrite its own intermediate results.

    Not when it is itself differentiated, compiled (the compiler fuses anyway) or under torch.vmap,
    where a shared tensor cannot take per-sample values.
    """
    return not torch.is_grad_enabled() and is_plain_eager()
