"""A storage: whether it answers, what it can do, and whether this user may write to it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Generator, Iterator
from pathlib import Path

from imap_wal.agent.access.keys import KeyPair
from imap_wal.agent.membership.liveness import present, signs
from imap_wal.clock import SystemRandomness
from imap_wal.context import Context, open_context
from imap_wal.disposal import ADVICE as LINK_ADVICE
from imap_wal.disposal import EFFECT as LINK_EFFECT
from imap_wal.errors import ImapWalError, LogError
from imap_wal.inspect.inventory import looks_at
from imap_wal.inspect.own_disks import nodes_with_tails
from imap_wal.inspect.running_writer import writer_of
from imap_wal.inspect.verify import is_problem, quick
from imap_wal.layout import parse_sign_path
from imap_wal.manifest.claims import CLOSED_ADVICE
from imap_wal.manifest.roots import why_no_root
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.state import ClusterState
from imap_wal.retention.backfill import ended_backfills
from imap_wal.retention.kept import kept_for_readers
from imap_wal.segment.verdict import INCOMPLETE
from rewrite_cli.console import output
from rewrite_cli.console.check import OK, PROBLEM, WARNING, Check
from rewrite_cli.console.times import iso
from rewrite_cli.doctor.agent import without_agent
from rewrite_cli.entries.own_disks import tail_check
from storage_backends import NotFound, SegmentStore, StorageError, with_url
from storage_backends.location import Location
from storage_backends.ownership import doubts
from storage_backends.paths import links, local_folder

DISK_FREE_MIN = 0.1


def storage_checks(
    url: Location, key: KeyPair | None = None, failed: Collection[str] = ()
) -> Iterator[Check]:
    """Whether the storage answers, its capabilities, and each cluster on it. `key`: to ask
    agents what is only on their own disks. `failed`: nodes whose agents run although their logs
    have failed."""
    try:
        context = open_context(url)
    except (StorageError, ImportError) as error:
        yield Check(
            "storage",
            PROBLEM,
            with_url(url, error),
            "remove the cause that is named, or correct the URL",
        )
        return
    store = context.store
    try:
        yield from _capabilities(store, url)
        yield from _writable(store, url)
        yield from _space(url)
        for doubt in doubts(url):
            yield Check(
                "owner", WARNING, doubt, "all agents and programs of a log must run as one user"
            )
        views = list(looks_at(context))
        if views:
            yield Check("logs", OK, ", ".join(map(str, views)))
        else:
            why = why_no_root(store)
            advice = "nothing has written here yet, or the URL is not the root"
            yield Check("logs", WARNING, f"none under {url}", f"this {why}" if why else advice)
        for view in views:
            yield from log_checks(context, view, key, failed)
    except (StorageError, ImapWalError) as error:
        yield Check(
            "storage",
            PROBLEM,
            str(error),
            "for damage, see `imap-wal verify`; for an unreachable storage, see its own logs",
        )
    finally:
        store.close()


def _capabilities(store: SegmentStore, url: Location) -> Iterator[Check]:
    can = store.capabilities
    names = [name.replace("_", " ") for name in can.__dataclass_fields__ if getattr(can, name)]
    yield Check("storage", OK, f"{url}: {', '.join(names)}")
    if not can.durable_append:
        yield Check(
            "append",
            OK,
            "no: every commit becomes one object; commits are as slow as the storage's creates",
        )
    if not can.exclusive_create:
        yield Check(
            "exclusive create",
            PROBLEM,
            "no: two writers could overwrite each other",
            "use a storage with conditional creates, or one that enforces them",
        )
    if not can.locks:
        yield Check(
            "locks",
            WARNING,
            "no: a second writer of a node is only detected by fencing",
            "start one writer for each node, an agent or an embedded store",
        )


def _writable(store: SegmentStore, url: Location) -> Iterator[Check]:
    """Whether this user may write. Nothing is left on the storage, and nothing is created in a
    local folder or in a place without logs."""
    folder = _folder(url)
    if folder is not None and not folder.exists():
        yield Check(
            "writing",
            WARNING,
            f"not tried: there is no folder {folder}",
            "the first start of an agent or a program creates it; or the URL is wrong",
        )
        return
    if folder is not None:
        allowed = os.access(folder, os.W_OK | os.X_OK)
        wrong = "" if allowed else f"this user may not write to {folder}"
        summary = f"this user may write to {folder}"
    elif not store.folders(""):
        yield Check("writing", OK, "not tried: nothing is here yet, and doctor creates nothing")
        return
    else:
        wrong, summary = _tried(store), "a file was created and deleted"
    if wrong:
        advice = "the log is written here: run doctor as the user of the agent or program"
        yield Check("writing", PROBLEM, wrong, advice)
    else:
        yield Check("writing", OK, summary)


def _tried(store: SegmentStore) -> str:
    """Create a file in the root, and delete it. The error, or ""."""
    path = f".imap-wal-doctor-{SystemRandomness().name()}"
    try:
        try:
            store.create(path, b"imap-wal doctor")
        finally:
            store.delete(path)
    except StorageError as error:
        return str(error)
    return ""


def _folder(url: Location) -> Path | None:
    """The root as a folder of this machine, if it is one."""
    folder = local_folder(url.url)
    return Path(folder) if folder else None


def _space(url: Location) -> Iterator[Check]:
    path = _folder(url)
    if path is None:
        return
    while not path.exists():
        path = path.parent
    usage = shutil.disk_usage(path)
    share = usage.free / usage.total
    text = f"{output.size(usage.free)} free of {output.size(usage.total)}"
    yield Check(
        "disk",
        OK if share >= DISK_FREE_MIN else WARNING,
        text,
        ""
        if share >= DISK_FREE_MIN
        else "a full disk stops every write: archive, rewrite and prune, or free space",
    )


# The logs of one cluster: what `verify --quick` finds, their links, writers and readers.


def log_checks(
    context: Context, view: ClusterState, key: KeyPair | None, failed: Collection[str] = ()
) -> Iterator[Check]:
    """Whether the logs of a cluster are whole and in order, and who writes and reads them.
    `key`, `failed`: as for `storage_checks`."""
    name = f"cluster {view}"
    disks = [tail_check(context.store, view, node, key) for node in nodes_with_tails(view)]
    yield from disks
    findings, _, unordered = quick(context, view)
    damage = [finding for finding in findings if is_problem(finding)]
    for finding in damage:
        yield Check(name, PROBLEM, f"{finding.file}: {finding.what}", finding.advice)
    if view.lost:
        return
    if unordered:
        yield Check(name, OK, f"conflicts of order: {unordered}", "`imap-wal verify` reads all")
    yield from _absent(context, view)
    if view.claims.closed:
        summary = (
            "this log is a repaired copy, and the repair did not find who may claim it: no "
            "Hazelcast cluster can claim it"
        )
        yield Check(name, PROBLEM, summary, CLOSED_ADVICE)
    folders = [f"{node.folder}/{part}" for node in view.all_nodes for part in ("wal", "archive")]
    for link in sorted(set(links(context.store.url, folders).values())):
        yield Check(name, WARNING, f"{link} is a symbolic link: {LINK_EFFECT}", LINK_ADVICE)
    crashed = yield from _writers(context, view, failed)
    total = sum(node.wal_bytes + node.archive_bytes for node in view.all_nodes)
    reader_bytes = yield from _readers(context, view)
    yield from _backfills(context, view)
    if total > 1024**3 and total - reader_bytes > 10 * max(view.snapshot_bytes, 1):
        yield Check(
            name,
            WARNING,
            f"{output.size(total)} of log, {output.size(view.snapshot_bytes)} of snapshots",
            "`imap-wal stat` shows what is dead; `imap-wal rewrite`, then `prune`",
        )
    late = any(check.status != OK for check in disks)
    if not damage and not late and not crashed:
        yield Check(
            name,
            OK,
            f"{output.count(len(view.all_nodes), 'node')}, "
            f"{'epoch' if len(view.all_nodes) == 1 else 'epochs'} "
            f"{', '.join(str(node.manifest.epoch) for node in view.all_nodes)}",
        )


def _absent(context: Context, view: ClusterState) -> Iterator[Check]:
    """Nodes that had members and whose agents ended, while agents of other nodes run."""
    alive = {parse_sign_path(path) for path in signs(context.store, view.folder)}
    running = {*alive, *present(context.store, view.folder)}
    for node in view.all_nodes if running else ():
        if node.manifest.plugins and node.name not in running:
            yield without_agent(f"cluster {view}", node.name)


def _backfills(context: Context, view: ClusterState) -> Iterator[Check]:
    """The files of backfills that ended without success."""
    log = ClusterLog.of(context, view)
    left = [ended for ended in ended_backfills(log, dry_run=True) if not ended.directory]
    if left:
        files = [file for backfill in left for file in backfill.files]
        size = output.size(sum(file.size for file in files))
        summary = f"{output.count(len(left), 'backfill')} ended without success and left "
        nodes = output.names([backfill.node for backfill in left])
        yield Check(
            f"cluster {view}",
            WARNING,
            f"{summary}{output.count(len(files), 'file')}, {size}: {nodes}",
            "`imap-wal prune` removes them",
        )


def _writers(
    context: Context, view: ClusterState, failed: Collection[str]
) -> Generator[Check, None, list[str]]:
    """Who writes the nodes' logs. Returns the nodes that were not closed and have no writer."""
    name = f"cluster {view}"
    returned, crashed = view.returned_nodes, []
    for node in view.all_nodes:
        if node.name in returned:
            yield Check(
                name,
                WARNING,
                f"{node.folder} has the log of node {node.name!r} again, which was forgotten: it "
                "is not read, and no process can write it",
                "move this folder away; then a new log can begin under this name",
            )
    for node in view.all_nodes:
        if node.manifest.clean or node.name in returned or not context.store.capabilities.locks:
            continue
        writer = writer_of(context.store, node.folder, "imap-wal doctor")
        if writer is None and node.name in failed:
            summary = (
                f'node {node.name!r}: its agent runs, and its log has failed (see line "agent")'
            )
            yield Check(name, PROBLEM, summary, "do not start another agent of this node")
        elif writer is None:
            crashed.append(node.name)
        else:
            yield Check(name, OK, f"node {node.name!r} is being written by {writer}")
    if crashed:
        yield Check(
            name,
            WARNING,
            f"no process has {', '.join(map(repr, crashed))} open, and they were not closed: a "
            "crash or kill, or the log of a running agent has failed",
            "if an agent runs, see `imap-wal doctor --agent`; otherwise the next start recovers "
            f"them, and cuts off {INCOMPLETE}",
        )
    return crashed


def _readers(context: Context, view: ClusterState) -> Generator[Check, None, int]:
    """Readers outside of the cluster, for which files are kept. Returns how much of the log is only
    there for them."""
    name = f"readers of {view}"
    try:
        readers = kept_for_readers(ClusterLog.of(context, view))
    except (LogError, NotFound):
        return 0  # reported above
    for reader in readers:
        who = f"reader {reader.reader!r}"
        if reader.begins_ms is not None:
            who = f"the history since {iso(reader.begins_ms) or 'the start of the log'}"
        summary = (
            f"{who} keeps {output.size(reader.log_bytes)} of log and "
            f"{output.size(reader.snapshot_bytes)} of former snapshots"
        )
        yield Check(
            name,
            WARNING if reader.is_stale else OK,
            summary,
            reader.advice if reader.is_stale else "",
        )
    return max((reader.log_bytes for reader in readers), default=0)
