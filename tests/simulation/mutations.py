"""The fixes of C1–C9 and of some H items, each reverted; the simulation must catch every one.

python -m tests.simulation.mutations            with one long pause at every call of a drill
python -m tests.simulation.mutations --random   without a drill: how many schedules it takes
"""

from __future__ import annotations

import argparse
import importlib
import time
from dataclasses import replace
from typing import Any

from imap_wal import layout
from imap_wal.agent.membership import forget_node
from imap_wal.agent.reads import listings
from imap_wal.embedded import decisions, map_writer, transaction
from imap_wal.embedded import opening as embedded
from imap_wal.errors import LostRace, WriterLocked
from imap_wal.layout import snapshot_place
from imap_wal.manifest.node import NodeManifest, Seen
from imap_wal.parquet.writer import ParquetFile
from imap_wal.read import cluster, parquet_scan
from imap_wal.read import state as node_state
from imap_wal.read.file_scan import EntryBatch
from imap_wal.read.state import ClusterState
from imap_wal.repair.snapshots import SnapshotRepair
from imap_wal.retention import archive, snapshots
from imap_wal.retention.sealed_segments import carried
from imap_wal.rewrite import plan, publish, run
from imap_wal.write import committer, opening, recovery
from storage_backends import AlreadyExists
from tests.simulation.medium import STALE_STEPS, SimAppender, SimStore
from tests.simulation.mutation import Mutation, Put, caught_by_drills, caught_by_itself

prune = importlib.import_module("imap_wal.rewrite.prune")


# ---- the code before the fixes -------------------------------------------------------------------


def _state_of_the_cluster_first(put: Put) -> None:
    def state(self: Any) -> Any:
        number, manifest = self.manifests.read()
        nodes, missing = {}, {}
        for name, directory in sorted(manifest.nodes.items()):
            found = self.node(name)
            why = found.why_missing(directory)
            if why:
                missing[name] = why
            else:
                nodes[name] = found
        return ClusterState(manifest, nodes, missing, number)

    put(cluster.ClusterLog, "state", state)


def _archive_without_its_epoch(put: Put) -> None:
    def publish(self: Any, work: Any) -> None:
        last = self._segments[-1].name

        def change(now: NodeManifest) -> NodeManifest:
            named = now.with_archives(work.archives, work.absorbed)
            return carried(named, last, [work.summary])

        self._manifests.update(change)

    def sweep(self: Any) -> None:
        known = {each.path for each in self._manifest.archives}
        for file in self._store.list(f"{self._folder}/archive"):
            if file.path not in known and file.path.endswith(".parquet"):
                self._store.delete(file.path)
        self._delete(self._wal.archived)

    sealed = archive.archive_sealed

    def archive_sealed(*arguments: Any, epoch: int | None = None, **more: Any) -> Any:
        return sealed(*arguments, **more)

    put(archive, "archive_sealed", archive_sealed)
    put(archive._Run, "_publish", publish)
    put(archive._Run, "_sweep", sweep)


def _takeover_of_whatever_is_there(put: Put) -> None:
    def publish(self: Any, after: int, content: Any) -> bool:
        def change(manifest: Any) -> Any:
            if not isinstance(manifest, NodeManifest):
                raise LostRace("not the manifest of a node")
            if manifest.epoch != content.epoch - 1:
                raise WriterLocked("n1", "a process that opened it at the same moment")
            return replace(
                manifest,
                epoch=content.epoch,
                clean=False,
                directory=content.directory,
                wal_id=content.wal_id,
                permit=content.permit,
                epochs=content.epochs,
            )

        self.manifests.update(change)
        return True

    def claim(self: Any, number: int, before: Any, claimed: Any, wal: Any) -> None:
        shut: Any = _Publishing(self, publish)
        real_claim(shut, number, before, claimed, wal)
        self._published = shut._published

    def delete_segments(store: Any, node_folder: str, epoch: int, paths: Any) -> set[str]:
        kept: set[str] = set()
        if not store.capabilities.durable_append:
            kept = layout.fences(store.list(f"{node_folder}/wal"), epoch)
        gone = set(paths) - kept
        for path in gone:
            store.delete(path)
        return gone

    real_claim = opening.NodeOpening._claim
    put(opening.NodeOpening, "_claim", claim)
    put(archive, "delete_segments", delete_segments)


class _Publishing:
    """An opening whose manifests publish without comparing the number."""

    def __init__(self, opening: Any, publish: Any) -> None:
        self._opening, self._publish = opening, publish
        self._published = False
        self.manifests = self

    def publish(self, after: int, content: Any) -> bool:
        return bool(self._publish(self._opening, after, content))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opening, name)


def _older_manifests_are_taken(put: Put) -> None:
    put(opening, "demand_current", lambda *_, **__: None)
    put(Seen, "newer_than", lambda *_: False)
    put(node_state, "replaced", lambda *_, **__: None)
    put(opening, "replaced", lambda *_, **__: None)


