"""Weights of a model along its cooling, to predict with at each temperature: annealing at inference time."""

import copy
from pathlib import Path

import torch
from torch import Tensor, nn

from torchmcl._checks import bad_value, check_non_negative
from torchmcl.persistence.checkpoints import read_saved, write_checkpoint
from torchmcl.persistence.headers import MODEL_FILE
from torchmcl.persistence.reading import as_written
from torchmcl.types import Predictions

_KIND = "torchmcl snapshots"


class WeightHistory:
    """Weights of one model at falling temperatures.

    Args:
        model: any module that returns Predictions; its structure is copied, and the weights that `add` is given.

    Example:
        >>> from torchmcl import MultiHypothesisMLP
        >>> model = MultiHypothesisMLP(1, 2, n_hypotheses=3, hidden=(4,))
        >>> history = WeightHistory(model)
        >>> for temperature in (1.0, 0.5):
        ...     history.add(temperature, model)  # after some training at this temperature
        >>> history.predict(torch.zeros(5, 1)).hypotheses.shape
        torch.Size([2, 5, 3, 2])

    Reference:
        "Annealing at inference time" in the appendix.
    """

    def __init__(self, model: nn.Module) -> None:
        self._template = copy.deepcopy(model).cpu()
        self.temperatures: list[float] = []
        self.states: list[dict[str, Tensor]] = []

    def __len__(self) -> int:
        """Return the number of temperatures."""
        return len(self.temperatures)

    def add(self, temperature: float, model: nn.Module) -> None:
        """Store a copy of the weights of `model` at a temperature; temperatures must not rise.

        Raises:
            ValueError: if the temperature is above the previous one.
        """
        check_non_negative("WeightHistory.add", "temperature", temperature)
        if self.temperatures and temperature > self.temperatures[-1]:
            rule = f"not rise above the previous one {self.temperatures[-1]:g}"
            raise ValueError(bad_value("WeightHistory.add", "temperature", rule, f"{temperature:g}"))
        self.temperatures.append(float(temperature))
        self.states.append({name: value.detach().cpu().clone() for name, value in model.state_dict().items()})

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Predictions:
        """Return the predictions for inputs [inputs, ...] at each temperature, [temperatures, inputs, ...].

        Raises:
            ValueError: if there are fewer than two temperatures.
        """
        if len(self) < 2:
            advice = "Call add(temperature, model) along the cooling."
            rule = "hold at least two temperatures"
            raise ValueError(bad_value("WeightHistory.predict", "temperatures", rule, len(self), advice))
        model = copy.deepcopy(self._template).eval()
        predictions: list[Predictions] = []
        for state in self.states:
            model.load_state_dict(state)
            predictions.append(model(inputs))
        logits = [each.score_logits for each in predictions if each.score_logits is not None]
        return Predictions(
            torch.stack([each.hypotheses for each in predictions]), torch.stack(logits) if logits else None
        )

    def save(self, folder: str | Path) -> None:
        """Write `model.safetensors`, the temperatures and the weights, into a folder."""
        tensors = {f"{i}.{name}": value for i, state in enumerate(self.states) for name, value in state.items()}
        state = {"temperatures": self.temperatures}
        write_checkpoint(Path(folder) / MODEL_FILE, _KIND, state=state, tensors=tensors)

    @classmethod
    def load(cls, folder: str | Path, model: nn.Module) -> "WeightHistory":
        """Read a folder written by `save`, for a model of the same structure.

        Raises:
            ValueError: if the folder holds something else, or weights of another structure.
        """
        checkpoint = read_saved("WeightHistory.load", Path(folder), _KIND, "`WeightHistory.save`")
        history = cls(model)
        with as_written("WeightHistory.load", "folder", "`WeightHistory.save`"):
            history.temperatures = [float(temperature) for temperature in checkpoint.state["temperatures"]]
            for i in range(len(history.temperatures)):
                prefix = f"{i}."
                state = {n.removeprefix(prefix): v for n, v in checkpoint.tensors.items() if n.startswith(prefix)}
                history._template.load_state_dict(state)  # raises for weights of another structure
                history.states.append(state)
        return history
