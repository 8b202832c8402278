"""Rewrites on a real cluster of Spark: a master and two workers, which have no imap-wal installed.

The driver is a process of its own, because a process has only one session of Spark."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from pyspark_imap_wal.package import write_package
from rewrite_cli.local_cluster.launcher import die_with_parent
from storage_backends import open_store
from tests.histories import put
from tests.kit import spark_cluster
from tests.kit.logs import SMALL, append, cluster, node, parquet_rows, values, view
from tests.kit.spark_cluster import SparkCluster, parent_of

pytestmark = [pytest.mark.spark, pytest.mark.torture, pytest.mark.timeout(900)]

KEYS, GROUP_ROWS = 1200, 300
DRIVER = Path(spark_cluster.__file__).with_name("spark_driver.py")
SECONDS_MAX = 300


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with spark_cluster.running_cluster(tmp_path_factory.mktemp("spark")) as found:
        yield found


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return dict(write_package(tmp_path_factory.mktemp("package") / "imap-wal.zip").properties)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A log of two nodes, with archives, deletions, and keys that both have changed."""
    found = tmp_path / "root"
    store = open_store(str(found))
    first, second = node(store), node(store, "n2")
    keys = [f"k{number:05d}" for number in range(KEYS)]
    append(first, *(put(key, "1", (1, 1, 1, at)) for at, key in enumerate(keys)), frames=5)
    first.rotate()
    append(second, *(put(key, "2", (1, 2, 1, at)) for at, key in enumerate(keys[::2])), frames=5)
    append(second, *(put(key, None, (1, 3, 1, at)) for at, key in enumerate(keys[::5])))
    append(first, put("x", "1", (1, 1, 1, KEYS), "other"))
    for log in (first, second):
        log.close()
    return found


def snapshot(root: Path) -> dict[str, list[Any]]:
    """Map → the rows of its published snapshot, with their nodes."""
    store = open_store(str(root))
    return {
        name: [row for path in each.files for row in parquet_rows(store, path)]
        for name, each in cluster(store).manifest().snapshots.items()
    }


def expected(root: Path, folder: Path) -> dict[str, list[Any]]:
    """The rows of the snapshots of a copy that the local engine rewrites."""
    copy = folder / "copy"
    shutil.copytree(root, copy)
    rewrite(cluster(open_store(str(copy))), LocalEngine(SMALL), skew_ms_max=2**60)
    return snapshot(copy)


def named(root: Path) -> set[str]:
    manifest = cluster(open_store(str(root))).manifest()
    return {path for each in manifest.snapshots.values() for path in each.files}


def files(root: Path) -> set[str]:
    return {file.path for file in open_store(str(root)).list("ns/c/snapshot")}


def check_swept(root: Path, wanted: dict[str, list[Any]], *, left_over: bool) -> None:
    """The snapshot is right, and a prune removes what other attempts have left, and nothing
    else."""
    assert snapshot(root) == wanted
    assert bool(files(root) - named(root)) == left_over
    store = open_store(str(root))
    before = values(view(store))
    prune(cluster(store))
    assert files(root) == named(root)
    assert values(view(store)) == before
    assert len(before) == KEYS - len(range(0, KEYS, 5))


def words(properties: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in properties.items()]


def command(root: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "rewrite_cli", "rewrite", str(root), "--engine", "spark", *more]


def conf(properties: dict[str, str]) -> list[str]:
    return [part for each in words(properties) for part in ("--spark-conf", each)]


def ended(words: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        env={**spark_cluster.driver_environment(), **environment},
        timeout=SECONDS_MAX,
    )


class Driver:
    """A rewrite whose last step waits at a gate."""

    def __init__(self, root: Path, gate: Path, mode: str, properties: dict[str, str]) -> None:
        gate.mkdir()
        self.gate = gate
        self._log = gate.with_suffix(".log")
        with self._log.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    sys.executable, str(DRIVER), str(root), str(gate), mode, str(GROUP_ROWS),
                    *words(properties),
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(spark_cluster.driver_environment()),
                preexec_fn=die_with_parent,
            )  # fmt: skip

    def attempts(self, count: int) -> list[int]:
        """The Python workers that have written the files of a range; waits for so many."""
        return self._until(
            lambda: [int(each.name.partition("-")[2]) for each in self.gate.glob("[0-9]*-*")],
            count,
        )

    def _until(self, found: Callable[[], list[int]], count: int) -> list[int]:
        deadline = time.monotonic() + SECONDS_MAX
        while time.monotonic() < deadline and self.process.poll() is None:
            if len(there := found()) >= count:
                return there
            time.sleep(0.05)
        raise AssertionError(self.output())

    def go(self) -> None:
        (self.gate / "go").touch()

    def finish(self) -> None:
        assert self.process.wait(SECONDS_MAX) == 0, self.output()

    def output(self) -> str:
        return self._log.read_text(errors="replace")[-5000:]


