"""The commands of the core, `play` and `diagnose`: parsing and dispatch only."""

import argparse
import zipfile
from pathlib import Path

from torchmcl.app.arguments import Commands, say
from torchmcl.errors import bad_value


def add_play_command(commands: Commands) -> None:
    """Add the command."""
    play = commands.add_parser(
        "play",
        help="write an interactive page: drag the temperature and watch hypotheses split",
        description="Write one self-contained page that trains hypotheses in the browser: data to choose or draw, "
        "rules side by side, a temperature to drag, rate-distortion, a small network, and a story of seven steps.",
        epilog="example: torchmcl play --open",
    )
    play.add_argument("--out", type=Path, default=Path("out/play.html"), help="file of the page (default: %(default)s)")
    play.add_argument("--open", action="store_true", help="open the page in the browser")
    play.set_defaults(run=_play)


def _play(options: argparse.Namespace) -> None:
    import webbrowser

    from torchmcl.app.play import write_play_page

    address = write_play_page(options.out).resolve().as_uri()
    opened = options.open and webbrowser.open(address)
    say(f"{'Opened' if opened else 'Open the page:'} {address}")


def add_diagnose_command(commands: Commands) -> None:
    """Add the command."""
    diagnose = commands.add_parser(
        "diagnose",
        help="diagnose a trained network from a file of its predictions",
        description="Find unused and duplicate hypotheses and miscalibrated scores, and compare "
        "the distortion with that of simpler answers. The file is written by numpy.savez with "
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
    from torchmcl.annealing import AnnealingRecords
    from torchmcl.app.page import escape, page
    from torchmcl.app.predictions import read_predictions
    from torchmcl.io import write_atomically
    from torchmcl.postprocess.diagnosis import diagnose
    from torchmcl.scoring import SigmoidScores, SoftmaxScores

    if options.predictions.suffix == ".jsonl":
        found = diagnose(AnnealingRecords.load(options.predictions))
    else:
        predictions, targets, mask, probabilities = read_predictions(options.predictions)
        reader = SoftmaxScores() if options.softmax else SigmoidScores()
        found = diagnose(predictions, targets, mask, scores=reader if probabilities is None else probabilities)
    say(found)
    if options.out is not None:
        title = f"Diagnosis of {options.predictions.name}"
        body = f"<h1>{escape(title)}</h1><pre>{escape(found)}</pre>"
        write_atomically(options.out, page(title, body, command="torchmcl diagnose"))
        say(f"Open the page: {options.out.resolve().as_uri()}")
