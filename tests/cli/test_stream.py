"""`imap-wal stream`: create, submit, tail, locks, stat."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import imap_wal.stream as stream
from imap_wal.stream import Transaction
from tests.cli.conftest import Run


def test_a_stream_from_the_command_line(tmp_path: Path, run: Run) -> None:
    assert run("stream", "create", tmp_path, "--partitions", "2").code == 0
    first = run("stream", "submit", tmp_path, "account:7", '{"paid": 5}', "--write", "x",
                "--seen", "0", "-o", "json")  # fmt: skip
    mark = json.loads(first.out)
    assert (first.code, mark["id"]) == (0, 1)
    refused = run("stream", "submit", tmp_path, "account:7", "6", "--read", "x", "--seen", "0")
    assert (refused.code, "wrote lock 'x'" in refused.err) == (4, True)
    for _ in range(2):
        again = run("stream", "submit", tmp_path, "account:7", "7", "--append", "y",
                    "--request", "r1")  # fmt: skip
        assert again.out == f"transaction 2 of partition {mark['partition']}\n"
    lines = run("stream", "tail", tmp_path, "-o", "json").lines
    assert [(line["id"], line["header"], line["data"], line["request"]) for line in lines] == [
        (1, "account:7", {"paid": 5}, ""),
        (2, "account:7", 7, "r1"),
    ]
    only = run("stream", "tail", tmp_path, "--lock", "y")
    assert only.out == f"{mark['partition']}/2 account:7 append=y 7\n"
    assert run("stream", "tail", tmp_path, "--after", "2").out == ""
    locks = json.loads(run("stream", "locks", tmp_path, "-o", "json").out)
    assert [(row["lock"], row["id"]) for row in locks] == [("x", 1), ("y", 2)]
    assert "y      2" in run("stream", "locks", tmp_path, "--lock", "y").out
    stat = json.loads(run("stream", "stat", tmp_path, "-o", "json").out)
    assert stat[mark["partition"]] == {
        "partition": mark["partition"], "transactions": 2, "locks": 2, "requests": 1,
    }  # fmt: skip


def test_transactions_of_all_partitions_are_shown_by_time(tmp_path: Path, run: Run) -> None:
    """While another process writes the stream."""
    with stream.open(tmp_path, partitions=3) as bank:
        for number in range(9):
            bank.submit(number, Transaction(number))
        lines = run("stream", "tail", tmp_path, "-o", "json").lines
        assert sorted(line["data"] for line in lines) == list(range(9))
        assert [line["time_ms"] for line in lines] == sorted(line["time_ms"] for line in lines)
        assert run("stream", "submit", tmp_path, "1", "1").code == 4


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["stat"], 1, "imap-wal stream create URL"),
        (["create", "--partitions", "0"], 2, "0"),
        (["submit", "a", "{"], 2, "DATA is not valid JSON"),
        (["submit", "a", "1"], 1, "imap-wal stream create URL"),
        (["submit", "a", "1", "--read", "x"], 2, "--seen"),
    ],
    ids=["no stream", "no partitions", "no JSON", "submit to no stream", "no id"],
)
def test_wrong_calls_get_a_clear_error(
    tmp_path: Path, run: Run, words: list[str], code: int, text: str
) -> None:
    ended = run("stream", words[0], tmp_path, *words[1:])
    assert ended.code == code and text in ended.err


def test_a_partition_that_does_not_exist_is_named(tmp_path: Path, run: Run) -> None:
    run("stream", "create", tmp_path, "--partitions", "2")
    ended = run("stream", "locks", tmp_path, "--partition", "2")
    assert (ended.code, "numbered from 0 to 1" in ended.err) == (2, True)


@pytest.mark.parametrize("name", ["create", "submit", "tail", "locks", "stat"])
def test_every_command_of_a_stream_has_an_example(run: Run, name: str) -> None:
    assert f"imap-wal stream {name} /var/lib/bank" in run("stream", name, "--help").out