def _segments_of_any_log(put: Put) -> None:
    to_json = NodeManifest.to_json

    def without(self: NodeManifest) -> dict[str, Any]:
        document = to_json(self)
        document.pop("wal_id", None)
        document.pop("newest", None)
        return document

    put(NodeManifest, "to_json", without)


def _others_are_left_alone(put: Put) -> None:
    put(embedded, "shut_out_others", lambda *_, **__: None)


def _permits_named_by_their_epoch(put: Put) -> None:
    path = layout.writer_path
    put(layout, "writer_path", lambda node, epoch, permit: path(node, epoch, ""))


def _permits_from_a_cache(put: Put) -> None:
    """Like a stat on NFS instead of an open. Attributes are cached for longer than listings: a
    takeover has more than `STALE_STEPS` calls."""
    names, stale_steps = SimStore.names, 3 * STALE_STEPS

    def cached(self: Any, path: str, file: Any) -> bool:
        met = self.process.memory.setdefault("nfs files", {})
        if names(self, path, file):
            met[path] = self.world.step
        return self.world.step - met.get(path, -stale_steps) < stale_steps

    put(SimStore, "names", cached)


def _bytes_wait_for_the_sync(put: Put) -> None:
    """Like a file with a buffer in the process."""
    append, sync = SimAppender.append, SimAppender.sync
    waiting: dict[int, tuple[SimAppender, list[bytes]]] = {}

    def later(self: SimAppender, *chunks: bytes) -> None:
        waiting.setdefault(id(self), (self, []))[1].extend(chunks)
        self.size += sum(map(len, chunks))

    def now(self: SimAppender) -> None:
        chunks = waiting.pop(id(self), (self, []))[1]
        self.size -= sum(map(len, chunks))
        if chunks:
            append(self, *chunks)
        sync(self)

    put(SimAppender, "append", later)
    put(SimAppender, "sync", now)


def _a_sync_does_nothing(put: Put) -> None:
    put(committer.Committer, "sync", lambda self: None)


def _a_drop_covers_nothing(put: Put) -> None:
    put(cluster.ClusterLog, "ends", lambda *_, **__: {})


def _nodes_are_forgotten_with_their_entries(put: Put) -> None:
    put(forget_node, "_refusal", lambda *_: "")


def _forgotten_with_what_shuts_their_writers_out(put: Put) -> None:
    put(forget_node, "holds_nothing", lambda *_: False)


def _snapshots_are_not_copied(put: Put) -> None:
    put(SnapshotRepair, "write", lambda *_: None)


def _recovered_under_the_same_name(put: Put) -> None:
    put(recovery.Recovery, "_put", lambda self, wal, data: self._store.replace(wal, data))


def _orphans_by_their_age_alone(put: Put) -> None:
    def remove_former(log: Any, **_: Any) -> tuple[Any, ...]:
        files = log.store.list(f"{log.folder}/snapshot")
        manifest = log.manifest()
        now_ms = log.clock.now_ms()
        gone = []
        for file in files:
            name, generation = snapshot_place(file.path)
            known = manifest.snapshots.get(name)
            if known is not None and file.path in known.files:
                continue
            former = known is not None and generation < known.generation
            if former or file.modified_ms < now_ms - snapshots.ORPHAN_MS:
                gone.append(file)
        for file in gone:
            log.store.delete(file.path)
        return tuple(gone)

    put(prune, "remove_former", remove_former)
    _parts_are_believed(put)


def _parts_are_believed(put: Put) -> None:
    put(publish, "confirm", lambda *_: None)
    put(prune, "demand_whole", lambda *_: None)


def _parts_are_created_again(put: Put) -> None:
    def publish(self: Any, store: Any, path: str) -> Any:
        self._close()
        try:
            store.create_from(path, str(self.local))
        except AlreadyExists:
            store.delete(path)
            store.create_from(path, str(self.local))
        return self.discard()

    put(ParquetFile, "publish", publish)
    _parts_are_believed(put)


def _parts_named_by_their_number(put: Put) -> None:
    def part_path(self: Any, name: str, partition: int, number: int, token: str) -> str:
        folder = layout.snapshot_folder(self.folder, name, self.generation)
        return f"{folder}/part-{partition:05d}-{number:05d}.parquet"

    put(plan.RewritePlan, "part_path", part_path)
    _parts_are_created_again(put)
    put(snapshots, "demand_whole", lambda *_: None)


def _a_page_is_answered_once(put: Put) -> None:
    page = listings.Listing.page

    def next_page(self: Any, number: int, limit: int) -> Any:
        return page(self, self._number + 1, limit)

    put(listings.Listing, "page", next_page)
    put(listings.Listing, "has", lambda self, number: True)
    put(listings.Listing, "_check", lambda self: None)


def _archived_clears_are_entries(put: Put) -> None:
    def without(*arguments: Any, clears: bool) -> EntryBatch:
        return EntryBatch(*arguments)

    put(parquet_scan, "EntryBatch", without)


def _any_clock_will_do(put: Put) -> None:
    put(run, "demand_clock", lambda *_, **__: None)


