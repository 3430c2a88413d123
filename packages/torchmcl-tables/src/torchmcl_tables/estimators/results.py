"""Results as data frames of the library that X came from, with the same index."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torchmcl import optional

# Modules with a class of this name have data frames.
_KINDS = {"pandas": "DataFrame", "polars": "DataFrame"}


@dataclass(frozen=True)
class RowLabels:
    """The origin of the rows of a result.

    Attributes:
        library: "pandas" or "polars"; None for arrays and Arrow tables.
        index: of a pandas data frame.
        targets: names of the outputs.
    """

    library: str | None = None
    index: Any = None
    targets: Sequence[str] = ()

    @classmethod
    def of(cls, X: Any, targets: Sequence[str] = ()) -> "RowLabels":
        """Return the labels of the rows of a table."""
        for kind in type(X).__mro__:
            package = kind.__module__.partition(".")[0]
            if _KINDS.get(package) == kind.__name__:
                return cls(package, getattr(X, "index", None), tuple(targets))
        return cls(targets=tuple(targets))

    def frame(self, columns: Mapping[str, Any]) -> Any:
        """Return named columns as a data frame of X's library; by default, of pandas if installed, else of polars."""
        has_pandas = importlib.util.find_spec("pandas") is not None
        library = self.library or ("pandas" if has_pandas else "polars")
        package = optional.optional_import(library, package="torchmcl-tables", extra="", needed_by="to_frame")
        options = {"index": self.index} if library == "pandas" else {}
        return package.DataFrame(dict(columns), **options)


class Framed:
    """A result with a row for each row of X, which `to_frame` returns as named columns."""

    _labels: ClassVar[RowLabels] = RowLabels()

    def labelled(self, X: Any, targets: Sequence[str] = ()) -> Any:
        """Return the result with the labels of the rows of X."""
        vars(self)["_labels"] = RowLabels.of(X, targets)
        return self

    def _targets(self, n_outputs: int) -> Sequence[str]:
        """Return the names of the outputs; by default y for a single output, or y0, y1, ... for several."""
        return self._labels.targets or (["y"] if n_outputs == 1 else [f"y{i}" for i in range(n_outputs)])


def hypothesis_names(targets: Sequence[str], n_hypotheses: int) -> list[str]:
    """Return the names of the columns of answers: values by hypothesis and output, then probabilities."""
    numbers = range(n_hypotheses)
    names = [f"{target}_hypothesis{k}" for k in numbers for target in targets]
    return [*names, *(f"probability{k}" for k in numbers)]
