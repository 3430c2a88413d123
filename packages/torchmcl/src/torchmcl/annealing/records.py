"""Statistics of soft assignments in training, and their records."""

import csv
import io
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl import theory
from torchmcl.errors import bad_value
from torchmcl.io import as_written, read_records, write_atomically, write_records
from torchmcl.types import Matching

__all__ = [
    "SCALARS",
    "AnnealingRecords",
    "AnnealingStatistics",
    "CostScale",
    "annealing_statistics",
    "cost_scale",
    "network_tolerance",
    "phase_transitions",
]


class AnnealingStatistics(NamedTuple):
    """Statistics of an assignment, on the device of the cost; nothing is read on the host.

    Attributes:
        distortion: Mean cost of the cheapest hypothesis, Equation (1).
        soft_distortion: Mean weighted cost D(q, f), Equation (7).
        entropy: Entropy H(q) of the weights of a target, in nats.
        free_energy: Free energy D - T H, Equation (11); the soft distortion for rules without a temperature.
        rate: Mutual information of targets and hypotheses in bits, Equation (10).
        usage: Fraction of the total weight of each hypothesis, [hypotheses].
    """

    distortion: Tensor
    soft_distortion: Tensor
    entropy: Tensor
    free_energy: Tensor
    rate: Tensor
    usage: Tensor


SCALARS = AnnealingStatistics._fields[:-1]


def annealing_statistics(matching: Matching, temperature: float | Tensor) -> AnnealingStatistics:
    """Compute the statistics of a matching.

    If inputs have several targets, the rate is computed for each input and averaged. A batch with one target per input
    does not represent the distribution of a single input; the rate is then computed over the whole batch, and includes
    the information about the input that the choice of a hypothesis carries.

    Args:
        matching: Cost, weights and mask of one model, [batch, targets, hypotheses]; use `torch.vmap` for several
            models.
        temperature: Temperature of the rule that computed the weights; 0 for rules without a temperature.

    Example:
        >>> import torch, torchmcl as mcl
        >>> cost = torch.tensor([[[0.0, 1.0]], [[1.0, 0.0]]])
        >>> hot = annealing_statistics(mcl.assign(cost, mcl.AnnealedWTA(1e6)), 1e6)
        >>> cold = annealing_statistics(mcl.assign(cost, mcl.WTA()), 0.0)
        >>> round(hot.rate.item(), 3), round(cold.rate.item(), 3), round(hot.soft_distortion.item(), 3)
        (0.0, 1.0, 0.5)
    """
    cost, weights, mask = matching
    cost, n_axes = cost.detach(), mask.ndim
    soft = theory.soft_distortion(cost, weights, mask=mask, mean_axes=n_axes)
    entropy = theory.assignment_entropy(weights, mask=mask, mean_axes=n_axes)
    n_real = mask.sum()
    if mask.shape[-1] == 1:
        rate = theory.mutual_information(weights.flatten(0, -2), mask.flatten())
    else:
        counts = mask.any(dim=-1)  # inputs without any valid target have no rate
        rate = (theory.mutual_information(weights, mask) * counts).sum() / counts.sum().clamp_min(1)
    return AnnealingStatistics(
        distortion=torch.where(mask, cost.amin(dim=-1), 0.0).sum() / n_real,
        soft_distortion=soft,
        entropy=entropy,
        free_energy=soft - temperature * entropy,
        rate=rate,
        usage=weights.flatten(0, -2).sum(dim=0) / n_real,
    )


class CostScale(NamedTuple):
    """Statistics of the costs, one entry per model.

    Attributes:
        mean: Mean over hypotheses, samples and valid targets.
        best: Distortion, the mean cost of the cheapest hypothesis over samples and valid targets.
        spread: Mean excess of the hypotheses over the best one of their sample.
        has_zero: Whether the costs have a natural zero, that is, none of them was negative.
    """

    mean: Tensor
    best: Tensor
    spread: Tensor
    has_zero: Tensor

    @property
    def scale(self) -> Tensor:
        """Unit of temperatures: the mean, or the spread of costs without a natural zero."""
        return torch.where(self.has_zero, self.mean, self.spread)


