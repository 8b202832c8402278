"""The pages of an agent over HTTP."""

from __future__ import annotations

from collections.abc import Callable

from imap_wal.agent.access.http_address import HttpAddress
from imap_wal.agent.monitoring.exporter import (
    CONTENT_TYPE,
    OPENMETRICS,
    OPENMETRICS_TYPE,
    Exporter,
)
from imap_wal.agent.monitoring.health import why_dead, why_not_ready
from imap_wal.agent.monitoring.listener import HttpAnswer, HttpListener, HttpPage
from imap_wal.agent.monitoring.snapshot import AgentSnapshot
from imap_wal.agent.monitoring.status.page import EVENTS, HEADERS, HTML, StatusPage
from imap_wal.clock import Clock


def listener(address: str, observe: Callable[[], AgentSnapshot], clock: Clock) -> HttpListener:
    """Serves the status page, `/metrics`, `/livez` and `/readyz`. `observe` is called on the
    listener's thread. Raises `InvalidSetting` if `address` is not valid."""
    exporter, status = Exporter(observe), StatusPage(observe, clock)
    pages = {
        "/": HttpPage(
            lambda: HttpAnswer(status.html(), content_type=HTML, headers=HEADERS), kept=True
        ),
        "/events": HttpPage(lambda: HttpAnswer(status.event(), content_type=EVENTS), kept=True),
        "/metrics": HttpPage(
            lambda: HttpAnswer(exporter.text(), content_type=CONTENT_TYPE),
            kept=True,
            others={
                OPENMETRICS: HttpPage(
                    lambda: HttpAnswer(exporter.openmetrics(), content_type=OPENMETRICS_TYPE),
                    kept=True,
                )
            },
        ),
        "/livez": HttpPage(lambda: _health(why_dead(observe()))),
        "/readyz": HttpPage(lambda: _health(why_not_ready(observe()))),
    }
    return HttpListener(HttpAddress.parse(address), pages, clock)


def _health(why: str) -> HttpAnswer:
    """`why`: the reason for a bad state; "" if there is none."""
    return HttpAnswer(f"{why or 'ok'}\n".encode(), 503 if why else 200)
