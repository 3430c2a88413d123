"""Export of fitted estimators to ONNX: torch modules that compute means and probabilities, exported by `torch.onnx`.

Torch has no operators for categories as text and for the trees of a forest. Both are added to the exported graph.
"""

import copy
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from torchmcl import __version__, optional
from torchmcl.errors import bad_value
from torchmcl_tables.data.columns import CategoryColumn, Column, DateColumn, NumberColumn
from torchmcl_tables.estimators.blend import Blend
from torchmcl_tables.estimators.classes import ClassMixture, mixed_log_probabilities
from torchmcl_tables.estimators.forest import Forest
from torchmcl_tables.estimators.kernels import Kernels, background, network_kernels
from torchmcl_tables.estimators.predictive import Predictive
from torchmcl_tables.estimators.rows import MOST_DEVIATIONS, Encoder
from torchmcl_tables.estimators.tables import FrameColumns, Targets

__all__ = ["export"]

# Names of the tensors that connect the exported graph and the trees.
_TREE_INPUTS, _LEAVES = "tree_inputs", "leaves"
_OPSET = 18


class FrameInputs(nn.Module):
    """Conversion of data frame columns to the numbers on which the estimator was fitted."""

    def __init__(self, frame: FrameColumns) -> None:
        super().__init__()
        self.columns = frame.schema.columns

    def forward(self, *tensors: Tensor) -> Tensor:
        """Compute the numbers, [rows, columns], from one tensor [rows] per column."""
        parts = [_numbers(column, values) for column, values in zip(self.columns, tensors, strict=True)]
        return torch.cat(parts, dim=1)


def _numbers(column: Column, values: Tensor) -> Tensor:
    """Compute the inputs of a column, [rows, inputs], as `FrameColumns` does."""
    if isinstance(column, CategoryColumn):
        codes = torch.arange(len(column.input_names))
        return (values.unsqueeze(1) == codes).double()
    if isinstance(column, DateColumn):
        return _date_parts(values, column.parts)
    for code in column.codes if isinstance(column, NumberColumn) else ():
        values = torch.where(values == code, torch.nan, values)
    return values.unsqueeze(1)


def _date_parts(days: Tensor, parts: Sequence[str]) -> Tensor:
    """Compute the parts of dates, [rows, parts], from days since 1970, [rows], in the Gregorian calendar.

    Years begin in March in this computation, so that a leap day is the last day; 400 years have 146 097 days.
    """

    def whole(value: Tensor, by: float) -> Tensor:
        return ((value + 0.5) / by).floor()  # the offset avoids rounding errors of integers

    day = days.floor()
    since = day + 719_468.0
    era = whole(since, 146_097)
    of_era = since - era * 146_097.0
    year = whole(of_era - whole(of_era, 1460) + whole(of_era, 36_524) - whole(of_era, 146_096), 365)
    of_year = of_era - (year * 365.0 + whole(year, 4) - whole(year, 100))
    month = whole(of_year * 5.0 + 2.0, 153)
    parts_of_day = {
        "year": year + era * 400.0 + (month >= 10.0).double(),  # January and February
        "month": torch.where(month >= 10.0, month - 9.0, month + 3.0),
        "weekday": day + 3.0 - whole(day + 3.0, 7) * 7.0 + 1.0,
        "hour": ((days - day) * 24.0 + 1e-6).floor(),
        "days": days,
    }
    return torch.where(days.isnan().unsqueeze(1), torch.nan, torch.stack([parts_of_day[part] for part in parts], dim=1))


