"""Sessions of Starlette and FastAPI in a durable map."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket

import imap_wal
from imap_wal import InvalidSetting
from imap_wal.adapters.starlette import (
    MAX_AGE_S,
    SessionMiddleware,
    regenerate_session_id,
)
from tests.adapters import web_app
from tests.support import FakeClock

ROOT = Path(__file__).parents[2]


class Site:
    """An application with a durable map of sessions, and its browsers."""

    def __init__(self, **options: Any) -> None:
        self.clock = FakeClock()
        self.store = imap_wal.open("memory://", clock=self.clock)
        self.sessions = self.store.map("sessions")
        self.app = web_app.app(lambda: self.sessions, *ROUTES, **options)

    def browser(self) -> TestClient:
        return TestClient(self.app, base_url="https://testserver")


def told(**values: Any) -> Response:
    return Response(json.dumps(values), media_type="application/json")


async def put(request: Request) -> Response:
    request.session.update(request.query_params)
    return told(**request.session)


async def nested(request: Request) -> Response:
    request.session.setdefault("cart", []).append(request.query_params["article"])
    return told(**request.session)


async def typed(request: Request) -> Response:
    request.session["flag"] = request.query_params.get("flag") == "true" or 1
    return told(**request.session)


async def wrong(request: Request) -> Response:
    request.session["cart"] = {"items": [object()]}
    return PlainTextResponse("never")


ROUTES = [
    Route("/put", put), Route("/nested", nested), Route("/typed", typed), Route("/wrong", wrong)
]  # fmt: skip


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.store.close()


def test_a_session_is_kept_and_ends_with_logout(site: Site) -> None:
    browser = site.browser()
    response = browser.get("/user")
    assert (response.text, response.headers.get("set-cookie")) == ("nobody", None)
    assert response.headers["vary"] == "Cookie"
    assert len(site.sessions) == 0
    browser.get("/login/ann")
    assert browser.get("/user").text == "ann"
    assert site.browser().get("/user").text == "nobody"
    former = dict(browser.cookies)
    assert "Max-Age=0" in browser.get("/logout").headers["set-cookie"]
    assert not browser.cookies
    browser.cookies.update(former)
    assert browser.get("/user").text == "nobody"
    assert len(site.sessions) == 0


def test_the_log_never_has_the_id_of_the_cookie(site: Site) -> None:
    browser = site.browser()
    browser.get("/login/ann")
    (key,) = site.sessions
    assert len(browser.cookies["session"]) == 32
    assert browser.cookies["session"] not in f"{key}{site.sessions[key]}"
    assert site.browser().get("/user", headers={"Cookie": f"session={key}"}).text == "nobody"


def test_an_id_that_a_browser_invents_is_not_adopted(site: Site) -> None:
    for id in ("a" * 32, "ü", '"', "x" * 4000):
        browser = TestClient(site.app)
        response = browser.get("/put?a=1", headers={b"cookie": f"session={id}".encode("latin-1")})
        assert f"session={id}" not in response.headers["set-cookie"]
    assert len(site.sessions) == 4


def test_a_login_gives_the_session_a_new_id(site: Site) -> None:
    """Who has planted an id before the login has no session after it."""
    attacker, victim = site.browser(), site.browser()
    attacker.get("/put?cart=tea")
    victim.cookies.update(attacker.cookies)
    victim.get("/login/ann")
    assert victim.cookies["session"] != attacker.cookies["session"]
    assert attacker.get("/user").text == "nobody"
    assert victim.get("/put").json() == {"cart": "tea", "user": "ann"}
    assert len(site.sessions) == 1


def test_changes_inside_of_values_and_of_types_are_stored(site: Site) -> None:
    browser = site.browser()
    browser.get("/nested?article=tea")
    assert browser.get("/nested?article=milk").json() == {"cart": ["tea", "milk"]}
    assert browser.get("/typed").json()["flag"] == 1
    browser.get("/typed?flag=true")
    assert browser.get("/put").json()["flag"] is True


def test_only_use_of_a_session_extends_it(site: Site) -> None:
    browser = site.browser()
    browser.get("/login/ann")
    commits = site.store.statistics.commits.commits
    assert browser.get("/user").headers.get("set-cookie") is None
    assert site.store.statistics.commits.commits == commits  # not at every request
    for _ in range(3):
        site.clock.advance(MAX_AGE_S * 0.8)
        assert f"Max-Age={MAX_AGE_S}" in browser.get("/user").headers["set-cookie"]
    site.clock.advance(MAX_AGE_S + 1)
    assert browser.get("/user").text == "nobody"
    assert len(site.sessions) == 0


def test_a_value_that_cannot_be_stored_fails_the_request(site: Site) -> None:
    browser = site.browser()
    browser.get("/login/ann")
    with pytest.raises(imap_wal.NotSerializable, match=r"session\['cart'\]"):
        browser.get("/wrong")
    assert browser.get("/put").json() == {"user": "ann"}


def test_cookie_has_the_options_of_starlette() -> None:
    options = {
        "session_cookie": "id", "max_age": None, "path": "/app", "same_site": "strict",
        "https_only": True, "domain": "testserver",
    }  # fmt: skip
    site = Site(**options)
    cookie = site.browser().get("/login/ann").headers["set-cookie"]
    name, _, rest = cookie.partition("=")
    assert (name, rest[32:]) == (
        "id", "; Path=/app; HttpOnly; SameSite=strict; Secure; Domain=testserver",
    )  # fmt: skip
    (key,) = site.sessions
    assert site.sessions.ttl(key) == MAX_AGE_S  # it ends, also without Max-Age
    site.store.close()


async def request_of(app: Any, cookie: str) -> list[tuple[bytes, bytes]]:
    """The head of a response. `app`: called with the scope between the load and the response."""
    head: list[tuple[bytes, bytes]] = []

    async def send(message: Any) -> None:
        head.extend(message.get("headers", ()))

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "headers": [(b"cookie", cookie.encode())],
    }
    await app(scope, None, send)
    return head


@pytest.mark.parametrize("kind", ["aopen", "open"])
def test_requests_at_the_same_time_do_not_undo_each_other(tmp_path: Path, kind: str) -> None:
    """Each works on its own copy; a slow one ends after the others."""

    async def main(sessions: Any) -> None:
        async def run(cookie: str, work: Any, meanwhile: Any = None) -> str:
            async def app(scope: Any, receive: Any, send: Any) -> None:
                work(scope["session"], Request(scope))
                if meanwhile is not None:
                    await meanwhile()
                await send({"type": "http.response.start", "status": 200})

            head = await request_of(SessionMiddleware(app, sessions), cookie)
            cookies = [value.decode() for name, value in head if name == b"set-cookie"]
            return cookies[0].partition(";")[0] if cookies else ""

        def login(session: Any, request: Request) -> None:
            regenerate_session_id(request)
            session["user"] = "ann"

        read: list[Any] = []
        cookie = await run("", lambda session, _: session.update(a=1, b=1, c=1))
        first = lambda: run(cookie, lambda session, _: (session.pop("a"), session.update(b=2)))  # noqa: E731
        await run(cookie, lambda session, _: session.update(c=3, d=4), meanwhile=first)
        await run(cookie, lambda session, _: read.append(dict(session)))
        assert read.pop() == {"b": 2, "c": 3, "d": 4}

        logins: list[str] = []

        async def log_in() -> None:
            logins.append(await run(cookie, login))

        late = await run(cookie, lambda session, _: session.update(late=1), meanwhile=log_in)
        assert late == ""  # the browser keeps the cookie of the login
        await run(logins[0], lambda session, _: read.append(dict(session)))
        assert read.pop() == {"b": 2, "c": 3, "d": 4, "user": "ann"}

        log_out = lambda: run(logins[0], lambda session, _: session.clear())  # noqa: E731
        assert await run(logins[0], lambda session, _: session.update(x=1), meanwhile=log_out) == ""
        assert len(sessions) == 0

    async def with_aopen() -> None:
        async with imap_wal.aopen(tmp_path) as store:
            await main(store.map("sessions"))

    if kind == "aopen":
        asyncio.run(with_aopen())
    else:
        with imap_wal.open(tmp_path) as store:
            asyncio.run(main(store.map("sessions")))


class Worker:
    """A process with the application."""

    def __init__(self, log: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.adapters.web_app", str(log)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=dict(os.environ),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout

    def ready(self) -> None:
        assert self._out.readline() == "ready\n"

    def get(self, path: str, cookie: str = "") -> tuple[int, str, str]:
        self._in.write(json.dumps([path, cookie]) + "\n")
        self._in.flush()
        status, text, cookie = json.loads(self._out.readline())
        return status, text, cookie

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._in.close()
        self._out.close()


def test_sessions_survive_kills_of_their_workers(tmp_path: Path) -> None:
    """A login that one worker has answered is seen by the other, which has it after a kill -9."""
    workers = [Worker(tmp_path / "log"), Worker(tmp_path / "log")]
    try:
        for worker in workers:
            worker.ready()
        _, text, cookie = workers[0].get("/login/ann")
        assert text == "welcome"
        assert workers[1].get("/user", cookie)[1] == "ann"
        _, _, other = workers[1].get("/login/bob")
        workers.pop(0).kill()
        assert workers[0].get("/user", cookie)[1] == "ann"
        assert workers[0].get("/user", other)[1] == "bob"
        workers[0].get("/logout", cookie)
    finally:
        for worker in workers:
            worker.kill()
    with imap_wal.open(tmp_path / "log") as store:
        assert list(store.map("sessions").values()) == [{"user": "bob"}]


def test_wrong_uses_are_refused_with_the_reason() -> None:
    for options in ({"max_age": 0}, {"max_age": "1"}, {"same_site": "Lax"}):
        with pytest.raises(InvalidSetting, match=f"{next(iter(options))} is"):
            SessionMiddleware(None, {}, **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match=r"pass store.map\(name\)"):
        TestClient(SessionMiddleware(None, {})).get("/")  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match="SessionMiddleware"):
        regenerate_session_id(Request({"type": "http", "headers": []}))


def test_a_websocket_reads_the_session_and_lifespan_passes(site: Site) -> None:
    started = threading.Event()

    async def hello(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(websocket.session["user"])
        await websocket.close()

    async def lifespan(_: Any) -> Any:
        started.set()
        yield

    browser = site.browser()
    browser.get("/login/ann")
    app = Starlette(
        routes=[WebSocketRoute("/", hello)],
        middleware=[Middleware(SessionMiddleware, sessions=site.sessions)],
        lifespan=asynccontextmanager(lifespan),
    )
    with (
        TestClient(app, cookies=dict(browser.cookies)) as client,
        client.websocket_connect("/") as it,
    ):
        assert started.is_set()
        assert it.receive_text() == "ann"
