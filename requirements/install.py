"""Create a virtual environment and install groups of pinned packages: python requirements/install.py .venv test check.

A group is a file of this folder. uv installs the packages if it can be had (from PATH or from the package index),
otherwise pip does, with the same pins. uv does not read the configuration of pip, so this script passes the package
indexes, the folders of wheels and the certificate of pip on to it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

FOLDER = Path(__file__).parent
CONSTRAINTS = FOLDER / "constraints.txt"
# Groups of which the requirements of the packages are not installed.
WITHOUT_DEPENDENCIES = {"adapters"}
USUAL_TIME = {"uv": "usually about a minute", "pip": "usually two to four minutes"}


def pip_settings(pip: list[str]) -> dict[str, list[str]]:
    """Return the options of pip's configuration files and environment variables, each with its values."""
    listed = subprocess.run([*pip, "config", "list"], capture_output=True, text=True, check=True).stdout
    # Of lower to higher priority: all commands, the command `install`, environment variables.
    sections = {"global": 0, "install": 1, ":env:": 2}
    settings: dict[str, tuple[int, list[str]]] = {}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        priority = sections.get(section, -1)
        if priority >= settings.get(name, (0, []))[0]:
            settings[name] = (priority, value.strip("'\"").replace("\\n", " ").split())
    return {name: values for name, (_, values) in settings.items()}


def uv_options(settings: dict[str, list[str]], pip_default: str) -> list[str]:
    """Return the options of uv for the package indexes and folders of wheels that pip uses.

    Where several indexes have the same version, uv takes the files of the first one only, while pip looks at all files:
    therefore the main index comes first here.
    """
    indexes = [*settings.get("index-url", [pip_default])[-1:], *settings.get("extra-index-url", [])]
    names = {"--find-links": "find-links", "--allow-insecure-host": "trusted-host"}
    options = [word for index in indexes for word in ("--index", index)]
    options += [word for option, name in names.items() for value in settings.get(name, []) for word in (option, value)]
    if settings.get("no-index", ["0"])[-1].lower() in ("1", "true", "yes", "on"):
        options.append("--no-index")
    return [*options, "--index-strategy", "unsafe-best-match"]  # as pip does: the best version of all indexes


def find_uv(pip: list[str], python: Path) -> list[str] | None:
    """Return the command of uv, installed into the environment if it is not on PATH, or None."""
    if on_path := shutil.which("uv"):
        return [on_path]
    install = [*pip, "install", "--quiet", "--no-compile", "--constraint", str(CONSTRAINTS), "uv"]
    if subprocess.run(install, stderr=subprocess.DEVNULL, check=False).returncode:
        return None
    return [str(python), "-m", "uv"]


def requirement_options(groups: list[str]) -> list[str]:
    """Return the options that install all groups."""
    return [word for group in groups for word in ("--requirement", str(FOLDER / f"{group}.txt"))]


def main() -> None:
    """Install the groups that the command line names."""
    known = sorted(path.stem for path in FOLDER.glob("*.txt") if path != CONSTRAINTS)
    parser = argparse.ArgumentParser(description="Create a virtual environment and install groups of pinned packages.")
    parser.add_argument("environment", type=Path, help="folder of the virtual environment, created if it is missing")
    parser.add_argument("groups", nargs="+", choices=known, metavar="GROUP", help=f"one of: {', '.join(known)}")
    parser.add_argument("--pip", action="store_true", help="do not use uv")
    options = parser.parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036 because this script runs before anything is installed
        sys.exit("torchmcl requires Python 3.11 or newer.")
    began = time.monotonic()
    python = options.environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        venv.create(options.environment, with_pip=True)
    pip = [str(python), "-m", "pip"]
    uv = None if options.pip else find_uv(pip, python)
    names = ", ".join(options.groups)
    installer = "uv" if uv else "pip"
    print(f"Installing {names} into {options.environment} with {installer}: {USUAL_TIME[installer]}.", flush=True)
    environment = dict(os.environ)
    if uv:
        settings = pip_settings(pip)
        program = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
        pip_default = subprocess.run([str(python), "-c", program], capture_output=True, text=True, check=True).stdout
        indexes = uv_options(settings, pip_default.strip())
        command = [*uv, "pip", "install", "--quiet", "--python", str(python), *indexes]
        if "cert" in settings:
            environment.setdefault("SSL_CERT_FILE", settings["cert"][-1])
    else:
        command = [*pip, "install", "--quiet", "--no-compile"]
    command += ["--constraint", str(CONSTRAINTS)]
    complete = [group for group in options.groups if group not in WITHOUT_DEPENDENCIES]
    alone = [group for group in options.groups if group in WITHOUT_DEPENDENCIES]
    for groups, extra in ((complete, []), (alone, ["--no-deps"])):
        if groups and subprocess.run([*command, *extra, *requirement_options(groups)], env=environment).returncode:
            sys.exit(f"The installation of {', '.join(groups)} failed; the messages above say why.")
    print(f"Installed in {time.monotonic() - began:.0f} s.", flush=True)


if __name__ == "__main__":
    main()
