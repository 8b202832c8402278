"""Views: the members that may write, agreed by the storage. Of two halves one wins."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imap_wal.agent.membership import claims as claims_module
from imap_wal.agent.membership.claims import find_cutoffs
from imap_wal.clock import SeededRandomness
from imap_wal.context import Context, open_context
from imap_wal.manifest.claims import ClaimManifest, claim_manifests
from imap_wal.manifest.cluster import ClusterManifestLog
from imap_wal.placement import open_store
from imap_wal.read.cluster import ClusterLog
from tests.agent.harness import config, named, serving
from tests.kit.halves import Halves, greet, member, restored, stranger, view
from tests.support import FakeClock


def claims(url: str) -> ClaimManifest:
    found = claim_manifests(Context(open_store(url)), "default/c").read()[1]
    return replace(
        found,
        claims=named(dict(found.claims)),
        members=named(found.members),
        lost=named(found.lost),
    )


def test_survivors_get_the_next_view(halves: Halves) -> None:
    """They continue to write; the lost member is refused."""
    assert view(halves.a, "ab", "c") == ["view", 2, ["a", "b"]]
    for each in (halves.a, halves.b):
        assert greet(each)[0] == "welcome"
        assert each.incarnation == 2
        assert each.put(**{f"late {each.member}": "1"})[0] == "ack"
    assert halves.c.put(late="2")[0] == "error"
    refused = greet(halves.c, view=1)
    assert refused[:2] == ["error", "void-incarnation"]
    assert (
        "member c was left out of view 2: it must join the cluster again as a new member"
        in refused[2]
    )
    assert restored(halves.url) == {
        "of a": "1",
        "of b": "1",
        "of c": "1",
        "late a": "1",
        "late b": "1",
    }


def test_a_lost_members_appends_after_the_claim_are_void(halves: Halves) -> None:
    """Its agent sees the claim between sync and acknowledgement, although the cluster id is the
    same."""
    assert view(halves.a, "ab", "c")[0] == "view"
    answer = halves.c.put(late="lost")
    assert answer[:2] == ["error", "outcome-unknown"]
    assert "a newer view of this one" in answer[2]
    assert greet(halves.a)[0] == "welcome"
    assert "late" not in restored(halves.url)
    assert halves.c.put(late="lost")[:2] == ["error", "void-incarnation"]


def test_the_second_half_gets_no_view_of_its_own(halves: Halves) -> None:
    """Of two halves, the first one that claims a view excludes the other."""
    assert view(halves.a, "a", "bc") == ["view", 2, ["a"]]
    for each in (halves.b, halves.c):
        refused = view(each, "bc", "a")
        assert refused[:2] == ["error", "void-incarnation"]
        assert "must join the cluster again as a new member" in refused[2]
    assert claims(halves.url).members == ("a",)


def test_two_claimers_of_one_half_get_the_same_view(halves: Halves) -> None:
    assert (
        view(halves.a, "ab", "c")
        == view(halves.b, "ab", "c")
        == view(halves.a, "ab", "c")
        == ["view", 2, ["a", "b"]]
    )
    assert (
        len(
            ClusterManifestLog(
                Context(open_store(halves.url), clock=FakeClock(), randomness=SeededRandomness(1)),
                "default/c",
            )
            .read()[1]
            .lifetimes
        )
        == 2
    )


def test_a_lost_view_answer_is_repeated(halves: Halves) -> None:
    """The repeated request gets the newest view, and claims nothing."""
    assert view(halves.a, "ab", "c") == ["view", 2, ["a", "b"]]
    assert view(halves.a, "a", "b") == ["view", 3, ["a"]]
    assert view(halves.a, "ab", "c") == ["view", 3, ["a"]], "a late request claims nothing"
    assert view(halves.b, "ab", "c")[:2] == ["error", "void-incarnation"], (
        "and does not admit a lost member"
    )


def test_a_member_that_joins_a_view_is_in_its_list(halves: Halves) -> None:
    """It joins by the view's number, and a later view can exclude it."""
    view(halves.a, "ab", "c")
    with member(halves.settings["c"], "d", view=2) as joined:
        assert joined.put(joined="1")[0] == "ack"
        assert claims(halves.url).members == ("a", "b", "d")
        assert view(halves.a, "ab", "d") == ["view", 3, ["a", "b"]], (
            "it is fenced as every other member"
        )
        assert joined.put(joined="2")[0] == "error"
    assert restored(halves.url)["joined"] == "1"


