"""How an operator ends the wait of a cluster for a node, and how the wait is shown."""

from __future__ import annotations

from pathlib import Path

from tests.agent.harness import named, plugin, serving
from tests.cli.conftest import Run
from tests.kit.starts import former_cluster, settings_of
from tests.support import eventually


def test_forget_node_ends_the_wait_for_a_node(run: Run, tmp_path: Path) -> None:
    """The node will not return."""
    former_cluster(tmp_path, "n1", "n2")
    (one,) = settings_of(tmp_path, "n1")
    with serving(one), plugin(one, greet=False, cluster_id="cluster-2", uuid="new") as member:
        assert "node 'n2'" in member.asked()[2]
        assert run("forget-node", one.url, "--node", "n2", "--lose", "--yes").code == 0
        assert member.asked()[0] == "welcome"


def test_claim_force_ends_the_wait_once(run: Run, tmp_path: Path) -> None:
    former_cluster(tmp_path, "n1", "n2")
    (one,) = settings_of(tmp_path, "n1")
    with serving(one), plugin(one, greet=False, cluster_id="cluster-2", uuid="new") as member:
        assert "node 'n2'" in member.asked()[2]
        shown = named(run("claim", one.url, "-o", "json").json["clusters"][0])
        assert (shown["former"], shown["signs"], shown["present"], shown["claimed"]) == (
            "cluster-1",
            [],
            {"n1": "cluster-2"},
            0,
        )
        assert "n1 (cluster-2)" in named(run("claim", one.url).out)
        assert run("claim", one.url, "--force", "--yes").code == 0
        assert member.hello()["incarnation"] == 3
        assert member.client.ask("bye")[0][0] == "bye"
        with plugin(one, greet=False, cluster_id="cluster-3", uuid="newer") as next_one:
            eventually(lambda: "node 'n2'" in next_one.asked()[2], "the next cluster waits again")


def test_doctor_shows_which_node_an_agent_waits_for(run: Run, tmp_path: Path) -> None:
    former_cluster(tmp_path, "n1", "n2")
    (early,) = settings_of(tmp_path, "n1")
    with serving(early), plugin(early, greet=False, cluster_id="cluster-2", uuid="new") as member:
        assert "agent's start" not in run("doctor", "--agent", early.endpoint).out
        assert "node 'n2'" in member.asked()[2]
        shown = run("doctor", "--agent", early.endpoint)
        assert (
            "agent's start: cluster cluster-2 waits" in named(shown.out)
            and "node 'n2'" in shown.out
        )
    (late,) = settings_of(tmp_path, "n1", start_timeout_s=0)
    with serving(late), plugin(late, greet=False, cluster_id="cluster-2", uuid="new") as member:
        assert member.asked()[0] == "error"
        shown = run("doctor", "--agent", late.endpoint)
        assert shown.code == 3 and "imap-wal forget-node" in shown.out
