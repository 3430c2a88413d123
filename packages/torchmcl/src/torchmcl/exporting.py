"""Export of networks: torch.export, ONNX, TorchScript and AOTInductor packages.

The file suffix, or an object of a class of this module, determines the format.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils._pytree import tree_leaves, tree_map

from torchmcl.errors import bad_value
from torchmcl.optional import optional_import

__all__ = ["ONNX", "AOTInductor", "ExportForm", "ExportedProgram", "export"]


class ExportForm(ABC):
    """Base class of export formats. Subclasses implement `write`."""

    @abstractmethod
    def write(self, model: nn.Module, path: Path, example: tuple[Any, ...]) -> None:
        """Write a network in evaluation mode.

        Args:
            model: Network.
            path: Path of the file.
            example: Example inputs: tensors, or nested tuples and dictionaries of tensors.
        """


@dataclass(frozen=True)
class ExportedProgram(ExportForm):
    """Graph of torch operations, for `torch.export.load` without the class of the model; suffix ".pt2"."""

    def write(self, model: nn.Module, path: Path, example: tuple[Any, ...]) -> None:
        """Write the program."""
        torch.export.save(_program(model, example), path)


@dataclass(frozen=True)
class ONNX(ExportForm):
    """ONNX graph, for runtimes without PyTorch; suffix ".onnx".

    A module with custom operators has a method `onnx_translations`, operator -> function that creates the nodes.

    Attributes:
        opset: Version of the ONNX operator set.
    """

    opset: int = 18

    def write(self, model: nn.Module, path: Path, example: tuple[Any, ...]) -> None:
        """Write the graph.

        Inputs and outputs have the names of the arguments and result fields of `forward`. Several tensors in one
        argument are numbered: "inputs_0", "inputs_1".
        """
        optional_import("onnxscript", extra="export", needed_by="torchmcl.export to ONNX")
        example = _several(example)
        modules: list[Any] = [module for module in model.modules() if hasattr(module, "onnx_translations")]
        names: list[str] = []
        for name, argument in zip(inspect.signature(model.forward).parameters, example, strict=False):
            n_tensors = len(tree_leaves(argument))
            names += [name] if n_tensors == 1 else [f"{name}_{i}" for i in range(n_tensors)]
        written = torch.onnx.export(
            _program(model, example),
            example,
            dynamo=True,
            opset_version=self.opset,
            input_names=names,
            output_names=_output_names(model, example),
            custom_translation_table={
                name: nodes for module in modules for name, nodes in module.onnx_translations().items()
            },
            verbose=False,
        )
        assert written is not None
        _name_axes(written)
        written.save(str(path), external_data=False)


@dataclass(frozen=True)
class TorchScript(ExportForm):
    """TorchScript trace, for `torch.jit.load` and C++ programs; suffix ".ts".

    The result is a tuple. The sequence length is the length of the example. The batch size is dynamic, except for
    separators.
    """

    def write(self, model: nn.Module, path: Path, example: tuple[Any, ...]) -> None:
        """Write the trace."""
        traced = torch.jit.trace(_Tuples(model), example, check_trace=False)
        traced.save(str(path))


@dataclass(frozen=True)
class AOTInductor(ExportForm):
    """Machine-code package of AOTInductor, for `torch._inductor.aoti_load_package`; requires a C++ compiler."""

    def write(self, model: nn.Module, path: Path, example: tuple[Any, ...]) -> None:
        """Compile and write the package."""
        torch._inductor.aoti_compile_and_package(_program(model, example), package_path=str(path))


_BY_SUFFIX: Mapping[str, ExportForm] = {".pt2": ExportedProgram(), ".onnx": ONNX(), ".ts": TorchScript()}


def export(model: nn.Module, path: str | Path, example: Any, form: ExportForm | None = None) -> Path:
    """Write a network to a file that runs without its Python class.

    The first axis of all inputs is dynamic, and so is every other axis that the network accepts in several sizes, such
    as the length of a sequence. The network is exported in evaluation mode; its own mode is not changed.

    Args:
        model: Module that returns `Predictions`, `Distributions`, tensors or tuples of them.
        path: Path of the file, with the suffix ".pt2" for `ExportedProgram`, ".onnx" for `ONNX` (the extra `export`) or
            ".ts" for `TorchScript`.
        example: Example input, or tuple of the arguments of `forward`, on the device of the model; only types and
            shapes matter. An argument that is itself a tuple is `((past, lengths),)`.
        form: Export format, if the suffix does not determine it: `AOTInductor()`, or `ONNX(opset=21)`.

    Returns:
        Path of the file.

    Raises:
        ValueError: For an unknown suffix.

    Example:
        >>> import tempfile, torchmcl
        >>> model = torchmcl.MultiHypothesisMLP(in_features=6, out_features=1, n_hypotheses=5)
        >>> path = export(model, tempfile.mkdtemp() + "/model.pt2", torch.randn(4, 6))
        >>> torch.export.load(path).module()(torch.randn(100, 6)).hypotheses.shape
        torch.Size([100, 5, 1])
    """
    path = Path(path)
    if form is None and path.suffix not in _BY_SUFFIX:
        rule = f"end with {', '.join(_BY_SUFFIX)}"
        raise ValueError(bad_value("export", "path", rule, repr(str(path)), "Or give a `form`, such as AOTInductor()."))
    chosen = _BY_SUFFIX[path.suffix] if form is None else form
    if not isinstance(chosen, ExportForm):
        advice = "For example ONNX() or TorchScript()."
        raise TypeError(bad_value("export", "form", "be an ExportForm", repr(form), advice))
    inputs = example if isinstance(example, tuple) else (example,)
    if not all(isinstance(each, Tensor) and each.ndim for each in tree_leaves(inputs)):
        got = tree_map(lambda each: tuple(each.shape) if isinstance(each, Tensor) else type(each).__name__, example)
        raise TypeError(bad_value("export", "example", "be a tensor with a batch axis, or a tuple of them", got))
    try:
        inspect.signature(model.forward).bind(*inputs)
    except TypeError as error:
        advice = "An argument that is itself a tuple is ((a, b),)."
        got = f"{len(inputs)} arguments: {error}"
        raise TypeError(bad_value("export", "example", "have the arguments of `forward`", got, advice)) from error
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            chosen.write(model, path, inputs)
    finally:
        for module in training:
            module.training = True
    return path


def _several(example: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return inputs with at least two rows, because torch treats a size of 1 as constant."""
    several: tuple[Any, ...] = tree_map(lambda each: torch.cat([each, each]) if len(each) == 1 else each, example)
    return several


