"""`torchmcl reproduce separation --preset paper`: folders of WSJ0-mix, resumed and divided training runs, the table."""

import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import pytest

from grids import for_each
from places import PYTHONPATH
from torchmcl.app import main
from voices import voice

soundfile = pytest.importorskip("soundfile")
pytest.importorskip("lightning.pytorch")
pytestmark = pytest.mark.filterwarnings("ignore")

from torchmcl_speech import load_config  # noqa: E402
from torchmcl_studies.reports.separation_study import paper_text, write_separation_study_page  # noqa: E402
from torchmcl_studies.separation.study import paper_runs  # noqa: E402
from torchmcl_studies.separation_records import read_study  # noqa: E402


def write_wsj0(root, sample_rate=8000):
    """Write 2speakers and 3speakers with six mixtures in each part."""
    for n in (2, 3):
        for part in ("tr", "cv", "tt"):
            sources = {f"s{i}": voice(i, 9000) for i in range(1, n + 1)}
            for place, sound in {"mix": sum(sources.values()), **sources}.items():
                folder = root / f"{n}speakers" / "wav8k" / "min" / part / place
                folder.mkdir(parents=True)
                for k in range(6):
                    soundfile.write(folder / f"01aa010{k}_1.2_20aa010{k}_-1.2.wav", sound[k:], sample_rate)
    return root


@pytest.fixture(scope="module")
def wsj0(tmp_path_factory):
    """Return a folder with the layout of WSJ0-mix."""
    return write_wsj0(tmp_path_factory.mktemp("data") / "WSJ0 mix \N{MICROPHONE}")


def command(data, out, *more):
    return ["reproduce", "separation", "--preset", "paper", "--data", str(data), "--out", str(out), "--quick", *more]


@for_each("place, numbers", [("", (2, 3)), ("..", (2, 3)), ("3speakers", (3,)), ("2speakers/wav8k/min", (2,))])
def test_the_usual_folders_are_found_for_runs_with_the_settings_of_the_paper(wsj0, place, numbers):
    runs = {run.name: run.configured() for run in paper_runs(wsj0 / place, numbers)}
    assert len(runs) == 12 * len(numbers)
    for name, config in runs.items():
        n, objective, training = max(config.data.n_speakers), config.objective, config.training
        paper = load_config(f"paper-{n}spk")
        assert name == f"paper/{n}-{objective.rule}-{training.seed}"
        assert (config.model, config.data.crop, config.data.dynamic) == (paper.model, 5.0, False)
        assert (replace(objective, rule="amcl"), replace(training, seed=0)) == (paper.objective, paper.training)


WRONG = {  # what is moved away, and the message
    "3speakers/wav8k/min/cv/s3": r"3speakers/wav8k/min/cv/s3: no such folder",
    "2speakers/wav8k/min/tt": r"2speakers/wav8k/min/tt/mix: no such folder",
    "2speakers/wav8k/min/tr/s1/*0103*": r"tr: has 6 files in mix and 5 in s1; 01aa0103.* is missing in s1",
    "3speakers": r"one folder 3speakers/wav8k/min/.*s3\}, got .* with 2speakers/wav8k/min\. .*--speakers",
    "?speakers": r"one folder 2speakers/wav8k/min/.*s2\}, got .* with no folders",
}


@pytest.mark.parametrize("place", WRONG)
def test_a_wrong_folder_is_refused_with_what_was_found(wsj0, tmp_path, place):
    data = shutil.copytree(wsj0, tmp_path / "copy")
    for number, path in enumerate(sorted(data.glob(place))):
        path.rename(tmp_path / str(number))
    with pytest.raises(ValueError, match=WRONG[place]):
        paper_runs(data)


def test_a_wrong_sample_rate_is_refused(tmp_path):
    data = write_wsj0(tmp_path, sample_rate=16000)
    with pytest.raises(ValueError, match=r"at 8000 Hz, got .*/tr/mix/.*, which would be resampled from 16000 Hz"):
        paper_runs(data)


def test_the_plan_shows_the_part_of_a_process_and_writes_nothing(wsj0, tmp_path, capsys):
    assert main(command(wsj0, tmp_path / "out", "--plan", "--only", "2/3")) == 0
    lines = [line.split()[:5] for line in capsys.readouterr().out.splitlines()[1:-1]]
    assert lines == [[f"paper/{name}-0", "0", "of", "2", "epochs"] for name in ("2-mcl", "3-pit", "3-amcl")]
    assert main(command(wsj0, tmp_path / "out", "--parts", "methods")) == 2
    assert "`--parts` is not an option of --preset paper" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_table_has_means_over_seeds_and_names_changed_settings(wsj0, tmp_path):
    for run in paper_runs(wsj0):
        folder, config = tmp_path / run.name, run.configured(["objective.epsilon=0.1"] * ("relaxed" in run.name))
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config.as_dict()))
        (folder / "records.jsonl").write_text('{"step": 1, "seconds": 2.0}\n')
        record = {"mixture": "a", "pit_si_sdr": 10.0 + config.training.seed, "mcl_si_sdr": 12.0, "speakers": []}
        (folder / "evaluation-tt.jsonl").write_text(json.dumps(record) + "\n")
    text = " ".join(paper_text(read_study(tmp_path)).split())
    assert "aMCL 11.00 ± 1.00 (3 seeds) 16.85 ± 0.13 11.00 ± 1.00 (3 seeds) 10.00 ± 0.21" in text
    page = write_separation_study_page(tmp_path).read_text()
    assert page.count("11.00 ± 1.00 (3 seeds)") == page.count("12.00 ± 0.00 (3 seeds)") == 8
    assert "objective.epsilon = 0.1" in page


@pytest.mark.slow
def test_processes_divide_the_work_and_a_killed_run_resumes(wsj0, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    words = command(wsj0, tmp_path, "--speakers", "2", "--set", "training.epochs=6")
    start = partial(subprocess.Popen, [sys.executable, "-m", "torchmcl", *words], stdout=subprocess.PIPE, text=True)
    victim, first = start(), tmp_path / "paper" / "2-pit-0" / "records.jsonl"
    while not (first.exists() and len(first.read_text().splitlines()) >= 2) and victim.poll() is None:
        time.sleep(0.01)
    victim.kill()
    victim.communicate()
    before = first.read_text().splitlines()
    assert 2 <= len(before) < 6
    shown = "".join(process.communicate()[0] for process in [start(), start()])
    trained = [line.split()[0] for line in shown.splitlines() if " of 4)" in line]
    assert sorted(trained) == [f"paper/2-{rule}-0" for rule in ("amcl", "mcl", "pit", "relaxed-wta")]
    assert (tmp_path / "index.html").read_text().count("(1 seed)") == 2 * 4
    for path in tmp_path.glob("paper/*/records.jsonl"):
        assert [json.loads(line)["epoch"] for line in path.read_text().splitlines()] == list(range(6))
    # The last of these epochs was possibly not saved yet.
    assert first.read_text().splitlines()[: len(before) - 1] == before[:-1]
