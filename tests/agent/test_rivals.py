"""Two nodes claim one change of a key, in one map of many: the agent serves all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from imap_wal import format
from imap_wal.context import open_context
from imap_wal.entry import pack
from imap_wal.layout import Identity
from imap_wal.settings import Settings
from imap_wal.write.context import LogContext
from imap_wal.write.opening import open_node_log
from tests.agent.harness import config, plugin, serving
from tests.histories import put
from tests.kit.effort import every

MAPS = [f"map-{number:02d}" for number in range(60)]


def write(url: str, node: str, values: dict[str, str | None]) -> None:
    """The log of one half of a split network: each map has the key of this half, and those of
    `values` are in one map that both halves changed."""
    log = open_node_log(
        LogContext(
            open_context(url),
            Identity("default", "c", node),
            Settings(),
        ),
        holder="the test",
    )
    rows = [put(f"of-{node}", node, (3, 1, 1, number), name) for number, name in enumerate(MAPS)]
    rows += [
        put(key, value, (3, 1, 1, 100 + number), MAPS[7])
        for number, (key, value) in enumerate(values.items())
    ]
    log.write(format.ENTRIES, len(rows), [pack(row) for row in rows])
    log.clusters.update(lambda manifest: replace(manifest, incarnation=3))
    log.close()


@every(2)
@pytest.mark.parametrize("memory_bytes", [1 << 30, 1])
def test_conflicts_in_one_map_leave_other_maps_alone(
    tmp_path: Path, memory_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    """One map of sixty has conflicts; all of them are listed and loaded."""
    settings = config(tmp_path, restore_memory_bytes=memory_bytes)
    write(settings.url, "n1", {"a": "1", "b": None, "c": "1", "d": "1"})
    write(settings.url, "n2", {"a": "2", "b": "2", "c": None})
    with serving(settings), plugin(settings) as member:
        both = {"of-n1": "n1", "of-n2": "n2"}
        found = {name: member.values(name) for name in MAPS}
        assert found == {
            **dict.fromkeys(MAPS, both),
            MAPS[7]: {**both, "a": "1", "b": "2", "c": "1", "d": "1"},
        }
        for name in (b"a", b"b", b"c"):
            assert (
                sum(
                    f"key {name!r}" in message and MAPS[7] in message for message in caplog.messages
                )
                == 1
            )
        assert "key b'd'" not in caplog.text
