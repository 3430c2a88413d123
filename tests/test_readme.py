"""The README runs as it stands, and its commands, links and pictures exist."""

import re
import runpy

import pytest
import torch

import torchmcl
from places import ROOT
from torchmcl.app import main

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
PAPER = "Annealed Multiple Choice Learning: Overcoming limitations of Winner-takes-all with annealing"


def test_the_program_runs_as_it_stands_and_finds_both_answers():
    (program,) = [block for kind, block in BLOCKS if kind == "python"]
    torch.manual_seed(0)
    namespace = {}
    exec(compile(program, "README.md", "exec"), namespace)
    answers = namespace["hypotheses"].flatten().sort().values
    assert answers.tolist() == pytest.approx([-0.8, 0.8], abs=0.1)


def test_commands_to_install_and_to_develop_name_existing_packages_and_targets():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"^make (\w+)", TEXT, re.MULTILINE)) <= targets
    packages = {path.name for path in (ROOT / "packages").iterdir()}
    assert set(re.findall(r"pip install (?:\./packages/)?(torchmcl[\w-]*)", TEXT)) <= packages


def test_commands_of_the_table_exist(capsys):
    for command in set(re.findall(r"`torchmcl (\w+)", TEXT)):
        with pytest.raises(SystemExit) as end:
            main([command, "--help"])
        assert end.value.code == 0, command


def test_links_and_pictures_are_there_and_the_film_is_small():
    links = re.findall(r"\]\((?!https?:)([^)#]+)", TEXT)
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).is_file()] == []
    assert (ROOT / "docs" / "_static" / "film.gif").stat().st_size < 1_000_000


def test_readme_and_citation_name_the_paper():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    for text in (" ".join(TEXT.split()), citation):
        assert PAPER in text
        assert "2407.15580" in text
        for author in ("Perera", "Letzelter", "Mariotte", "Cortés", "Chen", "Essid", "Richard"):
            assert author in text
    assert f"version: {torchmcl.__version__}" in citation


def test_all_addresses_are_made_of_one_place():
    made = runpy.run_path(str(ROOT / "packages" / "torchmcl" / "setup.py"))
    assert made["ADDRESSES"].keys() == {"repository", "documentation"}
    repository = "https://host.example/owner/torchmcl"
    links = made["project_urls"](repository, "https://docs.example")
    assert links["Issues"] == f"{repository}/issues"
    assert links["Documentation"] == "https://docs.example"
    assert made["project_urls"]("", "") == {}
    text = made["readme"](TEXT, repository)
    assert f"]({repository}/raw/main/docs/_static/film.gif)" in text
    assert f"]({repository}/blob/main/docs/own_loop.rst)" in text
    assert re.findall(r"\]\((?!https?:)", text) == []
    assert made["readme"](TEXT, "") == TEXT
