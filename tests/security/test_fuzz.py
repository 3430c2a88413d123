"""A small share of `make fuzz`, and the fuzzer itself: it sees what it is there to see."""

import random
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

for package in ("polars", "soundfile", "yaml", "lightning", "sklearn", "scipy", "matplotlib"):
    pytest.importorskip(package)

from fuzz import driver  # noqa: E402
from fuzz.driver import EDGES, attempt, fuzz_edge, generated  # noqa: E402
from fuzz.feed import Feed  # noqa: E402
from fuzz.judge import NotAsPromised  # noqa: E402

import torchmcl as mcl  # noqa: E402

# A few seconds in all; the record of a whole run is in benchmarks/results/fuzz-cpu.json.
SHARE = {
    "rules": 500, "costs": 400, "losses": 300, "metrics": 150, "schedules": 600, "tables": 150, "speech": 150,
    "models": 50, "checkpoints": 40, "records": 80, "configurations": 60, "commands": 12,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("edge", EDGES)
def test_nothing_is_found_in_a_share_of_the_inputs(edge, capfd):
    chance = random.Random(f"ci {edge}")
    accepted = []
    for _ in range(SHARE[edge]):
        content = generated(chance, accepted)
        good, finding = attempt(edge, content)
        assert finding is None, f"python -m fuzz --edges {edge} --again {content.hex()}"
        if good and content:
            accepted.append(content)
    assert accepted  # inputs come far enough to matter


def planted(monkeypatch, run):
    monkeypatch.setitem(EDGES, "planted", (run, 1))
    return attempt("planted", b"abc")


def test_an_error_that_is_not_ours_is_found(monkeypatch):
    good, finding = planted(monkeypatch, lambda feed: [][feed.below(3)])
    assert not good
    assert finding.what.startswith("IndexError")
    assert finding.content == b"abc"


def test_a_broken_promise_is_found(monkeypatch):
    def run(feed):
        raise NotAsPromised("NaN from finite costs")

    assert "NaN from finite" in planted(monkeypatch, run)[1].what


def test_an_input_without_end_is_found(monkeypatch):
    monkeypatch.setattr(driver, "PATIENCE", 0.1)
    began = time.monotonic()
    assert "more than 0.1 s" in planted(monkeypatch, lambda feed: [0 for _ in iter(int, 1)])[1].what
    assert time.monotonic() - began < 5


def test_a_crash_of_the_interpreter_is_found_with_its_input():
    result = fuzz_edge("planted_crash:crash", 100)
    assert [finding.what for finding in result.findings] == ["the process ended with -11"]
    assert result.findings[0].content[0] > 0x80


def test_an_error_of_ours_is_none(monkeypatch):
    assert planted(monkeypatch, lambda feed: mcl.AnnealedWTA(-1.0)) == (False, None)
    assert planted(monkeypatch, lambda feed: Path("/nowhere/at all").read_text()) == (False, None)
    assert planted(monkeypatch, lambda feed: int("x"))[1] is not None  # ValueError, but not our sentence


def test_the_same_bytes_give_the_same_values():
    content = random.Random(0).randbytes(80)
    left, right = (Feed(content) for _ in range(2))
    assert repr([left.anything() for _ in range(9)]) == repr([right.anything() for _ in range(9)])
    assert left.tensor((2, 3)).equal(right.tensor((2, 3)))
    assert left.mutated(b"a,b\n1,2\n") == right.mutated(b"a,b\n1,2\n")
    assert Feed(b"").number() == 0.0