class EncodedInputs(nn.Module):
    """Encoder of the columns of a table: imputation, standardization, and piecewise linear bins."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.filling, self.indicated = torch.from_numpy(encoder.filling), torch.from_numpy(encoder.indicated)
        self.mean, self.scale = torch.from_numpy(encoder.scaler.mean), torch.from_numpy(encoder.scaler.scale)
        binned = [(place, edges) for place, edges in enumerate(encoder.edges) if len(edges) > 2]
        self.has_bins = bool(binned)
        if binned:
            # A product with 0 and 1 is exact, and faster than the selection of columns.
            places = torch.tensor([place for place, edges in binned for _ in edges[1:]])
            self.selection = nn.functional.one_hot(places, encoder.n_inputs).double().T
            self.starts = torch.from_numpy(np.concatenate([edges[:-1] for _, edges in binned]))
            self.lengths = torch.from_numpy(np.concatenate([np.diff(edges) for _, edges in binned]))

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the inputs without bins and with bins, both [rows, inputs], from rows, [rows, columns]."""
        missing = rows.isnan()
        filled = torch.where(missing, self.filling, rows)
        dense = ((filled - self.mean) / self.scale).clamp(-MOST_DEVIATIONS, MOST_DEVIATIONS)
        if len(self.indicated):
            dense = torch.cat([missing.index_select(1, self.indicated).double(), dense], dim=1)
        if not self.has_bins:
            return dense, dense
        passed = ((filled @ self.selection - self.starts) / self.lengths).clamp(0.0, 1.0)
        return dense, torch.cat([dense, passed], dim=1)


