"""JSON lines: changed by several processes, damaged lines named, torn ones replaced."""

import subprocess
import sys

import pytest

from torchmcl.io import change_records, read_records, write_records

APPEND = """
import sys
from pathlib import Path
from torchmcl.io import change_records
for i in range(20):
    change_records("test", Path(sys.argv[1]), lambda rows: [*rows, *[{"process": sys.argv[2], "i": i}] * 2])
"""


def test_records_come_back_in_their_order(tmp_path):
    path = tmp_path / "new" / "records.jsonl"
    change_records("test", path, lambda records: [*records, {"a": 1}, {"a": "größe"}, {"a": None}])
    assert [record["a"] for record in read_records("test", path)] == [1, "größe", None]
    change_records("test", path, lambda records: records[1:])
    assert [record["a"] for record in read_records("test", path)] == ["größe", None]


def test_processes_that_change_one_file_lose_nothing(tmp_path):
    path = tmp_path / "records.jsonl"
    command = [sys.executable, "-c", APPEND, str(path)]
    processes = [subprocess.Popen([*command, name]) for name in "ab"]
    assert [process.wait() for process in processes] == [0, 0]
    records = read_records("test", path)
    for name in "ab":
        written = [record["i"] for record in records if record["process"] == name]
        assert written == [i for i in range(20) for _ in range(2)]


@pytest.mark.parametrize("line", ["", "5", "[1, 2]", '{"a": ', "x", '{"b": 1}'])
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "records.jsonl"
    path.write_text(f'{{"a": 1}}\n{line}\n{{"a": 2}}\n')
    with pytest.raises(ValueError, match=r"test: .*records\.jsonl line 2 is not a record"):
        read_records("test", path, lambda record: record["a"])


@pytest.mark.parametrize(("tail", "kept"), [('{"a": 2, "b', [1]), ('{"a": 2}', [1, 2])])
def test_a_torn_last_line_is_ignored_and_a_complete_one_is_kept(tmp_path, tail, kept):
    path = tmp_path / "records.jsonl"
    path.write_text(f'{{"a": 1}}\n{tail}')
    assert [record["a"] for record in read_records("test", path)] == kept
    write_records(path, [*read_records("test", path), {"a": 3}])
    assert [record["a"] for record in read_records("test", path)] == [*kept, 3]
