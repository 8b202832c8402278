"""The script that a pod runs before its member stops."""

from __future__ import annotations

import http.server
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.effort import every

SCRIPT = Path(__file__).parents[2] / "charts/imap-wal/files/wait-until-safe.sh"
HOST = "127.0.57.1"
"""An address of this machine at which nothing else listens."""
SETTLING = (503, "members compare 7 partitions with the log")


@contextmanager
def server(port: int, path: str, answers: list[tuple[int, str]]) -> Iterator[None]:
    """Gives these answers, and the last one again and again."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the name that http.server calls
            code, text = answers.pop(0) if len(answers) > 1 else answers[0]
            self.send_response(code if self.path == path else 404)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer((HOST, port), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        try:
            yield
        finally:
            serving.shutdown()
            thread.join()


def stopped(seconds: int) -> str:
    """Run the script. Returns what it says about a wait that was too long; "": it did not wait so
    long."""
    ended = subprocess.run(
        ["bash", SCRIPT, HOST, str(seconds)], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0
    return ended.stderr


@every(3)
@pytest.mark.parametrize(
    ("member", "agent"),
    [
        ([(503, "unsafe"), (200, "")], [(200, "ok")]),
        ([(200, "")], [SETTLING, (200, "ok")]),
        ([(200, "")], [(503, "the log failed")]),
    ],
    ids=["unsafe for a second", "not settled for a second", "a log that failed"],
)
def test_a_member_stops_when_it_is_safe_and_settled(
    member: list[tuple[int, str]], agent: list[tuple[int, str]]
) -> None:
    with (
        server(5701, "/hazelcast/health/cluster-safe", member),
        server(9413, "/readyz", agent),
    ):
        assert stopped(30) == ""


@every(2)
@pytest.mark.parametrize(
    ("member", "agent"),
    [([(503, "unsafe")], [(200, "ok")]), ([(200, "")], [SETTLING])],
    ids=["unsafe", "not settled"],
)
def test_a_member_does_not_wait_longer_than_allowed(
    member: list[tuple[int, str]], agent: list[tuple[int, str]]
) -> None:
    with (
        server(5701, "/hazelcast/health/cluster-safe", member),
        server(9413, "/readyz", agent),
    ):
        assert "for 2 s" in stopped(2)


def test_a_member_without_an_agent_that_answers_stops() -> None:
    with server(5701, "/hazelcast/health/cluster-safe", [(200, "")]):
        assert stopped(30) == ""