def cost_scale(matching: Matching, *, stacked: bool = False) -> CostScale:
    """Compute the scale of the costs, in their units.

    For costs that are never negative the scale is their mean over hypotheses, samples and valid targets. While the
    hypotheses coincide at the conditional mean it is the mean trace of the conditional covariances. With one covariance
    for all inputs, that is half of the local critical temperature 2 lambda_max in one dimension, and at least half of
    it in several.

    For a cost without a natural zero, such as the SI-SDR in decibels, the mean has no meaning. The scale is then the
    mean excess of the hypotheses over the best one of their sample. At this temperature a softmin begins to distinguish
    untrained hypotheses, and it is cold once they separate.

    Infinite and NaN costs are ignored; without a finite cost, all results are NaN.

    Args:
        matching: Matching of a step.
        stacked: Whether the leading axis of all tensors is an axis of models; the result then has one entry per model.

    Example:
        >>> from torchmcl import AnnealedWTA, assign
        >>> costs = cost_scale(assign(torch.tensor([[[1.0, 1.0]], [[3.0, 3.0]]]), AnnealedWTA(9.0)))
        >>> costs.scale, costs.has_zero
        (tensor(2.), tensor(True))
    """
    costs = matching.cost.detach().float()
    cost = costs.mean(dim=-1)  # over hypotheses
    known = matching.mask & cost.isfinite()
    axes = tuple(range(1 if stacked else 0, cost.ndim))
    n_known = known.to(cost.dtype).sum(dim=axes, keepdim=True)  # 0 makes the results NaN

    def mean(values: Tensor) -> Tensor:
        return torch.where(known, values, 0.0).sum(dim=axes, keepdim=True) / n_known

    def each(values: Tensor) -> Tensor:
        return values.flatten(1 if stacked else 0).squeeze(-1)

    middle, lowest = mean(cost), costs.amin(dim=-1)
    best, rounding = mean(lowest), torch.finfo(cost.dtype).eps ** 0.5 * mean(cost.abs())
    negative = (known & (lowest < -rounding)).flatten(1 if stacked else 0)
    return CostScale(each(middle), each(best), each(middle - best), ~negative.any(dim=-1))


# The merged hypotheses of a network in training differ by a few hundredths of the scale of the data. Three times the
# tolerance for free points is above that noise and detects a split a few percent late.
_NETWORK_FACTOR = 3


def network_tolerance(temperatures: Tensor) -> Tensor:
    """Return the distance below which two hypotheses of a network count as one, 0.3 sqrt(T).

    Example:
        >>> network_tolerance(torch.tensor([1.0, 0.25]))
        tensor([0.3000, 0.1500])
    """
    return _NETWORK_FACTOR * theory.thermal_tolerance(temperatures)


