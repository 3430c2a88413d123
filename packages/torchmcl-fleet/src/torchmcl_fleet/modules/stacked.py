"""Stacked modules of the same structure: parameters as rows of a matrix, and a batched forward pass."""

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase

from torchmcl import Distributions, Predictions, checks
from torchmcl.errors import bad_value
from torchmcl_fleet.modules.layers import (
    Stackable,
    StackedLinear,
    formula_of_attention,
    has_global_hooks,
    is_feed_forward,
    rectified_weights,
    without_cudnn,
)

__all__ = [
    "FleetModels",
    "KeptModels",
    "StackedModules",
    "build_modules",
    "checked_predictions",
    "gradients_of",
    "or_zeros",
    "random_numbers_apart",
    "replace_where",
    "runs_of",
    "seed_generators",
]

_ONE_GENERATOR = threading.Lock()


@contextmanager
def random_numbers_apart() -> Iterator[None]:
    """Preserve the state of torch's generators, under a lock: other threads must not draw from them."""
    with _ONE_GENERATOR, torch.random.fork_rng(devices=range(_n_cuda_generators())):
        yield


def seed_generators(seed: int) -> None:
    """Seed torch's generators inside `random_numbers_apart`.

    `torch.manual_seed` would also set the seed of CUDA if it is not initialized yet, which cannot be undone.
    """
    torch.default_generator.manual_seed(seed)
    if _n_cuda_generators():
        torch.cuda.manual_seed_all(seed)


def _n_cuda_generators() -> int:
    return torch.cuda.device_count() if torch.cuda.is_initialized() else 0


def build_modules(factory: Callable[[], nn.Module], seeds: Sequence[int]) -> list[nn.Module]:
    """Return one module per seed, as `torch.manual_seed(seed); factory()` would create it.

    Raises:
        TypeError: If the factory is not a function that returns a module.
    """
    checks.check_callable("Fleet", "module_factory", factory, "lambda: MultiHypothesisMLP(6, 1, 5)")
    if isinstance(factory, nn.Module):
        rule, advice = (
            "be a function that builds a module, not a module",
            "For example lambda: MultiHypothesisMLP(6, 1, 5).",
        )
        raise TypeError(bad_value("Fleet", "module_factory", rule, type(factory).__name__, advice))
    modules = []
    with random_numbers_apart():
        for seed in seeds:
            seed_generators(seed)
            module = factory()
            if not isinstance(module, nn.Module):
                rule = "return a torch.nn.Module"
                raise TypeError(bad_value("Fleet", "module_factory", rule, type(module).__name__))
            modules.append(module)
    return modules


