"""The README runs as it stands, block by block in order, and what it names is there."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

import torchmcl
from torchmcl.cli import main

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_every_block_runs_as_it_stands_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    namespace = {}
    n_commands = 0
    for kind, block in BLOCKS:
        if kind == "python":
            exec(compile(block, "README.md", "exec"), namespace)
            continue
        for line in block.splitlines():
            program, *words = shlex.split(line, comments=True)
            assert program in ("make", "torchmcl")
            if program == "make":  # sets up an environment of its own
                assert set(words) <= targets
            else:
                assert main(words) == 0, line
                n_commands += 1
    assert n_commands == 3
    assert len([kind for kind, _ in BLOCKS if kind == "python"]) == 3
    assert namespace["values"].shape == (42, 5, 1)
    assert {path.name for path in tmp_path.iterdir()} == {"answers.csv", "diabetes.csv", "model"}


def names_in_the_box():
    box = TEXT.partition("## What is in the box")[2].partition("\n## ")[0]
    table = "\n".join(line for line in box.splitlines() if line.startswith("|"))
    return sorted(set(re.findall(r"`([A-Za-z_][\w.]*)`", table)))


def test_the_box_is_read():
    assert {"AutoAnnealing", "torchmcl.theory", "pairwise_l1", "torchmcl.fleet.Fleet"} <= set(names_in_the_box())


@pytest.mark.parametrize("name", names_in_the_box())
def test_names_in_the_box_are_found_where_they_are_listed(name):
    parts = name.removeprefix("torchmcl.").split(".")
    found = torchmcl
    for i, part in enumerate(parts):
        try:
            found = getattr(found, part)
        except AttributeError:
            found = importlib.import_module(".".join(["torchmcl", *parts[: i + 1]]))