class ExportedModel(nn.Module):
    """Base class of exported estimators, which read an array or the columns of a data frame."""

    output_names: Sequence[str]

    def __init__(self, frame: FrameColumns | None) -> None:
        super().__init__()
        self.columns = None if frame is None else FrameInputs(frame)

    def rows(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the rows of the table, [rows, columns]."""
        return tensors[0] if self.columns is None else self.columns(*tensors[: len(self.columns.columns)])


class ExportedNetworks(ExportedModel):
    """Exported `MCLRegressor`: the mean, and for a single network also the hypotheses and probabilities."""

    def __init__(self, predictive: Predictive) -> None:
        super().__init__(None)
        self.inputs, self.targets = EncodedInputs(predictive.encoder), predictive.targets
        self.networks = copy.deepcopy(nn.ModuleList(predictive.modules)).double()
        self.output_names = ["mean", "hypotheses", "probabilities"][: 3 if len(self.networks) == 1 else 1]

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Compute the outputs in the order of `output_names`."""
        _, inputs = self.inputs(self.rows(tensors))
        predictions = [network(inputs) for network in self.networks]
        values = torch.cat([part.hypotheses for part in predictions], dim=1)
        scores = torch.cat([_normalized(part.score_logits) for part in predictions], dim=1) / len(predictions)
        mean = _restored((scores.unsqueeze(-1) * values).sum(dim=1), self.targets)
        mean = mean.squeeze(1) if self.targets.is_flat else mean
        return (mean, _restored(values, self.targets), scores)[: len(self.output_names)]


class ExportedClassifier(ExportedModel):
    """Exported `MCLClassifier`: the probabilities of the classes."""

    output_names = ("probabilities",)

    def __init__(self, mixture: ClassMixture) -> None:
        super().__init__(None)
        self.inputs, self.temperature = EncodedInputs(mixture.encoder), mixture.temperature
        self.networks = copy.deepcopy(nn.ModuleList(mixture.modules)).double()

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Compute the class probabilities, [rows, classes]."""
        _, inputs = self.inputs(self.rows(tensors))
        logs = torch.stack([mixed_log_probabilities(*network(inputs)[:2]) for network in self.networks])
        mixed = (logs / self.temperature).softmax(dim=-1).mean(dim=0)
        return (mixed / mixed.sum(dim=1, keepdim=True),)


class ExportedBlend(ExportedModel):
    """Exported `DensityRegressor`: the mean. The last argument contains the leaf values of the forest, if any."""

    def __init__(self, blend: Blend, frame: FrameColumns | None) -> None:
        super().__init__(frame)
        self.blend = blend
        self.inputs = nn.ModuleList(EncodedInputs(encoder) for encoder in blend.encoders)
        self.networks = nn.ModuleList(nn.ModuleList(kind) for kind in blend.networks)
        self.output_names = ["mean"] if blend.forest is None else ["mean", _TREE_INPUTS]

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Compute the outputs in the order of `output_names`."""
        blend = self.blend
        rows = self.rows(tensors)
        members, tree_inputs = [], rows
        for place, (encoder, kind) in enumerate(zip(self.inputs, blend.networks, strict=True)):
            dense, inputs = (part.float() for part in encoder(rows))
            tree_inputs = dense if place == 0 else tree_inputs
            stretch = 1.0 if blend.stretches is None else float(blend.stretches[place])
            members.append(network_kernels(kind, inputs, torch.float32).stretched(stretch))
        if blend.forest is not None:
            leaves = tensors[-1].unflatten(1, (blend.forest.n_trees, -1))
            values = leaves if blend.values is None else leaves[..., :-1]  # means need no widths
            equal = rows.new_full((1, blend.forest.n_trees), 1 / blend.forest.n_trees, dtype=torch.float32)
            members.append(Kernels(values, equal.expand(values.shape[0], -1), leaves[..., -1:].expand_as(values)))
        if blend.values is not None:
            members = [Kernels(*(part.double() for part in member)) for member in members]
        members.append(background(members[0]))
        mean = blend.means_of(members)
        if blend.values is None:
            mean = _restored(mean.double(), blend.targets)
        mean = mean.squeeze(1) if blend.targets.is_flat else mean
        return (mean, tree_inputs)[: len(self.output_names)]


def _normalized(score_logits: Tensor) -> Tensor:
    """Normalize scores to a sum of 1; onnxruntime would round the sigmoid of a very negative logit to 0."""
    return (score_logits.clamp_max(0.0) - (-score_logits.abs()).exp().log1p()).softmax(dim=-1)


def _restored(values: Tensor, targets: Targets) -> Tensor:
    """Convert standardized values, [..., outputs], to the units of y, and clip them to the bounds."""
    scale, mean = torch.from_numpy(targets.scaler.scale), torch.from_numpy(targets.scaler.mean)
    return (values * scale + mean).clamp(*torch.from_numpy(targets.bounds))


def export(estimator: Any, path: str | Path) -> Path:
    """Write the computation of a regressor's means, or of a classifier's probabilities, to an ONNX file.

    See `SavedEstimator.export`.
    """
    check_is_fitted(estimator)
    owner, path = f"{type(estimator).__name__}.export", Path(path)
    if path.suffix != ".onnx":
        advice = "To save a model for use in Python, call `save`."
        raise ValueError(bad_value(owner, "path", "end with .onnx", repr(str(path)), advice))
    metadata = {"model": type(estimator).__name__}
    fitted = estimator._exported
    if isinstance(fitted, ClassMixture):
        metadata["classes"] = json.dumps(np.asarray(estimator.classes_).tolist())
    frame = estimator._frame if isinstance(fitted, Blend) else None
    for package in ("onnx", "onnxscript"):
        optional.optional_import(package, extra="export", needed_by=owner)
    if isinstance(fitted, Blend):
        model: ExportedModel = ExportedBlend(fitted, frame)
    else:
        model = ExportedNetworks(fitted) if isinstance(fitted, Predictive) else ExportedClassifier(fitted)
    columns = () if frame is None else frame.schema.columns
    names = ["X"] if frame is None else [column.name for column in columns]
    example = [torch.zeros(2, estimator.n_features_in_, dtype=torch.float64)] if frame is None else []
    example += [
        torch.zeros(2, dtype=torch.int64 if isinstance(column, CategoryColumn) else torch.float64) for column in columns
    ]
    if isinstance(fitted, Blend) and fitted.forest is not None:
        held = fitted.forest.values if fitted.values is None else fitted.held
        names.append(_LEAVES)
        example.append(torch.zeros(2, held.shape[1] * fitted.forest.n_trees))
    with torch.no_grad(), warnings.catch_warnings():  # internal warnings of torch
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model.eval(),
            tuple(example),
            dynamo=True,
            opset_version=_OPSET,
            input_names=names,
            output_names=list(model.output_names),
            dynamic_shapes={"tensors": tuple({0: torch.export.Dim("rows")} for _ in example)},
            verbose=False,
        )
    assert program is not None
    graph = program.model_proto
    dates = [column.name for column in columns if isinstance(column, DateColumn)]
    for column in columns:
        if isinstance(column, CategoryColumn):
            _add_texts(graph, column)
    if isinstance(fitted, Blend) and fitted.forest is not None:
        _add_trees(graph, fitted.forest, held)
    _save(graph, path, {"torchmcl": __version__, **metadata, **({"dates": json.dumps(dates)} if dates else {})})
    return path


