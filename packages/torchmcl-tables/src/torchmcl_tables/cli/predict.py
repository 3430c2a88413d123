"""Make several predictions for each row of a table, the most probable first. The order of the rows is kept.

The model is the one that `torchmcl fit` trained: by default, mixture density networks and a forest for numbers.

The columns are <target>_mean, <target>_1, <target>_2 ..., probability_1, probability_2 ...
--interval adds <target>_low and <target>_high, an interval that contains the true value with that probability, and
<target>_set, the calibrated prediction set, which is a union of intervals if the predictions lie far apart. For classes
there is no mean, and the set is the smallest set of classes with the probability of --interval.

Columns of --keep are copied unchanged; if a name is already in use, the suffix _kept is added. Spreadsheets execute
text like =1+1 as a formula: use --escape-formulas for tables from untrusted sources.

Examples:
  torchmcl predict model/ new.csv -o predictions.csv
  torchmcl predict model/ new.csv -o predictions.csv --interval 0.9 --keep house_id
  torchmcl predict model/ new.jsonl.gz -o predictions.parquet --strict
"""

import argparse
import sys
from pathlib import Path

from torchmcl.app import arguments
from torchmcl.errors import bad_value
from torchmcl_tables.cli.parts import FORMATS, add_decimal_option, check_file, new_command, spent


def add_predict_command(commands: arguments.Commands) -> None:
    """Add the command `predict`."""
    summary = "predict the rows of a new table"
    predict = new_command(commands, "predict", __doc__, summary, check=_check, run=_predict)
    predict.add_argument("model", type=Path, help="model folder written by `torchmcl fit`")
    predict.add_argument("table", type=Path, help=f"table with the rows to predict: {FORMATS}")
    predict.add_argument("-o", "--out", type=Path, required=True, help="output file, in any of these formats")
    predict.add_argument(
        "--interval",
        type=arguments.probability,
        help="also write prediction sets that contain the true value with this probability, such as 0.9",
    )
    predict.add_argument(
        "--keep", type=arguments.names, action=arguments.AddNames, default=[], help="columns to copy to the output"
    )
    add_decimal_option(predict)
    predict.add_argument("--strict", action="store_true", help="reject unseen categories")
    predict.add_argument(
        "--escape-formulas", action="store_true", help="in CSV and TSV: put an apostrophe before text like =1+1"
    )
    predict.add_argument("--quiet", action="store_true", help="print no progress bar, notices or summary")


def _check(options: argparse.Namespace) -> None:
    """Check the options, and replace the path of the table by the table, without importing torch."""
    from torchmcl_tables.data import read_table, table_format
    from torchmcl_tables.data.table_files import check_writable_columns
    from torchmcl_tables.saved_model import check_model

    kind, _ = table_format(options.out)
    if options.escape_formulas and kind not in ("csv", "tsv"):
        rule, got = "be used with a CSV or TSV file", repr(str(options.out))
        advice = "Omit it: spreadsheets do not execute formulas in other formats."
        raise ValueError(bad_value("torchmcl predict", "--escape-formulas", rule, got, advice))
    check_file(options.out, options.table)
    check_model(options.model)
    options.table = read_table(options.table, options.decimal)
    check_writable_columns(options.out, options.table, options.keep)


def _predict(options: argparse.Namespace) -> None:
    from torchmcl_tables.data import write_table
    from torchmcl_tables.data.table_files import escape_formulas
    from torchmcl_tables.model import load_table_model

    model = load_table_model(options.model, records=False)
    predictions = model.predict(
        options.table,
        interval=options.interval,
        keep=options.keep,
        strict=options.strict,
        notify=None if options.quiet else lambda notice: arguments.say(notice, error=True),
        progress=not options.quiet and sys.stderr.isatty(),
    )
    write_table(options.out, escape_formulas(predictions) if options.escape_formulas else predictions)
    if not options.quiet:
        arguments.say(f"Predictions for {len(options.table):,} rows: {options.out}   {spent()}")
