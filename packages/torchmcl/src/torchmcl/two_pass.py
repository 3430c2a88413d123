"""Training in two passes: first all hypotheses without a graph, then those with nonzero weight with a graph.

The gradient of a step with respect to its predictions does not depend on the network, because weights are detached. The
first pass therefore computes the predictions chunk by chunk without a graph. The backward pass receives their
gradients, recomputes the chunks with a nonzero gradient, and differentiates them one at a time. Training needs the
memory of one chunk, for every rule, cost and score objective.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # the only common base classes in torch
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten
from torch.utils.checkpoint import get_device_states, set_device_states

from torchmcl.checks import check_callable, check_positive_int
from torchmcl.errors import bad_value
from torchmcl.types import Distributions, Predictions

__all__ = ["TwoPass", "hypothesis_numbers"]


def hypothesis_numbers(n_rows: int, n_hypotheses: int, device: torch.device | None = None) -> Tensor:
    """Return the hypothesis numbers of each row, [rows, hypotheses], the default latents of `TwoPass`.

    Example:
        >>> hypothesis_numbers(2, 3)
        tensor([[0, 1, 2],
                [0, 1, 2]])
    """
    return torch.arange(n_hypotheses, device=device).expand(n_rows, n_hypotheses)


class TwoPass(nn.Module):
    """Compute hypotheses in chunks, and backpropagate only through those with nonzero weight.

    Use it as the model of `mcl_step`; values and gradients equal those of all hypotheses at once. The forward pass
    keeps no graph. `loss.backward()` recomputes chunks, with the same random numbers and autocast, and adds to the
    `.grad` of all parameters (`torch.autograd.grad` does not return those). Chunks without gradient are skipped. Put
    parallel wrappers inside, `TwoPass(DistributedDataParallel(model), 16)`: gradients are reduced once, with the last
    chunk. Inputs that require gradients receive them, so that an encoder in front of the model runs only once.

    Score logits of the model have nonzero gradients everywhere, so that no chunk is skipped; with `scorer` they depend
    on the inputs only. Batch normalization normalizes each chunk separately and updates its running statistics once if
    `model` is a module or a method of one; both passes update the statistics of modules that another function calls.

    Args:
        model: Function of inputs and latents [batch, chunk, ...], which returns `Predictions` or `Distributions` with
            [batch, chunk, ...] in every field.
        n_hypotheses: Number of hypotheses in training; `forward` accepts a different number.
        chunk_size: Number of hypotheses that are computed together.
        latents: Function of the number of rows, the number of hypotheses and the device that returns an identifier of
            each hypothesis, [rows, hypotheses, ...]: hypothesis numbers by default, or noise, for example
            `LatentHypotheses.draw`.
        scorer: Function that computes score logits [batch, n_hypotheses] from the inputs, called once with a graph.
        independent_rows: Whether the output of a row depends only on this row and its latent, without dropout and batch
            normalization. The second pass then computes only the (row, hypothesis) pairs with nonzero weight, one per
            row with winner-takes-all. An input tensor whose first axis is as long as the batch must contain rows.

    Raises:
        TypeError: If the model does not return predictions.
        ValueError: For `independent_rows` with a module that makes rows depend on each other or on random numbers.

    Example:
        >>> import torchmcl as mcl
        >>> heads = nn.ModuleList(nn.Linear(2, 1) for _ in range(4))
        >>> def one(inputs, numbers):  # numbers [batch, 1]
        ...     return mcl.Predictions(heads[numbers[0, 0]](inputs).unsqueeze(1))
        >>> model = TwoPass(one, n_hypotheses=4)
        >>> output = mcl.mcl_step(model, mcl.Batch(torch.randn(8, 2), torch.randn(8, 1)), mcl.WTA())
        >>> output.loss.backward()
        >>> output.matching.weights.shape, heads[0].weight.grad is None
        (torch.Size([8, 1, 4]), False)
    """

    def __init__(
        self,
        model: Callable[..., Predictions | Distributions],
        n_hypotheses: int,
        *,
        chunk_size: int = 1,
        latents: Callable[..., Tensor] = hypothesis_numbers,
        scorer: Callable[..., Tensor] | None = None,
        independent_rows: bool = False,
    ) -> None:
        super().__init__()
        check_callable("TwoPass", "model", model, "lambda inputs, numbers: Predictions(...)")
        check_callable("TwoPass", "latents", latents, "torchmcl.two_pass.hypothesis_numbers")
        check_positive_int("TwoPass", "n_hypotheses", n_hypotheses)
        check_positive_int("TwoPass", "chunk_size", chunk_size)
        self.model, self.latents, self.scorer = model, latents, scorer
        self.n_hypotheses, self.chunk_size, self.independent_rows = n_hypotheses, chunk_size, independent_rows

    def forward(self, inputs: Any, n_hypotheses: int | None = None) -> Predictions | Distributions:
        """Return the predictions of all hypotheses.

        Args:
            inputs: Tensor, or any structure of tensors.
            n_hypotheses: Number of hypotheses, if it differs from the number in training.
        """
        first = next((leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)), None)
        if first is None:
            raise TypeError(bad_value("TwoPass", "inputs", "contain a tensor [batch, ...]", type(inputs).__name__))
        latents = self.latents(len(first), n_hypotheses or self.n_hypotheses, first.device)
        calls, predictions = self._first_pass(inputs, latents)
        if torch.is_grad_enabled():
            if self.independent_rows and (mixed := [m for m in _modules(self.model) if m.training and _mixes_rows(m)]):
                rule, advice = "be False for models with dropout or batch normalization", "Or call `.eval()` on these."
                raise ValueError(bad_value("TwoPass", "independent_rows", rule, repr(mixed[0]), advice))
            fields = _tensors(predictions)
            replay = _SecondPass(self.model, calls, _autocast(first.device), self.independent_rows)
            leaves, structure = tree_flatten((inputs, latents))
            anchor = torch.ones((), device=first.device, requires_grad=True)
            replayed = _Replayed.apply(replay, structure, fields, anchor, *leaves)
            predictions = predictions._replace(**dict(zip(fields, replayed, strict=True)))
        return predictions if self.scorer is None else predictions._replace(score_logits=self.scorer(inputs))

    @torch.no_grad()
    def _first_pass(self, inputs: Any, latents: Tensor) -> tuple[list["_Call"], Predictions | Distributions]:
        calls, results = [], []
        for hypotheses in torch.arange(latents.shape[1]).split(self.chunk_size):
            chunk = slice(int(hypotheses[0]), int(hypotheses[-1]) + 1)
            calls.append(_Call(chunk, torch.get_rng_state(), *get_device_states(latents)))
            results.append(_checked(self.model(inputs, latents[:, chunk]), (len(latents), len(hypotheses))))
        # Autocast caches the casts of weights; casts without a graph would break the graph of the second pass.
        torch.clear_autocast_cache()
        fields = [_tensors(result) for result in results]
        joined = {name: torch.cat([each[name] for each in fields], dim=1) for name in fields[0]}
        return calls, results[0]._replace(**joined)


class _Call(NamedTuple):
    """Call of the first pass: its hypotheses, and the random state before it."""

    hypotheses: slice
    cpu_state: Tensor
    devices: list[int]
    device_states: list[Tensor]

    @contextmanager
    def random_state(self) -> Iterator[None]:
        """Restore the random state of the call inside a `with` block, and the current state afterwards."""
        with torch.random.fork_rng(self.devices):
            torch.set_rng_state(self.cpu_state)
            set_device_states(self.devices, self.device_states)
            yield


class _Chunk(NamedTuple):
    """Call of the second pass."""

    inputs: Any
    latents: Tensor
    gradients: dict[str, Tensor]
    random_state: AbstractContextManager[None]


@dataclass
class _SecondPass:
    """Second pass of a batch, called with the gradients of all predictions."""

    model: Callable[..., Predictions | Distributions]
    calls: list[_Call]
    autocast: Callable[[], AbstractContextManager[Any]]
    independent_rows: bool

    def __call__(self, inputs: Any, latents: Tensor, gradients: dict[str, Tensor]) -> None:
        """Differentiate all chunks, or all (row, hypothesis) pairs, that have a gradient."""
        needed = torch.stack([each.unsqueeze(-1).flatten(2).any(dim=-1) for each in gradients.values()]).any(dim=0)
        chunks = (self._pairs if self.independent_rows else self._chunks)(inputs, latents, gradients, needed)
        with _kept_buffers(self.model):
            for number, chunk in enumerate(chunks):
                reduced = nullcontext() if number == len(chunks) - 1 else _without_reduction(self.model)
                with reduced, chunk.random_state:
                    with torch.enable_grad(), self.autocast():
                        result = _tensors(self.model(chunk.inputs, chunk.latents))
                    # Constant scales, detached scores and frozen hypotheses have no graph.
                    trained = {name: value for name, value in result.items() if value.requires_grad}
                    torch.autograd.backward(list(trained.values()), [chunk.gradients[name] for name in trained])

    def _chunks(self, inputs: Any, latents: Tensor, gradients: dict[str, Tensor], needed: Tensor) -> list[_Chunk]:
        """Return the chunks of the first pass in which any prediction has a gradient."""
        counts = torch.stack([needed[:, call.hypotheses].any() for call in self.calls]).int()
        if _is_parallel(self.model):  # the same chunks in all processes: calls of a sharded model are collective
            counts[0] = 1
            torch.distributed.all_reduce(counts, torch.distributed.ReduceOp.MAX)
        return [
            _Chunk(
                inputs,
                latents[:, call.hypotheses],
                {name: gradient[:, call.hypotheses] for name, gradient in gradients.items()},
                call.random_state(),
            )
            for call, count in zip(self.calls, counts.tolist(), strict=True)
            if count
        ]

    def _pairs(self, inputs: Any, latents: Tensor, gradients: dict[str, Tensor], needed: Tensor) -> list[_Chunk]:
        """Return the pairs with a gradient, in chunks."""
        rows, hypotheses = needed.nonzero(as_tuple=True)
        size = max(len(latents), 1) * (self.calls[0].hypotheses.stop - self.calls[0].hypotheses.start)
        n_chunks = torch.tensor(-(-len(rows) // size), device=latents.device)
        if _is_parallel(self.model):
            n_chunks.clamp_(min=1)
            torch.distributed.all_reduce(n_chunks, torch.distributed.ReduceOp.MAX)
        places = [*zip(rows.split(size), hypotheses.split(size), strict=True)] if len(rows) else []
        # The first row with gradient 0 stands for chunks that only other processes have.
        missing = int(n_chunks) - len(places)
        factors = [1] * len(places) + [0] * missing
        places += [(rows.new_zeros(1), rows.new_zeros(1))] * missing
        return [
            _Chunk(
                _rows_of(inputs, len(latents), row),
                latents[row, hypothesis].unsqueeze(1),
                {name: factor * gradient[row, hypothesis].unsqueeze(1) for name, gradient in gradients.items()},
                nullcontext(),
            )
            for (row, hypothesis), factor in zip(places, factors, strict=True)
        ]


class _Replayed(torch.autograd.Function):
    """Predictions of the first pass, whose backward pass is the second pass."""

    @staticmethod
    def forward(ctx: Any, replay: _SecondPass, structure: Any, fields: Any, anchor: Tensor, *leaves: Any) -> Any:
        ctx.replay, ctx.structure, ctx.names = replay, structure, tuple(fields)
        ctx.constants = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        ctx.save_for_backward(*(leaf if isinstance(leaf, Tensor) else None for leaf in leaves))
        return tuple(fields.values())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        needs = ctx.needs_input_grad[4:]
        leaves = [
            constant if saved is None else saved.detach().requires_grad_(need)
            for saved, constant, need in zip(ctx.saved_tensors, ctx.constants, needs, strict=True)
        ]
        with torch.enable_grad():  # slices of leaves are part of the graph
            inputs, latents = tree_unflatten(leaves, ctx.structure)
            ctx.replay(inputs, latents, dict(zip(ctx.names, gradients, strict=True)))
        return None, None, None, None, *(leaf.grad if need else None for leaf, need in zip(leaves, needs, strict=True))


def _tensors(predictions: Predictions | Distributions) -> dict[str, Tensor]:
    return {name: value for name, value in predictions._asdict().items() if value is not None}


def _checked(predictions: Any, shape: tuple[int, int]) -> Predictions | Distributions:
    """Return the result of a model; every field must have the axes [batch, chunk]."""
    if not isinstance(predictions, Predictions | Distributions):
        advice = "Return torchmcl.Predictions(hypotheses, score_logits), with [batch, chunk, ...] in both."
        raise TypeError(bad_value("TwoPass", "model", "return Predictions", type(predictions).__name__, advice))
    for name, value in _tensors(predictions).items():
        if value.shape[:2] != shape:
            rule = f"return `{name}` of shape [batch, chunk, ...], {shape} here"
            raise ValueError(bad_value("TwoPass", "model", rule, tuple(value.shape)))
    return predictions


def _modules(model: Any) -> list[nn.Module]:
    """Return the modules of a module or of a method of one; those of another function are unknown."""
    model = getattr(model, "__self__", model)
    return list(model.modules()) if isinstance(model, nn.Module) else []


def _mixes_rows(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) or (isinstance(module, _DropoutNd) and module.p > 0)


def _rows_of(inputs: Any, n_rows: int, rows: Tensor) -> Any:
    """Return a structure with the given rows selected in every tensor of length `n_rows`."""
    return tree_map_only(Tensor, lambda value: value[rows] if value.ndim and len(value) == n_rows else value, inputs)


def _autocast(device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Return a function that restores the current autocast state, because a backward pass runs outside it."""
    kind = device.type
    dtype, enabled, cached = (
        torch.get_autocast_dtype(kind),
        torch.is_autocast_enabled(kind),
        torch.is_autocast_cache_enabled(),
    )
    return lambda: torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=cached)


def _is_parallel(model: Any) -> bool:
    """Return whether gradients of a model are reduced over processes."""
    wrapped = hasattr(model, "no_sync") or hasattr(model, "set_requires_gradient_sync")
    return wrapped and torch.distributed.is_available() and torch.distributed.is_initialized()


@contextmanager
def _without_reduction(model: Any) -> Iterator[None]:
    """Accumulate gradients without reducing them over processes."""
    if hasattr(model, "no_sync"):
        with model.no_sync():
            yield
    elif hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)
    else:
        yield


@contextmanager
def _kept_buffers(model: Any) -> Iterator[None]:
    """Undo changes to buffers: running statistics have already been updated by the first pass."""
    buffers = [buffer for part in _modules(model) if part.training for buffer in part.buffers(recurse=False)]
    values = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(buffers, values, strict=True):
                buffer.copy_(value)
