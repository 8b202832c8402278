"""What values do to the rendered objects; by the helm of a package, in seconds."""

from __future__ import annotations

import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.rendering import CHART, ROOT, helm, helm_4, members, one, pods, rendered

pytestmark = pytest.mark.timeout(600)  # the first one downloads helm
EKS, EXTRAS, COPIES, SPARK = (
    CHART / "ci" / f"{name}-values.yaml" for name in ("eks", "extras", "copies", "spark")
)


def made(values: Path, *sets: str) -> list[dict[str, Any]]:
    more = [word for each in sets for word in ("--set", each)]
    return rendered(values, *more, program=helm_4())


def named(documents: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = (
        each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, name)
    )
    return found


def configuration(documents: list[dict[str, Any]]) -> dict[str, Any]:
    data = named(documents, "ConfigMap", "wal-imap-wal")["data"]
    return dict(yaml.safe_load(data["hazelcast.yaml"])["hazelcast"])


def containers(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in [*pod.get("initContainers", []), *pod["containers"]]}


def member_pod(documents: list[dict[str, Any]]) -> dict[str, Any]:
    return dict(members(documents)["spec"]["template"]["spec"])


def test_pods_have_the_role_of_the_account() -> None:
    """Jobs too: they use the same storage."""
    documents = made(EKS, "scaleDown.forget=always")
    account = one(documents, "ServiceAccount")
    assert account["metadata"]["annotations"] == {
        "eks.amazonaws.com/role-arn": "arn:aws:iam::111122223333:role/imap-wal"
    }
    for owner in (members(documents), one(documents, "Job")):
        pod = owner["spec"]["template"]["spec"]
        assert pod["serviceAccountName"] == account["metadata"]["name"] == "wal-imap-wal"
    other = made(SPARK, "serviceAccount.create=false", "serviceAccount.name=shop")
    assert not [each for each in other if each["kind"] == "ServiceAccount"]
    job = one(other, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert job["serviceAccountName"] == member_pod(other)["serviceAccountName"] == "shop"


def test_every_pod_has_node_selector_and_tolerations() -> None:
    documents = made(EKS, "scaleDown.forget=always", "managementCenter.enabled=true") + made(
        SPARK, "nodeSelector.eks\\.amazonaws\\.com/nodegroup=maps", "tolerations[0].key=maps"
    )
    assert len(pods(documents)) == 7
    for pod in pods(documents):
        assert pod["nodeSelector"] == {"eks.amazonaws.com/nodegroup": "maps"}
        assert pod["tolerations"][0]["key"] == "maps"


def test_own_classes_containers_and_volumes_are_added() -> None:
    pod = member_pod(made(EXTRAS))
    of = containers(pod)
    arguments = of["member"]["args"]
    assert arguments[arguments.index("-cp") + 1] == "/opt/hazelcast/lib/*:/opt/domain/*"
    assert [*of] == ["domain", "agent", "member", "logs"]
    assert {"domain", "scratch"} <= {each["name"] for each in pod["volumes"]}
    assert of["member"]["volumeMounts"][-1]["mountPath"] == "/opt/domain"
    assert of["agent"]["volumeMounts"][-1]["mountPath"] == "/scratch"


def test_probes_are_tunable() -> None:
    of = containers(member_pod(made(EXTRAS)))
    assert of["member"]["startupProbe"] == {
        "httpGet": {"path": "/hazelcast/health/ready", "port": "hazelcast"},
        "periodSeconds": 2,
        "failureThreshold": 900,
    }
    assert of["member"]["livenessProbe"]["initialDelaySeconds"] == 30
    startup = of["agent"]["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 600


def test_beans_of_members_are_scraped_under_their_own_job() -> None:
    """The job imap-wal is that of agents, for which ImapWalAgentDown fires."""
    documents = made(EKS)
    assert "-javaagent:" in " ".join(containers(member_pod(documents))["member"]["args"])
    assert configuration(documents)["properties"]["hazelcast.jmx"] == "true"
    service = named(documents, "Service", "wal-imap-wal-metrics")
    ports = {each["name"]: each["port"] for each in service["spec"]["ports"]}
    endpoints = one(documents, "ServiceMonitor")["spec"]["endpoints"]
    jobs = {each["port"]: each["relabelings"][0]["replacement"] for each in endpoints}
    assert jobs == {"metrics": "imap-wal", "member-metrics": "imap-wal-member"}
    assert ports == {"metrics": 9413, "member-metrics": 9414}
    (documented,) = re.findall(
        r"```yaml\n(# jmx\.yaml\n.*?)```", (ROOT / "docs/monitoring.md").read_text(), re.DOTALL
    )
    assert named(documents, "ConfigMap", "wal-imap-wal")["data"]["jmx.yaml"] == documented
    without = made(EKS, "member.metrics.enabled=false")
    assert "9414" not in yaml.safe_dump_all(without)
    assert "hazelcast.jmx" not in configuration(without)["properties"]


def test_backups_are_in_another_zone() -> None:
    documents = made(EKS)
    config = configuration(documents)
    assert config["partition-group"] == {"enabled": True, "group-type": "PLACEMENT_AWARE"}
    attribute = config["member-attributes"]["hazelcast.partition.group.placement"]
    assert attribute["value"] == "${imap-wal.zone}"
    of = containers(member_pod(documents))
    assert of["member"]["args"][0] == "@" + of["zone"]["command"][-1]
    mounts = {name: str(each["volumeMounts"]) for name, each in of.items()}
    assert [name for name, text in mounts.items() if "api-token" in text] == ["zone"]
    assert one(documents, "ClusterRole")["rules"] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}
    ]
    assert "ClusterRole" not in {each["kind"] for each in made(COPIES)}


