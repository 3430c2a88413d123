"""The study of separation: its trainings are those of the records, it goes on where it ended, and its page is right."""

import json
import runpy
import statistics

import numpy as np
import pytest
import torch
from scipy.stats import tukey_hsd, wilcoxon

from browser import console_errors, opened
from grids import for_each
from places import ROOT
from torchmcl.app import main
from voices import tables

pytest.importorskip("soundfile")
pytest.importorskip("lightning.pytorch")
pytest.importorskip("matplotlib")
pytestmark = pytest.mark.filterwarnings("ignore")

from torchmcl.app.report import spread_of  # noqa: E402
from torchmcl_speech.config import SeparationConfig  # noqa: E402
from torchmcl_speech.evaluate import trained_precision  # noqa: E402
from torchmcl_speech.nn import DPRNN  # noqa: E402
from torchmcl_studies.reports.separation_drawings import by_genders, over_seeds, seeds_apart  # noqa: E402
from torchmcl_studies.reports.separation_study import (  # noqa: E402
    automatic_rows,
    by_hand_and_automatic,
    hypotheses_rows,
    method_rows,
    transition_rows,
    write_separation_study_page,
)
from torchmcl_studies.reports.statistics import difference  # noqa: E402
from torchmcl_studies.separation.study import Training, study_runs  # noqa: E402
from torchmcl_studies.separation_records import (  # noqa: E402
    PARTS,
    StudyRecords,
    packed_study,
    read_packed_study,
    read_study,
    recorded_study,
)

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def committed():
    """Return the records that the documentation is made of."""
    return recorded_study()


@pytest.fixture(scope="module")
def speech(tmp_path_factory):
    """Return a folder of nine voices with tables of mixtures, as the study reads them."""
    return tables(tmp_path_factory.mktemp("speech"))


def command(speech, out, *more):
    return ["reproduce", "separation", "--data", str(speech), "--out", str(out), "--quick", "--quiet", *more]


# What is trained


def test_the_committed_records_are_those_of_the_study(committed):
    recorded = {run.name: run.config for run in committed.runs}
    runs = study_runs(2)
    assert set(recorded) == {run.name for run in runs}
    free = {"root", "pack", "n_workers"}
    for run in runs:
        assert run.part == run.name.split("/")[0]
        wanted = json.loads(json.dumps(run.configured().as_dict()))
        # Options that came later are at their defaults, and the records do not know them.
        for part, options in wanted.items():
            known = recorded[run.name].get(part, {})
            assert known == {name: value for name, value in options.items() if name in known and name not in free}
            later = {name: value for name, value in options.items() if name not in known and name not in free}
            assert later.items() <= json.loads(json.dumps(SeparationConfig().as_dict()))[part].items(), run.name


def test_the_committed_records_are_whole(committed):
    for run in committed.runs:
        assert len(run.epochs) == run.config["training"]["epochs"]
        assert [record["epoch"] for record in run.epochs] == list(range(len(run.epochs)))
        assert len(run.mixtures) == (500 if run.name.startswith(("methods/2", "automatic/2")) else 400)
        assert len(run.values("pit_si_sdr")) == len(run.mixtures)
        for record in run.mixtures:
            assert record["mcl_si_sdr"] >= record["pit_si_sdr"] - 1e-3
            assert len(set(record["speakers"])) == run.n_speakers
            assert set(record["speakers"]) <= set(committed.genders)


def test_all_networks_heard_the_same_mixtures(committed):
    heard = {}
    for run in committed.runs:
        for record in run.mixtures:
            first = heard.setdefault((run.n_speakers, record["mixture"]), record)
            assert record["speakers"] == first["speakers"]
            assert record["input_si_sdr"] == pytest.approx(first["input_si_sdr"], abs=2e-3)


