"""Agents whose disks cannot see each other: every process is given only its own folder."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from imap_wal import context
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.membership.forget_node import forget_node
from imap_wal.context import open_context
from imap_wal.errors import InvalidSetting, MissingNode
from imap_wal.placement import Placed
from imap_wal.placement.opening import SegmentsPlace, record
from imap_wal.placement.router import OwnDiskStore
from imap_wal.read.cluster import ClusterLog
from rewrite_cli.cli import group
from rewrite_cli.console.check import OK, PROBLEM
from rewrite_cli.entries import own_disks
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.local import LocalStore
from storage_backends.location import Location
from tests.agent.harness import Plugin, plugin, serve_in_process, serving
from tests.kit.agents import Process
from tests.kit.effort import every, thorough
from tests.kit.own_disks import (
    NODES,
    configs,
    kill,
    own_disk_config,
    restored,
    restored_by_reading,
    until_uploaded,
    write,
)
from tests.support import eventually


def test_a_killed_cluster_has_all_entries_again(tmp_path: Path) -> None:
    """Nothing was uploaded but sealed segments: the tails are on three disks, and each agent reads
    the other two from their agents."""
    settings = configs(tmp_path)
    processes = [Process(each) for each in settings.values()]
    written = write(settings)
    kill(processes)
    assert not list((tmp_path / "root").rglob("wal/*.log"))
    processes = [Process(each) for each in settings.values()]
    try:
        for node in NODES:
            assert restored(settings[node], f"cluster-{node}") == written
    finally:
        kill(processes)


@thorough
def test_a_disk_that_is_away_is_named(tmp_path: Path) -> None:
    settings = configs(tmp_path, tail_timeout_s=1)
    processes = [Process(each) for each in settings.values()]
    written = write(settings)
    until_uploaded(tmp_path, *NODES)
    kill(processes)
    away = settings.pop("n2")
    processes = [Process(each) for each in settings.values()]
    try:
        with (
            plugin(settings["n1"], cluster_id="cluster-2", uuid="new") as member,
            pytest.raises(AssertionError) as refused,
        ):
            member.values()
        text = str(refused.value)
        assert "restore-failed" in text
        assert "node 'n2': all entries in segments" in text
        assert f"no agent listens at {away.tail_endpoint}" in text
    finally:
        kill(processes)
    lenient = {
        node: own_disk_config(tmp_path, node, recovery_policy="partial") for node in ("n1", "n3")
    }
    processes = [Process(each) for each in lenient.values()]
    try:
        found = restored(lenient["n1"], "cluster-3")
    finally:
        kill(processes)
    others = {key: value for key, value in written.items() if not key.startswith("n2")}
    assert {key: value for key, value in found.items() if not key.startswith("n2")} == others
    uploaded = {key for key in found if key.startswith("n2")}
    assert uploaded, "what it had uploaded is restored"
    assert {key: written[key] for key in uploaded} == {key: found[key] for key in uploaded}


def test_what_was_left_out_counts_when_its_disk_returns(tmp_path: Path) -> None:
    settings = configs(tmp_path, recovery_policy="partial")
    processes = [Process(each) for each in settings.values()]
    written = write(settings)
    kill(processes)
    processes = [Process(settings["n1"])]
    try:
        with plugin(settings["n1"], cluster_id="cluster-2", uuid="new") as member:
            assert set(member.values()) < set(written)
            processes.append(Process(settings["n2"]))
            processes.append(Process(settings["n3"]))
            until = time.monotonic() + 30  # an agent that was away is not asked again at once
            while member.values() != written:
                assert time.monotonic() < until
    finally:
        kill(processes)


def test_a_new_disk_is_noticed(tmp_path: Path) -> None:
    """It is refused with the loss named; if the policy allows it, the node continues after what it
    had uploaded."""
    settings = configs(tmp_path)
    processes = [Process(each) for each in settings.values()]
    written = write(settings)
    until_uploaded(tmp_path, *NODES)
    kill(processes)
    shutil.rmtree(tmp_path / "disk-n2")
    with (
        pytest.raises(MissingNode, match=r"its disk is new or another one.*segments \d+ to \d+"),
        serving(settings["n2"]),
    ):
        pass
    settings["n2"] = own_disk_config(tmp_path, "n2", recovery_policy="partial")
    processes = [Process(each) for each in settings.values()]
    try:
        found = restored(settings["n1"])
        lost = set(written) - set(found)
        assert lost
        assert all(key.startswith("n2") for key in lost)
        assert len(lost) < 100, "the uploaded segments count"
        with plugin(settings["n2"], cluster_id="cluster-2", uuid="second") as member:
            assert member.put(after="1")[0] == "ack"
    finally:
        kill(processes)
    settings["n2"] = own_disk_config(tmp_path, "n2")
    processes = [Process(each) for each in settings.values()]
    try:
        assert restored(settings["n3"], "cluster-3") == {**found, "after": "1"}
    finally:
        kill(processes)


def test_a_clean_stop_leaves_nothing_on_the_disk_alone(tmp_path: Path) -> None:
    """Then the disks are not needed: any process reads the root, and a node opens on a new disk."""
    settings = configs(tmp_path)
    with ExitStack() as stack:
        for each in settings.values():
            stack.enter_context(serving(each))
        written = write(settings)
    for node in NODES:
        shutil.rmtree(tmp_path / f"disk-{node}")
    assert not ClusterLog(open_context(settings["n1"].url), "default", "c").state().missing
    with ExitStack() as stack:
        for each in settings.values():
            stack.enter_context(serving(each))
        assert restored(settings["n2"]) == written


def test_a_segment_is_uploaded_when_it_reaches_the_interval(tmp_path: Path) -> None:
    settings = own_disk_config(tmp_path, "n1", upload_interval_s=0.2)
    with serving(settings) as agent, plugin(settings) as member:
        assert member.put(a="1")[0] == "ack"
        until_uploaded(tmp_path, "n1")
        uploads = agent._log.uploads
        assert uploads is not None
        eventually(lambda: not uploads.statistics.bytes, "all is uploaded")
    kept = {file.name: file.read_bytes() for file in (tmp_path / "disk-n1").rglob("*.wal")}
    there = {file.name: file.read_bytes() for file in (tmp_path / "root").rglob("*.wal")}
    assert kept == there


def test_a_fence_acts_on_a_disk_elsewhere(tmp_path: Path) -> None:
    """The permit is in the root: another process deletes it, and the writer acknowledges nothing
    more."""
    settings = own_disk_config(tmp_path, "n1")
    process = Process(settings)
    with plugin(settings) as member:
        assert member.put(a="1")[0] == "ack"
        (permit,) = (tmp_path / "root").rglob("*.writer")
        permit.unlink()
        with pytest.raises((AssertionError, TimeoutError)):
            assert member.put(b="1")[0] == "ack"
    assert process.wait() != 0


def test_a_process_without_the_disk_does_not_open_the_log(tmp_path: Path) -> None:
    import imap_wal
    from imap_wal.errors import StorageUnavailable

    settings = own_disk_config(tmp_path, "n1")
    with serving(settings), plugin(settings) as member:
        assert isinstance(member, Plugin)
        member.put(a="1")
    with pytest.raises(StorageUnavailable, match="own disk of that node"):
        imap_wal.open(settings.url, node="n1", cluster="programs")


def serve_until_upload(settings: AgentConfig, ready: Any, fault: Fault) -> None:
    """What a child process runs: an agent, and SIGKILL at a planned operation of the root."""

    class Deadly(FaultyStore):
        def _strike(self, fault: Fault, operation: Any) -> BaseException:
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError("unreachable")

    def opened(place: Location, wal_dir: Any, tails: Any) -> Placed:
        root = Deadly(LocalStore(place.url.removeprefix("file://")), Plan((fault,)))
        record(root, SegmentsPlace(own_disks=True))
        assert place.wal_dir is not None
        disk = LocalStore(place.wal_dir.url.removeprefix("file://"))
        store = OwnDiskStore(root, disk, place.wal_dir.disk_of, tails(root))
        return Placed(store, place, store)

    setattr(context, "open_place", opened)  # noqa: B010  # it is imported there, and not exported
    serve_in_process(settings, ready)


@every(4)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["create_from", "read"])
def test_an_upload_that_was_killed_is_completed(tmp_path: Path, kind: str, when: str) -> None:
    """At the second segment: before and after it is there, and before and after it is checked."""
    settings = own_disk_config(tmp_path, "n1")
    fault = Fault("kill", kind=kind, path="*-00000002.wal", when=when)  # type: ignore[arg-type]
    process = Process(settings, fault, serve_until_upload)
    written: dict[str, str] = {}
    with plugin(settings, timeout_ms=3000) as member, pytest.raises((AssertionError, TimeoutError)):
        for number in itertools.count():
            key, value = f"k{number % 3000}", f"{number}{'x' * 2000}"
            assert member.put(**{key: value})[0] == "ack"
            written[key] = value
    assert process.wait() == -signal.SIGKILL
    with serving(settings) as agent:
        found = restored(settings)
        assert len(found.items() - written.items()) <= 1, "one change may be in the log unanswered"
        assert written.keys() <= found.keys()
        assert agent._log.uploads is not None
    kept = {file.name: file.read_bytes() for file in (tmp_path / "disk-n1").rglob("*.wal")}
    there = {file.name: file.read_bytes() for file in (tmp_path / "root").rglob("*.wal")}
    assert kept == there


def tails(url: str) -> list[dict[str, str]]:
    """What `doctor` reports about own disks, which it cannot read."""
    done = CliRunner().invoke(group, ["doctor", url, "-o", "json"])
    checks: list[dict[str, str]] = json.loads(done.stdout)["checks"]
    found = [each for each in checks if "own disk" in each["what"]]
    problems = [each for each in checks if each["status"] == PROBLEM]
    assert all(each in found for each in problems), problems
    return found


def test_doctor_distinguishes_dead_and_running_agents(tmp_path: Path) -> None:
    """While the agent runs, what it has not uploaded is normal."""
    settings = own_disk_config(tmp_path, "n1")
    process = Process(settings)
    try:
        with plugin(settings) as member:
            assert member.put(k="x" * 2000)[0] == "ack"
            (tail,) = tails(settings.url)
        assert tail["status"] == OK
        assert re.search("segments 1 to 1 .*, at most .*B, are", tail["what"]), tail
    finally:
        process.end(signal.SIGKILL)
    (tail,) = tails(settings.url)
    assert (tail["status"], "does not run" in tail["what"]) == (PROBLEM, True)
    stat = " ".join(CliRunner().invoke(group, ["stat", settings.url]).output.split())
    assert f"its agent does not answer at {settings.tail_endpoint}" in stat


def test_commands_tell_what_is_on_a_disk_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line reads the root only. A disk of another machine is not damage, but it is
    reported."""
    settings = own_disk_config(tmp_path, "n1")
    run = CliRunner()
    with serving(settings), plugin(settings) as member:
        for number in range(60):
            assert member.put(**{f"k{number}": "x" * 2000})[0] == "ack"
        until_uploaded(tmp_path, "n1")
        done = run.invoke(group, ["stat", settings.url, "-o", "json"])
        assert done.exit_code == 0, done.output
        (forecast,) = json.loads(done.stdout)["forecast"]
        (disk,) = forecast["own_disks"]
        assert (disk["node"], forecast["missing"]) == ("n1", [])
        assert disk["first"] <= disk["last"]
        assert 0 <= disk["seconds"] < 60
        assert disk["bytes"] > 2000 and 0 <= disk["waiting_seconds"] < 60
        done = run.invoke(group, ["stat", settings.url])
        text = " ".join(done.output.split())
        assert "own disk alone" in text
        assert re.search(r"at most [\d.]+ \wi?B are not uploaded, for .* at most", text), text
        done = run.invoke(group, ["ls", settings.url, "-o", "json"])
        (node,) = json.loads(done.stdout)["nodes"]
        assert (node["state"], node["address"]) == ("own disk", settings.tail_endpoint)
        done = run.invoke(group, ["ls", settings.url])
        assert "MISSING" not in done.output
        where = f"the address of its agent is {settings.tail_endpoint}"
        assert where in " ".join(done.output.split())
        done = run.invoke(group, ["verify", settings.url])
        assert done.exit_code == 0, done.output
        assert "not verified" in " ".join(done.output.split())
        for command in ("dump", "tail"):
            done = run.invoke(group, [command, settings.url])
            assert done.exit_code == 0, done.output
            note, *_ = done.stderr.splitlines()
            assert "left out: node 'n1' of default/c: all entries in segments" in note, note
        done = run.invoke(group, ["rewrite", settings.url, "--dry-run"])
        assert done.exit_code != 0
        assert "only on the own disk of this node" in str(done.exception)
        done = run.invoke(group, ["doctor", "--agent", settings.endpoint])
        assert "bytes are on its own disk alone" in " ".join(done.output.split())
        monkeypatch.setattr(own_disks, "UPLOAD_LATE_S", 0)
        (late,) = tails(settings.url)
        assert (late["status"], "why they are not uploaded" in late["advice"]) == (PROBLEM, True)
    for command in ("ls", "stat", "verify", "dump"):
        done = run.invoke(group, [command, settings.url])
        assert done.exit_code == 0, done.output
        assert "own disk" not in done.output


