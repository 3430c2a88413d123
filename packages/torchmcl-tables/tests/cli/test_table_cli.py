"""The command line on real files, as a user runs it: fit, predict, report; bad input leaves nothing behind."""

import csv
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from house_tables import houses, write_csv
from places import PYTHONPATH, ROOT, SHARED
from torchmcl.app import _parser, main
from torchmcl.io import Checkpoint, read_checkpoint

UCI = SHARED / "uci"
FAST = ["--epochs", "3", "--hidden", "8", "--quiet"]


def torchmcl(*arguments, cwd=None):
    """Run the command in a process of its own."""
    environment = os.environ | {"PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-m", "torchmcl", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment)


def test_a_table_goes_in_and_several_answers_come_out(tmp_path):
    write_csv(tmp_path / "houses.csv", houses(150))
    new = [{k: v for k, v in row.items() if k not in ("price", "days")} for row in houses(30, seed=1)]
    write_csv(tmp_path / "new.csv", new)
    small = ["--epochs", 5, "--hidden", 8, "--restarts", 1]
    fit = torchmcl("fit", "houses.csv", "--target", "price,days", *small, "-o", "model/", cwd=tmp_path)
    assert fit.returncode == 0, fit.stderr
    assert "coverage of the 90 % sets" in fit.stdout
    assert "MiB at most" in fit.stdout
    assert "%|" in fit.stderr  # the progress bar
    metrics = json.loads((tmp_path / "model" / "metrics.json").read_text())
    assert metrics["rows"] == {"learned_from": 135, "set_apart": 15, "without_target": 0}
    predict = torchmcl("predict", "model/", "new.csv", "-o", "answers.csv", "--interval", "0.9", cwd=tmp_path)
    assert predict.returncode == 0, predict.stderr
    assert "Predictions for 30 rows" in predict.stdout
    with (tmp_path / "answers.csv").open() as file:
        answers = list(csv.DictReader(file))
    assert len(answers) == 30
    assert {"price_mean", "price_5", "days_set", "probability_1"} <= set(answers[0])
    assert main(["report", str(tmp_path / "model")]) == 0
    assert "5 predictions for" in (tmp_path / "model" / "report.html").read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["answers.csv", "houses.csv", "model", "new.csv"]


def test_the_commands_of_the_tutorial_run(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "command_line.rst").read_text(encoding="utf-8")
    program = re.search(r"code-block:: python\n\n((?:   .*\n|\n)+)", page)
    commands = re.findall(r"^   \$ torchmcl (.+)$", page, re.MULTILINE)
    assert len(commands) == 7
    monkeypatch.chdir(tmp_path)
    draws = np.random.default_rng(0).normal(size=(60, 4, 1))  # what a network of one's own would have written
    np.savez("predictions.npz", hypotheses=draws[:, :3], targets=draws[:, 3])
    exec(textwrap.dedent(program[1]), {})
    for command in commands:
        assert main([*command.split(), *(FAST[:-1] if command.startswith("fit") else ())]) == 0
    answers = ["answers.csv", "diabetes.csv", "diagnosis.html", "progression.csv"]
    written = sorted([*answers, "example", "houses.csv", "model", "predictions.npz"])
    assert sorted(p.name for p in tmp_path.iterdir()) == written
    assert (tmp_path / "model" / "report.html").is_file()


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted")
    write_csv(folder / "houses.csv", houses(60))
    assert main(["fit", str(folder / "houses.csv"), "--target", "price", "-o", str(folder / "model"), *FAST]) == 0
    return folder / "model"


def test_folders_that_are_no_model_give_exit_code_2(fitted, tmp_path, capsys):
    new = str(write_csv(tmp_path / "new.csv", houses(5)))
    out = str(tmp_path / "answers.csv")
    assert main(["predict", str(tmp_path), new, "-o", out]) == 2
    assert "has no model.safetensors" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "none")]) == 2
    assert "which does not exist" in capsys.readouterr().err
    newer = tmp_path / "newer"
    newer.mkdir()
    content = (fitted / "model.safetensors").read_bytes()
    (newer / "model.safetensors").write_bytes(content.replace(rb"\"version\": 1", rb"\"version\": 2"))
    assert main(["predict", str(newer), new, "-o", out]) == 2
    assert "got version 2" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new.csv", "newer"]


