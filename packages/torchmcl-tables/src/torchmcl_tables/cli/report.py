"""Write one page on the reliability of a model.

It has a verdict (good, or careful with reasons), answers against the truth, distortion by number of answers,
calibration of the probabilities, coverage and pieces of the sets, the most ambiguous rows, the members of the model and
the training curves. For classes: accuracy, calibration, the confusion matrix, and
how often the true class is among the first guesses. The page is one file and needs no network connection.

Examples:
  torchmcl report model/
  torchmcl report model/ --data test.csv -o report.html
"""

import argparse
from pathlib import Path

from torchmcl.app import arguments
from torchmcl_tables.cli.parts import check_file, new_command, spent


def add_report_command(commands: arguments.Commands) -> None:
    """Add `report` to the commands."""
    summary = "write a page on the reliability of a model"
    report = new_command(commands, "report", __doc__, summary, check=_check_report, run=_report)
    report.add_argument("model", type=Path, help="folder of `torchmcl fit`")
    report.add_argument("--data", type=Path, help="a table with targets (default: the test rows of `fit`)")
    report.add_argument(
        "-o", "--out", type=Path, help="file of the page (default: report.html in the folder of the model)"
    )
    report.add_argument("--quiet", action="store_true", help="no summary")


def _check_report(options: argparse.Namespace) -> None:
    from torchmcl_tables.data import read_table
    from torchmcl_tables.saved_model import check_model

    check_model(options.model)
    check_file(options.out or options.model / "report.html", options.data)
    options.read = None if options.data is None else read_table(options.data)


def _report(options: argparse.Namespace) -> None:
    from torchmcl_tables.model import load_table_model
    from torchmcl_tables.model.fitting import records_of
    from torchmcl_tables.reports import write_page
    from torchmcl_tables.verdict import verdict_on

    records = records_of(load_table_model(options.model), options.read)
    path = write_page(records, options.out or options.model / "report.html")
    if not options.quiet:
        arguments.say(verdict_on(records).line)
        arguments.say(f"Open the page: {path.resolve().as_uri()}   {spent()}")
