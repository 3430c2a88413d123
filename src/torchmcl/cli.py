"""The command line: parsing and dispatch only."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from torchmcl._version import __version__
from torchmcl.cli_speech import add_speech_commands

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `torchmcl ...`; return the exit code, 2 for input that cannot be used."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.run is None:
        parser.print_help()
        return 0
    try:
        options.run(options)
    except (ValueError, ImportError, OSError) as error:
        print(f"torchmcl: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torchmcl",
        description="Several answers instead of one: multiple choice learning and annealed MCL for PyTorch.",
        epilog="Start with: torchmcl demo",
    )
    parser.add_argument("--version", action="version", version=f"torchmcl {__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="train three methods on three Gaussians and write a page about it",
        description="Train MCL, Relaxed-WTA and annealed MCL with 49 hypotheses on the paper's three Gaussians, five "
        "seeds each, and write one self-contained page with predictions, a table, curves and an animation.",
        epilog="example: torchmcl demo --out out/demo",
    )
    demo.add_argument("--out", type=Path, default=Path("out/demo"), help="folder for the page (default: %(default)s)")
    demo.add_argument("--seeds", type=_positive, default=5, help="seeds of each method (default: %(default)s)")
    demo.add_argument("--epochs", type=_positive, default=150, help="length of the training (default: %(default)s)")
    demo.add_argument("--quiet", action="store_true", help="no progress bar")
    demo.set_defaults(run=_demo)
    _add_reproduce(commands)
    add_speech_commands(commands)
    return parser


def _add_reproduce(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    reproduce = commands.add_parser("reproduce", help="run the paper's studies again", description=_REPRODUCE)
    studies = reproduce.add_subparsers(title="studies", metavar="STUDY", required=True)
    uci = studies.add_parser(
        "uci",
        help="tables 1, 2, 4 and 5: UCI regression",
        description="Train the methods of the UCI study on the official folds, all of a set at once, and write "
        "records.jsonl and index.html. A rerun goes on where the last one ended.",
        epilog="examples: torchmcl reproduce uci --quick --out out/uci --data FOLDER; "
        "torchmcl reproduce uci --sets yacht,energy --methods mcl,amcl-exponential --protocol last",
    )
    uci.add_argument("--out", type=Path, default=Path("out/uci"), help="folder for the results (default: %(default)s)")
    uci.add_argument("--data", type=Path, help="folder with the data sets; else TORCHMCL_DATA, the cache or a download")
    uci.add_argument("--sets", type=_names, help="sets, separated by commas (default: all but year)")
    uci.add_argument("--methods", type=_names, help="methods, separated by commas (default: all)")
    uci.add_argument(
        "--protocol", type=_names, help="last, validation (honest), test-selected (as published); default: all three"
    )
    uci.add_argument("--folds", type=_names, help="folds, separated by commas (default: all)")
    uci.add_argument("--seeds", type=_positive, default=1, help="seeds of each fold (default: %(default)s)")
    uci.add_argument("--epochs", type=_positive, default=1000, help="epochs (default: %(default)s, as in the paper)")
    uci.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    uci.add_argument("--quick", action="store_true", help="the four smallest sets, six methods, last and test-selected")
    uci.add_argument("--quiet", action="store_true", help="no progress bars")
    uci.set_defaults(run=_reproduce_uci)
    for name, text in _FIGURES.items():
        _add_figure(studies, name, text)


def _add_figure(studies: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, text: str) -> None:
    figure = studies.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}: train, write the records as CSV, draw PNG and SVG with a caption "
        "whose claims are checked on the records, and join the page index.html.",
        epilog=f"example: torchmcl reproduce {name} --preset quick --out out/figures",
    )
    figure.add_argument("--out", type=Path, default=Path("out/figures"), help="folder (default: %(default)s)")
    figure.add_argument(
        "--preset",
        choices=("quick", "paper"),
        default="quick",
        help="quick: two cores, two minutes; paper: the settings of the appendix, for a GPU (default: %(default)s)",
    )
    figure.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    figure.add_argument("--quiet", action="store_true", help="no progress bars")
    figure.set_defaults(run=_reproduce_figures, figure=name)


_FIGURES = {
    "figure1": "figure 1: MCL, Relaxed-WTA and annealed MCL with 49 answers",
    "rate-distortion": "trajectories of MCL and annealed MCL in the rate-distortion plane",
    "distortion-vs-temperature": "distortion against temperature, with the critical temperatures",
    "phase-transitions": "hypotheses of three inputs at four temperatures",
    "annealed-epsilon": "Relaxed-WTA with an annealed epsilon",
    "all": "all of these figures, on one page with the film",
}
_REPRODUCE = "Run the paper's studies again, with records that a rerun goes on from, and a page of the results."


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError("must name at least one, separated by commas")
    return names


def _reproduce_uci(options: argparse.Namespace) -> None:
    from torchmcl.experiments.uci.run import PROTOCOLS, QUICK_METHODS, QUICK_SETS, UciStudy, run_study
    from torchmcl.reports.uci import write_uci_page

    defaults = UciStudy()
    protocols = PROTOCOLS if not options.quick else ("last", "test-selected")
    study = UciStudy(
        sets=options.sets or (QUICK_SETS if options.quick else defaults.sets),
        methods=options.methods or (QUICK_METHODS if options.quick else defaults.methods),
        protocols=options.protocol or protocols,
        n_seeds=options.seeds,
        n_epochs=options.epochs,
        folds=[int(fold) for fold in options.folds] if options.folds else None,
        data=options.data,
        device=options.device,
    )
    run_study(study, options.out, progress=not options.quiet)
    path = write_uci_page(options.out)
    print(f"Records: {options.out / 'records.jsonl'}")
    print(f"Open the page: {path.resolve().as_uri()}")


def _reproduce_figures(options: argparse.Namespace) -> None:
    from torchmcl.experiments.figures import FIGURES, run_figure
    from torchmcl.reports.figures import write_figure, write_figures_page

    for name in FIGURES if options.figure == "all" else [options.figure]:
        claims = run_figure(name, options.out, preset=options.preset, device=options.device, progress=not options.quiet)
        print(f"{name}: {write_figure(name, options.out)}")
        for claim in claims:
            print(f"  {'' if claim.holds else 'NOT BORNE OUT: '}{claim.text}")
    print(f"Open the page: {write_figures_page(options.out).resolve().as_uri()}")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number >= 1, got {text!r}")
    return int(text)


def _demo(options: argparse.Namespace) -> None:
    from torchmcl.experiments.demo import DemoSettings, run_demo
    from torchmcl.reports.demo import demo_summary, write_demo_page

    settings = DemoSettings(n_seeds=options.seeds, n_epochs=options.epochs)
    records = run_demo(options.out, settings, progress=not options.quiet)
    path = write_demo_page(options.out)
    print(f"{'method':<26}{'distortion':>22}{'above k-means':>18}{'starved':>14}")
    for label, distortion, excess, starved in demo_summary(records):
        print(f"{label:<26}{distortion:>22}{excess:>18}{starved:>14}")
    print(f"Open the page: {path.resolve().as_uri()}")


if __name__ == "__main__":
    sys.exit(main())
