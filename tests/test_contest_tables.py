"""The numbers of the contest in the documentation are those of the benchmark, or the page says how to make them."""

import json
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MADE = runpy.run_path(str(ROOT / "docs" / "_contest_tables.py"))


@pytest.fixture(scope="module")
def summary():
    pytest.importorskip("scipy", reason="scipy is not installed")
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from contest import COUNTS, MEASURES, summary

    records = {}
    for number, name in enumerate(("boston", "energy", "kin8nm", "naval", "wine", "yacht")):
        for fold in range(2):
            for method, worse in (("ours", 1.0), ("mdn", 1.5), ("kmeans-residuals", 2.0)):
                values = dict.fromkeys(MEASURES, worse * (1 + 0.1 * number + 0.01 * fold))
                values |= {"coverage": 0.905, "pieces": 0.25, "log_likelihood": None if worse > 1.8 else -worse}
                records[name, fold, method] = values
    assert COUNTS == (1, 2, 5, 10)
    return summary(records)


def test_the_page_holds_what_the_results_say():
    assert (ROOT / "docs" / "contest.inc").read_text(encoding="utf-8") == MADE["contest"](), (
        "run python docs/_contest_tables.py"
    )


def test_without_results_the_page_says_how_to_make_them(tmp_path):
    assert "python benchmarks/contest.py" in MADE["contest"](tmp_path / "none.json")


def test_tables_are_made_of_the_summary_of_the_benchmark(summary, tmp_path):
    path = tmp_path / "contest-cpu.json"
    path.write_text(json.dumps({"benchmark": "contest", "machine": {}, "rows": summary}))
    text = MADE["contest"](path)
    assert "- CRPS: best of all on 6 of 6 sets (boston, energy, kin8nm, naval, wine, yacht)." in text
    assert "     - 1.50 (6 of 6, p = 0.031)" in text  # distortions, CRPS, RMSE and times of one rival
    assert "     - +0.50 (6 of 6, p = 0.031)" in text
    assert "     - —" in text  # no density, no likelihood
    assert "     - 90.5 %" in text
    assert "     - 25.0 %" in text


def test_every_method_of_the_contest_has_a_name():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from _rivals import DENSITIES

    assert set(DENSITIES) == set(MADE["NAMES"])


def test_methods_whose_package_is_missing_are_left_out_with_a_word(monkeypatch, capsys):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import _rivals

    monkeypatch.setitem(_rivals.PACKAGES, "lightgbm", "a_package_that_nobody_has")
    assert _rivals.installed(["ours", "lightgbm"]) == ["ours"]
    assert "lightgbm is left out: pip install a_package_that_nobody_has brings it" in capsys.readouterr().out


def test_methods_without_weights_are_left_out_with_a_word(monkeypatch, capsys, tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import _rivals

    monkeypatch.setitem(_rivals.PACKAGES, "tabpfn", "torch")  # some package that is here
    monkeypatch.delenv("TABPFN_WEIGHTS", raising=False)
    assert _rivals.installed(["tabpfn", "ours"]) == ["ours"]
    assert "tabpfn is left out: TABPFN_WEIGHTS must name the file" in capsys.readouterr().out
    weights = tmp_path / "weights.ckpt"
    weights.touch()
    monkeypatch.setenv("TABPFN_WEIGHTS", str(weights))
    assert _rivals.installed(["tabpfn", "ours"]) == ["tabpfn", "ours"]


def test_a_set_without_rivals_is_not_won():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from contest import MEASURES, summary

    ours, rival = dict.fromkeys(MEASURES, 1.0), dict.fromkeys(MEASURES, 2.0)
    rows = {("yacht", 0, "ours"): ours, ("wine", 0, "ours"): ours, ("yacht", 0, "mdn"): rival}
    found = next(row for row in summary(rows) if row.get("measure") == "crps")
    assert found["ours_best_on"] == ["yacht"]
    assert found["missing"] == {"wine": ["mdn"]}
