"""Agents whose segments are on disks of their own: a shared root, and a folder for each node that
no other agent is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from imap_wal.agent.config import AgentConfig
from tests.kit.keyed_agents import free_port


def own_disk_config(
    folder: Path,
    node: str,
    *,
    port: int = 0,
    root: str = "",
    upload_interval_s: float = 1000,
    tail_timeout_s: float = 20,
    start_policy: str = "partial",
    lifetime_timeout_s: float = 0,
    changes: dict[str, Any] | None = None,
    **log: Any,
) -> AgentConfig:
    """An agent of node `node`. Its disk is `folder/disk-{node}`. Nothing is uploaded by itself
    before a clean stop, unless `upload_interval_s` says otherwise."""
    return AgentConfig.from_mapping(
        {
            "url": root or f"file://{folder}/root",
            "wal_dir": f"file://{folder}/disk-{node}",
            "wal_dir_is_local": True,
            "tail_endpoint": f"tcp://127.0.0.1:{port or free_port()}",
            "tail_timeout_s": tail_timeout_s,
            "upload_interval_s": upload_interval_s,
            "cluster": "c",
            "node": node,
            "endpoint": f"ipc://{folder}/{node}.sock",
            "lifetime_timeout_s": lifetime_timeout_s,
            "start_policy": start_policy,
            "reserve_bytes": 0,
            "log": {"segment_bytes": 64 * 1024, "preallocate": False, **log},
            **(changes or {}),
        }
    )
