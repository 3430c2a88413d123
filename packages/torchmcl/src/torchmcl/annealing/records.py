"""Records of an annealed training run: on the CPU, on disk, and as a trajectory with its phase transitions."""

import csv
import io
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchmcl import theory
from torchmcl.annealing.measure import SCALARS
from torchmcl.checks import bad_value
from torchmcl.io import as_written, read_records, write_atomically, write_records

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
        distortion: [records], and so on: see `Measurement`.
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