@pytest.fixture
def driver(
    running: SparkCluster, package: dict[str, str], root: Path, tmp_path: Path
) -> Iterator[Callable[..., Driver]]:
    made: list[Driver] = []

    def start(mode: str, **more: str) -> Driver:
        properties = running.properties(**package, **more)
        made.append(Driver(root, tmp_path / "gate", mode, properties))
        return made[-1]

    yield start
    for each in made:
        each.process.kill()
        each.process.wait()


def test_the_cluster_writes_what_the_local_engine_writes(
    running: SparkCluster, package: dict[str, str], root: Path, tmp_path: Path
) -> None:
    """Master, interpreter and package come from the TOML file; a property on the command line
    overrides it. The workers' Python has no imap-wal."""
    wanted = expected(root, tmp_path)
    lines = [f'"{name}" = "{value}"' for name, value in running.properties(**package).items()]
    file = tmp_path / "settings.toml"
    file.write_text("\n".join(["[spark]", *lines]).replace(running.master, "spark://nowhere:1"))
    done = ended(
        [
            *command(root, "--spark-conf"),
            f"spark.master={running.master}",
        ],
        IMAP_WAL_CONFIG=str(file),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    check_swept(root, wanted, left_over=False)


def test_the_master_of_spark_submit_holds(
    running: SparkCluster, package: dict[str, str], root: Path, tmp_path: Path
) -> None:
    import pyspark

    program = tmp_path / "program.py"
    program.write_text("from rewrite_cli.__main__ import main\n\nmain()\n")
    properties = running.properties(**package)
    del properties["spark.master"]
    properties["spark.pyspark.driver.python"] = sys.executable
    wanted = expected(root, tmp_path)
    done = ended(
        [
            str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
            "--master",
            running.master,
            *(part for each in words(properties) for part in ("--conf", each)),
            str(program),
            *command(root)[3:],
        ],
    )
    assert done.returncode == 0, done.stderr[-3000:]
    check_swept(root, wanted, left_over=False)
    assert len(list((running.folder / "work").rglob("stderr"))) >= 2, "it ran on the workers"


def test_workers_without_imap_wal_are_named(running: SparkCluster, root: Path) -> None:
    done = ended(
        command(root, *conf(running.properties())),
    )
    assert done.returncode == 1
    assert "imap-wal spark package" in done.stderr, done.stderr[-3000:]
    assert snapshot(root) == {} and files(root) == set()


def test_a_killed_python_worker_is_replaced(
    driver: Callable[..., Driver], root: Path, tmp_path: Path
) -> None:
    wanted = expected(root, tmp_path)
    job = driver("held")
    os.kill(job.attempts(2)[0], signal.SIGKILL)
    job.go()
    job.finish()
    check_swept(root, wanted, left_over=True)


def test_without_a_master_a_killed_python_worker_is_replaced(root: Path, tmp_path: Path) -> None:
    """On this machine, with no configuration of the master at all."""
    wanted = expected(root, tmp_path)
    job = Driver(root, tmp_path / "gate", "held", {"spark.sql.shuffle.partitions": "2"})
    try:
        os.kill(job.attempts(1)[0], signal.SIGKILL)
        job.go()
        job.finish()
    finally:
        job.process.kill()
        job.process.wait()
    check_swept(root, wanted, left_over=True)


def test_a_killed_executor_is_replaced(
    driver: Callable[..., Driver], root: Path, tmp_path: Path
) -> None:
    """Its part of the first step is lost with it: Spark tries that stage again, and its attempts
    are counted from 0 again."""
    wanted = expected(root, tmp_path)
    job = driver("held")
    worker = job.attempts(2)[0]
    os.kill(parent_of(parent_of(worker)), signal.SIGKILL)
    job.go()
    job.finish()
    check_swept(root, wanted, left_over=True)


def test_speculation_beside_a_slow_upload_takes_one_answer(
    driver: Callable[..., Driver], root: Path, tmp_path: Path
) -> None:
    wanted = expected(root, tmp_path)
    job = driver(
        "slow",
        **{
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.quantile": "0.5",
        },
    )
    job.finish()
    assert len(list(job.gate.glob("0-*"))) >= 2, "there was a second attempt"
    check_swept(root, wanted, left_over=True)


def test_a_killed_driver_publishes_nothing(
    driver: Callable[..., Driver], root: Path, tmp_path: Path
) -> None:
    """The next rewrite is right, and what the first one wrote is swept."""
    wanted = expected(root, tmp_path)
    job = driver("held")
    job.attempts(2)
    job.process.kill()
    job.process.wait()
    assert snapshot(root) == {} and files(root)
    rewrite(cluster(open_store(str(root))), LocalEngine(SMALL), skew_ms_max=2**60)
    job.go()
    check_swept(root, wanted, left_over=True)
