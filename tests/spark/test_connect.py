"""A server of Spark Connect, and a client in another process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from rewrite_cli.local_cluster.launcher import die_with_parent
from storage_backends import open_store
from tests.histories import put
from tests.kit.effort import thorough
from tests.kit.logs import append, node
from tests.support import eventually

pytest.importorskip("grpc", reason="the client of Spark Connect needs pyspark[connect]")
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
DRIVER = Path(__file__).parent / "drivers" / "connect.py"
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
START_S = 120


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a server, whose tasks run in its own process."""
    import pyspark

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    properties = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.warehouse.dir": tmp_path / "warehouse",
    }
    words = [word for each in properties.items() for word in ("--conf", "{}={}".format(*each))]
    output = tmp_path / "server.log"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [str(submit), "--class", SERVER, "--master", "local[2]", *words, "spark-internal"],
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=tmp_path,
            env={
                **os.environ,
                "SPARK_CONNECT_MODE": "0",
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    try:
        _await(process, port, output)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _await(process: subprocess.Popen[bytes], port: int, output: Path) -> None:
    def answers() -> bool:
        assert process.poll() is None, output.read_text(errors="replace")[-3000:]
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            return False
        return True

    eventually(answers, "the server answers", START_S)


@thorough
def test_a_client_reads_follows_and_adds(server: str, tmp_path: Path) -> None:
    log = node(open_store(str(tmp_path / "log")))
    append(log, put("k1", 1, (1, 1, 1, 1)), put("k1", 2, (1, 1, 1, 2)), put("k2", 1, (1, 1, 1, 3)))
    append(log, put("x", None, (1, 1, 1, 4), "other"))
    target = tmp_path / "target"
    with imap_wal.open(str(target)) as store:
        store.map("orders")["k"] = 1
    ended = subprocess.run(
        [sys.executable, str(DRIVER), server, str(tmp_path / "log"), str(target), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    refused, mistake = found.pop("refused"), found.pop("mistake")
    assert found == {
        "client": "pyspark.sql.connect.session",
        "raw": 3,
        "latest": ["k1", "k2"],
        "stream": 4,
        "table": 3,
    }
    assert "imap_wal takes no option colour" in mistake.splitlines()[0]
    assert "Traceback" not in mistake and "\tat " not in mistake
    assert "Spark Connect" in refused and "spark.master" in refused
    with imap_wal.open(str(target)) as store:
        assert dict(store.map("imported", raw=True).items()) == {b"k1": b"v1", b"k2": b"v2"}