def test_archived_segments_leave_the_disk_and_the_root(tmp_path: Path) -> None:
    """The archives are written by another process, which opens the same two places."""
    settings = own_disk_config(tmp_path, "n1", archive_interval_s=0.5, upload_interval_s=0.2)
    with serving(settings), plugin(settings) as member:
        written = {}
        until = time.monotonic() + 60
        while not list((tmp_path / "root").rglob("*.parquet")) or len(written) < 100:
            assert time.monotonic() < until, "nothing was archived"
            key = f"k{len(written)}"
            assert member.put(**{key: "x" * 2000})[0] == "ack"
            written[key] = "x" * 2000
        eventually(lambda: len(list(tmp_path.rglob("*.wal"))) <= 2, "archived segments leave", 60)
        assert member.values() == written
    assert not list((tmp_path / "disk-n1").rglob("*.parquet"))
    assert restored_by_reading(settings.url) == written


def test_a_node_whose_disk_is_lost_is_forgotten(tmp_path: Path) -> None:
    """Its agent is fenced by its permit; while it runs, it must be stopped first."""
    settings = configs(tmp_path)
    processes = {node: Process(each) for node, each in settings.items()}
    written = write(settings)
    log = ClusterLog(open_context(settings["n1"].url), "default", "c")
    try:
        with pytest.raises(InvalidSetting, match="segments"):
            forget_node(log, "n2")
        report = forget_node(log, "n2", lose=True)
        assert "only on the own disk" in report.missing
        assert not report.lost.whole
        assert "n2" not in log.nodes()
        with plugin(settings["n2"], uuid="p2", member="m2", greet=False) as member:
            assert member.asked()[0] == "error", "it is fenced"
    finally:
        kill(list(processes.values()))
    # It may begin a new log: what is on its old disk does not count.
    processes = {node: Process(each) for node, each in settings.items()}
    try:
        others = {key: value for key, value in written.items() if not key.startswith("n2")}
        assert restored(settings["n1"]) == others
    finally:
        kill(list(processes.values()))


@thorough
def test_an_agent_that_hangs_delays_a_restore_by_the_timeout(tmp_path: Path) -> None:
    settings = configs(tmp_path, tail_timeout_s=1)
    processes = {node: Process(each) for node, each in settings.items()}
    written = write(settings)
    hung = processes["n2"].process.pid
    assert hung is not None
    os.kill(hung, signal.SIGSTOP)
    try:
        with plugin(settings["n1"], uuid="plugin-n1", member="member-n1") as member:
            with pytest.raises(AssertionError, match="does not answer"):
                member.values()
            os.kill(hung, signal.SIGCONT)
            until = time.monotonic() + 30
            while True:
                try:
                    assert member.values() == written
                    break
                except AssertionError:
                    assert time.monotonic() < until
    finally:
        os.kill(hung, signal.SIGCONT)
        kill(list(processes.values()))
