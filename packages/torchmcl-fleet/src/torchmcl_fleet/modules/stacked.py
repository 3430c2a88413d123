"""Stacked modules of the same structure: parameters as rows of a matrix, and a batched forward pass.

A module that a fleet cannot train exactly is rejected before training. Linear layers and activations are known to be
exact. Other modules are tested: two of the models take two steps, stacked and alone, in double precision, so that
rounding errors are not mistaken for differences.
"""

import copy
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from torchmcl import Distributions, Predictions, checks, io
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
    "N_TRIAL_MODELS",
    "FleetModels",
    "KeptModels",
    "StackedModules",
    "build_modules",
    "check_as_alone",
    "check_input_type",
    "check_rows_apart",
    "check_stackable",
    "checked_predictions",
    "gradients_of",
    "or_zeros",
    "random_numbers_apart",
    "replace_where",
    "runs_of",
    "seed_generators",
    "try_rows",
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
    stores the new values for the models that complete the step. Calls from several threads wait for each other, because
    parameters and training mode are attributes of one template.

    Args:
        made: Module of this structure; it is copied and never run, because a forward pass may change a module.
        flat: Parameters, [models, parameters].
        buffers: Buffers by name, [models, ...] each.
    """

    def __init__(self, made: nn.Module, flat: Tensor, buffers: dict[str, Tensor]) -> None:
        self._made = made
        self._lock = threading.RLock()
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
        """Stack modules that have the same structure, see `torchmcl_fleet.modules.stacked.check_stackable`."""
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
            with self._lock, StackedLinear(self._rectified):
                return checked_predictions(functional_call(self.template, self.views, (inputs,)))
        buffers = {name: buffer.clone() for name, buffer in self.buffers.items()}
        with self._lock, Stackable(), formula_of_attention():
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
        with self._lock:
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
        self.in_training = False  # in training, the current weights are elsewhere
        self._best: StackedModules | None = None

    def chosen(self, *, best: bool) -> StackedModules:
        """Return the last or the best models.

        Raises:
            ValueError: If there are no best models.
            RuntimeError: During a training run.
        """
        if self.in_training:
            raise RuntimeError("Fleet: the weights are not current during `fit`. Use `info.stacked` in `after_epoch`.")
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
        kept = {"last": self.chosen(best=False)} | ({} if self._best is None else {"best": self._best})
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


# Number of models, rows and steps of a trial.
N_TRIAL_MODELS, _N_ROWS, _N_STEPS = 2, 8, 2


def check_stackable(modules: Sequence[nn.Module]) -> None:
    """Check that modules differ only in the values of their parameters and buffers, and can be stacked.

    Raises:
        ValueError: If the modules cannot be stacked; the message contains the reason.
    """
    first = modules[0]
    if (reason := _why_not_stackable(first)) is not None:
        raise _refused(first, reason)
    structures = [io.described(module, key="") for module in modules]
    for number, module in enumerate(modules):
        if structures[number] != structures[0]:
            advice = "put values that differ between models into buffers with register_buffer"
            raise _refused(module, f"model {number} differs from model 0 in more than parameters and buffers: {advice}")


def _why_not_stackable(module: nn.Module) -> str | None:
    """Return the reason why copies of a module cannot be trained on a leading axis, or None."""
    parameters = dict(module.named_parameters())
    if lazy := sorted(name for name, tensor in parameters.items() if is_lazy(tensor)):
        return f"{lazy} are lazy parameters: call the module once on a row of inputs before you return it"
    if not any(parameter.requires_grad for parameter in parameters.values()):
        return "no parameter requires a gradient"
    kinds = {(parameter.dtype, parameter.device) for parameter in parameters.values()}
    if len(kinds) > 1 or next(iter(kinds))[0] not in (torch.float32, torch.float64):
        return "its parameters are not all float32 or all float64 on one device"
    if hooked := _with_gradient_hook(module):
        return f"{hooked!r} has a gradient hook, and stacked models share one gradient"
    if closure := _closure_over_parts(module):
        return f"{closure!r} closes over a part of the module: use the module passed to the hook, or `self`, instead"
    try:
        copy.deepcopy(module)
    except RuntimeError as error:
        return f"copy.deepcopy cannot copy it ({error}): use torch.nn.utils.parametrizations for weight norms"
    return None


def _with_gradient_hook(module: nn.Module) -> str | None:
    """Return the name of a submodule or parameter with a gradient hook; None if there is none."""
    for name, tensor in module.named_parameters():
        if tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
            return name
    parts = module.named_modules()
    return next(
        (name or "the module" for name, part in parts if part._backward_hooks or part._backward_pre_hooks), None
    )


def _closure_over_parts(module: nn.Module) -> str | None:
    """Return the name of a function or hook that, in a copy of the module, would still use the original; else None."""
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            for function in value.values() if name.endswith("_hooks") else [value]:
                cells = (function.__closure__ or ()) if isinstance(function, types.FunctionType) else ()
                values = [getattr(cell.cell_contents, "__self__", cell.cell_contents) for cell in cells]
                if any(isinstance(value, nn.Module | Tensor) for value in values):
                    return f"{prefix}.{name}".lstrip(".")
    return None


def try_rows(owner: str, name: str, models: StackedModules, inputs: Tensor) -> Predictions:
    """Return the predictions of the first model for a few rows.

    Args:
        owner: Name of the calling function in error messages.
        name: Name of the rows in error messages.
        models: Stacked models.
        inputs: Inputs, [models, rows, ...].

    Raises:
        TypeError: If the inputs differ in dtype from the parameters, and the model does not accept them.
    """
    module, rows = models.module(0).eval(), inputs[0, :_N_ROWS].to(models.flat.device)
    try:
        with torch.no_grad(), random_numbers_apart():
            return checked_predictions(module(rows))
    except RuntimeError as error:
        wanted = models.flat.dtype
        if not rows.is_floating_point() or rows.dtype == wanted:
            raise
        rule = f"have inputs of the dtype of the models, {wanted}"
        advice = f"Convert the inputs, inputs.to({wanted}), or the models, module.to({rows.dtype})."
        raise TypeError(bad_value(owner, name, rule, rows.dtype, advice)) from error


def check_input_type(owner: str, name: str, models: StackedModules, inputs: Tensor) -> None:
    """Check that models accept the dtype of inputs [models, rows, ...]; `name` is their name in error messages."""
    if inputs.is_floating_point() and inputs.dtype != models.flat.dtype:
        try_rows(owner, name, models, inputs)


def check_as_alone(models: StackedModules, inputs: Tensor) -> None:
    """Check on a few rows that stacked models and single models give the same results.

    Args:
        models: Models of the training run.
        inputs: Inputs of the first models, [models, rows, ...].

    Raises:
        ValueError: If they behave differently when stacked, or cannot be stacked.
    """
    if models.is_plain() and inputs.ndim == 3:
        return
    inputs = inputs[:N_TRIAL_MODELS, :_N_ROWS].to(models.flat.device)
    some, inputs = _in_double(models.subset(slice(0, len(inputs)), models.flat.device, copy_rows=True), inputs)
    for training in (True, False):
        alone = [_alone(some, i, inputs[i], training=training) for i in range(len(inputs))]
        try:
            stacked = _stacked(some, inputs, training=training)
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            reason = f"torch.vmap cannot run it: {str(error).strip().splitlines()[0]}"
            raise _refused(some.template, reason) from error
        for one, other in zip(alone, stacked, strict=True):
            # Stacked models draw other random numbers than single ones, from the same distribution.
            if not one.is_random and (what := _difference(one, other)) is not None:
                raise _refused(some.template, f"its {what} differ between stacked models and single ones")


def check_rows_apart(
    owner: str, name: str, models: StackedModules, inputs: Tensor, lengths: Tensor, *, training: bool
) -> None:
    """Check that predictions for a row do not depend on other rows if the sets differ in length.

    The sets are padded to the same length; BatchNorm, for example, would treat the padding as rows.

    Args:
        owner: Name of the calling function in error messages.
        name: Name of the rows in error messages.
        models: Models that are applied to the rows.
        inputs: Inputs of the longest set, [rows, ...].
        lengths: Number of rows of each model, [models].
        training: Whether the models train on the rows.

    Raises:
        ValueError: If the sets differ in length and the rows of a batch depend on one another.
    """
    if bool((lengths == lengths[0]).all()) or (models.is_plain() and inputs.ndim == 2):
        return
    rows = inputs[:_N_ROWS].to(models.flat.device)
    some, (rows,) = _in_double(models.subset(slice(0, 1), models.flat.device, copy_rows=True), rows.unsqueeze(0))
    other = rows.clone()
    other[-1] = rows[-1] + 1 if rows.is_floating_point() else rows[0]
    left, right = (_alone(some, 0, batch, training=training) for batch in (rows, other))
    same = _all_close([part[:-1] for part in left.outputs], [part[:-1] for part in right.outputs])
    if not same or not _all_close(left.buffers, right.buffers):
        rule = "have sets of equal length if the models make the rows of a batch depend on one another"
        advice = "Train a fleet for each length, or normalize each row separately, for example with LayerNorm."
        raise ValueError(bad_value(owner, name, rule, f"lengths {lengths.unique().tolist()}", advice))


class _Trial(NamedTuple):
    """Results of a model over a few steps on the same rows.

    Attributes:
        outputs: Flattened predictions of each step, [rows, values].
        gradients: Gradients of each step, [parameters].
        buffers: Buffers after the last step.
        is_random: Whether random numbers were drawn.
    """

    outputs: list[Tensor]
    gradients: list[Tensor]
    buffers: list[Tensor]
    is_random: bool = False


def _alone(some: StackedModules, index: int, inputs: Tensor, *, training: bool) -> _Trial:
    module, fresh = (some.module(index) if training else some.module(index).eval() for _ in range(2))
    attributes = _attributes(module)
    outputs, gradients = [], []
    with random_numbers_apart():
        seed_generators(0)
        before = torch.get_rng_state()
        for _ in range(_N_STEPS):
            for buffer, value in zip(fresh.buffers(), module.buffers(), strict=False):
                buffer.copy_(value)
            numbers = _numbers(checked_predictions(module(inputs)), len(inputs))
            if training:
                parameters = list(module.parameters())
                slopes = gradients_of((numbers * _slopes(numbers)).sum(), parameters)
                gradients.append(torch.cat([part.flatten() for part in or_zeros(slopes, parameters)]))
            outputs.append(numbers.detach())
        is_random = not torch.equal(before, torch.get_rng_state())
        with torch.no_grad():
            again = _numbers(checked_predictions(fresh(inputs)), len(inputs))
    if _attributes(module) != attributes or not (is_random or _close(outputs[-1], again)):
        raise _refused(module, "its forward pass changes values outside of buffers: store them with register_buffer")
    return _Trial(outputs, gradients, list(module.buffers()), is_random)


def _stacked(some: StackedModules, inputs: Tensor, *, training: bool) -> list[_Trial]:
    some = some.subset(slice(0, len(some)), some.flat.device, copy_rows=True)
    outputs, gradients = [], []
    with random_numbers_apart(), nullcontext() if training else some.evaluating():
        for _ in range(_N_STEPS):
            numbers = _numbers(some(inputs), *inputs.shape[:2])
            if training:
                gradients.append(some.gradient((numbers * _slopes(numbers)).sum()))
                some.take_buffers(torch.ones(len(some), dtype=torch.bool, device=inputs.device))
            outputs.append(numbers.detach())
    return [
        _Trial([part[i] for part in outputs], [part[i] for part in gradients], list(some.module(i).buffers()))
        for i in range(len(some))
    ]


def _difference(alone: _Trial, stacked: _Trial) -> str | None:
    """Return the name of the results that differ."""
    names = ("outputs", "gradients", "buffers")
    return next((name for name in names if not _all_close(getattr(alone, name), getattr(stacked, name))), None)


def _in_double(models: StackedModules, inputs: Tensor) -> tuple[StackedModules, Tensor]:
    """Return models and inputs [models, rows, ...] in double precision if supported, unchanged otherwise."""
    double = models.subset(slice(0, len(models)), models.flat.device, copy_rows=True, dtype=torch.float64)
    wide = inputs.double() if inputs.is_floating_point() else inputs
    try:
        with torch.no_grad(), random_numbers_apart():
            double.module(0)(wide[0])
    except RuntimeError:  # a module with a hard-coded dtype
        return models, inputs.to(models.flat.dtype) if inputs.is_floating_point() else inputs
    return double, wide


def _numbers(predictions: Predictions, *sizes: int) -> Tensor:
    """Return all predictions as [*sizes, values]; `sizes` are the axes of the rows, or of the models and rows."""
    return torch.cat([part.reshape(*sizes, -1) for part in predictions if part is not None], dim=-1)


def _slopes(numbers: Tensor) -> Tensor:
    """Return distinct factors, so that differences do not cancel in a sum."""
    return torch.linspace(0.5, 1.5, numbers.shape[-1]).to(numbers)


def _close(left: Tensor, right: Tensor) -> bool:
    if left.shape != right.shape:
        return False
    if not left.is_floating_point():
        return torch.equal(left, right)
    tolerance = 1e-6 if left.dtype == torch.float64 else 10 * torch.finfo(left.dtype).eps ** 0.5
    scale = max(1.0, float(left.nan_to_num(0.0, 0.0, 0.0).abs().amax())) if left.numel() else 1.0
    return torch.allclose(left, right.to(left.dtype), rtol=0, atol=tolerance * scale, equal_nan=True)


def _all_close(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    return len(left) == len(right) and all(map(_close, left, right))


def _attributes(module: nn.Module) -> list[Any]:
    """Return all attributes of submodules that are plain values."""
    kinds = bool | int | float | str | None
    return [value for part in module.modules() for value in vars(part).values() if isinstance(value, kinds)]


def _refused(module: nn.Module, reason: str) -> ValueError:
    """Return the error for a module that a fleet cannot train exactly."""
    rule, advice = "build modules that can be trained exactly when stacked", "Or train it alone with mcl_step."
    return ValueError(bad_value("Fleet", "module_factory", rule, f"{type(module).__name__}: {reason}", advice))
