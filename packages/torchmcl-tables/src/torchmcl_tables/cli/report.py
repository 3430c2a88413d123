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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchmcl.app import arguments
from torchmcl_tables.cli.parts import check_file, new_command, spent

if TYPE_CHECKING:
    from torchmcl_tables.data import Table


def add_report_command(commands: arguments.Commands) -> None:
    """Add the command `report`."""
    summary = "write an HTML report on the reliability of a model"
    report = new_command(commands, "report", __doc__, summary, check=_plan, run=_report)
    report.add_argument("model", type=Path, help="model folder written by `torchmcl fit`")
    report.add_argument("--data", type=Path, help="table with targets (default: the test rows of `fit`)")
    report.add_argument("-o", "--out", type=Path, help="output file (default: report.html in the model folder)")
    report.add_argument("--quiet", action="store_true", help="print no summary")


@dataclass(frozen=True)
class ReportPlan:
    """Validated arguments of `torchmcl report`.

    Attributes:
        model: Folder of the model.
        table: Table with targets; None for the test rows of the fit.
        out: Output file.
        quiet: Whether to suppress the output.
    """

    model: Path
    table: "Table | None"
    out: Path
    quiet: bool


def _plan(options: argparse.Namespace) -> ReportPlan:
    from torchmcl_tables.data import read_table
    from torchmcl_tables.saved_model import check_model

    check_model(options.model)
    out = options.out or options.model / "report.html"
    check_file(out, options.data)
    return ReportPlan(options.model, None if options.data is None else read_table(options.data), out, options.quiet)


def _report(plan: ReportPlan) -> None:
    from torchmcl_tables.model import load_table_model, table_records
    from torchmcl_tables.reports import write_report
    from torchmcl_tables.verdict import verdict_on

    records = table_records(load_table_model(plan.model), plan.table)
    path = write_report(records, plan.out)
    if not plan.quiet:
        arguments.say(verdict_on(records).line)
        arguments.say(f"Open the report: {path.resolve().as_uri()}   {spent()}")
