"""An HTTP client that sends any bytes."""

from __future__ import annotations

import socket
from dataclasses import dataclass


@dataclass(frozen=True)
class Reply:
    status: int
    body: bytes


def ask(port: int, request: bytes) -> Reply:
    """Send the request, read until the server closes."""
    with socket.create_connection(("127.0.0.1", port), 30) as connected:
        connected.sendall(request)
        found = bytearray()
        while data := connected.recv(65536):
            found += data
    head, _, body = bytes(found).partition(b"\r\n\r\n")
    return Reply(int(head.split()[1]), body)


def get(port: int, path: str) -> Reply:
    return ask(port, f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
