"""Prediction results as arrays and data frames: hypotheses, prediction sets and classes."""

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from torchmcl import checks, optional
from torchmcl.density import Mixture
from torchmcl.errors import bad_value
from torchmcl_tables.data.table import is_data_frame

# Suffixes of the columns of each output in a data frame of prediction sets.
_ENDS = ("lower", "upper", "pieces")
# Maximum number of samples times kernels that are processed at once.
_AT_ONCE = 2**24


@dataclass(frozen=True)
class RowLabels:
    """Labels of the rows and outputs of a result.

    Attributes:
        library: Library of the data frame of X, "pandas" or "polars"; None for arrays and Arrow tables.
        index: Index of a pandas data frame.
        targets: Names of the outputs.
    """

    library: str | None = None
    index: Any = None
    targets: Sequence[str] = ()

    def frame(self, columns: Mapping[str, Any]) -> Any:
        """Return named columns as a data frame of the library of X; the default is pandas, or polars without pandas."""
        has_pandas = importlib.util.find_spec("pandas") is not None
        library = self.library or ("pandas" if has_pandas else "polars")
        package = optional.optional_import(library, package="torchmcl-tables", extra="", needed_by="to_frame")
        options = {"index": self.index} if library == "pandas" else {}
        return package.DataFrame(dict(columns), **options)


def _library_of(X: Any) -> str | None:
    for kind in type(X).__mro__:
        package = kind.__module__.partition(".")[0]
        if package in ("pandas", "polars") and is_data_frame(X):
            return package
    return None


class Framed:
    """Base class of results with one row for each row of X, which `to_frame` converts to a data frame."""

    _labels: ClassVar[RowLabels] = RowLabels()

    def labeled(self, X: Any, targets: Sequence[str] = ()) -> Any:
        """Set the labels of the rows and outputs, and return the result."""
        vars(self)["_labels"] = RowLabels(_library_of(X), getattr(X, "index", None), tuple(targets))
        return self

    def _targets(self, n_outputs: int) -> Sequence[str]:
        """Return the names of the outputs; by default y for a single output, or y0, y1, ... for several."""
        return self._labels.targets or (["y"] if n_outputs == 1 else [f"y{i}" for i in range(n_outputs)])


def hypothesis_names(targets: Sequence[str], n_hypotheses: int) -> list[str]:
    """Return the column names of hypotheses: values by hypothesis and output, then probabilities."""
    numbers = range(n_hypotheses)
    names = [f"{target}_hypothesis{k}" for k in numbers for target in targets]
    return [*names, *(f"probability{k}" for k in numbers)]


class _Hypotheses(NamedTuple):
    values: NDArray[Any]
    probabilities: NDArray[Any]


class Hypotheses(_Hypotheses, Framed):
    """Several hypotheses for each row.

    Attributes:
        values: Hypotheses in the units of y, [rows, hypotheses, outputs].
        probabilities: Probabilities of the hypotheses, which sum to 1, [rows, hypotheses].
    """

    def to_frame(self) -> Any:
        """Return the hypotheses as a data frame with the columns of `transform`.

        The data frame belongs to the library of X (pandas or polars) and has the index of X. For arrays and Arrow
        tables, the library is pandas, or polars if pandas is not installed.

        Example:
            >>> Hypotheses(np.array([[[1.0], [2.0]]]), np.array([[0.25, 0.75]])).to_frame().columns.tolist()
            ['y_hypothesis0', 'y_hypothesis1', 'probability0', 'probability1']
        """
        n_rows, n_hypotheses, n_outputs = self.values.shape
        columns = [*self.values.reshape(n_rows, -1).T, *self.probabilities.T]
        names = hypothesis_names(self._targets(n_outputs), n_hypotheses)
        return self._labels.frame(dict(zip(names, columns, strict=True)))


class _TopClasses(NamedTuple):
    values: NDArray[Any]
    probabilities: NDArray[Any]


class TopClasses(_TopClasses, Framed):
    """Several classes for each row, the most probable first.

    Attributes:
        values: Different classes, [rows, classes].
        probabilities: Probabilities of these classes, [rows, classes]; other classes have the remaining probability.
    """

    def to_frame(self) -> Any:
        """Return the classes as a data frame; the library and the index are as for `Hypotheses.to_frame`.

        Example:
            >>> TopClasses(np.array([["left", "up"]]), np.array([[0.6, 0.4]])).to_frame().to_dict("records")
            [{'class0': 'left', 'class1': 'up', 'probability0': 0.6, 'probability1': 0.4}]
        """
        parts = {"class": self.values, "probability": self.probabilities}
        return self._labels.frame(
            {f"{name}{k}": column for name, part in parts.items() for k, column in enumerate(part.T)}
        )


