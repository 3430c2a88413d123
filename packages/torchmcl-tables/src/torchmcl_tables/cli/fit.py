"""Train a model on a table. It predicts several plausible outcomes for each row, each with a probability.

A target that contains text, or integers with at most ten distinct values, is treated as classes; the predictions are
then different classes. --task numbers or --task classes overrides this decision.

Columns are read as numbers, dates or categories according to their cells. Text that differs in most rows, constants
and empty columns are dropped. These decisions are printed first; `torchmcl describe` prints them without training.
Missing values (empty cells, NA, NaN, null, ?) are allowed. A tenth of the rows is the test set (--test): the last rows
if a column has dates that allow about this number, otherwise a random sample (--split). Of the other rows, a tenth is
held out for early stopping and for fitting the weights of the members, and a twentieth for calibration (--validation).

The default model for numbers (DensityRegressor) is a blend of mixture density networks, with and without binned
columns, and a forest. It does not use multiple choice learning: --rule and --search do (MCLRegressor). The summary ends
with a verdict, good or careful, and the reasons for it. The verdict is also saved in metrics.json. `torchmcl report`
writes an HTML report.

Column names are separated by commas, and options may be repeated. Quote a name that contains a comma:
--drop '"Last, first",city'.

Rerun the same command to resume a training run that was stopped or killed. Until the model is complete, the training
state is stored in the folder OUT.checkpoint beside it. --restart discards that state.

Examples:
  torchmcl fit --example -o model/
  torchmcl fit houses.csv --target price -o model/
  torchmcl fit flowers.csv --target species -o model/
  torchmcl fit trips.parquet --target duration,delay --hypotheses 8 --drop trip_id -o model/
  torchmcl fit sales.tsv.gz --target amount --categorical shop,month --restarts 10 -o model/
"""

import argparse
import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmcl import io
from torchmcl.app import arguments
from torchmcl_tables.cli import parts

if TYPE_CHECKING:
    from torchmcl_tables.data import Table, TableSchema
    from torchmcl_tables.model import TableFit

_OWNER = "torchmcl fit"
# Options that are parameters of the estimators: name of the parameter, type, default and help text.
_PARAMETERS: dict[str, tuple[str, Any, Any, str]] = {
    "--hypotheses": ("n_hypotheses", arguments.positive, 5, "predictions for each row (default: %(default)s)"),
    "--hidden": ("hidden", arguments.sizes, (64, 64), "hidden layers (default: 64,64)"),
    "--bins": ("n_bins", arguments.natural, None, "bins per column (default: by columns and rows)"),
    "--epochs": ("n_epochs", arguments.positive, None, "maximum number of epochs (default: by rows)"),
    "--batch-size": ("batch_size", arguments.positive, None, "rows per optimizer step (default: by rows)"),
    "--learning-rate": (
        "learning_rate",
        arguments.positive_number,
        None,
        "initial learning rate (default: 0.01 for the blend, 0.02 with a rule and for classes)",
    ),
    "--weight-decay": (
        "weight_decay",
        arguments.non_negative_number,
        None,
        "weight decay (default: 0.05, more for small tables with classes; with --rule auto, set during training)",
    ),
    "--restarts": (
        "n_restarts",
        arguments.positive,
        None,
        "networks of each kind (default: 5; without a rule 3 for 10,000 or more rows; 1 for 50,000 or more rows)",
    ),
    "--validation": (
        "validation_fraction",
        arguments.fraction,
        None,
        "fraction of held-out rows, two thirds for selection and one third for calibration (default: 0.15); for "
        "classes, the fraction that each network holds out (default: 0.2)",
    ),
    "--device": ("device", arguments.device, "cpu", "cpu or cuda (default: %(default)s)"),
}
_FLAGS = {
    "--search": "train 64 candidates and keep the best; excludes --rule, --learning-rate and --weight-decay",
    "--overwrite": "replace an existing model",
    "--restart": "discard an unfinished training run instead of resuming it",
    "--private": "save no rows of the table: omit evaluation.json, and average the leaves of the forest",
    "--example": "use a small real data set, which is written to diabetes.csv",
    "--quiet": "print no progress bar, column decisions or summary",
}
# Options that are copied to the plan unchanged.
_PLAIN = ("rule", "search", "out", "restart", "private", "example", "quiet")


