"""What the chart renders: valid for Kubernetes, and refused where it could not work."""

from __future__ import annotations

import http.server
import json
import re
import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from imap_wal.agent.config import AgentConfig
from imap_wal.version import VERSION
from rewrite_cli.local_cluster import hazelcast_yaml
from rewrite_cli.local_cluster.launcher import JVM_FLAGS
from tests.chart.rendering import (
    CHART,
    ROOT,
    VALUES,
    api_rules,
    checker,
    helm,
    helm_4,
    helm_docs,
    members,
    notes,
    one,
    pods,
    rendered,
)
from tests.cli.conftest import plugin_properties
from tests.kit.effort import thorough

pytestmark = [thorough, pytest.mark.timeout(900)]  # the first one builds helm: four minutes

OPERATOR = "monitoring.coreos.com"
"""Kinds of Prometheus's operator are not in Kubernetes' schemas."""
DEFAULT, SIDECAR, CURVE, BUCKET, SPARK, DISKS, COPIES = (
    CHART / "ci" / f"{name}-values.yaml"
    for name in (
        "default",
        "sidecar-only",
        "curve",
        "object-store",
        "spark",
        "local-disk",
        "copies",
    )
)


def agent_toml(documents: list[dict[str, Any]]) -> dict[str, Any]:
    (config,) = (each for each in documents if "agent.toml" in each.get("data", {}))
    return tomllib.loads(config["data"]["agent.toml"])


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_helm_3_and_helm_4_render_the_same(values: Path) -> None:
    assert rendered(values) == rendered(values, program=helm_4())


