"""Train a model on a table. It predicts several plausible outcomes for each row, each with a probability.

A target with text, or with integers of at most ten different values, is a target of classes; the answers are then
different classes. --task numbers or --task classes overrides this.

Columns are read as numbers, dates or categories according to their cells. Text that differs in most rows, constants
and empty columns are dropped. These decisions are printed first; `torchmcl describe` prints them without training.
Missing values (empty cells, NA, NaN, null, ?) are allowed. A tenth of the rows is the test part (--test): the last rows
if a column has dates, otherwise a random sample (--split). Of the other rows, a tenth is held out for early stopping
and for the weights of the members, and a twentieth for calibration (--validation).

The default model for numbers is a blend of networks, networks with binned columns, and a forest. With --rule or
--search, hypotheses are trained by multiple choice learning. The summary ends with a verdict, good or careful, with
reasons. metrics.json contains it too, and `torchmcl report` writes a page.

Names of columns are separated by commas, and options may be repeated. Quote a name with a comma twice:
--drop '"Last, first",city'.

Rerun the same command to resume a training run that was stopped or killed. Until the model is written, the state is in
the folder OUT.checkpoint beside it. --restart discards that state.

Examples:
  torchmcl fit --example -o model/
  torchmcl fit houses.csv --target price -o model/
  torchmcl fit flowers.csv --target species -o model/
  torchmcl fit trips.parquet --target duration,delay --hypotheses 8 --drop trip_id -o model/
  torchmcl fit sales.tsv.gz --target amount --categorical shop,month --restarts 10 -o model/
"""

import argparse
import contextlib
import hashlib
import json
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchmcl import io
from torchmcl.app import arguments
from torchmcl.errors import bad_value
from torchmcl_tables.cli import parts

_COMMAND = "command.json"
# Options that do not change the model. The table is identified by its content, not its name.
_FREE = ("table", "out", "quiet", "overwrite", "restart", "example", "device", "words", "private")


@dataclass(frozen=True)
class UnfinishedTraining:
    """A training state saved beside the model, and the command that it belongs to.

    Attributes:
        folder: of the saved state.
        command: the options and a digest of the table, which must be equal to resume.
    """

    folder: Path
    command: dict[str, Any]

    @classmethod
    def beside(cls, out: Path, options: argparse.Namespace) -> "UnfinishedTraining":
        """Return the training state, stored beside the model's folder because that is replaced as a whole."""
        plain = (bool, int, float, str, list, tuple, type(None))
        command = {k: v for k, v in vars(options).items() if k not in _FREE and isinstance(v, plain)}
        command["table"] = hashlib.sha256(options.table.read_bytes()).hexdigest()
        place = out.resolve()
        return cls(place.with_name(f"{place.name}.checkpoint"), json.loads(json.dumps(command)))

    def check(self, *, restart: bool = False) -> None:
        """Check that a saved state, if there is one, belongs to the command.

        Args:
            restart: whether the saved state of another command may be discarded.

        Raises:
            ValueError: if it belongs to another command, whose differing options the message names, or the folder
                holds something else.
        """
        path = self.folder / _COMMAND
        is_empty = self.folder.is_dir() and not any(self.folder.iterdir())
        if self.folder.exists() and not path.is_file() and not is_empty:
            rule, got = "not have a folder of other files at the path of its checkpoint", repr(str(self.folder))
            raise ValueError(bad_value("fit", "--out", rule, got, "Give another name, or remove them first."))
        if restart or not self._holds_state():
            return
        if names := self._differences():
            differ = ", ".join("the table" if name == "table" else f"--{name.replace('_', '-')}" for name in names)
            rule = "not have the unfinished training run of another command beside it"
            got = f"{str(self.folder)!r}, which differs in {differ}"
            advice = "Rerun that command to resume it, add --restart to discard it, or give another --out."
            raise ValueError(bad_value("fit", "--out", rule, got, advice))

    def resumes(self) -> bool:
        """Return whether a saved state belongs to the command."""
        try:
            return self._holds_state() and not self._differences()
        except (ValueError, OSError):  # no saved command, or an unreadable one
            return False

    def _differences(self) -> list[str]:
        """Return the options in which the command of the saved state differs."""
        before = io.read_json("fit", self.folder / _COMMAND)
        before = before if isinstance(before, dict) else {}
        return sorted(k for k in {*before, *self.command} if before.get(k) != self.command.get(k))

    @contextlib.contextmanager
    def kept(self, *, restart: bool) -> Iterator[Path]:
        """Yield the folder to save to; it is kept if the training is interrupted after a save.

        Raises:
            TrainingInterrupted: if a signal ended the work; its message explains how to resume.
        """
        if restart or not self._holds_state():
            self.discard()
            io.write_atomically(self.folder / _COMMAND, json.dumps(self.command))
        try:
            yield self.folder
        except io.TrainingInterrupted as stopped:
            if self._holds_state() and "resume" not in str(stopped):
                hint = f"The training is saved in {str(self.folder)!r}: rerun the same command to resume."
                raise io.TrainingInterrupted(stopped.signal, hint) from None
            raise
        finally:
            if not self._holds_state():
                self.discard()

    def discard(self) -> None:
        """Remove the saved state; a foreign folder of this name is kept."""
        if (self.folder / _COMMAND).is_file():
            shutil.rmtree(self.folder, ignore_errors=True)

    def _holds_state(self) -> bool:
        return self.folder.is_dir() and any(path.name != _COMMAND for path in self.folder.iterdir())


