"""The metrics of a process that serves a stream, or waits to serve it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from imap_wal.agent.access.http_address import HttpAddress
from imap_wal.agent.monitoring.listener import HttpListener, HttpPage
from imap_wal.agent.monitoring.metrics import BUILD, ExportedMetric
from imap_wal.agent.monitoring.pages import Exporter, health, metrics_page
from imap_wal.clock import Clock
from imap_wal.stream.progress import ConsumerProgress, StreamProgress
from imap_wal.stream.served import ServedStream
from imap_wal.workers.election import Election


@dataclass(frozen=True, slots=True)
class StreamSnapshot:
    """`progress`: None while the process waits."""

    namespace: str
    name: str
    progress: StreamProgress | None


StreamMetric: TypeAlias = ExportedMetric[StreamSnapshot]
_Numbers: TypeAlias = Mapping[tuple[str, ...], float]
_OF_CONSUMERS = ("consumer", "partition")


def _of_consumers(
    now: StreamSnapshot,
    number_of: Callable[[ConsumerProgress], float | None],
    chosen: Callable[[float, float], float] = max,
) -> _Numbers:
    """`number_of`: None if it is not known. `chosen`: which number counts if several processes
    apply a partition, each to its own database."""
    numbers: dict[tuple[str, ...], float] = {}
    for row in () if now.progress is None else now.progress.consumers:
        of, number = (row.consumer, str(row.partition)), number_of(row)
        if number is not None:
            numbers[of] = chosen(numbers.get(of, number), number)
    return numbers


STREAM: tuple[StreamMetric, ...] = (
    BUILD,
    StreamMetric(
        "imap_wal_stream_info",
        "info",
        "Namespace and name of the stream, as labels.",
        lambda now: {"namespace": now.namespace, "name": now.name},
    ),
    StreamMetric(
        "imap_wal_stream_serving",
        "gauge",
        "1 if this process serves the stream, 0 while it waits for another one. Only the process "
        "that serves has the following metrics.",
        lambda now: float(now.progress is not None),
    ),
    StreamMetric(
        "imap_wal_stream_newest_id",
        "gauge",
        "Id of the newest acknowledged transaction, which is also the number of transactions.",
        lambda now: None if now.progress is None else _newest(now.progress),
        "partition",
    ),
    StreamMetric(
        "imap_wal_stream_consumer_mark",
        "gauge",
        "Id of the last transaction that the consumer has applied, as its process last reported.",
        lambda now: _of_consumers(now, lambda row: row.mark, min),
        _OF_CONSUMERS,
    ),
    StreamMetric(
        "imap_wal_stream_consumer_lag",
        "gauge",
        "Acknowledged transactions that the consumer has not applied.",
        lambda now: _of_consumers(now, lambda row: row.lag),
        _OF_CONSUMERS,
    ),
    StreamMetric(
        "imap_wal_stream_consumer_running",
        "gauge",
        "1 if a process applies this partition; 0 if none does, or the consumer has stopped there.",
        lambda now: _of_consumers(now, lambda row: row.is_running, min),
        _OF_CONSUMERS,
    ),
    StreamMetric(
        "imap_wal_stream_consumer_skipped_total",
        "counter",
        "Transactions that were skipped since the process started the consumer.",
        lambda now: _of_consumers(now, lambda row: row.skipped),
        _OF_CONSUMERS,
    ),
    StreamMetric(
        "imap_wal_stream_consumer_failures_total",
        "counter",
        "Failed attempts to apply transactions since the process started the consumer.",
        lambda now: _of_consumers(now, lambda row: row.failures),
        _OF_CONSUMERS,
    ),
)


def _newest(progress: StreamProgress) -> Mapping[str, float]:
    return {str(partition): float(id) for partition, id in enumerate(progress.newest)}


def listener(
    address: str, namespace: str, name: str, election: Election, clock: Clock
) -> HttpListener:
    """Serves `/metrics`, `/livez` and `/readyz`. Raises `InvalidSetting` if the address is not
    valid."""

    def observe() -> StreamSnapshot:
        return StreamSnapshot(namespace, name, _progress_of(election))

    def waiting() -> str:
        return "" if election.is_serving else "another process serves"

    pages = {
        "/metrics": metrics_page(Exporter(observe, STREAM)),
        "/livez": HttpPage(lambda: health("")),
        "/readyz": HttpPage(lambda: health(waiting())),
    }
    return HttpListener(HttpAddress.parse(address), pages, clock)


def _progress_of(election: Election) -> StreamProgress | None:
    server = election.server
    if server is None or not server.is_serving or not isinstance(server.served, ServedStream):
        return None
    return server.served.progress()
