"""Makes manifests for a repaired copy if none is left, from names and headers of the files.

A segment's header has its log directory, the id file next to the segments has the folder's id, and
file names have epochs and positions. Requests, schemas, sessions without changes and missing
segments at the end cannot be found in this way; the report says so. If the files contradict each
other or do not contain enough, the repair is refused: nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from imap_wal import format, layout
from imap_wal.clock import SystemRandomness
from imap_wal.entry import KEY_CLASS, RAW, rows
from imap_wal.errors import LogError, NotRepairable
from imap_wal.inspect.inventory import ClusterView, NodeView
from imap_wal.manifest.node import LOG, NodeManifest
from imap_wal.manifest.store import C, ManifestLog
from imap_wal.parquet import salvage
from imap_wal.segment.listing import SegmentFile, sorted_out
from imap_wal.segment.reader import SegmentReader
from imap_wal.write.object_segment import holds_nothing
from storage_backends import SegmentStore
from storage_backends.memory import MemoryStore, forget

BRING_BACK = "bring a manifest back from a copy"


def with_made_manifests(
    store: SegmentStore, view: ClusterView, wants_node: Callable[[str], bool], new_id: str
) -> ClusterView:
    """The same cluster, with manifests for the wanted nodes that have lost theirs. These manifests
    have the number 0. `new_id`: the log id, if no file has one. Raises `NotRepairable` if the files
    do not name their log."""
    made = []
    for number, node in enumerate(view.nodes):
        makes = wants_node(node.name) and not node.manifest_number
        made.append(_made(store, view, node, f"{new_id}-{number}") if makes else node)
    return replace(view, nodes=tuple(node for node in made if node is not None))


def _made(store: SegmentStore, view: ClusterView, node: NodeView, new_id: str) -> NodeView | None:
    """None: there is no log. It was forgotten, or an open failed before its first write."""
    if not node.of_no_manifest:
        return None
    gone = f"{view}: no manifest of node {node.name!r} can be read in {node.folder}/manifest, and"
    if not node.wal.segments and not node.wal.logs:
        raise NotRepairable(
            f"{gone} no segment is in {node.folder}/wal: its disk is not mounted here, or "
            f"wal_dir is on another machine; {BRING_BACK}"
        )
    if len(node.wal.logs) > 1:
        raise NotRepairable(
            f"{gone} {node.folder}/wal has segments of several logs "
            f"({', '.join(sorted(node.wal.logs))}); move those of the others away"
        )
    node = _without_former(store, node)
    directory = _directory(store, view, node, gone) or new_id
    if directory in view.manifest.forgotten:
        return None
    manifest = NodeManifest(
        directory=directory, wal_id="".join(node.wal.logs), kind=_kind(store, view, node, gone)
    )
    return replace(node, manifest=manifest)


def _without_former(store: SegmentStore, node: NodeView) -> NodeView:
    """Without the empty segments at the start that belong to another log than the last one. A
    storage that cannot append keeps those of a forgotten log
    (`imap_wal.agent.membership.forget_node`)."""
    segments = node.wal.segments
    last = _log(store, segments[-1]) if segments else ""
    former = set()
    for segment in segments:
        if not last or _log(store, segment) in ("", last) or not holds_nothing(store, segment.path):
            break
        former.add(segment.path)
    if not former:
        return node
    files = tuple(file for file in node.files if file.path not in former)
    return replace(
        node,
        files=files,
        wal=sorted_out(file for file in files if file.path.startswith(f"{node.folder}/wal/")),
    )


def _log(store: SegmentStore, segment: SegmentFile) -> str:
    """The log directory in a segment's header; "" if the header is damaged."""
    try:
        return SegmentReader(store, segment.path).header.directory
    except LogError:
        return ""


def _directory(store: SegmentStore, view: ClusterView, node: NodeView, gone: str) -> str:
    """The log directory in the segments' headers, or else in the cluster's manifest; "" if neither
    has one."""
    found = {}
    for segment in node.wal.segments:
        try:
            header = SegmentReader(store, segment.path).header
        except LogError:
            continue  # damaged: the headers of the others have it
        if (header.namespace, header.cluster, header.node) != view.names(node):
            whose = f"{header.namespace}/{header.cluster}, node {header.node!r}"
            raise NotRepairable(
                f"{gone} {segment.path} is of {whose}: this folder was copied or renamed; "
                f"move it away, or {BRING_BACK}"
            )
        found[header.directory] = segment.path
    if len(found) > 1:
        (one, first), (other, second), *_ = sorted(found.items())
        raise NotRepairable(
            f"{gone} {first} is of log {one}, {second} of log {other}; move the segments of "
            f"the wrong log away, or {BRING_BACK}"
        )
    registered = view.manifest.nodes.get(node.name, "")
    if found and registered and registered not in found:
        raise NotRepairable(
            f"{gone} its segments are of log {next(iter(found))}, but log {registered} is "
            f"registered; move them away, or {BRING_BACK}"
        )
    return registered or next(iter(found), "")


def _kind(store: SegmentStore, view: ClusterView, node: NodeView, gone: str) -> str:
    """Whether the log has maps or records (`imap_wal.log`): a cluster has only one of them. Only
    entries of records and of raw maps look the same."""
    kinds = {
        each.manifest.kind
        for each in (*view.nodes, *view.forgotten)
        if each.manifest_number and not each.manifest.empty
    }
    if kinds:
        return kinds.pop()
    if view.claims.newest or any(name != RAW for name in _classes(store, node)):
        return ""
    what = (
        f"its entries may be of raw maps or of {LOG}s of records (imap_wal.log); the files do not "
        "show which"
    )
    raise NotRepairable(f"{gone} {what}; {BRING_BACK}")


def _classes(store: SegmentStore, node: NodeView) -> Iterator[str]:
    """The key class of each entry that can be read."""
    for segment in node.wal.segments:
        try:
            for frame in SegmentReader(store, segment.path).frames():
                if frame.kind in format.OF_ENTRIES:
                    yield from (row[KEY_CLASS] for row in rows(frame.payload))
        except LogError:
            continue
    for file in node.files:
        if layout.parse_archive_path(file.path) is not None:
            yield from (row[KEY_CLASS] for row in salvage.rows_of(store, file.path, log=""))


def encoded(
    log: Callable[[SegmentStore], ManifestLog[C]], number: int, content: C
) -> list[tuple[str, bytes]]:
    """Path and bytes of manifest `number` with this content, and of the lists that it names, which
    come first."""
    name = f"imap-wal-repair-{SystemRandomness().name()}"
    scratch = MemoryStore(name)
    try:
        manifests = log(scratch)
        manifests.publish(number - 1, content)
        path = manifests.next_path(number - 1)
        lists = [file.path for file in scratch.list("") if layout.list_number(file.path)]
        return [(each, scratch.read(each)) for each in (*lists, path)]
    finally:
        scratch.close()
        forget(name)
