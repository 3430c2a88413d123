"""Files of predictions for `torchmcl diagnose`, read without pickle."""

import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchmcl.checks import bad_value
from torchmcl.io import check_limit
from torchmcl.types import Predictions

_OWNER = "torchmcl diagnose"
_NAMES = ("hypotheses", "scores", "score_logits", "targets", "mask")
# Errors of numpy and the standard library for bytes that are not an npz file.
_BROKEN = (ValueError, KeyError, EOFError, TypeError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error)


def read_predictions(path: Path) -> tuple[Predictions, Tensor, Tensor | None, Tensor | None]:
    """Return predictions, targets [rows, ...], their mask and the probabilities [rows, hypotheses] of a file.

    The file holds the arrays `hypotheses`, `targets`, and optionally `mask` and `scores` or `score_logits`.

    Raises:
        ValueError: if it is not such a file, or exceeds the limit TORCHMCL_LIMIT_TABLE_BYTES.
        OSError: if it cannot be read.
    """
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile) or file.zip is None:
                raise ValueError("one array without a name")
            # No more bytes of a member are read than the zip directory states.
            n_bytes = sum(int(member.file_size) for member in file.zip.infolist())
            check_limit(_OWNER, path.name, "table_bytes", n_bytes)
            arrays = {name: file[name] for name in _NAMES if name in file.files}
    except OSError:
        raise
    except _BROKEN as error:
        if str(error).startswith(_OWNER):
            raise
        rule = "be an npz file of arrays, written by numpy.savez"
        raise ValueError(bad_value(_OWNER, path.name, rule, str(error)[:200].rstrip("."))) from error
    for name in ("hypotheses", "targets"):
        if name not in arrays:
            rule = f"hold an array `{name}`"
            raise ValueError(bad_value(_OWNER, path.name, rule, ", ".join(sorted(arrays)) or "none of the names"))
    for name, array in arrays.items():
        if array.dtype.kind not in ("b" if name == "mask" else "f"):
            rule = "be booleans" if name == "mask" else "be floating numbers"
            raise ValueError(bad_value(_OWNER, name, rule, array.dtype))
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    predictions = Predictions(tensors["hypotheses"], tensors.get("score_logits"))
    return predictions, tensors["targets"], tensors.get("mask"), tensors.get("scores")
