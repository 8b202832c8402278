"""Which Hazelcast cluster may write: its claim has a permit, and a later claim deletes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_backends import open_store
from storage_backends.local import LocalStore
from tests.agent.harness import config, plugin, serving


def permits(url: str) -> list[str]:
    found = [
        file.path
        for file in open_store(url).list("default/c/claims")
        if file.path.endswith(".claim")
    ]
    return sorted(found)


def test_only_the_newest_claim_has_a_permit(tmp_path: Path) -> None:
    settings = config(tmp_path)
    with serving(settings):
        for number in range(1, 4):
            with plugin(
                settings, cluster_id=f"cluster-{number}", uuid=f"plugin-{number}"
            ) as member:
                assert member.put(a="1")[0] == "ack"
                assert permits(settings.url) == [f"default/c/claims/{number:08d}.claim"]


def test_a_stale_listing_does_not_hide_a_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing more is acknowledged for the old cluster, although its agent does not see the next
    claim yet. NFS clients may cache for a minute that a file is absent."""
    one, two = config(tmp_path, "n1"), config(tmp_path, "n2")
    with serving(one) as agent, serving(two), plugin(one) as old:
        assert old.put(a="1")[0] == "ack"
        claims = agent._log.node_log.claims
        before, next_claim = claims.read(), claims.next_path(claims.read()[0])
        monkeypatch.setattr(claims, "read", lambda: before)
        there = LocalStore.exists
        monkeypatch.setattr(
            LocalStore, "exists", lambda store, path: path != next_claim and there(store, path)
        )
        with plugin(two, cluster_id="cluster-2", uuid="plugin-2") as new:
            assert new.put(b="1")[0] == "ack"
            answer = old.put(c="1")
        assert answer[0] == "error"
        assert "this log was claimed after incarnation" in str(answer)


def test_a_log_copied_without_its_permit_is_claimed_again(tmp_path: Path) -> None:
    """A copy that lacks the empty file of the permit can be used."""
    settings = config(tmp_path)
    with serving(settings), plugin(settings) as member:
        assert member.put(a="1")[0] == "ack"
    for path in permits(settings.url):
        open_store(settings.url).delete(path)
    with serving(settings), plugin(settings) as member:
        assert member.put(a="2")[0] == "ack"
        assert member.values() == {"a": "2"}
    assert len(permits(settings.url)) == 1
