"""Files and folders are replaced whole or not at all."""

import os
import stat
import sys

import pytest

from torchmcl import _files
from torchmcl._files import replaced_folder, write_atomically


def _spoiled(new):
    (new / "weights").mkdir(parents=True)
    (new / "weights").write_text("a folder stands there")


@pytest.mark.parametrize("in_one_step", [True, False])
def test_a_folder_is_replaced_and_nothing_else_is_left(tmp_path, monkeypatch, in_one_step):
    if not in_one_step:  # systems that cannot exchange two names
        monkeypatch.setattr(_files, "_exchanged", lambda *_: False)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "old").write_text("old")
    with replaced_folder(folder) as new:
        new.mkdir()
        (new / "weights").write_text("new")
    assert [path.name for path in folder.iterdir()] == ["weights"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_failure_while_writing_leaves_the_old_folder(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "old").write_text("old")
    with pytest.raises(IsADirectoryError), replaced_folder(folder) as new:
        _spoiled(new)
    assert (folder / "old").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_new_folder_that_cannot_be_put_in_place_leaves_the_old_one(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "old").write_text("old")
    with pytest.raises(FileNotFoundError), replaced_folder(folder):
        pass  # nothing was written, so there is nothing to rename
    assert (folder / "old").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux can exchange two names")
def test_two_folders_change_places_in_one_step(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert _files._exchanged(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "one" / "other").exists()
    assert (tmp_path / "other" / "one").exists()
    assert not _files._exchanged(tmp_path / "one", tmp_path / "nowhere")


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
