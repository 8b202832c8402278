"""Sends the spans of an agent to a collector by OTLP (protobuf over HTTP), in a thread of
OpenTelemetry's library. The usual variables OTEL_… apply.

    ended ─▶ few enough? ─▶ sampler ─▶ queue of 2,048 ─▶ collector
                                          full: dropped
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from imap_wal.clock import Clock
from imap_wal.errors import InvalidSetting
from imap_wal.version import VERSION
from storage_backends.extras import needs

with needs("otel"):
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import Status, StatusCode, set_span_in_context

SERVICE = "imap-wal-agent"
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"
EVERY_S = 0.1
"""Of the spans with one name, at most one is sent in this time, plus all that took at least this
long or failed."""
STOP_S = 2.0
"""How long a stop waits until the last spans are sent."""


class OtlpTracer:
    """An `imap_wal.tracing.Tracer`. `endpoint`: the base URL of the collector; "": as the variables
    say. `resource`: attributes of this agent, besides `service.name`. Raises `InvalidSetting` for
    another protocol than OTLP over HTTP."""

    def __init__(
        self,
        endpoint: str,
        resource: Mapping[str, str],
        clock: Clock,
        environment: Mapping[str, str],
    ) -> None:
        protocol = next((environment[name] for name in PROTOCOLS if environment.get(name)), "")
        if protocol not in ("", PROTOCOL):
            raise InvalidSetting(f"traces are sent by OTLP with {PROTOCOL}, not with {protocol}")
        own = {SERVICE_NAME: SERVICE} if not environment.get("OTEL_SERVICE_NAME") else {}
        self._provider = TracerProvider(
            resource=Resource.create({**own, "service.version": VERSION, **resource})
        )
        url = f"{endpoint.rstrip('/')}/v1/traces" if endpoint else None
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(url)))
        self._tracer = self._provider.get_tracer("imap_wal", VERSION)
        self._clock = clock
        self._kept_at: dict[str, float] = {}

    def ended(
        self,
        name: str,
        seconds: float,
        facts: Mapping[str, int],
        parts: Sequence[tuple[str, float]] = (),
        error: str = "",
    ) -> str:
        now = self._clock.monotonic()
        if seconds < EVERY_S and not error and now - self._kept_at.get(name, -EVERY_S) < EVERY_S:
            return ""
        self._kept_at[name] = now
        end = self._clock.now_ms() * 1_000_000
        at = end - int(seconds * 1e9)
        attributes = {f"imap_wal.{key}": value for key, value in facts.items()}
        span = self._tracer.start_span(f"imap_wal {name}", attributes=attributes, start_time=at)
        if not span.is_recording():
            return ""
        inside = set_span_in_context(span)
        for part, took in parts:
            until = at + int(took * 1e9)
            child = self._tracer.start_span(f"imap_wal {part}", context=inside, start_time=at)
            child.end(until)
            at = until
        if error:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(end)
        return f"{span.get_span_context().trace_id:032x}"

    def close(self) -> None:
        """Send the spans that wait. Blocks for at most `STOP_S`."""
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        sending.join(STOP_S)
