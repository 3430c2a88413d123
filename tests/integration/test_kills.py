"""Trainings that are killed or stopped at any moment end as if nobody had disturbed them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from places import PYTHONPATH
from signals import signal_when
from torchmcl.app import main
from torchmcl.io import read_checkpoint

pytest.importorskip("polars")
pytest.importorskip("sklearn")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_fleet_killed_at_random_times_resumes_to_the_same_bits(tmp_path):
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).with_name("fleet_program.py")), str(tmp_path)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split()[0] == "-9"
    whole, killed = (torch.load(tmp_path / name / "end.pt") for name in ("whole", "killed"))
    torch.testing.assert_close(killed, whole, rtol=0, atol=0, equal_nan=True)


def write_table(path):
    rng = np.random.default_rng(0)
    rows = [f"{x:.4f},{'uv'[i % 2]},{(1 if i % 2 else -1) * x:.4f}" for i, x in enumerate(rng.uniform(size=80))]
    path.write_text("\n".join(["a,b,y", *rows]) + "\n")


def fit_command(folder, out, n_epochs=150):
    options = ["--epochs", str(n_epochs), "--hidden", "8", "--restarts", "2", "--quiet"]
    return ["fit", str(folder / "table.csv"), "--target", "y", "-o", str(folder / out), *options]


def numbers(model):
    tensors = read_checkpoint(model / "model.safetensors").tensors
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


def test_a_signal_ends_fit_with_its_code_and_the_same_command_goes_on(tmp_path, capsys):
    write_table(tmp_path / "table.csv")
    assert main(fit_command(tmp_path, "whole")) == 0
    state = tmp_path / "stopped.checkpoint"
    sent = signal_when(lambda: list(state.rglob("chunk-*")), signal.SIGTERM)
    assert main(fit_command(tmp_path, "stopped")) == 143
    sent.join()
    message = capsys.readouterr().err
    place = state / "training" / "kind-0"
    assert f"torchmcl: Stopped by SIGTERM. Saved in '{place}': run the same again to resume" in message
    assert not (tmp_path / "stopped").exists()
    assert list(state.rglob("chunk-*"))
    assert main(fit_command(tmp_path, "stopped")) == 0
    assert numbers(tmp_path / "stopped") == numbers(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stopped", "table.csv", "whole"]


# The signal may come between the opening of a file and the block that closes it; the collector closes it then.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_while_the_model_is_measured_is_told_and_the_same_command_measures_it(tmp_path, capsys):
    write_table(tmp_path / "table.csv")
    model = tmp_path / "model"
    sent = signal_when((model / "model.safetensors").is_file, signal.SIGTERM)
    assert main(fit_command(tmp_path, "model")) == 143
    sent.join()
    assert not (model / "evaluation.json").exists()
    assert main(fit_command(tmp_path, "model")) == 0  # without --overwrite
    assert (model / "evaluation.json").is_file()
    assert main(fit_command(tmp_path, "model")) == 2
    assert "--overwrite" in capsys.readouterr().err


def test_a_folder_of_somebody_else_in_the_place_of_the_checkpoint_is_kept(tmp_path, capsys):
    write_table(tmp_path / "table.csv")
    theirs = tmp_path / "model.checkpoint" / "notes.txt"
    theirs.parent.mkdir()
    theirs.write_text("mine")
    assert main([*fit_command(tmp_path, "model"), "--restart"]) == 2
    assert "`checkpoint` must be new, empty or contain saved progress" in capsys.readouterr().err
    assert theirs.read_text() == "mine"


def test_ctrl_c_while_packages_are_loaded_ends_in_a_line(tmp_path):
    write_table(tmp_path / "table.csv")
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "torch.py").write_text("raise KeyboardInterrupt\n")
    path = os.pathsep.join([str(tmp_path / "packages"), PYTHONPATH])
    command = [sys.executable, "-m", "torchmcl", *fit_command(tmp_path, "model")]
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (130, "torchmcl: Stopped by SIGINT.")
    assert "Traceback" not in ended.stderr


def test_the_shell_sees_the_conventional_code(tmp_path):
    write_table(tmp_path / "table.csv")
    command = [sys.executable, "-m", "torchmcl", *fit_command(tmp_path, "model", n_epochs=1000)]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    state = tmp_path / "model.checkpoint"
    while not list(state.rglob("chunk-*")) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "torchmcl: saving, then stopping; once more to stop at once." in message
    assert "torchmcl: Stopped by SIGINT. Saved in " in message
    assert "Traceback" not in message


def uci_command(data, out):
    size = ["--sets", "yacht", "--methods", "mcl,amcl-exponential", "--protocol", "last", "--folds", "0,1"]
    return ["reproduce", "uci", "--data", str(data), "--out", str(out), "--epochs", "250", "--quiet", *size]


def records(out):
    rows = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def test_a_signal_ends_reproduce_uci_with_its_code_and_the_same_command_goes_on(tmp_path, capsys):
    rng = np.random.default_rng(0)
    (tmp_path / "data/yacht").mkdir(parents=True)
    np.savez(tmp_path / "data/yacht/data.npz", data=rng.normal(size=(308, 7)))
    assert main(uci_command(tmp_path / "data", tmp_path / "whole")) == 0
    out = tmp_path / "stopped"
    sent = signal_when(lambda: list(out.glob("checkpoints/*/chunk-*")), signal.SIGINT)
    assert main(uci_command(tmp_path / "data", out)) == 130
    sent.join()
    assert "torchmcl: Stopped by SIGINT. Saved in " in capsys.readouterr().err
    assert not (out / "records.jsonl").exists()
    assert main(uci_command(tmp_path / "data", out)) == 0
    assert records(out) == records(tmp_path / "whole")
    names = {path.name for path in out.iterdir()}
    assert {"index.html", "records.jsonl"} <= names
    assert "checkpoints" not in names


def test_a_full_disk_ends_fit_with_a_clear_message_and_room_lets_it_go_on(tmp_path, capsys):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(disk)]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        write_table(tmp_path / "table.csv")
        command = fit_command(tmp_path, "disk/model", n_epochs=50)
        command[command.index("8")] = "200"
        command += ["--bins", "0"]  # one save fits on the disk, the next does not
        assert main(command) == 2
        message = capsys.readouterr().err
        assert "No space left on device" in message
        assert "MiB are free. The previous file is unchanged; free some space and rerun" in message
        assert len(list(disk.glob("model.checkpoint/training/kind-0/chunk-*"))) == 1
        assert not list(disk.rglob("*.tmp"))
        subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
        assert main(command) == 0
        command[command.index(str(disk / "model"))] = str(tmp_path / "whole")
        assert main(command) == 0
        assert numbers(disk / "model") == numbers(tmp_path / "whole")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
