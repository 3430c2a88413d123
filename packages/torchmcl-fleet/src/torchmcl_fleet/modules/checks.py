"""Checks of modules: a module that a fleet cannot train exactly is rejected before training.

Linear layers and activations are known to be exact. Other modules are tested before training: two of the models take
two steps, stacked and alone, in double precision, so that rounding errors are not mistaken for differences.
"""

import copy
import types
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from torchmcl import Predictions, io
from torchmcl.errors import bad_value
from torchmcl_fleet.modules.stacked import (
    StackedModules,
    checked_predictions,
    gradients_of,
    or_zeros,
    random_numbers_apart,
    seed_generators,
)

__all__ = ["N_TRIAL_MODELS", "check_as_alone", "check_input_type", "check_rows_apart", "check_stackable", "try_rows"]

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