def test_helm_lints_the_chart_with_every_value_set() -> None:
    for values in VALUES:
        helm("lint", "--strict", CHART, "--values", values)


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_manifests_fit_the_schemas_of_kubernetes(
    values: Path, version: str, tmp_path: Path
) -> None:
    """The oldest version that the chart permits, and a new one."""
    file = tmp_path / "manifests.yaml"
    known = [each for each in rendered(values) if OPERATOR not in each["apiVersion"]]
    file.write_text(yaml.safe_dump_all(known))
    done = subprocess.run(
        [checker("kubernetes-validate"), "-k", version, "--strict", "--quiet", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_the_rules_of_the_api_server_accept_the_objects(values: Path) -> None:
    """Those for new objects, with their warnings, by the code of the server itself."""
    objects = [each for each in rendered(values) if OPERATOR not in each["apiVersion"]]
    assert said_by_api(objects) == (0, f"{len(objects)} objects, 0 refused\n")


def test_the_rules_of_the_api_server_refuse_a_wrong_object() -> None:
    """What no schema shows: a mount of a volume that does not exist."""
    more = ("--set", "member.extraVolumeMounts[0].name=no", "--set")
    objects = rendered(DEFAULT, *more, "member.extraVolumeMounts[0].mountPath=/no")
    code, text = said_by_api([members(objects)])
    assert code == 1 and 'volumeMounts[5].name: Not found: "no"' in text


def said_by_api(objects: list[dict[str, Any]]) -> tuple[int, str]:
    """A job is given as the template of a CronJob: the rules of jobs would need the server."""
    objects = [
        {
            **each,
            "kind": "CronJob",
            "spec": {"schedule": "@daily", "jobTemplate": {"spec": each["spec"]}},
        }
        if each["kind"] == "Job"
        else each
        for each in objects
    ]
    done = subprocess.run(
        [api_rules()],
        input=yaml.safe_dump_all(objects),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@thorough
def test_the_readme_is_what_helm_docs_makes() -> None:
    assert (CHART / "README.md").read_text() == helm_docs()


def test_hadolint_accepts_the_containerfiles() -> None:
    files = sorted((ROOT / "deploy").glob("*.Containerfile"))
    assert len(files) == 2
    done = subprocess.run(
        [checker("hadolint"), *map(str, files)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_base_images_are_pinned_by_digest() -> None:
    """Each stage begins with one of them, or with another stage."""
    for file in sorted((ROOT / "deploy").glob("*.Containerfile")):
        text = file.read_text()
        images = dict(re.findall(r"^ARG (BUILDER|RUNTIME)=(.*)$", text, re.MULTILINE))
        assert len(images) == 2
        for image in images.values():
            assert re.fullmatch(r"[a-z-]+:[\w.-]+@sha256:[0-9a-f]{64}", image), (file, image)
        stages = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", text, re.MULTILINE)
        assert stages
        assert {begin for begin, _ in stages} <= {"${BUILDER}", "${RUNTIME}"} | {
            name for _, name in stages
        }


def test_the_alert_rules_are_those_of_the_documentation() -> None:
    rules = yaml.safe_load((ROOT / "docs/reference/imap-wal-alerts.yml").read_text())
    assert one(rendered(CURVE), "PrometheusRule")["spec"] == rules
    monitor = one(rendered(CURVE), "ServiceMonitor")
    assert monitor["spec"]["endpoints"][0]["relabelings"][0]["replacement"] == "imap-wal"


def test_versions_and_flags_are_those_of_the_code() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)
    (member,) = members(rendered(DEFAULT))["spec"]["template"]["spec"]["containers"]
    flags = [each.replace("=", " ", 1) for each in member["args"] if each.startswith("--add")]
    assert " ".join(flags) == " ".join(JVM_FLAGS)


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_every_container_is_restricted(values: Path) -> None:
    """As the policy "restricted" of Kubernetes requires, with a root file system that is
    read-only."""
    for pod in pods(rendered(values)):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] >= 1000
        assert pod["automountServiceAccountToken"] is False
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": container["name"] != "mancenter",
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            }
            assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("values", [DEFAULT, CURVE, DISKS, COPIES], ids=lambda path: path.stem)
def test_agents_accept_the_rendered_settings(values: Path) -> None:
    AgentConfig.from_mapping(agent_toml(rendered(values)), node="pod-0")


HOSTILE: dict[str, Any] = {
    "endpoint_url": "http://minio:9000",
    "a key.of": "quotes \" ' \\ <&> \n \t \r ü 😀",
    "": "an empty key",
    'key " \\ \n': "\x01\x07\x0b\x1b\x85\u2028\ufeff {{ .Values }} ${HOME}",
    "config": {"retries": {"max": 1000000}, "part": 0.25, "path": True, "names": ["a", 1]},
    "tables": [{"a": [{"b": []}]}, {}],
    "empty": {},
    "numbers": [0, -1, 1e-07, 2**53, 1e300, -1e300, 2.5],
}


def with_settings(folder: Path, agent: dict[str, Any]) -> Path:
    """A file of values."""
    values = folder / "values.yaml"
    values.write_text(yaml.safe_dump({"agent": agent}))
    return values


def test_tables_of_settings_are_toml(tmp_path: Path) -> None:
    """Helm reads numbers as floats, and its JSON is not TOML."""
    tables = {"storage_options": HOSTILE, "wal_dir_options": {"none": None, "key": "k"}}
    made = agent_toml(rendered(with_settings(tmp_path, {"settings": tables})))
    assert made["storage_options"] == HOSTILE
    assert made["wal_dir_options"] == {"key": "k"}
    assert type(made["storage_options"]["config"]["retries"]["max"]) is int


def test_the_agent_checks_hostile_settings(tmp_path: Path) -> None:
    """`imap-wal agent --check` reads what Helm rendered."""
    agent = {
        "settings": {"storage_options": HOSTILE, "allow_uids": [10001], "max_maps": 1000000},
        "log": {"archive_interval_s": 600, "segment_bytes": 2**30, "file_mode": "0640"},
    }
    sets = ("--set", "log.url=s3://bucket/maps")
    documents = rendered(with_settings(tmp_path, agent), *sets)
    config = tmp_path / "agent.toml"
    config.write_text(one(documents, "ConfigMap")["data"]["agent.toml"])
    done = subprocess.run(
        [Path(sys.executable).parent / "imap-wal", "agent", "--config", config, "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    read = AgentConfig.from_toml(config, node="pod-0")
    assert (read.storage_options, read.max_maps) == (HOSTILE, 1000000)
    assert (read.log.segment_bytes, read.log.file_mode) == (2**30, "0640")


def test_a_table_set_on_the_command_line_is_toml() -> None:
    sets = ("--set", "agent.settings.storage_options.endpoint_url=http://minio:9000")
    assert agent_toml(rendered(DEFAULT, *sets))["storage_options"] == {
        "endpoint_url": "http://minio:9000"
    }


def test_a_setting_that_is_null_is_left_out(tmp_path: Path) -> None:
    agent = {"settings": {"max_maps": None}, "log": {"archive_interval_s": None}}
    made = agent_toml(rendered(with_settings(tmp_path, agent)))
    assert "max_maps" not in made and made["log"] == {}


def test_members_have_the_properties_that_the_command_prints() -> None:
    data = one(rendered(DEFAULT), "ConfigMap")["data"]
    made = yaml.safe_load(data["hazelcast.yaml"])["hazelcast"]
    printed = yaml.safe_load(
        hazelcast_yaml.to_paste(["*"], [], "ipc:///run/imap-wal/agent.sock", "dev", {})
    )["hazelcast"]
    assert made["serialization"] == printed["serialization"]
    assert made["properties"].items() >= printed["properties"].items()


def test_a_section_of_a_map_leaves_it_durable(tmp_path: Path) -> None:
    """Durability is a property of the member, which a map opts out of by name."""
    sets = (
        *("--set", "cluster.config.map.orders.backup-count=2"),
        *("--set", "cluster.transientMaps={cache-*,tmp}"),
        *("--set", "cluster.durableStructures=refuse"),
    )
    made = yaml.safe_load(one(rendered(DEFAULT, *sets), "ConfigMap")["data"]["hazelcast.yaml"])
    assert made["hazelcast"]["map"] == {"orders": {"backup-count": 2}}
    properties = made["hazelcast"]["properties"]
    assert properties["imap-wal.durable-maps"] == "*"
    assert properties["imap-wal.transient-maps"] == "cache-*, tmp"
    assert properties["imap-wal.durable-structures"] == "refuse"
    assert "Durable maps: *; transient maps: cache-*, tmp." in notes(tmp_path, DEFAULT, *sets)
    named = ("--set", "cluster.durableMaps={orders}", "--set", "cluster.config.map.orders.x=2")
    assert rendered(DEFAULT, *named)


def test_the_agent_starts_before_its_member_and_stops_after_it() -> None:
    """In both modes it is an init container that keeps running."""
    values = yaml.safe_load(one(rendered(SIDECAR), "ConfigMap")["data"]["values.yaml"])
    for containers in (pods(rendered(DEFAULT))[0]["initContainers"], values["initContainers"]):
        agent = containers[-1]
        assert (agent["name"], agent["restartPolicy"]) == ("agent", "Always")
        assert agent["startupProbe"]["httpGet"]["path"] == "/readyz"
        assert agent["livenessProbe"]["httpGet"]["path"] == "/livez"


def test_a_restarted_agent_may_take_ready_timeout_s() -> None:
    """The startup probe must not end an agent whose members still compare partitions."""
    for more, seconds in (((), 600), (("--set", "agent.settings.ready_timeout_s=1800"), 2100)):
        (agent,) = pods(rendered(DEFAULT, *more))[0]["initContainers"]
        probe = agent["startupProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] == seconds


def test_sidecar_only_makes_no_members() -> None:
    kinds = {each["kind"] for each in rendered(SIDECAR)}
    assert not kinds & {"StatefulSet", "PodDisruptionBudget", "NetworkPolicy", "Pod"}
    values = yaml.safe_load(one(rendered(SIDECAR), "ConfigMap")["data"]["values.yaml"])
    made = tomllib.loads(values["hazelcast"]["configurationFiles"]["agent.toml"])
    properties = values["hazelcast"]["yaml"]["hazelcast"]["properties"]
    assert properties["imap-wal.agent"] == made["endpoint"]
    assert pods(rendered(SIDECAR))[0]["securityContext"]["runAsUser"] == 65534


def test_secrets_reach_only_the_container_that_uses_them() -> None:
    (pod, *_) = pods(rendered(CURVE))
    (agent,), (member,) = pod["initContainers"], pod["containers"]
    volumes = {each["name"]: each for each in pod["volumes"]}

    def keys(container: dict[str, Any]) -> set[str]:
        mounted = {each["name"] for each in container["volumeMounts"]}
        return {
            item["key"]
            for name in mounted
            for item in volumes[name].get("secret", {}).get("items", [])
        }

    assert keys(agent) == {"agent.key", "clients.toml"}
    assert keys(member) == {"member.key"}
    secret = one(rendered(BUCKET), "Secret")
    assert agent_toml(rendered(BUCKET))["credentials"].endswith("/credentials.toml")
    assert not any(
        secret["metadata"]["name"] in str(each) for each in pods(rendered(BUCKET))[0]["containers"]
    )


def test_every_member_names_the_agents_of_all_pods() -> None:
    documents = rendered(COPIES)
    data = one(documents, "ConfigMap")["data"]
    properties = yaml.safe_load(data["hazelcast.yaml"])["hazelcast"]["properties"]
    listed = [each.split() for each in properties["imap-wal.copy-agents"].split(",")]
    service = "wal-imap-wal.shop.svc.cluster.local"
    assert [place for place, _ in listed] == [
        f"tcp://wal-imap-wal-{number}.{service}:7701" for number in range(3)
    ]
    assert {key for _, key in listed} == {properties["imap-wal.agent-public-key"]}
    assert (properties["imap-wal.copies"], properties["imap-wal.agent"]) == (
        "2",
        "${imap-wal.agent}",
    )
    (member,) = members(documents)["spec"]["template"]["spec"]["containers"]
    assert f"-Dimap-wal.agent=tcp://$(POD_NAME).{service}:7701" in member["args"]
    assert agent_toml(documents)["endpoint"] == "tcp://0.0.0.0:7701"


@pytest.mark.parametrize(
    ("sets", "why"),
    [
        (["log.volume.enabled=false"], "there is no root for the logs"),
        (["log.volume.accessMode=ReadWriteOnce"], "3 members need one volume"),
        (["log.url=file:///mnt/elsewhere"], "not on the volume of the logs"),
        (["log.url=file:///var/lib/imap-wal-2"], "not on the volume of the logs"),
        (["log.url=file:///data/external"], "it is mounted at /var/lib/imap-wal"),
        (["log.url=file:///var/lib/imap-wal", "mode=sidecar-only"], "it is mounted at /data/ext"),
        (["log.url=/var/lib/imap-wal"], "not a URL: write file:///var/lib/imap-wal"),
        (["log.url=file:/var/lib/imap-wal"], "not a URL: write file:///var/lib/imap-wal"),
        (["log.walDir=wal"], "log.walDir is wal, which is not a URL"),
        (["log.url=local:///var/lib/imap-wal"], "only one pod can read"),
        (["log.url=memory://maps"], "only one pod can read"),
        (["rewrite.enabled=true", "agent.settings.storage_options.a=b"], "log.credentials"),
        (["curve.enabled=true"], "curve.enabled needs"),
        (["log.localDisk.enabled=true"], "log.localDisk needs curve.enabled"),
        (["log.localDisk.enabled=true", "curve.enabled=true", "mode=sidecar-only"], "it excludes"),
        (["cluster.partitionGroup=zone"], "set topologySpread.zones to DoNotSchedule"),
        (["cluster.partitionGroup=zone", "mode=sidecar-only"], "cluster.config.partition-group"),
        (["service.type=LoadBalancer"], "name the addresses that may connect"),
        (["service.nodePort=30571"], "set service.type to NodePort"),
        (["service.loadBalancerSourceRanges={10.0.0.0/8}"], "use networkPolicy.clients"),
        (["service.type=ExternalName"], "service.type"),
        (["serviceAccount.create=false", "serviceAccount.annotations.a=b"], "annotate the one"),
        (["managementCenter.enabled=true", "mode=sidecar-only"], "mancenter.enabled"),
        (["member.probes.startup.failureTreshold=9"], "failureTreshold is not allowed"),
        (["member.probes.startup.periodSeconds=0"], "periodSeconds"),
        (["member.extraClassPath={a:b}"], "extraClassPath.0"),
        (["extraVolumes[0].emptyDir.medium=Memory"], "name is required"),
        (["agent.extraVolumeMounts[0].name=a"], "mountPath is required"),
        (["nodeSelector.gpu=true"], "nodeSelector"),
        (
            ["scaleDown.forget=always", "agent.settings.storage_options.a=b"],
            "set scaleDown.forget to never",
        ),
        (["log.localDisk.enabled=true", "curve.enabled=true", "rewrite.enabled=true"], "the root"),
        (["cluster.copies=2"], "cluster.copies needs curve.enabled"),
        (["cluster.copies=2", "mode=sidecar-only"], "not with mode sidecar-only"),
        (["cluster.copies=2", "curve.enabled=true", "cluster.replicas=1"], "1 agents"),
        (["cluster.acks=2"], "a change is in 1 logs"),
        (["cluster.copies=4"], "copies"),
        (["cluster.mapStoreProperties.copy-agents=a"], "the chart writes this property"),
        (
            ["cluster.durableMaps={orders,eu-*}", "cluster.config.map.eu.backup-count=2"],
            "cluster.config.map.eu is in no list: add it to cluster.durableMaps",
        ),
        (["cluster.mapStoreProperties.durable-maps=a"], "use cluster.durableMaps"),
        (["cluster.durableMaps={__sql.other}"], "durableMaps.0"),
        (["cluster.transientMaps={a\\,b}"], "transientMaps.0"),
        (["cluster.durableStructures=never"], "durableStructures"),
        (["mode=sidecar-only", "token.existingSecret=a"], "mounts no Secrets"),
        (["agent.settings.url=s3://b"], "the chart writes this setting"),
        (["agent.settings.max_map=5"], "max_map is not allowed"),
        (["agent.settings.segment_bytes=5"], "segment_bytes is not allowed"),
        (["agent.log.encryption_keys=file:/etc/keys"], "pods mount no file of keys"),
        (["agent.log.encryption_key=env:A"], "encryption_key is not allowed"),
        (["agent.settings.max_maps=many"], "Expected: [integer,null], given: string"),
        (["agent.log.segment_bytes=1.5"], "Expected: [integer,null]"),
        (["agent.log.durability=allways"], '"always", "interval", "os", "async"'),
        (["agent.log.preallocate=yes"], "Expected: [boolean,null], given: string"),
        (["agent.settings.storage_options=a"], "Expected: [object,null], given: string"),
        (["agent.settings.allow_uids[0]=a"], "allow_uids.0: Invalid type. Expected: integer"),
        (["cluster.replicas=0"], "cluster"),
        (["mode=operator"], "mode"),
        (["replicaCount=5"], "replicaCount"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_values_that_cannot_work_are_refused(sets: list[str], why: str) -> None:
    options = [part for each in sets for part in ("--set", each)]
    assert why in helm("template", "wal", CHART, *options, refused=True)


def test_the_spark_job_rewrites_and_then_prunes() -> None:
    job = pods(rendered(SPARK))[1]
    (rewrite,), (prune,) = job["initContainers"], job["containers"]
    assert [*rewrite["command"], rewrite["args"][0]] == [
        "imap-wal",
        "rewrite",
        "file:///var/lib/imap-wal",
    ]
    assert "spark.master=spark://spark-master:7077" in rewrite["args"]
    assert rewrite["image"] == f"imap-wal-spark:{VERSION}"
    assert prune["args"][-1] == "--yes"


def test_the_job_reads_an_encrypted_log() -> None:
    job = pods(rendered(SPARK, "--set", "agent.log.encryption_keys=env:KEYS"))[1]
    for container in (*job["initContainers"], *job["containers"]):
        assert {"name": "IMAP_WAL_ENCRYPTION_KEYS", "value": "env:KEYS"} in container["env"]


@pytest.mark.parametrize(
    ("sets", "folder"),
    [
        (["log.url=file:///var/lib/imap-wal"], "/var/lib/imap-wal"),
        (["log.url=file:///var/lib/imap-wal/maps/"], "/var/lib/imap-wal"),
        (["log.url=file:///data/external/maps", "mode=sidecar-only"], "/data/external"),
        (["log.url=s3://b/maps", "log.walDir=file:///var/lib/imap-wal/wal"], "/var/lib/imap-wal"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_place_on_the_volume_mounts_it(sets: list[str], folder: str) -> None:
    """In pods of the rewrite too."""
    options = [part for each in [*sets, "rewrite.enabled=true"] for part in ("--set", each)]
    documents = rendered(DEFAULT, *options)
    job = pods([one(documents, "CronJob")])[0]
    for container in (*job["initContainers"], *job["containers"]):
        assert {"name": "log", "mountPath": folder} in container["volumeMounts"]


class Cluster(http.server.BaseHTTPRequestHandler):
    """What helm asks the API of Kubernetes for when it renders; there are five members."""

    ANSWERS: ClassVar[dict[str, dict[str, Any]]] = {
        "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {
            "kind": "APIGroupList",
            "groups": [
                {"name": "apps", "versions": [{"groupVersion": "apps/v1", "version": "v1"}]}
            ],
        },
        "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
        "/apis/apps/v1": {
            "kind": "APIResourceList",
            "groupVersion": "apps/v1",
            "resources": [
                {
                    "name": "statefulsets",
                    "namespaced": True,
                    "kind": "StatefulSet",
                    "verbs": ["get"],
                }
            ],
        },
        "/apis/apps/v1/namespaces/shop/statefulsets/wal-imap-wal": {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "wal-imap-wal"},
            "spec": {"replicas": 5},
        },
    }

    def do_GET(self) -> None:  # the name that http.server calls
        answer = self.ANSWERS.get(self.path.partition("?")[0], {})
        self.send_response(200 if answer else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_an_upgrade_with_fewer_members_has_the_job() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Cluster) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        place = f"--kube-apiserver=http://127.0.0.1:{server.server_port}"
        options = (place, "--dry-run=server", "--set")
        try:
            with_job = [
                "Job" in {each["kind"] for each in rendered(DEFAULT, *options, sets)}
                for sets in (
                    "cluster.replicas=4",
                    "cluster.replicas=5",
                    "cluster.replicas=4,scaleDown.forget=never",
                )
            ]
        finally:
            server.shutdown()
            thread.join()
    assert with_job == [True, False, False]


COMPOSE = ROOT / "examples" / "compose"


def test_the_example_for_docker_compose_is_what_the_chart_runs() -> None:
    """Flags, properties, filter and settings; no Docker starts it."""
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    (member,) = members(rendered(DEFAULT))["spec"]["template"]["spec"]["containers"]
    data = one(rendered(DEFAULT), "ConfigMap")["data"]
    ours = yaml.safe_load((COMPOSE / "hazelcast.yaml").read_text())["hazelcast"]
    chart = yaml.safe_load(data["hazelcast.yaml"])["hazelcast"]
    assert plugin_properties(ours) == plugin_properties(chart)
    assert ours["serialization"] == chart["serialization"]
    AgentConfig.from_toml(COMPOSE / "agent.toml", node="node-1")
    for number in (1, 2, 3):
        agent, started = services[f"agent-{number}"], services[f"member-{number}"]
        assert agent["hostname"] == f"node-{number}"
        assert f"run-{number}:/run/imap-wal" in {*agent["volumes"]} & {*started["volumes"]}
        flags = {each for each in member["args"] if not each.startswith("-javaagent:")}
        assert flags - {"-Dhazelcast.logging.type=jdk"} <= set(started["command"])
        assert (agent["read_only"], agent["cap_drop"]) == (True, ["ALL"])


def test_images_and_commands_name_this_release() -> None:
    for file in (COMPOSE / "compose.yaml", ROOT / "docs/how-to/kubernetes.md"):
        assert set(re.findall(r"imap-wal-(?:member|agent):([0-9.]+)", file.read_text())) == {
            VERSION
        }


def test_notes_say_when_agents_do_not_compact(tmp_path: Path) -> None:
    never = ("--set", "agent.log.auto_rewrite_percentage=0")
    sentence = "agents do not compact the log automatically"
    assert sentence not in notes(tmp_path, DEFAULT)
    assert sentence not in notes(tmp_path, DEFAULT, "--set", "agent.log.auto_rewrite_percentage=50")
    assert sentence in notes(tmp_path, DEFAULT, *never)
    assert sentence not in notes(tmp_path, DEFAULT, *never, "--set", "rewrite.enabled=true")
    assert notes(tmp_path, DISKS, *never).count(sentence) == 1
