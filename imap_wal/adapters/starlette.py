"""Sessions of web applications with Starlette or FastAPI, in a durable map.

The cookie has a random id, and the map has the data, under the SHA-256 of the id: whoever reads the
log or a backup of it cannot take over a session. An id that is not in the map is never used.

A request works on its own copy. Before the headers of its response are sent, the keys that it has
changed are merged into the stored session, in one atomic change. So requests of one session that
run at the same time do not undo each other, and a request that ends after a logout does not create
the session again.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Literal

from imap_wal.adapters.any_map import AnyMap, MapSource, call, map_of
from imap_wal.clock import Randomness, SystemRandomness
from imap_wal.embedded.durable_map import DELETE, Delete, checked_ttl
from imap_wal.errors import InvalidSetting, NotSerializable
from imap_wal.serializer import MsgpackSerializer
from storage_backends.extras import needs

with needs("starlette"):
    from starlette.datastructures import MutableHeaders
    from starlette.requests import HTTPConnection
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_AGE_S = 14 * 24 * 60 * 60
FRESH = 0.9
"""A session is extended when less than this part of its time is left: not at every request."""


class WebSession(dict[str, Any]):
    """The session of a request: `request.session`. `id`: that of the cookie; "": the session is
    new. `left_s`: its time to live."""

    def __init__(self, id: str = "", stored: dict[str, Any] | None = None, left_s: float = 0):
        super().__init__(stored or {})
        self.id, self.left_s = id, left_s
        self.accessed, self.takes_new_id = bool(self), False
        self._before = self._serialized()

    def mark_accessed(self) -> None:
        """Starlette calls it: the response depends on the cookie."""
        self.accessed = True

    def _serialized(self) -> dict[str, bytes]:
        serialized = {}
        for key, value in self.items():
            try:
                serialized[key] = MsgpackSerializer().dump(value)
            except NotSerializable as error:
                raise error.at(f"session[{key!r}]") from error
        return serialized

    @property
    def is_changed(self) -> bool:
        """Whether the request has changed it, also inside of a value."""
        return self._serialized() != self._before

    def merged(self, stored: dict[str, Any] | None) -> dict[str, Any]:
        """The stored session with what this request has set and deleted."""
        before, after = self._before, self._serialized()
        mine = {key: self[key] for key in after if after[key] != before.get(key)}
        others = {
            key: value for key, value in (stored or {}).items() if key in after or key not in before
        }
        return {**others, **mine}


def regenerate_session_id(connection: HTTPConnection) -> None:
    """Let the response give the session of this request a new id, and forget the former one. Call
    it when a user logs in: then an attacker who planted or saw the former id cannot use it.

    Raises:
        InvalidSetting: the application has no `SessionMiddleware` of imap_wal.
    """
    session = connection.scope.get("session")
    if not isinstance(session, WebSession):
        raise InvalidSetting(
            "this request has no session of imap_wal: add "
            "imap_wal.adapters.starlette.SessionMiddleware to the application"
        )
    session.takes_new_id = True


class SessionMiddleware:
    """Keeps `request.session` in a durable map; in place of Starlette's own, whose cookie has the
    data. Values are those of `MsgpackSerializer`. A WebSocket can read the session; what it changes
    is not stored, because the response has begun.

    Args:
        app: the application.
        sessions: a map, or a function that returns it, if its store is opened later. One of `aopen`
            is fastest; one of `connect` is for several worker processes.
        session_cookie: the name of the cookie.
        max_age: seconds after which an unused session ends; it may end up to a tenth earlier. None:
            the cookie ends with the browser, the stored session after 14 days without use.
        path: of the cookie.
        same_site: `lax`, `strict` or `none`, of the cookie.
        https_only: the browser sends the cookie only with HTTPS.
        domain: of the cookie.
        randomness: for tests.

    Raises:
        InvalidSetting: `max_age` or `same_site` is not valid; at a request: `sessions` is not a
            map.
        Others: of a request, before its response: those of `DurableMap`.
    """

    def __init__(
        self,
        app: ASGIApp,
        sessions: MapSource,
        session_cookie: str = "session",
        max_age: int | None = MAX_AGE_S,
        path: str = "/",
        same_site: Literal["lax", "strict", "none"] = "lax",
        https_only: bool = False,
        domain: str | None = None,
        randomness: Randomness | None = None,
    ) -> None:
        self._ttl_s = MAX_AGE_S if max_age is None else checked_ttl(max_age, "max_age")
        if same_site not in ("lax", "strict", "none"):
            raise InvalidSetting(f"same_site is {same_site!r}; it takes lax, strict or none")
        self._app, self._sessions, self._cookie = app, sessions, session_cookie
        self._randomness = randomness or SystemRandomness()
        self._lasting = "" if max_age is None else f"; Max-Age={max_age}"
        self._flags = f"; Path={path}; HttpOnly; SameSite={same_site}"
        self._flags += f"{'; Secure' if https_only else ''}{f'; Domain={domain}' if domain else ''}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        sessions = map_of(self._sessions)
        id = HTTPConnection(scope).cookies.get(self._cookie, "")
        session = scope["session"] = await self._loaded(sessions, id)

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                message.setdefault("headers", [])
                headers = MutableHeaders(scope=message)
                cookie = await self._saved(sessions, session)
                if cookie or session.accessed:
                    headers.add_vary_header("Cookie")
                if cookie:
                    headers.append("Set-Cookie", cookie)
            await send(message)

        await self._app(scope, receive, send_with_cookie)

    async def _loaded(self, sessions: AnyMap, id: str) -> WebSession:
        if not id:
            return WebSession()
        try:
            stored, left_s = await call(sessions, lambda it: (it[_key(id)], it.ttl(_key(id))))
        except KeyError:
            return WebSession()
        return WebSession(id, stored, left_s or 0)

    async def _saved(self, sessions: AnyMap, session: WebSession) -> str | None:
        """Store the session. Returns the cookie for the response; None: the browser keeps its own,
        also if another request has ended this session or given it a new id."""
        id, ttl_s = session.id, self._ttl_s
        if not session:
            if id:
                await call(sessions, lambda it: it.pop(_key(id), None))
            return f"{self._cookie}=; Max-Age=0{self._flags}" if id else None
        if session.takes_new_id or not id:
            stored = await call(sessions, lambda it: it.pop(_key(id), None)) if id else None
            new_id = self._randomness.token().hex()
            await call(sessions, lambda it: it.put(_key(new_id), session.merged(stored), ttl_s))
            return self._cookie_of(new_id)
        if session.is_changed:

            def change(stored: dict[str, Any] | None) -> dict[str, Any] | Delete:
                return DELETE if stored is None else session.merged(stored)

            is_stored = await call(sessions, lambda it: it.change(_key(id), change, ttl_s))
        elif session.left_s < FRESH * ttl_s:
            is_stored = await call(sessions, lambda it: it.touch(_key(id), ttl_s))
        else:
            return None
        return self._cookie_of(id) if is_stored else None

    def _cookie_of(self, id: str) -> str:
        return f"{self._cookie}={id}{self._lasting}{self._flags}"


def _key(id: str) -> str:
    return sha256(id.encode("utf-8", "surrogatepass")).hexdigest()
