"""Files are replaced completely or not at all, whoever writes them, at the intended place."""

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from torchmcl.io import replaced_file, write_atomically
from torchmcl.io.files import remove_abandoned

TEMPORARY = ".torchmcl-0123456789abcdef.tmp"
on_posix = pytest.mark.skipif(os.name != "posix", reason="needs locks, links and permissions of POSIX")


def fail_halfway(write):
    write()
    raise KeyboardInterrupt


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# ---------------------------------------------------------------------------- whole or not at all


def test_a_failure_while_writing_leaves_the_old_file(tmp_path):
    (tmp_path / "table.csv").write_text("old")
    with pytest.raises(KeyboardInterrupt), replaced_file(tmp_path / "table.csv") as file:
        fail_halfway(lambda: file.write(b"half"))
    assert (tmp_path / "table.csv").read_text() == "old"
    assert names(tmp_path) == ["table.csv"]


def test_a_file_and_its_name_are_flushed_to_the_disk(tmp_path, monkeypatch):
    flushed = []
    fsync = os.fsync

    def watched(descriptor):
        flushed.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    write_atomically(tmp_path / "deep" / "file", "text")
    assert (tmp_path / "deep" / "file").read_text() == "text"
    assert flushed == [False, True]  # the file, then its folder


@on_posix
def test_a_pipe_or_device_is_written_to_and_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    received = []
    reader = threading.Thread(target=lambda: received.append((tmp_path / "pipe").read_text()), daemon=True)
    reader.start()
    write_atomically(tmp_path / "pipe", "text")
    assert (tmp_path / "pipe").is_fifo()
    reader.join()
    assert received == ["text"]


# ---------------------------------------------------------------------------- links and permissions


@on_posix
def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    write_atomically(tmp_path / "elsewhere" / "real", "old")
    (tmp_path / "link").symlink_to(Path("elsewhere") / "real")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "elsewhere" / "real").read_text() == "new"
    assert (names(tmp_path), names(tmp_path / "elsewhere")) == (["elsewhere", "link"], ["real"])


@on_posix
def test_links_in_a_circle_are_refused(tmp_path):
    (tmp_path / "one").symlink_to("other")
    (tmp_path / "other").symlink_to("one")
    with pytest.raises(OSError, match=r"[Ss]ymbolic links"):
        write_atomically(tmp_path / "one", "new")
    assert names(tmp_path) == ["one", "other"]


@on_posix
@pytest.mark.parametrize("guessed", [True, False])
def test_links_planted_at_temporary_names_are_not_followed(tmp_path, monkeypatch, guessed):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    tokens = iter(["0123456789abcdef", "fedcba9876543210"])
    if guessed:  # were the name known after all, the file is still made anew or not at all
        monkeypatch.setattr("secrets.token_hex", lambda _: next(tokens))
    for name in (TEMPORARY, f".out.{os.getpid()}.tmp"):
        (tmp_path / name).symlink_to(victim)
    if guessed:
        with pytest.raises(FileExistsError):
            write_atomically(tmp_path / "out", "new")
    else:
        write_atomically(tmp_path / "out", "new")
        assert (tmp_path / "out").read_text() == "new"
    assert victim.read_text() == "precious"


@on_posix
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_permissions_are_those_that_open_gives(tmp_path, umask):
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "file", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~umask


# ---------------------------------------------------------------------------- several savers at once


def save_again_and_again(write, path, text, failures, n_times=12):
    for _ in range(n_times):
        try:
            write(path, text)
        except OSError as error:
            failures.append(error)


def test_threads_that_save_to_one_place_all_succeed(tmp_path):
    failures = []
    texts = [str(thread) * 1000 for thread in range(3)]
    threads = [
        threading.Thread(target=save_again_and_again, args=(write_atomically, tmp_path / "model", text, failures))
        for text in texts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert (tmp_path / "model").read_text() in texts
    assert names(tmp_path) == ["model"]


# ---------------------------------------------------------------------------- killed savers


HANGING_SAVER = """
import sys, time
from pathlib import Path
from torchmcl.io import replaced_file
with replaced_file(Path(sys.argv[1])) as file:
    file.write(b"half")
    print("writing", flush=True)
    time.sleep(60)
"""


@on_posix
def test_a_killed_writer_leaves_the_old_file_and_what_it_left_is_removed_a_day_later(tmp_path):
    (tmp_path / "model").write_text("old")
    command = [sys.executable, "-c", HANGING_SAVER, str(tmp_path / "model")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"writing\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (tmp_path / "model").read_text() == "old"
    left, _ = names(tmp_path)
    remove_abandoned(tmp_path)
    assert names(tmp_path) == [left, "model"]  # another process may be writing it
    os.utime(tmp_path / left, times=(0, time.time() - 25 * 3600))
    write_atomically(tmp_path / "x", "text")
    assert names(tmp_path) == ["model", "x"]


@on_posix
def test_a_pipe_or_a_link_with_a_temporary_name_is_left_alone(tmp_path):
    os.mkfifo(tmp_path / TEMPORARY)
    os.utime(tmp_path / TEMPORARY, times=(0, 0))
    (tmp_path / TEMPORARY.replace("0", "1")).symlink_to(tmp_path)
    write_atomically(tmp_path / "out", "text")
    assert len(names(tmp_path)) == 3


# ---------------------------------------------------------------------------- everything that is saved
