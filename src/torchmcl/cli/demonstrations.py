"""The demonstrations, `torchmcl demo` and `torchmcl demo speech`: parsing and dispatch only."""

import argparse
from pathlib import Path

from torchmcl._optional import check_extra
from torchmcl.cli.arguments import Commands, device, positive
from torchmcl.cli.output import say
from torchmcl.cli.speech import DEFAULT_MODEL, MODEL_HELP, SEPARATED
from torchmcl.reports.page import check_page

__all__ = ["add_demo_commands"]


def add_demo_commands(commands: Commands) -> None:
    """Add `demo` to the commands, and `speech` below it."""
    demo = commands.add_parser(
        "demo",
        help="train three methods on three Gaussians and write a page about it",
        description="Train MCL, Relaxed-WTA and annealed MCL with 49 hypotheses on the paper's three Gaussians, five "
        "seeds each, and write one self-contained page with predictions, a table, curves and an animation.",
        epilog="examples: torchmcl demo --out out/demo; torchmcl demo speech",
    )
    demo.add_argument("--out", type=Path, default=Path("out/demo"), help="folder for the page (default: %(default)s)")
    demo.add_argument("--seeds", type=positive, default=5, help="seeds of each method (default: %(default)s)")
    demo.add_argument("--epochs", type=positive, default=150, help="length of the training (default: %(default)s)")
    demo.add_argument("--quiet", action="store_true", help="no progress bar")
    demo.set_defaults(check=_check_demo, run=_demo)
    others = demo.add_subparsers(title="other demonstrations", metavar="WHAT")
    speech = others.add_parser(
        "speech",
        help="separate two voices with a separator that comes with the package",
        description="Mix two recordings that come with the package, separate them, and write one self-contained page "
        "to hear and see the mixture, both outputs and both true voices, with the improvement in dB.",
        epilog="example: torchmcl demo speech --out out/speech",
    )
    speech.add_argument("--out", type=Path, default=Path("out/speech"), help="folder (default: %(default)s)")
    speech.add_argument("--model", default=DEFAULT_MODEL, help=f"{MODEL_HELP} (default: %(default)s)")
    speech.add_argument("--device", type=device, default="cpu", help="cpu or cuda (default: %(default)s)")
    speech.add_argument("--overwrite", action="store_true", help="replace files that another command wrote")
    speech.add_argument("--quiet", action="store_true", help="no progress bar")
    speech.set_defaults(check=_check_speech, run=_speech)


def _check_demo(options: argparse.Namespace) -> None:
    check_extra("matplotlib", "sklearn", extra="demo", needed_by="torchmcl demo")
    check_page("torchmcl demo", options.out, "records.json", "film.gif")


def _check_speech(options: argparse.Namespace) -> None:
    check_extra(*SEPARATED, extra="speech", needed_by="torchmcl demo speech")


def _demo(options: argparse.Namespace) -> None:
    from torchmcl.experiments.demo import DemoSettings, run_demo
    from torchmcl.reports.demo import demo_summary, write_demo_page

    settings = DemoSettings(n_seeds=options.seeds, n_epochs=options.epochs)
    records = run_demo(options.out, settings, progress=not options.quiet)
    path = write_demo_page(options.out)
    say(f"{'method':<26}{'distortion':>22}{'above k-means':>18}{'starved':>14}")
    for label, distortion, excess, starved in demo_summary(records):
        say(f"{label:<26}{distortion:>22}{excess:>18}{starved:>14}")
    say(f"Open the page: {path.resolve().as_uri()}")


def _speech(options: argparse.Namespace) -> None:
    from torchmcl.reports.separation import write_separation_page
    from torchmcl.separation.demonstration import run_speech_demo

    result = run_speech_demo(
        options.out,
        options.model,
        device=options.device,
        overwrite=options.overwrite,
        progress=not options.quiet,
    )
    for voice in result["references"]:
        say(f"{voice['name']}: SI-SDR {voice['before']:.1f} dB in the mixture, {voice['after']:.1f} dB separated")
    say(f"Open the page: {write_separation_page(options.out).resolve().as_uri()}")
