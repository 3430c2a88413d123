"""The verdict on a model of a table: each reason alone, and that a good model has none."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from house_tables import houses, write_csv
from torchmcl.app import main
from torchmcl_tables.data import Table
from torchmcl_tables.model.classes import evaluated_classes
from torchmcl_tables.verdict import chance_band, forks, verdict_on


def records(n_rows=200, n_answers=5, spread=0.2, covered=0.9, seed=0):
    """Return records of one target whose answers lie around what can be known of it."""
    rng = np.random.default_rng(seed)
    known = rng.normal(size=n_rows)
    truth = known + spread * rng.normal(size=n_rows)
    offsets = spread * np.linspace(-1.5, 1.5, n_answers) if n_answers > 1 else np.zeros(1)
    hypotheses = (known[:, None] + offsets)[..., None]
    level = {"level": 0.9, "covered": [covered], "width": [1.0], "pieces": 0.0, "n_rows": n_rows}
    return {
        "source": "houses.csv",
        "set_apart": True,
        "metrics": {"rows": {"learned_from": 1800}},
        "schema": {"suspicious": []},
        "member_weights": {"networks": 0.9, "background": 0.1},
        "evaluation": {
            "source": "houses.csv",
            "n_rows": n_rows,
            "targets": [{"name": "price"}],
            "answers": {
                "truth": truth[:, None].tolist(),
                "hypotheses": hypotheses.tolist(),
                "probabilities": np.full((n_rows, n_answers), 1 / n_answers).tolist(),
            },
            "calibration": {"given": [0.1, 0.5], "won": [0.1, 0.5], "count": [n_rows, n_rows]},
            "coverage": [level | {"level": 0.5, "covered": [0.5]}, level],
        },
    }


@pytest.mark.parametrize("n_answers", [1, 2, 5])
def test_a_model_that_keeps_its_promises_is_good(n_answers):
    verdict = verdict_on(records(n_answers=n_answers))
    assert verdict.word == "good"
    assert verdict.reasons == ()
    assert verdict.line.startswith("Verdict: good")


def changed(path, value):
    found = records()
    *parents, last = path
    place = found
    for key in parents:
        place = place[key]
    place[last] = value
    return found


NINE = ("evaluation", "coverage", 1)
REASONS = [
    (("metrics", "rows", "learned_from"), 40, "it was trained on only 40 rows"),
    (("evaluation", "n_rows"), 20, "it was tested on only 20 rows, so all measures are rough"),
    (("set_apart",), False, "it was tested on houses.csv, which may contain its training rows"),
    ((*NINE, "covered"), [0.8], "the 90 % sets for price contain the true value in only 80 % of the rows"),
    (
        (*NINE, "covered"),
        [0.98],
        "the 90 % sets for price contain the true value in 98 % of the rows: they are wider than needed",
    ),
    ((*NINE, "width"), [None], "the 90 % sets for price are infinite, because too few rows were left for calibration"),
    (
        ("evaluation", "coverage", 0, "covered"),
        [0.35],
        "the 50 % sets for price contain the true value in only 35 % of the rows",
    ),
    (
        ("evaluation", "calibration", "won"),
        [0.5, 0.1],
        "its probabilities are misleading: predictions with a higher probability are less often the nearest",
    ),
    (
        ("metrics", "split"),
        {"by": "random", "column": "", "dated": "day"},
        "its rows are dated by day, but the test rows are random: errors on later rows may be larger "
        "(use --split time)",
    ),
    (
        ("member_weights", "background"),
        0.41,
        "the columns contain little information: 41 % of the density is the same for every row",
    ),
    (
        ("schema", "suspicious"),
        [{"name": "row", "reason": "it counts the rows"}],
        "the column row may be unsuitable for training: it counts the rows",
    ),
]


@pytest.mark.parametrize(("path", "value", "reason"), REASONS)
def test_each_reason_to_be_careful_is_told_in_plain_words(path, value, reason):
    verdict = verdict_on(changed(path, value))
    assert verdict.word == "careful"
    assert verdict.reasons == (reason,)
    assert verdict.line == f"Verdict: careful, because {reason}."


@pytest.mark.parametrize("covered", [0.86, 0.88, 0.94, 0.95])
def test_coverage_within_chance_is_no_reason(covered):
    assert verdict_on(records(covered=covered)).word == "good"


@pytest.mark.parametrize("n_rows", [23, 60, 2000])
def test_coverage_outside_the_band_of_the_page_is_always_a_reason(n_rows):
    low, high = chance_band(0.9, n_rows)
    words = "value in only" if n_rows == 23 else "value in"
    too_low = verdict_on(records(n_rows=n_rows, covered=low - 1 / n_rows)).reasons
    assert any(words in reason for reason in too_low)
    assert not any("sets" in reason for reason in verdict_on(records(n_rows=n_rows, covered=low)).reasons)
    if high < 1:
        above = verdict_on(records(n_rows=n_rows, covered=high + 1 / n_rows)).reasons
        assert any("wider than needed" in reason for reason in above)
    assert chance_band(0.9, 23)[0] > 0.74


def test_sets_of_a_target_with_few_values_may_hold_more_than_promised():
    found = records(covered=0.99)
    answers = found["evaluation"]["answers"]
    answers["truth"] = np.round(2 * np.array(answers["truth"])).tolist()
    answers["hypotheses"] = np.round(2 * np.array(answers["hypotheses"])).tolist()
    assert verdict_on(found).word == "good"
    found["evaluation"]["coverage"][1]["width"] = [float(np.ptp(answers["truth"]))]
    assert verdict_on(found).reasons == ("the 90 % sets for price contain nearly all of its values",)
    assert forks(found) == "The target has few different values: a set is a list of them, and its pieces are not forks."


@pytest.mark.parametrize(("n_answers", "same"), [(5, "5 constant predictions"), (1, "the mean")])
def test_answers_without_knowledge_of_the_row_are_not_better_than_constant_ones(n_answers, same):
    found = records(n_answers=n_answers)
    answers = found["evaluation"]["answers"]
    n_rows = len(answers["truth"])
    points = np.linspace(-1.5, 1.5, n_answers) if n_answers > 1 else np.zeros(1)
    answers["hypotheses"] = np.tile(points[:, None], (n_rows, 1, 1)).tolist()
    reason = f"the predictions for price are not clearly better than {same}"
    assert verdict_on(found).reasons == (reason,)


def test_answers_that_fork_around_a_constant_mean_are_better_than_constant_ones():
    found = records()
    rng = np.random.default_rng(1)
    size = rng.uniform(0.2, 3.0, size=200)
    found["evaluation"]["answers"] = {
        "truth": (size * rng.choice([-1, 1], 200))[:, None].tolist(),
        "hypotheses": np.stack([-size, size], axis=1)[..., None].tolist(),
        "probabilities": np.full((200, 2), 0.5).tolist(),
    }
    assert verdict_on(found).word == "good"


def test_fit_prints_the_verdict_and_writes_it_as_json(tmp_path, capsys):
    table = str(write_csv(tmp_path / "houses.csv", houses(60)))
    small = ["--target", "price", "--epochs", "2", "--hidden", "4", "--restarts", "1"]
    assert main(["fit", table, "-o", str(tmp_path / "model"), *small]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Verdict: "))
    metrics = json.loads((tmp_path / "model" / "metrics.json").read_text())
    assert line.startswith("Verdict: careful, because it was trained on only 54 rows; it was tested on only 6 rows")
    assert metrics["verdict"]["word"] == "careful"
    assert all(reason in line for reason in metrics["verdict"]["reasons"])
    assert list(metrics["member_weights"]) == ["networks", "networks with bins", "forest", "background"]
    assert sum(metrics["member_weights"].values()) == pytest.approx(1)
    assert isinstance(metrics["forks"], str)
    assert main(["report", str(tmp_path / "model")]) == 0
    assert line in capsys.readouterr().out


def test_without_rows_set_apart_there_is_no_verdict(tmp_path, capsys):
    table = str(write_csv(tmp_path / "houses.csv", houses(60)))
    small = ["--target", "price", "--epochs", "2", "--hidden", "4", "--restarts", "1", "--rule", "mcl", "--test", "0"]
    assert main(["fit", table, "-o", str(tmp_path / "model"), *small]) == 0
    assert "Verdict: none, because there are no test rows" in capsys.readouterr().out
    metrics = json.loads((tmp_path / "model" / "metrics.json").read_text())
    assert metrics["verdict"] is metrics["member_weights"] is metrics["forks"] is None


def class_records(probabilities, truth, names=("no", "yes")):
    """Return the records of probabilities [rows, classes] for true classes."""
    model = SimpleNamespace(
        schema=SimpleNamespace(target_values=lambda table: truth[:, None].astype(float), classes=names),
        estimator=SimpleNamespace(
            predict_proba=lambda inputs: probabilities, classes_=np.array(names), n_hypotheses=len(names)
        ),
        inputs=lambda table: None,
        metrics={},
    )
    model.schema.features = ("x",)
    table = Table("t.csv", pytest.importorskip("polars").DataFrame({"x": np.zeros(len(truth))}))
    return {
        "source": "t.csv",
        "set_apart": True,
        "metrics": {"rows": {"learned_from": 1800}},
        "schema": {"suspicious": [], "target_columns": [{"name": "churn"}]},
        "evaluation": evaluated_classes(model, table),
    }


def test_a_model_of_classes_that_keeps_its_promises_is_good():
    rng = np.random.default_rng(0)
    yes = rng.uniform(0.02, 0.98, 400)
    truth = (rng.uniform(size=400) < yes).astype(int)
    verdict = verdict_on(class_records(np.stack([1 - yes, yes], axis=1), truth))
    assert verdict.word == "good"


@pytest.mark.parametrize(
    ("yes", "truth", "reason"),
    [
        (
            lambda p: 0 * p + 0.2,
            lambda rng, p: rng.uniform(size=len(p)) < 0.2,
            "not clearly better than the frequencies",
        ),
        (lambda p: 0.2 * p, lambda rng, p: rng.uniform(size=len(p)) < 0.2 * p, "its first guess is always no"),
        (lambda p: (p > 0.5) * 0.98 + 0.01, lambda rng, p: rng.uniform(size=len(p)) < p, "probabilities are too high"),
        (
            lambda p: (p > 0.5) * 0.98 + 0.01,
            lambda rng, p: rng.uniform(size=len(p)) < p,
            "the 90 % sets contain the true class",
        ),
        (lambda p: (p > 0.5) * 0.2 + 0.4, lambda rng, p: p > 0.5, "probabilities are too low"),
    ],
)
def test_each_reason_to_be_careful_with_classes_is_told(yes, truth, reason):
    rng = np.random.default_rng(0)
    chances = rng.uniform(0.02, 0.98, 400)
    given = yes(chances)
    found = verdict_on(class_records(np.stack([1 - given, given], axis=1), truth(rng, chances).astype(int)))
    assert found.word == "careful"
    assert any(reason in told for told in found.reasons)


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("n_rows", [1, 7, 150])
def test_the_band_of_chance_is_that_of_the_binomial_distribution(level, n_rows):
    shares = [math.comb(n_rows, k) * level**k * (1 - level) ** (n_rows - k) for k in range(n_rows + 1)]
    below, above = 0.025 if level == 0.9 else 0.005, 0.005
    lowest = next(k for k in range(n_rows + 1) if sum(shares[: k + 1]) >= below)
    highest = next(k for k in range(n_rows, -1, -1) if sum(shares[k:]) >= above)
    assert chance_band(level, n_rows) == (lowest / n_rows, highest / n_rows)
