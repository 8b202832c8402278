"""The pods of the default values as processes of this machine: the rendered agent.toml,
hazelcast.yaml, commands, probes, preStop and `helm test`.

A pod is a folder for its mounts and a loopback address for its network. Substituted are only paths
of mounts, addresses, the name of the pod (its host name there), and the DNS of the service, which a
hosts file of Java answers; Python gets addresses instead. The JVM is smaller, and does not wait for
slow networks.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hazelcast
import pytest
import yaml

from rewrite_cli.local_cluster import jars
from tests.chart.rendering import CHART, helm_4, members, one, rendered
from tests.cluster.cluster import connect
from tests.cluster.configuration import QUICK_MEMBER
from tests.cluster.processes import QUICK_JVM, Child
from tests.cluster.waiting import until
from tests.monitoring.exporter import exporter_jar, series

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.thorough]
QUICK = [
    *QUICK_JVM,
    "-Xmx256m",
    *(
        f"-D{name}={value}"
        for name, value in QUICK_MEMBER.items()
        if "shutdownhook" not in name and "thread" not in name
    ),
]


class Pod:
    """A pod of the StatefulSet. `log`: the folder that is the volume of all pods."""

    def __init__(
        self, manifests: list[dict[str, Any]], number: int, folder: Path, log: Path, hosts: Path
    ) -> None:
        stateful = members(manifests)
        self._data = one(manifests, "ConfigMap")["data"]
        self.name = f"{stateful['metadata']['name']}-{number}"
        self.address = hosts.read_text().splitlines()[2 * number].split()[0]
        self._folder, self._log, self._hosts = folder / str(number), log, hosts
        spec = stateful["spec"]["template"]["spec"]
        (*_, self._agent), (self._member,) = spec["initContainers"], spec["containers"]
        self._mount(self._agent)
        self._mount(self._member)
        self.agent = Child(f"agent of {self.name}", folder / f"agent-{number}.log")
        self.member = Child(f"member of {self.name}", folder / f"member-{number}.log")

    def _mount(self, container: dict[str, Any]) -> None:
        for mount in container["volumeMounts"]:
            place = Path(self._placed(container, mount["mountPath"]))
            if mount["name"] == "config":
                place.parent.mkdir(parents=True, exist_ok=True)
                text = self._placed(container, self._data[mount["subPath"]])
                # Pods have a loopback address of their own.
                text = text.replace("tcp://127.0.0.1:", f"tcp://{self.address}:")
                if mount["subPath"] == "agent.toml":
                    assert "node" not in tomllib.loads(text)
                    text = text.replace("0.0.0.0", self.address)
                    text = re.sub(r"\{node\}\.[\w.-]+", self.address, text)
                    text = f'node = "{self.name}"\n{text}'
                place.write_text(text)
            elif mount["name"] in ("agent-keys", "member-keys"):
                place.mkdir(parents=True, exist_ok=True)
                for key in self._log.parent.glob("keys/*"):
                    shutil.copy2(key, place)
            else:
                place.mkdir(parents=True, exist_ok=True)

    def _placed(self, container: dict[str, Any], text: str) -> str:
        for mount in container["volumeMounts"]:
            path = mount["mountPath"]
            here = self._log if mount["name"] == "log" else f"{self._folder}{path}"
            if path != "/tmp":  # nothing that is rendered names it
                text = text.replace(path, str(here))
        return text

    def _words(self, container: dict[str, Any]) -> list[str]:
        words = [*container["command"], *container.get("args", [])]
        return [self._placed(container, each).replace("$(POD_NAME)", self.name) for each in words]

    def set_zone(self, zone: str) -> None:
        """As the container `zone` does."""
        file = self._folder / "run/imap-wal/zone.args"
        file.write_text(f"-Dimap-wal.zone={zone}\n")

    def start_agent(self) -> None:
        program, *words = self._words(self._agent)
        self.agent.spawn([str(Path(sys.executable).parent / program), *words])

    def start_member(self) -> None:
        """As the kubelet does: when the agent's startup probe passes."""
        self._wait(self.agent, self._agent)
        program, *words = self._words(self._member)
        assert program == "java"
        classpath = os.pathsep.join(map(str, (jars.hazelcast_jar(), jars.plugin_jar())))
        words = [classpath if each == "/opt/hazelcast/lib/*" else each for each in words]
        exporter = f"-javaagent:{exporter_jar()}={self.address}:9414:"
        words = [re.sub(r"-javaagent:.*=9414:", exporter, each) for each in words]
        environment = {each["name"]: each.get("value", "") for each in self._member["env"]}
        options = [
            environment["JAVA_TOOL_OPTIONS"],
            *QUICK,
            f"-Djdk.net.hosts.file={self._hosts}",
            f"-Dhazelcast.local.localAddress={self.address}",
            f"-Dhazelcast.local.publicAddress={self.address}",
        ]
        self.member.spawn(["env", f"JAVA_TOOL_OPTIONS={' '.join(options)}", jars.java(), *words])

    def wait(self) -> None:
        self._wait(self.member, self._member)

    def _wait(self, child: Child, container: dict[str, Any]) -> None:
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = container[kind]["httpGet"]
            (port,) = (
                each["containerPort"]
                for each in container["ports"]
                if each["name"] == probe["port"]
            )
            url = f"http://{self.address}:{port}{probe['path']}"
            until(
                f"{kind} of {child.name}", lambda url=url: child.check() or answer(url) == 200, 90
            )

    def stop(self) -> None:
        """As the kubelet does: preStop, SIGTERM to the member, and then to the sidecar."""
        command = self._member["lifecycle"]["preStop"]["exec"]["command"]
        done = subprocess.run(
            [self._placed(self._member, each) for each in command],
            env={**os.environ, "POD_IP": self.address},
            capture_output=True,
            text=True,
            check=True,
            timeout=150,
        )
        assert done.stderr == ""  # otherwise the cluster was not safe in time
        assert self.member.stop(120) in (0, 128 + signal.SIGTERM)
        assert self.agent.stop() == 0


