"""An interrupted training run of `torchmcl fit`, resumed only by the same command."""

import argparse
import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchmcl._messages import bad_value
from torchmcl.persistence.reading import read_json
from torchmcl.persistence.stopping import Stopped
from torchmcl.persistence.writing import write_atomically

__all__ = ["UnfinishedTraining"]

_COMMAND = "command.json"
# Options that do not change what is learned; the rows count, not the name of their file.
_FREE = ("table", "out", "quiet", "overwrite", "restart", "example", "device", "words", "private")


@dataclass(frozen=True)
class UnfinishedTraining:
    """The folder of a training state beside the model, and its command.

    Attributes:
        folder: of the saved state.
        command: what must be the same for it to be resumed: options, and a digest of the table.
    """

    folder: Path
    command: dict[str, Any]

    @classmethod
    def beside(cls, out: Path, options: argparse.Namespace) -> "UnfinishedTraining":
        """Return the training state of a model's folder, which is replaced as a whole and cannot contain it."""
        plain = (bool, int, float, str, list, tuple, type(None))
        command = {k: v for k, v in vars(options).items() if k not in _FREE and isinstance(v, plain)}
        command["table"] = hashlib.sha256(options.table.read_bytes()).hexdigest()
        place = out.resolve()
        return cls(place.with_name(f"{place.name}.checkpoint"), json.loads(json.dumps(command)))

    def check(self, *, restart: bool = False) -> None:
        """Check that a saved state, if there is one, belongs to the command.

        Args:
            restart: whether the saved state of another command may be discarded.

        Raises:
            ValueError: if it belongs to another command, whose differing options the message names, or the folder
                holds something else.
        """
        path = self.folder / _COMMAND
        is_empty = self.folder.is_dir() and not any(self.folder.iterdir())
        if self.folder.exists() and not path.is_file() and not is_empty:
            rule, got = "not have other files in the place of its checkpoint", repr(str(self.folder))
            raise ValueError(bad_value("fit", "--out", rule, got, "Give another name, or remove them first."))
        if restart or not self._holds_state():
            return
        if names := self._differences():
            differ = ", ".join("the table" if name == "table" else f"--{name.replace('_', '-')}" for name in names)
            rule = "not have an unfinished training by another command beside it"
            got = f"{str(self.folder)!r}, which differs in {differ}"
            advice = "Rerun that command to resume it, add --restart to discard it, or give another --out."
            raise ValueError(bad_value("fit", "--out", rule, got, advice))

    def resumes(self) -> bool:
        """Return whether a saved state belongs to the command."""
        try:
            return self._holds_state() and not self._differences()
        except (ValueError, OSError):  # no command, or one that cannot be read
            return False

    def _differences(self) -> list[str]:
        """Return the options in which the command of the saved state differs."""
        before = read_json("fit", self.folder / _COMMAND)
        before = before if isinstance(before, dict) else {}
        return sorted(k for k in {*before, *self.command} if before.get(k) != self.command.get(k))

    @contextlib.contextmanager
    def kept(self, *, restart: bool) -> Iterator[Path]:
        """Yield the folder to save to; it is kept if the work ends early and a state was saved.

        Raises:
            Stopped: if a signal ended the work; its message explains how to resume.
        """
        if restart or not self._holds_state():
            self.discard()
            write_atomically(self.folder / _COMMAND, json.dumps(self.command))
        try:
            yield self.folder
        except Stopped as stopped:
            if self._holds_state() and "resume" not in str(stopped):
                hint = f"The training is saved in {str(self.folder)!r}: rerun the same command to resume."
                raise Stopped(stopped.signal, hint) from None
            raise
        finally:
            if not self._holds_state():
                self.discard()

    def discard(self) -> None:
        """Remove the saved state; a foreign folder of this name is kept."""
        if (self.folder / _COMMAND).is_file():
            shutil.rmtree(self.folder, ignore_errors=True)

    def _holds_state(self) -> bool:
        return self.folder.is_dir() and any(path.name != _COMMAND for path in self.folder.iterdir())
