"""Answers for the rows of a file, part by part, for all kinds of models."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from torchmcl._messages import bad_value
from torchmcl._progress import Progress
from torchmcl.fleet.placement import in_threads
from torchmcl_tables.data import ColumnEncoder, Table, TableSchema, Unfit

__all__ = ["Answering", "word_for_probability"]

# Rows that are read from the table at once, and that go through the network at once: the latter stay in the cache.
_ROWS_AT_ONCE, _ROWS_IN_CACHE = 262_144, 8_192


class Answering(ABC):
    """Common parts of models of tables.

    Attributes:
        schema: the columns.
        encoder: turns them into numbers.
        source: the name of the file that was learned from.
        metrics: how the fit went, as JSON can hold it.
        evaluation: records of the set-apart rows for the report; None where none were set apart.
    """

    schema: TableSchema
    encoder: ColumnEncoder
    source: str
    metrics: dict[str, Any]
    evaluation: dict[str, Any] | None

    @property
    @abstractmethod
    def estimator(self) -> Any:
        """The estimator of the answers."""

    @property
    @abstractmethod
    def n_answers(self) -> int:
        """The number of answers per row."""

    @abstractmethod
    def _answers(self, inputs: NDArray[np.float32], interval: float | None) -> dict[str, Any]:
        """Return the columns of the answers for some rows."""

    def inputs(self, owner: str, table: Table) -> NDArray[np.float32]:
        """Return the inputs of the regressor for the rows of a table."""
        return self.encoder(self.schema.values(table))

    def predict(
        self,
        owner: str,
        table: Table,
        *,
        interval: float | None = None,
        keep: Sequence[str] = (),
        strict: bool = False,
        notify: Callable[[str], None] | None = None,
        progress: bool = False,
    ) -> Any:
        """Return a polars data frame with the answers for each row, the most probable first.

        A kept column that has the name of one of the answers gets `_kept` appended.

        Args:
            owner: who asks.
            table: with the columns of the schema.
            interval: the probability with which a set holds the truth; no sets by default.
            keep: columns of the table to copy in front, each once.
            strict: refuse categories that were never seen; by default they are answered as none of the known ones.
            notify: called with a sentence about each column with cells that do not fit and are accepted.
            progress: show a bar.

        Raises:
            ValueError: if columns are missing or hold something else; the message names all of them.
        """
        if interval is not None and not 0 < interval < 1:
            raise ValueError(bad_value(owner, "--interval", "lie in (0, 1)", repr(interval), "0.9 is for 90 % sets."))
        kept = [table.series(name, "--keep") for name in keep]
        parts, unfit = [], Unfit()
        with Progress(len(table), "Answering", show=progress, unit="row") as bar:
            for low in range(0, len(table), _ROWS_AT_ONCE):
                part = replace(table, frame=table.frame.slice(low, _ROWS_AT_ONCE))
                values = self.schema.values(part, strict=strict, unfit=unfit, first_row=low)
                pieces = [values[start : start + _ROWS_IN_CACHE] for start in range(0, len(values), _ROWS_IN_CACHE)]

                def answered(piece: NDArray[np.float64]) -> Any:
                    answers = pl.DataFrame(self._answers(self.encoder(piece), interval))
                    bar.step(len(piece))  # after each piece: a blend takes seconds for one
                    return answers

                parts += in_threads(answered, pieces, self._n_threads())
        if notify is not None:
            for notice in unfit.notices():
                notify(notice)
        answers = pl.concat(parts)
        if notify is not None and interval is not None:
            for notice in self._notices(answers, interval):
                notify(notice)
        taken = {*answers.columns, *keep}
        kept = [series.alias(_free(series.name, taken)) if series.name in answers else series for series in kept]
        return answers if not kept else pl.DataFrame(kept).hstack(answers)

    def _notices(self, answers: Any, interval: float) -> list[str]:
        """Return sentences about the sets of answers."""
        return []

    def _n_threads(self) -> int:
        return 1 if torch.device(self.estimator.device).type == "cuda" else torch.get_num_threads()


def word_for_probability(targets: Sequence[str]) -> str:
    """Return the prefix of the probability columns, distinct from all targets."""
    word = "probability"
    while word in targets:
        word = f"answer_{word}"
    return word


def _free(name: str, taken: set[str]) -> str:
    """Return a unique name for a kept column, and reserve it."""
    while name in taken:
        name = f"{name}_kept"
    taken.add(name)
    return name
