"""Which modules can be stacked: what the fleet could not do as each of them alone is refused before it begins."""

import copy
import functools
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from torchmcl._checks import bad_value
from torchmcl.fleet.identity import contents_of, described, own_attributes

__all__ = ["check_no_backward_hooks", "check_stackable", "refuse"]


def check_stackable(modules: Sequence[nn.Module]) -> None:
    """Check that modules differ in nothing but the values of their parameters and buffers, and can be stacked.

    Raises:
        ValueError: if they differ, have no parameter to train, or parameters of several types.
        TypeError: if their parameters are lazy, or have something attached that stacked ones would not have, or they
            have recurrent layers.
    """
    if lazy := sorted({name for module in modules for name, tensor in _tensors(module) if is_lazy(tensor)}):
        advice = "Call the module once on a row of inputs before you return it."
        refuse(TypeError, "make modules whose sizes are known", f"lazy parameters {lazy}", advice)
    first = modules[0]
    _check_layers(first)
    _check_parameters(first)
    _check_hooks(first)
    _check_functions(first)
    shapes = [{name: tuple(p.shape) for name, p in module.named_parameters()} for module in modules]
    if odd := next((i for i, own in enumerate(shapes) if own != shapes[0]), None):
        got = f"{shapes[0]} for model 0 and {shapes[odd]} for model {odd}"
        refuse(ValueError, "make modules of one shape", got)
    try:
        copy.deepcopy(first)
    except RuntimeError as error:
        advice = "Use torch.nn.utils.parametrizations instead of torch.nn.utils.weight_norm and spectral_norm."
        refuse(TypeError, "make modules that copy.deepcopy can copy", f"{_one_line(first)}: {error}", advice, error)
    structure = described(first)
    if odd := next((i for i, module in enumerate(modules) if described(module) != structure), None):
        advice = "Keep what differs in a buffer: register_buffer."
        got = f"{_one_line(first)} for model 0 and {_one_line(modules[odd])} for model {odd}"
        refuse(ValueError, "make modules that differ in their parameters and buffers alone", got, advice)


def check_no_backward_hooks() -> None:
    """Check that no hook of all modules waits for gradients, which stacked modules do not pass through it."""
    if nn.modules.module._global_backward_hooks or nn.modules.module._global_backward_pre_hooks:
        rule = "be called without global backward hooks"
        raise TypeError(bad_value("Fleet.fit", "data", rule, "some", "Remove them, or train with mcl_step."))


def _check_layers(module: nn.Module) -> None:
    """Check that torch can compute all layers for several models at once."""
    for name, part in module.named_modules():
        if isinstance(part, nn.RNNBase | nn.LSTMCell):
            rule = "make modules without recurrent layers of torch, which torch.vmap does not support"
            advice = "Train it with mcl_step in a loop of your own."
            refuse(TypeError, rule, f"nn.{type(part).__name__} at {name!r}", advice)


def _check_parameters(module: nn.Module) -> None:
    parameters = dict(module.named_parameters())
    if not any(parameter.requires_grad for parameter in parameters.values()):
        got = f"{_one_line(module)} with {len(parameters)} parameters, none of which requires a gradient"
        refuse(ValueError, "make modules with a parameter to train", got)
    kinds = {(str(parameter.dtype), str(parameter.device)) for parameter in parameters.values()}
    if len(kinds) > 1:
        refuse(ValueError, "make modules with parameters of one type on one device", sorted(kinds))
    if not next(iter(parameters.values())).is_floating_point():
        refuse(ValueError, "make modules with floating parameters", sorted(kinds))


def _check_hooks(module: nn.Module) -> None:
    """Check that nobody waits for gradients of the parameters or modules: stacked ones have one gradient together."""
    advice = "Remove the hook, or train with mcl_step."
    for name, tensor in _tensors(module):
        if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
            refuse(TypeError, "make modules without gradient hooks", f"one on the parameter {name!r}", advice)
    for name, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            got = f"one on {name!r}" if name else "one on the module"
            refuse(TypeError, "make modules without backward hooks", got, advice)


def _check_functions(module: nn.Module) -> None:
    """Check that no function closes over a part of its module: in a copy it would still use that of the original."""
    parts = {id(part) for part in (*module.modules(), *module.parameters(), *module.buffers())}
    for prefix, part in module.named_modules():
        hooks = {name: value for name, value in vars(part).items() if name.endswith("_hooks")}
        for name, value in (own_attributes(part) | hooks).items():
            if _reaches(value, parts, in_function=False):
                got = f"{f'{prefix}.{name}'.lstrip('.')!r}, which does"
                advice = "A hook is called with its module, and a method of a class with `self`."
                refuse(TypeError, "make modules whose functions do not close over parts of them", got, advice)


def _reaches(value: Any, parts: set[int], *, in_function: bool) -> bool:
    """Return whether a function in a value closes over one of the parts."""
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


def refuse(kind: type[Exception], rule: str, got: object, advice: str = "", cause: BaseException | None = None) -> None:
    """Raise the error about a module that cannot be in a fleet."""
    raise kind(bad_value("Fleet", "module_factory", rule, got, advice)) from cause
