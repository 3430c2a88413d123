"""The README runs as it stands, block by block in order, and what it names and links to is there."""

import importlib
import re
import runpy
import shlex
import tomllib
from pathlib import Path

import pytest

import torchmcl
from grids import for_each
from torchmcl.cli import main
from voices import voice

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
PAPER = "Annealed Multiple Choice Learning: Overcoming limitations of Winner-takes-all with annealing"


@pytest.mark.slow
def test_every_block_runs_as_it_stands_in_order(tmp_path, monkeypatch):
    soundfile = pytest.importorskip("soundfile")
    monkeypatch.chdir(tmp_path)
    soundfile.write(tmp_path / "meeting.wav", voice(1) + voice(2), 8000)
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    namespace, n_commands = {}, 0
    for kind, block in BLOCKS:
        if kind == "python":
            exec(compile(block, "README.md", "exec"), namespace)
        for line in [] if kind else block.splitlines():
            program, *words = shlex.split(line, comments=True)
            assert program in ("make", "pip", "torchmcl")
            if program == "make":  # sets up an environment of its own
                assert set(words) <= targets
            elif program == "torchmcl":
                assert main(words) == 0, line
                n_commands += 1
    assert n_commands == 5
    answers = namespace["hypotheses"].flatten().sort().values
    assert answers.tolist() == pytest.approx([-0.8, 0.8], abs=0.1)
    made = {"answers.csv", "diabetes.csv", "model", "demo", "separated"}
    assert {path.name for path in tmp_path.iterdir()} == made | {"meeting.wav"}


def test_installing_names_an_extra_that_exists():
    project = tomllib.loads((ROOT / "packages/torchmcl/pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = set(re.findall(r'pip install "torchmcl\[(\w+)\]"', TEXT))
    assert named
    assert named <= set(project["optional-dependencies"])


def names_of_the_table():
    part = TEXT.partition("## I have")[2].partition("\n## ")[0]
    table = "\n".join(line for line in part.splitlines() if line.startswith("|"))
    return sorted(set(re.findall(r"`(torchmcl\.[\w.]+)`", table)))


@for_each("name", names_of_the_table())
def test_names_of_the_table_are_found_where_they_are_listed(name):
    parts = name.split(".")[1:]
    found = torchmcl
    for i, part in enumerate(parts):
        try:
            found = getattr(found, part)
        except AttributeError:
            found = importlib.import_module(".".join(["torchmcl", *parts[: i + 1]]))


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
    made = runpy.run_path(str(ROOT / "packages/torchmcl/setup.py"))
    assert made["ADDRESSES"].keys() == {"repository", "documentation"}
    repository = "https://host.example/owner/torchmcl"
    links = made["project_urls"](repository, "https://docs.example")
    assert links["Issues"] == f"{repository}/issues"
    assert links["Documentation"] == "https://docs.example"
    assert made["project_urls"]("", "") == {}
    text = made["readme"](TEXT, repository)
    assert f"]({repository}/raw/main/docs/_static/film.gif)" in text
    assert f"]({repository}/blob/main/docs/tables.rst)" in text
    assert re.findall(r"\]\((?!https?:)", text) == []
    assert made["readme"](TEXT, "") == TEXT
