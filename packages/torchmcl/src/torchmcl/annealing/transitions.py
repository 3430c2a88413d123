"""Phase transitions of a recorded training."""

from torch import Tensor

from torchmcl import theory
from torchmcl._checks import bad_value
from torchmcl.annealing.records import AnnealingRecords, network_tolerance


def phase_transitions(
    records: AnnealingRecords, probe: int = 0, *, tolerance: float | Tensor | None = None
) -> list[theory.Transition]:
    """Return the splits of the hypotheses at one probe input.

    The hypotheses of a network start wherever the initial weights put them, and may part for a moment and come together
    again while it trains. Only splits that last for the rest of the cooling count.

    Args:
        records: of a training that cools.
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
