"""The commands for a table of data, `torchmcl fit`, `predict` and `report`: parsing and dispatch only."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from torchmcl._messages import bad_value
from torchmcl._optional import check_extra
from torchmcl._resources import peak_mebibytes, seconds_since_start
from torchmcl.cli.arguments import (
    AddNames,
    Commands,
    device,
    fraction,
    names,
    natural,
    non_negative_number,
    positive,
    positive_number,
    probability,
    seed,
    sizes,
)
from torchmcl.cli.columns import add_column_options, chosen_columns, print_decisions, with_command
from torchmcl.cli.describe import add_describe_command
from torchmcl.cli.unfinished import UnfinishedTraining

__all__ = ["add_table_commands"]

_FIT_OWNER = "torchmcl fit"
# Options of `fit` that are parameters of `MCLRegressor`, with their names there.
_PARAMETERS = {
    **{name: name for name in ("rule", "hidden", "batch_size", "learning_rate", "weight_decay", "device")},
    **{"hypotheses": "n_hypotheses", "knots": "n_knots", "epochs": "n_epochs", "restarts": "n_restarts"},
    "validation": "validation_fraction",
}
_FORMATS = "CSV, TSV, Parquet or JSON lines by the end of its name; text also with .gz"


def add_table_commands(commands: Commands) -> None:
    """Add `describe`, `fit`, `predict` and `report` to the commands."""
    for add in (add_describe_command, _add_fit, _add_predict, _add_report):
        add(commands)


def _command(commands: Commands, name: str, description: str, summary: str) -> argparse.ArgumentParser:
    as_written = argparse.RawDescriptionHelpFormatter
    return commands.add_parser(name, help=summary, description=description, formatter_class=as_written)


def _add_fit(commands: Commands) -> None:
    fit = _command(commands, "fit", _FIT, "learn from a table: several answers for each row, with probabilities")
    fit.add_argument("table", type=Path, nargs="?", help=f"the table to learn from: {_FORMATS}")
    fit.add_argument("--target", type=names, action=AddNames, help="columns to predict")
    fit.add_argument("-o", "--out", type=Path, required=True, help="folder for the model")
    add_column_options(fit)
    _add_parameters(fit)
    fit.add_argument(
        "--test", type=fraction, default=0.1, help="share of the rows set apart for the report (default: %(default)s)"
    )
    fit.add_argument("--seed", type=seed, default=0, help="(default: %(default)s)")
    fit.add_argument("--device", type=device, default="cpu", help="cpu or cuda (default: %(default)s)")
    fit.add_argument("--overwrite", action="store_true", help="replace a model that is in the folder already")
    fit.add_argument("--restart", action="store_true", help="discard an unfinished training instead of resuming it")
    fit.add_argument("--example", action="store_true", help="learn from a small real table, written to diabetes.csv")
    fit.add_argument("--quiet", action="store_true", help="no progress bar, decisions and summary")
    fit.set_defaults(check=_check_fit, run=_fit)


def _add_parameters(fit: argparse.ArgumentParser) -> None:
    """Add what `_PARAMETERS` names, and `--search`."""
    fit.add_argument("--hypotheses", type=positive, default=5, help="answers for each row (default: %(default)s)")
    fit.add_argument(
        "--rule",
        choices=("annealed", "auto", "mcl", "relaxed"),
        default="annealed",
        help="how they are trained (default: %(default)s); auto decides in training when and how fast to cool",
    )
    fit.add_argument("--hidden", type=sizes, default=(64, 64), help="hidden layers (default: 64,64)")
    fit.add_argument(
        "--knots",
        type=natural,
        help="places in a column where answers may bend (default: 33 below 50 000 rows where values repeat, else 0)",
    )
    fit.add_argument("--epochs", type=positive, help="passes over the rows (default: by their number)")
    fit.add_argument("--batch-size", type=positive, help="rows of a step (default: by their number)")
    fit.add_argument("--learning-rate", type=positive_number, default=0.02, help="to begin with (default: %(default)s)")
    fit.add_argument(
        "--weight-decay", type=non_negative_number, help="(default: 0.05, or by the noise with --rule auto)"
    )
    fit.add_argument(
        "--search",
        action="store_true",
        help="try 64 ways to train at once and keep the best; without --rule, --learning-rate and --weight-decay",
    )
    fit.add_argument(
        "--restarts", type=positive, help="networks that answer together (default: 5, or 1 from 50 000 rows on)"
    )
    fit.add_argument(
        "--validation",
        type=fraction,
        default=0.2,
        help="share of the rows to pick the bandwidth and calibrate intervals with (default: %(default)s)",
    )


def _add_predict(commands: Commands) -> None:
    predict = _command(commands, "predict", _PREDICT, "answer for the rows of a new table")
    predict.add_argument("model", type=Path, help="folder of `torchmcl fit`")
    predict.add_argument("table", type=Path, help=f"the rows to answer for: {_FORMATS}")
    predict.add_argument("-o", "--out", type=Path, required=True, help="file for the answers, in any of the formats")
    predict.add_argument(
        "--interval", type=probability, help="also sets that hold the truth with this probability, as 0.9"
    )
    predict.add_argument("--keep", type=names, action=AddNames, default=[], help="columns to copy into the answers")
    predict.add_argument("--strict", action="store_true", help="refuse categories that were never seen")
    predict.add_argument(
        "--escape-formulas", action="store_true", help="in CSV and TSV: put an apostrophe before text like =1+1"
    )
    predict.add_argument("--quiet", action="store_true", help="no progress bar, notices and summary")
    predict.set_defaults(check=_check_predict, run=_predict)


def _add_report(commands: Commands) -> None:
    report = _command(commands, "report", _REPORT, "a page that says how far to trust a model")
    report.add_argument("model", type=Path, help="folder of `torchmcl fit`")
    report.add_argument("--data", type=Path, help="a table with targets (default: the rows that `fit` set apart)")
    report.add_argument("-o", "--out", type=Path, help="the page (default: report.html in the model's folder)")
    report.add_argument("--quiet", action="store_true", help="no summary")
    report.set_defaults(check=_check_report, run=_report)


_FIT = """\
Learn from a table: several plausible outcomes for each row, each with a probability.

