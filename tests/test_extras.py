"""Without the extras, each command names the one that suffices, at once; with it, the command runs."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
# What the package never needs by itself; names as they are imported.
OPTIONAL = {
    *("scipy", "sklearn", "joblib", "polars", "pyarrow", "pandas", "safetensors", "matplotlib", "tqdm", "torchmetrics"),
    *("lightning", "pytorch_lightning", "tensorboard", "pooch", "soundfile", "soxr", "yaml", "distributed", "ot"),
}
# The packages of an extra, and those that come with them, as they are imported.
IMPORTED = {
    "table": {"polars", "pyarrow", "sklearn", "scipy", "joblib", "safetensors", "matplotlib", "tqdm"},
    "demo": {"matplotlib", "sklearn", "scipy", "joblib", "tqdm"},
}
SMALL = "--epochs 1 --hidden 4 --restarts 1 --quiet"
RUNS = {
    f"fit --example -o model {SMALL}": ("table", "polars, sklearn and safetensors"),
    "predict model diabetes.csv -o answers.csv --quiet": ("table", "polars, sklearn and safetensors"),
    "report model --quiet": ("table", "polars, sklearn, safetensors and matplotlib"),
    "demo --seeds 1 --epochs 2 --quiet": ("demo", "matplotlib and sklearn"),
}


HIDE = """
import sys
from importlib.machinery import PathFinder

class Hidden:
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in blocked else PathFinder.find_spec(name, path, target)

sys.meta_path = [Hidden() if finder is PathFinder else finder for finder in sys.meta_path]
from torchmcl.cli import main
code = main(words)
print("torch" in sys.modules)
sys.exit(code)
"""


def run(command, folder, blocked):
    """Run a command in a process in which some packages are not installed."""
    program = f"blocked, words = {sorted(blocked)!r}, {command.split()!r}\n{HIDE}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=folder)


@pytest.mark.parametrize("command", RUNS)
def test_without_extras_a_command_names_the_one_that_suffices_and_writes_nothing(command, tmp_path):
    extra, missing = RUNS[command]
    ended = run(command, tmp_path, OPTIONAL)
    assert ended.returncode == 2
    name = command.split()[0]
    assert ended.stderr == f"torchmcl {name} needs {missing}: pip install 'torchmcl[{extra}]'.\n"
    assert ended.stdout == "False\n", "torch was loaded before"
    assert not list(tmp_path.iterdir())


def test_with_its_extra_alone_each_command_runs(tmp_path):
    for command, (extra, _) in RUNS.items():
        ended = run(command, tmp_path, OPTIONAL - IMPORTED[extra])
        assert ended.returncode == 0, ended.stderr


def test_the_extras_are_those_of_the_project():
    known = {"scikit-learn": "sklearn"}
    for extra, imported in IMPORTED.items():
        named = {requirement.partition(">")[0] for requirement in EXTRAS[extra]}
        assert {known.get(name, name) for name in named} == imported - {"joblib"} - ({"scipy"} - named)


@pytest.mark.parametrize("command", ["--help", "fit --help", "--version"])
def test_help_needs_no_extra_and_no_torch(command, tmp_path):
    ended = run(command, tmp_path, {*OPTIONAL, "torch", "numpy"})
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