_OWNER = "torchmcl fit"
# Options of `fit` that are parameters of the estimators, with their names there.
_PARAMETERS = {
    **{name: name for name in ("rule", "hidden", "batch_size", "learning_rate", "weight_decay", "device")},
    **{"hypotheses": "n_hypotheses", "bins": "n_bins", "epochs": "n_epochs", "restarts": "n_restarts"},
    "validation": "validation_fraction",
}


def add_fit_command(commands: arguments.Commands) -> None:
    """Add `fit` to the commands."""
    summary = "train a model on a table: several answers for each row, with probabilities"
    fit = parts.new_command(commands, "fit", __doc__, summary, check=_check_fit, run=_fit)
    fit.add_argument("table", type=Path, nargs="?", help=f"training table: {parts.FORMATS}")
    parts.add_target_options(fit, default=None)
    fit.add_argument("-o", "--out", type=Path, required=True, help="folder for the model")
    parts.add_column_options(fit)
    _add_parameters(fit)
    fit.add_argument(
        "--test", type=arguments.fraction, default=0.1, help="share of test rows, for the report (default: %(default)s)"
    )
    fit.add_argument(
        "--split",
        choices=("time", "group", "random"),
        help="test rows: the last ones, whole groups, or a random sample (default: time if a column has dates, "
        "otherwise random)",
    )
    fit.add_argument(
        "--split-column", default="", help="column of times or groups for --split (default: the column of dates)"
    )
    fit.add_argument("--seed", type=arguments.seed, default=0, help="random seed (default: %(default)s)")
    fit.add_argument("--device", type=arguments.device, default="cpu", help="cpu or cuda (default: %(default)s)")
    fit.add_argument("--overwrite", action="store_true", help="replace an existing model")
    fit.add_argument("--restart", action="store_true", help="discard an unfinished training run instead of resuming it")
    fit.add_argument(
        "--private",
        action="store_true",
        help="write a model without rows of the table: no evaluation.json, and averaged leaves",
    )
    fit.add_argument("--example", action="store_true", help="use a small real table, which is written to diabetes.csv")
    fit.add_argument("--quiet", action="store_true", help="no progress bar, column decisions or summary")


def _add_parameters(fit: argparse.ArgumentParser) -> None:
    """Add the options of `_PARAMETERS`, and `--search`."""
    fit.add_argument(
        "--hypotheses", type=arguments.positive, default=5, help="answers for each row (default: %(default)s)"
    )
    fit.add_argument(
        "--rule",
        choices=("annealed", "auto", "mcl", "relaxed"),
        help="train hypotheses by a rule; auto sets the temperature during training (default: a blend of networks and "
        "a forest; for classes: annealed)",
    )
    fit.add_argument("--hidden", type=arguments.sizes, default=(64, 64), help="hidden layers (default: 64,64)")
    fit.add_argument(
        "--bins",
        type=arguments.natural,
        help="bins per column (default: networks without bins and with 32 bins; without from 50,000 rows on; with a "
        "rule 32 if values repeat)",
    )
    fit.add_argument(
        "--epochs",
        type=arguments.positive,
        help="largest number of passes over the rows (default: depends on the number of rows)",
    )
    fit.add_argument(
        "--batch-size", type=arguments.positive, help="rows per step (default: depends on the number of rows)"
    )
    fit.add_argument(
        "--learning-rate",
        type=arguments.positive_number,
        help="initial learning rate (default: 0.01 for the blend, 0.02 with a rule and for classes)",
    )
    fit.add_argument(
        "--weight-decay",
        type=arguments.non_negative_number,
        help="weight decay (default: 0.05, more for small tables with classes; with --rule auto, set during training)",
    )
    fit.add_argument(
        "--search",
        action="store_true",
        help="train 64 candidates and keep the best; excludes --rule, --learning-rate and --weight-decay",
    )
    fit.add_argument(
        "--restarts",
        type=arguments.positive,
        help="networks of each kind (default: 5; without a rule 3 from 10,000 rows on; 1 from 50,000 rows on)",
    )
    fit.add_argument(
        "--validation",
        type=arguments.fraction,
        help="share of held-out rows, two thirds for selection and one third for calibration (default: 0.15); for "
        "classes, the share that each network holds out (default: 0.2)",
    )