@for_each("quick", [False, True])
def test_every_training_of_the_study_can_be_built(quick):
    runs = study_runs(2, quick=quick)
    assert len({run.name for run in runs}) == len(runs) == 2 * 8 + 6 + 3 + (1 if quick else 4 + 2)
    assert {run.part for run in runs} == set(PARTS)
    for run in runs:
        config = run.configured()
        seed = int(run.name.split("-")[-1])
        assert config.training.seed == seed
        assert config.objective.annealing_epochs <= config.training.epochs
        if quick:
            assert sum(parameter.numel() for parameter in DPRNN(**config.model).parameters()) < 50_000


def test_the_transition_cools_from_each_temperature_at_a_constant_rate(committed):
    for run in committed.of_part("transition"):
        expected = [run.temperature * 0.9**epoch for epoch in range(52)]
        assert run.temperatures == pytest.approx(expected, rel=1e-4)
        assert {record["learning_rate"] for record in run.epochs} == {1e-3}


def test_the_automatic_schedule_differs_from_the_one_by_hand_in_nothing_else(committed):
    for by_hand, itself in zip(*by_hand_and_automatic(committed), strict=True):
        assert itself.config["objective"] == by_hand.config["objective"] | {"rule": "auto"}
        learned = itself.config["training"], by_hand.config["training"]
        assert all(learned[0][name] == value for name, value in learned[1].items())
        assert itself.config["model"] == by_hand.config["model"]
        assert all(itself.config["data"][name] == value for name, value in by_hand.config["data"].items())
        # What the page says: cooling from the first batch on, half as warm as by hand, hard after 8 epochs.
        temperatures = np.array(itself.temperatures)
        assert 0.03 < temperatures[0] < 0.06
        assert (np.diff(temperatures[:9]) < 0).all()
        assert temperatures[7] > 0
        assert (temperatures[8:] == 0).all()
        assert itself.epochs[0]["val_pit_si_sdr"] > 1.5


# The command


def test_the_study_runs_goes_on_and_refuses_another_one(speech, tmp_path, capsys):
    (speech / "speakers.csv").write_text("speaker,gender\n0,F\n1,M\n2,M\n")
    few = [*command(speech, tmp_path, "--parts", "automatic", "--limit", "1")]
    assert main(few) == 0
    shown = capsys.readouterr().out
    assert "Records: 1 training runs in" in shown
    assert f"Open the report: {(tmp_path / 'index.html').resolve().as_uri()}" in shown
    assert "An automatic schedule" in (tmp_path / "index.html").read_text()
    [records] = tmp_path.glob("automatic/*/records.jsonl")
    before, trained = records.read_text(), records.stat().st_mtime_ns
    assert len(before.splitlines()) == 3
    assert main(few) == 0
    assert records.stat().st_mtime_ns == trained
    study = read_study(tmp_path)
    assert [len(run.mixtures) for run in study.runs] == [1]
    assert [line[0] for line in automatic_rows(study)] == ["automatic"]
    assert len(study.runs[0].temperatures) == 3
    assert study.genders == {"0": "F", "1": "M", "2": "M"}
    # More mixtures are evaluated without another training.
    assert main([*few[:-1], "2"]) == 0
    assert [len(run.mixtures) for run in read_study(tmp_path).runs] == [2]
    assert records.read_text() == before
    [run] = study_runs(parts=["automatic"], quick=True)
    with pytest.raises(ValueError, match=r"separation study: `out` must contain this study, got .* differs in"):
        Training(run, run.configured(["training.seed=7"]), tmp_path / run.name)


@for_each(
    "precision, device, dtype",
    [("bf16-mixed", "cuda", torch.bfloat16), ("32-true", "cuda", None), ("bf16-mixed", "cpu", None)],
)
def test_a_model_is_used_in_the_precision_of_its_training_on_a_gpu(precision, device, dtype):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    notes = {"configuration": SeparationConfig().changed([f"training.precision={precision}"]).as_dict()}
    with trained_precision(notes, device):
        assert torch.is_autocast_enabled(device) == (dtype is not None)
        if dtype is not None:
            assert torch.get_autocast_dtype(device) == dtype
    with trained_precision({}, "cpu"):
        assert not torch.is_autocast_enabled("cpu")


# Records and numbers