class _Intervals(NamedTuple):
    lower: NDArray[Any]
    upper: NDArray[Any]


class PredictionIntervals(_Intervals, Framed):
    """Prediction sets: one union of intervals (pieces) for each row and output.

    Attributes:
        lower: Lower ends of the intervals, [rows, pieces], or [rows, outputs, pieces] for several outputs; NaN if a row
            has fewer intervals.
        upper: Upper ends of the intervals, with the same shape.
    """

    @property
    def hull(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Smallest interval that contains the set of each row (and output), as lower and upper ends."""
        return np.nanmin(self.lower, axis=-1), np.nanmax(self.upper, axis=-1)

    @property
    def width(self) -> NDArray[Any]:
        """Total length of the intervals, [rows] or [rows, outputs]."""
        return np.nansum(self.upper - self.lower, axis=-1)

    @property
    def n_pieces(self) -> NDArray[Any]:
        """Number of intervals of each set, [rows] or [rows, outputs]."""
        return np.isfinite(self.lower).sum(axis=-1) + np.isinf(self.lower).sum(axis=-1)

    def to_frame(self) -> Any:
        """Return the ends of the hull and the number of intervals of each output as a data frame.

        The library and the index are as for `Hypotheses.to_frame`.

        Example:
            >>> PredictionIntervals(np.array([[0.0, 2.0]]), np.array([[1.0, 3.0]])).to_frame().to_dict("records")
            [{'y_lower': 0.0, 'y_upper': 3.0, 'y_pieces': 2}]
        """
        n_rows = len(self.lower)
        parts = [part.reshape(n_rows, -1).T for part in (*self.hull, self.n_pieces)]
        ends = zip(self._targets(len(parts[0])), *parts, strict=True)
        named = {f"{name}_{end}": column for name, *columns in ends for end, column in zip(_ENDS, columns, strict=True)}
        return self._labels.frame(named)

    def contains(self, y: Any) -> NDArray[np.bool_]:
        """Return whether each target, [rows] or [rows, outputs], lies in its set; a single set is used for all rows."""
        values, (n_rows, *outputs, _) = np.asarray(y, dtype=float), self.lower.shape
        n_values = len(values) if values.ndim and n_rows == 1 else n_rows
        if values.shape[:1] != (n_values,) or values.size != math.prod([n_values, *outputs]):
            rule = f"have the shape {(n_rows, *outputs)}"
            raise ValueError(bad_value("PredictionIntervals.contains", "y", rule, values.shape))
        values = values.reshape(
            n_values, *outputs, 1
        )  # without this axis, a target would be compared with the sets of all rows
        return np.asarray(((self.lower <= values) & (values <= self.upper)).any(axis=-1))


@dataclass(frozen=True, eq=False)
class PredictionRegions:
    """Prediction regions in the joint space of all outputs, of any shape, one for each row.

    All rows have the same level, which makes the regions as small as possible on average.

    Attributes:
        density: Density of each row in the units of y.
        log_level: Minimum log density inside a region. With too few calibration rows it is minus infinity, and a region
            is the whole space.
    """

    density: Mixture
    log_level: float

    def contains(self, y: Any) -> NDArray[np.bool_]:
        """Return whether each row of y, [rows, outputs] or [rows] for one output, lies in its region, [rows]."""
        values = torch.from_numpy(np.array(y, dtype=np.float64))  # a copy: columns of a frame may be read-only
        values = values.unsqueeze(-1) if values.ndim == 1 else values
        shape = *self.density.batch_shape, self.density.dim
        if tuple(values.shape) != shape:
            raise ValueError(
                bad_value("PredictionRegions.contains", "y", f"have the shape {shape}", tuple(values.shape))
            )
        return (self.density.log_prob(values) >= self.log_level).numpy()

    def volume(self, n_samples: int = 1000, random_state: int = 0) -> NDArray[Any]:
        """Estimate the volume of each region, [rows], from samples of the densities.

        Args:
            n_samples: Number of samples for each row; the error falls with its square root.
            random_state: Seed of the samples.
        """
        checks.check_positive_int("PredictionRegions.volume", "n_samples", n_samples)
        if np.isinf(self.log_level):
            return np.full(tuple(self.density.batch_shape), np.inf)
        generator = torch.Generator().manual_seed(random_state)
        at_once = max(1, _AT_ONCE // (n_samples * self.density.probabilities.shape[-1]))
        parts = []
        for start in range(0, len(self.density.hypotheses), at_once):
            some = self.density.rows(slice(start, start + at_once))
            logs = some.log_prob(some.sample((n_samples,), generator))
            # A sample represents a volume of 1 / density (importance sampling).
            parts.append(torch.where(logs >= self.log_level, (-logs).exp(), 0.0).mean(dim=0))
        return torch.cat(parts).numpy()
