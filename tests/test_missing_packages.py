"""Commands whose package is missing name it, help needs neither torch nor an extra, and bad input is found early."""

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from places import PACKAGES

TABLES = (
    "comes with torchmcl-tables: pip install ./packages/torchmcl ./packages/torchmcl-fleet ./packages/torchmcl-tables"
)
SPEECH = "comes with torchmcl-speech: pip install ./packages/torchmcl ./packages/torchmcl-speech"
FORECAST = (
    "comes with torchmcl-forecast: "
    "pip install ./packages/torchmcl ./packages/torchmcl-fleet ./packages/torchmcl-tables ./packages/torchmcl-forecast"
)
COMMANDS = {
    "describe a.csv": TABLES,
    "fit a.csv --target y -o model": TABLES,
    "predict model a.csv -o b.csv": TABLES,
    "report model": TABLES,
    "forecast a.csv --horizon 3 -o new": FORECAST,
    "separation separate a.wav": SPEECH,
    "data mix a --out new": SPEECH,
    "reproduce uci --out new": "comes with the studies in the repository",
    "demo --out new": "comes with torchmcl-fleet: pip install ./packages/torchmcl ./packages/torchmcl-fleet",
}


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """Return a folder to import from that has torchmcl, torch, NumPy and their own dependencies, and nothing else."""
    site = tmp_path_factory.mktemp("bare")
    waiting, seen = ["torch", "numpy"], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        waiting += [re.match(r"[\w.-]+", text)[0] for text in distribution.requires or () if "extra ==" not in text]
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}:
            target = Path(distribution.locate_file(top))
            if target.exists() and not (site / top).exists():
                (site / top).symlink_to(target)
    (site / "torchmcl").symlink_to(PACKAGES[0] / "torchmcl")
    return site


def endings(commands, folder, begin, *options):
    """Return the exit code and the output of each command, all of them run in one process."""
    call = [sys.executable, *options, "-c", begin + PROGRAM, *commands]
    ended = subprocess.run(call, cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


PROGRAM = """
import contextlib, io, json
from torchmcl.app import main

def ending(command):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code = main(command.split())
        except SystemExit as end:
            code = end.code
    return code, out.getvalue()

print(json.dumps({command: ending(command) for command in sys.argv[1:]}))
"""
HIDE = """
import sys
from importlib.machinery import PathFinder

class Hidden(PathFinder):  # entry points are still found
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in blocked else PathFinder.find_spec(name, path, target)

    def find_distributions(self, context):
        return PathFinder.find_distributions(context)

sys.meta_path = [Hidden() if finder is PathFinder else finder for finder in sys.meta_path]
"""


def hiding(*names):
    """Return the beginning of a program in whose process some packages are not installed."""
    return f"blocked = {names!r}\n{HIDE}"


def test_a_command_without_its_package_names_the_package_and_writes_nothing(bare, tmp_path):
    begin = f"import sys; sys.path.insert(0, {str(bare)!r})"
    ended = endings([*COMMANDS, "--help"], tmp_path, begin, "-I", "-S")
    for command, message in COMMANDS.items():
        code, said = ended[command]
        assert code == 2, command
        assert message in said
    code, said = ended["--help"]
    assert code == 0
    missing = "Not installed: data, demo, describe, fit, forecast, predict, report, reproduce, separation"
    assert missing in " ".join(said.split())
    assert not list(tmp_path.iterdir())


def test_help_loads_neither_torch_nor_the_packages_of_a_command(tmp_path):
    heavy = ("torch", "numpy", "scipy", "sklearn", "polars", "matplotlib", "safetensors", "lightning", "soundfile")
    commands = ["--help", "fit --help", "separation --help", "reproduce --help", "--version"]
    assert {code for code, _ in endings(commands, tmp_path, hiding(*heavy)).values()} == {0}


BAD = {
    "fit none.csv --target y -o model": "torchmcl fit: `file`",
    "fit table.csv --target z -o model": "torchmcl fit: `--target`",
    "fit table.csv --target y -o table.csv": "torchmcl fit: `folder`",
    "fit table.csv --target y -o model --seed x": "torchmcl fit: `--seed`",
    "predict model table.csv -o answers.csv": "torchmcl predict: `folder`",
    "report model": "torchmcl report: `folder`",
}


def test_bad_input_is_found_before_torch_is_loaded(tmp_path):
    (tmp_path / "table.csv").write_text("x,y\n" + "1,2\n2,3\n" * 20)
    ended = endings(BAD, tmp_path, hiding("torch"))
    for command, message in BAD.items():
        code, said = ended[command]
        assert code == 2, command
        assert message in said
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]
