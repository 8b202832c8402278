"""Attack: as a program that may write to an agent, log entries that no Hazelcast map can have, so
that the map is never restored again."""

from __future__ import annotations

from pathlib import Path

import hazelcast.errors
import msgpack
import pytest

from imap_wal.context import open_context
from imap_wal.entry import KEY, VALUE
from imap_wal.format import ENTRIES
from imap_wal.layout import Identity
from imap_wal.read.cluster import ClusterLog
from imap_wal.settings import Settings
from imap_wal.write.context import LogContext
from imap_wal.write.opening import open_node_log
from tests.cluster.cluster import Cluster
from tests.cluster.configuration import logged_map
from tests.kit.effort import thorough

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

NULL = bytes(8)
"""What Hazelcast serializes null to."""
GOOD = b"\0\0\0\0\xff\xff\xff\xf5\0\0\0\1v"


def names(cluster: Cluster) -> tuple[str, str]:
    """Namespace and cluster of the log."""
    (folder,) = Path(cluster.url.removeprefix("file://")).glob("*/*/nodes/node-1")
    return folder.parts[-4], folder.parts[-3]


def append(cluster: Cluster, *pairs: tuple[bytes, bytes]) -> None:
    """Entries as an agent accepts them, newer than all others, in the log of the first node."""
    context = LogContext(
        open_context(cluster.url),
        Identity(*names(cluster), "node-1"),
        Settings(preallocate=False),
    )
    log = open_node_log(context, holder="attack")
    rows = [
        ["orders", key, "", value, "", False, 1, 0, 7, [1, 2**40, 1, 10**6 + number]]
        for number, (key, value) in enumerate(pairs)
    ]
    log.write(ENTRIES, len(rows), [b"".join(map(msgpack.packb, rows))])
    log.sync()
    log.close(True)


@thorough
def test_unusable_entries_do_not_keep_a_map_from_the_others(tmp_path: Path, classpath: str) -> None:
    def maps(endpoint: str) -> dict[str, object]:
        return {"default": logged_map(endpoint)}

    with Cluster(tmp_path, classpath, maps) as cluster:
        cluster.start(1)
        orders = cluster.client().get_map("orders").blocking()
        for number in range(50):
            orders.set(f"k{number}", f"v{number}")
        cluster.kill_everything()
        log = ClusterLog(open_context(cluster.url), *names(cluster))
        key = next(
            row[KEY]
            for changes in log.changes()
            for row in changes.rows
            if (row[VALUE] or b"").endswith(b"v7")
        )
        append(cluster, (b"short", GOOD), (b"", GOOD), (NULL, GOOD), (key, b"v"))
        cluster.start(1)
        orders = cluster.client().get_map("orders").blocking()
        assert orders.size() == 49
        assert orders.get("k8") == "v8"
        with pytest.raises(hazelcast.errors.HazelcastError, match="cannot be used"):
            orders.get("k7")  # not as if it had never been there
        orders.set("k7", "new")
        assert orders.get("k7") == "new"
        said = cluster.members[0].log.read_text(errors="replace")
        assert 'map "orders": 4 entries of the log cannot be used; the first: the' in said
        assert "`imap-wal get` shows it with its position" in said
        cluster.kill_everything()
        cluster.start(1)
        orders = cluster.client().get_map("orders").blocking()
        assert (orders.size(), orders.get("k7")) == (50, "new")