def test_packing_loses_nothing_but_digits(committed, tmp_path):
    training, evaluation = packed_study(committed, {"commit": "abc"})
    (tmp_path / "t.jsonl").write_text(training)
    (tmp_path / "e.csv").write_text(evaluation)
    again = read_packed_study(tmp_path / "t.jsonl", tmp_path / "e.csv")
    assert again.genders == committed.genders
    for one, other in zip(again.runs, committed.runs, strict=True):
        assert (one.name, one.config, one.epochs) == (other.name, other.config, other.epochs)
        assert one.mixtures == other.mixtures


def test_the_table_is_that_of_the_records(committed):
    runs = {run.name: run for run in committed.runs}
    ours, base = (
        np.array(list(runs[f"methods/2-{rule}-0"].values("pit_si_sdr").values())) for rule in ("relaxed-wta", "pit")
    )
    once = StudyRecords([run for run in committed.runs if run.seed == 0])
    row = next(row for row in method_rows(once, 2) if row[0].startswith("Relaxed"))
    assert row[1] == f"{ours.mean():.2f} ± {ours.std(ddof=1):.2f} | SE {ours.std(ddof=1) / 500**0.5:.2f}"
    gap = ours - base
    error = gap.std(ddof=1) / 500**0.5
    p = wilcoxon(gap).pvalue
    assert row[4] == f"{gap.mean():+.2f} ± {error:.2f} | median {np.median(gap):+.2f}, p = {p:.2g}"
    assert row[5] == "16.70 ± 0.08"
    assert method_rows(committed, 2)[0][4] == ""
    pits, ours = (
        np.array([list(runs[f"methods/3-{rule}-{seed}"].values("pit_si_sdr").values()) for seed in (0, 1)])
        for rule in ("pit", "amcl")
    )
    row = method_rows(committed, 3)[-1]
    each, spread = ours.mean(1), ours.mean(0).std(ddof=1)
    first = f"{ours.mean():.2f} ({each[0]:.2f}, {each[1]:.2f}) | ± {spread:.2f}, SE {spread / 20:.2f}"
    assert row[1] == first
    gap = (ours - pits).mean(0)
    seeds = (ours - pits).mean(1)
    error = gap.std(ddof=1) / 20
    by_seed = f"{gap.mean():+.2f} ({seeds[0]:+.2f}, {seeds[1]:+.2f}) | SE {error:.2f} | mixtures p < 1e-10"
    means = [
        [runs[f"methods/3-{rule}-{seed}"].mean("pit_si_sdr") for seed in (0, 1)]
        for rule in ("pit", "mcl", "relaxed-wta", "amcl")
    ]
    assert row[4] == f"{by_seed} | seeds p = {tukey_hsd(*means).pvalue[0, 3]:.2g}"
    itself = automatic_rows(committed)
    assert [line[:2] for line in itself] == [[how, seed] for how in ("by hand", "automatic") for seed in "0123"]
    assert itself[4][4:] == ["8.66 ± 0.12", "+0.72 ± 0.05 | median +0.71, p < 1e-10"]
    assert itself[7][4:] == ["8.48 ± 0.12", "+0.10 ± 0.05 | median +0.08, p = 0.00016"]
    assert [line[5] for line in itself[:4]] == [""] * 4
    outputs = hypotheses_rows(committed)
    assert [(line[0], line[1]) for line in outputs][:3] == [("3", "MCL"), ("3", "aMCL"), ("5", "MCL")]
    assert outputs[0][4:] == ["", ""]
    assert [line[2] for line in transition_rows(committed)] == ["split at once", "3.0 dB", "3.1 dB"]


def test_seeds_are_averaged_mixture_by_mixture(committed):
    runs = [run for run in committed.runs if run.name in ("methods/2-pit-0", "methods/2-mcl-0")]
    both = over_seeds(runs, "pit_si_sdr")
    assert both["7"] == pytest.approx(statistics.fmean(run.values("pit_si_sdr")["7"] for run in runs))
    groups = by_genders(committed, runs, "pit_si_sdr")
    assert list(groups) == ["F + F", "F + M", "M + M"]
    assert sum(group.n for group in groups.values()) == 500
    whole = sum(group.mean * group.n for group in groups.values()) / 500
    assert whole == pytest.approx(spread_of(list(both.values())).mean)
    assert difference(both, {"0": 1.0}) is None
    assert difference(both, both).p is None