class StackedModules:
    """State of several models, and their common forward pass.

    The parameters are rows of one matrix [models, parameters], so that optimizers and checkpoints need only a handful
    of operations for any number of layers; the tensors of the layers are views of the matrix. Buffers, such as the
    statistics of BatchNorm, have a leading axis of models as well. A forward pass does not change them: `take_buffers`
    stores the new values for the models that complete the step.

    Args:
        made: Module of this structure; it is copied and never run, because a forward pass may change a module.
        flat: Parameters, [models, parameters].
        buffers: Buffers by name, [models, ...] each.
    """

    def __init__(self, made: nn.Module, flat: Tensor, buffers: dict[str, Tensor]) -> None:
        self._made = made
        self.template = without_cudnn(copy.deepcopy(made))
        self.flat = flat
        self.buffers = buffers
        self.shapes = {name: parameter.shape for name, parameter in made.named_parameters()}
        # detach() shares the memory, so that updating the matrix updates the leaves.
        self.views = {
            name: view.detach().requires_grad_(made.get_parameter(name).requires_grad)
            for name, view in self.split(flat).items()
        }
        self._feed_forward = is_feed_forward(made)
        self._rectified = [self.views[name] for name in rectified_weights(made)] if self._feed_forward else []
        self._forward = torch.vmap(self._forward_one, randomness="different")
        self._next_buffers: dict[str, Tensor] = {}
        self._kind: type[Any] = Predictions  # or Distributions, as in the last forward pass
        self._idle: list[bool] = []
        self._without_gradient([not view.requires_grad for view in self.views.values()])

    @classmethod
    def of(cls, modules: Sequence[nn.Module]) -> "StackedModules":
        """Stack modules that have the same structure, see `torchmcl_fleet.modules.checks.check_stackable`."""
        rows = [torch.cat([p.detach().reshape(-1) for p in module.parameters()]) for module in modules]
        columns = [dict(module.named_buffers()) for module in modules]
        buffers = {name: torch.stack([column[name].detach() for column in columns]) for name in columns[0]}
        return cls(copy.deepcopy(modules[0]), torch.stack(rows), buffers)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy by the constructor's arguments: the views must share the memory of the new matrix."""
        return StackedModules, (self._made, self.flat, self.buffers)

    def __len__(self) -> int:
        """Return the number of models."""
        return len(self.flat)

    def __call__(self, inputs: Tensor) -> Predictions:
        """Return the predictions of the models for inputs [models, batch, ...]."""
        if self.is_plain() and inputs.ndim == 3:
            with StackedLinear(self._rectified):
                return checked_predictions(functional_call(self.template, self.views, (inputs,)))
        buffers = {name: buffer.clone() for name, buffer in self.buffers.items()}
        with Stackable(), formula_of_attention():
            predictions, self._next_buffers = self._forward(self.views, buffers, inputs)
        return checked_predictions(self._kind(**dict.fromkeys(self._kind._fields) | predictions))

    @property
    def state(self) -> dict[str, Tensor]:
        """Tensors of the models that training changes, with a leading axis of models."""
        return {"flat": self.flat, **{f"buffer.{name}": buffer for name, buffer in self.buffers.items()}}

    @torch.no_grad()
    def take_buffers(self, models: Tensor) -> None:
        """Store the buffers after the last forward pass, for the selected models [models]."""
        for name, new in self._next_buffers.items():
            replace_where(models, self.buffers[name], new.detach())
        self._next_buffers = {}

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views [models, ...] of a matrix like `flat`, one per parameter."""
        parts = flat.split([shape.numel() for shape in self.shapes.values()], dim=1)
        return {
            name: part.view(len(part), *shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def subset(
        self, rows: slice, device: torch.device, *, copy_rows: bool = False, dtype: torch.dtype | None = None
    ) -> "StackedModules":
        """Return a slice of the models on `device`; they share memory only if no tensor had to be copied."""
        flat = self.flat[rows].to(device, dtype)
        buffers = {
            name: buffer[rows].to(device, dtype if buffer.is_floating_point() else None, copy=copy_rows)
            for name, buffer in self.buffers.items()
        }
        same = (flat.device, flat.dtype) == (self.flat.device, self.flat.dtype)
        made = self._made if same else copy.deepcopy(self._made).to(device, dtype)
        return StackedModules(made, flat.clone() if copy_rows else flat, buffers)

    def untrained(self) -> Tensor | None:
        """Return a mask of the columns of `flat` without a gradient (frozen or unused); None if all have one."""
        return self._untrained

    def _without_gradient(self, idle: list[bool]) -> None:
        if idle == self._idle:
            return
        columns = [torch.full((view[0].numel(),), i) for view, i in zip(self.views.values(), idle, strict=True)]
        self._untrained = torch.cat(columns).to(self.flat.device) if any(idle) else None
        self._idle = idle

    def is_plain(self) -> bool:
        """Return whether the models consist only of linear layers and activations."""
        return self._feed_forward and not has_global_hooks()

    def is_deterministic(self) -> bool:
        """Return whether the forward pass is known to be deterministic."""
        return self.is_plain() and not any(isinstance(part, nn.Dropout) for part in self.template.modules())

    @contextmanager
    def evaluating(self, *, stochastic: bool = False) -> Iterator[None]:
        """Disable dropout and similar layers inside a `with` block.

        Args:
            stochastic: Whether to leave dropout on and put only normalization layers in evaluation mode.
        """
        before = {module: module.training for module in self.template.modules()}
        for module in before:
            if not stochastic or isinstance(module, _NormBase):
                module.training = False
        try:
            yield
        finally:
            for module, training in before.items():
                module.training = training

    def gradient(self, loss: Tensor) -> Tensor:
        """Return the gradient of a scalar as a matrix like `flat`; 0 for parameters without one, see `untrained`."""
        views = list(self.views.values())
        gradients = gradients_of(loss, views)
        self._without_gradient([gradient is None for gradient in gradients])
        return torch.cat([part.reshape(len(self), -1) for part in or_zeros(gradients, views)], dim=1)

    def module(self, index: int) -> nn.Module:
        """Return model `index` as a separate ordinary module."""
        module = copy.deepcopy(self._made)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(self.views[name][index])
            for name, buffer in module.named_buffers():
                buffer.copy_(self.buffers[name][index])
        return module

    def _forward_one(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Tensor) -> Any:
        # One dictionary: `functional_call` writes new buffers of a module into it.
        tensors = {**parameters, **buffers}
        predictions = checked_predictions(functional_call(self.template, tensors, (inputs,)))
        self._kind = type(predictions)
        # torch.vmap returns tensors only
        outputs = {name: part for name, part in predictions._asdict().items() if part is not None}
        return outputs, {name: tensors[name] for name in buffers}


def replace_where(chosen: Tensor, kept: Tensor, new: Tensor) -> None:
    """Write `new` over `kept` [models, ...] for the selected models."""
    if not chosen.is_cuda and not bool(chosen.any()):  # reading a value is free on the CPU, and synchronizes elsewhere
        return
    kept.copy_(torch.where(chosen.view(-1, *[1] * (kept.ndim - 1)), new, kept))


def runs_of(flags: list[bool]) -> list[slice]:
    """Return the runs of consecutive set flags."""
    edges = [i for i, (before, now) in enumerate(zip([False, *flags], [*flags, False], strict=True)) if before != now]
    return [slice(low, high) for low, high in zip(edges[::2], edges[1::2], strict=True)]


def gradients_of(loss: Tensor, leaves: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the gradient of a scalar for each leaf, None for frozen or unused leaves."""
    trained = [leaf for leaf in leaves if leaf.requires_grad]
    gradients = iter(torch.autograd.grad(loss, trained, allow_unused=True))
    return [next(gradients) if leaf.requires_grad else None for leaf in leaves]


