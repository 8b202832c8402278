"""Peers of an agent that do what no plug-in does, over plain sockets, and real agents to attack."""

from __future__ import annotations

import errno
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgpack

from imap_wal.agent.config import AgentConfig
from imap_wal.agent.transport.router import parts
from tests.agent.harness import identified
from tests.support import eventually

GREETING = bytes([0xFF, 0, 0, 0, 0, 0, 0, 0, 0, 0x7F, 3, 0]) + b"NULL".ljust(20, b"\0") + bytes(32)


def connected(endpoint: str) -> socket.socket:
    """A plain connection; OSError if it is refused."""
    if endpoint.startswith("ipc://"):
        found = socket.socket(socket.AF_UNIX)
        address: Any = endpoint.removeprefix("ipc://")
    else:
        found = socket.socket()
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        address = (host, int(port))
    found.settimeout(5)
    for _ in range(1000):
        try:
            found.connect(address)
        except BlockingIOError:  # the queue of a Unix socket is full
            time.sleep(0.005)
            continue
        return found
    raise TimeoutError(errno.ETIMEDOUT, "the queue stays full")


def frame(body: bytes, flags: int = 0) -> bytes:
    return bytes([flags | 2]) + len(body).to_bytes(8, "big") + body


class RawPeer:
    """Speaks ZMTP, and reads only on request."""

    def __init__(self, endpoint: str, routing_id: bytes = b"") -> None:
        self.socket = connected(endpoint)
        properties = b"".join(
            bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value
            for name, value in ((b"Socket-Type", b"DEALER"), (b"Identity", routing_id))
        )
        self.socket.sendall(GREETING)
        theirs = b""
        while len(theirs) < len(GREETING):  # libzmq refuses a READY sent with the greeting
            theirs += self.socket.recv(len(GREETING) - len(theirs))
        self.socket.sendall(frame(b"\x05READY" + properties, 4))
        # Until the agent has admitted it, libzmq treats a request as a wrong handshake.
        command, size = self._read(2)
        assert (command, self._read(size)[:6]) == (4, b"\x05READY")

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            some = self.socket.recv(size - len(found))
            if not some:
                raise ConnectionError("the agent closed the connection")
            found += some
        return found

    def send(self, *header: Any, payload: bytes = b"") -> None:
        self.socket.sendall(frame(msgpack.packb([*map(identified, header)]), 1) + frame(payload))

    def await_answer(self, kind: bytes) -> None:
        """Read up to an answer of this kind."""
        seen = b""
        while kind not in seen:
            some = self.socket.recv(1 << 16)
            assert some, "the agent closed the connection"
            seen += some

    def answer(self) -> list[Any]:
        """The header of the next answer."""
        (flags,) = self._read(1)
        assert flags in (0, 2), "an answer has one frame"
        return parts(self._read(int.from_bytes(self._read(8 if flags else 1))))[0]

    def ended(self, timeout_s: float = 10) -> bool:
        """Whether the agent closes the connection; reads everything that was sent before."""
        self.socket.settimeout(timeout_s)
        with suppress(ConnectionError):
            try:
                while self.socket.recv(1 << 20):
                    pass
            except TimeoutError:
                return False
        return True

    def close(self) -> None:
        self.socket.close()


class AgentProcess:
    """A real agent, `imap-wal agent`, under a limit of open files."""

    def __init__(self, settings: AgentConfig, folder: Path, files: int) -> None:
        file = folder / f"{settings.node}.toml"
        about = {
            "url": settings.url,
            "cluster": settings.cluster,
            "node": settings.node,
            "endpoint": settings.endpoint,
            "connections_max": settings.connections_max,
            "http_address": settings.http_address,
            "lifetime_timeout_s": 0,
            "start_policy": "partial",
        }
        file.write_text(
            "".join(f"{name} = {json.dumps(value)}\n" for name, value in about.items())
            + f"[log]\nmax_value_bytes = {settings.log.max_value_bytes}\n"
        )
        command = [
            sys.executable,
            "-c",
            "from rewrite_cli.cli import main; main()",
            "agent",
            "--config",
            str(file),
        ]
        self.log = (folder / f"{settings.node}.log").open("w+")
        self.files = files
        self.process = subprocess.Popen(
            command,
            stdout=self.log,
            stderr=self.log,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)),
        )
        try:
            eventually(lambda: self._answers(settings.endpoint), "the agent listens", 120)
        except BaseException:
            self.process.kill()
            raise

    def _answers(self, endpoint: str) -> bool:
        assert self.alive, self.output
        try:
            connected(endpoint).close()
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def output(self) -> str:
        return Path(self.log.name).read_text()

    @property
    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    @property
    def memory(self) -> int:
        """Bytes."""
        return (
            int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
            * resource.getpagesize()
        )

    @property
    def memory_peak(self) -> int:
        """Bytes, since the start."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(30) == 0, self.output
        self.log.close()


@contextmanager
def agent_process(settings: AgentConfig, folder: Path, files: int = 4096) -> Iterator[AgentProcess]:
    """The agent must end with code 0: a crash fails the test."""
    agent = AgentProcess(settings, folder, files)
    try:
        yield agent
        agent.stop()
    finally:
        agent.process.kill()
