"""Checks of modules: a module that a fleet cannot train exactly is rejected before training.

Known obstacles (lazy parameters, gradient hooks) are reported by the constructor. Linear layers and
activations are known to be exact. Other modules are tested: two of the models take two steps
stacked and alone before training, in double precision, so that rounding is not mistaken for a difference.
"""

import copy
import functools
import types
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from torchmcl import Predictions
from torchmcl.errors import bad_value
from torchmcl.io.identity import contents_of, described, module_attributes
from torchmcl_fleet.data import FleetData
from torchmcl_fleet.models import (
    StackedModules,
    checked_predictions,
    gradients_of,
    or_zeros,
    random_numbers_apart,
    seed_generators,
)

_N_ROWS, _N_MODELS, _N_STEPS = 8, 2, 2
_ALONE = "Train it with mcl_step in a loop of your own."


def check_stackable(modules: Sequence[nn.Module]) -> None:
    """Check that modules differ only in the values of their parameters and buffers, and can be stacked.

    Raises:
        ValueError: if they differ, have no parameter to train, or parameters of several types.
        TypeError: if their parameters are lazy or have hooks or attributes that stacking would lose.
    """
    if lazy := sorted({name for module in modules for name, tensor in _tensors(module) if is_lazy(tensor)}):
        advice = "Call the module once on a row of inputs before you return it."
        _refuse(TypeError, "make modules whose sizes are known", f"lazy parameters {lazy}", advice)
    first = modules[0]
    _check_parameters(first)
    _check_hooks(first)
    _check_functions(first)
    shapes = [{name: tuple(p.shape) for name, p in module.named_parameters()} for module in modules]
    if odd := next((i for i, own in enumerate(shapes) if own != shapes[0]), None):
        got = f"{shapes[0]} for model 0 and {shapes[odd]} for model {odd}"
        _refuse(ValueError, "make modules of one shape", got)
    try:
        copy.deepcopy(first)
    except RuntimeError as error:
        advice = "Use torch.nn.utils.parametrizations instead of torch.nn.utils.weight_norm and spectral_norm."
        _refuse(TypeError, "make modules that copy.deepcopy can copy", f"{_one_line(first)}: {error}", advice, error)
    structure = described(first)
    if odd := next((i for i, module in enumerate(modules) if described(module) != structure), None):
        advice = "Store the differing values in a buffer: register_buffer."
        got = f"{_one_line(first)} for model 0 and {_one_line(modules[odd])} for model {odd}"
        _refuse(ValueError, "make modules that differ in their parameters and buffers alone", got, advice)


def _check_parameters(module: nn.Module) -> None:
    parameters = dict(module.named_parameters())
    if not any(parameter.requires_grad for parameter in parameters.values()):
        got = f"{_one_line(module)} with {len(parameters)} parameters, none of which requires a gradient"
        _refuse(ValueError, "make modules with a parameter to train", got)
    kinds = {(str(parameter.dtype), str(parameter.device)) for parameter in parameters.values()}
    if len(kinds) > 1:
        _refuse(ValueError, "make modules with parameters of one type on one device", sorted(kinds))
    if not next(iter(parameters.values())).is_floating_point():
        _refuse(ValueError, "make modules with floating parameters", sorted(kinds))


def _check_hooks(module: nn.Module) -> None:
    """Check that no parameter or module has a gradient hook: stacked models share one gradient."""
    advice = "Remove the hook, or train with mcl_step."
    for name, tensor in _tensors(module):
        if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
            _refuse(TypeError, "make modules without gradient hooks", f"one on the parameter {name!r}", advice)
    for name, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            got = f"one on {name!r}" if name else "one on the module"
            _refuse(TypeError, "make modules without backward hooks", got, advice)


