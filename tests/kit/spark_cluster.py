"""A standalone cluster of Spark on this machine: a master and two workers, each at an address of
its own, because Spark starts a second attempt at a task only on another host."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rewrite_cli.local_cluster.launcher import die_with_parent
from tests.kit.ports import free_ports

HOSTS = ("127.0.0.1", "127.0.0.2")
LIBRARIES = ("pyarrow", "pyarrow.libs", "numpy", "numpy.libs")
"""What the workers' Python has, besides Spark's own."""
SECONDS_MAX = 90


@dataclass(frozen=True, slots=True)
class SparkCluster:
    """A running cluster. `python`: for its workers, where it is the `python3` of the PATH; it has
    no imap-wal."""

    master: str
    folder: Path
    python: Path

    def properties(self, **more: str) -> dict[str, str]:
        """For a driver on this machine."""
        return {
            "spark.master": self.master,
            "spark.pyspark.python": str(self.python),
            "spark.driver.host": HOSTS[0],
            "spark.executor.memory": "512m",
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
            **more,
        }

    def logs(self) -> str:
        """What its executors printed."""
        return "\n".join(
            path.read_text(errors="replace") for path in (self.folder / "work").rglob("std*")
        )


@contextmanager
def running_cluster(folder: Path) -> Iterator[SparkCluster]:
    """Start it in `folder`; when this ends, all its processes are gone."""
    import pyspark

    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    port, page = free_ports(2)
    master = f"spark://{HOSTS[0]}:{port}"
    python = _bare_python(folder)
    with ExitStack() as stack:

        def start(name: str, host: str, *words: str) -> None:
            environment = {
                key: value
                for key, value in os.environ.items()
                if key not in ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
            }
            output = stack.enter_context((folder / f"{name}.log").open("wb"))
            process = subprocess.Popen(
                [str(program), f"org.apache.spark.deploy.{words[0]}", "--host", host, *words[1:]],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={
                    **environment,
                    "SPARK_LOCAL_IP": host,
                    "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
                },
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
            stack.callback(_end, process)

        start("master", HOSTS[0], "master.Master", "--port", str(port), "--webui-port", str(page))
        for index, host in enumerate(HOSTS):
            start(
                f"worker-{index}", host, "worker.Worker", "--cores", "1", "--memory", "1g",
                "--work-dir", str(folder / "work" / str(index)), "--webui-port", "0", master,
            )  # fmt: skip
        _await_workers(page, folder)
        yield SparkCluster(master, folder, python)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The process and its children, such as executors."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _await_workers(page: int, folder: Path) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://{HOSTS[0]}:{page}/json/", timeout=5) as answer:
                if json.load(answer)["aliveworkers"] == len(HOSTS):
                    return
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError((folder / "master.log").read_text(errors="replace")[-3000:])


def _bare_python(folder: Path) -> Path:
    """This Python with Spark's libraries only. `-S`: it reads no folder of installed packages."""
    libraries = folder / "libraries"
    libraries.mkdir()
    for name in LIBRARIES:
        found = Path(sysconfig.get_paths()["purelib"]) / name
        if found.exists():
            (libraries / name).symlink_to(found)
    script = folder / "programs" / "python3"
    script.parent.mkdir()
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{libraries}" exec {sys.executable} -S "$@"\n'
    )
    script.chmod(0o755)
    return script


def driver_environment() -> Mapping[str, str]:
    """For a process that runs a driver of this checkout."""
    root = Path(__file__).parents[2]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYSPARK_")}
    return {**kept, "PYTHONPATH": str(root), "SPARK_LOCAL_IP": HOSTS[0]}


def parent_of(pid: int) -> int:
    """The process that started another one."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("PPid:")[2].split()[0])
