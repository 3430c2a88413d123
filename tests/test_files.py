"""Files and folders are replaced whole or not at all."""

import pytest

from torchmcl._files import replaced_folder


def _spoiled(new):
    (new / "weights").mkdir(parents=True)
    (new / "weights").write_text("a folder stands there")


def test_a_folder_is_replaced_and_nothing_else_is_left(tmp_path):
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
