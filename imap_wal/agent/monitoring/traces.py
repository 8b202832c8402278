"""Whether an agent sends traces, and its tracer. The library of OpenTelemetry (extra `otel`) is
imported only if it sends them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import structlog

from imap_wal import tracing
from imap_wal.agent.config import AgentConfig
from imap_wal.clock import SystemClock
from storage_backends.extras import MissingExtra

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")

_log = structlog.get_logger("imap_wal.agent")


def is_asked(environment: Mapping[str, str]) -> bool:
    """Whether the usual variables ask for traces."""
    return (
        any(environment.get(name) for name in ENDPOINTS)
        and environment.get("OTEL_SDK_DISABLED", "").lower() != "true"
        and environment.get("OTEL_TRACES_EXPORTER", "otlp") == "otlp"
    )


@contextmanager
def traced(config: AgentConfig, environment: Mapping[str, str]) -> Iterator[None]:
    """Within this context, spans are sent if `otlp_endpoint` or the environment asks for them.
    Raises `MissingExtra` if the library is missing and `otlp_endpoint` is set. If only variables
    ask for spans, a missing library is a warning: the variables may be meant for other programs."""
    if not config.otlp_endpoint and not is_asked(environment):
        yield
        return
    try:
        from imap_wal.agent.monitoring.otel import OtlpTracer
    except MissingExtra as error:
        if config.otlp_endpoint:
            raise
        _log.warning("no traces are sent, though variables OTEL_… ask for them", error=str(error))
        yield
        return
    resource = {
        "service.instance.id": config.node,
        "imap_wal.namespace": config.namespace,
        "imap_wal.cluster": config.cluster,
    }
    clock = SystemClock(config.clock_offset_ms)
    tracer = OtlpTracer(config.otlp_endpoint, resource, clock, environment)
    tracing.use(tracer)
    try:
        yield
    finally:
        tracing.use(None)
        tracer.close()
