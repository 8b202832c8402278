"""A web application of asyncio with maps: the one of the documentation, driven as a server does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import imap_wal
from tests.kit.pages import titled

PAGE = Path(__file__).parents[2] / "docs/how-to/asyncio.md"
REQUESTS = 200


async def get(app: Any, path: str) -> tuple[int, bytes]:
    """The status and the body."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET",
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"",
        "root_path": "", "headers": [], "client": None, "server": None,
    }  # fmt: skip
    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


async def played(app: Any) -> list[tuple[int, bytes]]:
    """The answers to many requests at a time, between the start and the end of the application."""
    inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    outbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    running = asyncio.create_task(app({"type": "lifespan"}, inbox.get, outbox.put))
    await inbox.put({"type": "lifespan.startup"})
    assert (await outbox.get())["type"] == "lifespan.startup.complete"
    answers = await asyncio.gather(*(get(app, "/home") for _ in range(REQUESTS)))
    await inbox.put({"type": "lifespan.shutdown"})
    assert (await outbox.get())["type"] == "lifespan.shutdown.complete"
    await running
    return answers


def test_requests_of_an_asyncio_application_lose_no_change(tmp_path: Path) -> None:
    text = titled(PAGE)["app.py"].replace("/var/lib/app/log", str(tmp_path / "log"))
    module: dict[str, Any] = {"__name__": "app"}
    exec(compile(text, "app.py", "exec"), module)
    answers = asyncio.run(played(module["app"]))
    assert {status for status, _ in answers} == {200}
    counts = sorted(int(body.rpartition(b":")[2].strip(b"}")) for _, body in answers)
    assert counts == list(range(1, REQUESTS + 1))
    with imap_wal.open(tmp_path / "log") as store:
        hits = store.map("hits", key=str, value=int)
        assert hits["home"] == REQUESTS
