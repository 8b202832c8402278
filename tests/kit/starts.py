"""Agents that start together."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from imap_wal.agent.config import AgentConfig
from tests.agent.harness import config, plugin, serving

LIFETIME_S = 5
"""Longer than any pause of a busy machine. No test waits for this time."""


def settings_of(folder: Path, *nodes: str, **settings: Any) -> list[AgentConfig]:
    return [config(folder, node, lifetime_timeout_s=LIFETIME_S, **settings) for node in nodes]


def former_cluster(folder: Path, *nodes: str) -> None:
    """A cluster that has used these nodes, and was stopped."""
    with ExitStack() as stack:
        for settings in settings_of(folder, *nodes):
            stack.enter_context(serving(settings))
            member = stack.enter_context(plugin(settings, uuid=f"plugin-{settings.node}"))
            assert member.put(**{settings.node: "1"})[0] == "ack"