def _program(model: nn.Module, example: tuple[Any, ...]) -> torch.export.ExportedProgram:
    example = _several(example)
    shapes = tree_map(lambda each: {axis: Dim.AUTO if axis else Dim.DYNAMIC for axis in range(each.ndim)}, example)
    return torch.export.export(model, example, dynamic_shapes=shapes)


def _output_names(model: nn.Module, example: tuple[Any, ...]) -> list[str]:
    """Return the names of the tensors that a model returns."""
    result = model(*example)
    if isinstance(result, Tensor):
        return ["output"]
    fields = result._asdict() if hasattr(result, "_asdict") else {f"output{i}": one for i, one in enumerate(result)}
    return [name for name, value in fields.items() if value is not None]


def _name_axes(program: Any) -> None:
    """Name dynamic axes: "batch" for the first, "length" for a single other one, "size_1" and so on for several."""
    batch: list[str] = []
    others: list[str] = []
    for each in program.model.graph.inputs:
        for axis, size in enumerate(each.shape):
            if isinstance(size, int):
                continue
            if size.value.isdigit():  # torch writes a size that it found to be fixed as a symbol
                each.shape[axis] = int(size.value)
            elif size.value not in batch + others:
                (others if axis else batch).append(size.value)
    names = ["length"] if len(others) == 1 else [f"size_{i}" for i in range(1, len(others) + 1)]
    program.rename_axes(dict.fromkeys(batch, "batch") | dict(zip(others, names, strict=True)))


class _Tuples(nn.Module):
    """Model that returns tuples without None, as a trace requires."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Any:
        result = self.model(*inputs)
        return result if isinstance(result, Tensor) else tuple(one for one in result if one is not None)