MUTATIONS = (
    Mutation(
        "C1",
        "the cluster's manifest is read before the nodes",
        _state_of_the_cluster_first,
        ("a reader beside a rewrite and a prune", "an open beside a rewrite and a prune"),
        "maintenance",
    ),
    Mutation(
        "C2",
        "an archive run does not look at the epoch",
        _archive_without_its_epoch,
        ("an archive of a writer that is replaced", "a timer of a writer that is replaced"),
        "takeovers",
    ),
    Mutation(
        "C3",
        "a takeover acts on a manifest that may be old",
        _takeover_of_whatever_is_there,
        ("a takeover beside an archive", "a takeover of objects beside an archive"),
        "takeovers",
    ),
    Mutation(
        "C4",
        "files of a rewrite are taken for orphans by their age",
        _orphans_by_their_age_alone,
        ("a prune beside a long rewrite",),
        "maintenance",
    ),
    Mutation(
        "C5",
        "manifests older than the files beside them are accepted",
        _older_manifests_are_taken,
        (
            "manifests of a node restored",
            "manifests of the cluster restored",
            "a node's folder restored",
        ),
        "backups",
    ),
    Mutation(
        "C6",
        "segments of another log, or of none, are accepted",
        _segments_of_any_log,
        ("a machine without the segments",),
        "machines",
    ),
    Mutation(
        "C7",
        "stores under other node names are left alone",
        _others_are_left_alone,
        ("two host names", "two host names, append"),
        "hosts",
    ),
    Mutation(
        "C3",
        "a permit has the same name for all opens of an epoch",
        _permits_named_by_their_epoch,
        ("an open that comes after two others",),
        "takeovers",
        is_rare=True,
    ),
    Mutation(
        "drop",
        "a drop does not look where the logs end",
        _a_drop_covers_nothing,
        ("a drop beside a writer",),
        "drops",
    ),
    Mutation(
        "forget",
        "a node is forgotten with entries that no snapshot has",
        _nodes_are_forgotten_with_their_entries,
        ("a node is forgotten beside its writer",),
        "forgetting",
    ),
    Mutation(
        "forget",
        "a forgotten node's objects are deleted with the one that fences its writer",
        _forgotten_with_what_shuts_their_writers_out,
        ("a node on objects is forgotten beside its writer",),
        "forgetting",
    ),
    Mutation(
        "repair",
        "a copy has no files of snapshots",
        _snapshots_are_not_copied,
        ("a repaired copy of a whole log",),
        "backups",
    ),
    Mutation(
        "os",
        "changes are acknowledged before the operating system has them",
        _bytes_wait_for_the_sync,
        ("a crash of a store that does not sync",),
        "takeovers",
    ),
    Mutation(
        "interval",
        "a sync that is asked for does nothing",
        _a_sync_does_nothing,
        ("a power loss after a sync",),
        "takeovers",
    ),
    Mutation(
        "M17",
        "a permit is looked for in the cache of NFS",
        _permits_from_a_cache,
        ("a takeover over NFS",),
        "takeovers",
    ),
    Mutation(
        "C8",
        "the recovered copy has the old name",
        _recovered_under_the_same_name,
        ("a takeover of a file that is appended by path",),
        "takeovers",
    ),
    Mutation(
        "C9",
        "parts are named by their number, and deleted by the process that finds them",
        _parts_named_by_their_number,
        ("a task that runs twice",),
        "attempts",
    ),
    Mutation(
        "H4",
        "a page of a listing that is asked for again is the next one",
        _a_page_is_answered_once,
        ("a listing through an agent",),
        "agents",
    ),
    Mutation(
        "H9",
        "a rewrite trusts its own clock",
        _any_clock_will_do,
        ("a rewrite by a machine whose clock is ahead",),
        "maintenance",
    ),
    Mutation(
        "clears",
        "an archive does not know that it has clears",
        _archived_clears_are_entries,
        ("a clear beside an archive and a rewrite",),
        "clears",
        crashes=True,
    ),
    Mutation(
        "permit",
        "a writer knows its files by their names",
        lambda put: put(SimStore, "names", lambda self, path, file: self.exists(path)),
        ("a folder that is replaced beside its writer",),
        "replacements",
    ),
    Mutation(
        "add",
        "a decision does not see changes under way",
        lambda put: put(map_writer.MapWriter, "_pending", lambda self, state: []),
        ("threads that change the same numbers",),
        "counters",
    ),
    Mutation(
        "transaction",
        "a transaction does not compare what it has read",
        lambda put: put(
            transaction, "together", lambda changes, _: decisions.together(changes, {})
        ),
        ("threads that change the same numbers",),
        "counters",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--random", type=int, default=0, help="so many schedules by seed")
    parser.add_argument("--item", default="")
    chosen = parser.parse_args()
    for mutation in MUTATIONS:
        if chosen.item and mutation.item != chosen.item:
            continue
        start = time.process_time()
        if chosen.random:
            number, what = caught_by_itself(mutation, chosen.random)
        else:
            number, what = caught_by_drills(mutation)
        spent = time.process_time() - start
        print(f"{mutation.name}: {number or 'NOT CAUGHT'} ({spent:.1f} s) {what[:140]}", flush=True)


if __name__ == "__main__":
    main()
