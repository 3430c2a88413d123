"""Write an HTML report on the reliability of a model.

The report shows a verdict (good, or careful with reasons), predictions against true values, distortion by number of
predictions, calibration of the probabilities, coverage of the prediction sets, the most ambiguous rows, the members of
the model and the training curves. For classes, it shows accuracy, calibration, the confusion matrix, and the frequency
with which the true class is among the first guesses. The report is a single file and needs no network connection.

Examples:
  torchmcl report model/
  torchmcl report model/ --data test.csv -o report.html
"""

import argparse
from pathlib import Path

from torchmcl.app import arguments
from torchmcl_tables.cli.parts import add_decimal_option, check_file, new_command, spent


def add_report_command(commands: arguments.Commands) -> None:
    """Add the command `report`."""
    summary = "write an HTML report on the reliability of a model"
    report = new_command(commands, "report", __doc__, summary, check=_check, run=_report)
    report.add_argument("model", type=Path, help="model folder written by `torchmcl fit`")
    report.add_argument("--data", type=Path, help="table with targets (default: the test rows of `fit`)")
    add_decimal_option(report)
    report.add_argument("-o", "--out", type=Path, help="output file (default: report.html in the model folder)")
    report.add_argument("--quiet", action="store_true", help="print no summary")


def _check(options: argparse.Namespace) -> None:
    """Check the options, and replace the path of the table by the table, without importing torch."""
    from torchmcl_tables.data import read_table
    from torchmcl_tables.saved_model import check_model

    check_model(options.model)
    options.out = options.out or options.model / "report.html"
    check_file(options.out, options.data)
    options.data = None if options.data is None else read_table(options.data, options.decimal)


def _report(options: argparse.Namespace) -> None:
    from torchmcl_tables.model import load_table_model, table_records
    from torchmcl_tables.reports import write_report
    from torchmcl_tables.verdict import verdict_on

    records = table_records(load_table_model(options.model), options.data)
    path = write_report(records, options.out)
    if not options.quiet:
        arguments.say(verdict_on(records).line)
        arguments.say(f"Open the report: {path.resolve().as_uri()}   {spent()}")