Numbers, dates and categories are told apart by what columns hold; text that differs in most rows, constants and
empty columns are dropped. What was decided is printed first, and `torchmcl describe` prints it without training.
Missing values (empty cells, NA, NaN, null, ?) are fine. A tenth of the rows is set apart to measure the model on,
another fifth picks the bandwidth and calibrates intervals. Several columns are separated by commas; a name that
holds a comma goes into double quotes, as in --drop '"Last, first",city', and an option of columns may be repeated.

Rerun the same command to resume a training that was stopped or killed: until the model is written, its state is kept
in a folder OUT.checkpoint beside it. --restart discards that state.

examples:
  torchmcl fit --example -o model/
  torchmcl fit houses.csv --target price -o model/
  torchmcl fit trips.parquet --target duration,delay --hypotheses 8 --drop trip_id -o model/
  torchmcl fit sales.tsv.gz --target amount --categorical shop,month --restarts 10 -o model/
"""
_PREDICT = """\
Answer for the rows of a table, in their order, the most probable answer first.

The columns are <target>_mean, <target>_1, <target>_2 ..., probability_1, probability_2 ...
With --interval also <target>_low and <target>_high, which hold the truth between them with that probability, and
<target>_set, the calibrated set itself: several pieces where the answers lie apart. A column of --keep whose name is
one of these gets _kept appended.

Kept text is copied as it is. A spreadsheet runs text like =1+1 as a formula: use --escape-formulas for tables from
people you do not trust.

examples:
  torchmcl predict model/ new.csv -o answers.csv
  torchmcl predict model/ new.csv -o answers.csv --interval 0.9 --keep house_id
  torchmcl predict model/ new.jsonl.gz -o answers.parquet --strict
"""
_REPORT = """\
Write one page that says how far to trust a model: its answers against the truth, distortion by the number of
answers, usage and calibration of the probabilities, coverage of the intervals, the most ambiguous rows, and how
the training went. It is one file that needs no network.

examples:
  torchmcl report model/
  torchmcl report model/ --data test.csv -o report.html