def add_fit_command(commands: arguments.Commands) -> None:
    """Add the command `fit`."""
    summary = "train a model on a table: several predictions for each row, with probabilities"
    fit = parts.new_command(commands, "fit", __doc__, summary, check=_plan, run=_fit)
    fit.add_argument("table", type=Path, nargs="?", help=f"training table: {parts.FORMATS}")
    parts.add_target_options(fit, default=None)
    fit.add_argument("-o", "--out", type=Path, required=True, help="folder for the model")
    parts.add_column_options(fit)
    fit.add_argument(
        "--rule",
        choices=("annealed", "auto", "mcl", "relaxed"),
        help="train hypotheses by a rule; auto sets the temperature during training (default: a blend of networks and "
        "a forest; for classes: annealed)",
    )
    for option, (_, kind, default, words) in _PARAMETERS.items():
        fit.add_argument(option, type=kind, default=default, help=words)
    words = "fraction of the rows to hold out as test rows for the report (default: %(default)s)"
    fit.add_argument("--test", type=arguments.fraction, default=0.1, help=words)
    fit.add_argument(
        "--split",
        choices=("time", "group", "random"),
        help="test rows: the last ones, whole groups, or a random sample (default: time if a column has dates, "
        "otherwise random)",
    )
    words = "column of times or groups for --split (default: the date column)"
    fit.add_argument("--split-column", default="", help=words)
    fit.add_argument("--seed", type=arguments.seed, default=0, help="random seed (default: %(default)s)")
    for option, words in _FLAGS.items():
        fit.add_argument(option, action="store_true", help=words)


@dataclass(frozen=True)
class FitPlan:
    """Validated arguments of `torchmcl fit`, and the training table.

    Attributes:
        path: Path of the table.
        table: Training table.
        schema: Schema of the table.
        options: Arguments of `TableFit` except the parameters of the estimator.
        parameters: Parameters of the estimator except `rule` and `search`.
        rule: Name of the assignment rule; None for the default model.
        search: Whether to search for a rule, a learning rate and a weight decay.
        out: Folder for the model.
        restart: Whether to discard an unfinished training run.
        private: Whether to exclude all rows of the table from the saved model.
        example: Whether the table is the example table.
        quiet: Whether to suppress the output.
    """

    path: Path
    table: "Table"
    schema: "TableSchema"
    options: Mapping[str, Any]
    parameters: Mapping[str, Any]
    rule: str | None
    search: bool
    out: Path
    restart: bool
    private: bool
    example: bool
    quiet: bool

    @property
    def checkpoint(self) -> Path:
        """Folder of the training state. It lies beside the model folder, because that folder is replaced atomically."""
        return _checkpoint_of(self.out)

    @property
    def key(self) -> dict[str, Any]:
        """Values that determine the model; the table is identified by a digest of its content, not by its name."""
        values = {name: value for name, value in self.parameters.items() if name != "device"}
        digest = hashlib.sha256(self.path.read_bytes()).hexdigest()
        return {
            **self.options,
            **values,
            "rule": self.rule,
            "search": self.search,
            "table": digest,
            "decimal": self.schema.decimal,
        }


def _checkpoint_of(out: Path) -> Path:
    return out.resolve().with_name(f"{out.resolve().name}.checkpoint")


