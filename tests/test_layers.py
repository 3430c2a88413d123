"""Imports point down only: in each package from room to room, and between the packages of the street."""

import ast
import re
from functools import cache

from grids import for_each
from places import PACKAGES, ROOT

# Which packages each may import.
BELOW = {
    "torchmcl": set(),
    "torchmcl_fleet": {"torchmcl"},
    "torchmcl_tables": {"torchmcl", "torchmcl_fleet"},
    "torchmcl_speech": {"torchmcl"},
    "torchmcl_forecast": {"torchmcl", "torchmcl_fleet", "torchmcl_tables"},
    "torchmcl_studies": {"torchmcl", "torchmcl_fleet", "torchmcl_speech", "torchmcl_tables"},
}
# A report reads records only, never a model in these rooms.
MODELS = ("nn", "model", "estimators", "fleet", "loop")
# Longest chain of imports between rooms of the core.
MOST_FLOORS = 9
# Distinct names that packages import from other packages.
MOST_IMPORTED = 120


def module_of(path, source):
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_of(path, source): path for source in PACKAGES for path in source.rglob("*.py")}


def imports_of(module, path):
    """Return every module of the street that a file imports, wherever in it the import stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found.update(name if name in FILES else node.module for name in names)
    return {name for name in found if name in FILES and name != module}


IMPORTS = {module: imports_of(module, path) for module, path in FILES.items()}


def room_of(module):
    """Return the package and the first name below it."""
    package, *parts = module.split(".")
    return package, parts[0] if parts else "__init__"


def rooms(package):
    """Return the rooms of a package with those that each imports. The package itself collects names of all."""
    graph = {}
    for module, imports in IMPORTS.items():
        home, room = room_of(module)
        if home == package and room not in ("__init__", "__main__"):
            below = {other for there, other in map(room_of, imports) if there == package}
            graph.setdefault(room, set()).update(below - {room})
    return graph


def test_the_walk_sees_the_imports():
    assert "torchmcl.costs" in IMPORTS["torchmcl.step"]
    assert "torchmcl.rules.winners" in IMPORTS["torchmcl.losses"]


@for_each("package", BELOW)
def test_rooms_stand_on_each_other_without_a_circle(package):
    graph = rooms(package)

    @cache
    def floor(room, above=()):
        assert room not in above, f"imports go round: {' -> '.join([*above, room])}"
        return 1 + max((floor(other, (*above, room)) for other in graph.get(room, ())), default=-1)

    floors = {room: floor(room) for room in graph}
    assert package != "torchmcl" or max(floors.values()) < MOST_FLOORS, sorted(
        floors.items(), key=lambda pair: -pair[1]
    )


@for_each("module", sorted(FILES))
def test_a_module_imports_only_packages_below_and_no_report_reads_a_model(module):
    package, room = room_of(module)
    for other in IMPORTS[module]:
        there, below = room_of(other)
        if there != package:
            assert there in BELOW[package], f"{module} imports {other} of a package beside or above it"
        elif below != room:
            assert other != package, f"{module} imports the package: import from the module"
        reads_model = room in ("reports", "app") and below in MODELS
        assert not reads_model, f"{module} imports {other}: a report reads records only"


def public_names(module):
    """Return the names in `__all__` of a module: a list, or the keys of a table in the same file."""
    names, tables = set(), {}
    for node in ast.parse(FILES[module].read_text()).body:
        target = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""
        if target and isinstance(node.value, ast.Dict):
            tables[f"list({target})"] = {ast.unparse(key).strip("'") for key in node.value.keys if key}
        elif target == "__all__":
            names = tables.get(ast.unparse(node.value)) or set(ast.literal_eval(node.value))
    return names


PUBLIC = {module: public_names(module) for module in FILES if not module.startswith("torchmcl_studies")}


def crossings(tree):
    """Yield (module, name) of what a file uses from the packages: names, and attributes of modules that it imports."""
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in BELOW:
            for alias in node.names:
                if (inner := f"{node.module}.{alias.name}") in FILES:
                    modules[alias.asname or alias.name] = inner
                else:
                    yield node.module, alias.name
        elif isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: alias.name for alias in node.names if alias.name in FILES}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            module = modules[node.value.id]
            if f"{module}.{node.attr}" not in FILES:
                yield module, node.attr


def test_only_public_names_cross_the_boundaries_of_packages_and_few_of_them():
    hidden, imported = set(), set()
    users = {module: path for module, path in FILES.items() if module.partition(".")[0] != "torchmcl"}
    users |= {f"benchmarks.{path.stem}": path for path in (ROOT / "benchmarks").rglob("*.py")}
    for user, path in users.items():
        tree = ast.parse(path.read_text())
        home = user.partition(".")[0]
        for module, name in crossings(tree):
            package = module.partition(".")[0]
            if package in (home, "torchmcl_studies") or name.startswith("__"):
                continue
            if name not in PUBLIC[module] or any(part.startswith("_") for part in module.split(".")):
                hidden.add(f"{user}: {module}.{name}")
        if home in BELOW and home != "torchmcl_studies":
            imported |= {
                f"{node.module}.{alias.name}"
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in BELOW
                for alias in node.names
                if node.module.partition(".")[0] != home
            }
    assert not hidden, "add them to `__all__`, or use something public: " + ", ".join(sorted(hidden))
    assert len(imported) <= MOST_IMPORTED, f"{len(imported)} names from other packages: {sorted(imported)}"


def test_modules_import_each_other_without_a_circle():
    state = {}

    def visit(module, path):
        if state.get(module) == "done":
            return
        assert state.get(module) != "open", f"imports go round: {' -> '.join([*path, module])}"
        state[module] = "open"
        for other in sorted(IMPORTS[module]):
            visit(other, [*path, module])
        state[module] = "done"

    for module in sorted(FILES):
        visit(module, [])


def test_nothing_that_is_published_names_the_studies():
    for source in PACKAGES[:5]:
        for path in source.rglob("*.py"):
            assert "torchmcl_studies" not in path.read_text(), path.relative_to(ROOT)


def test_the_table_of_the_developer_guide_has_every_module_above_those_it_imports():
    guide = (ROOT / "docs" / "developer" / "index.rst").read_text(encoding="utf-8")
    table = guide.partition("The core, from the top.")[2].partition("``torchmcl`` itself")[0]
    rows = re.findall(r"^   \* - (.*)$", table, re.MULTILINE)[1:]
    heights = {room: len(rows) - row for row, names in enumerate(rows) for room in re.findall(r"``(\w+)``", names)}
    graph = {room: below for room, below in rooms("torchmcl").items() if room != "_version"}
    assert sorted(heights) == sorted(graph), "name each module once in the table of docs/developer/index.rst"
    wrong = [
        f"{room} imports {other}"
        for room in graph
        for other in graph[room] & graph.keys()
        if heights[other] > heights[room]
    ]
    assert wrong == [], "correct the table of docs/developer/index.rst, or import from below"
