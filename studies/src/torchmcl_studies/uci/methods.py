"""Methods of the UCI study: network, rule and evaluation interval of each."""

import csv
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NamedTuple

from torch import nn

from torchmcl.nn import MultiHypothesisMLP
from torchmcl.rules.winners import WTA, AnnealedWTA, RelaxedWTA
from torchmcl.schedules import Exponential, Linear, annealed

__all__ = ["METHODS", "N_HYPOTHESES", "Method", "PublishedCell", "published_cells"]

N_HYPOTHESES = 5
_N_MEMBERS = 5
_DROPOUT = 0.05


@dataclass(frozen=True)
class Method:
    """One row of the tables.

    Attributes:
        name: Name in records and on the command line.
        label: Label in reports.
        published: Name in the published tables; empty if the method is not in them.
        rule: Function that maps the number of epochs to a rule or a function epoch -> rule.
        evaluate_every: Number of epochs between evaluations under `test-selected`, as in the authors' scripts.
        n_members: Number of networks whose predictions are averaged; 1 for the multi-hypothesis methods.
        dropout: Dropout rate of hidden units, also applied in prediction.
    """

    name: str
    label: str
    published: str
    rule: Callable[[int], Any]
    evaluate_every: int = 10
    n_members: int = 1
    dropout: float = 0.0

    @property
    def single_answer(self) -> bool:
        """Whether the method makes a single prediction per row."""
        return self.n_members > 1 or self.dropout > 0

    def build(self, n_features: int, hidden: int) -> nn.Module:
        """Return the network: one hidden layer with ReLU."""
        single = self.single_answer
        return MultiHypothesisMLP(
            n_features,
            1,
            1 if single else N_HYPOTHESES,
            hidden=(hidden,),
            scores=not single,
            dropout=self.dropout,
        )


def _relaxed(epsilon: float) -> Method:
    published = {0.1: "relaxed_wta_eps0.1", 0.5: "relaxed_wta_eps0.5"}.get(epsilon, "")
    return Method(f"relaxed-{epsilon}", f"Relaxed-WTA (ε = {epsilon})", published, lambda _: RelaxedWTA(epsilon))


def _annealed_epsilon(n_epochs: int) -> Any:
    return annealed(RelaxedWTA, epsilon=Linear(0.5, 0.0, n_epochs))


def _exponential(n_epochs: int) -> Any:
    return annealed(AnnealedWTA, temperature=Exponential(0.5, 0.95, cutoff=5e-4))


def _linear(n_epochs: int) -> Any:
    return annealed(AnnealedWTA, temperature=Linear(0.5, 0.0, n_epochs))


METHODS = {
    method.name: method
    for method in (
        Method("mcl", "MCL", "mcl", lambda _: WTA(), evaluate_every=1),
        *(_relaxed(epsilon) for epsilon in (0.05, 0.1, 0.2, 0.5)),
        Method("relaxed-annealed", "Relaxed-WTA (ε annealed)", "relaxed_wta_annealed", _annealed_epsilon),
        Method("amcl-exponential", "aMCL (exponential)", "amcl_exp", _exponential),
        Method("amcl-linear", "aMCL (linear)", "amcl_lin", _linear),
        Method("mc-dropout", "MC dropout", "mc_dropout", lambda _: WTA(), dropout=_DROPOUT),
        Method("deep-ensemble", "Deep ensemble", "deep_ensembles", lambda _: WTA(), n_members=_N_MEMBERS),
    )
}


class PublishedCell(NamedTuple):
    """A published mean, and its standard deviation over folds if there are several folds."""

    mean: float
    std: float | None
    text: str


def published_cells() -> dict[tuple[str, str, str], PublishedCell]:
    """Return the published table entries by (set, published method name, metric)."""
    cells = {}
    for table in ("distortion", "rmse", "epsilon", "scheduler"):
        source = files("torchmcl_studies.uci") / "published" / f"uci_{table}.csv"
        for row in csv.DictReader(source.read_text().splitlines()):
            std = float(row["std"]) if row["std"] else None
            text = f"{row['mean']} ± {row['std'] or 'NA'}"
            cells[row["dataset"], row["method"], row["metric"]] = PublishedCell(float(row["mean"]), std, text)
    return cells
