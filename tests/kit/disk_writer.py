"""A node with its own disk, without an agent: a writer and its uploads."""

from __future__ import annotations

from collections.abc import Sequence

from imap_wal import format
from imap_wal.agent.own_disk.uploads import Uploads
from imap_wal.clock import SeededRandomness
from imap_wal.context import Context
from imap_wal.entry import KEY, VALUE
from imap_wal.layout import Identity
from imap_wal.placement.router import OwnDiskStore, Unasked
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.view import MaterializedView
from imap_wal.retention.archive import archive_sealed
from imap_wal.security.encryption_keys import NO_KEYS
from imap_wal.settings import Settings
from imap_wal.write.context import LogContext
from imap_wal.write.node_log import NodeLog
from imap_wal.write.opening import open_node_log
from storage_backends import SegmentStore
from tests.encrypted import keys_of
from tests.support import FakeClock, row

NODE = "ns/c/nodes/n1"


class Writer:
    """One life of a node with its own disk."""

    def __init__(
        self,
        root: SegmentStore,
        disk: SegmentStore,
        seed: int,
        policy: str = "full",
        recovery_mode: str = "torn-tail",
        keys: Sequence[str] = (),
    ) -> None:
        self.clock, self.randomness = FakeClock(), SeededRandomness(seed)
        self.store = OwnDiskStore(root, disk, NODE, Unasked(root))
        settings = Settings(
            preallocate=False,
            recovery_policy=policy,  # type: ignore[arg-type]
            recovery_mode=recovery_mode,  # type: ignore[arg-type]
        )
        identity = Identity("ns", "c", "n1")
        self.log: NodeLog = open_node_log(
            LogContext(
                Context(
                    self.store,
                    keys_of(*keys) if keys else NO_KEYS,
                    self.clock,
                    self.randomness,
                    own_disk=self.store,
                ),
                identity,
                settings,
                "tcp://nowhere:1",
            ),
            holder="the test",
        )
        self.uploads = Uploads(self.store, self.log, self.clock, self.randomness)

    def put(self, key: str, value: str | None, request: int) -> None:
        self.log.write(format.ENTRIES, 1, [row(key, value, request)])
        self.log.sync()

    def archive(self) -> None:
        self.log.rotate()
        archive_sealed(
            Context(self.store),
            NODE,
            "n1",
            self.log.manifests,
            epoch=self.log.epoch,
            writing=self.log.unsealed,
        )


def disk_context(store: OwnDiskStore) -> Context:
    return Context(store, clock=FakeClock(), randomness=SeededRandomness(9), own_disk=store)


def restored(store: OwnDiskStore, policy: str = "full") -> tuple[dict[str, str], dict[str, str]]:
    """What a restore has, and which nodes it leaves out."""
    view = MaterializedView(
        ClusterLog(disk_context(store), "ns", "c"),
        Settings(recovery_policy=policy),  # type: ignore[arg-type]
    )
    try:
        view.catch_up()
        found = {
            row[KEY].decode(): (row[VALUE] or b"").decode()
            for rows in view.rows("m")
            for row in rows
        }
        return found, dict(view.missing)
    finally:
        view.close()