@dataclass(frozen=True)
class AnnealingRecords:
    """Statistics of a training run, one entry per record, in order.

    Attributes:
        step: Training steps, [records].
        temperature: Temperatures, [records]; 0 for rules without a temperature.
        distortion: Distortions, [records]; this field and the next four are described in `AnnealingStatistics`.
        usage: Fractions of the total weight, [records, hypotheses].
        probes: Inputs of `hypotheses`, [probes, ...]; None if they are the first rows of each batch.
        hypotheses: Hypotheses at the probes, [records, probes, hypotheses, dim].
        scores: Normalized scores, [records, probes, hypotheses]; None without a score head.
    """

    step: Tensor
    temperature: Tensor
    distortion: Tensor
    soft_distortion: Tensor
    entropy: Tensor
    free_energy: Tensor
    rate: Tensor
    usage: Tensor
    hypotheses: Tensor
    probes: Tensor | None = None
    scores: Tensor | None = None

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.step)

    @property
    def n_distinct(self) -> Tensor:
        """Number of distinct hypotheses of each probe, [records, probes], with `network_tolerance`."""
        return theory.n_distinct(self.hypotheses, network_tolerance(self.temperature)[:, None])

    def trajectory(self, probe: int = 0) -> theory.Trajectory:
        """Return the temperatures and the hypotheses of one probe, for the functions of `torchmcl.theory`.

        Raises:
            ValueError: If there is no such probe.
        """
        n_probes = self.hypotheses.shape[1]
        if not -n_probes <= probe < n_probes:
            rule = f"lie below the number of probes {n_probes}"
            raise ValueError(bad_value("AnnealingRecords.trajectory", "probe", rule, probe))
        return theory.Trajectory(self.temperature, self.hypotheses[:, probe])

    def save(self, path: str | Path) -> None:
        """Write a JSON line for each record, or a table of the scalars if the name ends in .csv.

        Raises:
            ValueError: For any other file extension.
        """
        path = Path(path)
        if path.suffix == ".csv":
            write_atomically(path, self._as_csv())
        elif path.suffix == ".jsonl":
            write_records(path, self._rows())
        else:
            raise ValueError(bad_value("AnnealingRecords.save", "path", "end in .jsonl or .csv", repr(str(path))))

    @classmethod
    def load(cls, path: str | Path) -> "AnnealingRecords":
        """Read the JSON lines of `save`.

        Raises:
            ValueError: If the file was not written by `save`.
        """
        names = [field.name for field in fields(cls)]
        rows = read_records("AnnealingRecords.load", Path(path), lambda row: [row[name] for name in names])
        if not rows:
            raise ValueError(bad_value("AnnealingRecords.load", "path", "contain at least one record", "an empty file"))
        probes = rows[0]["probes"]
        with as_written("AnnealingRecords.load", "path", "`save`"):
            columns = {
                name: torch.tensor([row[name] for row in rows])
                for name in names
                if name != "probes" and rows[0][name] is not None
            }
            return cls(**columns, probes=None if probes is None else torch.tensor(probes))

    def _rows(self) -> list[dict[str, Any]]:
        columns = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "probes"}
        nothing = [None] * len(self)
        values = {name: nothing if column is None else column.tolist() for name, column in columns.items()}
        probes = None if self.probes is None else self.probes.tolist()
        n_distinct = self.n_distinct.tolist()
        return [
            {name: column[i] for name, column in values.items()} | {"n_distinct": n_distinct[i], "probes": probes}
            for i in range(len(self))
        ]

    def _as_csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        n_distinct = self.n_distinct
        writer.writerow(["step", "temperature", *SCALARS, *(f"n_distinct_{i}" for i in range(n_distinct.shape[1]))])
        columns = [self.step, self.temperature, *(getattr(self, name) for name in SCALARS), *n_distinct.unbind(dim=1)]
        writer.writerows(zip(*(column.tolist() for column in columns), strict=True))
        return text.getvalue()


def phase_transitions(
    records: AnnealingRecords, probe: int = 0, *, tolerance: float | Tensor | None = None
) -> list[theory.Transition]:
    """Return the splits of the hypotheses at one probe input.

    The hypotheses of a network start at positions given by the initial weights, and may separate briefly and merge
    again while it trains. Only splits that last for the rest of the cooling count.

    Args:
        records: Records of a training run with falling temperature.
        probe: Index of the probe input.
        tolerance: Distance below which hypotheses count as one, a single value or one per record; by default the
            `network_tolerance` of each temperature.

    Returns:
        Transitions in order of time; their `step` is the number of the record. Empty if nothing split.

    Raises:
        ValueError: If there are fewer than two temperatures, or the temperature rises.

    Example:
        >>> import torch
        >>> from torchmcl.annealing import AnnealingRecords
        >>> t = torch.tensor([1.0, 0.9, 0.5, 0.2])
        >>> places = torch.tensor([[0.7, -0.5], [0.0, 0.0], [0.0, 0.0], [-1.0, 1.0]]).view(4, 1, 2, 1)
        >>> records = AnnealingRecords(torch.arange(4), t, t, t, t, t, t, torch.ones(4, 2) / 2, places)
        >>> [(transition.step, round(transition.temperature, 3)) for transition in phase_transitions(records)]
        [(3, 0.2)]

    References:
        D. Perera et al., *Annealed Multiple Choice Learning*, NeurIPS 2024, arXiv:2407.15580, Section 4.3 and
        Proposition 4.
    """
    temperatures, hypotheses = records.trajectory(probe)
    if len(temperatures.unique()) < 2:
        advice = "A transition is detected between two temperatures: record more often."
        got = f"{len(temperatures.unique())} in {len(temperatures)} records"
        raise ValueError(bad_value("phase_transitions", "records", "contain at least two temperatures", got, advice))
    reach = network_tolerance(temperatures) if tolerance is None else tolerance
    return theory.observed_transitions(theory.Trajectory(temperatures, hypotheses), reach, lasting=True)
