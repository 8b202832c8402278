"""Signals and child processes: the agent, `node start` and the demo, as a user's shell sees
them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.demo.__main__ import command as demo
from examples.demo.cluster import free_ports
from rewrite_cli.cli import main
from rewrite_cli.local_cluster.launcher import ask_stat
from tests.cli.conftest import Run, plugin_properties
from tests.kit.effort import thorough

ROOT = Path(__file__).parents[2]
CLI = [sys.executable, "-m", "rewrite_cli.cli"]


@pytest.fixture
def agent_toml(tmp_path: Path) -> Path:
    file = tmp_path / "agent.toml"
    file.write_text(
        f'url = "file://{tmp_path}/maps"\nnode = "n1"\nendpoint = '
        f'"ipc://{tmp_path}/a.sock"\n[log]\ndurability = "always"\n'
    )
    return file


@pytest.fixture
def agent(agent_toml: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*CLI, "agent", "--config", str(agent_toml)], stderr=subprocess.PIPE, text=True
    )
    endpoint = f"ipc://{agent_toml.parent}/a.sock"
    deadline = time.monotonic() + 20
    while ask_stat(endpoint, 200) is None:
        assert process.poll() is None
        assert time.monotonic() < deadline
    yield process
    process.kill()
    process.wait()


def test_an_agent_answers_doctor_and_ends_cleanly_on_sigterm(
    run: Run, agent: subprocess.Popen[str], tmp_path: Path
) -> None:
    found = run("doctor", "--agent", f"ipc://{tmp_path}/a.sock", "-o", "json")
    assert found.code == 0
    assert any(
        check["name"] == "agent" and "'n1'" in check["what"] for check in found.json["checks"]
    )
    agent.terminate()
    assert agent.wait(20) == 0
    assert run("ls", tmp_path / "maps", "-o", "json").json["nodes"][0]["state"] == "closed"


@thorough
def test_a_second_agent_of_a_node_is_refused(
    run: Run, agent: subprocess.Popen[str], agent_toml: Path
) -> None:
    """It ends with 4, and the first agent is not affected."""
    other = agent_toml.with_name("other.toml")
    other.write_text(agent_toml.read_text().replace("a.sock", "b.sock"))
    ended = subprocess.run(
        [*CLI, "agent", "--config", str(other)],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert ended.returncode == 4
    assert f"process {agent.pid}" in ended.stderr
    assert ask_stat(f"ipc://{agent_toml.parent}/a.sock") is not None


def test_an_agent_refuses_a_wrong_configuration_by_name(run: Run, agent_toml: Path) -> None:
    agent_toml.write_text(agent_toml.read_text().replace("durability", "durabilty"))
    ended = run("agent", "--config", agent_toml)
    assert ended.code == 2
    assert "durabilty" in ended.err
    assert run("agent", "--config", agent_toml.with_name("none.toml")).code == 2


def test_the_reference_configuration_is_valid_and_has_every_setting(run: Run) -> None:
    from dataclasses import fields

    from imap_wal.settings import Settings

    reference = Path(__file__).parents[2] / "docs/reference/agent.toml"
    assert run("agent", "--config", reference, "--check").code == 0
    text = reference.read_text()
    assert [field.name for field in fields(Settings) if f"\n# {field.name} = " not in text] == []
    for field in fields(Settings):
        line = next(line for line in text.splitlines() if line.startswith(f"# {field.name} = "))
        shown = line.partition(" = ")[2].strip().strip('"')
        if field.name != "scratch":
            assert shown == str(field.default).lower().removesuffix(".0") or shown == str(
                field.default
            ), field.name


def test_doctor_reports_an_agent_that_does_not_answer(run: Run, tmp_path: Path) -> None:
    ended = run("doctor", "--agent", f"ipc://{tmp_path}/none.sock")
    assert ended.code == 3
    assert "no answer" in ended.out


def test_doctor_looks_at_storage_and_logs(run: Run, url: str, root: Path) -> None:
    found = {check["name"]: check for check in run("doctor", url, "-o", "json").json["checks"]}
    assert found["writing"]["status"] == "ok"
    assert found["cluster prod/eu"]["status"] == "ok"
    (root / "prod/eu/nodes/n2").rename(root / "elsewhere")
    ended = run("doctor", url)
    assert ended.code == 3
    assert "'n2'" in ended.out


def test_the_demo_loses_nothing_and_draws(tmp_path: Path) -> None:
    picture = tmp_path / "demo.png"
    command = [
        sys.executable,
        "-m",
        "examples.demo",
        "--flights",
        "2000",
        "--kills",
        "2",
        "--picture",
        str(picture),
        "-o",
        "json",
    ]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=150
    )
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert report["lost"] == 0
    assert len(report["kills"]) == 2
    assert 0 < report["kills"][0] < report["kills"][1] < report["records"]
    assert [look["comparison"]["entries"] for look in report["looks"]][-1] > 0
    sizes = {
        each["moment"]: each["log"] + each["archives"] + each["snapshots"]
        for each in report["storage"]
    }
    assert sizes["rewritten"] < sizes["archived"] < sizes["log"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    steps = ended.stderr.splitlines()  # not a terminal, so each step is a line and not a bar
    assert steps[0] == "reading the flights"
    assert steps.count("opening the log after kill -9") == 2
    assert steps[-1] == "drawing"


@thorough
def test_the_demo_counts_what_is_lost(tmp_path: Path) -> None:
    """The demo counts lost changes: without one acknowledged change, the count is one."""
    from examples.demo import flights
    from examples.demo.playback import Playback
    from imap_wal.clock import SystemClock

    stream = flights.load(300)
    playback = Playback(stream, tmp_path, SystemClock(), "embedded", f"file://{tmp_path}/maps")
    playback.run(1, None, lambda _: None)
    state: flights.State = {}
    for steps in stream.steps:
        for step in steps:
            flights.apply(state, step)
    whole = playback.compare({name: entries.items() for name, entries in state.items()})
    assert (whole.lost, whole.unacknowledged) == (0, 0)
    gone = next(iter(state["aircraft"]))
    del state["aircraft"][gone]
    state["aircraft"]["N00000"] = {"state": "made up"}
    broken = playback.compare({name: entries.items() for name, entries in state.items()})
    assert broken.lost == 2
    assert any(gone in example for example in broken.examples)


def test_the_demo_never_mixes_with_a_users_log(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--url", url, "--flights", "10"], demo)
    assert ended.value.code == 1
    assert "already" in capsys.readouterr().err


@thorough
@pytest.mark.cluster
def test_node_start_starts_real_members_and_a_signal_ends_all(tmp_path: Path) -> None:
    from rewrite_cli.local_cluster.clients import connect

    port = free_ports(2)
    command = [
        *CLI,
        "node",
        "start",
        "--members",
        "2",
        "--port",
        str(port),
        "--url",
        f"file://{tmp_path}/maps",
        "-o",
        "json",
    ]
    for wanted in (None, "paid"):
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["ready"]
        children = [
            number
            for member in ready["members"]
            for number in (member["process"], member["agent_process"])
        ]
        client = connect([f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"])
        orders = client.get_map("orders").blocking()
        assert orders.get("42") == wanted
        orders.set("42", "paid")
        client.shutdown()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)
        deadline = time.monotonic() + 20
        while any(_alive(child) for child in children):
            assert time.monotonic() < deadline
            time.sleep(0.05)


@thorough
@pytest.mark.cluster
def test_node_start_ends_all_processes_when_its_parent_is_killed(tmp_path: Path) -> None:
    command = [
        *CLI,
        "node",
        "start",
        "--port",
        str(free_ports(1)),
        "--url",
        f"file://{tmp_path}/maps",
        "-o",
        "json",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    (member,) = json.loads(process.stdout.readline())["members"]
    process.kill()
    process.wait(20)
    deadline = time.monotonic() + 20
    while _alive(member["process"]) or _alive(member["agent_process"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_node_start_names_a_wrong_jar_and_a_wrong_setting(run: Run, tmp_path: Path) -> None:
    ended = run("node", "start", "--hazelcast-jar", tmp_path / "none.jar")
    assert ended.code == 1
    assert "hazelcast-5.7.0.jar" in ended.err
    assert run("node", "start", "--set", "durability").code == 2


def test_plugin_config_is_yaml_with_the_settings_that_matter(run: Run) -> None:
    import yaml

    words = ["plugin", "config", "--map", "orders", "--map", "stock-*", "--transient", "cache-*"]
    printed = run(*words, "--agent", "tcp://127.0.0.1:7701").out
    assert "# Durable maps: orders, stock-*; transient: cache-*; any other map is not" in printed
    config = yaml.safe_load(printed)["hazelcast"]
    assert plugin_properties(config) == {
        "agent": "tcp://127.0.0.1:7701",
        "durable-maps": "orders, stock-*",
        "transient-maps": "cache-*",
        "durable-structures": "warn",
    }
    assert "map" not in config, "a section of a map decides nothing about durability"
    config = yaml.safe_load(run("plugin", "config").out)["hazelcast"]
    assert plugin_properties(config)["durable-maps"] == "*"
    assert config["properties"]["hazelcast.operation.thread.count"] == "64"
    allowed = config["serialization"]["java-serialization-filter"]
    assert allowed["defaults-disabled"] is False, "only what is named, java and com.hazelcast"
    assert allowed["whitelist"] == {"package": ["io.imapwal.hazelcast", "io.imapwal.wire"]}
    assert "javax.naming." in allowed["blacklist"]["prefix"]
    assert run("plugin", "config", "--agent", "http://x").code == 2
    refused = run("plugin", "config", "--map", "__sql.other")
    assert (refused.code, "Hazelcast's own" in refused.err) == (2, True)


def _alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_check_of_a_configuration_finds_a_missing_driver(run: Run, tmp_path: Path) -> None:
    """As a start does; it creates nothing."""
    file, root = tmp_path / "agent.toml", tmp_path / "root"
    for lines in (f'url = "fil://{root}"', f'url = "file://{root}"\nwal_dir = "fil://{root}/wal"'):
        file.write_text(f"{lines}\n")
        ended = run("agent", "--config", file, "--check")
        assert ended.code == 1
        assert str(file) in ended.err and f"fil://{root}" in ended.err
        assert "no driver knows fil://" in ended.err
    file.write_text(f'url = "file://{root}"\nwal_dir = "file://{root}/wal"\n')
    assert run("agent", "--config", file, "--check").code == 0
    assert not root.exists()
