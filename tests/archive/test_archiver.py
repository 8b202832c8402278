"""Archives that another process writes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal.agent.config import AgentConfig
from imap_wal.context import Context
from imap_wal.errors import Closed, CorruptLog
from imap_wal.retention import archiver, other_process
from imap_wal.retention.archive import archive_sealed
from imap_wal.retention.archive_writer import (
    ABSORB_MAX,
    ArchiveJob,
    WrittenArchives,
    write_archives,
)
from imap_wal.retention.archiver import ArchiverProcess, _Portion, in_processes, writer_for
from imap_wal.retention.other_process import OtherProcess, ProcessDied, Report
from storage_backends import NotFound, Unavailable
from storage_backends.local import LocalStore
from storage_backends.location import Location
from tests.agent.harness import config, plugin, serving
from tests.kit.effort import thorough
from tests.support import Threads, eventually, node_log, row


@pytest.fixture(autouse=True)
def always_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiver, "HERE_BYTES_MAX", 0)


def sealed(root: Path, keys: int = 300) -> Any:
    """An open log with sealed segments of two maps."""
    log = node_log(LocalStore(str(root)))
    for number in range(keys):
        log.write(1, 1, [row(f"k{number}", "v" * 100, number + 1)])
        log.sync()
        if number % 100 == 99:
            log.rotate()
    return log


def archive(log: Any, write: Any) -> Any:
    return archive_sealed(
        Context(log.store),
        log.identity.node_folder,
        log.identity.node,
        log.manifests,
        epoch=log.epoch,
        writing=log.unsealed,
        write=write,
    )


@dataclass(frozen=True)
class Reporting:
    """A task that reports twice at once."""

    folder: Path

    def run(self, store: Any, report: Report) -> str:
        report(0.25)
        report(0.5)
        return "done"


@thorough
def test_another_process_reports_at_most_once_a_second(tmp_path: Path) -> None:
    seen: list[float] = []
    other = OtherProcess(f"file://{tmp_path}")
    assert other.run(Reporting(tmp_path / "work"), seen.append) == "done"
    assert seen == [0.25]


def test_archives_are_the_same_from_another_process(tmp_path: Path) -> None:
    found = []
    for name in ("here", "there"):
        log = sealed(tmp_path / name)
        done = archive(
            log,
            write_archives
            if name == "here"
            else ArchiverProcess(f"file://{tmp_path}/{name}").write,
        )
        found.append(
            [
                (each.map, each.first, each.last, each.records, each.tombstones)
                for each in done.archives
            ]
        )
        log.close()
        with imap_wal.open(f"file://{tmp_path}/{name}", node="n1") as store:
            assert len(store.map("m", raw=True)) == 300
    assert found[0] == found[1] and found[0]


@pytest.mark.parametrize("count", [2, 7])
def test_several_processes_write_the_same_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Each reads some of the segments. Small archives of earlier runs are absorbed, and the
    manifest keeps the requests and the end of all segments."""
    monkeypatch.setattr(archiver, "PORTION_BYTES_MIN", 1)
    found = []
    for root, processes in ((tmp_path / "one", 1), (tmp_path / "more", count)):
        log = node_log(LocalStore(str(root)))
        for number in range(12):
            put(log, number)
            if number < ABSORB_MAX - 1:
                archive(log, write_archives)
        with in_processes(Location(root.as_uri()), processes) as write:
            done = archive(log, write)
        assert len(done.archives) == min(processes, 5) and done.records == 5 * 20
        manifest = log.manifests.read()[1]
        found.append((manifest.requests, manifest.checkpoint, manifest.archived))
        assert len(manifest.archives) == len(done.archives), "the earlier ones are absorbed"
        log.close()
        with imap_wal.open(root.as_uri(), node="n1") as store:
            assert len(store.map("m", raw=True)) == 12 * 20
    assert found[0] == found[1] and found[0][0]


def put(log: Any, session: int) -> None:
    """A sealed segment with entries of one session."""
    for number in range(20):
        log.write(1, 1, [row(f"k{session}-{number}", "v" * 100, number + 1, session + 1)])
    log.sync()
    log.rotate()


