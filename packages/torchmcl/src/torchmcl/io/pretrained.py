"""Sharing of models of all kinds, as a folder with `model.safetensors` and a model card, on disk or on a hub.

A class that inherits from `Shareable` has `save(folder)` and a class method `load(folder)`, in the format of
`torchmcl.io`: no pickle, and nothing from a file is executed.
"""

import tempfile
from pathlib import Path
from typing import Any, Self

from torch import Tensor, nn

from torchmcl._version import __version__
from torchmcl.checks import bad_value
from torchmcl.io.checkpoints import read_saved, write_checkpoint
from torchmcl.io.headers import MODEL_FILE, check_free
from torchmcl.io.reading import as_written
from torchmcl.io.writing import write_atomically
from torchmcl.optional import optional_import

CARD_FILE = "README.md"
_KIND = "torchmcl network"
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
    """`save_pretrained`, `from_pretrained` and `push_to_hub` for a class with `save` and `load`.

    Example:
        >>> import torchmcl
        >>> folder = tempfile.mkdtemp()
        >>> torchmcl.MultiHypothesisMLP(6, 1, n_hypotheses=5).save_pretrained(folder)
        >>> torchmcl.MultiHypothesisMLP.from_pretrained(folder).head.n_hypotheses
        5
    """

    def save_pretrained(self, folder: str | Path, *, about: str = "") -> None:
        """Write the model and its card to a folder.

        Args:
            folder: new, empty or with a saved model, which is replaced.
            about: the first lines of the card: data, measurements, limits, license.

        Raises:
            ValueError: if the folder contains something else, or the model cannot be saved.
        """
        folder = Path(folder)
        self.save(folder)  # type: ignore[attr-defined]
        write_atomically(folder / CARD_FILE, model_card(self, about))

    @classmethod
    def from_pretrained(cls, name: str | Path, *, revision: str | None = None, token: str | None = None) -> Self:
        """Return the model in a folder, or in a repository on the Hub (the extra `hub`).

        Args:
            name: a folder, or otherwise a repository such as "user/model".
            revision: of the repository: a branch, a tag or a commit.
            token: for a private repository.

        Raises:
            ValueError: if there is no such model, or it is of another kind, damaged or of a newer version.
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
        loaded: Self = cls.load(folder)  # type: ignore[attr-defined]
        return loaded

    def push_to_hub(
        self, name: str, *, about: str = "", private: bool | None = None, token: str | None = None, message: str = ""
    ) -> str:
        """Upload the model and its card to a repository on the Hub, which is created if it does not exist.

        Args:
            name: of the repository, as "user/model".
            about: the first lines of the card.
            private: whether a new repository is private.
            token: with write access; by default the one from `hf auth login`.
            message: of the commit.

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
    """A module whose `config` holds its constructor arguments, with `save`, `load` and the methods of `Shareable`."""

    config: dict[str, Any]

    def save(self, folder: str | Path) -> None:
        """Write the network to a folder: `model.safetensors`.

        Raises:
            ValueError: if the folder holds something else.
        """
        kind, folder = type(self).__name__, Path(folder)
        check_free(f"{kind}.save", folder, "`save`")
        state = {"model": kind, "config": self.config, "notes": {}}
        write_checkpoint(folder / MODEL_FILE, _KIND, state=state, tensors=self.state_dict())

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the network written by `save`, on the CPU and in evaluation mode.

        Raises:
            ValueError: if the folder holds no such network, or a damaged one.
        """
        owner = f"{cls.__name__}.load"
        checkpoint = read_saved(owner, Path(folder), _KIND, "`save`")
        with as_written(owner, "folder", "`save`"):
            state, tensors = checkpoint.state, checkpoint.tensors
            if state["model"] != cls.__name__:
                raise ValueError(f"a model {str(state['model'])[:80]!r}")
            cls._check_config(state["config"], tensors)
            network = cls(**state["config"])
            network.load_state_dict(tensors)
        return network.eval()

    @classmethod
    def _check_config(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Reject a configuration of a larger model than the saved weights, before memory is allocated."""


def model_card(model: Any, about: str) -> str:
    """Return the model card as Markdown."""
    kind = type(model).__name__
    home = type(model).__module__.partition(".")[0]
    program = f'from {home} import {kind}\n\nmodel = {kind}.from_pretrained("user/model")'
    given = model.get_params(deep=False) if hasattr(model, "get_params") else getattr(model, "config", {})
    settings = "\n".join(f"- `{name}`: `{value!r}`" for name, value in given.items())
    return _CARD.format(
        kind=kind, about=about or f"A `{kind}`.", program=program, version=__version__, settings=settings
    )