def _add_texts(model: Any, column: CategoryColumn) -> None:
    """Replace an input of category codes by an input of texts; an empty text is a missing category."""
    from onnx import TensorProto, helper

    text = next(tensor for tensor in model.graph.input if tensor.name == column.name)
    codes = f"{column.name} (code)"
    for node in model.graph.node:
        node.input[:] = [codes if name == column.name else name for name in node.input]
    texts = {"": column.missing_code} | column.code_of_text
    attributes: dict[str, Any] = {"keys_strings": list(texts), "values_int64s": list(texts.values())}
    node = helper.make_node(
        "LabelEncoder", [text.name], [codes], domain="ai.onnx.ml", default_int64=column.other_code, **attributes
    )
    text.type.tensor_type.elem_type = TensorProto.STRING
    model.graph.node.insert(0, node)


def _add_trees(model: Any, forest: Forest, held: NDArray[np.float64]) -> None:
    """Replace the input of leaf values by the trees, whose inputs are an output of the graph."""
    from onnx import helper

    graph = model.graph
    inputs = next(tensor for tensor in graph.output if tensor.name == _TREE_INPUTS)
    leaves = next(tensor for tensor in graph.input if tensor.name == _LEAVES)
    graph.output.remove(inputs)
    graph.input.remove(leaves)
    ends = [*forest.roots[1:], len(forest.columns)]
    nodes = [
        _tree(forest, held, slice(*pair), inputs.name, f"{_LEAVES}{pair[0]}")
        for pair in zip(forest.roots, ends, strict=True)
    ]
    names = [node.output[0] for node in nodes]
    nodes.append(helper.make_node("Concat", names, [leaves.name], axis=1))
    graph.node.extend(nodes)


def _tree(forest: Forest, held: NDArray[np.float64], nodes: slice, source: str, name: str) -> Any:
    """Return a tree as an operator; one operator per tree is faster than one operator for all trees."""
    from onnx import helper

    places = np.arange(nodes.stop - nodes.start)
    child = forest.children[nodes] - nodes.start
    leaf = child == places
    n_leaves, n_held = int(leaf.sum()), held.shape[1]
    attributes: dict[str, Any] = {
        "n_targets": n_held,
        "nodes_treeids": [0] * len(places),
        "nodes_nodeids": places.tolist(),
        "nodes_featureids": forest.columns[nodes].tolist(),
        "nodes_values": np.where(leaf, 0.0, forest.thresholds[nodes]).tolist(),
        "nodes_modes": np.where(leaf, "LEAF", "BRANCH_LEQ").tolist(),
        "nodes_truenodeids": np.where(leaf, 0, child).tolist(),
        "nodes_falsenodeids": np.where(leaf, 0, child + 1).tolist(),
        "target_treeids": [0] * (n_leaves * n_held),
        "target_nodeids": places[leaf].repeat(n_held).tolist(),
        "target_ids": np.tile(np.arange(n_held), n_leaves).tolist(),
        "target_weights": held[nodes][leaf].ravel().tolist(),
    }
    return helper.make_node("TreeEnsembleRegressor", [source], [name], domain="ai.onnx.ml", **attributes)


def _save(model: Any, path: Path, metadata: dict[str, Any]) -> None:
    import onnx
    import onnx_ir

    # The exporter may place nodes that read the leaves of the trees before the inputs of the trees.
    ordered = onnx_ir.from_proto(model)
    ordered.graph.sort()
    model = onnx_ir.to_proto(ordered)
    model.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 3))
    onnx.helper.set_model_props(model, metadata)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
