"""`imap-wal stream`: create, submit, tail, locks, stat, consumers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest

import imap_wal.stream as stream
from imap_wal.stream import FileMarks, Retries, StreamRecord, Transaction
from tests.cli.conftest import Run
from tests.kit.ports import free_port
from tests.kit.stream_servers import served
from tests.support import eventually


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


@pytest.mark.parametrize("name", ["create", "submit", "tail", "locks", "stat", "consumers"])
def test_every_command_of_a_stream_has_an_example(run: Run, name: str) -> None:
    assert f"imap-wal stream {name} /var/lib/bank" in run("stream", name, "--help").out


def test_consumers_are_printed_with_their_lag(tmp_path: Path, run: Run) -> None:
    """As the process that serves knows them, in a table and as JSON."""
    socket = tmp_path / "socket"
    words = "stream", "consumers", tmp_path / "log", "--socket", socket
    with stream.connect(tmp_path / "log", partitions=2, socket=socket) as bank:
        none = run(*words)
        assert (none.code, "knows no consumers" in none.err) == (0, True)
        assert none.out.split() == ["partition", "newest", "0", "0", "1", "0"]

        @bank.consumer("c", marks=FileMarks(tmp_path / "marks"), retries=Retries(0))
        def apply(record: StreamRecord) -> None:
            if record.data == "bad":
                raise KeyError("\x1b[31m")

        mark = bank.submit("a", Transaction("good"))
        assert mark is not None and bank.wait("c", mark)
        bank.submit("a", Transaction("bad"))

        def row() -> dict[str, Any]:
            found = run(*words, "-o", "json").json
            assert found["process"] == f"process {os.getpid()} on {gethostname()}"
            assert found["partitions"][mark.partition] == {
                "partition": mark.partition, "newest": bank.mark(mark.partition).id,
            }  # fmt: skip
            rows: list[dict[str, Any]] = [{}, *found["consumers"]]
            return rows[-2 + mark.partition] if len(rows) == 3 else {}

        eventually(lambda: row().get("failure"), "it has stopped")
        shown = row()
        assert (shown["mark"], shown["newest"], shown["lag"]) == (1, 2, 1)
        table = run(*words)
        assert f"process {os.getpid()} on {gethostname()}, stopped" in table.out
        assert "consumer 'c' has stopped: KeyError" in table.err
        assert "\x1b" not in table.out + table.err


def test_a_server_of_other_machines_is_asked(tmp_path: Path, run: Run) -> None:
    url = f"tcp://127.0.0.1:{free_port()}"
    with served(tmp_path, url, None), stream.connect(url) as bank:
        bank.consumer("c", marks=FileMarks(tmp_path / "marks"), shared=True)(lambda _: None)

        def lags() -> list[int | None]:
            found = run("stream", "consumers", url, "-o", "json").json
            return [row["lag"] for row in found["consumers"]]

        eventually(lambda: lags() == [0, 0], "it has applied all")


def test_without_a_server_consumers_says_what_it_knows(tmp_path: Path, run: Run) -> None:
    with stream.open(tmp_path, partitions=2) as bank:
        mark = bank.submit("a", Transaction(1))
        assert mark is not None
        ended = run("stream", "consumers", tmp_path, "-o", "json")
    assert (ended.code, "no process serves this stream" in ended.err) == (0, True)
    assert ended.json["process"] is None and ended.json["consumers"] == []
    assert ended.json["partitions"][mark.partition]["newest"] == 1
    assert run("stream", "consumers", tmp_path / "no").code == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--certificate", "a"], "together"),
        (["--certificate", "a", "--key", "b", "--authority", "c"], "are for tcp://"),
    ],
    ids=["one file", "no address"],
)
def test_wrong_options_of_consumers_are_named(
    tmp_path: Path, run: Run, words: list[str], text: str
) -> None:
    ended = run("stream", "consumers", tmp_path, *words)
    assert (ended.code, text in ended.err) == (2, True)
    assert run("stream", "consumers", "tcp://127.0.0.1:1", "--socket", "s").code == 2