def _check_functions(module: nn.Module) -> None:
    """Check that no function closes over a part of its module: a copy would still use the original part."""
    parts = {id(part) for part in (*module.modules(), *module.parameters(), *module.buffers())}
    for prefix, part in module.named_modules():
        hooks = {name: value for name, value in vars(part).items() if name.endswith("_hooks")}
        for name, value in (module_attributes(part) | hooks).items():
            if _reaches(value, parts, in_function=False):
                got = f"{f'{prefix}.{name}'.lstrip('.')!r}, which does"
                advice = "A hook is called with its module, and a method of a class with `self`."
                _refuse(TypeError, "make modules whose functions do not close over parts of them", got, advice)


def _reaches(value: Any, parts: set[int], *, in_function: bool) -> bool:
    """Return whether a function inside a value closes over one of the parts."""
    if isinstance(value, nn.Module | Tensor):
        return in_function and id(value) in parts
    if isinstance(value, types.FunctionType):
        cells = [contents_of(cell) for cell in value.__closure__ or ()]
        held: Iterable[Any] = [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        in_function = True
    elif isinstance(value, types.MethodType):
        held = (value.__func__, value.__self__)
    elif isinstance(value, functools.partial):
        held = (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, Mapping):
        held = value.values()
    else:
        held = value if isinstance(value, list | tuple | set) else ()
    return any(_reaches(each, parts, in_function=in_function) for each in held)


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def _one_line(module: nn.Module) -> str:
    return " ".join(repr(module).split())


def inspected(models: StackedModules, data: FleetData, validation: FleetData | None) -> tuple[FleetData, int]:
    """Try some rows before training; return rows with weights in the models' dtype, and the number of hypotheses.

    Args:
        models: untrained.
        data: rows to train on.
        validation: rows to validate on.

    Raises:
        TypeError: if the models do not accept the dtype of the rows.
        ValueError: if stacked training would differ from training each model alone.
    """
    if nn.modules.module._global_backward_hooks or nn.modules.module._global_backward_pre_hooks:
        rule = "be called without global backward hooks"  # no gradients of stacked modules reach them
        raise TypeError(bad_value("Fleet.fit", "data", rule, "some", "Remove them, or train with mcl_step."))
    n_hypotheses = _try_rows("data", data, models, training=True)
    if validation is not None:
        _try_rows("validation", validation, models, training=False)
    weights = None if data.weights is None else data.weights.to(models.flat.dtype)
    return data._replace(weights=weights), n_hypotheses


def _try_rows(name: str, data: FleetData, models: StackedModules, *, training: bool) -> int:
    sets = data.set_of_model[:_N_MODELS]
    inputs = data.inputs[sets, : int(data.n_rows[sets].min())].cpu()
    hypotheses = _trial_predictions("Fleet.fit", name, models, inputs).hypotheses
    _check_types(name, data, hypotheses)
    if training:
        check_as_alone(models, inputs)
    check_rows_apart("Fleet.fit", name, models, data, training=training)
    return hypotheses.shape[-2]


def _check_types(name: str, data: FleetData, hypotheses: Tensor) -> None:
    """Check that targets have the dtype of the hypotheses, and weights are numbers."""
    if data.targets.is_floating_point() and data.targets.dtype != hypotheses.dtype:
        rule = f"have targets of the type of the hypotheses, {hypotheses.dtype}"
        advice = f"Convert them: targets.to({hypotheses.dtype})."
        raise TypeError(bad_value("Fleet.fit", name, rule, data.targets.dtype, advice))
    if data.weights is not None and (data.weights.dtype == torch.bool or data.weights.is_complex()):
        raise TypeError(bad_value("Fleet.fit", name, "have weights that are numbers", data.weights.dtype))


def _trial_predictions(owner: str, name: str, models: StackedModules, inputs: Tensor) -> Predictions:
    """Return the predictions of the first model for a few rows of inputs [models, rows, ...], called `name`.

    Raises:
        TypeError: if the inputs differ in dtype from its parameters, and it does not accept them.
    """
    module, rows = models.module(0).eval(), inputs[0, :_N_ROWS].to(models.flat.device)
    try:
        with torch.no_grad(), random_numbers_apart():
            return checked_predictions(module(rows))
    except RuntimeError as error:
        wanted = models.flat.dtype
        if not rows.is_floating_point() or rows.dtype == wanted:
            raise
        rule = f"have inputs of the type of the models, {wanted}"
        advice = f"Convert them, inputs.to({wanted}), or make models of their type, module.to({rows.dtype})."
        raise TypeError(bad_value(owner, name, rule, rows.dtype, advice)) from error


def check_input_type(owner: str, name: str, models: StackedModules, inputs: Tensor) -> None:
    """Check that models accept the dtype of inputs [models, rows, ...], called `name`."""
    if inputs.is_floating_point() and inputs.dtype != models.flat.dtype:
        _trial_predictions(owner, name, models, inputs)


def check_as_alone(models: StackedModules, inputs: Tensor) -> None:
    """Check on a few rows that stacked models give the same results as the single models.

    Args:
        models: of the training.
        inputs: [models, rows, ...] of the first models.

    Raises:
        ValueError: if they behave differently when stacked, or cannot be stacked.
    """
    if models.is_plain() and inputs.ndim == 3:
        return
    inputs = inputs[:_N_MODELS, :_N_ROWS].to(models.flat.device)
    some, inputs = _in_double(models.subset(slice(0, len(inputs)), models.flat.device, copy_rows=True), inputs)
    for training in (True, False):
        alone = [_alone(some, i, inputs[i], training=training) for i in range(len(inputs))]
        try:
            stacked = _stacked(some, inputs, training=training)
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            got = f"{type(some.template).__name__}: {str(error).strip().splitlines()[0]}"
            _refuse(ValueError, "make modules that torch.vmap can run", got, _ALONE, error)
        for own, also in zip(alone, stacked, strict=True):
            _compare(own, also, type(some.template).__name__)


def check_rows_apart(owner: str, name: str, models: StackedModules, data: FleetData, *, training: bool) -> None:
    """Check that predictions for a row do not depend on other rows, if the sets differ in length.

    The sets are padded to the same length, and BatchNorm, for example, would treat padding as rows.

    Args:
        owner: named in messages.
        name: of the rows.
        models: applied to the rows.
        data: the rows.
        training: whether the models train on them.

    Raises:
        ValueError: if the sets differ in length and the rows of a batch depend on one another.
    """
    lengths = data.lengths.unique().tolist()
    if len(lengths) == 1 or (models.is_plain() and data.inputs.ndim == 3):
        return
    rows = data.inputs[int(data.n_rows.argmax()), : min(_N_ROWS, max(lengths))].to(models.flat.device)
    some, (rows,) = _in_double(models.subset(slice(0, 1), models.flat.device, copy_rows=True), rows.unsqueeze(0))
    other = rows.clone()
    other[-1] = rows[-1] + 1 if rows.is_floating_point() else rows[0]
    left, right = (_alone(some, 0, each, training=training) for each in (rows, other))
    same = all(_close(a[:-1], b[:-1]) for a, b in zip(left.outputs, right.outputs, strict=True))
    if not same or not all(_close(left.buffers[each], right.buffers[each]) for each in left.buffers):
        rule = "have sets of one length for models in which the rows of a batch depend on one another"
        advice = "Train a fleet for each length, or normalize each row separately, with LayerNorm for example."
        raise ValueError(bad_value(owner, name, rule, f"lengths {lengths}", advice))


class _Course(NamedTuple):
    """Outputs, gradients and buffers of a model over a few steps on the same rows."""

    outputs: list[Tensor]  # [rows, numbers] of each step
    gradients: list[Tensor]  # [parameters]
    buffers: dict[str, Tensor]
    drew: bool = False  # whether random numbers were drawn


def _alone(some: StackedModules, index: int, inputs: Tensor, *, training: bool) -> _Course:
    module = some.module(index)
    if not training:
        module.eval()
    attributes = _attributes(module)
    outputs, gradients = [], []
    with random_numbers_apart():
        seed_generators(0)
        before = torch.get_rng_state()
        for _ in range(_N_STEPS):
            buffers = [buffer.clone() for buffer in module.buffers()]
            numbers = _numbers(checked_predictions(module(inputs)), len(inputs))
            if training:
                parameters = list(module.parameters())
                found = gradients_of((numbers * _slopes(numbers)).sum(), parameters)
                gradients.append(torch.cat([part.flatten() for part in or_zeros(found, parameters)]))
            outputs.append(numbers.detach())
        drew = not torch.equal(before, torch.get_rng_state())
    rule = "make modules that store changing values in buffers (register_buffer)"
    if changed := sorted(name for name, value in _attributes(module).items() if attributes.get(name) != value):
        _refuse(ValueError, rule, f"{type(module).__name__}, which changes {changed} in its forward pass", _ALONE)
    if not drew and not _close(outputs[-1], _once(some.module(index), module, buffers, inputs)):
        got = f"{type(module).__name__}, whose second call differs from the first by something else"
        _refuse(ValueError, rule, got, _ALONE)
    return _Course(outputs, gradients, dict(module.named_buffers()), drew)


def _once(fresh: nn.Module, used: nn.Module, buffers: list[Tensor], inputs: Tensor) -> Tensor:
    """Return the output of a fresh module, with the given buffers and in the mode of a used module."""
    for part, like in zip(fresh.modules(), used.modules(), strict=True):
        part.training = like.training
    with torch.no_grad(), random_numbers_apart():
        for buffer, value in zip(fresh.buffers(), buffers, strict=False):
            buffer.copy_(value)
        return _numbers(checked_predictions(fresh(inputs)), len(inputs))


def _stacked(some: StackedModules, inputs: Tensor, *, training: bool) -> list[_Course]:
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
        _Course([part[i] for part in outputs], [part[i] for part in gradients], dict(some.module(i).named_buffers()))
        for i in range(len(some))
    ]


