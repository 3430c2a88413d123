"""Saving a fleet in training, so that it goes on to the same bits.

A folder holds `plan.json`, which says what is being trained, and one safetensors file for each
chunk. Files are written under another name, flushed to the disk and then renamed.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchmcl._checks import bad_value
from torchmcl._files import write_atomically
from torchmcl._optional import optional_import

__all__ = ["FleetCheckpoint"]


class FleetCheckpoint:
    """The saved state of one training.

    Raises:
        ValueError: if the folder holds the state of another training.
    """

    def __init__(self, folder: Path, plan: dict[str, Any]) -> None:
        self._io = optional_import("safetensors.torch", extra="checkpoint", needed_by="Fleet.fit(checkpoint=...)")
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        path, text = folder / "plan.json", json.dumps(plan, indent=1)
        if not path.exists():
            write_atomically(path, text)
        elif (saved := json.loads(path.read_text())) != json.loads(text):
            differ = sorted(name for name in plan if saved.get(name) != json.loads(text)[name])
            advice = "Give another folder, or delete this one to start anew."
            rule = "be empty or hold this very training"
            raise ValueError(bad_value("Fleet.fit", "checkpoint", rule, f"{folder} which differs in {differ}", advice))

    def load(self, chunk: int, state: dict[str, Tensor]) -> tuple[int, float]:
        """Fill `state` from the file of a chunk; return the next epoch and the seconds so far, 0 without a file."""
        path = self._path(chunk)
        if not path.exists():
            return 0, 0.0
        saved = self._io.load_file(path)
        with torch.no_grad():
            for name, tensor in state.items():
                tensor.copy_(saved[name])
        return int(saved["next_epoch"]), float(saved["seconds"])

    def save(self, chunk: int, next_epoch: int, seconds: float, state: dict[str, Tensor]) -> None:
        """Write the state of a chunk."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        tensors["next_epoch"] = torch.tensor(next_epoch)
        tensors["seconds"] = torch.tensor(seconds, dtype=torch.float64)
        write_atomically(self._path(chunk), self._io.save(tensors))

    def _path(self, chunk: int) -> Path:
        return self.folder / f"chunk-{chunk:04d}.safetensors"