def test_an_output_that_cannot_be_written_is_refused_before_any_work(fitted, tmp_path, capsys):
    path = write_csv(tmp_path / "houses.csv", houses(60))
    blocked = tmp_path / "file"
    blocked.write_text("mine")
    assert main(["fit", str(path), "--target", "price", "-o", str(blocked / "model"), *FAST]) == 2
    assert "is not a folder" in capsys.readouterr().err
    assert main(["fit", str(path), "--target", "price", "-o", str(blocked), *FAST]) == 2
    assert "must be new, empty or contain a model" in capsys.readouterr().err
    assert main(["predict", str(fitted), str(path), "-o", str(blocked / "answers.csv")]) == 2
    assert "is not a folder" in capsys.readouterr().err
    assert main(["predict", str(fitted), str(path), "-o", str(tmp_path / "answers.doc")]) == 2
    assert "must end in .csv" in capsys.readouterr().err
    assert main(["report", str(fitted), "-o", str(blocked / "report.html")]) == 2
    assert "is not a folder" in capsys.readouterr().err
    (tmp_path / "taken.csv").mkdir()
    assert main(["predict", str(fitted), str(path), "-o", str(tmp_path / "taken.csv")]) == 2
    assert "it is a folder" in capsys.readouterr().err
    assert blocked.read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "houses.csv", "taken.csv"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(fitted, tmp_path, capsys):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    path = write_csv(tmp_path / "houses.csv", houses(60))
    assert main(["fit", str(path), "--target", "price", "-o", str(closed / "model"), *FAST]) == 2
    assert "no permission" in capsys.readouterr().err


def test_a_device_that_is_not_there_gives_exit_code_2(tmp_path, capsys):
    path = write_csv(tmp_path / "houses.csv", houses(60))
    options = ["--target", "price", "-o", str(tmp_path / "model"), *FAST, "--device", "cuda:99"]
    assert main(["fit", str(path), *options]) == 2
    assert "`device` must be" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["houses.csv"]


def test_ten_rows_and_one_answer_are_enough(tmp_path):
    path = write_csv(tmp_path / "houses.csv", houses(10))
    model = str(tmp_path / "model")
    assert main(["fit", str(path), "--target", "price", "--drop", "city", "--hypotheses", "1", "-o", model, *FAST]) == 0
    assert main(["report", model, "--quiet"]) == 0
    answers = tmp_path / "answers.csv"
    assert main(["predict", model, str(path), "-o", str(answers), "--interval", "0.9", "--quiet"]) == 0
    assert '"[-inf, inf]"' in answers.read_text()  # one row is too few to calibrate with


def test_a_model_is_replaced_only_when_told_so(tmp_path, capsys):
    path = write_csv(tmp_path / "houses.csv", houses(60))
    command = ["fit", str(path), "--target", "price", "-o", str(tmp_path / "model"), *FAST]
    assert main(command) == 0
    before = (tmp_path / "model" / "model.safetensors").read_bytes()
    assert main([*command, "--seed", "1"]) == 2
    assert "which holds a model. Give another name, or add --overwrite to replace the model." in capsys.readouterr().err
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before
    assert main([*command, "--seed", "1", "--overwrite"]) == 0
    assert (tmp_path / "model" / "model.safetensors").read_bytes() != before


def test_the_files_that_are_read_are_never_written(fitted, tmp_path, capsys):
    path = write_csv(tmp_path / "houses.csv", houses(60))
    before = path.read_bytes()
    (tmp_path / "link.csv").symlink_to(path)
    for out in (path, tmp_path / "link.csv"):
        assert main(["predict", str(fitted), str(path), "-o", str(out)]) == 2
        assert "`--out` must differ from the file that is read" in capsys.readouterr().err
        assert main(["report", str(fitted), "--data", str(path), "-o", str(out)]) == 2
    assert path.read_bytes() == before


