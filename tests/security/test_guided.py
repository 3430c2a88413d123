"""The edges under a fuzzer that measures coverage: how it is started, and what its log says."""

import json
import os
import subprocess
import sys

import pytest

from places import PYTHONPATH, ROOT

sys.path.insert(0, str(ROOT))

from fuzz.guided import read_log, run_edge

LOGS = ROOT / "tests/fixtures/libfuzzer"  # of atheris 3.1.0, shortened


def log_of(name):
    return read_log("tables", (LOGS / f"{name}.log").read_text())


def test_a_log_tells_inputs_coverage_corpus_and_seconds():
    row = log_of("done")
    assert (row.n_inputs, row.coverage, row.features, row.n_corpus, row.seconds) == (8227, 670, 728, 16, 61)
    assert row.findings == []


def test_a_run_that_measured_nothing_shows_no_coverage():
    row = log_of("no-coverage")
    assert (row.n_inputs, row.coverage, row.n_corpus) == (227402, 0, 1)


def test_an_exception_that_ended_the_run_is_a_finding():
    assert log_of("finding").findings == [
        "RuntimeError: ModuleNotFoundError: No module named 'polars' at fuzz/commands.py:52"
    ]


def test_a_crash_of_the_interpreter_is_a_finding():
    log = "#7\tNEW    cov: 5 ft: 6 corp: 2/2b exec/s: 0\n==1== ERROR: libFuzzer: deadly signal\n"
    row = read_log("rules", log + "stat::number_of_executed_units: 9\n")
    assert (row.findings, row.n_inputs, row.coverage) == (["deadly signal"], 9, 5)


def test_findings_of_a_run_that_went_on_come_with_their_input():
    log = 'FINDING {"what": "IndexError: x at a.py:1", "input": "00ff"}\nFINDING {"what": "to\n'
    log += "Done 5 runs in 1 second(s)\n"
    row = read_log("rules", log)
    assert row.findings[0] == "IndexError: x at a.py:1 (again: python -m fuzz --edges rules --again 00ff)"
    assert len(row.findings) == 2  # a line that is cut off counts all the same
    assert row.n_inputs == 5


def test_without_atheris_it_says_how_to_get_it(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "atheris", None)
    assert run_edge("rules", []) == 2
    assert "pip install atheris" in capsys.readouterr().err


def python_m_fuzz(*words, stand_in="stand_in", **environment):
    paths = [PYTHONPATH, str(ROOT / "tests/security" / stand_in)]
    return subprocess.run(
        [sys.executable, "-m", "fuzz", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
    )


def test_all_edges_at_once_make_one_record(tmp_path):
    # The stand-in looks at the order of imports, which decides whether there is coverage.
    out, logs = tmp_path / "fuzz.json", tmp_path / "logs.txt"
    words = ["--edges", "rules", "schedules", "--seconds", "1", "--out", str(out), "--logs", str(logs)]
    done = python_m_fuzz("--atheris", "all", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(out.read_text())
    assert record["driver"].startswith("atheris")
    assert (record["inputs"], record["findings"]) == (40, 0)
    assert [row["edge"] for row in record["rows"]] == ["rules", "schedules"]
    for row in record["rows"]:
        assert row["coverage"] > 50  # modules of ours that were imported under instrumentation
        assert row["corpus"] == 64  # the seeds
        assert row["inputs_per_second"] == 10
    assert "==== schedules" in logs.read_text()
    assert "0 findings" in done.stdout


@pytest.mark.parametrize(("planted", "found"), [("raise IndexError('x')", "IndexError: x"), ("os._exit(3)", "with 3")])
def test_what_goes_wrong_ends_up_in_the_record(tmp_path, planted, found):
    # A finding does not end the run; a process that ends itself is one.
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nfrom fuzz.edges import EDGES\n"
        f"def run(feed):\n    if len(feed.content) == 40: {planted}\n"
        "EDGES['rules'] = (run, 1)\n"
    )
    out = tmp_path / "fuzz.json"
    words = ["--atheris", "all", "--edges", "rules", "--out", str(out)]
    paths = [str(tmp_path), str(ROOT), PYTHONPATH, str(ROOT / "tests/security/stand_in")]
    done = python_m_fuzz(*words, PYTHONPATH=os.pathsep.join(paths))
    assert done.returncode == 1
    (row,) = json.loads(out.read_text())["rows"]
    assert len(row["findings"]) == 1
    assert found in row["findings"][0]
