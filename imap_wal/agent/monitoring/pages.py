"""The pages of an agent over HTTP, and the page of metrics of any service."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from typing import Any, Generic

from imap_wal.agent.access.http_address import HttpAddress
from imap_wal.agent.monitoring.health import why_dead, why_not_ready
from imap_wal.agent.monitoring.listener import HttpAnswer, HttpListener, HttpPage
from imap_wal.agent.monitoring.metrics import METRICS, ExportedMetric, S_contra, Value
from imap_wal.agent.monitoring.snapshot import AgentSnapshot
from imap_wal.agent.monitoring.status.facts import Fact, MergeRate, Section, sections
from imap_wal.clock import Clock
from imap_wal.histogram import Distribution
from storage_backends.extras import needs


def listener(address: str, observe: Callable[[], AgentSnapshot], clock: Clock) -> HttpListener:
    """Serves the status page, `/metrics`, `/livez` and `/readyz`. `observe` is called on the
    listener's thread. Raises `InvalidSetting` if `address` is not valid."""
    status = StatusPage(observe, clock)
    pages = {
        "/": HttpPage(
            lambda: HttpAnswer(status.html(), content_type=HTML, headers=HEADERS), kept=True
        ),
        "/events": HttpPage(lambda: HttpAnswer(status.event(), content_type=EVENTS), kept=True),
        "/metrics": metrics_page(Exporter(observe, METRICS)),
        "/livez": HttpPage(lambda: health(why_dead(observe()))),
        "/readyz": HttpPage(lambda: health(why_not_ready(observe()))),
    }
    return HttpListener(HttpAddress.parse(address), pages, clock)


def metrics_page(exporter: Exporter[Any]) -> HttpPage:
    """For Prometheus, in either format."""
    return HttpPage(
        lambda: HttpAnswer(exporter.text(), content_type=CONTENT_TYPE),
        kept=True,
        others={
            OPENMETRICS: HttpPage(
                lambda: HttpAnswer(exporter.openmetrics(), content_type=OPENMETRICS_TYPE),
                kept=True,
            )
        },
    )


def health(why: str) -> HttpAnswer:
    """`why`: the reason for a bad state; "" if there is none."""
    return HttpAnswer(f"{why or 'ok'}\n".encode(), 503 if why else 200)


# The text of the metrics, for Prometheus.

with needs("agent"):
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        InfoMetricFamily,
        Metric,
    )
    from prometheus_client.exposition import generate_latest
    from prometheus_client.openmetrics import exposition as openmetrics
    from prometheus_client.registry import Collector
    from prometheus_client.samples import Exemplar

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"
OPENMETRICS_TYPE = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"


class Exporter(Collector, Generic[S_contra]):
    """Makes the text from a snapshot that `observe` returns. For one thread."""

    def __init__(
        self, observe: Callable[[], S_contra], metrics: Sequence[ExportedMetric[S_contra]]
    ) -> None:
        self._observe, self._metrics = observe, metrics
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """All metrics, in the text format of Prometheus."""
        return generate_latest(self._registry)

    def openmetrics(self) -> bytes:
        """The same in the OpenMetrics format, with exemplars."""
        text: bytes = openmetrics.generate_latest(self._registry)  # type: ignore[no-untyped-call]
        return text

    def collect(self) -> Iterator[Metric]:
        now = self._observe()
        for metric in self._metrics:
            value = metric.value(now)
            if value is not None:
                yield _family(metric, value)


def _family(metric: ExportedMetric[Any], value: Value) -> Metric:
    if metric.kind == "info":
        assert isinstance(value, Mapping)
        texts = {str(name): str(text) for name, text in value.items()}
        return InfoMetricFamily(metric.name.removesuffix("_info"), metric.help, value=texts)
    if isinstance(value, Distribution):
        return _histogram(metric, value)
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    if not isinstance(value, Mapping):
        return kind(metric.name, metric.help, value=value)
    family = kind(metric.name, metric.help, labels=_labels(metric.label))
    for label, number in value.items():
        family.add_metric(_labels(label), float(number))
    return family


def _labels(label: str | tuple[str, ...]) -> list[str]:
    return [label] if isinstance(label, str) else [*label]


def _histogram(metric: ExportedMetric[Any], value: Distribution) -> Metric:
    total = 0
    buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
    for index, count in enumerate(value.counts):
        total += count
        bound = f"{float(value.bounds[index])}" if index < len(value.bounds) else "+Inf"
        exemplar = value.exemplars.get(index)
        if exemplar is None:
            buckets.append((bound, float(total)))
        else:
            shown = Exemplar({"trace_id": exemplar.trace_id}, exemplar.value, exemplar.at_s)
            buckets.append((bound, float(total), shown))
    return HistogramMetricFamily(metric.name, metric.help, buckets=buckets, sum_value=value.sum)


# The HTML of the status page, and the event that brings it up to date.
#
#   /         the whole state as HTML: complete without JavaScript
#   /events   the same as one server-sent event, then the end: the browser asks again after RETRY_MS
#
# An event stream that ends after each event needs no open connection, so the listener's bounds
# apply to it as to every page. Script and style are in the page, and its policy names their hashes:
# nothing else is loaded or run. Names in the state come from others: they are escaped in the HTML,
# and the script only sets `textContent`. See decision 48 in docs/decisions/agents.md.

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
