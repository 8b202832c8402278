"""Members get no entries of programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import imap_wal
from tests.agent.harness import config, plugin, serving

WAYS: dict[str, dict[str, Any]] = {
    "msgpack": {},
    "types": {"key": str, "value": int},
    "raw": {"raw": True},
    "pickle": {"serializer": "pickle"},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_map_of_a_program_is_refused_to_members(tmp_path: Path, way: str) -> None:
    settings = config(tmp_path)
    with imap_wal.open(settings.url, node="program", cluster=settings.cluster) as store:
        store.map("mine", **WAYS[way])[b"k" if way == "raw" else "k"] = b"v" if way == "raw" else 7
    with serving(settings) as agent, plugin(agent.config) as member:
        member.put(a="1")
        assert member.values() == {"a": "1"}
        for kind, payload in (("list", b""), ("load", b"\xc4\x02\xa1k")):
            fields = ("mine", 1) if payload else ("mine", None, 10, [0])
            header, _ = member.client.ask(kind, *fields, payload=payload)
            assert header[0] == "error"
            assert f"entries of class '{'msgpack[' if way == 'types' else way}" in header[3]
            assert "which programs wrote" in header[3]


def test_a_map_without_live_keys_is_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any key of the map, also a deleted one, shows whether a program wrote the map."""
    with serving(config(tmp_path)) as agent, plugin(agent.config) as member:
        member.put(a="1", b="2")
        member.put(a=None, b=None)
        monkeypatch.setattr(agent._view, "rows", lambda *arguments: 1 // 0)
        assert member.load("a", "b") == {}
        assert member.client.ask("list", "orders", None, 10, [0])[0][0] == "list"


def test_members_may_use_a_map_that_a_program_emptied(tmp_path: Path) -> None:
    settings = config(tmp_path)
    with imap_wal.open(settings.url, node="program", cluster=settings.cluster) as store:
        store.map("orders")["k"] = 7
        del store.map("orders")["k"]
    with serving(settings) as agent, plugin(agent.config) as member:
        assert member.load("a") == {}
        member.put(a="1")
        assert member.load("a") == {"a": ("1", 0)}
