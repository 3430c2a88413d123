"""The command `torchmcl report`: parsing and dispatch only."""

import argparse
from pathlib import Path

from torchmcl.cli.arguments import Commands
from torchmcl.cli.output import say
from torchmcl_tables.cli.parts import new_command, records_of, spent

__all__ = ["add_report_command"]


def add_report_command(commands: Commands) -> None:
    """Add `report` to the commands."""
    report = new_command(commands, "report", _REPORT, "a page that says how far to trust a model")
    report.add_argument("model", type=Path, help="folder of `torchmcl fit`")
    report.add_argument("--data", type=Path, help="a table with targets (default: the rows that `fit` set apart)")
    report.add_argument("-o", "--out", type=Path, help="the page (default: report.html in the model's folder)")
    report.add_argument("--quiet", action="store_true", help="no summary")
    report.set_defaults(check=_check_report, run=_report)


_REPORT = """\
Write one page that says how far to trust a model: a verdict (good, or careful and why), its answers against the truth,
distortion by the number of answers, usage and calibration of the probabilities, coverage of the sets and whether they
fork, the most ambiguous rows, what answers, and how the training went. Of classes it has accuracy, calibration, the
confusion of classes and how often the truth is among the first guesses. It is one file that needs no network.

examples:
  torchmcl report model/
  torchmcl report model/ --data test.csv -o report.html
"""


def _check_report(options: argparse.Namespace) -> None:
    owner = "torchmcl report"
    from torchmcl_tables.data import read_table
    from torchmcl_tables.data.places import check_file, check_model

    check_model(owner, options.model)
    check_file(owner, options.out or options.model / "report.html", options.data)
    options.read = None if options.data is None else read_table(owner, options.data)


def _report(options: argparse.Namespace) -> None:
    from torchmcl_tables.model import load_table_model
    from torchmcl_tables.reports.class_verdict import class_verdict
    from torchmcl_tables.reports.classes import write_class_page
    from torchmcl_tables.reports.table import write_table_page
    from torchmcl_tables.reports.verdict import table_verdict

    owner = "torchmcl report"
    records = records_of(owner, load_table_model(owner, options.model), options.read)
    of_classes = "classes" in records["evaluation"]
    write = write_class_page if of_classes else write_table_page
    path = write(records, options.out or options.model / "report.html")
    if not options.quiet:
        say((class_verdict if of_classes else table_verdict)(records).line)
        say(f"Open the page: {path.resolve().as_uri()}   {spent()}")
