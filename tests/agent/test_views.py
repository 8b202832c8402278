"""Views: the members that may write, agreed by the storage. Of two halves one wins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imap_wal.agent import claims as claims_module
from imap_wal.agent import former, server
from imap_wal.agent.config import AgentConfig
from imap_wal.clock import SeededRandomness
from imap_wal.manifest.cluster import ClaimManifest, claim_manifests, cluster_manifests
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.view import MaterializedView
from imap_wal.settings import Settings
from storage_backends import open_store
from tests.agent.harness import Plugin, config, identity, named, plugin, serving
from tests.support import FakeClock, eventually


@contextmanager
def member(settings: AgentConfig, name: str, view: int = 0, cluster: str = "X") -> Iterator[Plugin]:
    """A member that has said hello; its UUID is its name."""
    with plugin(
        settings, greet=False, cluster_id=cluster, uuid=f"plugin of {name}", member=name
    ) as found:
        found.hello(view=view)
        yield found


@contextmanager
def stranger(settings: AgentConfig, name: str, uuid: str = "") -> Iterator[Plugin]:
    """A member that has not said hello yet."""
    with plugin(
        settings, greet=False, cluster_id="X", uuid=uuid or f"plugin of {name}", member=name
    ) as found:
        yield found


def view(
    asking: Plugin, members: str, lost: str = "", changes: dict[str, Any] | None = None
) -> list[Any]:
    """The answer's header without its number."""
    about = {
        "cluster_id": asking.cluster_id,
        "member_uuid": asking.member,
        "members": list(members),
        "lost": list(lost),
    }
    header, _ = asking.client.ask("view", {**about, **(changes or {})})
    return [header[0], *header[2:]]


def greet(asking: Plugin, view: int = 0) -> list[Any]:
    """Say hello again; the answer's header without its number."""
    header, _ = asking.client.ask("hello", asking.about(view=view))
    if header[0] == "welcome":
        asking.session, asking.incarnation = header[2]["session"], header[2]["incarnation"]
        asking.request = header[2]["last_request"]
    return [header[0], *header[2:]]


def claims(url: str) -> ClaimManifest:
    found = claim_manifests(
        open_store(url), "default/c", {}, FakeClock(), SeededRandomness(1)
    ).read()[1]
    return replace(
        found,
        claims=named(dict(found.claims)),
        members=named(found.members),
        lost=named(found.lost),
    )


def restored(url: str) -> dict[str, str]:
    store = open_store(url)
    with closing(MaterializedView(ClusterLog(store, "default", "c"), Settings())) as found:
        found.catch_up()
        return {
            row[1].decode(): (row[3] or b"").decode()
            for rows in found.rows("orders")
            for row in rows
        }


