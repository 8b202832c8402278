"""Fixtures of the tests of the command line: a runner in this process, and small logs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import imap_wal
from rewrite_cli import cli


@dataclass(frozen=True)
class Ended:
    """A command that ran."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Ended]


def plugin_properties(hazelcast: dict[str, Any]) -> dict[str, str]:
    """The plug-in's properties in a member's configuration."""
    prefix = "imap-wal."
    return {
        name.removeprefix(prefix): value
        for name, value in hazelcast["properties"].items()
        if name.startswith(prefix)
    }


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("ls", url)`: the command as a user would start it, with its exit code; in an empty
    folder, without variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))

    def start(*words: object, stdin: str | None = None, env: dict[str, str] | None = None) -> Ended:
        for name, value in (env or {}).items():
            monkeypatch.setenv(name, value)
        runner = CliRunner()
        with runner.isolation(input=stdin) as (stdout, stderr, _):
            code = 0
            try:
                cli.main([str(word) for word in words])
            except SystemExit as ended:
                code = int(ended.code or 0)
            return Ended(code, stdout.getvalue().decode(), stderr.getvalue().decode())

    return start


@pytest.fixture(scope="session")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of which each test gets a copy."""
    root = tmp_path_factory.mktemp("two-nodes")
    with imap_wal.open(root, namespace="prod", cluster="eu", node="n1") as store:
        orders = store.map("orders")
        orders.update({f"o{number}": {"state": "new"} for number in range(10)})
        orders["o1"] = {"state": "paid"}
        del orders["o2"]
        store.archive()
        orders["o3"] = {"state": "sent"}
    with imap_wal.open(root, namespace="prod", cluster="eu", node="n2") as store:
        store.map("orders")["o4"] = {"state": "back"}
        store.map("sessions").put("s1", "short", ttl=3600)
    return root


@pytest.fixture
def url(tmp_path: Path, two_nodes: Path) -> str:
    """A log of two nodes: overwritten and deleted keys, two maps, one archive."""
    shutil.copytree(two_nodes, tmp_path / "maps")
    return f"file://{tmp_path}/maps"


@pytest.fixture
def root(url: str) -> Path:
    return Path(url.removeprefix("file://"))


@pytest.fixture
def newest_segment(root: Path) -> Path:
    """The newest segment of n1."""
    return max((root / "prod/eu/nodes/n1/wal").glob("*.wal"))


@pytest.fixture(scope="session")
def three_opens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of which each test gets a copy."""
    root = tmp_path_factory.mktemp("three-opens")
    for value in range(3):
        with imap_wal.open(root, node="n1", preallocate=False) as store:
            for key in range(10):
                store.map("m")[f"k{key}"] = [value, key]
    return root


@pytest.fixture
def log(tmp_path: Path, three_opens: Path) -> Path:
    """Three segments of one node, written by three opens; the folder of the segments."""
    shutil.copytree(three_opens, tmp_path / "log")
    return tmp_path / "log/default/embedded/nodes/n1/wal"


def found(ended: Ended) -> dict[Any, Any]:
    """key_text → value_json of an answer of `query` in JSON."""
    assert ended.code == 0, ended.err
    return {
        json.dumps(key) if isinstance(key := row["key_text"], dict) else key: row["value_json"]
        for row in ended.lines
    }