def test_a_failure_after_the_training_loses_nothing_of_it(tmp_path, monkeypatch, capsys):
    def broken(*_, **__):
        raise TypeError("a bug in the measures")

    path = write_csv(tmp_path / "houses.csv", houses(60))
    model = tmp_path / "model"
    with monkeypatch.context() as patch:
        patch.setattr("torchmcl_tables.model.fitting.evaluated", broken)
        with pytest.raises(TypeError, match="a bug in the measures"):
            main(["fit", str(path), "--target", "price", "-o", str(model), *FAST])
    assert f"the model was trained and saved in {str(model)!r}, but its evaluation failed" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["houses.csv", "model"]
    assert main(["predict", str(model), str(path), "-o", str(tmp_path / "answers.csv"), "--quiet"]) == 0
    assert main(["report", str(model), "--data", str(path), "--quiet"]) == 0
    assert main(["report", str(model)]) == 2
    assert "`--data` must be given for a model without test rows" in capsys.readouterr().err


def stopped_fit(tmp_path):
    """Leave the folder of an unfinished training behind, as a kill does; return the command."""
    path = write_csv(tmp_path / "houses.csv", houses(60))
    command = ["fit", str(path), "--target", "price", "-o", str(tmp_path / "model"), *FAST]
    options = _parser().parse_args(command)
    options.words = command
    plan = options.check(options)
    Checkpoint(plan.checkpoint, plan.key, owner="torchmcl fit").once("begin", dict)
    return command


