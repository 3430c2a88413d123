"""A checkpoint comes back as it was or is refused, and a run always has one to go on from."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from grids import for_each
from torchmcl.io import (
    CheckpointError,
    CheckpointSeries,
    Codec,
    TrainingInterrupted,
    check_stop,
    load,
    read_checkpoint,
    save,
    saves_when_stopped,
    stop_on_signals,
    stop_requested,
)
from torchmcl.io.files import HEADER, VERSION

TENSORS = {
    "half": torch.tensor([1.5, -2.0], dtype=torch.float16),
    "brain": torch.tensor([[1.5], [math.inf]], dtype=torch.bfloat16),
    "single": torch.tensor(math.nan),
    "double": torch.arange(6, dtype=torch.float64).reshape(2, 3),
    "whole": torch.tensor([-(2**62)]),
    "bytes": torch.tensor([0, 255], dtype=torch.uint8),
    "truth": torch.tensor([True, False]),
    "empty": torch.zeros(0, 3),
}
STATE = {"epoch": 3, "seconds": 0.1, "words": ["größe", None, True], "deep": {"list": [1, [2]]}}


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=0, equal_nan=True)


def written(folder, name="a.safetensors", tensors=TENSORS):
    save(folder / name, {"state": STATE, "tensors": tensors}, kind="test")
    return folder / name


def test_all_types_come_back_as_they_were(tmp_path):
    table = torch.arange(6.0, dtype=torch.float64).reshape(2, 3)
    views = {"table": table, "turned": table.T, "row": table[1], "column": table[:1, 1]}
    empty = {"rows": torch.from_numpy(np.zeros((1, 0))), "scalar": torch.tensor(2.0, dtype=torch.complex64)}
    loaded = load(written(tmp_path, tensors=TENSORS | views | empty), kind="test")
    assert loaded["state"] == STATE
    assert_same(loaded["tensors"], TENSORS | views | empty)
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_equal_values_give_equal_bytes(tmp_path):
    assert len({written(tmp_path, f"{i}.safetensors").read_bytes() for i in range(20)}) == 1


def test_any_reader_of_safetensors_opens_a_checkpoint(tmp_path):
    assert_same(load_file(written(tmp_path)), {f"tensors.{name}": value for name, value in TENSORS.items()})


@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_a_flipped_bit_is_found_or_changes_nothing(tmp_path_factory, place, bit):
    folder = tmp_path_factory.mktemp("flipped")
    path = written(folder)
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 1 << bit
    path.write_bytes(data)
    try:
        loaded = load(path)
    except CheckpointError:
        return
    assert loaded["state"] == STATE  # a blank behind the header
    assert_same(loaded["tensors"], TENSORS)


@for_each("share", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_refused(tmp_path, share):
    path = written(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(
        CheckpointError, match=r"must be (a complete safetensors file|written by torchmcl), got .* damaged"
    ):
        read_checkpoint(path)


def rewritten(path, change):
    """Write the file again, checksum included, with another document in its header."""
    from torchmcl.io import codec

    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        document = json.loads(file.metadata()[HEADER].partition(" ")[2])
    text = json.dumps(document | change) if isinstance(change, dict) else change
    save_file(tensors, path, {HEADER: f"{codec._digest(text, tensors)} {text}"})
    return path


@for_each(
    "change, message",
    [
        ({"version": VERSION + 1, "torchmcl": "9.0"}, r"version 1, got version 2 \(written by torchmcl 9.0\)"),
        ({"version": "1"}, "must name the version of its format"),
        ("[1]", "must name the version of its format"),
        ("{", "must be written by torchmcl, got a file without its header"),
        ("[" * 100_000, "must be written by torchmcl, got a file without its header"),
        ({"kind": "fleet"}, "must be of kind 'test', got 'fleet'"),
    ],
)
def test_other_documents_are_refused(tmp_path, change, message):
    path = rewritten(written(tmp_path, tensors={}), change)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(path, "test")


def test_files_that_are_no_checkpoint_are_refused(tmp_path):
    save_file({"x": torch.ones(1)}, tmp_path / "plain.safetensors")
    with pytest.raises(CheckpointError, match="must be written by torchmcl, got a file without its header"):
        read_checkpoint(tmp_path / "plain.safetensors")
    torch.save({"x": torch.ones(1)}, tmp_path / "pickle.safetensors")
    with pytest.raises(CheckpointError, match="must be a complete safetensors file"):
        read_checkpoint(tmp_path / "pickle.safetensors")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_checkpoint(tmp_path / "none")


# ---------------------------------------------------------------------------- nested values

LEAVES = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5)
NESTED = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.sampled_from(["$tuple", "$float"]), inner, max_size=3)
        | st.dictionaries(st.integers() | st.none() | st.tuples(st.integers()), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=12,
)


@given(NESTED)
def test_nested_values_come_back_as_they_were(value):
    state, tensors = Codec().encode(value)
    again = Codec().decode(json.loads(json.dumps(state, allow_nan=False)), tensors)
    assert repr(again) == repr(value)


def test_tensors_with_equal_paths_have_different_names():
    state, tensors = Codec().encode({"a": {"b": torch.zeros(1)}, "a.b": torch.ones(1)})
    assert len(tensors) == 2
    again = Codec().decode(state, tensors)
    assert (float(again["a"]["b"]), float(again["a.b"])) == (0, 1)


def test_a_part_that_cannot_be_saved_is_named():
    with pytest.raises(TypeError, match=r"checkpoint: `a\.0`"):
        Codec().encode({"a": [{1, 2}]})
    with pytest.raises(ValueError, match="decode: `state`"):
        Codec().decode({"x": {"$tensor": "y"}}, {})


# ---------------------------------------------------------------------------- the last k


def saved_series(folder, keep=2, steps=(1, 2, 3)):
    series = CheckpointSeries(folder / "run", "test", keep=keep)
    for step in steps:
        series.save(step, {"step": step, "x": torch.full((3,), float(step))})
    return series


@for_each("keep, kept", [(1, [3]), (2, [2, 3]), (5, [1, 2, 3])])
def test_the_last_k_are_kept(tmp_path, keep, kept):
    assert saved_series(tmp_path, keep).steps() == kept


def test_without_a_checkpoint_there_is_none(tmp_path):
    assert CheckpointSeries(tmp_path / "nowhere", "test").newest() is None
    with pytest.raises(ValueError, match="CheckpointSeries: `keep`"):
        CheckpointSeries(tmp_path, "test", keep=0)


@for_each("damage", ["truncated", "flipped", "empty"])
def test_when_the_newest_is_damaged_the_one_before_it_serves_with_a_warning(tmp_path, damage):
    series = saved_series(tmp_path)
    data = bytearray(series.path(3).read_bytes())
    data[-1] ^= 1
    series.path(3).write_bytes({"truncated": data[:-5], "flipped": bytes(data), "empty": b""}[damage])
    with pytest.warns(RuntimeWarning, match=r"read_checkpoint: .*-00000003.* Resuming from .*-00000002"):
        step, found = series.newest()
    assert (step, found["step"]) == (2, 2)
    series.save(3, {"step": 3})
    assert series.newest()[0] == 3


def test_when_all_are_damaged_nothing_is_guessed(tmp_path):
    series = saved_series(tmp_path)
    for step in series.steps():
        series.path(step).write_bytes(b"torn")
    with pytest.raises(CheckpointError, match="CheckpointSeries: `folder`"):
        series.newest()


def test_what_a_killed_process_left_half_written_is_removed(tmp_path):
    series = saved_series(tmp_path)
    left = series.folder / ".torchmcl-0123456789abcdef.tmp"
    left.write_bytes(b"half")
    os.utime(left, times=(0, time.time() - 25 * 3600))
    assert series.newest()[0] == 3
    series.save(4, {})
    assert sorted(path.name for path in series.folder.iterdir()) == [series.path(3).name, series.path(4).name]


# ---------------------------------------------------------------------------- full disks


def save_until_full(series):
    for step in range(2, 100):
        series.save(step, {"step": step, "x": torch.rand(100_000)})


def assert_stops_with_the_last_state(series, message):
    with pytest.raises(OSError, match=message) as stopped:
        save_until_full(series)
    assert "The previous file is unchanged" in str(stopped.value)
    assert not list(series.folder.glob(".*"))
    step, found = series.newest()
    assert found["step"] == step


def test_a_full_disk_stops_with_a_clear_error_and_leaves_the_last_good_state(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True, text=True
    )
    if mount.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mount.stderr.strip()}")
    try:
        series = CheckpointSeries(disk / "run", "test", keep=10)
        series.save(1, {"step": 1})
        assert_stops_with_the_last_state(series, r"No space left on device: .*cannot be written, 0\.\d MiB are free")
        assert len(series.steps()) > 2
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# ---------------------------------------------------------------------------- signals


def work_that_listens(number, seen):
    with stop_on_signals(), saves_when_stopped():
        for step in range(1000):
            seen.append(step)
            if step == 3:
                os.kill(os.getpid(), number)
            if stop_requested():
                check_stop("It is saved in the folder.")


def work_that_does_not_listen(*numbers, saves):
    with stop_on_signals(), saves_when_stopped() if saves else nullcontext():
        for number in numbers:
            os.kill(os.getpid(), number)
        time.sleep(10)


def work_that_is_nearly_done():
    with stop_on_signals():
        with saves_when_stopped():
            os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("went on")


@for_each("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_work_that_saves_is_asked_and_other_work_is_ended(number, code):
    before = signal.getsignal(number)
    seen = []
    with pytest.raises(TrainingInterrupted, match="saved in the folder") as stopped:
        work_that_listens(number, seen)
    assert seen == [0, 1, 2, 3]
    assert stopped.value.code == code
    with pytest.raises(TrainingInterrupted) as stopped:
        work_that_does_not_listen(number, saves=False)
    assert stopped.value.code == code
    assert signal.getsignal(number) == before
    assert not stop_requested()


def test_a_second_signal_ends_work_that_does_not_listen():
    with pytest.raises(TrainingInterrupted, match="The last saved state is kept"):
        work_that_does_not_listen(signal.SIGTERM, signal.SIGTERM, saves=True)


def test_a_signal_that_a_finalizer_swallows_is_repeated_without_a_traceback(capfd):
    class Finalized:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0)

    def work():
        with stop_on_signals():
            Finalized()
            time.sleep(5)

    before = sys.unraisablehook
    with pytest.raises(TrainingInterrupted, match="Stopped by SIGTERM"):
        work()
    assert sys.unraisablehook is before
    assert "Traceback" not in capfd.readouterr().err


def test_a_signal_that_comes_too_late_ends_the_work_after_it():
    with pytest.raises(TrainingInterrupted, match="had already ended"):
        work_that_is_nearly_done()


def test_outside_the_main_thread_nothing_changes():
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def work():
        with stop_on_signals():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
