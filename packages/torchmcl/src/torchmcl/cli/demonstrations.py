"""The commands of the library, `demo`, `play` and `diagnose`: parsing and dispatch only."""

import argparse
import zipfile
from pathlib import Path

from torchmcl._messages import bad_value
from torchmcl._optional import check_extra
from torchmcl._pages.page import check_page
from torchmcl.cli.arguments import Commands, positive, say


def add_demo_commands(commands: Commands) -> None:
    """Add `demo` and `play` to the commands."""
    demo = commands.add_parser(
        "demo",
        help="train three methods on three Gaussians and write a page about it",
        description="Train MCL, Relaxed-WTA and annealed MCL with 49 hypotheses on the paper's three Gaussians, five "
        "seeds each, and write one self-contained page with predictions, a table, curves and an animation.",
        epilog="example: torchmcl demo --out out/demo",
    )
    demo.add_argument("--out", type=Path, default=Path("out/demo"), help="folder for the page (default: %(default)s)")
    demo.add_argument("--seeds", type=positive, default=5, help="seeds of each method (default: %(default)s)")
    demo.add_argument("--epochs", type=positive, default=150, help="epochs of each training run (default: %(default)s)")
    demo.add_argument("--quiet", action="store_true", help="no progress bar")
    demo.set_defaults(check=_check_demo, run=_demo)
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


def _check_demo(options: argparse.Namespace) -> None:
    check_extra("matplotlib", "sklearn", extra="demo", needed_by="torchmcl demo")
    check_page("torchmcl demo", options.out, "records.json", "film.gif")


def _demo(options: argparse.Namespace) -> None:
    from torchmcl.demo.page import demo_summary, write_demo_page
    from torchmcl.demo.training import DemoSettings, run_demo

    settings = DemoSettings(n_seeds=options.seeds, n_epochs=options.epochs)
    records = run_demo(options.out, settings, progress=not options.quiet)
    path = write_demo_page(options.out)
    say(f"{'method':<26}{'distortion':>22}{'above k-means':>18}{'starved':>14}")
    for label, distortion, excess, starved in demo_summary(records):
        say(f"{label:<26}{distortion:>22}{excess:>18}{starved:>14}")
    say(f"Open the page: {path.resolve().as_uri()}")


def _play(options: argparse.Namespace) -> None:
    import webbrowser

    from torchmcl.demo.play_page import write_play_page

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
    from torchmcl._pages.page import escape, page
    from torchmcl.annealing import AnnealingRecords
    from torchmcl.cli.predictions import read_predictions
    from torchmcl.persistence.writing import write_atomically
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
