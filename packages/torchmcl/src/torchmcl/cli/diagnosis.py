"""`torchmcl diagnose`: the faults of a network, from a file of its predictions."""

import argparse
import zipfile
from pathlib import Path

from torchmcl._messages import bad_value
from torchmcl.cli.arguments import Commands
from torchmcl.cli.output import say

__all__ = ["add_diagnose_command"]


def add_diagnose_command(commands: Commands) -> None:
    """Add the command."""
    diagnose = commands.add_parser(
        "diagnose",
        help="diagnose a trained network from a file of its predictions",
        description="Find unused and duplicate hypotheses and miscalibrated scores, compare "
        "the distortion with that of simpler answers, and recommend changes. The file is written by numpy.savez with "
        "the arrays hypotheses [rows, hypotheses, ...], targets [rows, ...], and optionally scores "
        "(probabilities) or score_logits [rows, hypotheses] and mask [rows, targets]. Records of a training run, "
        "written as .jsonl by torchmcl.loop.Recorder, give a shorter diagnosis.",
        epilog="example: torchmcl diagnose predictions.npz -o diagnosis.html",
    )
    diagnose.add_argument("predictions", type=Path, metavar="PREDICTIONS.npz", help="file of arrays, or records.jsonl")
    diagnose.add_argument("--softmax", action="store_true", help="score_logits belong to a softmax, not to sigmoids")
    diagnose.add_argument("-o", "--out", type=Path, help="also write a page")
    diagnose.set_defaults(check=_check, run=_run)


def _check(options: argparse.Namespace) -> None:
    if not options.predictions.is_file():
        rule = "be a file"
        raise ValueError(bad_value("torchmcl diagnose", "PREDICTIONS.npz", rule, repr(str(options.predictions))))
    if options.predictions.suffix != ".jsonl" and not zipfile.is_zipfile(options.predictions):
        rule, got = "be an npz file of arrays, or records in .jsonl", f"{str(options.predictions)!r}, which is neither"
        advice = "Write one with numpy.savez(path, hypotheses=..., targets=...)."
        raise ValueError(bad_value("torchmcl diagnose", "PREDICTIONS.npz", rule, got, advice))


def _run(options: argparse.Namespace) -> None:
    from torchmcl._pages.page import escape, page
    from torchmcl.annealing import AnnealingRecords
    from torchmcl.persistence.writing import write_atomically
    from torchmcl.postprocess.diagnosis import diagnose
    from torchmcl.postprocess.files import read_predictions
    from torchmcl.scoring import SigmoidScores, SoftmaxScores

    if options.predictions.suffix == ".jsonl":
        found = diagnose(AnnealingRecords.load(options.predictions))
    else:
        saved = read_predictions(options.predictions)
        reader = SoftmaxScores() if options.softmax else SigmoidScores()
        scores = reader if saved.probabilities is None else saved.probabilities
        found = diagnose(saved.predictions, saved.targets, saved.mask, scores=scores)
    say(found)
    if options.out is not None:
        title = f"Diagnosis of {options.predictions.name}"
        body = f"<h1>{escape(title)}</h1><pre>{escape(found)}</pre>"
        write_atomically(options.out, page(title, body, command="torchmcl diagnose"))
        say(f"Open the page: {options.out.resolve().as_uri()}")
