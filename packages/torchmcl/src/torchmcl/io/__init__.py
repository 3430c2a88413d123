# ruff: noqa: F403
"""Files: atomic writes, size-limited reads, one format of saved values, resumption, and clean stops on signals.

The names are loaded on first use: the command line checks files before it loads torch.
"""

from typing import TYPE_CHECKING

from torchmcl.optional import lazy_names

if TYPE_CHECKING:
    from torchmcl.io.checkpoints import *
    from torchmcl.io.codec import *
    from torchmcl.io.files import *
    from torchmcl.io.pretrained import *
    from torchmcl.io.stopping import *

# Name -> module that it is imported from on first use.
_HOMES = {
    "Checkpoint": "torchmcl.io.checkpoints",
    "CheckpointError": "torchmcl.io.files",
    "CheckpointSeries": "torchmcl.io.checkpoints",
    "Codec": "torchmcl.io.codec",
    "Form": "torchmcl.io.codec",
    "MODEL_FILE": "torchmcl.io.files",
    "Shareable": "torchmcl.io.pretrained",
    "SharedNetwork": "torchmcl.io.pretrained",
    "TrainingInterrupted": "torchmcl.io.stopping",
    "as_written": "torchmcl.io.files",
    "change_records": "torchmcl.io.files",
    "check_free": "torchmcl.io.files",
    "check_limit": "torchmcl.io.files",
    "check_stop": "torchmcl.io.stopping",
    "check_writable": "torchmcl.io.files",
    "described": "torchmcl.io.checkpoints",
    "digest": "torchmcl.io.checkpoints",
    "load": "torchmcl.io.codec",
    "load_model": "torchmcl.io.codec",
    "read_checkpoint": "torchmcl.io.codec",
    "read_header": "torchmcl.io.files",
    "read_json": "torchmcl.io.files",
    "read_records": "torchmcl.io.files",
    "read_text": "torchmcl.io.files",
    "replaced_file": "torchmcl.io.files",
    "save": "torchmcl.io.codec",
    "save_model": "torchmcl.io.codec",
    "saved_contents": "torchmcl.io.files",
    "saves_when_stopped": "torchmcl.io.stopping",
    "stop_on_signals": "torchmcl.io.stopping",
    "stop_requested": "torchmcl.io.stopping",
    "unpacked": "torchmcl.io.files",
    "write_atomically": "torchmcl.io.files",
    "write_checkpoint": "torchmcl.io.codec",
    "write_records": "torchmcl.io.files",
}
__all__ = list(_HOMES)

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
