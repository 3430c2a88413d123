"""Files: atomic writes, size-limited reads, one format of saved values, resumption, and clean stops on signals.

The names are loaded on first use: the command line checks files before it loads torch.
"""

from typing import TYPE_CHECKING

from torchmcl.optional import lazy_names

if TYPE_CHECKING:
    from torchmcl.io.checkpoints import Checkpoint as Checkpoint
    from torchmcl.io.checkpoints import CheckpointSeries as CheckpointSeries
    from torchmcl.io.checkpoints import described as described
    from torchmcl.io.checkpoints import digest as digest
    from torchmcl.io.codec import Codec as Codec
    from torchmcl.io.codec import Form as Form
    from torchmcl.io.codec import load as load
    from torchmcl.io.codec import load_model as load_model
    from torchmcl.io.codec import read_checkpoint as read_checkpoint
    from torchmcl.io.codec import save as save
    from torchmcl.io.codec import save_model as save_model
    from torchmcl.io.codec import write_checkpoint as write_checkpoint
    from torchmcl.io.files import MODEL_FILE as MODEL_FILE
    from torchmcl.io.files import CheckpointError as CheckpointError
    from torchmcl.io.files import as_written as as_written
    from torchmcl.io.files import change_records as change_records
    from torchmcl.io.files import check_free as check_free
    from torchmcl.io.files import check_limit as check_limit
    from torchmcl.io.files import check_writable as check_writable
    from torchmcl.io.files import read_header as read_header
    from torchmcl.io.files import read_json as read_json
    from torchmcl.io.files import read_records as read_records
    from torchmcl.io.files import read_text as read_text
    from torchmcl.io.files import replaced_file as replaced_file
    from torchmcl.io.files import saved_contents as saved_contents
    from torchmcl.io.files import unpacked as unpacked
    from torchmcl.io.files import write_atomically as write_atomically
    from torchmcl.io.files import write_records as write_records
    from torchmcl.io.pretrained import Shareable as Shareable
    from torchmcl.io.pretrained import SharedNetwork as SharedNetwork
    from torchmcl.io.stopping import Stopped as Stopped
    from torchmcl.io.stopping import check_stop as check_stop
    from torchmcl.io.stopping import saves_when_stopped as saves_when_stopped
    from torchmcl.io.stopping import stop_on_signals as stop_on_signals
    from torchmcl.io.stopping import stop_requested as stop_requested

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
    "Stopped": "torchmcl.io.stopping",
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
