"""The last few checkpoints of one run: if the newest is damaged, the previous one is used."""

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from torchmcl._checks import bad_value, check_positive_int
from torchmcl.persistence.checkpoints import Checkpoint, CheckpointError, read_checkpoint, write_checkpoint
from torchmcl.persistence.writing import remove_abandoned

__all__ = ["CheckpointSeries"]

_SUFFIX = ".safetensors"


class CheckpointSeries:
    """Checkpoints `<name>-<step>.safetensors` in a folder, of which the newest are kept.

    Args:
        folder: made with the first save.
        kind: of all checkpoints.
        name: prefix of the files.
        keep: how many are kept; with 1 there is none to fall back on.

    Example:
        >>> import tempfile, torch
        >>> series = CheckpointSeries(Path(tempfile.mkdtemp()), "my loop", keep=2)
        >>> for step in (10, 20, 30):
        ...     series.save(step, state={"loss": 1 / step}, tensors={"weight": torch.ones(2)})
        >>> series.steps(), series.newest()[0]
        ([20, 30], 30)
    """

    def __init__(self, folder: Path | str, kind: str, *, name: str = "checkpoint", keep: int = 2) -> None:
        check_positive_int("CheckpointSeries", "keep", keep)
        self.folder, self.kind, self.name, self.keep = Path(folder), kind, name, keep

    def path(self, step: int) -> Path:
        """Return the file of a step."""
        return self.folder / f"{self.name}-{step:08d}{_SUFFIX}"

    def steps(self) -> list[int]:
        """Return the steps with a file, in order."""
        pattern = re.compile(re.escape(self.name) + r"-(\d{8,})" + re.escape(_SUFFIX))
        names = [path.name for path in self.folder.iterdir()] if self.folder.is_dir() else []
        return sorted(int(found[1]) for name in names if (found := pattern.fullmatch(name)))

    def save(self, step: int, *, state: Any, tensors: Mapping[str, Tensor]) -> None:
        """Write the checkpoint of a step, then remove the oldest ones.

        Raises:
            OSError: if it cannot be written; the checkpoints before are then untouched.
        """
        write_checkpoint(self.path(step), self.kind, state=state, tensors=tensors)
        self.prune()

    def prune(self) -> None:
        """Remove all but the newest checkpoints, and the temporary files of killed processes."""
        for step in self.steps()[: -self.keep]:
            self.path(step).unlink(missing_ok=True)
        remove_abandoned(self.folder)

    def newest(self) -> tuple[int, Checkpoint] | None:
        """Return the newest step with a complete checkpoint, and the checkpoint; None without a file.

        Damaged ones are passed over with a warning.

        Raises:
            CheckpointError: if there are files and none of them is whole.
        """
        damaged = None
        for step in reversed(self.steps()):
            try:
                found = read_checkpoint(self.path(step), self.kind)
            except CheckpointError as error:
                damaged = damaged or error
                continue
            if damaged is not None:
                message = f"{damaged} Going on from the one before it, {self.path(step).name}."
                warnings.warn(message, RuntimeWarning, stacklevel=2)
            return step, found
        if damaged is not None:
            rule, advice = "hold a whole checkpoint", "Delete it to start anew."
            got = f"{str(self.folder)!r} where the newest is damaged ({damaged})"
            raise CheckpointError(bad_value("CheckpointSeries", "folder", rule, got, advice))
        return None
