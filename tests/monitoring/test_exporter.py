"""The text that Prometheus reads, and what counts as healthy, for agents that do not exist."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parsed

from imap_wal.agent.monitoring.health import STUCK_S, why_dead, why_not_ready
from imap_wal.agent.monitoring.metrics import METRICS, ExportedMetric
from imap_wal.agent.monitoring.pages import Exporter
from imap_wal.agent.monitoring.snapshot import AgentSnapshot
from imap_wal.histogram import Histogram
from imap_wal.stream.monitoring import STREAM
from imap_wal.worker import WorkerState
from tests.monitoring.snapshots import snapshot

DEAD = {"imap-wal-connections": WorkerState(alive=False, error="KeyError: 1", failures=1)}


def exported(now: AgentSnapshot) -> dict[str, float]:
    """Sample → value, as in `name{label="value"}`."""
    text = Exporter(lambda: now, METRICS).text().decode()
    return {
        f"{sample.name}{sample.labels}" if sample.labels else sample.name: sample.value
        for family in parsed(text)
        for sample in family.samples
        if sample.name.startswith("imap_wal_")
    }


def test_a_snapshot_is_exported_with_all_its_numbers() -> None:
    found = exported(snapshot())
    for name, value in {
        "imap_wal_appends_total": 100,
        "imap_wal_records_total": 96,
        "imap_wal_written_bytes_total": 1500,
        "imap_wal_ring_fill_ratio": 0.25,
        "imap_wal_errors_total{'code': 'not-ready'}": 5,
        "imap_wal_thread_failures_total{'thread': 'imap-wal-reads'}": 2,
        "imap_wal_sync_seconds_bucket{'le': '0.001'}": 3,
        "imap_wal_sync_seconds_bucket{'le': '0.01'}": 5,
        "imap_wal_sync_seconds_bucket{'le': '+Inf'}": 6,
        "imap_wal_sync_seconds_sum": 0.5,
        "imap_wal_sync_seconds_count": 6,
        "imap_wal_archive_failing": 1,
        "imap_wal_merge_progress_ratio": 0.5,
        "imap_wal_ready": 1,
    }.items():
        assert found[name] == value, name


def test_what_is_not_known_is_not_exported() -> None:
    found = exported(snapshot(lease_age_s=None, merge=None))
    assert "imap_wal_lease_age_seconds" not in found
    assert "imap_wal_merge_progress_ratio" not in found


@pytest.mark.parametrize("metrics", [METRICS, STREAM], ids=["agent", "stream"])
def test_names_follow_the_conventions_of_prometheus(metrics: Sequence[ExportedMetric[Any]]) -> None:
    names = [metric.name for metric in metrics]
    assert len(set(names)) == len(names)
    for metric in metrics:
        assert re.fullmatch(r"imap_wal_[a-z]+(_[a-z]+)*", metric.name), metric
        assert metric.help.endswith("."), metric
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric
        assert (metric.kind == "info") == metric.name.endswith("_info"), metric
        for unit in ("seconds", "bytes", "ratio"):
            if unit in metric.name.split("_"):
                assert metric.name.removesuffix("_total").endswith(unit), metric


@pytest.mark.parametrize(
    ("changes", "dead", "ready"),
    [
        ({}, False, True),
        ({"incarnation": 0, "alive": False}, False, True),
        ({"waiting_seconds": 500.0}, False, True),
        ({"failure": "No space left on device"}, False, False),
        ({"failure": "another process", "fenced": True}, False, False),
        ({"turn_seconds": STUCK_S}, False, False),
        ({"stopping": True}, False, False),
        ({"settling": 3}, False, False),
        ({"settling": 3, "settling_running_s": 300.0}, False, True),
        ({"settling": 3, "settling_running_s": 300.0, "ready_timeout_s": 301.0}, False, False),
        ({"threads": DEAD}, True, False),
        ({"threads": {"imap-wal-reads": WorkerState(True, "OSError: full", 9)}}, False, True),
    ],
    ids=str,
)
def test_health_of_an_agent(changes: dict[str, Any], dead: bool, ready: bool) -> None:
    now = snapshot(**changes)
    assert (bool(why_dead(now)), not why_not_ready(now)) == (dead, ready)
    found = exported(now)
    assert (found["imap_wal_live"], found["imap_wal_ready"]) == (not dead, ready)
    assert "No space" not in why_not_ready(now), "no text of an error"


def test_a_value_at_a_bound_counts_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.add(value)
    found = histogram.snapshot()
    assert (found.counts, found.sum, found.count) == ((2, 2, 1), 7.5, 5)
