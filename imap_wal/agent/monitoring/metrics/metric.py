"""What a metric of an agent is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from imap_wal.agent.monitoring.snapshot import AgentSnapshot
from imap_wal.histogram import Distribution

Value: TypeAlias = float | Mapping[str, float] | Distribution | Mapping[str, str] | None
"""A number, numbers by the value of `label`, a distribution, or the labels of an info. None: not
known, so the metric is left out."""


@dataclass(frozen=True, slots=True)
class AgentMetric:
    """`name`: as it is exported, without the suffixes of a histogram. `label`: the name of the only
    label of its values, if there are several."""

    name: str
    kind: Literal["counter", "gauge", "histogram", "info"]
    help: str
    value: Callable[[AgentSnapshot], Value]
    label: str = ""
