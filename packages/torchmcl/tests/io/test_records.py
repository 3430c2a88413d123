"""JSON lines: appended by several processes, damaged lines named, torn ones replaced."""

import subprocess
import sys

import pytest

from torchmcl.io.records import append_records, change_records, read_records, write_records

APPEND = """
import sys
from pathlib import Path
from torchmcl.io.records import append_records
for i in range(20):
    append_records(Path(sys.argv[1]), [{"process": sys.argv[2], "i": i}] * 2)
"""


def test_records_come_back_in_their_order(tmp_path):
    path = tmp_path / "new" / "records.jsonl"
    append_records(path, [{"a": 1}, {"a": "größe"}])
    append_records(path, [{"a": None}])
    assert [record["a"] for record in read_records("test", path)] == [1, "größe", None]
    change_records("test", path, lambda records: records[1:])
    assert [record["a"] for record in read_records("test", path)] == ["größe", None]
    write_records(path, [{"a": 5}])
    assert read_records("test", path) == [{"a": 5}]


def test_processes_that_append_to_one_file_lose_nothing(tmp_path):
    path = tmp_path / "records.jsonl"
    command = [sys.executable, "-c", APPEND, str(path)]
    processes = [subprocess.Popen([*command, name]) for name in "ab"]
    assert [process.wait() for process in processes] == [0, 0]
    records = read_records("test", path)
    for name in "ab":
        own = [record["i"] for record in records if record["process"] == name]
        assert own == [i for i in range(20) for _ in range(2)]


@pytest.mark.parametrize("line", ["", "5", "[1, 2]", '{"a": ', "x", '{"b": 1}'])
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "records.jsonl"
    path.write_text(f'{{"a": 1}}\n{line}\n{{"a": 2}}\n')
    with pytest.raises(ValueError, match=r"test: .*records\.jsonl line 2 is not a record"):
        read_records("test", path, lambda record: record["a"])


def test_a_torn_last_line_is_ignored_and_replaced(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text('{"a": 1}\n{"a": 2, "b')
    assert read_records("test", path) == [{"a": 1}]
    append_records(path, [{"a": 3}])
    assert path.read_text() == '{"a": 1}\n{"a": 3}\n'


def test_a_last_line_without_its_end_is_kept(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}')
    assert read_records("test", path) == [{"a": 1}, {"a": 2}]
    append_records(path, [{"a": 3}])
    assert [record["a"] for record in read_records("test", path)] == [1, 2, 3]


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    path = tmp_path / "records.jsonl"
    append_records(path, [{"a": 1}])
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        append_records(path, [{"a": 2}])
    assert path.read_text() == '{"a": 1}\n'
