"""Sharing of models of all kinds, as a folder with `model.safetensors` and a model card, on disk or on a hub.

A class that inherits from `Shareable` has `save(folder)` and a class method `load(folder)`, in the format of
`torchmcl.io`: no pickle, and nothing from a file is executed.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from torchmcl._version import __version__
from torchmcl.errors import bad_value
from torchmcl.io.codec import Codec, load_model, save_model
from torchmcl.io.files import MODEL_FILE, write_atomically
from torchmcl.optional import optional_import

__all__ = ["Shareable", "SharedNetwork"]

CARD_FILE = "README.md"
_CARD = """---
library_name: torchmcl
tags: [torchmcl, multiple-choice-learning, {kind}]
---

# {kind}

{about}

```python
{program}
```

Written by torchmcl {version}. The file `model.safetensors` holds numbers and JSON with a checksum, no code.

## Settings

{settings}
"""


class Shareable:
    """Files and Hub repositories for a class that can describe its instances as nested values.

    A subclass defines `_contents` and `_from_contents`, and sets `_codec` if its values have other types than
    `torchmcl.io.save` accepts.

    Example:
        >>> import torchmcl
        >>> folder = tempfile.mkdtemp()
        >>> torchmcl.MultiHypothesisMLP(6, 1, n_hypotheses=5).save_pretrained(folder)
        >>> torchmcl.MultiHypothesisMLP.from_pretrained(folder).head.n_hypotheses
        5
    """

    _codec: ClassVar[Codec] = Codec()

    def save(self, folder: str | Path) -> None:
        """Write the model to a folder: `model.safetensors`.

        Args:
            folder: New or empty folder, or one with a saved model, which is replaced atomically.

        Raises:
            ValueError: If the folder contains something else, or the model cannot be saved.
        """
        kind = type(self).__name__
        save_model(f"{kind}.save", folder, self._contents(), kind=kind, codec=self._codec)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the model written by `save`. Nothing from the file is executed.

        Raises:
            ValueError: If the folder contains no such model, or it is damaged or of another version.
        """
        owner = f"{cls.__name__}.load"
        loaded: Self = load_model(owner, folder, cls._from_contents, kind=cls.__name__, codec=cls._codec)
        return loaded

    def _contents(self) -> Any:
        """Return the model as a nested value."""
        raise NotImplementedError

    @classmethod
    def _from_contents(cls, contents: Any) -> Self:
        """Return the model with the given contents; any error means a damaged file."""
        raise NotImplementedError

    def _settings(self) -> Mapping[str, Any]:
        """Return the constructor arguments, for the model card."""
        settings: Mapping[str, Any] = self.get_params(deep=False)  # type: ignore[attr-defined]
        return settings

    def save_pretrained(self, folder: str | Path, *, about: str = "") -> None:
        """Write the model and its card to a folder.

        Args:
            folder: New or empty folder, or one with a saved model, which is replaced.
            about: First lines of the card: data, measurements, limits, license.

        Raises:
            ValueError: If the folder contains something else, or the model cannot be saved.
        """
        self.save(folder)
        kind, home = type(self).__name__, type(self).__module__.partition(".")[0]
        card = _CARD.format(
            kind=kind,
            about=about or f"A `{kind}`.",
            program=f'from {home} import {kind}\n\nmodel = {kind}.from_pretrained("user/model")',
            version=__version__,
            settings="\n".join(f"- `{name}`: `{value!r}`" for name, value in self._settings().items()),
        )
        write_atomically(Path(folder) / CARD_FILE, card)

    @classmethod
    def from_pretrained(cls, name: str | Path, *, revision: str | None = None, token: str | None = None) -> Self:
        """Return the model in a folder, or in a repository on the Hub (the extra `hub`).

        Args:
            name: Folder, or otherwise a repository such as "user/model".
            revision: Branch, tag or commit of the repository.
            token: Access token for a private repository.

        Raises:
            ValueError: If there is no such model, or it is of another kind, damaged or of another version.
        """
        folder = Path(name)
        if not folder.is_dir():
            owner = f"{cls.__name__}.from_pretrained"
            if str(name).count("/") != 1 or folder.is_absolute():
                rule = "be a folder, or a repository as 'user/model'"
                raise ValueError(bad_value(owner, "name", rule, repr(str(name))))
            hub = optional_import("huggingface_hub", extra="hub", needed_by=owner)
            file = hub.hf_hub_download(str(name), MODEL_FILE, revision=revision, token=token)
            folder = Path(file).parent
        return cls.load(folder)

    def push_to_hub(
        self, name: str, *, about: str = "", private: bool | None = None, token: str | None = None, message: str = ""
    ) -> str:
        """Upload the model and its card to a repository on the Hub, which is created if it does not exist.

        Args:
            name: Repository, as "user/model".
            about: First lines of the card.
            private: Whether a new repository is private.
            token: Access token with write permission; by default the one from `hf auth login`.
            message: Message of the commit.

        Returns:
            The address of the commit.
        """
        hub = optional_import("huggingface_hub", extra="hub", needed_by=f"{type(self).__name__}.push_to_hub")
        api = hub.HfApi(token=token)
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, about=about)
            api.create_repo(name, private=private, exist_ok=True)
            message = message or f"{type(self).__name__} by torchmcl {__version__}"
            return str(api.upload_folder(repo_id=name, folder_path=folder, commit_message=message))


class SharedNetwork(Shareable, nn.Module):
    """Module whose `config` holds its constructor arguments, with `save`, `load` and the methods of `Shareable`.

    `load` returns the network on the CPU, in evaluation mode, with the dtype of the saved weights.
    """

    config: dict[str, Any]

    def _contents(self) -> Any:
        return {"config": self.config, "weights": dict(self.state_dict())}

    @classmethod
    def _from_contents(cls, contents: Any) -> Self:
        cls._check_config(contents["config"], contents["weights"])
        network = cls(**contents["config"])
        network.load_state_dict(contents["weights"], assign=True)  # which keeps their dtype
        return network.eval()

    @classmethod
    def _check_config(cls, config: dict[str, Any], weights: dict[str, Tensor]) -> None:
        """Reject a configuration of a larger model than the saved weights, before memory is allocated."""

    def _settings(self) -> Mapping[str, Any]:
        return self.config