def or_zeros(gradients: Sequence[Tensor | None], leaves: Sequence[Tensor]) -> list[Tensor]:
    """Return gradients, with zeros for leaves without a gradient."""
    return [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, gradients, strict=True)]


def checked_predictions(predictions: Any) -> Predictions:
    """Return the output of a module if it is `Predictions`.

    Raises:
        TypeError: If the output is something else.
    """
    if not isinstance(predictions, Predictions | Distributions):
        rule = "build modules that return Predictions"
        raise TypeError(bad_value("Fleet", "module_factory", rule, type(predictions).__name__))
    return cast(Predictions, predictions)  # Distributions have all fields of Predictions


class FleetModels(Sequence[nn.Module]):
    """The models of a fleet as a sequence of ordinary modules."""

    def __init__(self, stacked: StackedModules) -> None:
        self._stacked = stacked

    def __len__(self) -> int:
        """Return the number of models."""
        return len(self._stacked)

    def __getitem__(self, index: Any) -> Any:
        """Return model `index` as a separate module."""
        if not -len(self) <= index < len(self):
            raise IndexError(bad_value("Fleet.models", "index", f"lie below {len(self)}", index))
        return self._stacked.module(index % len(self))


class KeptModels:
    """Models of a fleet between training runs, on the CPU: the last models, and the best models in validation.

    Args:
        last: Last models.
    """

    def __init__(self, last: StackedModules) -> None:
        self.last = last
        self._best: StackedModules | None = None

    def chosen(self, *, best: bool) -> StackedModules:
        """Return the last or the best models.

        Raises:
            ValueError: If there are no best models.
        """
        if not best:
            return self.last
        if self._best is None:
            rule = "be used after fit(..., validation=...)"
            raise ValueError(bad_value("Fleet", "best", rule, "a fleet that was not validated"))
        return self._best

    def keep_best(self) -> None:
        """Create the best models, initially equal to the last models."""
        self._best = self.last.subset(slice(0, len(self.last)), torch.device("cpu"), copy_rows=True)

    @torch.no_grad()
    def take(self, rows: slice, last: dict[str, Tensor], best: dict[str, Tensor] | None) -> None:
        """Store the trained weights and buffers of a slice of the models."""
        for models, trained in ((self.last, last), (self._best, best)):
            if models is not None and trained is not None:
                for name, kept in models.state.items():
                    kept[rows] = trained[name].to(kept.device)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights and buffers of the last models, and of the best models if there are any."""
        kept = {"last": self.last} | ({} if self._best is None else {"best": self._best})
        return {
            name if part == "flat" else f"{name}.{part}": value
            for name, models in kept.items()
            for part, value in models.state.items()
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Load weights and buffers from `state_dict`.

        Raises:
            ValueError: If they do not match this fleet.
        """
        if "best" in state:
            self.keep_best()
        kept = {name: value for name, value in self.state_dict().items() if "best" in state or name.startswith("last")}
        expected, shapes = ({name: tuple(value.shape) for name, value in part.items()} for part in (kept, state))
        if shapes != expected:
            raise ValueError(bad_value("Fleet", "state", f"contain weights and buffers of shapes {expected}", shapes))
        for name, value in kept.items():
            value.copy_(state[name])
