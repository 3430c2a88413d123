"""Many modules of one shape as one: their parameters in a matrix, a row each, and one batched forward pass."""

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from torchmcl._checks import bad_value
from torchmcl.fleet.linear import StackedLinear, is_feed_forward, rectified_weights
from torchmcl.types import Predictions

__all__ = ["FleetModels", "StackedModules", "build_modules", "random_numbers_apart"]

_ONE_GENERATOR = threading.Lock()


@contextmanager
def random_numbers_apart() -> Iterator[None]:
    """Leave torch's one generator as it was, and to nobody else meanwhile: threads must not draw from it in turn."""
    with _ONE_GENERATOR, torch.random.fork_rng(devices=[]):
        yield


def build_modules(factory: Callable[[], nn.Module], seeds: Sequence[int]) -> list[nn.Module]:
    """Return one module for each seed, as `torch.manual_seed(seed); factory()` would make it."""
    modules = []
    with random_numbers_apart():
        for seed in seeds:
            torch.manual_seed(seed)
            module = factory()
            if not isinstance(module, nn.Module):
                rule = "return a torch.nn.Module"
                raise TypeError(bad_value("Fleet", "module_factory", rule, type(module).__name__))
            modules.append(module)
    return modules


class StackedModules:
    """The parameters of n models as rows of one matrix [models, parameters], and their common forward pass.

    A single matrix lets the optimiser, checkpoints and the best-so-far copy work in a handful of
    operations, whatever the number of layers. The per-layer tensors are views of it.
    """

    def __init__(self, template: nn.Module, flat: Tensor, buffers: dict[str, Tensor]) -> None:
        self.template = template
        self.flat = flat
        self.buffers = buffers
        self.shapes = {name: parameter.shape for name, parameter in template.named_parameters()}
        # detach() shares the memory, so that updating the matrix updates the leaves.
        self.views = {
            name: view.detach().requires_grad_(template.get_parameter(name).requires_grad)
            for name, view in self.split(flat).items()
        }
        self._feed_forward = is_feed_forward(template)
        self._rectified = [self.views[name] for name in rectified_weights(template)]
        self._forward = torch.vmap(self._forward_one, randomness="different")

    @classmethod
    def of(cls, modules: Sequence[nn.Module]) -> "StackedModules":
        """Stack modules that have the same structure.

        Raises:
            ValueError: if their parameters differ in name or shape.
        """
        shapes = [{name: tuple(p.shape) for name, p in module.named_parameters()} for module in modules]
        if odd := next((i for i, own in enumerate(shapes) if own != shapes[0]), None):
            rule = "make modules of one shape"
            got = f"{shapes[0]} for model 0 and {shapes[odd]} for model {odd}"
            raise ValueError(bad_value("Fleet", "module_factory", rule, got))
        rows = [torch.cat([p.detach().reshape(-1) for p in module.parameters()]) for module in modules]
        buffers = {
            name: torch.stack([dict(module.named_buffers())[name] for module in modules])
            for name, _ in modules[0].named_buffers()
        }
        return cls(copy.deepcopy(modules[0]), torch.stack(rows), buffers)

    def __len__(self) -> int:
        """Return the number of models."""
        return len(self.flat)

    def __call__(self, inputs: Tensor) -> Predictions:
        """Return the predictions of the models for inputs [models, batch, ...]."""
        if self._feed_forward and inputs.ndim == 3:
            with StackedLinear(self._rectified):
                return _checked(functional_call(self.template, self.views, (inputs,)))
        return Predictions(*self._forward(self.views, self.buffers, inputs))

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Return a matrix like `flat` as views [models, ...], one for each parameter."""
        parts = flat.split([shape.numel() for shape in self.shapes.values()], dim=1)
        return {name: part.unflatten(1, shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def subset(self, rows: slice, device: torch.device, *, copy_rows: bool = False) -> "StackedModules":
        """Return some of the models on `device`; they share memory only if nothing had to move."""
        flat = self.flat[rows].to(device)
        buffers = {name: buffer[rows].to(device, copy=copy_rows) for name, buffer in self.buffers.items()}
        template = copy.deepcopy(self.template).to(device)
        return StackedModules(template, flat.clone() if copy_rows else flat, buffers)

    def is_deterministic(self) -> bool:
        """Return whether the forward pass is known to draw no random numbers."""
        return self._feed_forward and not any(isinstance(part, nn.Dropout) for part in self.template.modules())

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Switch dropout and the like off inside a `with` block."""
        before = {module: module.training for module in self.template.modules()}
        self.template.eval()
        try:
            yield
        finally:
            for module, training in before.items():
                module.training = training

    def gradient(self, loss: Tensor) -> Tensor:
        """Return the gradient of a scalar as a matrix like `flat`; unused parameters have gradient 0."""
        leaves = list(self.views.values())
        trained = [leaf for leaf in leaves if leaf.requires_grad]
        found = iter(torch.autograd.grad(loss, trained, allow_unused=True))
        gradients = [next(found) if leaf.requires_grad else None for leaf in leaves]
        parts = [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, gradients, strict=True)]
        return torch.cat([part.reshape(len(self), -1) for part in parts], dim=1)

    def module(self, index: int) -> nn.Module:
        """Return model `index` as an ordinary module of its own."""
        module = copy.deepcopy(self.template)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(self.views[name][index])
            for name, buffer in module.named_buffers():
                buffer.copy_(self.buffers[name][index])
        return module

    def _forward_one(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Tensor) -> Any:
        predictions = _checked(functional_call(self.template, (parameters, buffers), (inputs,)))
        return tuple(part for part in predictions if part is not None)  # torch.vmap hands on tensors only


def _checked(predictions: Any) -> Predictions:
    if not isinstance(predictions, Predictions):
        rule = "make modules that return Predictions"
        raise TypeError(bad_value("Fleet", "module_factory", rule, type(predictions).__name__))
    return predictions


class FleetModels:
    """The models of a fleet as a sequence of ordinary modules."""

    def __init__(self, stacked: StackedModules) -> None:
        self._stacked = stacked

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._stacked)

    def __getitem__(self, index: int) -> nn.Module:
        """Return model `index` as a module of its own."""
        if not -len(self) <= index < len(self):
            raise IndexError(bad_value("Fleet.models", "index", f"lie below {len(self)}", index))
        return self._stacked.module(index % len(self))

    def __iter__(self) -> Iterator[nn.Module]:
        """Go through the models."""
        return (self[index] for index in range(len(self)))
