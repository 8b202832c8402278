"""Services that cannot be reached, or fail: the error names the URL and what to do, and a file is
never called absent."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from imap_wal import placement
from storage_backends import SegmentStore, Unavailable, open_store


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """The port of a server that answers each request in this way, or only closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(65_536)
                    peer.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


CLOSED, FAILED = b"", b"HTTP/1.1 500 Broken\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def store_at(scheme: str, port: int) -> SegmentStore:
    if scheme != "s3":
        return open_store(f"{scheme}://127.0.0.1:{port}/maps")
    client = {"config_kwargs": {"retries": {"max_attempts": 0}}}
    service = {"endpoint_url": f"http://127.0.0.1:{port}", "key": "k" * 8, "secret": "s" * 8}
    return open_store("s3://bucket/maps", {**service, **client})


@pytest.mark.parametrize("operation", ["read", "size", "exists", "list", "folders", "open"])
@pytest.mark.parametrize("scheme", ["http", "webhdfs"])
def test_a_service_that_cannot_be_reached_is_named(scheme: str, operation: str) -> None:
    """No file of it is called absent, and no folder empty."""
    with pytest.raises(Unavailable) as raised:
        _do(operation, scheme, 1)
    said = str(raised.value)
    assert said.count(f"{scheme}://127.0.0.1:1/maps") == 1, said
    assert "cannot be reached" in said
    assert "check that the URL is right" in said


@pytest.mark.parametrize("operation", ["read", "exists", "list"])
def test_a_connection_that_ends_without_an_answer_is_no_answer(operation: str) -> None:
    """The error of aiohttp for it is not an `OSError`."""
    with answering(CLOSED) as port, pytest.raises(Unavailable, match="cannot be reached") as raised:
        _do(operation, "http", port)
    assert f"http://127.0.0.1:{port}/maps" in str(raised.value)


@pytest.mark.parametrize("operation", ["read", "size", "exists"])
def test_a_failing_server_is_no_absent_file(operation: str) -> None:
    """The driver for HTTP reports a missing file for each error of the server."""
    with (
        answering(FAILED) as port,
        pytest.raises(Unavailable, match="the storage failed") as raised,
    ):
        _do(operation, "http", port)
    assert f"http://127.0.0.1:{port}/maps" in str(raised.value)
    assert "500" in str(raised.value)


@pytest.mark.parametrize("operation", ["read", "size", "exists"])
@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "refused: .*check the credentials"),
        (403, "refused: .*check the credentials"),
        (429, "the storage failed"),
    ],
)
def test_a_file_that_a_server_refuses_is_not_absent(operation: str, status: int, said: str) -> None:
    answer = f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with answering(answer.encode()) as port, pytest.raises(Unavailable, match=said):
        _do(operation, "http", port)


@pytest.mark.parametrize("status", [404, 410])
def test_a_file_that_a_server_does_not_have_is_absent(status: int) -> None:
    answer = f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with answering(answer.encode()) as port:
        assert _do("exists", "http", port) is False


@pytest.mark.storage
def test_an_s3_service_that_cannot_be_reached_is_named() -> None:
    """Its library has classes of its own for this."""
    with pytest.raises(Unavailable, match=r"^s3://bucket/maps: .*cannot be reached.*check that"):
        store_at("s3", 1).list("")


def _do(operation: str, scheme: str, port: int) -> object:
    if operation == "open":  # it looks for the place of the segments
        return placement.open_store(f"{scheme}://127.0.0.1:{port}/maps")
    from storage_backends.hdfs import HdfsStore
    from storage_backends.objects import ObjectStore

    url = f"{scheme}://127.0.0.1:{port}/maps"
    # Not opened by `open_store`: that already asks for a file.
    store = HdfsStore(url) if scheme == "webhdfs" else ObjectStore(url)
    if operation in ("list", "folders"):
        return getattr(store, operation)("folder")
    return getattr(store, operation)("folder/file")