def test_copies_have_own_disks_by_default() -> None:
    def claims(*sets: str) -> list[str]:
        templates = members(made(COPIES, *sets))["spec"].get("volumeClaimTemplates", [])
        return [mode for each in templates for mode in each["spec"]["accessModes"]]

    assert claims() == ["ReadWriteOnce"]
    assert claims("cluster.copies=1") == claims("log.localDisk.enabled=false") == []
    assert claims("log.walDir=s3://fast/wal") == []
    assert claims("cluster.copies=1", "log.localDisk.enabled=true") == ["ReadWriteOnce"]


def test_only_an_upgrade_has_the_job_that_forgets() -> None:
    assert "Job" not in {each["kind"] for each in made(COPIES)}
    job = one(made(COPIES, "scaleDown.forget=always"), "Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "post-upgrade"
    (container,) = job["spec"]["template"]["spec"]["containers"]
    place = ["--namespace", "default", "--partial"]
    assert container["args"][1:] == ["dev", "wal-imap-wal", "3", "900", *place]


def test_clients_outside_have_a_service() -> None:
    service = named(made(EKS), "Service", "wal-imap-wal-client")
    assert service["spec"]["type"] == "LoadBalancer"
    assert service["spec"]["loadBalancerSourceRanges"] == ["10.0.0.0/16"]
    assert len(service["metadata"]["annotations"]) == 3
    assert "publishNotReadyAddresses" not in service["spec"]
    (port,) = named(made(EXTRAS), "Service", "wal-imap-wal-client")["spec"]["ports"]
    assert (port["port"], port["nodePort"]) == (5701, 30571)


def test_management_center_reaches_the_members() -> None:
    documents = made(EXTRAS)
    center = named(documents, "StatefulSet", "wal-imap-wal-mancenter")["spec"]["template"]
    labels = center["metadata"]["labels"]
    (container,) = center["spec"]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is False
    policy = one(documents, "NetworkPolicy")["spec"]["ingress"][0]["from"]
    assert labels in [each["podSelector"]["matchLabels"] for each in policy]
    assert labels != members(documents)["spec"]["selector"]["matchLabels"]


def test_a_copied_chart_lints(tmp_path: Path) -> None:
    """Nothing in its folder links to what is outside."""
    shutil.copytree(CHART, tmp_path / "imap-wal", symlinks=True)
    assert not [path for path in (tmp_path / "imap-wal").rglob("*") if path.is_symlink()]
    helm("lint", "--strict", tmp_path / "imap-wal", "--values", EKS, program=helm_4())


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ("cluster.partitionGroup=zone", "set topologySpread.zones to DoNotSchedule"),
        ("service.type=LoadBalancer", "name the addresses that may connect"),
        ("cluster.copies=2", "cluster.copies needs curve.enabled"),
        ("member.probes.startup.failureTreshold=9", "'/member/probes/startup'"),
        ("serviceAccount.anotations.a=b", "'anotations' not allowed"),
        ("member.metrics=null", "missing property 'metrics'"),
        ("scaleDown.forget=yes", "'auto', 'always', 'never'"),
    ],
)
def test_a_wrong_value_is_refused_by_name(values: str, why: str) -> None:
    refused = partial(helm, "template", "wal", CHART, refused=True, program=helm_4())
    assert why in refused("--set", values)


@pytest.mark.parametrize("name", ["eks", "copies"])
def test_examples_of_the_documentation_are_tested(name: str) -> None:
    text = (CHART / "ci" / f"{name}-values.yaml").read_text()
    assert f"```yaml\n{text}```" in (ROOT / "docs/how-to/kubernetes.md").read_text()
