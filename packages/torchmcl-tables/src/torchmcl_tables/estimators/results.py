"""Results of predictions: hypotheses, prediction sets and classes, as arrays and as data frames."""

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

# Columns of each output in a data frame of sets.
_ENDS = ("lower", "upper", "pieces")
# Draws times kernels of the rows processed at a time.
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
        """Return named columns as a data frame of X's library; by default, of pandas if installed, else of polars."""
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
    """A result with a row for each row of X, which `to_frame` returns as named columns."""

    _labels: ClassVar[RowLabels] = RowLabels()

    def labeled(self, X: Any, targets: Sequence[str] = ()) -> Any:
        """Return the result with the labels of the rows of X."""
        vars(self)["_labels"] = RowLabels(_library_of(X), getattr(X, "index", None), tuple(targets))
        return self

    def _targets(self, n_outputs: int) -> Sequence[str]:
        """Return the names of the outputs; by default y for a single output, or y0, y1, ... for several."""
        return self._labels.targets or (["y"] if n_outputs == 1 else [f"y{i}" for i in range(n_outputs)])


def hypothesis_names(targets: Sequence[str], n_hypotheses: int) -> list[str]:
    """Return the names of the columns of answers: values by hypothesis and output, then probabilities."""
    numbers = range(n_hypotheses)
    names = [f"{target}_hypothesis{k}" for k in numbers for target in targets]
    return [*names, *(f"probability{k}" for k in numbers)]


class _Hypotheses(NamedTuple):
    values: NDArray[Any]
    probabilities: NDArray[Any]


class Hypotheses(_Hypotheses, Framed):
    """Several hypotheses for each row.

    Attributes:
        values: [rows, hypotheses, outputs], in the units of y.
        probabilities: [rows, hypotheses], summing to 1.
    """

    def to_frame(self) -> Any:
        """Return the answers as named columns, those of `transform`.

        The frame is of the library of X (pandas or polars), with its index; for arrays and Arrow tables it is one of
        pandas, or of polars where pandas is not installed.

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
        values: [rows, classes], different classes.
        probabilities: [rows, classes], of these classes; all other classes have the remaining probability.
    """

    def to_frame(self) -> Any:
        """Return the classes as a data frame of the same library as X, with its index; see `Hypotheses.to_frame`.

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
    """Prediction sets as unions of intervals, one union for each row and output.

    Attributes:
        lower: [rows, pieces], or [rows, outputs, pieces] for several outputs; NaN where a row has fewer pieces.
        upper: the upper ends, in the same shape.
    """

    @property
    def hull(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """One interval for each row (and output), from the first lower end to the last upper end."""
        return np.nanmin(self.lower, axis=-1), np.nanmax(self.upper, axis=-1)

    @property
    def width(self) -> NDArray[Any]:
        """The total length of the pieces, [rows] or [rows, outputs]."""
        return np.nansum(self.upper - self.lower, axis=-1)

    @property
    def n_pieces(self) -> NDArray[Any]:
        """The number of pieces of each union, [rows] or [rows, outputs]."""
        return np.isfinite(self.lower).sum(axis=-1) + np.isinf(self.lower).sum(axis=-1)

    def to_frame(self) -> Any:
        """Return the ends of the hull and the number of pieces of each output as named columns.

        The frame is of the library of X, with its index, as for `Hypotheses.to_frame`.

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
        """Return whether each target lies in its set; y is [rows] or [rows, outputs], any rows for a single set."""
        values, (n_rows, *outputs, _) = np.asarray(y, dtype=float), self.lower.shape
        n_values = len(values) if values.ndim and n_rows == 1 else n_rows
        if values.shape[:1] != (n_values,) or values.size != math.prod([n_values, *outputs]):
            rule = f"have the shape {(n_rows, *outputs)}"
            raise ValueError(bad_value("PredictionIntervals.contains", "y", rule, values.shape))
        values = values.reshape(n_values, *outputs, 1)  # else a column would be compared with the sets of all rows
        return np.asarray(((self.lower <= values) & (values <= self.upper)).any(axis=-1))


@dataclass(frozen=True, eq=False)
class PredictionRegions:
    """One region per row in the joint space of all outputs, of any shape and with any number of parts.

    All rows have the same level, which makes the regions as small as possible on average.

    Attributes:
        density: of each row, in the units of y.
        log_level: the minimum log density inside the region; minus infinity with too few calibration rows: the region
        is then the whole space.
    """

    density: Mixture
    log_level: float

    def contains(self, y: Any) -> NDArray[np.bool_]:
        """Return whether each row of y [rows, outputs] lies in its region, [rows]; y is [rows] for one output."""
        values = torch.from_numpy(np.array(y, dtype=np.float64))  # a copy: columns of a frame may be read-only
        values = values.unsqueeze(-1) if values.ndim == 1 else values
        shape = *self.density.batch_shape, self.density.dim
        if tuple(values.shape) != shape:
            raise ValueError(
                bad_value("PredictionRegions.contains", "y", f"have the shape {shape}", tuple(values.shape))
            )
        return (self.density.log_prob(values) >= self.log_level).numpy()

    def volume(self, n_samples: int = 1000, random_state: int = 0) -> NDArray[Any]:
        """Return the volume of each region, [rows], estimated from samples of the densities.

        Args:
            n_samples: draws for each row; the error falls with their square root.
            random_state: a seed.
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
            # A draw represents a volume of 1 / density (importance sampling).
            parts.append(torch.where(logs >= self.log_level, (-logs).exp(), 0.0).mean(dim=0))
        return torch.cat(parts).numpy()
