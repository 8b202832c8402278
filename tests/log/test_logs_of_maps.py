"""The log of a store or an agent is read and followed, and can be copied into another log."""

from __future__ import annotations

from typing import Any

import pytest

import imap_wal
from imap_wal import format, log
from imap_wal.context import Context
from imap_wal.entry import KEY, DataEntry, clear_of, pack
from imap_wal.errors import (
    NotSerializable,
)
from imap_wal.manifest.cluster import IncarnationRecord
from imap_wal.partitions import partition_id
from imap_wal.retention.archive import archive_sealed
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.logs import append as append_rows
from tests.kit.logs import node as agent_log
from tests.kit.standalone import create, reading, texts_of
from tests.support import embedded


def test_the_log_of_embedded_maps_is_read_and_followed(memory: MemoryStore) -> None:
    store = embedded(memory, segment_bytes=400)
    changes = reading(memory, cluster="embedded", node="n1").tail(poll_s=0.001)
    expected: list[tuple[int, int | None]] = []
    for number in range(30):
        store.map("m")[number] = number
        expected.append((number, number))
        if number % 10 == 3:
            store.archive()
        if number % 10 == 6:
            del store.map("m")[number]
            expected.append((number, None))
    store.close()
    load = imap_wal.MsgpackSerializer().load
    found = [next(changes).entry for _ in expected]
    assert [
        (load(entry.key), None if entry.deleted else load(entry.value or b"")) for entry in found
    ] == expected


def test_agent_log_is_read_without_void_entries(
    memory: MemoryStore,
) -> None:
    """A later lifetime made one entry void. It stays so when it is in an archive."""
    writer = agent_log(memory)
    append_rows(writer, put("a", "1", (1, 1, 1, 1)))
    cut = writer.end
    append_rows(writer, put("a", "void", (1, 1, 1, 2)))
    writer.clusters.update(
        lambda manifest: type(manifest)(
            2, (IncarnationRecord("x", 2, {"n1": cut}),), manifest.nodes
        )
    )
    append_rows(writer, put("a", "2", (2, 1, 1, 1)))
    read = reading(memory, namespace="ns", cluster="c", node="n1")
    assert texts_of(read.read()) == ["1", "2"]
    writer.close()
    archive_sealed(Context(memory), writer.identity.node_folder, "n1", writer.manifests)
    assert texts_of(read.read()) == ["1", "2"]


def test_log_is_replicated_by_read_and_append(memory: MemoryStore, url: str) -> None:
    """One log is read, and what is read is appended to another one."""
    with embedded(memory) as store:
        store.map("m").update(a=1, b=2)
        store.map("other").put("c", 3, ttl=1000)
    source = reading(memory, cluster="embedded", node="n1")
    with log.create(url) as copy:
        copy.append_entries(entry for _, entry in source.read())
        kept = [entry._replace(order=(0, 0, 0, 0)) for _, entry in copy.read()]
        assert kept == [entry._replace(order=(0, 0, 0, 0)) for _, entry in source.read()]
        with pytest.raises(NotSerializable):
            copy.append_entries(
                [DataEntry("m", b"k", "", b"value", "", True, 0, 0, 0, (0, 0, 0, 0))]
            )
    with imap_wal.open(url, cluster="log", node="view") as store:
        assert (
            dict(store.map("m").items()) == {"a": 1, "b": 2}
            and store.map("other").ttl("c") is not None
        )


@pytest.mark.parametrize("field", ["timestamp_ms", "expires_at_ms", "partition"])
@pytest.mark.parametrize("value", [-(2**63) - 1, 2**63, 2**64 - 1], ids=str)
def test_log_refuses_a_number_outside_the_archive_range(
    memory: MemoryStore, field: str, value: int
) -> None:
    """Such an entry was acknowledged once, and every later `archive` failed."""
    lowest = 0 if field == "expires_at_ms" else -(2**63)
    taken = DataEntry("m", b"k", "", b"v", "", False, 0, 0, 0, (0, 0, 0, 0))

    def changed(number: int) -> DataEntry:
        fields: dict[str, Any] = {field: number}
        return taken._replace(**fields)

    with create(memory) as opened:
        with pytest.raises(NotSerializable, match=rf"map 'm': .*{field} is {value}; it takes"):
            opened.append_entries([taken, changed(value)])
        opened.append_entries(map(changed, (lowest, 2**63 - 1)))
        assert opened.archive() == 2
        assert [getattr(entry, field) for _, entry in opened.read()] == [lowest, 2**63 - 1]


def test_a_map_that_was_cleared_is_replicated_with_its_clears(
    memory: MemoryStore, url: str
) -> None:
    made = [
        DataEntry(*put("\0" * 8 + f"k{number}", number, (1, 1, 1, number + 1)))
        for number in range(20)
    ]
    rows: list[Any] = [tuple(entry._replace(key_class="raw", value_class="raw")) for entry in made]
    agent = agent_log(memory)
    append_rows(agent, *rows)
    cleared = clear_of("orders", 2, 5, 1000, (1, 1, 1, 21))
    agent.write(format.CLEARS, 1, [pack(cleared)])
    agent.close()
    with embedded(memory, cluster="maps") as store:
        filled = store.map("m")
        filled["a"] = 1
        filled.clear()
        filled["b"] = 2
    sources = [
        reading(memory, namespace="ns", cluster="c", node="n1"),
        reading(memory, cluster="maps", node="n1"),
    ]
    with log.create(url) as copy:
        for source in sources:
            copy.append_entries(entry for _, entry in source.read())
        with pytest.raises(NotSerializable, match="partition 5 of 5"):
            copy.append_entries([DataEntry(*cleared)._replace(partition=5)])
        with pytest.raises(NotSerializable, match="key_class"):
            copy.append_entries([DataEntry(*cleared)._replace(key_class="k")])
        for _ in range(2):
            entries = [entry for _, entry in copy.read()]
            assert [
                (entry.map, entry.expires_at_ms, entry.partition)
                for entry in entries
                if entry.key is None
            ] == [("orders", 5, 2), ("m", 1, 0)]
            copy.archive()
    left = {row[KEY] for row in rows if partition_id(row[KEY], 5) != 2}
    assert 0 < len(left) < len(rows)
    with imap_wal.open(url, cluster="log", node="view") as store:
        assert dict(store.map("m").items()) == {"b": 2}
        assert set(store.map("orders", raw=True).keys()) == left
