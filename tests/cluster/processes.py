"""Real members and real agents, each in its own process, which ends with the test.

Agent     `imap-wal agent` beside a member: start, kill, freeze, statistics
Member    a JVM with TestMember.java: start, kill, leave, questions on its standard input
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rewrite_cli.local_cluster import jars
from rewrite_cli.local_cluster.launcher import JVM_FLAGS, ask_stat
from tests.cluster.forks import COMMAND, SERVER, Forked
from tests.cluster.waiting import Ended, until
from tests.kit.ports import free_ports

ROOT = Path(__file__).parents[2]
QUICK_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-XX:-UsePerfData")
TO_STDERR = ("-Xlog:disable", "-Xlog:all=warning:stderr")
"""Warnings of the JVM; standard output is for answers."""
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Child:
    """A process, its log, and the signals it is sent."""

    group: Path | None = None
    """The control group of its process; None: that of this process."""

    def __init__(self, name: str, log: Path) -> None:
        self.name, self.log = name, log
        self.process: subprocess.Popen[str] | Forked | None = None

    def spawn(self, command: Sequence[str], *, talks: bool = False) -> subprocess.Popen[str]:
        """With `talks`, input and output are pipes, a line at a time. Otherwise the process gets no
        input, and its output is written to the log."""
        assert not self.running, f"{self.name} runs already"
        pipe = subprocess.PIPE if talks else None
        with self.log.open("ab") as log:
            # The kernel sends the death signal when the thread that forked ends. So the thread that
            # runs the tests starts all children.
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=pipe or subprocess.DEVNULL,
                stdout=pipe or log,
                stderr=log,
                text=True,
                bufsize=1,
                preexec_fn=_die_with_parent,
            )
        self._started(process)
        return process

    def _started(self, process: subprocess.Popen[str] | Forked) -> None:
        self.process = process
        if self.group is not None:
            (self.group / "cgroup.procs").write_text(str(process.pid))

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL; the process has ended when this returns."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        self._reap(30)

    def stop(self, seconds: float = 30) -> int:
        """Send SIGTERM; return the exit code."""
        self.send(signal.SIGTERM)
        return self._reap(seconds)

    def _reap(self, seconds: float) -> int:
        if self.process is None:
            return 0
        code = self.process.wait(seconds)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        return code

    def check(self) -> None:
        if not self.running:
            raise Ended(f"{self.name} ended: {self.last_words()}")

    def last_words(self, lines: int = 12) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Agent(Child):
    """`imap-wal agent` of one node. `settings` are those of its [log] section; `module` replaces
    the command, for agents that misbehave. `defect`: see `tests.nemesis.defects`. Without `forked`
    it has an interpreter of its own, as at a user's; a fork starts with a tenth of the work.
    `own_disk`: its segments are in a folder that no other agent uses. With
    `lifetime_timeout_s` 0 a cluster that is started does not wait for the one before it, nor for
    other nodes."""

    def __init__(
        self,
        folder: Path,
        node: str,
        url: str,
        *,
        cluster: str = "dev",
        clock_offset_ms: int = 0,
        endpoint: str = "",
        lifetime_timeout_s: float = 0,
        restore_at_start: bool = True,
        own_disk: bool = False,
        forked: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(f"agent {node}", folder / f"{node}.log")
        self._forked = forked
        self.defect = ""
        self.node, self.url, self.cluster = node, url, cluster
        self.endpoint = endpoint or f"ipc://{folder}/{node}.sock"
        self.config = folder / f"{node}.toml"
        top = {
            "url": url,
            "cluster": cluster,
            "node": node,
            "endpoint": self.endpoint,
            "clock_offset_ms": clock_offset_ms,
            "lifetime_timeout_s": lifetime_timeout_s,
            "restore_at_start": restore_at_start,
            "start_policy": "wait-all" if lifetime_timeout_s else "partial",
        }
        if own_disk:
            top |= {
                "wal_dir": (folder / f"disk-{node}").as_uri(),
                "wal_dir_is_local": True,
                "tail_endpoint": f"tcp://127.0.0.1:{free_ports(1)[0]}",
                "tail_timeout_s": 2,
                "upload_interval_s": 1000,
            }
        lines = [f"{key} = {json.dumps(value)}" for key, value in top.items()]
        self.config.write_text(
            "\n".join(
                [
                    *lines,
                    "[log]",
                    *(f"{key} = {json.dumps(value)}" for key, value in settings.items()),
                    "",
                ]
            )
        )

    def configure(self, **given: Any) -> None:
        """Other values of settings that the file has, from the next launch on."""
        text = self.config.read_text()
        for key, value in given.items():
            text = re.sub(rf"(?m)^{key} = .*$", f"{key} = {json.dumps(value)}", text)
        self.config.write_text(text)

    def launch(self, module: str = "") -> None:
        what = [module] if module else [COMMAND, "agent", "--config"]
        if self.defect:
            what = ["tests.nemesis.defects", self.defect]
        what.append(str(self.config))
        if self._forked:
            assert not self.running, f"{self.name} runs already"
            self._started(SERVER.fork(what[0], what[1:], self.log))
        else:
            self.spawn([sys.executable, "-m", *what])

    def start(self, module: str = "") -> None:
        self.launch(module)
        self.wait()

    def wait(self, seconds: float = 60) -> None:
        """Wait until it reports that it is healthy."""
        until(
            f"{self.name} is healthy",
            lambda: self.check() or (self.stat() or {}).get("healthy"),
            seconds,
        )

    def stat(self, timeout_ms: int = 1000) -> dict[str, Any] | None:
        return ask_stat(self.endpoint, timeout_ms)

    def writers(self) -> frozenset[str]:
        """UUIDs of the members that have said hello to this agent, and may append to its log."""
        stat = self.stat(5000)
        assert stat is not None
        return frozenset(each["member"] for each in stat["members"] if each["session"])

    def reads(self) -> int:
        stat = self.stat(5000)
        assert stat is not None
        return int(stat["reads"])

    def bytes_read(self) -> int:
        """What the process has read from files since it began."""
        fields = dict(
            line.split(": ") for line in Path(f"/proc/{self.pid}/io").read_text().splitlines()
        )
        return int(fields["rchar"])


class Member(Child):
    """A member in its own JVM."""

    def __init__(
        self,
        folder: Path,
        name: str,
        port: int,
        config: Mapping[str, Any],
        classpath: str,
        options: Sequence[str],
    ) -> None:
        super().__init__(name, folder / f"{name}.log")
        self.port, self.node = port, 0  # its number in the network
        self.address = self.announced = f"127.0.0.1:{port}"
        yaml = folder / f"{name}.yaml"
        yaml.write_text(json.dumps(config))  # JSON is YAML
        archive = archive_of(classpath)
        self._command = [
            jars.java(),
            *JVM_FLAGS,
            *QUICK_JVM,
            *TO_STDERR,
            *([f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []),
            *options,
            f"-Dhazelcast.config={yaml}",
            "-cp",
            classpath,
            "TestMember",
        ]
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._asking = threading.Lock()

    def launch(self) -> None:
        process = self.spawn(self._command, talks=True)
        self._answers = answers = queue.SimpleQueue()

        def listen() -> None:
            assert process.stdout is not None
            with contextlib.suppress(ValueError, OSError):
                for line in process.stdout:
                    answers.put(line.rstrip("\n"))
            answers.put("! the member ended")

        threading.Thread(target=listen, daemon=True).start()

    def wait(self, seconds: float = 90) -> None:
        """Wait until it has joined or begun a cluster."""
        self._answer(seconds)

    def _answer(self, seconds: float) -> Any:
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise AssertionError(
                f"{self.name} did not answer within {seconds} s: {self.last_words()}"
            ) from None
        if line.startswith("!"):
            raise MemberError(f"{self.name}: {line[1:].strip()}")
        return json.loads(line.removeprefix("= "))

    def ask(self, *question: str, seconds: float = 60) -> Any:
        """One line of TestMember.java's; its answer, `MemberError` if that is an exception."""
        with self._asking:
            assert self.process is not None
            assert self.process.stdin is not None
            self.process.stdin.write("\t".join(question) + "\n")
            self.process.stdin.flush()
            return self._answer(seconds)

    def leave(self, seconds: float = 60) -> None:
        """Shut down gracefully: partitions are migrated first."""
        self.ask("leave", seconds=seconds)
        self._reap(seconds)


class MemberError(Exception):
    """The exception that a member answered with."""


def archive_of(classpath: str) -> Path:
    """The archive of members with this class path, or one that begins with it: beside the tests'
    classes."""
    return Path(classpath.split(os.pathsep)[1]).with_suffix(".jsa")