def test_a_portion_whose_process_is_killed_runs_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiver, "PORTION_BYTES_MIN", 1)
    log = sealed(tmp_path)
    gate = tmp_path / "gate"
    gate.mkdir()
    monkeypatch.setattr(archiver, "_Portion", partial(KilledPortion, gate))
    with in_processes(Location(tmp_path.as_uri()), 2) as write:
        assert archive(log, write).records == 300
    assert len(list(gate.iterdir())) == 4, "one process more than portions, and the mark"
    named = {each.path for each in log.manifests.read()[1].archives}
    assert len(named) == 2
    log.close()


@dataclass(frozen=True)
class KilledPortion:
    """A portion whose first process is killed when it has stored its files."""

    gate: Path
    job: ArchiveJob
    folder: Path

    def run(self, context: Context, report: Report) -> WrittenArchives:
        written = _Portion(self.job, self.folder).run(context, report)
        (self.gate / str(os.getpid())).touch()
        with suppress(FileExistsError):
            (self.gate / "killed").touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
        return written


@thorough
def test_archiver_process_has_low_priority_and_ends(tmp_path: Path) -> None:
    """It has a lower priority, and ends after each run."""
    log = sealed(tmp_path)
    other = ArchiverProcess(f"file://{tmp_path}")
    processes = []

    def write(context: Any, job: ArchiveJob) -> WrittenArchives:
        written = Threads(lambda: answers.append(other.write(context, job)))
        process = eventually(lambda: other._process, "a process")
        processes.append(process)
        written.join()
        return answers[0]

    answers: list[WrittenArchives] = []
    archive(log, write)
    assert processes[0].pid != os.getpid() and processes[0].poll() is not None
    assert other._process is None
    log.close()


