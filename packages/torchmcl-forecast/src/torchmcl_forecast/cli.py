"""Parsing and dispatch of the command `torchmcl forecast`."""

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
# Significant digits of values in the files, which may lie around a large level.
_DIGITS = "%.15g"
_DESCRIPTION = """\
Train a forecaster on the series of a table. It predicts several futures of each series with their probabilities.

The table is long or wide. A long table has a row for each value, with a time column, a value column, and a column of
series names if there are several series. Without the --value column, the table is wide: every column except the time
column is a series. Times are dates or numbers at equal steps; the step is detected. Missing rows and empty cells are
allowed. Duplicate and irregular times are errors that name the series and the time.

A future is a whole path over the horizon, not a quantile of single steps. If all values of the table are nonnegative,
so are all forecasts. --joint predicts futures of all series together, so that a probability refers to the whole table.

Columns that explain the values are covariates. --past names covariates that are known up to the present, such as
visitors. --known names covariates whose future values are known, such as prices. The table --future contains these
values: a row for each time of the horizon, and for each series unless all series share the values.

The output folder contains an HTML report (index.html), the futures (futures.csv), quantiles of each step and the tube
(quantiles.csv), and the forecaster (model/), which `torchmcl_forecast.Forecaster.load` loads. A tube contains the whole
path with probability --coverage. It is calibrated on the last part of the series; short series have no tubes.

Column names are separated by commas, and options may be repeated. Quote a name that contains a comma twice:
--known '"Price, net",promotion'.

Rerun the same command to resume a training run that was stopped or killed. Until the files are written, the training
state is in the folder OUT.checkpoint beside the output folder. --restart discards this state.

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
        help="forecast several futures of the series of a table, with probabilities",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "table", type=Path, nargs="?", help="table of past values: CSV, TSV, Parquet or JSON lines; text also with .gz"
    )
    parser.add_argument("--time", help="time column (default: ds)")
    parser.add_argument("--value", help="value column (default: y); without such a column, the table is wide")
    parser.add_argument("--series", help="column of series names (default: unique_id; without it, one series)")
    parser.add_argument("--horizon", type=arguments.positive, help="number of steps to forecast")
    kinds = (("known", "covariates with known future values"), ("past", "covariates known up to the present"))
    for name, kind in kinds:
        parser.add_argument(
            f"--{name}", type=arguments.names, action=arguments.AddNames, default=[], help=f"columns of {kind}"
        )
    parser.add_argument("--decimal", choices=(".", ","), default="", help="decimal separator (default: detected)")
    parser.add_argument("--future", type=Path, help="table with the values of the --known columns over the horizon")
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder for the HTML report and the files")
    parser.add_argument(
        "--futures", type=arguments.positive, default=5, help="number of futures of each series (default: %(default)s)"
    )
    parser.add_argument("--joint", action="store_true", help="predict futures of all series together")
    parser.add_argument(
        "--coverage",
        type=arguments.probability,
        default=0.9,
        help="probability that a tube contains the whole path (default: %(default)s)",
    )
    parser.add_argument(
        "--steps",
        type=arguments.positive,
        help="training steps per network; two thirds as many follow on all windows (default: by the number of windows)",
    )
    parser.add_argument("--device", type=arguments.device, default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--seed", type=arguments.seed, default=0, help="random seed (default: %(default)s)")
    parser.add_argument(
        "--example", action="store_true", help="write example sales of four shops to sales.csv, and forecast them"
    )
    parser.add_argument(
        "--restart", action="store_true", help="discard an unfinished training run instead of resuming it"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar or summary")
    parser.set_defaults(check=_plan, run=_forecast)


@dataclass(frozen=True)
class ForecastPlan:
    """Checked arguments of a forecast and the tables that they name.

    Attributes:
        options: Options of the command, with the table and the horizon.
        parameters: Arguments of the forecaster.
        frame: Table of past values.
        future: Values of the known covariates over the horizon; None without known covariates.
        notes: Warnings about the table, for the report.
    """

    options: argparse.Namespace
    parameters: Mapping[str, Any]
    frame: Any
    future: Any
    notes: tuple[str, ...]


def _plan(options: argparse.Namespace) -> ForecastPlan:
    """Check the options without torch, and read the tables."""
    from torchmcl import io
    from torchmcl_forecast.example import EXAMPLE, EXAMPLE_COLUMNS, write_example
    from torchmcl_forecast.frames import Columns, check_columns, read_future, read_panel
    from torchmcl_forecast.spreadsheets import read_series
    from torchmcl_tables.data import speaking_for

    defaults = EXAMPLE_COLUMNS if options.example else {"time": "ds", "value": "y", "series": "unique_id"}
    chosen = {name: getattr(options, name) for name in defaults if getattr(options, name) is not None}
    column_names = defaults | chosen
    table = options.table = options.table or (Path(EXAMPLE) if options.example else None)
    horizon = options.horizon = options.horizon or (28 if options.example else None)
    if table is None or horizon is None:
        missing = "table" if table is None else "--horizon"
        raise ValueError(f"{_OWNER}: `{missing}` is required. To try the command, use --example.")
    if bool(options.known) != (options.future is not None):
        option, other = ("--known", "--future") if options.known else ("--future", "--known")
        raise ValueError(f"{_OWNER}: `{option}` requires `{other}`.")
    report.check_report_folder(_OWNER, options.out, *_FILES)
    io.check_free(_OWNER, options.out / "model", "`Forecaster.save`")
    if options.example:
        write_example(table)
    columns = Columns(
        column_names["series"], column_names["time"], column_names["value"], tuple(options.known), tuple(options.past)
    )
    check_columns(_OWNER, columns)
    with speaking_for(_OWNER):
        frame, schema = read_series(table, columns, options.decimal)
    for name, column in [*chosen.items(), *(("known", known) for known in options.known)]:
        if column not in frame.columns:
            rule = f"name a column of {table.name}: {', '.join(map(repr, frame.columns[:8]))}"
            raise ValueError(bad_value(_OWNER, f"--{name}", rule, repr(column)))
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", UserWarning)
        panel = read_panel(_OWNER, frame, columns, aligned=options.joint)
    future = None
    if options.future is not None:
        with speaking_for(_OWNER):
            future, _ = read_series(options.future, columns, options.decimal, schema)
        read_future(_OWNER, future, columns, panel, horizon)
    parameters = column_names | {
        "n_futures": options.futures,
        "n_steps": options.steps,
        "random_state": options.seed,
        "progress": not options.quiet and sys.stderr.isatty(),
        **{name: getattr(options, name) for name in ("joint", "coverage", "known", "past", "device")},
    }
    texts = (*(schema.notes if schema else ()), *(str(note.message) for note in notes))
    return ForecastPlan(options, parameters, frame, future, texts)


def _forecast(plan: ForecastPlan) -> None:
    from torchmcl import io
    from torchmcl.app.progress import seconds_since_start
    from torchmcl_forecast.forecast import LEVELS
    from torchmcl_forecast.forecaster import Forecaster
    from torchmcl_forecast.page import tube_note, write_page

    forecaster, out = Forecaster(**plan.parameters), plan.options.out
    checkpoint = out.resolve().with_name(f"{out.resolve().name}.checkpoint")  # beside the output folder
    if plan.options.restart:
        io.Checkpoint.discard(checkpoint)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Forecaster.fit: .* usually closed")  # among the notes of the report
        forecaster.fit(plan.frame, horizon=plan.options.horizon, checkpoint=checkpoint)
    forecast = forecaster.forecast(future=plan.future)
    futures, quantiles = forecast.futures(), forecast.quantiles([0.05, *LEVELS, 0.95])
    if forecast.tube_level is not None:
        tube = forecast.tube()
        quantiles = quantiles.assign(low=tube["low"], high=tube["high"])
    out.mkdir(parents=True, exist_ok=True)
    seasons = ", ".join(map(str, forecaster.seasons_)) or "none"
    trained = [f"{len(forecast.panel.names):,} series. Season lengths in steps: {seasons}.", *plan.notes]
    # Write the report first: if the command is stopped between files, it marks the folder as one of torchmcl.
    write_page(out / "index.html", forecast, source=plan.options.table.name, value=forecaster.value, trained=trained)
    io.write_atomically(out / "futures.csv", futures.to_csv(index=False, float_format=_DIGITS))
    io.write_atomically(out / "quantiles.csv", quantiles.to_csv(index=False, float_format=_DIGITS))
    forecaster.save(out / "model")
    io.Checkpoint.discard(checkpoint)
    if not plan.options.quiet:
        arguments.say("\n".join([*trained, tube_note(forecast)]))
        arguments.say(f"Open the report: {(out / 'index.html').resolve().as_uri()}   ({seconds_since_start():.1f} s)")
