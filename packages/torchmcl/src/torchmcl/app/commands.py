"""The commands `play` and `diagnose`; torch is imported only when a command runs."""

import argparse
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from torchmcl.app.arguments import Commands, say
from torchmcl.errors import bad_value

if TYPE_CHECKING:
    from torch import Tensor

    from torchmcl.types import Predictions

__all__ = ["add_diagnose_command", "add_play_command", "read_predictions"]

_DIAGNOSE = "torchmcl diagnose"
_ARRAYS = ("hypotheses", "scores", "score_logits", "targets", "mask")
# Errors of numpy and the standard library for bytes that are not an npz file.
_BROKEN = (ValueError, KeyError, EOFError, TypeError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error)


def add_play_command(commands: Commands) -> None:
    """Add the command `play`."""
    play = commands.add_parser(
        "play",
        help="write an interactive page: drag the temperature and watch hypotheses split",
        description="Write one self-contained page that trains hypotheses in the browser: data to choose or draw, "
        "rules side by side, a temperature to drag, rate-distortion, a small network, and a story of seven steps.",
        epilog="example: torchmcl play --open",
    )
    play.add_argument(
        "-o", "--out", type=Path, default=Path("out/play.html"), help="file of the page (default: %(default)s)"
    )
    play.add_argument("--open", action="store_true", help="open the page in the browser")
    play.set_defaults(run=_play)


def _play(options: argparse.Namespace) -> None:
    import webbrowser

    from torchmcl.app.play import write_play_page

    address = write_play_page(options.out).resolve().as_uri()
    opened = options.open and webbrowser.open(address)
    say(f"{'Opened' if opened else 'Open the page:'} {address}")


def add_diagnose_command(commands: Commands) -> None:
    """Add the command `diagnose`."""
    diagnose = commands.add_parser(
        "diagnose",
        help="diagnose a trained network from a file of its predictions",
        description="Find unused and duplicate hypotheses and miscalibrated scores, and compare "
        "the distortion with those of simpler predictions. The file is written by numpy.savez with "
        "the arrays hypotheses [rows, hypotheses, ...], targets [rows, ...], and optionally scores "
        "(probabilities) or score_logits [rows, hypotheses] and mask [rows, targets]. Records of a training run, "
        "written as .jsonl by torchmcl.loop.Recorder, give a shorter diagnosis.",
        epilog="example: torchmcl diagnose predictions.npz -o diagnosis.html",
    )
    diagnose.add_argument("predictions", type=Path, metavar="PREDICTIONS.npz", help="file of arrays, or records.jsonl")
    diagnose.add_argument("--softmax", action="store_true", help="score_logits belong to a softmax, not to sigmoids")
    diagnose.add_argument("-o", "--out", type=Path, help="also write an HTML report")
    diagnose.set_defaults(check=_check, run=_run)


def _check(options: argparse.Namespace) -> None:
    if not options.predictions.is_file():
        rule = "be a file"
        raise ValueError(bad_value(_DIAGNOSE, "PREDICTIONS.npz", rule, repr(str(options.predictions))))
    if options.predictions.suffix != ".jsonl" and not zipfile.is_zipfile(options.predictions):
        rule, got = "be an npz file of arrays, or records in .jsonl", repr(str(options.predictions))
        advice = "Write one with numpy.savez(path, hypotheses=..., targets=...)."
        raise ValueError(bad_value(_DIAGNOSE, "PREDICTIONS.npz", rule, got, advice))


def _run(options: argparse.Namespace) -> None:
    from torchmcl.annealing import AnnealingRecords
    from torchmcl.app.report import escape, html_report
    from torchmcl.io import write_atomically
    from torchmcl.postprocess.diagnosis import diagnose
    from torchmcl.scoring import SigmoidScores, SoftmaxScores

    if options.predictions.suffix == ".jsonl":
        diagnosis = diagnose(AnnealingRecords.load(options.predictions))
    else:
        predictions, targets, mask, probabilities = read_predictions(options.predictions)
        reader = SoftmaxScores() if options.softmax else SigmoidScores()
        diagnosis = diagnose(predictions, targets, mask, scores=reader if probabilities is None else probabilities)
    say(diagnosis)
    if options.out is not None:
        title = f"Diagnosis of {options.predictions.name}"
        body = f"<h1>{escape(title)}</h1><pre>{escape(diagnosis)}</pre>"
        write_atomically(options.out, html_report(title, body, command=_DIAGNOSE))
        say(f"Open the report: {options.out.resolve().as_uri()}")


def read_predictions(path: Path) -> "tuple[Predictions, Tensor, Tensor | None, Tensor | None]":
    """Read predictions, targets [rows, ...], their mask and the probabilities [rows, hypotheses] from a file.

    The file contains the arrays `hypotheses`, `targets`, and optionally `mask` and `scores` or `score_logits`.

    Raises:
        ValueError: If it is not such a file, or exceeds the limit TORCHMCL_LIMIT_TABLE_BYTES.
        OSError: If it cannot be read.
    """
    import numpy as np
    import torch

    from torchmcl.io import check_limit
    from torchmcl.types import Predictions

    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile) or file.zip is None:
                raise ValueError("one array without a name")
            # At most the number of bytes in the zip directory is read of each member.
            n_bytes = sum(int(member.file_size) for member in file.zip.infolist())
            check_limit(_DIAGNOSE, path.name, "table_bytes", n_bytes)
            arrays = {name: file[name] for name in _ARRAYS if name in file.files}
    except OSError:
        raise
    except _BROKEN as error:
        if str(error).startswith(_DIAGNOSE):
            raise
        rule = "be an npz file of arrays, written by numpy.savez"
        raise ValueError(bad_value(_DIAGNOSE, path.name, rule, str(error)[:200].rstrip("."))) from error
    for name in ("hypotheses", "targets"):
        if name not in arrays:
            rule = f"contain an array `{name}`"
            raise ValueError(bad_value(_DIAGNOSE, path.name, rule, ", ".join(sorted(arrays)) or "no array"))
    for name, array in arrays.items():
        if array.dtype.kind not in ("b" if name == "mask" else "f"):
            rule = "be booleans" if name == "mask" else "be floating numbers"
            raise ValueError(bad_value(_DIAGNOSE, name, rule, array.dtype))
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    predictions = Predictions(tensors["hypotheses"], tensors.get("score_logits"))
    return predictions, tensors["targets"], tensors.get("mask"), tensors.get("scores")
