"""What a release is made of agrees with itself: versions, workflow, templates, metadata."""

import re
import tomllib
from pathlib import Path

import pytest

import torchmcl

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def read_yaml(path):
    return pytest.importorskip("yaml").safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_the_citation_has_what_the_format_asks_for_and_the_version_of_the_package():
    citation = read_yaml("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["version"] == torchmcl.__version__
    assert citation["license"] == PROJECT["project"]["license"]
    (paper,) = citation["references"]
    assert len(paper["authors"]) == 7
    address = PROJECT["tool"]["torchmcl"]["repository"]
    assert citation.get("repository-code", "") == address, "fill in both"


def test_the_workflow_runs_what_a_clean_machine_runs_and_builds_every_wheel():
    jobs = read_yaml(".github/workflows/ci.yml")["jobs"]
    commands = {name: " ".join(step.get("run", "") for step in job["steps"]) for name, job in jobs.items()}
    assert ".ci/run" in commands["check"]
    assert "twine check --strict" in commands["sources"]
    assert "TORCHMCL_PURE=1" in commands["sources"]
    machines = jobs["wheels"]["strategy"]["matrix"]["os"]
    assert any("arm" in machine for machine in machines)
    assert any("macos" in machine for machine in machines)
    assert set(jobs["publish"]["needs"]) == jobs.keys() - {"publish"}


def test_the_oldest_versions_that_are_tested_are_the_oldest_that_are_allowed():
    oldest = read_yaml(".github/workflows/ci.yml")["jobs"]["install"]["strategy"]["matrix"]["include"][0]
    assert PROJECT["project"]["requires-python"] == f">={oldest['python']}"
    for package in PROJECT["project"]["dependencies"]:
        name, version = package.split(">=")
        assert re.search(rf"\b{name}=={re.escape(version)}\.", oldest["torch"]), package
    assert PROJECT["tool"]["cibuildwheel"]["build"].startswith(f"cp{oldest['python'].replace('.', '')}")


@pytest.mark.parametrize("name", ["bug", "question"])
def test_templates_of_issues_ask_for_something(name):
    template = read_yaml(f".github/ISSUE_TEMPLATE/{name}.yml")
    assert {"name", "description", "body"} <= template.keys()
    assert any(field.get("validations", {}).get("required") for field in template["body"])


def test_the_hosting_builds_the_documentation_with_warnings_as_errors():
    hosting = read_yaml(".readthedocs.yaml")
    assert hosting["version"] == 2
    assert hosting["sphinx"] == {"configuration": "docs/conf.py", "fail_on_warning": True}
