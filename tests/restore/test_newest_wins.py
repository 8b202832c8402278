"""A restore has the newest value of each key, without clocks and without void entries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from imap_wal import format
from imap_wal.agent.membership.claims import find_cutoffs
from imap_wal.context import Context
from imap_wal.entry import KEY, VALUE
from imap_wal.manifest.cluster import IncarnationRecord
from imap_wal.retention.archive import archive_sealed
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.logs import append, cluster, node, values, view
from tests.support import FakeClock


def test_greater_order_wins_over_clocks_and_reading_order(
    memory: MemoryStore,
) -> None:
    """Neither the timestamps nor the order in which files are read count."""
    first, second = node(memory), node(memory, "n2")
    append(
        second,
        put("a", "old", (1, 1, 1, 1), timestamp_ms=9_000_000),
        put("b", "new", (1, 2, 1, 2), timestamp_ms=1),
    )
    append(
        first,
        put("a", "new", (1, 2, 1, 1), timestamp_ms=1),
        put("b", "old", (1, 1, 1, 2), timestamp_ms=9_000_000),
    )
    assert values(view(memory)) == {"a": "new", "b": "new"}


def test_a_tombstone_and_an_expired_value_hide_what_is_older(memory: MemoryStore) -> None:
    clock = FakeClock()
    log = node(memory)
    soon = clock.now_ms() + 1000
    append(
        log,
        put("a", "1", (1, 1, 1, 1)),
        put("b", "1", (1, 1, 1, 2)),
        put("a", None, (1, 1, 1, 3)),
        put("b", "2", (1, 1, 1, 4), expires_at_ms=soon),
    )
    assert values(view(memory, clock)) == {"b": "2"}
    clock.advance(0.999)
    assert values(view(memory, clock)) == {"b": "2"}, "time to live is kept to the millisecond"
    clock.advance(0.001)
    made = view(memory, clock)
    assert values(made) == {} and made.maps() == [] and made.load("orders", [b"a", b"b"]) == []
    assert made.statistics.tombstones == 2 and made.statistics.live == 0


def test_two_claims_of_a_version_do_not_stop_a_restore(
    memory: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Two nodes claim one version of a partition."""
    first, second = node(memory), node(memory, "n2")
    append(first, put("a", "1", (1, 1, 1, 1)), put("b", "1", (1, 1, 1, 2)))
    append(second, put("a", "2", (1, 1, 1, 2)), put("b", "2", (1, 2, 1, 2)))
    made = view(memory)
    assert values(made) == {"a": "1", "b": "2"}
    assert [row[VALUE] for row in made.load("orders", [b"a"])] == [b"1"]
    (said,) = caplog.messages
    for word in ("'orders'", "b'a'", "'n1'", "'n2'", "imap-wal verify", "--resolve", "--prefer"):
        assert word in said
    assert made.statistics.conflicts == 1
    append(second, put("a", "3", (1, 3, 1, 3)))
    made.catch_up()
    assert values(made) == {"a": "3", "b": "2"} and made.statistics.conflicts == 0, (
        "something newer settles it"
    )


def test_entries_of_an_older_incarnation_after_the_cut_are_void(memory: MemoryStore) -> None:
    first, second = node(memory), node(memory, "n2")
    append(first, put("a", "before", (1, 1, 1, 1)))
    made = cluster(memory)
    cuts = find_cutoffs(made).cuts
    append(first, put("a", "late", (1, 9, 1, 2)), put("b", "late", (1, 1, 1, 3)))
    append(second, put("c", "of a node that had no log", (1, 1, 1, 1)))
    early = view(memory)
    assert values(early) == {"a": "late", "b": "late", "c": "of a node that had no log"}
    cuts.pop("n2")
    made.manifests.update(
        lambda manifest: replace(manifest, lifetimes=(IncarnationRecord("id", 2, cuts),))
    )
    assert values(view(memory)) == {"a": "before"}
    early.catch_up()
    assert values(early) == {"a": "before"}, "a view that had already merged them begins again"
    append(first, put("b", "new", (2, 1, 1, 1)))
    early.catch_up()
    assert values(early) == {"a": "before", "b": "new"}


def test_returning_node_counts_in_the_lifetime_it_missed(
    memory: MemoryStore,
) -> None:
    """The node was missing when the lifetime began."""
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)))
    log.close()
    files = {file.path: memory.read(file.path) for file in memory.list("ns/c/nodes/n1")}
    for path in files:
        memory.delete(path)
    made = cluster(memory)
    cuts = find_cutoffs(made).cuts
    made.manifests.update(
        lambda manifest: replace(manifest, lifetimes=(IncarnationRecord("id", 2, cuts),))
    )
    for path, data in files.items():
        memory.create(path, data)
    assert values(view(memory)) == {"a": "1"}


def test_metadata_of_each_node_is_read_once_also_from_archives(memory: MemoryStore) -> None:
    first, second = node(memory), node(memory, "n2")
    for log in (first, second):
        log.write(format.METADATA, 1, [pack_plain(["schema", -5, b"\x00\xff"])])
        log.write(format.METADATA, 1, [pack_plain(["member", "id", log.identity.node])])
        append(log, put("a" + log.identity.node, "1", (1, 1, 1, 1)))
    expected = {("schema", -5, b"\x00\xff"), ("member", "id", "n1"), ("member", "id", "n2")}
    assert sorted(view(memory).metadata(), key=repr) == sorted(expected, key=repr)
    first.rotate()
    archive_sealed(
        Context(memory), first.identity.node_folder, "n1", first.manifests, writing=first.unsealed
    )
    assert sorted(view(memory).metadata(), key=repr) == sorted(expected, key=repr)


def pack_plain(value: Any) -> bytes:
    import msgpack

    return bytes(msgpack.packb(value, use_bin_type=True))


def test_key_listing_is_whole_across_a_new_lifetime(
    memory: MemoryStore,
) -> None:
    """A new lifetime makes the view begin again during the listing."""
    log = node(memory)
    append(log, *(put(f"k{number:02d}", "1", (1, 1, 1, number + 1)) for number in range(30)))
    cuts = find_cutoffs(cluster(memory)).cuts
    append(log, put("late", "void", (1, 1, 1, 99)))
    made = view(memory)
    listing = made.keys("orders", 7)
    found = next(listing)
    cluster(memory).manifests.update(
        lambda manifest: replace(manifest, lifetimes=(IncarnationRecord("id", 2, cuts),))
    )
    made.catch_up()
    found += [key for keys in listing for key in keys]
    assert sorted(found) == [b"k%02d" % number for number in range(30)]


def test_values_are_loaded_up_to_a_size(memory: MemoryStore) -> None:
    log = node(memory)
    append(log, *(put(f"k{number}", "x" * 1000, (1, 1, 1, number + 1)) for number in range(10)))
    keys = [b"absent", *(b"k%d" % number for number in range(10))]
    for memory_bytes in (1 << 30, 1):
        made = view(memory, restore_memory_bytes=memory_bytes)
        rows, taken = made.load_some("orders", keys, 2500)
        assert [row[KEY] for row in rows] == [b"k0", b"k1"] and taken == 3
        assert made.load_some("orders", keys[taken:], None)[1] == 8
        assert len(made.load("orders", keys)) == 10
        made.close()
