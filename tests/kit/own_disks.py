"""Agents whose segments are on disks of their own: a shared root, and a folder for each node that
no other agent is given."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from imap_wal.agent.config import AgentConfig
from imap_wal.context import open_context
from imap_wal.entry import KEY, VALUE
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.view import MaterializedView
from imap_wal.settings import Settings
from tests.agent.harness import plugin
from tests.kit.agents import Process
from tests.kit.ports import free_port
from tests.support import eventually

NODES = ("n1", "n2", "n3")


def own_disk_config(
    folder: Path,
    node: str,
    *,
    port: int = 0,
    root: str = "",
    upload_interval_s: float = 1000,
    tail_timeout_s: float = 20,
    changes: dict[str, Any] | None = None,
    **log: Any,
) -> AgentConfig:
    """An agent of node `node`. Its disk is `folder/disk-{node}`. Nothing is uploaded automatically
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
            "lifetime_timeout_s": 0,
            "start_policy": "partial",
            "reserve_bytes": 0,
            "log": {"segment_bytes": 64 * 1024, "preallocate": False, **log},
            **(changes or {}),
        }
    )


def configs(folder: Path, **options: Any) -> dict[str, AgentConfig]:
    return {node: own_disk_config(folder, node, **options) for node in NODES}


def write(settings: dict[str, AgentConfig], count: int = 100) -> dict[str, str]:
    """Changes of one cluster, appended by a member at each agent."""
    written = {}
    for index, (node, config) in enumerate(settings.items()):
        with plugin(config, uuid=f"plugin-{node}", member=f"member-{node}") as member:
            for number in range(count):
                key, value = f"{node}-{number}", f"value {index} {number} {'x' * 1000}"
                assert member.put(**{key: value})[0] == "ack"
                written[key] = value
    return written


def restored(config: AgentConfig, cluster: str = "cluster-2") -> dict[str, str]:
    with plugin(config, cluster_id=cluster, uuid=f"p-{cluster}") as member:
        return member.values()


def until_uploaded(folder: Path, *nodes: str) -> None:
    """Wait until each node has a segment in the root."""
    root = folder / "root"
    eventually(
        lambda: all(list(root.glob(f"*/*/nodes/{node}/wal/*.wal")) for node in nodes), "an upload"
    )


def kill(processes: list[Process]) -> None:
    for each in processes:
        each.end(signal.SIGKILL)


def restored_by_reading(url: str) -> dict[str, str]:
    """What a process that sees the root alone restores."""
    view = MaterializedView(ClusterLog(open_context(url), "default", "c"), Settings())
    try:
        view.catch_up()
        return {
            row[KEY].decode(): (row[VALUE] or b"").decode()
            for rows in view.rows("orders")
            for row in rows
        }
    finally:
        view.close()