def test_errors_in_the_archiver_process_reach_the_caller(tmp_path: Path) -> None:
    log = sealed(tmp_path)
    segment = min(tmp_path.rglob("*.wal"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    with pytest.raises(CorruptLog) as raised:
        archive(log, ArchiverProcess(f"file://{tmp_path}").write)
    assert (
        raised.value.file in str(segment)
        and raised.value.offset > 0
        and str(raised.value.offset) in str(raised.value)
    )
    log.close(clean=False)


@pytest.mark.parametrize(
    "error",
    [
        NotFound("gone", "a/b"),
        Unavailable("away"),
        OSError(28, "No space left"),
        CorruptLog("f", 7, "x"),
        KeyError("k"),
    ],
)
def test_an_error_is_passed_between_processes_unchanged(error: Exception) -> None:
    import pickle

    found = other_process._received(pickle.loads(other_process._sendable(error)))
    assert type(found) is type(error) and str(found) == str(error) and vars(found) == vars(error)


def test_an_error_that_cannot_be_pickled_is_passed_as_text() -> None:
    import pickle

    error = ValueError(threading.Lock())
    found = other_process._received(pickle.loads(other_process._sendable(error)))
    assert isinstance(found, RuntimeError) and "ValueError" in str(found)


def killed(other: ArchiverProcess) -> Threads:
    """Kill its next process as soon as there is one."""
    return Threads(lambda: eventually(lambda: other._process, "a process").kill())


def test_a_killed_archiver_is_reported_and_the_next_run_succeeds(tmp_path: Path) -> None:
    log = sealed(tmp_path)
    other = ArchiverProcess(f"file://{tmp_path}")
    before = sorted(path.name for path in tmp_path.rglob("*.wal"))
    killing = killed(other)
    with pytest.raises(ProcessDied, match="ended with exit code -9; nothing is lost"):
        archive(log, other.write)
    killing.join()
    assert sorted(path.name for path in tmp_path.rglob("*.wal")) == before
    assert archive(log, other.write).records == 300
    log.close()


def test_stop_ends_the_archiver_run_at_once(tmp_path: Path) -> None:
    """A stop ends the current run at once, and allows no other."""
    log = sealed(tmp_path)
    other = ArchiverProcess(f"file://{tmp_path}")
    stopping = Threads(lambda: (eventually(lambda: other._process, "a process"), other.stop()))
    for _ in range(2):
        with pytest.raises(Closed, match="nothing is lost"):
            archive(log, other.write)
    stopping.join()
    log.close()
    with imap_wal.open(f"file://{tmp_path}", node="n1") as store:
        assert len(store.map("m", raw=True)) == 300


def test_the_archiver_process_ends_with_its_parent(tmp_path: Path) -> None:
    """The segment it reads is a named pipe that no process writes; its parent is killed."""
    os.mkfifo(tmp_path / "never.wal")
    code = f"""
import threading
from pathlib import Path
from imap_wal.retention import archiver
from imap_wal.retention.archive_writer import ArchiveJob
from imap_wal.read.file_scan import SEGMENT, FileScan
archiver.HERE_BYTES_MAX = 0
other = archiver.ArchiverProcess({tmp_path.as_uri()!r})
scans = (FileScan(SEGMENT, "n", "never.wal"),)
job = ArchiveJob("n", "n", scans, Path({str(tmp_path)!r}), 1, (), "x", 1, True)
threading.Thread(target=other.write, args=(None, job), daemon=True).start()
while (process := other._process) is None:
    pass
print(process.pid, flush=True)
process.wait()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert parent.stdout is not None and parent.stderr is not None
    os.kill(int(parent.stdout.readline()), 0)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert parent.stderr.read() == b"", (
        "its end of the pipe is closed: it has ended, and has printed nothing"
    )


def test_files_of_a_failed_archive_run_are_deleted(tmp_path: Path) -> None:
    log = sealed(tmp_path)

    def write(context: Any, job: ArchiveJob) -> WrittenArchives:
        written = ArchiverProcess(f"file://{tmp_path}").write(context, job)
        assert written.archives and list(tmp_path.rglob("*.parquet"))
        raise ProcessDied("before it could report it")

    with pytest.raises(ProcessDied):
        archive(log, write)
    assert not list(tmp_path.rglob("*.parquet"))
    assert archive(log, write_archives).records == 300
    log.close()


def test_archiver_process_needs_a_storage_it_can_open() -> None:
    """Only a storage that another process can open is archived by one."""
    assert writer_for(Location("memory://x")) is None
    assert writer_for(Location("file:///x", wal_dir=Location("memory://y"))) is None
    assert writer_for(Location("s3://bucket/root")) is not None


def test_an_agent_archives_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[ArchiveJob] = []
    write = ArchiverProcess.write

    def watched(self: ArchiverProcess, context: Any, job: ArchiveJob) -> WrittenArchives:
        written = write(self, context, job)
        used.append(job)
        return written

    monkeypatch.setattr(ArchiverProcess, "write", watched)
    settings: AgentConfig = config(tmp_path, segment_bytes=2000)
    with serving(settings) as agent, plugin(settings) as member:
        member.put(**{f"k{number}": "v" * 50 for number in range(200)})
        agent._log.archive()
        assert len(used) == 1 and list(tmp_path.rglob("*.parquet"))
        assert len(member.keys(limit=1000)) == 200
    with serving(settings), plugin(settings) as member:
        assert len(member.keys(limit=1000)) == 200


def test_agent_stop_does_not_wait_for_its_archive(tmp_path: Path) -> None:
    settings = config(tmp_path, segment_bytes=2000)
    with serving(settings) as agent, plugin(settings) as member:
        member.put(**{f"k{number}": "v" * 50 for number in range(200)})
        archiver_of = agent._log.writer._archiver
        assert archiver_of is not None

        def archives() -> None:
            with pytest.raises(Closed):
                agent._log.archive()

        archiving = Threads(archives)
        process = eventually(lambda: archiver_of._process, "the other process")
        process.send_signal(signal.SIGSTOP)  # as if it never ended
        agent.stop()
        archiving.join()
    with serving(settings), plugin(settings) as member:
        assert len(member.keys(limit=1000)) == 200
