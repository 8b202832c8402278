"""`imap-wal claim`: an operator takes the log from a cluster."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from imap_wal import layout
from imap_wal.agent.membership.liveness import signs
from storage_backends import open_store
from tests.agent.harness import config, named, plugin, serving
from tests.cli.conftest import Run
from tests.support import eventually


def test_a_claim_shuts_the_former_cluster_out_at_once(run: Run, tmp_path: Path) -> None:
    """The next cluster does not wait."""
    one, two = (
        config(tmp_path, "n1", lifetime_timeout_s=600),
        config(tmp_path, "n2", lifetime_timeout_s=600),
    )
    store = open_store(one.url)
    with (
        serving(one),
        serving(two),
        plugin(one) as old,
        plugin(two, greet=False, cluster_id="cluster-2", uuid="plugin-2") as new,
    ):
        assert old.put(a="1")[0] == "ack"
        eventually(lambda: signs(store, "default/c"), "the sign of the first")
        assert new.client.ask("hello", new.about())[0][2] == "not-ready"
        shown = named(run("claim", one.url, "-o", "json").json)
        report = {
            "namespace": "default",
            "cluster": "c",
            "former": "cluster-1",
            "incarnation": 1,
            "signs": ["n1"],
            "claimed": 0,
            "tokens": 0,
            "closed": False,
            "missing": {},
        }
        assert shown == {"dry_run": True, "clusters": [report | {"present": {"n2": "cluster-2"}}]}
        assert old.put(b="1")[0] == "ack", "it was only shown"
        taken = run("claim", one.url, "--force", "--yes", "-o", "json").json
        assert (taken["dry_run"], taken["clusters"][0]["claimed"]) == (False, 2)
        assert old.client.ask("beat")[0][0] == "beat"
        assert old.put(c="1")[0] == "error"
        assert new.hello()["incarnation"] == 3
        assert new.values() == {"a": "1", "b": "1"}
    assert [
        file.path for file in store.list("default/c/claims") if file.path.endswith(".claim")
    ] == [layout.claim_path("default/c", 3)]


def test_a_claim_names_missing_nodes_and_the_choices(run: Run, tmp_path: Path) -> None:
    """One node was stopped cleanly, and of one only an old sign remains; one was never used."""
    one, two, three, unused = (
        config(tmp_path, f"n{number}", lifetime_timeout_s=600) for number in range(1, 5)
    )
    with serving(one), plugin(one) as member, serving(unused):
        for other in (two, three):
            with serving(other), plugin(other, uuid=other.node, member=other.node):
                pass
        killed = layout.present_path("default/c", "n3", 1, 7)
        open_store(one.url).create(killed, b"\n0")
        os.utime(tmp_path / "log" / killed, (1_763_720_000, 1_763_720_000))
        assert member.put(a="1")[0] == "ack"
        shown = " ".join(run("claim", one.url).out.split())
        assert "missing: n2 (last seen 20" in shown
        assert "missing: n3 (last seen 2025-11-21T10:13:20" in shown
        assert "missing: n1" not in shown and "missing: n4" not in shown
        assert "Your choices: - start 2 agents: n2, n3. The wait then ends" in shown
        log = f"{one.url} --namespace default --cluster c"
        assert f"imap-wal forget-node {log} --node n3 --lose --dry-run" in shown
        assert f"imap-wal claim {log} --force" in shown
        assert run("claim", one.url, "-o", "json").json["clusters"][0]["missing"].keys() == {
            "n2",
            "n3",
        }
        shutil.rmtree(tmp_path / "log/default/c/nodes/n2")
        assert "missing: n2 (its log is not here)" in run("claim", one.url).out
        assert "missing" not in run("claim", one.url, "--force", "--yes").out


def test_without_yes_nothing_is_claimed(run: Run, tmp_path: Path) -> None:
    one = config(tmp_path, "n1", lifetime_timeout_s=600)
    with serving(one), plugin(one) as old:
        eventually(lambda: signs(open_store(one.url), "default/c"), "the sign of the cluster")
        ended = run("claim", one.url, "--force")
        asked = " ".join(named(ended.out + ended.err).split())
        assert ended.code == 2
        assert "The agents of n1 hear members of cluster-1" in asked, asked
        assert old.put(a="1")[0] == "ack"


def test_no_token_is_added_before_the_question(run: Run, url: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a" * 40)
    token.chmod(0o600)
    asked = run("claim", url, "--add-token", token, "--force")
    assert asked.code == 2 and "Take the log" in asked.err
    assert "audit" not in asked.err
    assert run("claim", url, "-o", "json").json["clusters"][0]["tokens"] == 0
    added = run("claim", url, "--add-token", token, "-o", "json")
    assert added.json["clusters"][0]["tokens"] == 1


def test_claim_leaves_a_log_without_members_unchanged(run: Run, tmp_path: Path) -> None:
    """No member ever had this log."""
    one = config(tmp_path, "n1")
    with serving(one):
        assert (
            run("claim", one.url, "--force", "--yes", "-o", "json").json["clusters"][0]["claimed"]
            == 0
        )
        assert not open_store(one.url).list("default/c/claims")


def test_a_superseded_cluster_gives_no_sign_of_life(run: Run, tmp_path: Path) -> None:
    """The cluster does not know that another one followed it. It only sends heartbeats: none of its
    requests reads the claim."""
    one = config(tmp_path, "n1", lifetime_timeout_s=0.3)
    store = open_store(one.url)
    with serving(one), plugin(one) as old:
        eventually(lambda: old.client.ask("beat") and signs(store, "default/c"), "the sign")
        run("claim", one.url, "--force", "--yes")
        eventually(
            lambda: old.client.ask("beat") and not signs(store, "default/c"), "the sign is removed"
        )
