"""Measurements of soft assignments during a training, and their records."""

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
    """The state of an assignment, as scalars on the device of the cost; nothing is read on the host.

    Attributes:
        distortion: mean cost of the cheapest hypothesis, Eq. (1).
        soft_distortion: mean weighted cost D(q, f), Eq. (7).
        entropy: H(q), of the weights given the target, in nats.
        free_energy: D - T H, Eq. (11); the soft distortion itself for rules without a temperature.
        rate: mutual information of targets and hypotheses, in bits, Eq. (10).
        usage: [hypotheses], the share of the weight of each.
    """

    distortion: Tensor
    soft_distortion: Tensor
    entropy: Tensor
    free_energy: Tensor
    rate: Tensor
    usage: Tensor


SCALARS = AnnealingStatistics._fields[:-1]


def annealing_statistics(matching: Matching, temperature: float | Tensor) -> AnnealingStatistics:
    """Return the recorded quantities of a matching.

    If inputs have several targets, the rate is computed for each input and averaged. A batch with one target per input
    does not show the distribution of a single input; the rate is then computed over the whole batch, and includes the
    information that the choice carries about the input.

    Args:
        matching: cost, weights and mask [batch, targets, hypotheses] of one model (`torch.vmap` for more).
        temperature: of the rule that made the weights; 0 for rules without one.

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
        counts = mask.any(dim=-1)  # inputs without any real target have no rate
        rate = (theory.mutual_information(weights, mask) * counts).sum() / counts.sum().clamp_min(1)
    return AnnealingStatistics(
        distortion=torch.where(mask, cost.amin(dim=-1), 0.0).sum() / n_real,
        soft_distortion=soft,
        entropy=entropy,
        free_energy=soft - temperature * entropy,
        rate=rate,
        usage=weights.flatten(0, -2).sum(dim=0) / n_real,
    )


# The smallest difference between hypotheses that counts, relative to how far samples deviate.
_SMALLEST_SPREAD = 1e-3
# A distance may come out below 0 by rounding, relative to the size of distances.
_ROUNDING = 1e-5


class CostScale(NamedTuple):
    """Statistics of the costs, one entry per model.

    Attributes:
        mean: over hypotheses, samples and real targets.
        best: of the cheapest hypothesis, over samples and real targets: the distortion.
        spread: how far hypotheses are above the best one of their sample, on average.
        has_zero: whether the costs have a natural zero: none of them was negative.
    """

    mean: Tensor
    best: Tensor
    spread: Tensor
    has_zero: Tensor

    @property
    def scale(self) -> Tensor:
        """The unit of temperatures: the mean, or the spread of costs without a natural zero."""
        return torch.where(self.has_zero, self.mean, self.spread)


def cost_scale(matching: Matching, *, stacked: bool = False) -> CostScale:
    """Return the scale of the costs, in their units.

    For costs that are never negative the scale is their mean over hypotheses, samples and real targets. While the
    hypotheses are together it is the trace of the conditional covariance, half of the critical temperature in one
    dimension and above it in several.

    For a cost without a natural zero, such as the SI-SDR in decibels, the mean has no meaning. Its scale is how far
    hypotheses are above the best one of their sample, the quantity that a softmin acts on: at that temperature it just
    begins to distinguish untrained hypotheses, and once they separate, it is cold. It is at least a thousandth of the
    mean deviation of samples, so that rounding errors do not count as differences.

    Costs that are not finite are left out; if none is, everything is NaN.

    Args:
        matching: of a step.
        stacked: the leading axis is models; one number per model.

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
    best, deviation = mean(lowest), mean((cost - middle).abs())
    negative = known & (lowest < -_ROUNDING * mean(cost.abs()))
    return CostScale(
        each(middle),
        each(best),
        each(torch.maximum(middle - best, _SMALLEST_SPREAD * deviation)),
        ~negative.flatten(1 if stacked else 0).any(dim=-1),
    )


# A network in training keeps its hypotheses together to a few hundredths of the scale of the data, not
# exactly. Three times the tolerance for free points detects a split a few percent late and is above that noise.
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
    """The measurements of a recorder, one entry for each record, in order.

    Attributes:
        step: [records], of the training.
        temperature: [records], 0 for rules without one.
        distortion: [records], and so on: see `AnnealingStatistics`.
        usage: [records, hypotheses].
        probes: [probes, ...], the inputs of `hypotheses`; None where those are the first rows of the batch.
        hypotheses: [records, probes, hypotheses, dim].
        scores: [records, probes, hypotheses], normalized; None without a score head.
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
        """Return temperatures and hypotheses of one probe, for the functions of `torchmcl.theory`.

        Raises:
            ValueError: if there is no such probe.
        """
        n_probes = self.hypotheses.shape[1]
        if not -n_probes <= probe < n_probes:
            rule = f"lie below the number of probes {n_probes}"
            raise ValueError(bad_value("AnnealingRecords.trajectory", "probe", rule, probe))
        return theory.Trajectory(self.temperature, self.hypotheses[:, probe])

    def save(self, path: str | Path) -> None:
        """Write a JSON line for each record, or a table of the scalars if the name ends in .csv.

        Raises:
            ValueError: for any other file extension.
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
            ValueError: if the file was not written by `save`.
        """
        names = [field.name for field in fields(cls)]
        rows = read_records("AnnealingRecords.load", Path(path), lambda row: [row[name] for name in names])
        if not rows:
            raise ValueError(bad_value("AnnealingRecords.load", "path", "hold at least one record", "an empty file"))
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
        records: of a training run with falling temperature.
        probe: number of the probe input.
        tolerance: the distance below which hypotheses count as one, a single value or one per record;
            `network_tolerance` of each temperature by default.

    Returns:
        Transitions in order of time; their `step` is the number of the record. Empty if nothing split.

    Raises:
        ValueError: if there are fewer than two temperatures, or the temperature rises.

    Example:
        >>> import torch
        >>> from torchmcl.annealing import AnnealingRecords
        >>> t = torch.tensor([1.0, 0.9, 0.5, 0.2])
        >>> places = torch.tensor([[0.7, -0.5], [0.0, 0.0], [0.0, 0.0], [-1.0, 1.0]]).view(4, 1, 2, 1)
        >>> records = AnnealingRecords(torch.arange(4), t, t, t, t, t, t, torch.ones(4, 2) / 2, places)
        >>> [(transition.step, round(transition.temperature, 3)) for transition in phase_transitions(records)]
        [(3, 0.2)]

    Reference:
        Section on phase transitions; Prop. 4 says where the first one is.
    """
    temperatures, hypotheses = records.trajectory(probe)
    if len(temperatures.unique()) < 2:
        advice = "A transition is detected between two temperatures: record more often."
        got = f"{len(temperatures.unique())} in {len(temperatures)} records"
        raise ValueError(bad_value("phase_transitions", "records", "hold at least two temperatures", got, advice))
    reach = network_tolerance(temperatures) if tolerance is None else tolerance
    return theory.observed_transitions(theory.Trajectory(temperatures, hypotheses), reach, lasting=True)
