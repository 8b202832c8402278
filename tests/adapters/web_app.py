"""A web application in a process of its own: answers the requests that it reads, one a line. Each
line has a path and a cookie; each answer the status, the text and the new cookie, in JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

import imap_wal
from imap_wal.adapters.any_map import MapSource
from imap_wal.adapters.starlette import SessionMiddleware, regenerate_session_id


async def login(request: Request) -> PlainTextResponse:
    regenerate_session_id(request)
    request.session["user"] = request.path_params["user"]
    return PlainTextResponse("welcome")


async def user(request: Request) -> PlainTextResponse:
    return PlainTextResponse(request.session.get("user", "nobody"))


async def logout(request: Request) -> PlainTextResponse:
    request.session.clear()
    return PlainTextResponse("bye")


ROUTES = [Route("/login/{user}", login), Route("/user", user), Route("/logout", logout)]


def app(sessions: MapSource, *routes: Route, **options: Any) -> Starlette:
    middleware = Middleware(SessionMiddleware, sessions=sessions, **options)
    return Starlette(routes=[*ROUTES, *routes], middleware=[middleware])


def serve(answer: Callable[[str], None]) -> None:
    store = imap_wal.connect(sys.argv[1], socket=sys.argv[1] + ".socket")
    with TestClient(app(store.map("sessions"))) as client:
        answer("ready")
        for line in sys.stdin:
            path, cookie = json.loads(line)
            headers = {"Cookie": cookie} if cookie else {}
            response = client.get(path, headers=headers)
            client.cookies.clear()
            cookie = response.headers.get("set-cookie", "").partition(";")[0]
            answer(json.dumps([response.status_code, response.text, cookie]))


if __name__ == "__main__":
    serve(lambda line: print(line, flush=True))
