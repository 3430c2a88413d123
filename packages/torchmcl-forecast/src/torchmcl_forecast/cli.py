"""The command `torchmcl forecast`: parsing and dispatch only."""

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

from torchmcl.app.arguments import AddNames, Commands, device, names, positive, probability, say, seed
from torchmcl.app.report import check_page
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


def add_forecast_command(commands: Commands) -> None:
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
    parser.add_argument("--horizon", type=positive, help="number of steps to forecast")
    for name, what in (("known", "covariates whose future is known"), ("past", "covariates known up to the present")):
        parser.add_argument(f"--{name}", type=names, action=AddNames, default=[], help=f"columns of {what}")
    parser.add_argument("--future", type=Path, help="table with the values of the --known columns over the horizon")
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder for the page and the files")
    parser.add_argument("--futures", type=positive, default=5, help="futures of each series (default: %(default)s)")
    parser.add_argument("--joint", action="store_true", help="predict futures of all series together")
    parser.add_argument(
        "--coverage", type=probability, default=0.9, help="share of paths inside their tube (default: %(default)s)"
    )
    parser.add_argument(
        "--steps",
        type=positive,
        help="training steps per network; two thirds as many follow on all windows (default: by the number of windows)",
    )
    parser.add_argument("--members", type=positive, default=1, help="networks in the ensemble (default: %(default)s)")
    parser.add_argument("--device", type=device, default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--seed", type=seed, default=0, help="random seed (default: %(default)s)")
    parser.add_argument(
        "--example", action="store_true", help="forecast the sales of four shops, which are written to sales.csv"
    )
    parser.add_argument(
        "--restart", action="store_true", help="discard an unfinished training run instead of resuming it"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar or summary")
    parser.set_defaults(check=_check, run=_forecast)


def _check(options: argparse.Namespace) -> None:
    """Run all checks that do not need torch, and read the table."""
    from torchmcl_forecast.example import EXAMPLE, EXAMPLE_COLUMNS, write_example
    from torchmcl_forecast.frames import Columns, check_columns, read_future, read_panel
    from torchmcl_forecast.spreadsheets import read_table

    defaults = EXAMPLE_COLUMNS if options.example else {"time": "ds", "value": "y", "series": "unique_id"}
    given = [name for name in defaults if getattr(options, name) is not None]
    for name, column in defaults.items():
        setattr(options, name, getattr(options, name) or column)
    if options.example:
        options.table, options.horizon = options.table or Path(EXAMPLE), options.horizon or 28
    for argument, value in (("table", options.table), ("--horizon", options.horizon)):
        if value is None:
            raise ValueError(bad_value(_OWNER, argument, "be given", "nothing", "Or add --example to try it out."))
    if bool(options.known) != (options.future is not None):
        rule = "be given together with --future" if options.known else "be given: --future holds their values"
        raise ValueError(bad_value(_OWNER, "--known", rule, ",".join(options.known) or "nothing"))
    check_page(_OWNER, options.out, *_FILES)
    options.checkpoint = options.out.resolve().with_name(f"{options.out.resolve().name}.checkpoint")
    if options.example:
        write_example(options.table)
    options.read = read_table(_OWNER, "table", options.table, options.series)
    for name, column in [*((name, getattr(options, name)) for name in given), *(("known", k) for k in options.known)]:
        if column not in options.read.columns:
            rule = f"name a column of {options.table.name}: {', '.join(map(repr, options.read.columns[:8]))}"
            raise ValueError(bad_value(_OWNER, f"--{name}", rule, repr(column)))
    columns = Columns(options.series, options.time, options.value, tuple(options.known), tuple(options.past))
    check_columns(_OWNER, columns)
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", UserWarning)
        panel = read_panel(_OWNER, options.read, columns, aligned=options.joint)
    options.notes = [str(note.message) for note in notes]
    options.ahead = None
    if options.future is not None:
        options.ahead = read_table(_OWNER, "--future", options.future, options.series)
        read_future(_OWNER, options.ahead, columns, panel, options.horizon)


def _forecast(options: argparse.Namespace) -> None:
    from torchmcl.app.progress import seconds_since_start
    from torchmcl.io import Checkpoint, write_atomically
    from torchmcl_forecast.forecaster import Forecaster
    from torchmcl_forecast.page import write_page

    forecaster = Forecaster(
        options.futures,
        n_members=options.members,
        joint=options.joint,
        coverage=options.coverage,
        n_steps=options.steps,
        time=options.time,
        value=options.value,
        series=options.series,
        known=options.known,
        past=options.past,
        device=options.device,
        random_state=options.seed,
        progress=not options.quiet and sys.stderr.isatty(),
    )
    if options.restart:
        Checkpoint.discard(options.checkpoint)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Forecaster.fit: .* usually closed")  # among the notes of the page
        forecaster.fit(options.read, horizon=options.horizon, checkpoint=options.checkpoint)
    forecast = forecaster.forecast(future=options.ahead)
    futures, quantiles = forecast.futures(), forecast.quantiles()
    if forecast.tube_level is not None:
        tube = forecast.tube()
        quantiles = quantiles.assign(low=tube["low"], high=tube["high"])
    options.out.mkdir(parents=True, exist_ok=True)
    seasons = ", ".join(map(str, forecaster.seasons_)) or "none"
    trained = [f"{len(forecast.panel.names):,} series. Seasons found, in steps: {seasons}.", _tube_note(forecaster)]
    trained += options.notes
    # Write the page first: it marks the folder as torchmcl's if the command is stopped between files.
    write_page(options.out / "index.html", forecast, source=options.table.name, value=options.value, trained=trained)
    write_atomically(options.out / "futures.csv", futures.to_csv(index=False))
    write_atomically(options.out / "quantiles.csv", quantiles.to_csv(index=False))
    forecaster.save(options.out / "model")
    Checkpoint.discard(options.checkpoint)
    if not options.quiet:
        say("\n".join(trained))
        say(f"Open the page: {(options.out / 'index.html').resolve().as_uri()}   ({seconds_since_start():.1f} s)")


def _tube_note(forecaster: Any) -> str:
    if forecaster.tube_level_ is None:
        return "Without tubes: the series are too short to calibrate them."
    share = f"{100 * forecaster.coverage:g} %"
    return (
        f"Tubes of {share} are calibrated on the last windows, which are held out from the first part of the training."
    )
