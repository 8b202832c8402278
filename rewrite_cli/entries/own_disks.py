"""Reads and checks what is only on the own disks of nodes."""

from __future__ import annotations

from collections.abc import Callable

from imap_wal import layout
from imap_wal.agent.access.keys import KeyPair
from imap_wal.clock import SystemClock
from imap_wal.inspect.own_disks import DiskTail, asked, own_disk
from imap_wal.inspect.running_writer import writer_of
from imap_wal.placement.router import Tails, Unasked
from imap_wal.read.state import ClusterState, NodeState
from rewrite_cli.console import output
from rewrite_cli.console.check import OK, PROBLEM, Check
from storage_backends import SegmentStore
from storage_backends.extras import MissingExtra, needs

UPLOAD_LATE_S = 600
"""As in the rule of the alert ImapWalUploadLate."""


def tail_check(
    store: SegmentStore, view: ClusterState, node: NodeState, key: KeyPair | None
) -> Check:
    """What is only on a node's own disk. While its agent runs, that is normal for some minutes."""
    now_ms, name = SystemClock().now_ms(), f"cluster {view}"
    disk = own_disk(node, now_ms)
    tail, runs = tail_of(store, node, key, now_ms), _is_locked(store, node)
    seconds = disk.seconds if tail is None else tail.seconds
    size = "" if tail is None else f", at most {output.size(tail.bytes)},"
    age = "" if seconds is None else f", for {output.duration(seconds)} at most"
    summary = (
        f"segments {disk.first} to {disk.last} of node {node.name!r}{size} are on its own disk "
        f"alone{age}"
    )
    if tail is None and runs is False:
        advice = "start its agent, with its disk: docs/how-to/local-disks.md"
        return Check(name, PROBLEM, f"{summary}; its agent does not run", advice)
    recent = bool(runs) if seconds is None else seconds < UPLOAD_LATE_S
    if recent:
        return Check(name, OK, summary)
    if tail is None:
        summary += f"; its agent does not answer at {node.manifest.address}"
    advice = "`imap-wal doctor --agent` says why they are not uploaded; or start its agent"
    return Check(name, PROBLEM, summary, advice)


def tails_with(key: KeyPair | None) -> Callable[[SegmentStore], Tails]:
    """From a root: how to read the own disks of its nodes, from their agents. `key`: the key with
    which agents admit this process; None: they require no keys."""

    def tails(root: SegmentStore) -> Tails:
        try:
            with needs("agent"):
                from imap_wal.agent.own_disk.tails import AgentTails
        except MissingExtra as error:
            return Unasked(root, f"agents cannot be asked: {error}")
        return AgentTails(root, key, SystemClock())

    return tails


def tail_of(
    store: SegmentStore, node: NodeState, key: KeyPair | None, now_ms: int
) -> DiskTail | None:
    """What the node's agent reports about its disk; None: it does not answer this command. `key`:
    as for `tails_with`."""
    tails = tails_with(key)(store)
    try:
        return asked(node, tails, now_ms)
    finally:
        tails.close()


def _is_locked(store: SegmentStore, node: NodeState) -> bool | None:
    """Whether a process writes the log of a node; None: the storage does not show it."""
    if not store.capabilities.locks or not store.exists(layout.lock_path(node.folder)):
        return None
    return writer_of(store, node.folder, "imap-wal doctor") is not None