def test_seeds_are_compared_only_where_every_method_has_several():
    assert seeds_apart({"pit": [1.0, 1.1], "mcl": [1.0]}, "mcl", "pit") is None
    assert seeds_apart({"pit": [1.0, 1.0], "mcl": [2.0, 2.0]}, "mcl", "pit") is None
    # Two trainings that differ as much as the seeds do are not told apart.
    assert seeds_apart({"pit": [8.06, 8.10], "mcl": [8.08, 7.66]}, "mcl", "pit") > 0.3


def test_the_tables_of_the_documentation_are_those_of_the_records(committed):
    docs = ROOT / "docs"
    made = runpy.run_path(str(docs / "_separation_tables.py"))["tables"](committed)
    assert len(made) == 5
    for name, text in made.items():
        assert (docs / f"separation_{name}.inc").read_text() == text


# The page


def _write(folder, runs):
    """Write runs as the study leaves them."""
    for run in runs:
        place = folder / run.name
        place.mkdir(parents=True)
        (place / "config.json").write_text(json.dumps(run.config))
        (place / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in run.epochs))
        (place / "evaluation-tt.jsonl").write_text("".join(json.dumps(record) + "\n" for record in run.mixtures))


@pytest.fixture(scope="module")
def page(committed, tmp_path_factory):
    """Return the page of the committed records, with a gender that is no letter and a run at work."""
    folder = tmp_path_factory.mktemp("page")
    _write(folder, committed.runs)
    (folder / "methods" / "3-mcl-7").mkdir()
    genders = dict(committed.genders) | {"121": HOSTILE}
    lines = ["speaker,gender", *(f"{speaker},{gender}" for speaker, gender in genders.items())]
    (folder / "speakers.csv").write_text("\n".join(lines) + "\n")
    return write_separation_study_page(folder)


@pytest.mark.slow
def test_the_page_shows_tables_and_pictures_without_console_errors(page):
    with opened(page) as driver:
        text = driver.find_element("tag name", "body").text
        for words in (
            "Four objectives",
            "Learning curves",
            "By gender",
            "More outputs than",
            "Phase transition",
            "An automatic schedule",
        ):
            assert words in text
        assert "not comparable" in text
        assert "8.14 (8.18, 8.11)" in driver.find_element("css selector", "#methods-2").text
        assert "seeds p = 0.98" in driver.find_element("css selector", "#methods-2").text
        assert len(driver.find_elements("css selector", "#automatic tbody tr")) == 8
        assert "9.43 ± 0.21" in driver.find_element("css selector", "#methods-3").text
        assert len(driver.find_elements("css selector", "#hypotheses tbody tr")) == 6
        assert HOSTILE in driver.find_element("css selector", "#genders-2").text
        pictures = driver.find_elements("css selector", "img")
        assert len(pictures) == 5
        assert all(int(picture.get_property("naturalWidth")) > 500 for picture in pictures)
        assert len(driver.find_elements("css selector", "script")) == 1  # which shows the values of the pictures
        # Wide tables scroll by themselves, and do not need to on a desk.
        boxes = driver.find_elements("css selector", ".scroll:has(#methods-3, #hypotheses, #transition, #automatic)")
        sizes = [driver.execute_script("return [arguments[0].scrollWidth, arguments[0].clientWidth]", b) for b in boxes]
        assert len(sizes) == 4
        assert all(inner <= outer + 1 for inner, outer in sizes)
        assert console_errors(driver) == []
        driver.set_window_size(500, 1600)
        assert driver.execute_script("return document.documentElement.scrollWidth <= window.innerWidth + 1")
        # Pictures that stand beside each other on a desk stand below each other on a phone.
        top = "return arguments[0].getBoundingClientRect().top"
        tops = {driver.execute_script(top, picture) for picture in pictures[:2]}
        assert len(tops) == 2
