"""The command line teaches, and refuses bad input with exit code 2."""

import os
import platform
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

import torchmcl as mcl
from torchmcl.app import _parser, main
from torchmcl_tables import DensityRegressor


def test_without_a_command_the_help_is_shown(capsys):
    assert main([]) == 0
    assert "demo" in capsys.readouterr().out


def test_version_is_printed(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert "torchmcl 0." in capsys.readouterr().out


def test_the_verbose_version_has_what_a_bug_report_needs_and_names_no_folder(capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("TORCHMCL_DATA", "/home/somebody/data")
    with pytest.raises(SystemExit) as stop:
        main(["--version", "--verbose"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    lines = dict(line.split(maxsplit=1) for line in shown.splitlines())
    assert {"torchmcl", "python", "system", "processor", "cores", "torch", "threads", "cuda", "triton"} <= lines.keys()
    assert lines["torch"] == torch.__version__
    assert lines["numpy"] == np.__version__
    assert "OMP_NUM_THREADS=2" in lines["variables"]
    assert lines["torchmcl"] == mcl.__version__
    for word in ("/home", "/root", "/tmp", os.sep + "usr", platform.node()):
        assert word not in shown


def test_verbose_alone_is_refused(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--verbose"])
    assert stop.value.code == 2
    assert "`--verbose`" in capsys.readouterr().err


def test_an_output_that_cannot_be_written_gives_exit_code_2(tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert main(["play", "--out", str(blocked / "play.html")]) == 2
    assert re.match(r"torchmcl: '.*' cannot be read or written: (Not|File) ", capsys.readouterr().err)
    assert blocked.read_text() == "not a folder"


@pytest.mark.parametrize("words", [["demo"], ["reproduce", "figure1"], ["reproduce", "trajectories"]])
def test_a_page_of_somebody_else_is_never_replaced(words, tmp_path, capsys):
    (tmp_path / "index.html").write_text("<p>mine")
    assert main([*words, "--out", str(tmp_path), "--quiet"]) == 2
    assert "`--out` must not hold files that torchmcl did not write" in capsys.readouterr().err
    assert (tmp_path / "index.html").read_text() == "<p>mine"


def test_the_module_runs_as_a_script_and_shows_its_help_without_torch():
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "torchmcl", "--help"], capture_output=True, text=True
    )
    assert run.returncode == 0
    assert "usage: torchmcl" in run.stdout
    imported = {line.rpartition("|")[2].strip() for line in run.stderr.splitlines()}
    assert "torchmcl.app" in imported
    assert not {"torch", "numpy"} & imported


def test_the_defaults_of_fit_are_those_of_the_estimator():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    options = vars(_parser().parse_args(["fit", "houses.csv", "--target", "price", "-o", "model"]))
    same = {
        "hypotheses": "n_hypotheses",
        "hidden": "hidden",
        "weight_decay": "weight_decay",
        "restarts": "n_restarts",
    }
    estimator = DensityRegressor().get_params()
    assert {name: options[name] for name in same} == {name: estimator[there] for name, there in same.items()}


def test_the_rules_of_fit_are_those_that_the_estimators_have_names_for():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from torchmcl_tables.model.classes import NAMED_RULES

    for name in NAMED_RULES:
        assert _parser().parse_args(["fit", "t.csv", "--target", "y", "-o", "m", "--rule", name]).rule == name
    with pytest.raises(SystemExit):
        _parser().parse_args(["fit", "t.csv", "--target", "y", "-o", "m", "--rule", "other"])
