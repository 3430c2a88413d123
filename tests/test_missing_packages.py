"""Commands whose package is missing name it, help needs neither torch nor an extra, and bad input is found early."""

import importlib.metadata
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


def in_bare(bare, folder, *words):
    program = "import sys; sys.path.insert(0, sys.argv.pop(1)); from torchmcl.app import main; sys.exit(main())"
    call = [sys.executable, "-I", "-S", "-c", program, str(bare), *words]
    return subprocess.run(call, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_without_its_package_names_the_package_and_writes_nothing(bare, tmp_path, command):
    ended = in_bare(bare, tmp_path, *command.split())
    assert ended.returncode == 2, ended.stderr
    assert COMMANDS[command] in ended.stderr
    assert not list(tmp_path.iterdir())


def test_help_of_the_library_alone_lists_the_missing_commands(bare, tmp_path):
    ended = in_bare(bare, tmp_path, "--help")
    assert ended.returncode == 0, ended.stderr
    missing = "Not installed: data, describe, fit, forecast, predict, report, reproduce, separation"
    assert missing in " ".join(ended.stdout.split())


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
from torchmcl.app import main
sys.exit(main(words))
"""


def run(command, folder, blocked):
    """Run a command in a process in which some packages are not installed."""
    program = f"blocked, words = {sorted(blocked)!r}, {command.split()!r}\n{HIDE}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=folder)


@pytest.mark.parametrize("command", ["--help", "fit --help", "separation --help", "reproduce --help", "--version"])
def test_help_loads_neither_torch_nor_the_packages_of_a_command(command, tmp_path):
    heavy = {
        "torch",
        "numpy",
        "scipy",
        "sklearn",
        "polars",
        "matplotlib",
        "safetensors",
        "lightning",
        "soundfile",
    }
    ended = run(command, tmp_path, heavy)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("fit none.csv --target y -o model", "torchmcl fit: `file` must exist, got 'none.csv'"),
        ("fit table.csv --target z -o model", "torchmcl fit: `--target` must name a column of table.csv, got 'z'"),
        ("fit table.csv --target y -o table.csv", "torchmcl fit: `folder` must be new, empty"),
        ("fit table.csv --target y -o model --seed x", "torchmcl fit: `--seed` must be an integer"),
        ("predict model table.csv -o answers.csv", "torchmcl predict: `folder` must be a folder that"),
        ("report model", "torchmcl report: `folder` must be a folder that"),
    ],
)
def test_bad_input_is_found_before_torch_is_loaded(command, message, tmp_path):
    (tmp_path / "table.csv").write_text("x,y\n" + "1,2\n2,3\n" * 20)
    ended = run(command, tmp_path, {"torch"})
    assert ended.returncode == 2
    assert message in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]
