"""What a release is made of agrees with itself: versions and metadata."""

import tomllib

import pytest

import torchmcl
from places import ROOT

PROJECT = tomllib.loads((ROOT / "packages/torchmcl/pyproject.toml").read_text(encoding="utf-8"))


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


def test_all_packages_have_one_version():
    for package in ("packages/torchmcl-tables", "packages/torchmcl-speech", "packages/torchmcl-forecast", "studies"):
        project = tomllib.loads((ROOT / package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert project["version"] == torchmcl.__version__, package
