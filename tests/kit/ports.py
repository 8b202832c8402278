"""Ports for servers that tests start. A port is not free because it was free a moment ago: it is
kept for this process until its end."""

from __future__ import annotations

import secrets
import socket

HOST = "127.0.0.1"
FIRST, COUNT = 20_000, 12_000
"""Below the range that the kernel uses for outgoing connections."""

_kept: list[socket.socket] = []
"""A socket with a name of its own for each port, which the kernel gives only once, to any process
of this machine, and which ends with the process."""


def free_ports(count: int) -> list[int]:
    """Ports that no process uses, and that no other call of this function returns."""
    found: list[int] = []
    while len(found) < count:
        port = FIRST + secrets.randbelow(COUNT)
        keeper = socket.socket(socket.AF_UNIX)
        try:
            keeper.bind(f"\0imap-wal-tests-{port}")
            with socket.socket() as probe:
                probe.bind((HOST, port))
        except OSError:
            keeper.close()
            continue
        _kept.append(keeper)
        found.append(port)
    return found


def free_port() -> int:
    return free_ports(1)[0]