"""


def _check_fit(options: argparse.Namespace) -> None:
    """Check all that can be checked without torch, and read the table."""
    check_extra("polars", "sklearn", "safetensors", extra="table", needed_by=_FIT_OWNER)
    from torchmcl.data.table import read_table
    from torchmcl.data.table.example import EXAMPLE, EXAMPLE_TARGET, write_example
    from torchmcl.data.table.places import check_folder

    if options.example:
        options.table, options.target = options.table or Path(EXAMPLE), options.target or [EXAMPLE_TARGET]
    for argument, value in (("table", options.table), ("--target", options.target)):
        if not value:
            raise ValueError(bad_value(_FIT_OWNER, argument, "be given", "nothing", "Or add --example to try it out."))
    check_folder(_FIT_OWNER, options.out, overwrite=options.overwrite)
    if options.example:
        write_example(_FIT_OWNER, options.table)
    options.read = read_table(_FIT_OWNER, options.table)
    options.schema = _schema(options)
    options.training = UnfinishedTraining.beside(options.out, options)
    if not options.restart:
        options.training.check(_FIT_OWNER)
    if not options.quiet:
        print_decisions(options.schema, options)


def _schema(options: argparse.Namespace) -> Any:
    from torchmcl.data.table import TableError, infer_schema
    from torchmcl.data.table.inference import rows_problem
    from torchmcl.data.table.problems import raise_problems

    raise_problems(_FIT_OWNER, options.read.name, rows_problem(options.read))
    try:
        return infer_schema(_FIT_OWNER, options.read, options.target, **chosen_columns(options))
    except TableError as error:
        raise ValueError(with_command(error, options)) from error


def _fit(options: argparse.Namespace) -> None:
    from torchmcl.estimators.table import TableFit, fit_summary, measure_table, save_table_model, train_table
    from torchmcl.fleet import FleetSearch

    how = TableFit(
        targets=options.target,
        **chosen_columns(options),
        test_fraction=options.test,
        seed=options.seed,
        parameters={
            **{there: getattr(options, here) for here, there in _PARAMETERS.items()},
            "search": FleetSearch() if options.search else None,
        },
    )
    with options.training.kept(restart=options.restart) as checkpoint:
        model = train_table(
            _FIT_OWNER, options.read, how, schema=options.schema, progress=not options.quiet, checkpoint=checkpoint
        )
        save_table_model(model, options.out)
    options.training.discard()
    # The training is safe now, whatever happens to the measures of it.
    try:
        model = measure_table(_FIT_OWNER, model, options.read, how)
    except Exception:
        text = f"{_FIT_OWNER}: the model is trained and saved in {str(options.out)!r}, but it could not be measured:"
        print(text, file=sys.stderr)
        raise
    save_table_model(model, options.out)
    if not options.quiet:
        print(fit_summary(model))
        print(f"Model: {options.out}   {_spent()}")
        if options.example:
            words = ["predict", str(options.out), str(options.table), "-o", "answers.csv", "--interval", "0.9"]
            print(f"Try: torchmcl {shlex.join(words)}")


def _check_predict(options: argparse.Namespace) -> None:
    owner = "torchmcl predict"
    check_extra("polars", "sklearn", "safetensors", extra="table", needed_by=owner)
    from torchmcl.data.table import read_table, table_format
    from torchmcl.data.table.places import check_file, check_model

    kind, _ = table_format(owner, options.out)
    if options.escape_formulas and kind not in ("csv", "tsv"):
        rule, got = "go with a CSV or TSV file", repr(str(options.out))
        raise ValueError(bad_value(owner, "--escape-formulas", rule, got, "Other formats hold no formulas."))
    check_file(owner, options.out, options.table)
    check_model(owner, options.model)
    options.read = read_table(owner, options.table)
    for name in options.keep:
        options.read.column(owner, name, "--keep")


def _predict(options: argparse.Namespace) -> None:
    from torchmcl.data.table import write_table
    from torchmcl.data.table.formulas import escape_formulas
    from torchmcl.estimators.table import load_table_model

    owner = "torchmcl predict"
    model = load_table_model(owner, options.model)
    answers = model.predict(
        owner,
        options.read,
        interval=options.interval,
        keep=options.keep,
        strict=options.strict,
        notify=None if options.quiet else lambda notice: print(notice, file=sys.stderr),
        progress=not options.quiet and sys.stderr.isatty(),
    )
    write_table(owner, options.out, escape_formulas(answers) if options.escape_formulas else answers)
    if not options.quiet:
        print(f"Answers for {len(options.read):,} rows: {options.out}   {_spent()}")


def _check_report(options: argparse.Namespace) -> None:
    owner = "torchmcl report"
    check_extra("polars", "sklearn", "safetensors", "matplotlib", extra="table", needed_by=owner)
    from torchmcl.data.table import read_table
    from torchmcl.data.table.places import check_file, check_model

    check_model(owner, options.model)
    check_file(owner, options.out or options.model / "report.html", options.data)
    options.read = None if options.data is None else read_table(owner, options.data)


def _report(options: argparse.Namespace) -> None:
    from torchmcl.estimators.table import load_table_model, table_records
    from torchmcl.reports.table import write_table_page

    owner = "torchmcl report"
    records = table_records(owner, load_table_model(owner, options.model), options.read)
    path = write_table_page(records, options.out or options.model / "report.html")
    if not options.quiet:
        print(f"Open the page: {path.resolve().as_uri()}   {_spent()}")


def _spent() -> str:
    """Return the time and the memory that the command took."""
    memory = peak_mebibytes()
    return f"({seconds_since_start():.1f} s" + (f", {memory:,.0f} MiB at most)" if memory else ")")