def _check_fit(options: argparse.Namespace) -> None:
    """Check the options without torch, and read the table."""
    from torchmcl_tables.data import read_table
    from torchmcl_tables.data.inference import check_rows
    from torchmcl_tables.data.splits import choose_split
    from torchmcl_tables.data.table_files import EXAMPLE, EXAMPLE_TARGET, write_example
    from torchmcl_tables.saved_model import check_folder

    if options.example:
        options.table, options.target = options.table or Path(EXAMPLE), options.target or [EXAMPLE_TARGET]
    for argument, value in (("table", options.table), ("--target", options.target)):
        if not value:
            raise ValueError(bad_value(_OWNER, argument, "be given", "nothing", "To try it out, add --example."))
    check_folder(options.out)
    if options.example:
        write_example(options.table)
    options.read = read_table(options.table)
    options.training = UnfinishedTraining.beside(options.out, options)
    # A model beside its own unfinished training run has not been evaluated yet.
    check_folder(options.out, overwrite=options.overwrite or options.training.resumes())
    check_rows(options.read)
    options.schema = parts.schema_of(options.read, options)
    options.training.check(restart=options.restart)
    split = choose_split(options.read, options.schema, options.split, options.split_column)
    if not options.quiet:
        parts.print_decisions(options.schema, options, split.describe() if options.test else "")


def _fit(options: argparse.Namespace) -> None:
    from torchmcl_fleet import FleetSearch
    from torchmcl_tables.model import TableFit, fit_summary, measure_table, save_table_model, train_table
    from torchmcl_tables.model.fitting import with_verdict

    how = TableFit(
        targets=options.target,
        task=options.task,
        **parts.chosen_columns(options),
        test_fraction=options.test,
        split=options.split,
        split_column=options.split_column,
        seed=options.seed,
        parameters=_parameters(options) | {"search": FleetSearch() if options.search else None},
    )
    with options.training.kept(restart=options.restart) as checkpoint:
        model = train_table(options.read, how, schema=options.schema, progress=not options.quiet, checkpoint=checkpoint)
        # Save first: a failing evaluation must not lose the model. After a signal, a rerun repeats the evaluation.
        save_table_model(model, options.out, private=options.private)
        try:
            model = with_verdict(measure_table(model, options.read, how))
            save_table_model(model, options.out, private=options.private)
        except Exception:
            options.training.discard()
            text = f"{_OWNER}: the model is trained and saved in {str(options.out)!r}, but its evaluation failed:"
            arguments.say(text, error=True)
            raise
    options.training.discard()
    if not options.quiet:
        arguments.say(fit_summary(model))
        if "verdict" in model.metrics:
            arguments.say(_verdict_line(model.metrics["verdict"]))
        arguments.say(f"Model: {options.out}   {parts.spent()}")
        if options.example:
            words = ["predict", str(options.out), str(options.table), "-o", "answers.csv", "--interval", "0.9"]
            arguments.say(f"Try: torchmcl {shlex.join(words)}")


def _verdict_line(verdict: dict[str, Any] | None) -> str:
    from torchmcl_tables.verdict import Verdict

    if verdict is None:
        return "Verdict: none, because there are no test rows. Use `torchmcl report --data` with another table."
    return Verdict(**verdict).line


def _parameters(options: argparse.Namespace) -> dict[str, Any]:
    from torchmcl_tables.model.classes import CLASS_RULES, NAMED_RULES

    given = {there: getattr(options, here) for here, there in _PARAMETERS.items()}
    if options.rule is not None:
        given["rule"] = (CLASS_RULES if options.schema.classes else NAMED_RULES)[options.rule]
    return {name: value for name, value in given.items() if value is not None}
