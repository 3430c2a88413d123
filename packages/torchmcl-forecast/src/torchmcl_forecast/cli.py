"""The command `torchmcl forecast`: parsing and dispatch only."""

import argparse
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchmcl.app import arguments, report
from torchmcl.errors import bad_value

__all__ = ["add_forecast_command"]

_OWNER = "torchmcl forecast"
_FILES = ("futures.csv", "quantiles.csv", "model")
_DESCRIPTION = """\
Train a forecaster on the series of a table. It predicts several futures for each series, each with a probability.

The table is long or wide. A long table has a row for each value: a column of times, a column of values, and a column
with the names of the series if there are several. Without the column of --value, the table is wide: every column beside
the times is a series. Times are dates or numbers at equal steps; the step is detected. Missing rows and empty cells are
allowed; duplicate and irregular times are errors that name the series and the time.

A future is a whole path over the horizon, not a quantile of single steps. If no value of the table is negative, neither
is any forecast. --joint predicts futures of all series together, so that a probability refers to the whole table.

Columns that explain the values are covariates. --past names those that are known up to the present, such as visitors,
and --known those whose future is known, such as prices. The table of --future has their values: a row for each time of
the horizon, and for each series unless all series share them.

The output folder contains a page (index.html), the futures (futures.csv), quantiles of each step and the tube
(quantiles.csv), and the forecaster (model/), which `torchmcl_forecast.Forecaster.load` reads. A tube contains the whole
path with the probability --coverage. It is calibrated on the last part of the series; short series have no tubes.

Names of columns are separated by commas, and options may be repeated. Quote a name with a comma twice:
--known '"Price, net",promotion'.

Rerun the same command to resume a training run that was stopped or killed. Until the files are written, the state is in
the folder OUT.checkpoint beside the output folder. --restart discards that state.

Examples:
  torchmcl forecast --example -o out/
  torchmcl forecast sales.csv --time date --value sold --series shop --horizon 28 -o out/
  torchmcl forecast sales.csv --time date --value sold --known price,promotion --future plan.csv --horizon 28 -o out/
  torchmcl forecast rates.csv --time day --horizon 30 --joint --futures 8 -o out/
"""


