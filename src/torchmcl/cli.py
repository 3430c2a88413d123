"""The command line: parsing and dispatch only."""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from torchmcl._resources import peak_mebibytes, seconds_since_start
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
        print(error if str(error).startswith("torchmcl ") else f"torchmcl: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torchmcl",
        description="Several answers instead of one: multiple choice learning and annealed MCL for PyTorch.",
        epilog="Start with: torchmcl demo, or with a table: torchmcl fit houses.csv --target price -o model/",
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
    _add_fit(commands)
    _add_predict(commands)
    _add_report(commands)
    return parser


_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_FORMATS = "CSV, TSV, Parquet or JSON lines by the end of its name; text also with .gz"


def _add_fit(commands: _Commands) -> None:
    fit = commands.add_parser(
        "fit",
        help="learn from a table: several answers for each row, with probabilities",
        description=_FIT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    fit.add_argument("table", type=Path, help=f"the table to learn from: {_FORMATS}")
    fit.add_argument("--target", type=_names, required=True, help="column to predict, or several, with commas")
    fit.add_argument("-o", "--out", type=Path, required=True, help="folder for the model")
    fit.add_argument("--drop", type=_names, default=[], help="columns to leave out (names, numbers of rows, ...)")
    fit.add_argument("--categorical", type=_names, default=[], help="columns of numbers that are categories")
    fit.add_argument("--hypotheses", type=_positive, default=5, help="answers for each row (default: %(default)s)")
    fit.add_argument("--rule", choices=("annealed", "mcl", "relaxed"), default="annealed", help="how they are trained")
    fit.add_argument("--hidden", type=_sizes, default=(64, 64), help="hidden layers (default: 64,64)")
    fit.add_argument("--epochs", type=_positive, help="passes over the rows (default: by their number)")
    fit.add_argument("--batch-size", type=_positive, help="rows of a step (default: by their number)")
    fit.add_argument("--learning-rate", type=float, default=0.01, help="to begin with (default: %(default)s)")
    fit.add_argument("--weight-decay", type=float, default=0.1, help="(default: %(default)s)")
    fit.add_argument("--restarts", type=_positive, default=1, help="networks to pick the best of (default: 1)")
    fit.add_argument(
        "--validation",
        type=float,
        default=0.2,
        help="share of the rows to pick the epoch and calibrate intervals with (default: %(default)s)",
    )
    fit.add_argument(
        "--test", type=float, default=0.1, help="share of the rows set apart for the report (default: %(default)s)"
    )
    fit.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    fit.add_argument("--device", type=_device, default="cpu", help="cpu or cuda (default: %(default)s)")
    fit.add_argument("--quiet", action="store_true", help="no progress bar and no summary")
    fit.set_defaults(run=_fit)


def _add_predict(commands: _Commands) -> None:
    predict = commands.add_parser(
        "predict",
        help="answer for the rows of a new table",
        description=_PREDICT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    predict.add_argument("model", type=Path, help="folder of `torchmcl fit`")
    predict.add_argument("table", type=Path, help=f"the rows to answer for: {_FORMATS}")
    predict.add_argument("-o", "--out", type=Path, required=True, help="file for the answers, in any of the formats")
    predict.add_argument("--interval", type=float, help="also sets that hold the truth with this probability, as 0.9")
    predict.add_argument("--keep", type=_names, default=[], help="columns to copy into the answers")
    predict.add_argument("--allow-new-categories", action="store_true", help="answer for categories never seen too")
    predict.add_argument("--quiet", action="store_true", help="no summary")
    predict.set_defaults(run=_predict)


def _add_report(commands: _Commands) -> None:
    report = commands.add_parser(
        "report",
        help="a page that says how far to trust a model",
        description=_REPORT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    report.add_argument("model", type=Path, help="folder of `torchmcl fit`")
    report.add_argument("--data", type=Path, help="a table with targets (default: the rows that `fit` set apart)")
    report.add_argument("-o", "--out", type=Path, help="the page (default: report.html in the model's folder)")
    report.add_argument("--quiet", action="store_true", help="no summary")
    report.set_defaults(run=_report)


_FIT = """\
Learn from a table: several plausible outcomes for each row, each with a probability.

Columns of numbers and of text are told apart by what they hold. Missing values (empty cells, NA, NaN, null, ?)
are fine in columns to learn from. A tenth of the rows is set apart to measure the model on, another fifth picks
the epoch and calibrates intervals.

examples:
  torchmcl fit houses.csv --target price -o model/
  torchmcl fit trips.parquet --target duration,delay --hypotheses 8 --drop trip_id -o model/
  torchmcl fit sales.tsv.gz --target amount --categorical shop,month --restarts 4 -o model/
"""
_PREDICT = """\
Answer for the rows of a table, in their order, the most probable answer first.

The columns are <target>_mean, <target>_1, <target>_2 ..., probability_1, probability_2 ...
With --interval also <target>_low and <target>_high, which hold the truth between them with that probability, and
<target>_set, the calibrated set itself: several pieces where the answers lie apart.

examples:
  torchmcl predict model/ new.csv -o answers.csv
  torchmcl predict model/ new.csv -o answers.csv --interval 0.9 --keep house_id
  torchmcl predict model/ new.jsonl.gz -o answers.parquet --allow-new-categories
"""
_REPORT = """\
Write one page that says how far to trust a model: its answers against the truth, distortion by the number of
answers, usage and calibration of the probabilities, coverage of the intervals, the most ambiguous rows, and how
the training went. It is one file that needs no network.

examples:
  torchmcl report model/
  torchmcl report model/ --data test.csv -o report.html
"""


def _device(text: str) -> str:
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"must be cpu, cuda or cuda:NUMBER, got {text!r}")
    return text


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(_positive(size) for size in _names(text))


def _fit(options: argparse.Namespace) -> None:
    from torchmcl.data.table import read_table
    from torchmcl.estimators.table import TableFit, check_folder, fit_summary, fit_table, save_table_model

    check_folder("torchmcl fit", options.out)
    how = TableFit(
        targets=options.target,
        drop=options.drop,
        categorical=options.categorical,
        test_fraction=options.test,
        seed=options.seed,
        parameters={
            "n_hypotheses": options.hypotheses,
            "rule": options.rule,
            "hidden": options.hidden,
            "n_epochs": options.epochs,
            "batch_size": options.batch_size,
            "learning_rate": options.learning_rate,
            "weight_decay": options.weight_decay,
            "n_init": options.restarts,
            "validation_fraction": options.validation,
            "device": options.device,
        },
    )
    table = read_table("torchmcl fit", options.table)
    model = fit_table("torchmcl fit", table, how, progress=not options.quiet)
    save_table_model(model, options.out)
    if not options.quiet:
        print(fit_summary(model))
        print(f"Model: {options.out}   {_spent()}")


def _predict(options: argparse.Namespace) -> None:
    from torchmcl.data.table import read_table, table_format, write_table
    from torchmcl.estimators.table import check_file, load_table_model

    owner = "torchmcl predict"
    table_format(owner, options.out)
    check_file(options.out)
    model = load_table_model(owner, options.model)
    table = read_table(owner, options.table)
    answers = model.predict(
        owner, table, interval=options.interval, keep=options.keep, new_categories=options.allow_new_categories
    )
    write_table(owner, options.out, answers)
    if not options.quiet:
        print(f"Answers for {len(table):,} rows: {options.out}   {_spent()}")


def _report(options: argparse.Namespace) -> None:
    from torchmcl.estimators.table import check_file, load_table_model, table_records
    from torchmcl.reports.table import write_table_page

    owner = "torchmcl report"
    target = options.out or options.model / "report.html"
    model = load_table_model(owner, options.model)
    check_file(target)
    path = write_table_page(table_records(owner, model, options.data), target)
    if not options.quiet:
        print(f"Open the page: {path.resolve().as_uri()}   {_spent()}")


def _spent() -> str:
    """Return the time and the memory that the command took."""
    memory = peak_mebibytes()
    return f"({seconds_since_start():.1f} s" + (f", {memory:,.0f} MiB at most)" if memory else ")")


def _add_reproduce(commands: _Commands) -> None:
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