def _plan(options: argparse.Namespace) -> FitPlan:
    """Check the options without importing torch, and read the table."""
    from torchmcl_tables.data import infer_schema, read_table
    from torchmcl_tables.data.kinds import check_rows
    from torchmcl_tables.data.splits import choose_split
    from torchmcl_tables.data.table_files import EXAMPLE, EXAMPLE_TARGET, write_example
    from torchmcl_tables.saved_model import check_folder

    path = options.table or (Path(EXAMPLE) if options.example else None)
    target = options.target or ([EXAMPLE_TARGET] if options.example else None)
    if path is None or target is None:
        missing = "table" if path is None else "--target"
        raise ValueError(f"{_OWNER}: `{missing}` is required. Add --example to try the command.")
    check_folder(options.out)
    if options.example:
        write_example(path)
    table = read_table(path, options.decimal)
    # A model beside its own unfinished training run has not been evaluated yet.
    check_folder(options.out, overwrite=options.overwrite or _checkpoint_of(options.out).is_dir())
    check_rows(table)
    chosen = parts.chosen_columns(options)
    schema = infer_schema(table, target, task=options.task, interpret=True, **chosen)
    split = choose_split(table, schema, options.split, options.split_column, options.test)
    if not options.quiet:
        parts.print_decisions(schema, split.describe() if options.test else "")
    names = {"task": "task", "test": "test_fraction", "split": "split", "split_column": "split_column", "seed": "seed"}
    parameters = {name: getattr(options, parts.attribute(option)) for option, (name, *_) in _PARAMETERS.items()}
    return FitPlan(
        path=path,
        table=table,
        schema=schema,
        options={"targets": target, **chosen} | {name: getattr(options, option) for option, name in names.items()},
        parameters={name: value for name, value in parameters.items() if value is not None},
        **{name: getattr(options, name) for name in _PLAIN},
    )


def _fit(plan: FitPlan) -> None:
    from torchmcl_tables.model import fit_summary, load_table_model, measure_table, save_table_model

    options = _fit_options(plan)
    if plan.restart:
        io.Checkpoint.discard(plan.checkpoint)
    with io.Checkpoint(plan.checkpoint, plan.key, owner=_OWNER) as checkpoint:
        checkpoint.once("begin", dict)  # writes the key before the checkpoints of the networks
        try:
            checkpoint.once("training", lambda: _train(plan, options))
        except (TypeError, ValueError):  # a parameter is invalid: there is nothing to resume
            io.Checkpoint.discard(plan.checkpoint)
            raise
    model = load_table_model(plan.out)
    try:
        model = measure_table(model, plan.table, options)
        save_table_model(model, plan.out, private=plan.private)
    except Exception:
        io.Checkpoint.discard(plan.checkpoint)
        text = f"{_OWNER}: the model was trained and saved in {str(plan.out)!r}, but its evaluation failed:"
        arguments.say(text, error=True)
        raise
    io.Checkpoint.discard(plan.checkpoint)
    if not plan.quiet:
        arguments.say(fit_summary(model))
        arguments.say(_verdict_line(model.metrics["verdict"]))
        arguments.say(f"Model: {plan.out}   {parts.spent()}")
        if plan.example:
            words = ["predict", str(plan.out), str(plan.path), "-o", "predictions.csv", "--interval", "0.9"]
            arguments.say(f"Try: torchmcl {shlex.join(words)}")


def _train(plan: FitPlan, options: "TableFit") -> None:
    """Train a model and save it before its evaluation, so that a failing evaluation does not lose the model."""
    from torchmcl_tables.model import save_table_model, train_table

    folder = plan.checkpoint / "training"
    model = train_table(plan.table, options, schema=plan.schema, progress=not plan.quiet, checkpoint=folder)
    save_table_model(model, plan.out, private=plan.private)


def _fit_options(plan: FitPlan) -> "TableFit":
    from torchmcl_fleet import FleetSearch
    from torchmcl_tables.model import TableFit
    from torchmcl_tables.model.classes import CLASS_RULES, NAMED_RULES

    parameters = dict(plan.parameters)
    if plan.rule is not None:
        parameters["rule"] = (CLASS_RULES if plan.schema.classes else NAMED_RULES)[plan.rule]
    if plan.search:
        parameters["search"] = FleetSearch()
    return TableFit(**plan.options, parameters=parameters)


def _verdict_line(verdict: dict[str, Any] | None) -> str:
    from torchmcl_tables.verdict import Verdict

    if verdict is None:
        return "Verdict: none, because there are no test rows. Evaluate another table with `torchmcl report --data`."
    return Verdict(**verdict).line
