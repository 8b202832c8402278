"""The logs of one cluster: what `verify --quick` finds, their links, writers and readers."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator

from imap_wal.agent.access.keys import KeyPair
from imap_wal.agent.membership.liveness import present, signs
from imap_wal.context import Context
from imap_wal.disposal import ADVICE as LINK_ADVICE
from imap_wal.disposal import EFFECT as LINK_EFFECT
from imap_wal.errors import LogError
from imap_wal.inspect.own_disks import nodes_with_tails
from imap_wal.inspect.running_writer import writer_of
from imap_wal.inspect.verify import is_problem, quick
from imap_wal.layout import parse_sign_path
from imap_wal.manifest.claims import CLOSED_ADVICE
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.state import ClusterState
from imap_wal.retention.ended_backfills import ended_backfills
from imap_wal.retention.kept import kept_for_readers
from imap_wal.segment.verdict import INCOMPLETE
from rewrite_cli.console import output
from rewrite_cli.console.check import OK, PROBLEM, WARNING, Check
from rewrite_cli.console.times import iso
from rewrite_cli.doctor.agent import without_agent
from rewrite_cli.entries.own_disks import tail_check
from storage_backends import NotFound
from storage_backends.links import links


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
