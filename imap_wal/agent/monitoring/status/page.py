"""The HTML of the status page, and the event that brings it up to date.

    /         the whole state as HTML: complete without JavaScript
    /events   the same as one server-sent event, then the end: the browser asks again after RETRY_MS

An event stream that ends after each event needs no open connection, so the listener's bounds apply
to it as to every page. Script and style are in the page, and its policy names their hashes: nothing
else is loaded or run. Names in the state come from others: they are escaped in the HTML, and the
script only sets `textContent`. See docs/decisions/0048-metrics-that-cannot-hurt.md.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from html import escape
from importlib.resources import files

from imap_wal.agent.monitoring.snapshot import AgentSnapshot
from imap_wal.agent.monitoring.status.facts import Fact, MergeRate, Section, sections
from imap_wal.clock import Clock

RETRY_MS = 2000
HTML, EVENTS = "text/html; charset=utf-8", "text/event-stream; charset=utf-8"

_FOLDER = files("imap_wal.agent.monitoring.status")
_SCRIPT = _FOLDER.joinpath("status.js").read_text(encoding="utf-8")
_STYLE = _FOLDER.joinpath("status.css").read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


_POLICY = (
    f"default-src 'none'; script-src {_hash(_SCRIPT)}; style-src {_hash(_STYLE)}; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = (
    ("Content-Security-Policy", _POLICY),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)


class StatusPage:
    """For one thread."""

    def __init__(self, observe: Callable[[], AgentSnapshot], clock: Clock) -> None:
        self._observe, self._rate = observe, MergeRate(clock)

    def html(self) -> bytes:
        now = self._observe()
        title = f"{now.node} · {now.namespace}/{now.cluster} · imap-wal"
        shown = "".join(_section(section) for section in self._sections(now))
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
            f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
            f"<header><h1><bdi>{escape(now.node)}</bdi></h1>"
            '<p id="live" role="status">The state when this page was loaded.</p>'
            '<button id="pause" type="button" hidden>Pause</button></header>'
            f'<main id="state">{shown}</main><script>{_SCRIPT}</script></body></html>\n'
        ).encode()

    def event(self) -> bytes:
        state = [asdict(section) for section in self._sections(self._observe())]
        # JSON has no line break, which would end the field.
        return f"retry: {RETRY_MS}\ndata: {json.dumps(state)}\n\n".encode()

    def _sections(self, now: AgentSnapshot) -> list[Section]:
        return sections(now, self._rate.of(now))


def _section(section: Section) -> str:
    rows = "".join(map(_row, section.facts))
    return f"<section><h2>{escape(section.title)}</h2><dl>{rows}</dl></section>"


def _row(fact: Fact) -> str:
    bar = ""
    if fact.part is not None:
        bar = f'<progress max="1" value="{fact.part:.4f}" aria-label="{escape(fact.name)}">'
        bar += "</progress>"
    return (
        f'<div class="{fact.level}"><dt><bdi>{escape(fact.name)}</bdi></dt>'
        f"<dd><bdi>{escape(fact.value)}</bdi>{bar}</dd></div>"
    )
