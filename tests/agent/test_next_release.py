"""Agents and plug-ins of this release beside those of the next one: agents are upgraded first.

The next release is this code with other numbers: it speaks protocols 1 and 2, and may raise the
number of a format.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from imap_wal import version
from imap_wal.agent import handler, requests
from imap_wal.agent.config import AgentConfig
from imap_wal.errors import UnsupportedVersion
from imap_wal.manifest.cluster import ClusterManifest
from storage_backends.faults import Fault
from tests.agent.harness import Plugin, config, plugin, serve_in_process, serving
from tests.kit.agents import Process, live, logged

NEXT = "999.0.0"
CURRENT_ONLY: dict[str, int] = {}
BOTH, NEXT_ONLY = {"protocol_max": 2}, {"protocol": 2}
"""What plug-ins speak: of this release, of the next one, and of one that no longer speaks 1."""


def serve_next(settings: AgentConfig, ready: Any, fault: Fault) -> None:
    """What a process of the next release runs; `fault.kind`: "format" if it raises a format."""
    requests.NEWEST = 2
    for module in (version, handler):
        setattr(module, "VERSION", NEXT)  # noqa: B010
    if fault.kind == "format":
        ClusterManifest.format += 1
    serve_in_process(settings, ready)


@contextmanager
def next_agent(settings: AgentConfig, kind: str = "protocol") -> Iterator[Process]:
    agent = Process(settings, Fault("error", kind=kind), serve_next)
    try:
        yield agent
    finally:
        if agent.process.exitcode is None:
            agent.end(signal.SIGTERM)


@pytest.mark.parametrize(
    ("spoken", "protocol"), [(CURRENT_ONLY, 1), (BOTH, 2), (NEXT_ONLY, 2)], ids=str
)
def test_a_newer_agent_serves_both_plug_ins(
    tmp_path: Path, spoken: dict[str, int], protocol: int
) -> None:
    settings = config(tmp_path)
    with next_agent(settings), plugin(settings, greet=False) as member:
        welcome = member.hello(plugin_version=NEXT, **spoken)
        assert (welcome["protocol"], welcome["agent_version"]) == (protocol, NEXT)
        assert member.put(a="1")[0] == "ack"
    assert live(settings) == {"a": "1"}


def test_an_older_agent_refuses_a_plug_in_that_needs_more(tmp_path: Path) -> None:
    """Nothing is appended; one that speaks both versions is served."""
    settings = config(tmp_path)
    with serving(settings), plugin(settings, greet=False) as member:
        header, _ = member.client.ask("hello", member.about(plugin_version=NEXT, **NEXT_ONLY))
        assert header[2] == "unsupported-version"
        assert "upgrade the agent first" in header[3]
        assert member.put(a="1")[:2] == ["error", "not-ready"]
        assert not logged(settings)
        assert member.hello(plugin_version=NEXT, **BOTH)["protocol"] == 1


def test_a_rolling_upgrade_loses_nothing(tmp_path: Path) -> None:
    """Each agent first, then its plug-in; both releases write one log, and read all of it."""
    one, two = (config(tmp_path, node, lifetime_timeout_s=600) for node in ("n1", "n2"))
    expected: dict[str, str] = {}
    with serving(two), plugin(two, uuid="plugin-2", member="member-2") as old:

        def step(member: Plugin, **changes: str) -> None:
            assert member.put(**changes)[0] == "ack"
            expected.update(changes)
            assert old.values() == expected

        with serving(one), plugin(one) as member:
            step(member, a="1")
            step(old, b="1")
            request = member.request
        with next_agent(one):
            for spoken in (CURRENT_ONLY, BOTH):
                with plugin(one, greet=False) as member:
                    welcome = member.hello(**spoken)
                    assert (welcome["incarnation"], member.request) == (1, request)
                    step(member, **{f"c{request}": "1"})
                    request = member.request
                    step(old, d=str(request))
                    assert member.values() == expected
    with next_agent(one), next_agent(two), plugin(two, uuid="plugin-2", greet=False) as member:
        member.hello(**BOTH)
        assert member.values() == expected


def test_an_older_agent_refuses_a_raised_format(tmp_path: Path) -> None:
    """It does not start, and changes nothing."""
    one, two = (config(tmp_path, node) for node in ("n1", "n2"))
    with next_agent(one, "format"), plugin(one) as member:
        assert member.put(a="1")[0] == "ack"
    before = files(tmp_path / "log")
    with pytest.raises(UnsupportedVersion, match="format 9; imap-wal"), serving(two):
        pass
    assert files(tmp_path / "log") == before


def files(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