def answer(url: str) -> int:
    with urllib.request.urlopen(url, timeout=5) as response:
        return int(response.status)


@pytest.fixture(scope="module")
def manifests() -> list[dict[str, Any]]:
    return rendered(CHART / "ci" / "default-values.yaml", program=helm_4())


@pytest.fixture
def pods(manifests: list[dict[str, Any]], tmp_path: Path) -> Iterator[list[Pod]]:
    with made(manifests, tmp_path) as pods:
        yield pods


@contextmanager
def made(manifests: list[dict[str, Any]], folder: Path) -> Iterator[list[Pod]]:
    """Three pods, which are killed at the end."""
    config = yaml.safe_load(one(manifests, "ConfigMap")["data"]["hazelcast.yaml"])
    service = config["hazelcast"]["network"]["join"]["kubernetes"]["service-dns"]
    net = f"127.{random.randrange(1, 255)}.{random.randrange(256)}"
    hosts = folder / "hosts"
    name = members(manifests)["metadata"]["name"]
    hosts.write_text(
        "".join(
            f"{net}.{number} {service}\n{net}.{number} {name}-{number - 1}.{service}\n"
            for number in (1, 2, 3)
        )
    )
    log = folder / "log"
    log.mkdir()
    pods = [Pod(manifests, number, folder, log, hosts) for number in range(3)]
    try:
        yield pods
    finally:
        kill(pods)


def kill(pods: list[Pod]) -> None:
    """All at once."""
    children = [each for pod in pods for each in (pod.member, pod.agent)]
    for child in children:
        if child.running:
            child.send(signal.SIGKILL)
    for child in children:
        child.kill()


def start(pods: list[Pod]) -> None:
    """At once: podManagementPolicy is Parallel."""
    for step in (Pod.start_agent, Pod.start_member, Pod.wait):
        for pod in pods:
            step(pod)


def client_of(pods: list[Pod]) -> hazelcast.HazelcastClient:
    """When all members have joined."""
    client = connect([f"{pod.address}:5701" for pod in pods], "dev")
    until(
        "the pods are one cluster", lambda: len(client.cluster_service.get_members()) == len(pods)
    )
    return client


def entries_in(pods: list[Pod]) -> dict[str, int]:
    client = client_of(pods)
    try:
        return dict(client.get_map("orders").blocking().entry_set())
    finally:
        client.shutdown()


def test_entries_survive_kills_and_rolling_updates(
    pods: list[Pod], manifests: list[dict[str, Any]]
) -> None:
    start(pods)
    client = client_of(pods)
    orders = client.get_map("orders").blocking()
    orders.put_all({str(number): number for number in range(1000)})
    for number in range(100):
        orders.delete(str(number))
    client.shutdown()
    expected = {str(number): number for number in range(100, 1000)}
    helm_test(pods, manifests)
    for pod in pods:  # what ImapWalUnderCopied needs
        assert series(f"{pod.address}:9414")["io_imapwal_Agent_UnderCopied"] == 0

    kill(pods)
    start(pods)
    assert entries_in(pods) == expected

    for pod in reversed(pods):
        pod.stop()
        start([pod])
    assert entries_in(pods) == expected


def with_keys(tmp_path: Path, more: str) -> list[dict[str, Any]]:
    """What is rendered for keys that it makes, and more values."""
    keys, imap_wal = tmp_path / "keys", Path(sys.executable).parent / "imap-wal"
    keys.mkdir()
    for name, rights in (("member", ()), ("agent", ("--right", "read"))):
        for words in (
            ("new", name, "--folder", str(keys)),
            ("allow", str(keys / "clients.toml"), str(keys / f"{name}.pub"), *rights),
        ):
            subprocess.run([imap_wal, "keys", *words], check=True, capture_output=True)
    public = tomllib.loads((keys / "agent.pub").read_text())["public-key"]
    values = tmp_path / "values.yaml"
    values.write_text(
        f"{more}curve: {{ enabled: true, existingSecret: keys, agentPublicKey: {public} }}\n"
    )
    return rendered(values, program=helm_4())


