"""On the page about monitoring, `<!-- metrics -->` becomes tables of all metrics of an agent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from imap_wal.agent.monitoring.metrics import (
    AGENT,
    DISKS,
    MAINTENANCE,
    MEMBERS,
    METRICS,
    READING,
    WRITING,
    AgentMetric,
)

MARK = "<!-- metrics -->"
GROUPS: dict[str, tuple[AgentMetric, ...]] = {
    "Health": AGENT,
    "Writing": WRITING,
    "Maintenance": MAINTENANCE,
    "Disks": DISKS,
    "Members": MEMBERS,
    "Reading": READING,
}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri != "monitoring.md":
        return markdown
    before, _, after = markdown.partition(MARK)
    if not after:
        raise ValueError(f"docs/monitoring.md has no {MARK}")
    if sum(map(len, GROUPS.values())) != len(METRICS):
        raise ValueError("docs/hooks/metrics.py lacks a group of metrics")
    return before + "\n".join(_lines()) + after


def _lines() -> Iterator[str]:
    for title, metrics in GROUPS.items():
        yield from (f"### {title}", "", "| metric | type | meaning |", "|---|---|---|")
        yield from (f"| `{metric.name}` | {metric.kind} | {metric.help} |" for metric in metrics)
        yield ""
