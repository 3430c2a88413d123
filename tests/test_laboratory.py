"""The laboratory is a guest: studies, benchmarks and fuzzers use public names only and could be lifted out whole."""

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

import torchmcl

PACKAGE = Path(torchmcl.__file__).parent
REPOSITORY = Path(__file__).parents[1]
STUDY_REPORTS = (
    *("demo", "figure_drawings", "figures", "separation_drawings", "separation_numbers", "separation_study"),
    *("trajectories", "trajectory_drawings", "uci"),
)
# What would be lifted out of the package: the modules below these names.
STUDIES = ("torchmcl.experiments", *(f"torchmcl.reports.{name}" for name in STUDY_REPORTS))


def laboratory():
    inside = [*(PACKAGE / "experiments").rglob("*.py"), *(PACKAGE / "reports" / f"{name}.py" for name in STUDY_REPORTS)]
    return sorted([*inside, *(REPOSITORY / "benchmarks").glob("*.py"), *(REPOSITORY / "fuzz").glob("*.py")])


def imports_of(path):
    """Return (module, name) of every import from the package, name None for the module itself."""
    pairs = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            pairs += [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            pairs += [(node.module, alias.name) for alias in node.names]
    return [(module, name) for module, name in pairs if module.split(".")[0] == "torchmcl"]


def is_study(module, name=None):
    return any(f"{module}.{name}.".startswith(f"{study}.") for study in STUDIES)


def is_public_module(module):
    """Return whether a module has `__all__`, no private part, and is a room, a subpackage or exported by its parent."""
    room, *deeper = module.split(".")[1:] or [""]
    if room.startswith("_") or not hasattr(importlib.import_module(module), "__all__"):
        return False
    if not deeper or (PACKAGE / room).joinpath(*deeper, "__init__.py").exists():
        return not any(part.startswith("_") for part in deeper)
    package, _, name = module.rpartition(".")
    return is_public_module(package) and name in importlib.import_module(package).__all__


def is_public(module, name):
    if name is None:
        return is_public_module(module)
    exported = importlib.import_module(module).__all__ if is_public_module(module) else ()
    on_demand = module == "torchmcl" and name in ("MCLClassifier", "MCLRegressor")  # they need scikit-learn
    is_room = (
        module == "torchmcl" and importlib.util.find_spec(f"torchmcl.{name}") and is_public_module(f"torchmcl.{name}")
    )
    return bool(on_demand or name in exported or is_room)


@pytest.mark.parametrize(
    ("module", "name", "expected"),
    [
        ("torchmcl", "WTA", True),
        ("torchmcl", "theory", True),
        ("torchmcl.data.uci", "load_uci", True),
        ("torchmcl.theory.quantizers", "Lloyd", True),
        ("torchmcl._checks", "bad_value", False),
        ("torchmcl.nn.saved", "save_model", False),
        ("torchmcl.reports.table", "_head", False),
        ("torchmcl.fleet", "stacked", False),
    ],
)
def test_what_counts_as_public(module, name, expected):
    assert is_public(module, name) == expected


@pytest.mark.parametrize("path", laboratory(), ids=lambda path: path.relative_to(path.parents[2]).as_posix())
def test_the_laboratory_imports_public_names_only(path):
    private = [pair for pair in imports_of(path) if not is_study(*pair) and not is_public(*pair)]
    assert not private, f"{path.name}: make {private} public where they belong, or do without"


@pytest.mark.parametrize("path", laboratory(), ids=lambda path: path.relative_to(path.parents[2]).as_posix())
def test_the_laboratory_reads_no_private_attribute_of_what_it_imports(path):
    tree = ast.parse(path.read_text())
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    ours = [node for node in nodes if "torchmcl" in ast.unparse(node)]
    imported = {alias.asname or alias.name.split(".")[0] for node in ours for alias in node.names}
    private = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and isinstance(node.value, ast.Name)
        and node.value.id in imported
    ]
    assert not private, f"{path.name}: {private}"


def test_nothing_but_the_command_line_imports_a_study():
    library = [path for path in PACKAGE.rglob("*.py") if path not in laboratory() and path.parent.name != "cli"]
    for path in library:
        studies = [
            (module, name) for module, name in imports_of(path) if is_study(module) or is_study(f"{module}.{name}")
        ]
        assert not studies, f"{path.relative_to(PACKAGE)} imports {studies}: the library must not need a study"
