"""The scripts that run in pods of the chart: the zone of a node, and nodes after a scale-down."""

from __future__ import annotations

import http.server
import json
import runpy
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import imap_wal
from tests.chart.rendering import CHART
from tests.cli.conftest import Run, run

__all__ = ["run"]  # a fixture
FORGET, ZONE = (CHART / "files" / name for name in ("forget-removed.py", "zone.py"))


class Script:
    """`forget-removed.py` in this process, with the command line in this process."""

    def __init__(self, run: Run, patch: pytest.MonkeyPatch, url: str) -> None:
        self.commands: list[str] = []
        self.before: dict[str, Any] = {}
        """By the command: what happens before it."""
        self._run, self._patch, self._url = run, patch, url
        patch.setattr(subprocess, "run", self._started)

    def _started(self, words: list[str], **_: object) -> SimpleNamespace:
        assert words[0] == "imap-wal"
        self.commands.append(words[1])
        if action := self.before.pop(words[1], None):
            action()
        ended = self._run(*words[1:])
        return SimpleNamespace(returncode=ended.code, stdout=ended.out)

    def __call__(self, replicas: int, *more: str, seconds: int = 0) -> str:
        """What it says at its end; "" if it succeeds."""
        words = [str(FORGET), self._url, "eu", "wal", str(replicas), str(seconds), *more]
        self._patch.setattr(sys, "argv", words)
        try:
            runpy.run_path(str(FORGET), run_name="__main__")
        except SystemExit as ended:
            return str(ended.code or "")
        return ""


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The log of three pods, and of a node of another name."""
    root = f"file://{tmp_path}/maps"
    for node in ("wal-0", "wal-1", "wal-2", "wal-x"):
        with opened(root, node) as store:
            store.map("orders")[node] = 1
    return root


@pytest.fixture
def script(run: Run, monkeypatch: pytest.MonkeyPatch, url: str) -> Script:
    return Script(run, monkeypatch, url)


def opened(url: str, node: str) -> imap_wal.Store:
    return imap_wal.open(url, cluster="eu", node=node, shared=True, preallocate=False)


def nodes(run: Run, url: str) -> dict[str, str]:
    listed = run("ls", url, "--output", "json").json["nodes"]
    return {each["node"]: each["state"] for each in listed if each["state"] != "forgotten"}


def test_a_removed_node_is_forgotten_when_all_is_covered(
    script: Script, run: Run, url: str
) -> None:
    assert script(2) == ""
    assert nodes(run, url).keys() == {"wal-0", "wal-1", "wal-x"}
    with opened(url, "wal-0") as store:
        assert store.map("orders").keys() == {"wal-0", "wal-1", "wal-2", "wal-x"}
    script.commands.clear()
    assert script(2) == "" and script.commands == ["ls"]  # nothing is left to do


def test_the_log_of_another_namespace_is_left_alone(script: Script, run: Run, url: str) -> None:
    with imap_wal.open(url, namespace="blog", cluster="eu", node="wal-3") as store:
        store.map("orders")["a"] = 1
    assert script(3, "--namespace", "default") == "" and script.commands == ["ls"]
    assert "wal-3" in nodes(run, url)


def test_a_node_whose_agent_runs_is_not_forgotten(script: Script, run: Run, url: str) -> None:
    with opened(url, "wal-2") as store:
        store.map("orders")["late"] = 1
        said = script(2)
        assert "nothing was forgotten" in said and "wal-2" in said
        assert script.commands == ["ls"]
        store.map("orders")["later"] = 1  # its log was not taken from it
    assert script(2) == ""
    with opened(url, "wal-0") as store:
        assert {"late", "later"} <= store.map("orders").keys()


def test_a_change_after_the_rewrite_refuses_the_node(script: Script, run: Run, url: str) -> None:
    """The pod came back and stopped again meanwhile: no snapshot has its last change."""

    def change() -> None:
        with opened(url, "wal-2") as store:
            store.map("orders")["late"] = 1

    script.before["forget-node"] = change
    assert "forget-node" in script(2)
    assert "wal-2" in nodes(run, url)
    with opened(url, "wal-0") as store:
        assert "late" in store.map("orders")


def test_a_pod_that_is_back_keeps_its_node(script: Script, run: Run, url: str) -> None:
    with ExitStack() as stack:
        script.before["rewrite"] = lambda: stack.enter_context(opened(url, "wal-2"))
        assert script(2) == "" and "forget-node" not in script.commands
    assert "wal-2" in nodes(run, url)


class Api(http.server.BaseHTTPRequestHandler):
    """Kubernetes, as far as the script needs it: node `a` has a zone, `b` has none."""

    def do_GET(self) -> None:  # the name that http.server calls
        admitted = self.headers["Authorization"] == "Bearer a-token"
        labels = {"topology.kubernetes.io/zone": "eu-1a"} if self.path.endswith("/a") else {}
        self.send_response(200 if admitted else 403)
        self.end_headers()
        self.wfile.write(json.dumps({"metadata": {"labels": labels}}).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the token for a server that runs."""
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=api -days 1"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key", "-out", "ca.crt"]
    subprocess.run(
        ["openssl", *words.split(), *names], cwd=tmp_path, check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ca.crt", tmp_path / "key")
    (tmp_path / "token").write_text("a-token\n")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("API_TOKEN", str(tmp_path))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.server_port))
        yield tmp_path
        server.shutdown()
        thread.join()


def test_the_zone_of_the_node_is_an_argument_for_java(
    api: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = api / "zone.args"
    monkeypatch.setattr(sys, "argv", [str(ZONE), str(file)])

    def said(node: str) -> str:
        monkeypatch.setenv("NODE_NAME", node)
        try:
            runpy.run_path(str(ZONE), run_name="__main__")
        except SystemExit as ended:
            return str(ended.code)
        return ""

    assert said("a") == "" and file.read_text() == "-Dimap-wal.zone=eu-1a\n"
    file.unlink()
    assert "node b has no label topology.kubernetes.io/zone" in said("b")
    (api / "token").write_text("another")
    assert "answered 403 for node a" in said("a")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    assert "cannot be reached" in said("a")
    assert not file.exists()
