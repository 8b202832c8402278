"""A TCP endpoint in front of an agent, which stays open when the agent ends."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def gateway(target: str) -> Iterator[str]:
    """A `tcp://` endpoint in front of an agent's `ipc://` one that accepts connections also while
    the agent does not run, as the port of a restarting container does. It keeps them open until the
    agent serves, and closes them when the agent ends. A process that is being killed may accept a
    connection after it has closed the others; only an agent that serves sends a greeting."""
    path = target.removeprefix("ipc://")
    server = socket.create_server(("127.0.0.1", 0))
    closing = threading.Event()

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def serve(near: socket.socket) -> None:
        while not closing.wait(0.01):
            far = socket.socket(socket.AF_UNIX)
            greeting = b""
            with contextlib.suppress(OSError):
                far.connect(path)
                greeting = far.recv(65536)
            if not greeting:
                far.close()
                continue
            with contextlib.suppress(OSError):
                near.sendall(greeting)
            threading.Thread(target=pump, args=(far, near), daemon=True).start()
            pump(near, far)
            return

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = server.accept()
                threading.Thread(target=serve, args=(near,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
    finally:
        closing.set()
        server.close()
