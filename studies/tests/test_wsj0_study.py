"""`torchmcl reproduce separation --preset paper`: folders of WSJ0-mix, resumed and divided training runs, the table."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from grids import for_each
from places import PYTHONPATH
from torchmcl.app import main
from voices import voice

soundfile = pytest.importorskip("soundfile")
pytest.importorskip("lightning.pytorch")
pytest.importorskip("matplotlib")
pytestmark = pytest.mark.filterwarnings("ignore")

from torchmcl_speech import load_config  # noqa: E402
from torchmcl_studies.separation.study import paper_runs  # noqa: E402


def write_wsj0(root, sample_rate=8000):
    """Write 2speakers and 3speakers with six mixtures in each part."""
    for n in (2, 3):
        for number, part in enumerate(("tr", "cv", "tt")):
            sources = [voice(10 * number + i, 9000) for i in range(n)]
            for place, sound in {"mix": sum(sources), **{f"s{i + 1}": s for i, s in enumerate(sources)}}.items():
                folder = root / f"{n}speakers" / "wav8k" / "min" / part / place
                folder.mkdir(parents=True)
                for k in range(6):
                    name = "_".join(f"{i}{number}a{k:04d}_0.{i}" for i in range(n))
                    soundfile.write(folder / f"{name}.wav", sound[: 8500 + k], sample_rate, subtype="PCM_16")
    return root


@pytest.fixture(scope="module")
def wsj0(tmp_path_factory):
    """Return a folder with the layout of WSJ0-mix."""
    return write_wsj0(tmp_path_factory.mktemp("wsj") / "wsj0-mix")


def command(data, out, *more):
    return ["reproduce", "separation", "--preset", "paper", "--data", str(data), "--out", str(out), "--quick", *more]


# Folders


@for_each("place, numbers", [("", (2, 3)), ("..", (2, 3)), ("3speakers", (3,)), ("2speakers/wav8k/min", (2,))])
def test_the_usual_folders_are_found(wsj0, place, numbers):
    runs = paper_runs(wsj0 / place, numbers)
    assert len(runs) == 12 * len(numbers)
    assert {run.configured().data.n_speakers for run in runs} == {(n,) for n in numbers}


def remove(place):
    return lambda root: (shutil.rmtree if (root / place).is_dir() else os.unlink)(sorted(root.glob(place))[0])


def move(place, target):
    return lambda root: (root / place).rename(root / target)


WRONG = {
    "no s3": (remove("3speakers/wav8k/min/cv/s3"), r"3speakers/wav8k/min/cv/s3: no such folder"),
    "no part": (remove("2speakers/wav8k/min/tt"), r"2speakers/wav8k/min/tt/mix: no such folder"),
    "a file less": (remove("2speakers/wav8k/min/tr/s1/*.wav"), r"tr: has 6 files in mix and 5 in s1; .* missing in s1"),
    "one number": (remove("3speakers"), r"one folder 3speakers/wav8k/min/.*s3\}, got .* with 2speakers/wav8k/min"),
    "max": (move("2speakers/wav8k/min", "2speakers/wav8k/max"), r"one folder 2speakers/.* with 3speakers/wav8k/min"),
    "elsewhere": (move("2speakers", "3speakers/wav8k/x"), r"one folder 2speakers/.*--speakers"),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_folder_is_refused_with_what_was_found(wsj0, tmp_path, capsys, change, message):
    data = shutil.copytree(wsj0, tmp_path / "copy")
    change(data)
    with pytest.raises(ValueError, match=message):
        paper_runs(data)


def test_a_wrong_sample_rate_is_refused_before_anything_is_written(tmp_path, capsys):
    data = write_wsj0(tmp_path / "data", sample_rate=16000)
    assert main(command(data, tmp_path / "out")) == 2
    assert "at 8000 Hz, got" in (shown := capsys.readouterr().err)
    assert "would be resampled from 16000 Hz" in shown
    assert not (tmp_path / "out").exists()


# Training runs


def test_the_training_runs_have_the_settings_of_the_paper(wsj0):
    for run in (runs := paper_runs(wsj0)):
        n, rule, seed = run.name.removeprefix("paper/").replace("relaxed-wta", "relaxed_wta").split("-")
        wanted = load_config(f"paper-{n}spk").changed([f"objective.rule={rule.replace('_', '-')}", f"training.seed={seed}"])
        config = run.configured()
        assert (config.model, config.objective, config.training) == (wanted.model, wanted.objective, wanted.training)
        assert (config.data.crop, config.data.dynamic, config.data.sample_rate) == (5.0, False, 8000)
    assert len({run.name for run in runs}) == 24


def test_the_plan_shows_the_part_of_a_process_and_writes_nothing(wsj0, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(command(wsj0, out, "--plan", "--only", "2/3")) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines[1:-1]]
    assert names == ["paper/2-mcl-0", "paper/3-pit-0", "paper/3-amcl-0"]
    assert "0 of 2 epochs" in lines[1]
    assert not out.exists()
    assert main(command(wsj0, out, "--parts", "methods")) == 2
    assert "`--parts` is not an option of --preset paper" in capsys.readouterr().err


@pytest.mark.slow
def test_processes_divide_the_work_and_a_killed_run_resumes(wsj0, tmp_path, capsys):
    out, few = tmp_path / "out", ["--speakers", "2", "--set", "training.epochs=6"]
    program = [sys.executable, "-m", "torchmcl", *command(wsj0, out, *few)]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"}
    pipes = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    victim = subprocess.Popen(program, **pipes)
    first = out / "paper" / "2-pit-0" / "records.jsonl"
    ends = time.monotonic() + 120
    while not (first.exists() and len(first.read_text().splitlines()) >= 2) and time.monotonic() < ends:
        time.sleep(0.01)
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    before = first.read_text().splitlines()
    assert 2 <= len(before) < 6
    both = [subprocess.Popen(program, **pipes) for _ in range(2)]
    shown = [process.communicate(timeout=300)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], shown
    names = ["2-amcl-0", "2-mcl-0", "2-pit-0", "2-relaxed-wta-0"]
    trained = [re.findall(r"^paper/(\S+) \(\d of 4\)", text, re.MULTILINE) for text in shown]
    assert sorted(trained[0] + trained[1]) == names
    assert min(map(len, trained)) >= 1
    for name in names:
        records = [json.loads(line) for line in (out / "paper" / name / "records.jsonl").read_text().splitlines()]
        assert [record["epoch"] for record in records] == list(range(6)), name
    # The last of these epochs was possibly not saved yet.
    assert first.read_text().splitlines()[: len(before) - 1] == before[:-1]
    assert (out / "index.html").read_text().count("(1 seed)") == 2 * 4
    assert any("Records: 4 training runs" in text for text in shown)
    assert not list(out.rglob("*.tmp"))


@pytest.mark.slow
def test_the_table_has_every_run_and_names_what_was_changed(wsj0, tmp_path, capsys):
    assert main(command(wsj0, tmp_path, "--seeds", "2", "--set", "objective.epsilon=0.1", "--quiet")) == 0
    shown = capsys.readouterr().out
    assert shown.count("(2 seeds)") == 8
    assert "16.88 ± 0.10" in shown
    assert "6 of 2 speakers, 6 of 3" in shown
    page = (tmp_path / "index.html").read_text()
    for setting in ("objective.epsilon = 0.1", "data.crop = 1.0", "training.epochs = 2"):
        assert setting in " ".join(shown.split())
        assert setting in page
    assert page.count("(2 seeds)") == 16
    assert main(command(wsj0, tmp_path, "--seeds", "2", "--set", "objective.epsilon=0.1", "--plan")) == 0
    assert capsys.readouterr().out.count("finished") == 16