def _compare(alone: _Course, stacked: _Course, name: str) -> None:
    rule = "make modules that give the same results alone and stacked"
    if alone.buffers.keys() != stacked.buffers.keys():
        got = f"{name}, which makes {sorted(alone.buffers.keys() ^ stacked.buffers.keys())} when called"
        _refuse(ValueError, "make modules whose buffers are there from the beginning", got, _ALONE)
    if alone.drew:  # stacked models draw different numbers than single ones, from the same distribution
        return
    for what, left, right in (
        ("predictions", alone.outputs, stacked.outputs),
        ("gradients", alone.gradients, stacked.gradients),
        ("buffers", list(alone.buffers.values()), list(stacked.buffers.values())),
    ):
        if not all(_close(a, b) for a, b in zip(left, right, strict=True)):
            _refuse(ValueError, rule, f"{name}, whose {what} differ", _ALONE)


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
    """Return all predictions as [*sizes, numbers]; `sizes` are the axes of the rows, or of models and rows."""
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


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Return the attributes of a module except parameters, buffers and other tensors."""
    return {
        f"{prefix}.{name}".lstrip("."): described(value)
        for prefix, part in module.named_modules()
        for name, value in module_attributes(part).items()
        if not _has_tensor(value)
    }


def _has_tensor(value: Any) -> bool:
    if isinstance(value, dict):
        return any(isinstance(entry, Tensor) for entry in value.values())
    return isinstance(value, Tensor) or (isinstance(value, list | tuple) and any(isinstance(v, Tensor) for v in value))


def _refuse(
    kind: type[Exception], rule: str, got: object, advice: str = "", cause: BaseException | None = None
) -> NoReturn:
    """Raise the error for a module that a fleet cannot train."""
    raise kind(bad_value("Fleet", "module_factory", rule, got, advice)) from cause
