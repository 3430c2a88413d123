"""A builder of ONNX graphs in the style of NumPy: values support Python operators, other operators are method calls.

`graph.Gather(table, places, axis=0)` adds a node and returns its value. Arrays and numbers become constants.
"""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmcl.checks import bad_value
from torchmcl.optional import optional_import

_OPSETS = {"": 18, "ai.onnx.ml": 3}
_TRUTH = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "IsNaN", "And", "Or", "Not")
_PLACES = ("ArgMin", "ArgMax", "Shape")


class Value:
    """A tensor in a graph.

    Attributes:
        graph: the graph it belongs to.
        name: in the graph.
        dtype: as a NumPy dtype.
    """

    __array_ufunc__ = None  # NumPy arrays defer to these operators

    def __init__(self, graph: "Graph", name: str, dtype: Any) -> None:
        self.graph, self.name, self.dtype = graph, name, np.dtype(dtype)

    def _with(self, operator: str, other: Any, *, turned: bool = False) -> "Value":
        if not isinstance(other, Value):
            other = self.graph.constant(np.asarray(other, dtype=self.dtype))
        return self.graph.node(operator, *((other, self) if turned else (self, other)))

    def __add__(self, other: Any) -> "Value":
        return self._with("Add", other)

    def __radd__(self, other: Any) -> "Value":
        return self._with("Add", other, turned=True)

    def __sub__(self, other: Any) -> "Value":
        return self._with("Sub", other)

    def __rsub__(self, other: Any) -> "Value":
        return self._with("Sub", other, turned=True)

    def __mul__(self, other: Any) -> "Value":
        return self._with("Mul", other)

    def __rmul__(self, other: Any) -> "Value":
        return self._with("Mul", other, turned=True)

    def __truediv__(self, other: Any) -> "Value":
        return self._with("Div", other)

    def __rtruediv__(self, other: Any) -> "Value":
        return self._with("Div", other, turned=True)

    def __matmul__(self, other: Any) -> "Value":
        return self._with("MatMul", other)

    def __lt__(self, other: Any) -> "Value":
        return self._with("Less", other)

    def __le__(self, other: Any) -> "Value":
        return self._with("LessOrEqual", other)

    def __gt__(self, other: Any) -> "Value":
        return self._with("Greater", other)

    def __ge__(self, other: Any) -> "Value":
        return self._with("GreaterOrEqual", other)

    def __and__(self, other: Any) -> "Value":
        return self._with("And", other)

    def __or__(self, other: Any) -> "Value":
        return self._with("Or", other)

    def __invert__(self) -> "Value":
        return self.graph.node("Not", self)

    def __neg__(self) -> "Value":
        return self.graph.node("Neg", self)

    def to(self, dtype: Any) -> "Value":
        """Return the value cast to another type."""
        return self if self.dtype == np.dtype(dtype) else self.graph.cast(self, dtype)

    def sum(self, axis: int = -1, *, keep: bool = False) -> "Value":
        """Return the sum along an axis."""
        return self.graph.ReduceSum(self, np.array([axis]), keepdims=int(keep))

    def max(self, axis: int = -1, *, keep: bool = False) -> "Value":
        """Return the maximum along an axis."""
        return self.graph.ReduceMax(self, np.array([axis]), keepdims=int(keep))

    def part(self, start: int, stop: int, axis: int = -1) -> "Value":
        """Return a slice along an axis."""
        return self.graph.Slice(self, np.array([start]), np.array([stop]), np.array([axis]))

    def more(self, axis: int) -> "Value":
        """Return the value with an additional axis of size 1."""
        return self.graph.Unsqueeze(self, np.array([axis]))

    def shaped(self, *sizes: int) -> "Value":
        """Return the value in another shape; 0 keeps a size and -1 is inferred."""
        return self.graph.Reshape(self, np.array(sizes, dtype=np.int64))


