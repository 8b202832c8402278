"""`imap-wal get` and `imap-wal diff`."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest

import imap_wal
from imap_wal import encoder
from imap_wal.clock import SystemClock
from tests.cli.conftest import Run


def test_get_shows_the_newest_value_with_its_place(run: Run, url: str) -> None:
    dumped = run("dump", url, "--key", "o1", "-o", "json").lines[-1]
    ended = run("get", url, "--map", "orders", "o1", "-o", "json")
    assert ended.code == 0
    assert ended.json["keys"] == [{**dumped, "state": "live"}]
    text = run("get", url, "--map", "orders", "o1").out
    assert "paid" in text
    assert dumped["position"] in text
    assert dumped["time"] in text


def test_get_finds_a_key_as_every_command_shows_it(run: Run, tmp_path: Path) -> None:
    keys = ["text", 42, ["a", 1], b"\x00\xff", "new\nline"]
    with imap_wal.open(tmp_path.as_uri()) as store:
        for key in keys[:3] + keys[4:]:
            store.map("m")[key if not isinstance(key, list) else tuple(key)] = repr(key)
        store.map("m")[keys[3]] = "bytes"
    for line in run("dump", tmp_path, "-o", "json").lines:
        for shown in (line["key_bytes"], json.dumps(line["key"]), line["key"]):
            if not isinstance(shown, str):
                shown = str(shown)
            if isinstance(line["key"], dict | list) and shown == str(line["key"]):
                continue
            found = run("get", tmp_path, "--map", "m", shown, "-o", "json").json["keys"]
            assert [each["key_bytes"] for each in found] == [line["key_bytes"]]


@pytest.mark.parametrize(
    "key", [date(2026, 1, 2), datetime(2026, 1, 2, 3), UUID(int=5), Decimal("1.5E-9"), timedelta(2)]
)
def test_get_finds_a_date_or_uuid_without_quotation_marks(
    run: Run, tmp_path: Path, key: object
) -> None:
    """In JSON it is text. A key that is this text is shown too."""
    text: str = encoder.plain(key)
    with imap_wal.open(tmp_path, auto_rewrite_percentage=0) as store:
        store.map("m").update({key: "an object", text: "text", "other": 3})
    found = run("get", tmp_path, "--map", "m", text, "-o", "json").json["keys"]
    assert sorted(entry["value"] for entry in found) == ["an object", "text"]


def test_get_says_whether_a_key_was_deleted_and_when(run: Run, url: str) -> None:
    ended = run("get", url, "--map", "orders", "o2")
    (gone,) = [line for line in run("dump", url, "-o", "json").lines if line["deleted"]]
    assert (ended.code, ended.out) == (1, "")
    assert f"key o2 was deleted at {gone['time']}" in ended.err
    assert gone["position"] in ended.err
    ended = run("get", url, "--map", "orders", "never")
    assert (ended.code, ended.out) == (1, "")
    assert "map 'orders' has no key 'never', and no earlier entry of it" in ended.err
    assert run("get", url, "--map", "oders", "o1").code == 1
    assert run("get", url, "o1").code == 2


def test_get_knows_of_a_deletion_until_its_file_is_pruned(run: Run, url: str) -> None:
    """A snapshot does not have the deleted key, and covers the deletion."""
    before = run("get", url, "--map", "orders", "o2").err
    assert "key o2 was deleted at" in before
    assert run("rewrite", url).code == 0
    assert run("get", url, "--map", "orders", "o2").err == before
    found = run("get", url, "--map", "orders", "o2", "--history", "-o", "json").json["keys"]
    assert [each["state"] for each in found] == ["deleted"]
    assert [each["deleted"] for each in found[0]["versions"]] == [True, False]
    assert run("prune", url, "--yes").code == 0
    assert "no earlier entry of it" in run("get", url, "--map", "orders", "o2").err


def test_get_knows_clears_and_expiry(run: Run, tmp_path: Path) -> None:
    with imap_wal.open(tmp_path.as_uri(), clock=SystemClock(-10_000)) as store:
        store.map("m").put("short", 1, ttl=5)
        store.map("c")["k"] = 1
        store.map("c").clear()
        store.map("c")["again"] = 2
    assert "key short expired at 2" in run("get", tmp_path, "--map", "m", "short").err
    assert "key k was deleted by a clear at 2" in run("get", tmp_path, "--map", "c", "k").err
    assert run("get", tmp_path, "--map", "c", "again").code == 0


def test_the_history_of_a_key_has_each_change_once(run: Run, url: str) -> None:
    """Changes that a snapshot covers are there, too, until a prune removes their files. A clear is
    a change."""
    wanted = [{"state": "paid"}, {"state": "new"}]

    def values() -> list[object]:
        found = run("get", url, "--map", "orders", "o1", "--history", "-o", "json").json["keys"]
        return [each["value"] for each in found[0]["versions"]]

    assert values() == wanted
    assert run("rewrite", url).code == 0
    assert values() == wanted
    text = run("get", url, "--map", "orders", "o1", "--history").out
    assert text.splitlines()[0] == "prod/eu: live, 2 versions"
    with imap_wal.open(url, namespace="prod", cluster="eu", node="n1") as store:
        store.map("orders").clear()
    ended = run("get", url, "--map", "orders", "o1", "--history", "-o", "json")
    assert ended.code == 1
    assert ended.json["keys"][0]["state"] == "cleared"
    assert [each["deleted"] for each in ended.json["keys"][0]["versions"]] == [True, False, False]


def test_diff_names_what_was_added_removed_and_changed(run: Run, url: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    assert run("restore", url, "--to", copy).code == 0
    assert run("diff", url, copy).code == 0
    with imap_wal.open(copy, namespace="prod", cluster="eu", node="restored") as store:
        orders = store.map("orders")
        orders["added"] = 1
        orders["o1"] = {"state": "lost"}
        del orders["o3"]
        store.map("new")["k"] = 1
    ended = run("diff", url, copy, "-o", "json")
    assert ended.code == 1
    new, orders_ = ended.json["maps"]
    assert (new["map"], new["added"], new["removed"], new["changed"]) == ("new", 1, 0, 0)
    keys = {each["key"]: each for each in orders_["keys"]}
    assert {key: each["kind"] for key, each in keys.items()} == {
        "added": "added",
        "o1": "changed",
        "o3": "removed",
    }
    assert (keys["o1"]["old"], keys["o1"]["new"]) == ({"state": "paid"}, {"state": "lost"})
    text = run("diff", url, copy).out
    assert '~ orders[o1] {"state": "paid"} -> {"state": "lost"}' in text


def test_diff_compares_two_times_of_one_log(run: Run, url: str) -> None:
    times = [line["timestamp_ms"] for line in run("dump", url, "-o", "json").lines]
    with imap_wal.open(
        url, namespace="prod", cluster="eu", node="n1", clock=SystemClock(60_000)
    ) as store:
        for number in range(20):
            store.map("orders")[f"later{number:02}"] = number
    then = f"@{max(times)}"
    ended = run("diff", url, "--map", "orders", "--as-of", then, "--limit", 3)
    assert ended.code == 1
    assert "+ orders[later02] 2" in ended.out
    assert "later03" not in ended.out
    assert "+ orders: 17 more added" in ended.out
    assert run("diff", url, "--as-of", then, "--as-of", then).code == 0


@pytest.mark.parametrize("words", [(), ("--as-of", "@1000"), ("/nowhere",)])
def test_trouble_of_diff_is_not_a_difference(run: Run, url: str, words: tuple[str, ...]) -> None:
    assert run("diff", url, *words).code == 2