def test_an_unfinished_training_by_other_options_is_named_and_can_be_discarded(tmp_path, capsys):
    command = stopped_fit(tmp_path)
    assert main([*command, "--hidden", "6", "--learning-rate", "0.1"]) == 2
    error = capsys.readouterr().err
    assert "differs in hidden, learning_rate." in error
    write_csv(tmp_path / "houses.csv", houses(61))
    assert main(command) == 2
    assert "differs in table." in capsys.readouterr().err
    assert main([*command, "--hidden", "6", "--restart"]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["houses.csv", "model"]
    state = read_checkpoint(tmp_path / "model" / "model.safetensors").state
    assert state["regressor"]["parameters"]["hidden"] == {"$tuple": [6]}


def test_the_same_command_resumes_whatever_the_file_is_called(tmp_path):
    command = stopped_fit(tmp_path)
    (tmp_path / "houses.csv").rename(tmp_path / "moved.csv")
    assert main(["fit", str(tmp_path / "moved.csv"), *command[2:], "--quiet"]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "moved.csv"]


@pytest.mark.parametrize("content", ["{", "{}", "\x00"])
def test_damaged_records_of_a_report_do_not_keep_a_model_from_answering(fitted, tmp_path, capsys, content):
    model = shutil.copytree(fitted, tmp_path / "model")
    (model / "evaluation.json").write_text(content)
    table = write_csv(tmp_path / "new.csv", houses(5))
    assert main(["predict", str(model), str(table), "-o", str(tmp_path / "answers.csv"), "--quiet"]) == 0
    assert main(["report", str(model)]) == 2
    assert "the model works without it: remove it, and report with --data" in capsys.readouterr().err


def test_infinite_sets_are_told_with_the_largest_probability_that_can_be_asked_for(fitted, tmp_path, capsys):
    table = write_csv(tmp_path / "new.csv", houses(5))
    assert main(["predict", str(fitted), str(table), "-o", str(tmp_path / "a.csv"), "--interval", "0.999"]) == 0
    told = re.search(
        r"price: 5 of 5 sets are infinite, as \d+ rows calibrate them: enough for --interval ([\d.]+) at",
        capsys.readouterr().err,
    )
    assert main(["predict", str(fitted), str(table), "-o", str(tmp_path / "a.csv"), "--interval", told[1]]) == 0
    assert "infinite" not in capsys.readouterr().err


def test_a_private_model_holds_no_rows_and_answers(tmp_path, capsys):
    table = write_csv(tmp_path / "houses.csv", houses(60))
    assert main(["fit", str(table), "--target", "price", "-o", str(tmp_path / "model"), "--private", *FAST]) == 0
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["metrics.json", "model.safetensors"]
    assert main(["predict", str(tmp_path / "model"), str(table), "-o", str(tmp_path / "answers.csv"), "--quiet"]) == 0
    assert main(["report", str(tmp_path / "model"), "--data", str(table), "--quiet"]) == 0


def test_names_and_cells_cannot_command_the_terminal(fitted, tmp_path, capsys):
    evil = "x\x1b[2J\x9b31m\u202e"
    rows = [row | {evil: evil if i % 2 else "b"} for i, row in enumerate(houses(60))]
    table = write_csv(tmp_path / "t.csv", rows)
    commands = [
        ["describe", str(table), "--target", "price"],
        ["describe", str(table), "--target", f"prize{evil}"],
        ["fit", str(table), "--target", "price", "--numeric", evil, "-o", str(tmp_path / "m"), *FAST[:-1]],
        ["fit", str(table), "--target", evil, "-o", str(tmp_path / "m"), *FAST[:-1]],
        ["report", str(tmp_path / "m")],
        ["predict", str(fitted), str(table), "-o", str(tmp_path / "a.csv"), "--keep", f"{evil}y"],
    ]
    for command in commands:
        main(command)
        said = "".join(capsys.readouterr())
        assert "x\\x1b[2J" in said or "report" in command
        shown = said.replace("\x1b[A", "")  # of the progress bar
        assert not {"\x1b", "\x9b", "\u202e"} & set(shown)


FORMULAS = ["=cmd|' /C calc'!A0", "@SUM(1)", "+1+cmd", "-3.5", "-x", "fine", "\t=1", "1e-5", None, "+4"]


@pytest.mark.parametrize("ending", ["csv", "tsv", "csv.gz"])
def test_formulas_are_escaped_when_told_so_and_numbers_stay(fitted, tmp_path, ending):
    rows = [row | {"=note": note or ""} for row, note in zip(houses(10), FORMULAS, strict=True)]
    path = write_csv(tmp_path / "new.csv", rows)
    out = tmp_path / f"answers.{ending}"
    command = ["predict", str(fitted), str(path), "-o", str(out), "--keep", "=note", "--quiet"]
    separator = "\t" if "tsv" in ending else ","
    assert main(command) == 0
    assert pl.read_csv(out, separator=separator, infer_schema=False)["=note"].to_list() == FORMULAS
    assert main([*command, "--escape-formulas"]) == 0
    kept = pl.read_csv(out, separator=separator, infer_schema=False)["'=note"].to_list()
    assert kept == ["'" + FORMULAS[0], "'@SUM(1)", "'+1+cmd", "-3.5", "'-x", "fine", "'\t=1", "1e-5", None, "+4"]


def test_other_formats_hold_no_formulas(fitted, tmp_path, capsys):
    path = write_csv(tmp_path / "new.csv", houses(5))
    command = ["predict", str(fitted), str(path), "-o", str(tmp_path / "answers.parquet"), "--escape-formulas"]
    assert main(command) == 2
    assert "`--escape-formulas` must be used with a CSV or TSV file" in capsys.readouterr().err


def test_the_example_is_a_table_to_learn_from_and_to_answer_for(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "--example", "-o", "my model", *FAST[:-1]]) == 0
    shown = capsys.readouterr().out
    assert "Trained on 398 rows of diabetes.csv" in shown
    advised = shlex.split(shown.rpartition("Try: torchmcl ")[2])
    assert main(advised) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["diabetes.csv", "my model", "predictions.csv"]
    assert main(["fit", "--example", "-o", "again", *FAST, "--hypotheses", "2"]) == 0
    Path("diabetes.csv").write_text("mine")
    assert main(["fit", "--example", "-o", "third", *FAST]) == 2
    assert "must be new, or contain the example, got 'diabetes.csv'" in capsys.readouterr().err
    assert Path("diabetes.csv").read_text() == "mine"
    assert main(["fit", "-o", "third", *FAST]) == 2
    assert "torchmcl fit: `table` is required" in capsys.readouterr().err
