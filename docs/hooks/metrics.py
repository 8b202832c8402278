"""On the page about monitoring, `<!-- metrics -->` becomes tables of all metrics of an agent, and
`<!-- stream metrics -->` one of those of a server of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from imap_wal.agent.monitoring.metrics import GROUPS, ExportedMetric
from imap_wal.stream.monitoring import STREAM

MARK, STREAM_MARK = "<!-- metrics -->", "<!-- stream metrics -->"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri != "monitoring.md":
        return markdown
    if any(markdown.count(mark) != 1 for mark in (MARK, STREAM_MARK)):
        raise ValueError(f"docs/monitoring.md lacks {MARK} or {STREAM_MARK}")
    groups = "\n".join(line for title in GROUPS for line in _group(title))
    return markdown.replace(MARK, groups).replace(STREAM_MARK, "\n".join(_table(STREAM)))


def _group(title: str) -> Iterator[str]:
    yield from (f"### {title}", "")
    yield from _table(GROUPS[title])


def _table(metrics: Sequence[ExportedMetric[Any]]) -> Iterator[str]:
    yield from ("| metric | type | meaning |", "|---|---|---|")
    yield from (f"| `{metric.name}` | {metric.kind} | {metric.help} |" for metric in metrics)
    yield ""
