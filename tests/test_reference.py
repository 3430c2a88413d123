"""Links to the reference lead somewhere, and names and signatures are shown as they are written."""

import re
from pathlib import Path

import pytest

from places import PACKAGES
from torchmcl_fleet import Fleet
from torchmcl_fleet.backends import BACKENDS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="needs the documentation's sources")
ROLE = re.compile(r":(?:py:)?(?:class|func|meth|attr|obj|mod|data|exc):`(?:[^`<]*<)?~?(torchmcl[\w.]*)>?`")


def documented():
    """Return the full names of everything that the reference lists."""
    names, module, listing = set(), "", False
    for line in "\n".join(page.read_text() for page in sorted((DOCS / "reference").glob("*.rst"))).splitlines():
        if found := re.match(r"\.\. (current)?module:: (\S+)", line):
            module = found[2]
            names |= set() if found[1] else {module}
        elif line.startswith(".. autosummary::"):
            listing = True
        elif line and not line.startswith(" "):
            listing = False
        elif listing and (found := re.fullmatch(r"   (~?)([A-Za-z_][\w.]*)", line)):
            names.add(found[2] if found[2].startswith("torchmcl") else f"{module}.{found[2]}")
    return names


def is_module(name):
    path = Path(*name.split("."))
    return any((source / path).is_dir() or (source / path).with_suffix(".py").is_file() for source in PACKAGES)


def test_links_of_the_pages_lead_to_the_reference():
    known = documented()
    assert "torchmcl_tables.MCLRegressor" in known
    lost = {}
    for path in [*DOCS.glob("*.rst"), *DOCS.glob("developer/*.rst"), *(ROOT / "examples").glob("*.py")]:
        for name in ROLE.findall(path.read_text()):
            in_class = name.rpartition(".")[0]
            if name not in known and (in_class not in known or in_class.rpartition(".")[2].islower()):
                lost.setdefault(path.name, set()).add(name)
    assert lost == {}


def test_the_reference_stays_small():
    names = {name for name in documented() if not is_module(name)}
    assert len(names) <= 300
    assert sum(name.partition(".")[0] == "torchmcl" for name in names) <= 200


def test_every_backend_is_described():
    pages = [(DOCS / name).read_text(encoding="utf-8") for name in ("fleets.rst", "developer/backends.rst")]
    for name in BACKENDS:
        assert f'"{name}"' in Fleet.__doc__, f"describe the backend {name} in the docstring of Fleet"
        assert f'``"{name}"``' in pages[0], f"describe the backend {name} in docs/fleets.rst"
        assert f"* - ``{name}``" in pages[1], f"describe the backend {name} in docs/developer/backends.rst"
