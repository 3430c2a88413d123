"""Time of the first hour: `make demo`, `make test` and `.ci/run` in fresh clones with empty caches.

python -m benchmarks.speed.set_up [--pip] [--targets demo test ci] [--out results/set-up.json]

Run it on a machine that does nothing else. A clone of the committed state is made for each target; the caches of uv
and pip and the bytecode start empty. The time of the installation is the one that requirements/install.py prints.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._common import parser, report

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {"demo": ["make", "demo"], "test": ["make", "test"], "ci": ["bash", ".ci/run"], "quick": ["make", "quick"]}
# Limits in seconds, with uv and with pip alone.
LIMITS = {"demo": (150, 150), "test": (360, 540), "ci": (960, 1260), "quick": (None, None)}


def measure(target: str, folder: Path, pip_only: bool) -> dict[str, object]:
    """Run a target in a fresh clone and return its times in seconds."""
    clone = folder / target
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    if (shared := ROOT.parent / "shared").exists() and not (folder / "shared").exists():
        (folder / "shared").symlink_to(shared)
    caches = {"UV_CACHE_DIR": str(folder / f"uv-{target}"), "PIP_CACHE_DIR": str(folder / f"pip-{target}")}
    command = [*COMMANDS[target], *(["INSTALL=python3 requirements/install.py --pip"] if pip_only else [])]
    start = time.perf_counter()
    run = subprocess.run(command, cwd=clone, env=os.environ | caches, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    (folder / f"{target}.log").write_text(run.stdout + run.stderr)
    if run.returncode:
        print(f"{' '.join(command)} failed:\n{run.stdout[-3000:]}\n{run.stderr[-3000:]}", file=sys.stderr)
    installation = [int(value) for value in re.findall(r"^Installed in (\d+) s", run.stdout, re.MULTILINE)]
    tests = re.findall(r"=+ (.*passed.*) in ([\d.]+)s", run.stdout)
    sizes = {
        path.name: int(subprocess.run(["du", "-sm", path], capture_output=True, text=True).stdout.split()[0])
        for path in clone.glob(".venv*")
    }
    limit = LIMITS[target][pip_only]
    return {
        "target": target,
        "installer": "pip" if pip_only else "uv",
        "seconds": round(seconds),
        "failed": run.returncode != 0,
        "installation_s": sum(installation),
        "run_s": round(seconds - sum(installation)),
        "tests": [{"result": result, "seconds": float(spent)} for result, spent in tests],
        "environment_mb": sizes,
        "limit_s": limit,
        "met": limit is None or seconds <= limit,
    }


def extension_seconds(folder: Path) -> float:
    """Return the time of compiling the C sources, in a copy of the core."""
    copy = folder / "core"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(copy)], check=True)
    start = time.perf_counter()
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", str(folder / "build")]
    subprocess.run(command, cwd=copy / "packages" / "torchmcl-fleet", check=True, capture_output=True)
    return round(time.perf_counter() - start, 1)


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--pip", action="store_true", help="do not use uv")
    arguments.add_argument("--targets", nargs="+", choices=sorted(COMMANDS), default=["demo", "test"])
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [{"target": "extension", "seconds": extension_seconds(folder), "limit_s": 25}]
        for target in options.targets:
            rows.append(measure(target, folder, options.pip))
            report("set-up", "cpu", rows, options.out)
    sys.exit(any(row.get("failed", False) for row in rows))
