"""`imap-wal claim`: an operator takes the log from a cluster."""

from __future__ import annotations

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
