"""The text of the metrics, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from imap_wal.agent.monitoring.metrics import METRICS
from imap_wal.agent.monitoring.metrics.metric import AgentMetric, Value
from imap_wal.agent.monitoring.snapshot import AgentSnapshot
from imap_wal.histogram import Distribution
from storage_backends.extras import needs

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


class Exporter(Collector):
    """Makes the text from a snapshot that `observe` returns. For one thread."""

    def __init__(self, observe: Callable[[], AgentSnapshot]) -> None:
        self._observe = observe
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
        for metric in METRICS:
            value = metric.value(now)
            if value is not None:
                yield _family(metric, value)


def _family(metric: AgentMetric, value: Value) -> Metric:
    if metric.kind == "info":
        assert isinstance(value, Mapping)
        texts = {name: str(text) for name, text in value.items()}
        return InfoMetricFamily(metric.name.removesuffix("_info"), metric.help, value=texts)
    if isinstance(value, Distribution):
        return _histogram(metric, value)
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    if not isinstance(value, Mapping):
        return kind(metric.name, metric.help, value=value)
    family = kind(metric.name, metric.help, labels=[metric.label])
    for label, number in value.items():
        family.add_metric([label], float(number))
    return family


def _histogram(metric: AgentMetric, value: Distribution) -> Metric:
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
