"""Imports point down only. The floors are those of the design; a new module must be given one."""

import ast
from pathlib import Path

import pytest

import torchmcl

ROOT = Path(torchmcl.__file__).parent
FLOORS = {
    "types": 0,
    "_checks": 0,
    "_eager": 0,
    "_environment": 0,
    "_files": 0,
    "_headers": 0,
    "_lazy": 0,
    "_limits": 0,
    "_messages": 0,
    "_optional": 0,
    "_progress": 0,
    "_reading": 0,
    "_records": 0,
    "_resources": 0,
    "_version": 0,
    "checkpoints": 0,
    "backends": 0,  # compiled steps; they know tensors, neither models nor fleets
    "extending": 0,
    "kernels": 0,  # GPU kernels that the costs and rules call; they know nothing of either
    "costs": 1,
    "assignment": 1,
    "transport": 1,
    "scenes": 1,
    "schedules": 1,
    "theory": 1,
    "losses": 2,
    "scoring": 2,
    "metrics": 3,
    "nn": 3,
    "data": 3,
    "density": 3,
    "annealing": 3,
    "after": 4,  # what follows a training: reads predictions; only `counts` trains, a fleet for each number
    "training": 4,
    "fleet": 4,
    "lightning": 4,
    "estimators": 5,
    "experiments": 5,
    "reports": 5,
    "separation": 5,
    "cli": 6,
    "__main__": 6,
    "_public": 7,
    "__init__": 7,  # re-exports from everywhere, and nobody below may import it
}
# A report reads records only, never a model.
FORBIDDEN = {("reports", "nn"), ("reports", "training"), ("reports", "fleet")}


def files():
    return sorted(ROOT.rglob("*.py"))


def module_of(path):
    """Return the name by which a file is imported."""
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module):
    """Return the room of a module: the first name below the package."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imported_modules(path, modules):
    """Return every module of the package that a file imports, wherever in it the import stands."""
    package = module_of(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if alias.name.split(".")[0] == "torchmcl")
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            if name.split(".")[0] == "torchmcl":
                for alias in node.names:
                    deeper = f"{name}.{alias.name}"
                    found.add(deeper if deeper in modules else name)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            target = node.args[0]
            if isinstance(target, ast.Constant) and str(target.value).split(".")[0] == "torchmcl":
                found.add(target.value)
    return found


MODULES = {module_of(path) for path in files()}
IMPORTS = {module_of(path): imported_modules(path, MODULES) for path in files()}


def test_the_walk_sees_the_imports():
    assert "torchmcl.costs" in IMPORTS["torchmcl.training.step"]
    assert "torchmcl.assignment" in IMPORTS["torchmcl.losses"]
    assert "torchmcl.metrics._parts" in IMPORTS["torchmcl.metrics.shells"]


def test_every_module_has_a_floor():
    homeless = sorted({room_of(module) for module in MODULES} - FLOORS.keys())
    assert not homeless, f"{homeless} have no floor: give them one in FLOORS of tests/test_layers.py"


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_down_only(module):
    room = room_of(module)
    for other in IMPORTS[module]:
        below = room_of(other)
        if below in ("_version", room) or (
            other == "torchmcl" and room == "experiments"
        ):  # a guest imports as users do
            continue
        assert other != "torchmcl", f"{module} imports the package itself: import from the module that has the name"
        assert FLOORS[below] <= FLOORS[room], f"{module} imports {other}, which is on a higher floor"
        assert (room, below) not in FORBIDDEN, f"{module} imports {other}: a report reads records only"


def test_imports_have_no_cycles():
    graph = {}
    for module, imports in IMPORTS.items():
        graph.setdefault(module, set()).update(imports - {module})
    state = {}

    def visit(module, path):
        if state.get(module) == "done" or module not in graph:
            return
        assert state.get(module) != "open", f"imports go round: {' -> '.join([*path, module])}"
        state[module] = "open"
        for other in sorted(graph[module]):
            visit(other, [*path, module])
        state[module] = "done"

    for module in sorted(graph):
        visit(module, [])


def test_rooms_on_one_floor_have_no_cycles():
    rooms = {}
    for module, imports in IMPORTS.items():
        rooms.setdefault(room_of(module), set()).update(room_of(other) for other in imports)
    reached = {room: set(others) - {room} for room, others in rooms.items()}
    for _ in reached:
        for room in reached:
            reached[room] |= set().union(*(reached.get(other, set()) for other in reached[room]))
    for room, others in reached.items():
        assert room not in others, f"{room} imports itself through others of its floor"
