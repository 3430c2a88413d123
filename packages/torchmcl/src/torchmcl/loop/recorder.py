"""Recorder of annealing statistics in training loops."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor, nn

from torchmcl.annealing import AnnealingRecords, annealing_statistics
from torchmcl.annealing.records import SCALARS
from torchmcl.checks import check_callable, check_positive_int
from torchmcl.errors import bad_value
from torchmcl.rules.winners import AssignmentRule
from torchmcl.scoring import ScoreObjective, SigmoidScores, check_score_objective
from torchmcl.types import Predictions, StepOutput

__all__ = ["Recorder"]

_SIGMOID_SCORES = SigmoidScores()
# Number of first rows of a batch whose hypotheses are recorded without probes.
_N_ROWS = 4
# Number of records that are transferred from the device together.
_N_WAITING = 200


class Recorder:
    """Recorder of annealing statistics, to be called after each training step.

    It records temperature, distortion, soft distortion, entropy, free energy, rate, usage, and hypotheses of every
    `every`-th step. All values except the hypotheses at `probes` are taken from the step, and values are read on the
    host for many records at a time. The model is evaluated at the probes in evaluation mode: recording changes neither
    its running statistics nor its random numbers.

    Args:
        every: Number of steps between records.
        model: Model that returns the hypotheses at `probes`.
        probes: Inputs whose hypotheses are recorded, [probes, ...]; by default up to four first rows of each batch. A
            batch with fewer rows than the first batch repeats its rows. The records contain probes that are a tensor.
        scores: Score objective, which defines the probabilities, as in `mcl_step`.
        path: Path of a .jsonl file that is updated regularly, and complete at the end of a `with` block.

    Example:
        >>> import torchmcl as mcl
        >>> model = mcl.MultiHypothesisMLP(1, 1, n_hypotheses=3, hidden=(8,))
        >>> optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        >>> cooling = mcl.annealed(mcl.AnnealedWTA, temperature=mcl.Linear(0.5, 0.0, 40))
        >>> batch = mcl.Batch(torch.rand(64, 1), torch.randn(64, 1, 1))
        >>> recorder = Recorder(every=10, model=model, probes=torch.tensor([[0.5]]))
        >>> for step in range(40):
        ...     rule = cooling(step)
        ...     output = mcl.mcl_step(model, batch, rule)
        ...     optimizer.zero_grad()
        ...     output.loss.backward()
        ...     optimizer.step()
        ...     recorder(step, output, rule)
        >>> records = recorder.records()
        >>> records.step.tolist(), records.hypotheses.shape
        ([0, 10, 20, 30], torch.Size([4, 1, 3, 1]))
    """

    def __init__(
        self,
        *,
        every: int = 10,
        model: Callable[[Tensor], Predictions] | None = None,
        probes: Tensor | None = None,
        scores: ScoreObjective = _SIGMOID_SCORES,
        path: str | Path | None = None,
    ) -> None:
        check_score_objective("Recorder", scores)
        check_positive_int("Recorder", "every", every)
        if probes is not None:
            check_callable("Recorder", "model", model, "Recorder(model=model, probes=x)")
        if path is not None and Path(path).suffix != ".jsonl":
            raise ValueError(bad_value("Recorder", "path", "end in .jsonl", repr(str(path))))
        self.every = every
        self._model, self._probes, self._scores = model, probes, scores
        self._path = None if path is None else Path(path)
        self._steps: list[int] = []
        self._temperatures: list[float] = []
        self._waiting: list[Tensor] = []
        self._done: list[Tensor] = []
        self._shape: tuple[int, int, int] = (0, 0, 0)

    @torch.no_grad()
    def __call__(self, step: int, output: StepOutput, rule: AssignmentRule) -> None:
        """Record the step if its number is a multiple of `every`.

        Args:
            step: Training step.
            output: Result of `mcl_step`.
            rule: Assignment rule of the step.

        Raises:
            ValueError: If the rule has several temperatures.
        """
        if step % self.every:
            return
        temperature = getattr(rule, "temperature", 0.0)
        if isinstance(temperature, Tensor) and temperature.numel() != 1:
            shape = f"temperatures of shape {tuple(temperature.shape)}"
            raise ValueError(bad_value("Recorder", "rule", "have one temperature for the whole batch", shape))
        seen = output.predictions
        if self._probes is not None and self._model is not None:
            with _evaluating(self._model):
                seen = self._model(self._probes)
        n_seen = len(seen.hypotheses)
        if n_seen == 0:
            return
        measured = annealing_statistics(output.matching, temperature)
        n_rows = self._shape[0] or (min(n_seen, _N_ROWS) if self._probes is None else n_seen)
        rows = torch.arange(n_rows, device=seen.hypotheses.device) % n_seen  # all records have the same shape
        hypotheses, logits = seen.hypotheses[rows], None if seen.score_logits is None else seen.score_logits[rows]
        self._shape = (hypotheses.shape[0], hypotheses.shape[1], hypotheses[0, 0].numel())
        scalars = torch.stack([getattr(measured, name) for name in SCALARS])
        scores = hypotheses.new_empty(0) if logits is None else self._scores.probabilities(logits)
        parts = (scalars, measured.usage, hypotheses.reshape(-1), scores.reshape(-1))
        self._waiting.append(torch.cat([part.to(scalars.dtype) for part in parts]))
        self._steps.append(step)
        self._temperatures.append(float(temperature))
        if len(self._waiting) >= _N_WAITING:
            self._fetch()
            if self._path is not None:
                self.records().save(self._path)

    def records(self) -> AnnealingRecords:
        """Return all records so far.

        Raises:
            ValueError: If there are no records yet.
        """
        self._fetch()
        if not self._done:
            raise ValueError(bad_value("Recorder", "records", "contain at least one record", "none", "Train first."))
        table = torch.cat(self._done)
        n_rows, n_hypotheses, dim = self._shape
        n_places = n_rows * n_hypotheses
        sizes = [len(SCALARS), n_hypotheses, n_places * dim]
        scalars, usage, hypotheses, scores = table.split([*sizes, table.shape[1] - sum(sizes)], dim=1)
        return AnnealingRecords(
            torch.tensor(self._steps),
            torch.tensor(self._temperatures),
            **dict(zip(SCALARS, scalars.unbind(dim=1), strict=True)),
            usage=usage,
            hypotheses=hypotheses.unflatten(1, self._shape),
            probes=self._probes.detach().cpu() if isinstance(self._probes, Tensor) else None,
            scores=scores.unflatten(1, (n_rows, n_hypotheses)) if scores.numel() else None,
        )

    def __enter__(self) -> "Recorder":
        """Return the recorder."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the file, even after an error."""
        if self._path is not None and self._steps:
            self.records().save(self._path)

    def _fetch(self) -> None:
        if self._waiting:
            self._done.append(torch.stack(self._waiting).cpu())
            self._waiting = []


@contextmanager
def _evaluating(model: Callable[[Tensor], Predictions]) -> Iterator[None]:
    """Put a module into evaluation mode inside a `with` block; afterwards, restore the mode of each submodule."""
    modes = {part: part.training for part in model.modules()} if isinstance(model, nn.Module) else {}
    for part in modes:
        part.training = False
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training
