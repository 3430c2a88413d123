"""Run the tests of Triton kernels in Triton's interpreter on machines without a GPU.

The interpreter must be chosen before Triton is first imported, so on such machines the tests of a file run in one
child process with TRITON_INTERPRET=1, and every test here reports the outcome of its twin there.
"""

import functools
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch

IN_PLACE = torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def outcomes_in_interpreter(path: Path, junit: Path) -> dict[str, ElementTree.Element | None]:
    """Return for each test of a file the failure or skip it ended with in the child process, None if it passed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={junit}", str(path)]
    run = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert run.returncode in (0, 1), run.stdout[-3000:] + run.stderr[-3000:]
    return {case.attrib["name"]: next(iter(case), None) for case in ElementTree.parse(junit).iter("testcase")}


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Replace the call of a test by its outcome in the child process."""
    if IN_PLACE:
        return None
    junit = pyfuncitem.config._tmp_path_factory.getbasetemp() / f"{pyfuncitem.path.stem}.xml"
    outcome = outcomes_in_interpreter(pyfuncitem.path, junit)[pyfuncitem.name]
    if outcome is not None:
        report = pytest.skip if outcome.tag == "skipped" else pytest.fail
        report(outcome.text or outcome.attrib["message"])
    return True