class Halves:
    """Members a, b and c of one cluster, each with an agent of its own; all have written."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.settings = {name: config(folder, f"n-{name}") for name in "abc"}
        self.url = self.settings["a"].url
        self.agents = {
            name: stack.enter_context(serving(each)) for name, each in self.settings.items()
        }
        self.a, self.b, self.c = (
            stack.enter_context(member(each, name)) for name, each in self.settings.items()
        )
        for each in (self.a, self.b, self.c):
            assert each.put(**{f"of {each.member}": "1"})[0] == "ack"


@pytest.fixture
def halves(tmp_path: Path) -> Iterator[Halves]:
    with ExitStack() as stack:
        yield Halves(stack, tmp_path)


# ---- of two halves one wins ----------------------------------------------------------------------


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
            cluster_manifests(open_store(halves.url), "default/c", FakeClock(), SeededRandomness(1))
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
        "and does not let a lost member in"
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
    """Otherwise it would write beside members that take it for fenced."""
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
    log = halves.agents["c"]._node_log
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
    assert restored(halves.url)["late"] == "1", "it was in the log when the cut was pinned"


def test_a_late_lifetime_does_not_change_a_later_one(
    halves: Halves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two claimers, the first one pins its cuts and then sleeps."""
    pin, slept = claims_module.pin_cuts, []

    def slow(log: ClusterLog) -> Any:
        cuts = pin(log)
        if not slept:
            slept.append(True)
            assert halves.c.put(**{"before the second": "1"})[0] == "error"
            monkeypatch.setattr(claims_module, "pin_cuts", pin)
            slept.append(view(halves.b, "b", "ac"))
        return cuts

    monkeypatch.setattr(claims_module, "pin_cuts", slow)
    assert view(halves.a, "ab", "c")[:2] == ["error", "void-incarnation"]
    assert slept[1] == ["view", 3, ["b"]]
    assert [
        each.incarnation
        for each in ClusterLog(open_store(halves.url), "default", "c").manifest().lifetimes
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
    """Older versions wrote no list of members."""
    assert ClaimManifest.from_json({"claims": {"X": 3}}) == ClaimManifest({"X": 3})
    assert ClaimManifest({"X": 3}, 1).to_json() == {"claims": {"X": 3}, "permits": 1}
    assert ClaimManifest({"X": 3}).admits("anybody", 0)
    closed = ClaimManifest({"X": 3}, 1, ("a",), ("b",))
    assert ClaimManifest.from_json(json.loads(json.dumps(closed.to_json()))) == closed


# ---- a cluster that another one followed ---------------------------------------------------------


def test_a_voided_cluster_returns_by_a_rolling_restart(halves: Halves) -> None:
    """The error says so; members that were not restarted stay out."""
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
            "what it holds is not in the log"
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
    pin, others = claims_module.pin_cuts, ExitStack()

    def meanwhile(log: ClusterLog) -> Any:
        monkeypatch.setattr(claims_module, "pin_cuts", pin)
        others.enter_context(member(halves.settings["b"], "other", cluster="Z"))
        return pin(log)

    monkeypatch.setattr(claims_module, "pin_cuts", meanwhile)
    with others, stranger(halves.settings["a"], "a2") as restarted:
        assert greet(restarted)[:2] == ["error", "void-incarnation"]
    assert claims(halves.url).cluster_id == "Z"


# ---- former: what counts of the session before ---------------------------------------------------


def test_a_survivor_learns_which_of_its_requests_count(halves: Halves) -> None:
    session = halves.b.session
    view(halves.a, "ab", "c")
    assert halves.b.put(above="1")[:2] == ["error", "outcome-unknown"], "above the cut"
    welcome = greet(halves.b)[1]
    assert welcome["last_request"] == 0 and welcome["session"] != session
    assert welcome["former"] == [[session, 1]]
    assert greet(halves.b)[1]["former"] == [[session, 1]], "also when the answer was lost"
    assert "above" not in restored(halves.url)


def test_a_request_below_the_cut_that_was_not_acknowledged_counts(
    halves: Halves, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, sync = halves.b.session, halves.agents["b"]._node_log.sync
    claimed: list[Any] = []

    def frozen() -> None:
        sync()
        if not claimed:
            claimed.append(view(halves.a, "ab", "c"))

    monkeypatch.setattr(halves.agents["b"]._node_log, "sync", frozen)
    assert halves.b.put(below="1")[:2] == ["error", "outcome-unknown"]
    assert claimed[0][0] == "view"
    assert greet(halves.b)[1]["former"] == [[session, 2]]
    assert restored(halves.url)["below"] == "1"


def one_turn(
    agent: server.Agent, asking: Plugin, kind: str, *fields: Any, payload: bytes = b""
) -> list[Any]:
    """A request to an agent that nothing else serves; the answer's header."""
    number = asking.client.post(kind, *fields, payload=payload)
    eventually(lambda: agent._turn(10) or asking.client._socket.poll(0), "it answers")
    return asking.client.answer(number)[0]


@pytest.mark.parametrize("killed", ["before the hello", "after the hello"])
def test_former_is_the_same_after_the_agent_was_killed(tmp_path: Path, killed: str) -> None:
    one, two = config(tmp_path, "n1"), config(tmp_path, "n2")
    agent = server.Agent(one)
    try:
        with serving(two), member(two, "a") as a, stranger(one, "b") as b:
            welcome = one_turn(agent, b, "hello", b.about())[2]
            b.session, b.incarnation = welcome["session"], welcome["incarnation"]
            assert (
                one_turn(agent, b, "append", b.session, 1, 1, payload=b.payload(1, {"below": "1"}))[
                    0
                ]
                == "ack"
            )
            assert view(a, "ab", "c")[0] == "view"
            assert (
                one_turn(agent, b, "append", b.session, 2, 1, payload=b.payload(2, {"above": "1"}))[
                    0
                ]
                == "error"
            )
            if killed == "after the hello":
                assert one_turn(agent, b, "hello", b.about())[2]["former"] == [[b.session, 1]]
    finally:
        agent._reads.close()
        agent._router.close()
    # The log was not closed: the next agent takes it over, as after a kill.
    again = AgentConfig(**{name: getattr(one, name) for name in one.__slots__} | {"takeover": True})
    with serving(again), stranger(again, "b") as later:
        assert greet(later)[1]["former"] == [[b.session, 1]]
        assert later.put(after="1")[0] == "ack"
    assert restored(one.url) == {"below": "1", "after": "1"}


def test_former_counts_each_earlier_view_by_its_cut(halves: Halves) -> None:
    """A member that missed two views gets one pair for each of its sessions."""
    sessions = [halves.b.session]
    view(halves.a, "ab", "c")
    halves.b.put(void="1")
    greet(halves.b)
    sessions.append(halves.b.session)
    assert halves.b.put(second="1", third="1")[0] == "ack"
    assert greet(halves.a)[0] == "welcome"
    assert view(halves.a, "ab", "d") == ["view", 2, ["a", "b"]]
    assert view(halves.a, "a", "b") == ["view", 3, ["a"]]
    halves.b.put(void="2")
    first, second = (
        halves.agents["a"]._sessions._by_plugin[identity("plugin of a"), incarnation].number
        for incarnation in (1, 2)
    )
    assert greet(halves.a)[1]["former"] == [[first, 1], [second, 0]]
    with member(halves.settings["b"], "e", view=3):
        known = halves.agents["b"]._node_log.manifests.read()[1].former
    assert [known[session] for session in sessions] == [1, 2]


def test_former_is_omitted_when_files_are_gone(
    halves: Halves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files above the cut were removed: an answer that cannot be proved is not given."""
    view(halves.a, "ab", "c")
    assert halves.b.put(void="1")[0] == "error"
    log = halves.agents["b"]._node_log
    log.manifests.update(
        lambda manifest: manifest.__class__.from_json(
            {**manifest.to_json(), "removed": tuple(log.end)}
        )
    )
    assert greet(halves.b)[1]["former"] == []


def test_former_is_read_from_archives_too(halves: Halves) -> None:
    """The keeper archived what was above the cut before the member said hello."""
    session = halves.b.session
    view(halves.a, "ab", "c")
    assert halves.b.put(void="1")[0] == "error"
    halves.agents["b"]._archive()
    assert greet(halves.b)[1]["former"] == [[session, 1]]
    assert "void" not in restored(halves.url)


def test_former_is_not_given_during_another_claim(
    halves: Halves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cut may be lower than what was read; an answer must stay true."""
    view(halves.a, "ab", "c")
    assert halves.b.put(void="1")[0] == "error"
    look = former.last_that_count
    claimed: list[Any] = []

    def meanwhile(*arguments: Any) -> dict[int, int]:
        found = look(*arguments)
        if not claimed:
            claimed.append(view(halves.a, "a", "b"))
        return found

    assert greet(halves.a)[0] == "welcome"
    monkeypatch.setattr(former, "last_that_count", meanwhile)
    refused = greet(halves.b)
    assert refused[:2] == ["error", "not-ready"]
    assert "say hello again" in refused[2]
    assert greet(halves.b)[:2] == ["error", "void-incarnation"]
