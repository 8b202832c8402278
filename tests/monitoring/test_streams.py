"""The metrics of a process that serves a stream."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families as parsed

import imap_wal.stream as stream
from imap_wal.agent.monitoring.pages import Exporter
from imap_wal.clock import SystemClock
from imap_wal.stream import FileMarks, Transaction
from imap_wal.stream.monitoring import STREAM, StreamSnapshot, listener
from imap_wal.stream.served import serving_stream
from imap_wal.workers.endpoint import LocalEndpoint
from tests.kit.ports import free_port
from tests.kit.stream_processes import connected
from tests.monitoring.http import get
from tests.monitoring.snapshots import consumer, stream_snapshot
from tests.support import eventually


def exported(now: StreamSnapshot) -> dict[str, float]:
    """Sample → value, without `imap_wal_stream_`; of a consumer with its partition."""
    text = Exporter(lambda: now, STREAM).text().decode()
    return read(text)


def read(text: str) -> dict[str, float]:
    return {
        " ".join(
            [
                sample.name.removeprefix("imap_wal_stream_"),
                *(sample.labels[of] for of in sorted(sample.labels)),
            ]
        ): sample.value
        for family in parsed(text)
        for sample in family.samples
        if sample.name.startswith("imap_wal_stream_")
    }


def test_a_consumer_is_exported_with_all_its_numbers() -> None:
    found = exported(stream_snapshot(consumer(0, 7, "one"), consumer(1, None, "")))
    assert found == {
        "info stream default": 1,
        "serving": 1,
        "newest_id 0": 9,
        "newest_id 1": 9,
        "consumer_mark c 0": 7,
        "consumer_lag c 0": 2,
        "consumer_running c 0": 1,
        "consumer_running c 1": 0,
        "consumer_skipped_total c 0": 2,
        "consumer_skipped_total c 1": 2,
        "consumer_failures_total c 0": 3,
        "consumer_failures_total c 1": 3,
    }


def test_of_several_processes_the_last_one_is_exported() -> None:
    """Those with databases of their own."""
    rows = consumer(0, 7, "one"), consumer(0, 4, "two", "KeyError"), consumer(0, 6, "three")
    found = exported(stream_snapshot(*rows))
    assert (found["consumer_mark c 0"], found["consumer_lag c 0"]) == (4, 5)
    assert found["consumer_running c 0"] == 0, "one of them has stopped"


def test_a_process_that_waits_exports_that_it_waits() -> None:
    assert exported(StreamSnapshot("default", "stream", None)) == {
        "info stream default": 1,
        "serving": 0,
    }


def test_a_server_answers_for_its_consumers(tmp_path: Path) -> None:
    """Also when it waits."""
    stream.open(tmp_path / "log", partitions=2).close()
    endpoint = LocalEndpoint(tmp_path / "socket")
    election = serving_stream(tmp_path / "log", endpoint)
    with ExitStack() as stack:
        pages = listener("127.0.0.1:0", "default", "stream", election, SystemClock())
        pages.worker.start()
        stack.callback(pages.close)
        stack.callback(election.stop)
        eventually(lambda: pages.port, "it listens")
        assert [get(pages.port, path).status for path in ("/livez", "/readyz")] == [200, 503]
        assert election.elect()
        assert get(pages.port, "/readyz").status == 200
        bank = stack.enter_context(connected(tmp_path, serve=False))
        bank.consumer("c", marks=FileMarks(tmp_path / "marks"))(lambda _: None)
        bank.submit("a", Transaction(1))
        of = bank.partition_of("a")

        def shown() -> bool:
            found = read(get(pages.port, "/metrics").body.decode())
            return found.get(f"consumer_mark c {of}") == found.get(f"newest_id {of}") == 1

        eventually(shown, "the mark is exported")


def test_the_command_answers_until_it_is_stopped(tmp_path: Path) -> None:
    stream.open(tmp_path / "log", partitions=2).close()
    port = free_port()
    program = [sys.executable, "-c", "from rewrite_cli.cli import main; main()"]
    words = ["stream", "serve", str(tmp_path / "log"), "--http-address", f"127.0.0.1:{port}"]
    process = subprocess.Popen([*program, *words], stderr=subprocess.PIPE, text=True)
    try:

        def ready() -> bool:
            with suppress(ConnectionRefusedError):
                return get(port, "/readyz").status == 200
            return False

        eventually(ready, "it serves", 60)
        assert read(get(port, "/metrics").body.decode())["serving"] == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
