"""Folders of the repository, and the shared data beside it, which users do not have."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data"
PACKAGES = [
    *(ROOT / "packages" / f"torchmcl{name}" / "src" for name in ("", "-fleet", "-tables", "-speech", "-forecast")),
    ROOT / "studies" / "src",
]
# For programs that tests start: all packages, and these helpers.
PYTHONPATH = os.pathsep.join(map(str, [*PACKAGES, ROOT / "tests" / "helpers"]))
