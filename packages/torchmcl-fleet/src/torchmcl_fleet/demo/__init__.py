"""The demonstration: three methods on the three Gaussians of the paper, and an HTML report."""

import argparse
from pathlib import Path

from torchmcl import optional
from torchmcl.app import arguments
from torchmcl.app.report import check_report_folder

__all__ = ["add_demo_command"]


def add_demo_command(commands: arguments.Commands) -> None:
    """Add the command `torchmcl demo`."""
    demo = commands.add_parser(
        "demo",
        help="train three methods on three Gaussians and write an HTML report",
        description="Train MCL, Relaxed-WTA and annealed MCL with 49 hypotheses on the paper's three Gaussians, five "
        "seeds each, and write one self-contained HTML report with predictions, a table, curves and an animation.",
        epilog="example: torchmcl demo --out out/demo",
    )
    demo.add_argument(
        "-o", "--out", type=Path, default=Path("out/demo"), help="folder for the report (default: %(default)s)"
    )
    demo.add_argument("--seeds", type=arguments.positive, default=5, help="seeds per method (default: %(default)s)")
    demo.add_argument(
        "--epochs", type=arguments.positive, default=150, help="epochs per training run (default: %(default)s)"
    )
    demo.add_argument("--quiet", action="store_true", help="hide the progress bar")
    demo.set_defaults(check=_check_demo, run=_demo)


def _check_demo(options: argparse.Namespace) -> None:
    optional.check_extra("matplotlib", "sklearn", package="torchmcl-fleet", extra="demo", needed_by="torchmcl demo")
    check_report_folder("torchmcl demo", options.out, "records.json", "film.gif")


def _demo(options: argparse.Namespace) -> None:
    from torchmcl_fleet.demo.report import demo_summary, write_demo_report
    from torchmcl_fleet.demo.training import DemoSettings, run_demo

    settings = DemoSettings(n_seeds=options.seeds, n_epochs=options.epochs)
    records = run_demo(options.out, settings, progress=not options.quiet)
    path = write_demo_report(options.out)
    arguments.say(f"{'method':<26}{'distortion':>22}{'above k-means':>18}{'starved':>14}")
    for label, distortion, excess, starved in demo_summary(records):
        arguments.say(f"{label:<26}{distortion:>22}{excess:>18}{starved:>14}")
    arguments.say(f"Open the report: {path.resolve().as_uri()}")