def test_a_member_lost_before_its_hello_cannot_join(halves: Halves) -> None:
    """Otherwise it would write although the other members assume that it is fenced."""
    view(halves.a, "ab", "c")
    assert view(halves.a, "ab", "d") == ["view", 2, ["a", "b"]], (
        "nothing of it is there to be fenced"
    )
    with stranger(halves.settings["c"], "d") as late:
        assert greet(late, view=2)[:2] == ["error", "void-incarnation"]


def test_a_member_with_another_view_cannot_join(halves: Halves) -> None:
    """Only the number of the newest view counts."""
    view(halves.a, "ab", "c")
    with stranger(halves.settings["c"], "d") as late:
        for known in (0, 1, 3):
            assert greet(late, view=known)[:2] == ["error", "void-incarnation"]
        assert greet(late, view=2)[0] == "welcome"


def test_a_claim_without_its_lifetime_is_completed(
    halves: Halves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claimer's process ended before it published the lifetime; the next hello does that."""
    begin = claims_module.begin

    def ends(cluster: ClusterLog, newest: ClaimManifest) -> bool:
        raise claims_module.VoidIncarnation("the process ends here")

    monkeypatch.setattr(claims_module, "begin", ends)
    assert view(halves.a, "ab", "c")[0] == "error"
    assert (claims(halves.url).newest, claims(halves.url).members) == (2, ("a", "b"))
    monkeypatch.setattr(claims_module, "begin", begin)
    assert halves.c.put(still="1")[0] == "ack", "nothing was cut yet"
    assert greet(halves.b)[0] == "welcome"
    assert halves.c.put(late="1")[0] == "error"
    assert restored(halves.url) == {"of a": "1", "of b": "1", "of c": "1", "still": "1"}


def test_an_agent_frozen_during_a_claim_acknowledges_nothing(
    halves: Halves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops between write and acknowledgement, and the whole claim happens meanwhile."""
    log = halves.agents["c"]._log.node_log
    sync, meanwhile = log.sync, []

    def frozen() -> None:
        sync()
        if not meanwhile:
            meanwhile.append(view(halves.a, "ab", "c"))
            meanwhile.append(greet(halves.a)[0])

    monkeypatch.setattr(log, "sync", frozen)
    answer = halves.c.put(late="1")
    assert meanwhile == [["view", 2, ["a", "b"]], "welcome"]
    assert answer[:2] == ["error", "outcome-unknown"]
    assert restored(halves.url)["late"] == "1", "it was in the log when the cutoff was read"


def test_a_late_lifetime_does_not_change_a_later_one(
    halves: Halves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two claimers, the first one reads its cutoffs and then sleeps."""
    find, slept = find_cutoffs, list[Any]()

    def slow(log: ClusterLog) -> Any:
        cuts = find(log)
        if not slept:
            slept.append(True)
            assert halves.c.put(**{"before the second": "1"})[0] == "error"
            monkeypatch.setattr(claims_module, "find_cutoffs", find)
            slept.append(view(halves.b, "b", "ac"))
        return cuts

    monkeypatch.setattr(claims_module, "find_cutoffs", slow)
    assert view(halves.a, "ab", "c")[:2] == ["error", "void-incarnation"]
    assert slept[1] == ["view", 3, ["b"]]
    assert [
        each.incarnation
        for each in ClusterLog(open_context(halves.url), "default", "c").manifest().lifetimes
    ] == [1, 3]


BAD: list[dict[str, Any]] = [
    {"members": ["b"]},
    {"members": []},
    {"members": "a"},
    {"members": ["a", 1]},
    {"members": ["a", ""]},
    {"members": None},
    {"lost": None},
    {"lost": ["a"]},
    {"lost": [1]},
    {"members": ["a", "b"], "lost": ["b"]},
    {"cluster_id": "Y"},
    {"member_uuid": "b"},
]


@pytest.mark.parametrize("changes", BAD, ids=str)
def test_a_request_for_a_view_with_wrong_fields_claims_nothing(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    settings = config(tmp_path)
    with serving(settings), member(settings, "a") as asking:
        assert view(asking, "a", "c", changes)[:2] == ["error", "bad-request"]
        assert claims(settings.url).newest == 1


def test_a_view_needs_a_hello(tmp_path: Path) -> None:
    """Before it, the request is answered with `not-ready`."""
    settings = config(tmp_path)
    with serving(settings), stranger(settings, "a") as asking:
        assert view(asking, "a")[:2] == ["error", "not-ready"]


@pytest.mark.parametrize("number", [-1, "1", None, 1.5])
def test_a_view_number_has_exactly_its_type(tmp_path: Path, number: Any) -> None:
    """A hello with another type, or a negative number, is refused."""
    settings = config(tmp_path)
    with serving(settings), stranger(settings, "a") as asking:
        assert asking.client.ask("hello", asking.about(view=number))[0][2] == "bad-request"


def test_a_claim_manifest_without_views_admits_every_member() -> None:
    assert ClaimManifest.from_json({"claims": {"X": 3}}) == ClaimManifest({"X": 3})
    assert ClaimManifest({"X": 3}).to_json() == {"claims": {"X": 3}}
    assert ClaimManifest({"X": 3}).admits("anybody", 0)
    closed = ClaimManifest({"X": 3}, ("a",), ("b",))
    assert ClaimManifest.from_json(json.loads(json.dumps(closed.to_json()))) == closed


def test_a_voided_cluster_returns_by_a_rolling_restart(halves: Halves) -> None:
    """The error says so; members that were not restarted are still refused."""
    with member(halves.settings["a"], "lone", cluster="Y") as lone:
        assert lone.put(lone="1")[0] == "ack"
    for each in (halves.a, halves.b, halves.c):
        refused = greet(each, view=1)
        assert refused[:2] == ["error", "void-incarnation"]
        assert (
            "restart the members of this cluster, one after the other or all at once" in refused[2]
        )
    with stranger(halves.settings["a"], "a2") as restarted:
        assert greet(restarted)[0] == "welcome"
        assert restarted.put(again="1")[0] == "ack"
        assert greet(halves.b, view=1)[:2] == ["error", "void-incarnation"], (
            "its entries are not in the log"
        )
        with stranger(halves.settings["b"], "b2") as second:
            assert greet(second, view=restarted.incarnation)[0] == "welcome"
            assert second.put(second="1")[0] == "ack"
    assert restored(halves.url) == {
        "of a": "1",
        "of b": "1",
        "of c": "1",
        "lone": "1",
        "again": "1",
        "second": "1",
    }


def test_a_returning_cluster_yields_to_a_claim_under_way(
    halves: Halves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another cluster claims the log at the same moment, and gets it."""
    with member(halves.settings["a"], "lone", cluster="Y") as lone:
        lone.put(lone="1")
    find, others = find_cutoffs, ExitStack()

    def meanwhile(log: ClusterLog) -> Any:
        monkeypatch.setattr(claims_module, "find_cutoffs", find)
        others.enter_context(member(halves.settings["b"], "other", cluster="Z"))
        return find(log)

    monkeypatch.setattr(claims_module, "find_cutoffs", meanwhile)
    with others, stranger(halves.settings["a"], "a2") as restarted:
        assert greet(restarted)[:2] == ["error", "void-incarnation"]
    assert claims(halves.url).cluster_id == "Z"