class Graph:
    """A graph under construction."""

    def __init__(self, owner: str) -> None:
        self.onnx = optional_import("onnx", extra="export", needed_by=f"{owner}.export")
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self._n_rows: Value | None = None
        self._constants: dict[tuple[Any, ...], tuple[Value, Any]] = {}
        self._counter = itertools.count()

    def _number(self) -> int:
        return next(self._counter)

    def __getattr__(self, operator: str) -> Callable[..., Any]:
        if not operator[0].isupper():
            raise AttributeError(operator)
        return lambda *inputs, **attributes: self.node(operator, *inputs, **attributes)

    def _type(self, dtype: Any) -> int:
        text = self.onnx.TensorProto.STRING
        return int(text if np.dtype(dtype).kind in "OU" else self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def input(self, name: str, dtype: Any, shape: Sequence[Any]) -> Value:
        """Add an input; named sizes are dynamic."""
        self.inputs.append(self.onnx.helper.make_tensor_value_info(name, self._type(dtype), shape))
        return Value(self, name, dtype)

    def some(self, value: Value, n_axes: int) -> Value:
        """Return the rows of an input, or a row of zeros instead of none, which many operators do not support.

        Outputs do not have this row.
        """
        self._n_rows = self.node("Shape", value, start=0, end=1)
        after = self.constant(np.zeros(n_axes - 1, dtype=np.int64))
        pads = self.join(
            self.constant(np.zeros(n_axes, dtype=np.int64)), (self._n_rows < 1).to(np.int64), after, axis=0
        )
        made: Value = self.node("Pad", value, pads)
        return made

    def output(self, name: str, value: Value, shape: Sequence[Any]) -> None:
        """Declare a value as an output."""
        if self._n_rows is not None:
            value = self.node("Slice", value, np.array([0]), self._n_rows, np.array([0]))
        self.nodes.append(self.onnx.helper.make_node("Identity", [value.name], [name]))
        self.outputs.append(self.onnx.helper.make_tensor_value_info(name, self._type(value.dtype), shape))

    def constant(self, array: NDArray[Any]) -> Value:
        """Return an array as a constant value."""
        array = np.asarray(array)
        array = array.astype(object) if array.dtype.kind == "U" else array
        key = (array.dtype.str, array.shape, str(array.tolist()) if array.dtype == object else array.tobytes())
        if key not in self._constants:
            value = Value(self, f"constant{len(self._constants)}", array.dtype)
            self._constants[key] = value, self.onnx.numpy_helper.from_array(array, value.name)
        return self._constants[key][0]

    def node(self, operator: str, *inputs: Any, n_outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        """Add a node and return its output, or a list of them."""
        values = [each if isinstance(each, Value) else self.constant(np.asarray(each)) for each in inputs]
        names = [f"{operator}{self._number()}" for _ in range(n_outputs)]
        given = [value.name for value in values]
        self.nodes.append(self.onnx.helper.make_node(operator, given, names, domain=domain, **attributes))
        dtype = values[1 if operator == "Where" else 0].dtype
        dtype = bool if operator in _TRUTH else np.int64 if operator in _PLACES else dtype
        made = [
            Value(self, name, np.int64 if place and operator == "TopK" else dtype) for place, name in enumerate(names)
        ]
        return made[0] if n_outputs == 1 else made

    def repeat(self, n_times: int, step: Callable[..., Sequence[Value]], *state: Value) -> list[Value]:
        """Return the state after `n_times` steps, as an ONNX loop, which a runtime loads faster than unrolled steps.

        Args:
            n_times: the number of steps.
            step: returns the next state, of the same types.
            *state: the initial state.
        """
        outer, self.nodes = self.nodes, []
        info = self.onnx.helper.make_tensor_value_info
        inner = [Value(self, f"state{self._number()}", each.dtype) for each in state]
        going, count = f"going{self._number()}", f"count{self._number()}"
        results = [self.node("Identity", each) for each in step(*inner)]
        self.nodes.append(self.onnx.helper.make_node("Identity", [going], [f"{going}_on"]))
        given = [info(count, self._type(np.int64), []), info(going, self._type(bool), [])]
        given += [info(each.name, self._type(each.dtype), None) for each in inner]
        made = [info(f"{going}_on", self._type(bool), [])]
        made += [info(each.name, self._type(each.dtype), None) for each in results]
        body = self.onnx.helper.make_graph(self.nodes, f"body{self._number()}", given, made)
        self.nodes = outer
        forever = self.constant(np.array(True))
        ends = self.node("Loop", np.array(n_times), forever, *state, n_outputs=len(state), body=body)
        ends = ends if len(state) > 1 else [ends]
        return [Value(self, end.name, each.dtype) for end, each in zip(ends, state, strict=True)]

    def choose(self, condition: Value, one: Value, other: Callable[[], Value]) -> Value:
        """Return `one` if a condition (a single truth value) holds, otherwise `other()`, computed only then."""
        bodies, outer = {}, self.nodes
        for branch, result in (("then_branch", lambda: one), ("else_branch", other)):
            self.nodes = []
            made = self.node("Identity", result())
            info = self.onnx.helper.make_tensor_value_info(made.name, self._type(made.dtype), None)
            bodies[branch] = self.onnx.helper.make_graph(self.nodes, f"body{self._number()}", [], [info])
        self.nodes = outer
        found: Value = self.node("If", condition, **bodies)
        found.dtype = one.dtype
        return found

    def cast(self, value: Value, dtype: Any) -> Value:
        """Return a value cast to another type."""
        made: Value = self.node("Cast", value, to=self._type(dtype))
        made.dtype = np.dtype(dtype)
        return made

    def where(self, condition: Value, one: Any, other: Any) -> Value:
        """Return `one` where a condition holds, and `other` elsewhere; at least one of them must be a `Value`."""
        dtype = one.dtype if isinstance(one, Value) else other.dtype
        one, other = (x if isinstance(x, Value) else self.constant(np.asarray(x, dtype=dtype)) for x in (one, other))
        made: Value = self.node("Where", condition, one, other)
        return made

    def join(self, *parts: Value, axis: int) -> Value:
        """Return the concatenation of values along an axis."""
        made: Value = self.node("Concat", *parts, axis=axis)
        return made

    def rows(self, array: NDArray[Any], like: Value) -> Value:
        """Return an array [1, ...] repeated for each row of another value."""
        n_rows = self.node("Shape", like, start=0, end=1)
        shape = self.join(n_rows, self.constant(np.array(array.shape[1:], dtype=np.int64)), axis=0)
        made: Value = self.node("Expand", array, shape)
        return made

    def clip(self, value: Value, low: Any, high: Any) -> Value:
        """Return a value clipped to bounds."""
        if np.ndim(low) == np.ndim(high) == 0:
            made: Value = self.node("Clip", value, np.asarray(low, value.dtype), np.asarray(high, value.dtype))
            return made
        return self.Min(self.Max(value, np.asarray(low, value.dtype)), np.asarray(high, value.dtype))

    def sorted(self, value: Value, size: int) -> tuple[Value, Value]:
        """Return a value sorted in increasing order along the last axis, of length `size`, and the sort indices."""
        low, order = self.node("TopK", value, np.array([size]), n_outputs=2, axis=-1, largest=0, sorted=1)
        return low, order

    def _needed(self, outputs: Sequence[Any]) -> tuple[list[Any], set[str]]:
        """Return the nodes required by the given outputs, in order, and the names of their inputs."""
        wanted, kept = {each.name for each in outputs}, []
        for node in reversed(self.nodes):
            if wanted.intersection(node.output):
                kept.append(node)
                wanted.update(node.input)
                bodies = (attribute.g for attribute in node.attribute if attribute.HasField("g"))
                wanted.update(name for body in bodies for inner in body.node for name in inner.input)
        return kept[::-1], wanted

    def save(self, path: Path, notes: dict[str, str], outputs: Sequence[str] | None = None) -> None:
        """Check the graph and write it.

        Args:
            path: of the file.
            notes: metadata of the file, by name.
            outputs: to keep, with the required nodes; all by default.

        Raises:
            ValueError: for an output that the graph does not have.
        """
        known = {each.name: each for each in self.outputs}
        for name in outputs or ():
            if name not in known:
                raise ValueError(bad_value("export", "outputs", f"be some of {', '.join(known)}", repr(name)))
        chosen = [known[name] for name in known if outputs is None or name in outputs]
        nodes, names = self._needed(chosen)
        helper = self.onnx.helper
        initializers = [tensor for value, tensor in self._constants.values() if value.name in names]
        graph = helper.make_graph(nodes, "torchmcl", self.inputs, chosen, initializers)
        opsets = [helper.make_opsetid(*pair) for pair in _OPSETS.items()]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="torchmcl")
        helper.set_model_props(model, notes)
        self.onnx.checker.check_model(model)
        self.onnx.save(model, str(path))
