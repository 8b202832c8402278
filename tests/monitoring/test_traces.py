"""Traces of a real agent, received by OTLP over HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import imap_wal
from imap_wal import tracing
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.monitoring.traces import is_asked, traced
from imap_wal.clock import SystemClock
from imap_wal.errors import InvalidSetting
from tests.agent.harness import plugin
from tests.kit.effort import every, thorough
from tests.kit.own_disks import own_disk_config
from tests.support import eventually

proto = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
pytest.importorskip("opentelemetry.sdk")


class Collector:
    """A receiver of OTLP. `spans`: all that arrived, and of which resource."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                size = int(self.headers["Content-Length"])
                request = proto.ExportTraceServiceRequest.FromString(self.rfile.read(size))
                for each in request.resource_spans:
                    outer.resources.append(
                        {item.key: item.value.string_value for item in each.resource.attributes}
                    )
                    for scope in each.scope_spans:
                        outer.spans += scope.spans
                answer = proto.ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def named(self, name: str) -> list[Any]:
        return [each for each in self.spans if each.name == f"imap_wal {name}"]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


class RunningAgent:
    """`imap-wal agent`, with a configuration as users write it."""

    def __init__(self, folder: Path, config: AgentConfig, **environment: str) -> None:
        self.config = config
        file = folder / "agent.toml"
        top = {
            "url": config.url,
            "wal_dir": config.wal_dir,
            "wal_dir_is_local": True,
            "tail_endpoint": config.tail_endpoint,
            "upload_interval_s": config.upload_interval_s,
            "cluster": config.cluster,
            "node": config.node,
            "endpoint": config.endpoint,
            "lifetime_timeout_s": 0,
            "start_policy": "partial",
            "reserve_bytes": 0,
            "http_address": "127.0.0.1:0",
            "otlp_endpoint": config.otlp_endpoint,
        }
        lines = [f"{name} = {json.dumps(value)}" for name, value in top.items()]
        file.write_text("\n".join([*lines, "[log]", "archive_interval_s = 1", ""]))
        clean = {name: each for name, each in os.environ.items() if not name.startswith("OTEL_")}
        self.log = folder / "agent.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rewrite_cli.cli", "agent", "--config", str(file)],
                env={**clean, "OTEL_BSP_SCHEDULE_DELAY": "200", **environment},
                stderr=log,
            )

    def stop(self) -> float:
        """Stop the agent; returns the seconds that this took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0, self.log.read_text()
        return time.monotonic() - began

    def __enter__(self) -> RunningAgent:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


@every(2)
@pytest.mark.parametrize("by", ["setting", "variable"])
def test_commits_restores_and_maintenance_are_traced(
    tmp_path: Path, collector: Collector, by: str
) -> None:
    where = {"otlp_endpoint": collector.url} if by == "setting" else {}
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url} if by == "variable" else {}
    config = own_disk_config(tmp_path, "n1", upload_interval_s=0.2, changes=where)
    with RunningAgent(tmp_path, config, **variables) as agent:
        with plugin(config) as member:
            member.put(secret_key="secret value")
            assert member.values() == {"secret_key": "secret value"}
            address = member.client.ask("stat")[0][2]["http_address"]
            for name in ("commit", "claim", "upload", "archive", "restore"):
                # A segment may be archived before it is uploaded: then the next one is.
                eventually(
                    lambda name=name: collector.named(name) or not member.put(again="x"),
                    f"a span {name}",
                    60,
                )
            commit = collector.named("commit")[0]
            parts = [each for each in collector.spans if each.parent_span_id == commit.span_id]
            assert [each.name for each in parts] == [
                "imap_wal append",
                "imap_wal sync",
                "imap_wal acknowledge",
            ]
            assert parts[0].start_time_unix_nano == commit.start_time_unix_nano
            assert abs(parts[-1].end_time_unix_nano - commit.end_time_unix_nano) < 1_000_000
            facts = {item.key: item.value.int_value for item in commit.attributes}
            assert facts == {"imap_wal.requests": 1, "imap_wal.changes": 1}
            text = openmetrics(f"http://{address}/metrics")
            # The newest commits may be exported later than their numbers.
            eventually(
                lambda: (
                    exemplars(text) & {each.trace_id.hex() for each in collector.named("commit")}
                ),
                "the spans of the exemplars",
            )
        assert agent.stop() < 15
    assert "secret" not in repr(collector.spans) and "orders" not in repr(collector.spans)
    (resource,) = {tuple(sorted(each.items())) for each in collector.resources}
    wanted = {
        "service.name": "imap-wal-agent",
        "service.instance.id": "n1",
        "imap_wal.cluster": "c",
    }
    assert dict(resource).items() >= wanted.items()


def openmetrics(url: str) -> str:
    """As Prometheus asks for metrics."""
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        return str(answer.read().decode())


def exemplars(text: str) -> set[str]:
    return {
        sample.exemplar.labels["trace_id"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.exemplar is not None
    }


@thorough
def test_a_collector_that_is_away_delays_nothing(tmp_path: Path) -> None:
    config = own_disk_config(tmp_path, "n1", changes={"otlp_endpoint": "http://127.0.0.1:1"})
    with RunningAgent(tmp_path, config) as agent:
        with plugin(config) as member:
            for number in range(20):
                assert member.put(**{f"k{number}": "x"})[0] == "ack"
        assert agent.stop() < 15


def test_nothing_is_imported_unless_it_is_asked_for(tmp_path: Path) -> None:
    config = own_disk_config(tmp_path, "n1")
    code = (
        "import sys\n"
        "from imap_wal.agent.monitoring.traces import traced\n"
        "from imap_wal.agent.config import AgentConfig\n"
        "from imap_wal import tracing\n"
        f"with traced(AgentConfig(url={config.url!r}), {{}}):\n"
        "    import imap_wal.agent.server\n"
        "    assert tracing.current() is None\n"
        "print(sorted(name for name in sys.modules if name.startswith('opentelemetry')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_variables_ask_for_traces_as_usual() -> None:
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}
    assert is_asked(endpoint)
    assert is_asked({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4318/v1/traces"})
    assert not is_asked({})
    assert not is_asked({**endpoint, "OTEL_SDK_DISABLED": "true"})
    assert not is_asked({**endpoint, "OTEL_TRACES_EXPORTER": "none"})


def test_another_protocol_is_refused(tmp_path: Path) -> None:
    config = own_disk_config(tmp_path, "n1", changes={"otlp_endpoint": "http://127.0.0.1:1"})
    with (
        pytest.raises(InvalidSetting, match="not with grpc"),
        traced(config, {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}),
    ):
        pass
    with pytest.raises(InvalidSetting, match="as in http://localhost:4318"):
        own_disk_config(tmp_path, "n1", changes={"otlp_endpoint": "localhost:4317"})


def test_few_spans_are_kept_and_all_slow_or_failed_ones() -> None:
    from imap_wal.agent.monitoring.otel import OtlpTracer

    tracer = OtlpTracer("http://127.0.0.1:1", {}, SystemClock(), {})
    try:
        assert tracer.ended("commit", 0.001, {})
        kept = [tracer.ended("commit", 0.001, {}) for _ in range(20)]
        assert not any(kept)
        assert tracer.ended("commit", 0.2, {}) and tracer.ended("commit", 0.001, {}, error="Fenced")
        assert tracer.ended("upload", 0.001, {}), "another name"
    finally:
        tracer.close()


@thorough
def test_a_compaction_is_a_span(tmp_path: Path) -> None:
    spans = []

    class Kept:
        def ended(
            self, name: str, seconds: float, facts: Any, parts: Any = (), error: str = ""
        ) -> str:
            spans.append((name, facts.get("records"), error))
            return ""

    tracing.use(Kept())
    try:
        with imap_wal.open(tmp_path, auto_rewrite_percentage=0) as store:
            store.map("m").update({"a": 1, "b": 2})
            store.compact()
    finally:
        tracing.use(None)
    assert ("compaction", 2, "") in spans


def test_a_failure_ends_a_span_with_its_class() -> None:
    class Kept:
        said: tuple[str, str, int]

        def ended(
            self, name: str, seconds: float, facts: Any, parts: Any = (), error: str = ""
        ) -> str:
            self.said = name, error, facts["bytes"]
            return ""

    kept = Kept()
    tracing.use(kept)
    try:
        with pytest.raises(OSError), tracing.span(SystemClock(), "upload") as facts:
            facts["bytes"] = 3
            raise OSError("the text may have a secret")
    finally:
        tracing.use(None)
    assert kept.said == ("upload", "OSError", 3)
