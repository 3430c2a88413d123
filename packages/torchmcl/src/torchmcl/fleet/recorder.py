"""A recorder for fleets: measurements of every model on held-out rows after some of the epochs."""

import torch
from torch import Tensor

from torchmcl._checks import bad_value, check_positive_int
from torchmcl.annealing import AnnealingRecords, measure
from torchmcl.annealing.measure import SCALARS
from torchmcl.fleet.epochs import EpochInfo
from torchmcl.fleet.fleet import Fleet
from torchmcl.step import mcl_step
from torchmcl.types import Batch

__all__ = ["FleetRecorder"]


class FleetRecorder:
    """Pass it as `after_epoch=` of `Fleet.fit`; records stay on the device until `records` is called.

    Args:
        fleet: whose rules give each model its weights and temperature.
        n_epochs: of the training.
        data: held-out rows [rows, ...] and targets [rows, targets, dim] to measure on, the same for all models.
        probes: [probes, ...], inputs whose hypotheses are recorded.
        every: epochs between records; the last epoch is always recorded.

    Example:
        >>> from torchmcl import AnnealedWTA, Exponential, MultiHypothesisMLP, WTA, annealed
        >>> from torchmcl.data.synthetic import conditional_three_gaussians
        >>> from torchmcl.fleet import SampledData
        >>> cooling = annealed(AnnealedWTA(1.0), temperature=Exponential(1.0, 0.5))
        >>> fleet = Fleet(lambda: MultiHypothesisMLP(1, 2, 3, hidden=(8,)), 2, rule=[WTA(), cooling])
        >>> held_out = conditional_three_gaussians(50)
        >>> recorder = FleetRecorder(fleet, 6, data=held_out, probes=torch.tensor([[0.1], [0.9]]), every=2)
        >>> source = SampledData(conditional_three_gaussians, n_rows=64, n_models=2)
        >>> history = fleet.fit(source, 6, after_epoch=recorder, progress=False)
        >>> plain, annealed_ = recorder.records()
        >>> annealed_.step.tolist(), annealed_.temperature.tolist(), annealed_.hypotheses.shape
        ([1, 3, 5], [0.5, 0.125, 0.03125], torch.Size([3, 2, 3, 2]))
    """

    def __init__(self, fleet: Fleet, n_epochs: int, *, data: Batch, probes: Tensor, every: int = 10) -> None:
        check_positive_int("FleetRecorder", "n_epochs", n_epochs)
        check_positive_int("FleetRecorder", "every", every)
        if len(data.inputs) != len(data.targets) or len(data.inputs) == 0:
            got = f"{len(data.inputs)} and {len(data.targets)}"
            raise ValueError(bad_value("FleetRecorder", "data", "have as many inputs as targets, at least one", got))
        self._fleet, self._n_epochs, self.every = fleet, n_epochs, every
        self._data = Batch(*(None if part is None else part.to(fleet.device) for part in data))  # type: ignore[arg-type]
        self._probes = probes.to(fleet.device)
        self._records: dict[int, list[tuple[int, Tensor, Tensor, Tensor, Tensor, Tensor]]] = {}

    @torch.no_grad()
    def __call__(self, end: EpochInfo) -> None:
        """Record the models of a chunk, if the epoch is due."""
        epoch, rows, models, rule, temperatures = end
        if (epoch + 1) % self.every and epoch + 1 != self._n_epochs:
            return
        batch = Batch(*(None if p is None else p.expand(len(models), *p.shape) for p in self._data))  # type: ignore[arg-type]
        with models.evaluating():
            matching = mcl_step(models, batch, rule, cost_fn=self._fleet.cost_fn, score_weight=0, stacked=True).matching
            probed = models(self._probes.expand(len(models), *self._probes.shape))
        logits = probed.score_logits
        scores = (
            probed.hypotheses.new_empty(len(models), 0) if logits is None else self._fleet.scores.probabilities(logits)
        )
        measured = torch.vmap(measure)(matching, temperatures)
        scalars = torch.stack([getattr(measured, name) for name in SCALARS], dim=-1)
        record = (temperatures, scalars, measured.usage, probed.hypotheses.flatten(3), scores)
        self._records.setdefault(rows.start, []).append((epoch, *record))

    def records(self) -> list[AnnealingRecords]:
        """Return the records of each model, on the CPU.

        Raises:
            ValueError: if there are none yet.
        """
        if not self._records:
            rule = "hold at least one record"
            raise ValueError(bad_value("FleetRecorder", "records", rule, "none", "Pass it as after_epoch= of fit."))
        found: list[AnnealingRecords] = []
        for start in sorted(self._records):
            epochs = [epoch for epoch, *_ in self._records[start]]
            temperatures, scalars, usage, probed, scores = (
                torch.stack(parts).cpu() for parts in zip(*(rest for _, *rest in self._records[start]), strict=True)
            )
            found += [
                AnnealingRecords(
                    torch.tensor(epochs),
                    temperatures[:, i],
                    **dict(zip(SCALARS, scalars[:, i].unbind(dim=-1), strict=True)),
                    usage=usage[:, i],
                    hypotheses=probed[:, i],
                    probes=self._probes.cpu(),
                    scores=scores[:, i] if scores.numel() else None,
                )
                for i in range(scalars.shape[1])
            ]
        return found