def test_members_know_their_zones(tmp_path: Path) -> None:
    """`cluster.partitionGroup`. Without the attribute, Hazelcast would assign no partitions."""
    values = tmp_path / "values.yaml"
    values.write_text(
        "cluster: { partitionGroup: zone }\ntopologySpread: { zones: DoNotSchedule }\n"
    )
    with made(rendered(values, program=helm_4()), tmp_path) as pods:
        for pod, zone in zip(pods, "abb", strict=True):
            pod.set_zone(zone)
        start(pods)
        client = client_of(pods)
        client.get_map("orders").blocking().put_all({str(each): each for each in range(300)})
        attributes = [each.attributes for each in client.cluster_service.get_members()]
        zones = sorted(each["hazelcast.partition.group.placement"] for each in attributes)
        assert zones == ["a", "b", "b"]
        client.shutdown()
        for pod in pods[1:]:  # a zone
            pod.member.kill()
            pod.agent.kill()
        client = connect([f"{pods[0].address}:5701"], "dev")
        assert len(client.get_map("orders").blocking().key_set()) == 300
        client.shutdown()


def test_a_lost_disk_loses_nothing_with_copies(tmp_path: Path) -> None:
    """`cluster.copies` with disks of pods: a pod starts with an empty disk, after a kill."""
    with made(with_keys(tmp_path, "cluster: { copies: 2 }\n"), tmp_path) as pods:
        start(pods)
        client = client_of(pods)
        client.get_map("orders").blocking().put_all({str(each): each for each in range(300)})
        client.shutdown()
        kill(pods)
        (disk,) = tmp_path.glob("1/var/lib/wal-segments")
        shutil.rmtree(disk)
        disk.mkdir()
        start(pods)
        assert entries_in(pods) == {str(each): each for each in range(300)}


@pytest.mark.parametrize("copies", [1, 2])
def test_a_removed_pod_is_forgotten_and_nothing_is_lost(tmp_path: Path, copies: int) -> None:
    """A shared volume; and disks of pods, of which that of the removed pod is gone."""
    values = f"cluster: {{ copies: {copies} }}\nscaleDown: {{ forget: always }}\n"
    manifests = with_keys(tmp_path, values)
    with made(manifests, tmp_path) as pods:
        start(pods)
        client = client_of(pods)
        client.get_map("orders").blocking().put_all({str(each): each for each in range(300)})
        client.shutdown()
        assert "agents have not stopped cleanly" in forget_removed(tmp_path, manifests, 1)
        pods[2].stop()
        assert "wal-imap-wal-2" in forget_removed(tmp_path, manifests, 60)
        shutil.rmtree(tmp_path / "2")
        kill(pods)
        start(pods[:2])  # no start waits for the third
        assert entries_in(pods[:2]) == {str(each): each for each in range(300)}


def forget_removed(folder: Path, manifests: list[dict[str, Any]], seconds: int) -> str:
    """The output of the job, for two pods."""
    (container,) = one(manifests, "Job")["spec"]["template"]["spec"]["containers"]
    url, cluster, name, _, _, *more = container["args"]
    url = url.replace("/var/lib/imap-wal", str(folder / "log"))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = CHART / "files" / "forget-removed.py"
    done = subprocess.run(
        [sys.executable, script, url, cluster, name, "2", str(seconds), *more],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    return done.stdout + done.stderr


def test_disks_of_pods_lose_nothing_in_kills(tmp_path: Path) -> None:
    """`log.localDisk`: no pod sees the disk of another one."""
    with made(with_keys(tmp_path, "log: { localDisk: { enabled: true } }\n"), tmp_path) as pods:
        start(pods)
        client = client_of(pods)
        client.get_map("orders").blocking().put_all({str(each): each for each in range(300)})
        client.shutdown()
        disks = list(tmp_path.glob("*/var/lib/wal-segments"))
        assert len(disks) == 3 and all(list(disk.rglob("*.wal")) for disk in disks)
        kill(pods)
        start(pods)
        assert entries_in(pods) == {str(each): each for each in range(300)}


def helm_test(pods: list[Pod], manifests: list[dict[str, Any]]) -> None:
    """The container of `helm test`, with the addresses in place of the pods' names."""
    (container,) = one(manifests, "Pod")["spec"]["containers"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert len(environment["AGENTS"].split(",")) == len(pods)
    environment |= {
        "SERVICE": f"{pods[0].address}:5701",
        "AGENTS": ",".join(f"{pod.address}:9413" for pod in pods),
    }
    done = subprocess.run(
        [sys.executable, "-c", one(manifests, "ConfigMap")["data"]["test.py"]],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 members; the entry was found" in done.stdout
