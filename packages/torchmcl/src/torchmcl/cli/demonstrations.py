"""`torchmcl demo` and `torchmcl play`: parsing and dispatch only."""

import argparse
from pathlib import Path

from torchmcl._optional import check_extra
from torchmcl._pages.page import check_page
from torchmcl.cli.arguments import Commands, positive
from torchmcl.cli.output import say

__all__ = ["add_demo_commands"]


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
    demo.add_argument("--epochs", type=positive, default=150, help="length of the training (default: %(default)s)")
    demo.add_argument("--quiet", action="store_true", help="no progress bar")
    demo.set_defaults(check=_check_demo, run=_demo)
    play = commands.add_parser(
        "play",
        help="write a page on which to drag the temperature and watch hypotheses split",
        description="Write one self-contained page that trains hypotheses in the browser: data to choose or draw, "
        "rules side by side, a temperature to drag, rate-distortion, a small network, and a story of seven steps.",
        epilog="example: torchmcl play --open",
    )
    play.add_argument("--out", type=Path, default=Path("out/play.html"), help="the file (default: %(default)s)")
    play.add_argument("--open", action="store_true", help="open the page in the browser")
    play.set_defaults(run=_play)


def _check_demo(options: argparse.Namespace) -> None:
    check_extra("matplotlib", "sklearn", extra="demo", needed_by="torchmcl demo")
    check_page("torchmcl demo", options.out, "records.json", "film.gif", "tree.gif")


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
