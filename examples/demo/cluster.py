"""`make demo-cluster`: the same flights into real Hazelcast members. Every process is killed, all
start again, and the maps are compared.

    node start ─▶ play ─▶ SIGKILL members, agents and writer ─▶ node start, compare
    ─▶ play the rest ─▶ SIGKILL again ─▶ rewrite ─▶ node start, compare
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from examples.demo import flights
from examples.demo.embedded import (
    Reopened,
    Report,
    Tell,
    finish,
    measure_bytes,
    rewrite_and_prune,
)
from examples.demo.playback import Playback
from imap_wal.checks import location
from imap_wal.clock import Clock
from imap_wal.layout import Identity
from rewrite_cli.console.failures import Failed
from rewrite_cli.console.selection import Selection
from rewrite_cli.local_cluster.clients import connect
from rewrite_cli.local_cluster.launcher import die_with_parent

READY_S = 120


class Members:
    """`imap-wal node start` as a child, in its own process group, so that one signal kills all of
    it."""

    def __init__(self, url: str, count: int, folder: Path) -> None:
        self.count, self._url, self._log = count, url, folder / "node-start.log"
        self._environment = {
            **os.environ,
            "TMPDIR": str(folder),
        }  # files left by a kill are removed with the demo's
        self.port = free_ports(count)
        self.addresses = [f"127.0.0.1:{self.port + number}" for number in range(count)]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Return when the cluster is ready. Raises `Failed` if the process ends before that."""
        command = [
            sys.executable,
            "-m",
            "rewrite_cli.cli",
            "node",
            "start",
            "--members",
            str(self.count),
            "--port",
            str(self.port),
            "--url",
            self._url,
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env=self._environment,
                preexec_fn=die_with_parent,
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == "ready":
                return
        raise Failed(
            f"the members did not start: {self._log.read_text(errors='replace').strip()[-600:]}"
        )

    def kill(self) -> None:
        """SIGKILL to all members and agents at once."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """A clean shutdown."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None


def free_ports(count: int) -> int:
    """The first of `count` consecutive ports on which no process listens. Raises `Failed` if there
    are none from 5701 to 6700."""
    for first in range(5701, 6701, count):
        if all(_is_free(first + number) for number in range(count)):
            return first
    raise Failed("no free ports between 5701 and 6701")


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def play_cluster(
    stream: flights.Stream, url: str, folder: Path, kills: int, count: int, clock: Clock, tell: Tell
) -> Report:
    """The cluster demo, from the first flight to the report."""
    members = Members(url, count, folder)
    playback = Playback(stream, folder, clock, "cluster", ",".join(members.addresses))
    report = Report.of(f"{count} Hazelcast members, durability always", stream, playback.commits)

    def watch(records: int) -> None:
        tell(f"{records:,} of {stream.records:,} changes acknowledged", step=False)

    def look(after: str) -> None:
        tell(f"starting {count} members after {after}")
        start = playback.now()
        members.start()
        client = connect(members.addresses)
        try:
            found = {
                name: client.get_map(name).blocking().entry_set()
                for name in (flights.AIRCRAFT, flights.CANCELLED)
            }
            maps = {
                name: [(key, value.loads()) for key, value in entries]
                for name, entries in found.items()
            }
            end = playback.now()
        finally:
            client.shutdown()
        playback.timeline.spans.append((after, start, end))
        report.looks.append(Reopened(after, end - start, playback.compare(maps)))

    try:
        tell(f"starting {count} members")
        members.start()
        for number in range(kills):
            tell("playing the flights")
            playback.run((number + 1) / (kills + 1), members.kill, watch)
            report.kills.append(sum(playback.records))
            look("kill -9")
        tell("playing the flights")
        playback.run(1, None, watch)
        members.kill()
        report.storage.append(measure_bytes(url, "log"))
        look("the last flight")
        members.kill()
        tell("rewriting: the newest of every key becomes a snapshot")
        archive_and_rewrite(url, report, playback)
        look("rewrite and prune")
    finally:
        members.kill()
    return finish(report, playback)


def archive_and_rewrite(url: str, report: Report, playback: Playback) -> None:
    """Archive and rewrite the log as the command line does, while no process writes it."""
    from imap_wal.retention.archive import archive_offline

    start = playback.now()
    with Selection(location(url)).open() as (context, clusters):
        for view in clusters:
            for node in view.all_nodes:
                archive_offline(
                    context, Identity(view.namespace, view.cluster, node.name), node.folder
                )
    middle = playback.now()
    report.storage.append(measure_bytes(url, "archived"))
    rewrite_and_prune(url)
    playback.timeline.phases += [("archive", start, middle), ("rewrite", middle, playback.now())]
    report.storage.append(measure_bytes(url, "rewritten"))
