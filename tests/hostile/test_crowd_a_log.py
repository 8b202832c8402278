"""Attack: as a member, fill a log with things that each cost files or manifests."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest
from structlog.testing import capture_logs

from imap_wal.agent.config import AgentConfig
from imap_wal.errors import InvalidSetting
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
    """The maps that are there go on, also after a restart in which another map comes first."""
    settings = limited(tmp_path, 3)
    with serving(settings), plugin(settings) as member:
        member.keys()  # the agent has read the logs
        assert put(member, "a", "b")[0] == put(member, "c")[0] == "ack"
        with capture_logs() as lines:
            code, text = put(member, "a", "d", "e")[1:]
        assert code == "full" and "map 'd' is new, and there are 3 maps; max_maps is 3" in text
        assert [line["event"] for line in lines] == ["map refused"]
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
        eventually(lambda: agent._reads.maps, "the merge at start is done")
        agent._reads.maps = None
        assert put(member, "new")[0] == "ack"
        assert "map 'a' may be new" in str(put(member, "a", "b"))
        member.keys()
        member.hello()
        assert put(member, "a", "b")[0] == "ack"
        assert "map 'other' is new, and there are 3 maps" in str(put(member, "other"))


@pytest.mark.parametrize("most", [0, 10**6 + 1, "3", True, 2.0])
def test_a_limit_of_maps_is_a_number(tmp_path: Path, most: object) -> None:
    with pytest.raises(InvalidSetting, match="max_maps"):
        limited(tmp_path, most)  # type: ignore[arg-type]
