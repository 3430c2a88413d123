"""Copies of a model along its cooling, which can be replayed: annealing at inference time."""

import copy
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchmcl._checks import bad_value, check_non_negative
from torchmcl.persistence.checkpoints import read_saved, write_checkpoint
from torchmcl.persistence.headers import MODEL_FILE
from torchmcl.persistence.reading import as_written
from torchmcl.scoring import normalized_scores
from torchmcl.types import Predictions

__all__ = ["Replay", "Snapshots"]

_KIND = "torchmcl snapshots"


class Replay(NamedTuple):
    """The cooling, replayed for some inputs.

    Attributes:
        temperatures: [snapshots], from hot to cold.
        hypotheses: [snapshots, inputs, hypotheses, dim].
        masses: [inputs, hypotheses], the coldest model's normalised scores; equal without a score head.
    """

    temperatures: Tensor
    hypotheses: Tensor
    masses: Tensor


class Snapshots:
    """Weights of one model at falling temperatures.

    Args:
        model: any module that returns Predictions; its structure is copied, and the weights that `add` is given.

    Example:
        >>> from torchmcl import MultiHypothesisMLP
        >>> model = MultiHypothesisMLP(1, 2, n_hypotheses=3, hidden=(4,))
        >>> snapshots = Snapshots(model)
        >>> for temperature in (1.0, 0.5):
        ...     snapshots.add(temperature, model)  # after some training at this temperature
        >>> snapshots.replay(torch.zeros(5, 1)).hypotheses.shape
        torch.Size([2, 5, 3, 2])

    Reference:
        "Annealing at inference time" in the appendix.
    """

    def __init__(self, model: nn.Module) -> None:
        self._template = copy.deepcopy(model).cpu()
        self.temperatures: list[float] = []
        self.states: list[dict[str, Tensor]] = []

    def __len__(self) -> int:
        """Return how many snapshots there are."""
        return len(self.temperatures)

    def add(self, temperature: float, model: nn.Module) -> None:
        """Keep a copy of the weights of `model` as they are at a temperature, which must not rise.

        Raises:
            ValueError: if the temperature is above the previous one.
        """
        check_non_negative("Snapshots.add", "temperature", temperature)
        if self.temperatures and temperature > self.temperatures[-1]:
            rule = f"not rise above the previous one {self.temperatures[-1]:g}"
            raise ValueError(bad_value("Snapshots.add", "temperature", rule, f"{temperature:g}"))
        self.temperatures.append(float(temperature))
        self.states.append({name: value.detach().cpu().clone() for name, value in model.state_dict().items()})

    @torch.no_grad()
    def replay(self, inputs: Tensor) -> Replay:
        """Return the answers of the model to inputs [inputs, ...] at each temperature.

        Raises:
            ValueError: if there are fewer than two snapshots.
        """
        if len(self) < 2:
            advice = "Call add(temperature, model) along the cooling."
            raise ValueError(bad_value("Snapshots.replay", "snapshots", "be at least two", len(self), advice))
        model = copy.deepcopy(self._template).eval()
        answers: list[Predictions] = []
        for state in self.states:
            model.load_state_dict(state)
            answers.append(model(inputs))
        hypotheses = torch.stack([answer.hypotheses for answer in answers])
        logits = answers[-1].score_logits
        n_hypotheses = hypotheses.shape[-2]
        masses = hypotheses.new_full(hypotheses.shape[1:-1], 1 / n_hypotheses)
        return Replay(
            torch.tensor(self.temperatures), hypotheses, masses if logits is None else normalized_scores(logits)
        )

    def save(self, folder: str | Path) -> None:
        """Write `model.safetensors`, the temperatures and the weights, into a folder."""
        tensors = {f"{i}.{name}": value for i, state in enumerate(self.states) for name, value in state.items()}
        state = {"temperatures": self.temperatures}
        write_checkpoint(Path(folder) / MODEL_FILE, _KIND, state=state, tensors=tensors)

    @classmethod
    def load(cls, folder: str | Path, model: nn.Module) -> "Snapshots":
        """Read what `save` wrote, for a model of the same structure.

        Raises:
            ValueError: if the folder holds something else, or weights of another structure.
        """
        checkpoint = read_saved("Snapshots.load", Path(folder), _KIND, "`Snapshots.save`")
        snapshots = cls(model)
        with as_written("Snapshots.load", "folder", "`Snapshots.save`"):
            snapshots.temperatures = [float(temperature) for temperature in checkpoint.state["temperatures"]]
            for i in range(len(snapshots.temperatures)):
                prefix = f"{i}."
                state = {n.removeprefix(prefix): v for n, v in checkpoint.tensors.items() if n.startswith(prefix)}
                snapshots._template.load_state_dict(state)  # raises for weights of another structure
                snapshots.states.append(state)
        return snapshots