def add_forecast_command(commands: arguments.Commands) -> None:
    """Add `forecast` to the commands."""
    parser = commands.add_parser(
        "forecast",
        help="forecast the series of a table: several futures, with probabilities",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "table", type=Path, nargs="?", help="table of past values: CSV or Parquet, by file extension; CSV also with .gz"
    )
    parser.add_argument("--time", help="column of times (default: ds)")
    parser.add_argument("--value", help="column of values (default: y); without such a column the table is wide")
    parser.add_argument("--series", help="column of series names (default: unique_id; without it, one series)")
    parser.add_argument("--horizon", type=arguments.positive, help="number of steps to forecast")
    for name, what in (("known", "covariates whose future is known"), ("past", "covariates known up to the present")):
        parser.add_argument(
            f"--{name}", type=arguments.names, action=arguments.AddNames, default=[], help=f"columns of {what}"
        )
    parser.add_argument("--future", type=Path, help="table with the values of the --known columns over the horizon")
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder for the page and the files")
    parser.add_argument(
        "--futures", type=arguments.positive, default=5, help="futures of each series (default: %(default)s)"
    )
    parser.add_argument("--joint", action="store_true", help="predict futures of all series together")
    parser.add_argument(
        "--coverage",
        type=arguments.probability,
        default=0.9,
        help="share of paths inside their tube (default: %(default)s)",
    )
    parser.add_argument(
        "--steps",
        type=arguments.positive,
        help="training steps per network; two thirds as many follow on all windows (default: by the number of windows)",
    )
    parser.add_argument(
        "--members", type=arguments.positive, default=1, help="networks in the ensemble (default: %(default)s)"
    )
    parser.add_argument("--device", type=arguments.device, default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--seed", type=arguments.seed, default=0, help="random seed (default: %(default)s)")
    parser.add_argument(
        "--example", action="store_true", help="forecast the sales of four shops, which are written to sales.csv"
    )
    parser.add_argument(
        "--restart", action="store_true", help="discard an unfinished training run instead of resuming it"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar or summary")
    parser.set_defaults(check=_plan, run=_forecast)


@dataclass(frozen=True)
class ForecastPlan:
    """Checked arguments of a forecast, and the tables that they name.

    Attributes:
        parameters: Arguments of the forecaster.
        frame: Table of past values.
        future: Values of the known covariates over the horizon; None without known covariates.
        horizon: Number of steps to forecast.
        notes: Warnings about the table, for the report.
        source: Name of the table.
        out: Folder for the report and the files.
        restart: Whether to discard an unfinished training run.
        quiet: Whether to print nothing.
    """

    parameters: Mapping[str, Any]
    frame: Any
    future: Any
    horizon: int
    notes: tuple[str, ...]
    source: str
    out: Path
    restart: bool
    quiet: bool

    @property
    def checkpoint(self) -> Path:
        """Folder of the training state, beside the output folder."""
        return self.out.resolve().with_name(f"{self.out.resolve().name}.checkpoint")


def _plan(options: argparse.Namespace) -> ForecastPlan:
    """Check the options without torch, and read the tables."""
    from torchmcl_forecast.example import EXAMPLE, EXAMPLE_COLUMNS, write_example
    from torchmcl_forecast.frames import Columns, check_columns, read_future, read_panel
    from torchmcl_forecast.spreadsheets import read_table

    defaults = EXAMPLE_COLUMNS if options.example else {"time": "ds", "value": "y", "series": "unique_id"}
    given = {name: getattr(options, name) for name in defaults if getattr(options, name) is not None}
    column_names = defaults | given
    table = options.table or (Path(EXAMPLE) if options.example else None)
    horizon = options.horizon or (28 if options.example else None)
    if table is None or horizon is None:
        missing = "table" if table is None else "--horizon"
        raise ValueError(f"{_OWNER}: `{missing}` is required. Or add --example to try it out.")
    if bool(options.known) != (options.future is not None):
        rule = "be given together with --future" if options.known else "be given: --future holds their values"
        raise ValueError(bad_value(_OWNER, "--known", rule, ",".join(options.known) or "nothing"))
    report.check_report_folder(_OWNER, options.out, *_FILES)
    if options.example:
        write_example(table)
    frame = read_table(_OWNER, "table", table, column_names["series"])
    for name, column in [*given.items(), *(("known", known) for known in options.known)]:
        if column not in frame.columns:
            rule = f"name a column of {table.name}: {', '.join(map(repr, frame.columns[:8]))}"
            raise ValueError(bad_value(_OWNER, f"--{name}", rule, repr(column)))
    columns = Columns(
        column_names["series"], column_names["time"], column_names["value"], tuple(options.known), tuple(options.past)
    )
    check_columns(_OWNER, columns)
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", UserWarning)
        panel = read_panel(_OWNER, frame, columns, aligned=options.joint)
    future = None
    if options.future is not None:
        future = read_table(_OWNER, "--future", options.future, columns.series)
        read_future(_OWNER, future, columns, panel, horizon)
    parameters = column_names | {
        "n_futures": options.futures,
        "n_members": options.members,
        "n_steps": options.steps,
        "random_state": options.seed,
        "progress": not options.quiet and sys.stderr.isatty(),
        **{name: getattr(options, name) for name in ("joint", "coverage", "known", "past", "device")},
    }
    texts = tuple(str(note.message) for note in notes)
    return ForecastPlan(
        parameters, frame, future, horizon, texts, table.name, options.out, options.restart, options.quiet
    )


def _forecast(plan: ForecastPlan) -> None:
    from torchmcl import io
    from torchmcl.app.progress import seconds_since_start
    from torchmcl_forecast.forecaster import Forecaster
    from torchmcl_forecast.page import write_page

    forecaster = Forecaster(**plan.parameters)
    if plan.restart:
        io.Checkpoint.discard(plan.checkpoint)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Forecaster.fit: .* usually closed")  # among the notes of the report
        forecaster.fit(plan.frame, horizon=plan.horizon, checkpoint=plan.checkpoint)
    forecast = forecaster.forecast(future=plan.future)
    futures, quantiles = forecast.futures(), forecast.quantiles()
    if forecast.tube_level is not None:
        tube = forecast.tube()
        quantiles = quantiles.assign(low=tube["low"], high=tube["high"])
    plan.out.mkdir(parents=True, exist_ok=True)
    seasons = ", ".join(map(str, forecaster.seasons_)) or "none"
    trained = [f"{len(forecast.panel.names):,} series. Seasons found, in steps: {seasons}.", _tube_note(forecaster)]
    trained += plan.notes
    # Write the report first: it marks the folder as torchmcl's if the command is stopped between files.
    write_page(plan.out / "index.html", forecast, source=plan.source, value=forecaster.value, trained=trained)
    io.write_atomically(plan.out / "futures.csv", futures.to_csv(index=False))
    io.write_atomically(plan.out / "quantiles.csv", quantiles.to_csv(index=False))
    forecaster.save(plan.out / "model")
    io.Checkpoint.discard(plan.checkpoint)
    if not plan.quiet:
        arguments.say("\n".join(trained))
        arguments.say(
            f"Open the page: {(plan.out / 'index.html').resolve().as_uri()}   ({seconds_since_start():.1f} s)"
        )


def _tube_note(forecaster: Any) -> str:
    if forecaster.tube_level_ is None:
        return "Without tubes: the series are too short to calibrate them."
    share = f"{100 * forecaster.coverage:g} %"
    return (
        f"Tubes of {share} are calibrated on the last windows, which are held out from the first part of the training."
    )
