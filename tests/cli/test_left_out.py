"""Every command that reads entries names the nodes that it leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

import imap_wal
from imap_wal.context import open_context
from imap_wal.read.cluster import ClusterLog
from rewrite_cli.commands.reading.tail import LineFollower
from tests.cli.conftest import Run
from tests.kit.effort import every

NOTE = "left out: node 'n2' of prod/eu: there is no log in prod/eu/nodes/n2\n"
NODE = {"cluster": "prod/eu", "node": "n2", "why": "there is no log in prod/eu/nodes/n2"}


@pytest.fixture
def short(url: str, root: Path) -> str:
    """The log without that of n2."""
    (root / "prod/eu/nodes/n2").rename(root / "elsewhere")
    return url


@every(3)
@pytest.mark.parametrize(
    "words",
    [
        ("get", "o1", "--map", "orders"),
        ("get", "o1", "--map", "orders", "--history"),
        ("export",),
        ("export", "--as-of", "0s"),
        ("query", "from orders"),
        ("query", "from raw.orders", "--as-of", "0s"),
        ("restore",),
        ("restore", "--as-of", "0s"),
        ("diff", "--as-of", "0s"),
        ("rewrite", "--dry-run"),
    ],
    ids=" ".join,
)
def test_a_missing_node_is_named_once(run: Run, short: str, words: tuple[str, ...]) -> None:
    refused = run(words[0], short, *words[1:])
    assert refused.code != 0 and "'n2'" in refused.err
    ended = run(words[0], short, *words[1:], "--partial")
    assert ended.code == 0, ended.err
    assert ended.err.count(NOTE) == 1, ended.err


@pytest.mark.parametrize("command", ["tail", "dump"])
def test_raw_entries_without_a_node_are_a_finding(run: Run, short: str, command: str) -> None:
    ended = run(command, short)
    assert ended.out and ended.code == 3
    assert ended.err == NOTE
    one = run(command, short, "--node", "n1")
    assert (one.code, one.err) == (0, ""), "the other node was not asked for"


def test_json_names_the_nodes_that_are_left_out(run: Run, short: str) -> None:
    got = run("get", short, "o1", "--map", "orders", "--partial", "-o", "json")
    assert got.json["left_out"] == [NODE]
    compared = run("diff", short, "--as-of", "0s", "--partial", "-o", "json")
    assert compared.json["left_out"] == {"old": [NODE], "new": [NODE]}
    for command in ("restore", "restore --as-of 0s"):
        name, *more = command.split()
        found = run(name, short, *more, "--partial", "-o", "json").json["clusters"]
        assert found[0]["missing"] == {"n2": NODE["why"]}


def test_a_follower_names_a_node_that_goes_away(
    url: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once, until it returns."""
    follower = LineFollower(ClusterLog(open_context(url), "prod", "eu"), (), ())
    assert follower.last(99)
    folder = root / "prod/eu/nodes/n2"
    for _ in range(2):
        folder.rename(root / "elsewhere")
        for _ in range(2):
            assert not list(follower.new())
        (root / "elsewhere").rename(folder)
        with imap_wal.open(url, namespace="prod", cluster="eu", node="n2") as store:
            store.map("orders")["again"] = 1
        assert len(list(follower.new())) == 1
    assert capsys.readouterr().err == NOTE * 2
