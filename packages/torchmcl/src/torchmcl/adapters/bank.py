"""Several low-rank adapters on one frozen network, computed together."""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from torchmcl._checks import bad_value, check_positive, check_positive_int


class AdapterBank(nn.Module):
    """A frozen network with `n_hypotheses` low-rank adapters on chosen linear layers.

    The rows of a batch are repeated for each adapter, hypothesis by hypothesis, so that each layer of the network is
    one product for all of them. Adapter k adds `alpha / rank * up[k] @ down[k] @ x` to the output of its layer, with
    the same factor in training and inference. `down` starts random and `up` at 0: at first all hypotheses are the
    network itself, and an annealed rule separates them.

    Layers are adapted by hooks. The network keeps its modules and the names of its parameters, which are frozen.

    Args:
        model: any module.
        n_hypotheses: the number of adapters.
        rank: of one adapter.
        targets: names of the layers, `nn.Linear` or the `Conv1D` of transformers: complete names or their last parts,
            or a string that is a regular expression for complete names, as in PEFT.
        alpha: scale of the adapters; `2 * rank` by default.
        dropout: share of the inputs of adapters that are dropped in training.

    Attributes:
        down: parameters [n_hypotheses, rank, in_features] by the name of the layer, with / for each dot.
        up: parameters [n_hypotheses, out_features, rank].

    Example:
        >>> network = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> bank = AdapterBank(network, n_hypotheses=5, rank=2, targets=["0", "2"])
        >>> bank.unfold(bank(torch.randn(8, 3))).shape
        torch.Size([8, 5, 2])
        >>> sum(parameter.numel() for parameter in bank.adapters()), network[0].weight.requires_grad
        (370, False)
    """

    def __init__(
        self,
        model: nn.Module,
        n_hypotheses: int,
        rank: int = 8,
        *,
        targets: str | Sequence[str],
        alpha: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive_int("AdapterBank", "n_hypotheses", n_hypotheses)
        check_positive_int("AdapterBank", "rank", rank)
        alpha = 2.0 * rank if alpha is None else alpha
        check_positive("AdapterBank", "alpha", alpha)
        self.model = model.requires_grad_(False)
        self.n_hypotheses, self.rank, self.alpha, self.dropout = n_hypotheses, rank, float(alpha), dropout
        self.down, self.up = nn.ParameterDict(), nn.ParameterDict()
        self.layers = _chosen(model, targets)
        for name in self.layers:
            layer: Any = model.get_submodule(name)
            out_features, in_features = _weight(layer).shape
            # Half precision rounds small updates away.
            dtype = torch.promote_types(layer.weight.dtype, torch.float32)
            down = torch.empty(n_hypotheses, rank, in_features, device=layer.weight.device, dtype=dtype)
            self.down[_key(name)] = nn.Parameter(down.uniform_(-1, 1) / math.sqrt(in_features))
            self.up[_key(name)] = nn.Parameter(down.new_zeros(n_hypotheses, out_features, rank))
            layer.register_forward_hook(partial(self._adapted, _key(name)))
        self._numbers: Tensor | None = None
        self._is_active = True
        self._merged: int | None = None

    @property
    def scaling(self) -> float:
        """The factor by which the outputs of the adapters are multiplied, alpha / rank."""
        return self.alpha / self.rank

    def adapters(self) -> list[nn.Parameter]:
        """Return the parameters of the adapters, for an optimizer."""
        return [*self.down.values(), *self.up.values()]

    def forward(self, *args: Any, numbers: Tensor | None = None, **kwargs: Any) -> Any:
        """Return the output of the network for all adapters, [n_hypotheses * batch, ...]; `unfold` separates it.

        Args:
            *args: of the network; the first axis of the longest tensors is that of the rows.
            numbers: [rows], the adapter of each row, for rows that are not to be repeated.
            **kwargs: of the network, likewise.
        """
        if self._merged is not None:
            rule, advice = "not be merged", "Call unmerge() first, or use bank.model."
            raise RuntimeError(bad_value("AdapterBank", "model", rule, f"adapter {self._merged}", advice))
        # Kept after the call: gradient checkpointing recomputes layers in the backward pass.
        self._numbers = numbers
        if numbers is None:
            args, kwargs = self.folded((args, kwargs))
        return self.model(*args, **kwargs)

    def folded(self, structure: Any) -> Any:
        """Return a structure with the rows of its tensors repeated for each hypothesis.

        Tensors with fewer rows than the longest one are left as they are: they apply to all rows.
        """
        tensors = [leaf for leaf in tree_leaves(structure) if isinstance(leaf, Tensor) and leaf.ndim]
        n_rows = max(map(len, tensors), default=0)

        def repeated(value: Tensor) -> Tensor:
            has_rows = value.ndim and len(value) == n_rows
            return value.repeat(self.n_hypotheses, *[1] * (value.ndim - 1)) if has_rows else value

        return tree_map_only(Tensor, repeated, structure)

    def unfold(self, output: Tensor) -> Tensor:
        """Return an output [n_hypotheses * batch, ...] as [batch, n_hypotheses, ...]."""
        return output.unflatten(0, (self.n_hypotheses, -1)).transpose(0, 1)

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Disable the adapters inside this context."""
        before, self._is_active = self._is_active, False
        try:
            yield
        finally:
            self._is_active = before

    def merge(self, number: int) -> nn.Module:
        """Add an adapter to the weights of the network until `unmerge`, and return the network."""
        if self._merged is not None or number not in range(self.n_hypotheses):
            rule = f"be in 0 .. {self.n_hypotheses - 1}, and no other adapter be merged"
            advice = "Call `unmerge` between two merges."
            raise ValueError(bad_value("AdapterBank", "number", rule, f"{number!r} after {self._merged!r}", advice))
        self._add_to_weights(number, 1)
        self._merged, self._is_active = number, False
        return self.model

    def unmerge(self) -> None:
        """Subtract the merged adapter from the weights of the network."""
        if self._merged is not None:
            self._add_to_weights(self._merged, -1)
            self._merged, self._is_active = None, True

    @torch.no_grad()
    def _add_to_weights(self, number: int, sign: int) -> None:
        for name in self.layers:
            weight = _weight(self.model.get_submodule(name))
            change = self.up[_key(name)][number] @ self.down[_key(name)][number]
            weight += (sign * self.scaling * change).to(weight.dtype)

    def _adapted(self, key: str, layer: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if not self._is_active:
            return output
        (inputs,), down, up, numbers = given[:1], self.down[key], self.up[key], self._numbers
        groups = self.n_hypotheses if numbers is None else len(numbers)
        if len(inputs) % groups:
            rule = f"have a multiple of {groups} rows, one group per hypothesis"
            advice = "Call the bank, which repeats rows, or use bank.disabled() for the network alone."
            raise ValueError(bad_value("AdapterBank", "inputs", rule, tuple(inputs.shape), advice))
        if numbers is not None:
            down, up = down[numbers], up[numbers]
        if self.dropout:
            inputs = nn.functional.dropout(inputs, self.dropout, self.training)
        inner = torch.bmm(inputs.reshape(groups, -1, inputs.shape[-1]), down.to(inputs.dtype).mT)
        flat = output.reshape(groups, -1, output.shape[-1])
        return torch.baddbmm(flat, inner, up.to(inner.dtype).mT, alpha=self.scaling).view(output.shape)


def _key(name: str) -> str:
    return name.replace(".", "/")  # a parameter must not have a dot in its name


def _weight(layer: Any) -> Tensor:
    """Return the weight [out_features, in_features]; that of a `Conv1D` is stored transposed."""
    weight: Tensor = layer.weight if isinstance(layer, nn.Linear) else layer.weight.mT
    return weight


def _chosen(model: nn.Module, targets: str | Sequence[str]) -> list[str]:
    """Return the complete names of the adapted layers."""
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) or _is_conv1d(module)]
    if isinstance(targets, str):
        chosen = [name for name in linear if re.fullmatch(targets, name)]
        unused = [] if chosen else [targets]
    else:
        chosen = [name for name in linear if any(name == part or name.endswith(f".{part}") for part in targets)]
        unused = [part for part in targets if not any(name == part or name.endswith(f".{part}") for name in chosen)]
    if unused or not chosen:
        known = sorted({re.sub(r".*\.(?!\d+$)", "", name) for name in linear})
        rule = f"name linear layers of the model, such as {known[:12]}"
        raise ValueError(bad_value("AdapterBank", "targets", rule, repr(unused or targets)))
    return chosen


def _is_conv1d(module: nn.Module) -> bool:
    return type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers.")
