"""Attack: as a member, fill a log with things that each cost files or manifests."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest
from structlog.testing import capture_logs

from imap_wal.agent import node_schemas
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.handler import CLEAR_COUNTS_MAX
from imap_wal.context import Context
from imap_wal.entry import clear_of
from imap_wal.errors import InvalidSetting
from imap_wal.layout import Identity
from imap_wal.retention.archive import archive_offline
from imap_wal.rules.cleared import COUNTS_MAX
from imap_wal.schemas import Schema
from storage_backends import open_store
from tests.agent.harness import Plugin, config, entry, plugin, serving
from tests.support import eventually


def limited(folder: Path, most: int) -> AgentConfig:
    made = config(folder)
    return AgentConfig.from_mapping(
        {
            "url": made.url,
            "cluster": made.cluster,
            "node": made.node,
            "endpoint": made.endpoint,
            "lifetime_timeout_s": 0,
            "start_policy": "partial",
            "max_maps": most,
        }
    )


def put(member: Plugin, *names: str) -> list[object]:
    """Append a change of each map, in one message."""
    first = member.request + 1
    payload = b"".join(
        msgpack.packb(entry("k", "v", member.order(first + index), name=name))
        for index, name in enumerate(names)
    )
    header, _ = member.client.ask("append", member.session, first, len(names), payload=payload)
    if header[0] == "ack":
        member.request += len(names)
    return [header[0], *header[2:]]


def test_maps_without_end_are_refused(tmp_path: Path) -> None:
    """The existing maps continue to work, also after a restart in which another map comes first."""
    settings = limited(tmp_path, 3)
    with serving(settings), plugin(settings) as member:
        member.keys()  # the agent has read the logs
        assert put(member, "a", "b")[0] == put(member, "c")[0] == "ack"
        with capture_logs() as lines:
            code, text = put(member, "a", "d", "e")[1:]
        assert code == "full"
        assert "map 'd' is new, and there are 3 others; the limit is 3. Raise max_maps" in str(text)
        assert [line["event"] for line in lines] == ["change refused"]
        member.hello()
        assert put(member, "a", "b", "c")[0] == "ack"
    with serving(settings), plugin(settings) as member:
        member.keys()
        assert put(member, "d")[1] == "full"
        member.hello()
        assert put(member, "a", "b", "c")[0] == "ack"
        assert member.values("b") == {"k": "v"}
        assert member.values("d") == {}


def test_a_log_that_was_not_read_takes_no_more_maps(tmp_path: Path) -> None:
    """Before the first merge after a start, the agent does not know which maps are new."""
    settings = limited(tmp_path, 2)
    with serving(settings), plugin(settings) as member:
        member.keys()
        assert put(member, "a", "b")[0] == "ack"
    with serving(settings) as agent, plugin(settings) as member:
        eventually(lambda: agent._reads.merges.maps, "the merge at start is done")
        agent._reads.merges.maps = None
        assert put(member, "new")[0] == "ack"
        assert "map 'a' may be new" in str(put(member, "a", "b"))
        member.keys()
        member.hello()
        assert put(member, "a", "b")[0] == "ack"
        assert "map 'other' is new, and there are 3 others" in str(put(member, "other"))


@pytest.mark.parametrize("most", [0, 10**6 + 1, "3", True, 2.0])
def test_a_limit_of_maps_is_a_number(tmp_path: Path, most: object) -> None:
    with pytest.raises(InvalidSetting, match="max_maps"):
        limited(tmp_path, most)  # type: ignore[arg-type]


def clear(member: Plugin, count: int) -> list[object]:
    """Clear a partition, as a member of a cluster with so many partitions."""
    member.hello(partition_count=count)
    first = member.request + 1
    row = list(clear_of("orders", 0, count, 1_763_720_000_000, member.order(first)))
    header, _ = member.client.ask("append", member.session, first, 1, payload=msgpack.packb(row))
    if header[0] == "ack":
        member.request += 1
    return [header[0], *header[2:]]


def test_clears_of_many_partition_counts_stop_no_restore(tmp_path: Path) -> None:
    """A reader refuses a map with clears of more than 64 numbers of partitions."""
    settings = config(tmp_path)
    with serving(settings), plugin(settings) as member:
        assert member.put(a="1", b="2")[0] == "ack"
        answers = [clear(member, count) for count in range(1000, 1000 + COUNTS_MAX + 2)]
        member.hello()
        assert member.put(c="3")[0] == "ack"
    with serving(settings), plugin(settings) as member:
        assert member.values()["c"] == "3"
        assert [answer[0] for answer in answers].count("ack") <= CLEAR_COUNTS_MAX


def schema(number: int, size: int = 8) -> tuple[int, bytes]:
    made = Schema(f"s{number}".ljust(size, "x"), ())
    return made.id, made.to_bytes()


def put_schemas(member: Plugin, *schemas: tuple[int, bytes]) -> list[object]:
    payload = b"".join(msgpack.packb(["schema", *each]) for each in schemas)
    header, _ = member.client.ask("metadata", member.session, len(schemas), payload=payload)
    return [header[0], *header[2:]]


@pytest.mark.parametrize("limit", ["SCHEMAS_MAX", "SCHEMAS_BYTES_MAX"])
def test_schemas_without_end_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """The node's manifest has all schemas of its log. Known schemas are still accepted, and so are
    changes."""
    monkeypatch.setattr(node_schemas, limit, 3 if limit == "SCHEMAS_MAX" else 3 * 100)
    settings, size = config(tmp_path), len(schema(1)[1])
    few = [schema(number, 8 + 100 - size) for number in range(4)]
    with serving(settings), plugin(settings) as member:
        assert put_schemas(member, *few[:3])[0] == "ack"
        code, text = put_schemas(member, few[3])[1:]
        assert code == "schema-refused" and "this node has 3 schemas" in str(text)
        assert member.put(a="1")[0] == put_schemas(member, *few[:3])[0] == "ack"
    store = open_store(settings.url)
    archive_offline(Context(store), Identity("default", "c", "n1"), "default/c/nodes/n1")
    with serving(settings), plugin(settings) as member:
        assert put_schemas(member, few[3])[1] == "schema-refused"
        assert put_schemas(member, few[1])[0] == "ack"
