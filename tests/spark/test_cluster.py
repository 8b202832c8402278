"""Rewrites on a real cluster of Spark: a master and two workers, which have no imap-wal installed.

The driver is a process of its own, because a process has only one session of Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from pyspark_imap_wal.package import write_package
from rewrite_cli.local_cluster.launcher import die_with_parent
from storage_backends import SegmentStore, open_store
from tests.histories import put
from tests.kit import spark_cluster
from tests.kit.logs import SMALL, append, cluster, node, parquet_rows, values, view
from tests.kit.spark_cluster import SparkCluster, parent_of
from tests.storage.s3_gateway import S3, running_s3

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
    file = tmp_path_factory.mktemp("package") / "imap-wal.zip"
    return dict(write_package(file, extras=["s3"]).properties)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with running_s3(tmp_path_factory.mktemp("s3")) as gateway:
        yield gateway


@dataclass(frozen=True)
class Root:
    """The root of a log, and where a copy of it can be. Both URLs have the options of the
    storage."""

    url: str
    copy: str

    def open(self) -> SegmentStore:
        return open_store(self.url)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """A log in a folder."""
    return filled(Root(str(tmp_path / "root"), str(tmp_path / "copy")))


@pytest.fixture(params=["folder", "S3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Root:
    """A log in a folder, and one on S3."""
    if request.param == "folder":
        return filled(Root(str(tmp_path / "root"), str(tmp_path / "copy")))
    gateway: S3 = request.getfixturevalue("s3")
    name = f"bucket/{tmp_path.name}"
    return filled(Root(gateway.url(name), gateway.url(f"{name}-copy")))


def filled(found: Root) -> Root:
    """With a log of two nodes: archives, deletions, and keys that both have changed."""
    store = found.open()
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


def snapshot(store: SegmentStore) -> dict[str, list[Any]]:
    """Map → the rows of its published snapshot, with their nodes."""
    return {
        name: [row for path in each.paths for row in parquet_rows(store, path)]
        for name, each in cluster(store).manifest().snapshots.items()
    }


def expected(root: Root) -> dict[str, list[Any]]:
    """The rows of the snapshots of a copy that the local engine rewrites."""
    store, copy = root.open(), open_store(root.copy)
    for file in store.list(""):
        copy.create(file.path, store.read(file.path))
    rewrite(cluster(copy), LocalEngine(SMALL), skew_ms_max=2**60)
    return snapshot(copy)


def named(store: SegmentStore) -> set[str]:
    manifest = cluster(store).manifest()
    return {path for each in manifest.snapshots.values() for path in each.paths}


def files(store: SegmentStore) -> set[str]:
    return {file.path for file in store.list("ns/c/snapshot")}


def check_swept(root: Root, wanted: dict[str, list[Any]], *, left_over: bool) -> None:
    """The snapshot is right, and a prune removes what other attempts have left, and nothing
    else."""
    store = root.open()
    assert snapshot(store) == wanted
    assert bool(files(store) - named(store)) == left_over
    before = values(view(store))
    prune(cluster(store))
    assert files(store) == named(store)
    assert values(view(store)) == before
    assert len(before) == KEYS - len(range(0, KEYS, 5))


def words(properties: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in properties.items()]


def command(root: Root, *more: str) -> list[str]:
    return [sys.executable, "-m", "rewrite_cli", "rewrite", root.url, "--engine", "spark", *more]


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

    def __init__(self, root: Root, gate: Path, mode: str, properties: dict[str, str]) -> None:
        gate.mkdir()
        self.gate = gate
        self._log = gate.with_suffix(".log")
        with self._log.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    sys.executable, str(DRIVER), root.url, str(gate), mode, str(GROUP_ROWS),
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
    running: SparkCluster, package: dict[str, str], place: Root, tmp_path: Path
) -> Iterator[Callable[..., Driver]]:
    made: list[Driver] = []

    def start(mode: str, **more: str) -> Driver:
        properties = running.properties(**package, **more)
        made.append(Driver(place, tmp_path / "gate", mode, properties))
        return made[-1]

    yield start
    for each in made:
        each.process.kill()
        each.process.wait()


def test_the_cluster_writes_what_the_local_engine_writes(
    running: SparkCluster, package: dict[str, str], root: Root, tmp_path: Path
) -> None:
    """Master, interpreter and package come from the TOML file; a property on the command line
    overrides it. The workers' Python has no imap-wal."""
    wanted = expected(root)
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
    running: SparkCluster, package: dict[str, str], root: Root, tmp_path: Path
) -> None:
    import pyspark

    program = tmp_path / "program.py"
    program.write_text("from rewrite_cli.__main__ import main\n\nmain()\n")
    properties = running.properties(**package)
    del properties["spark.master"]
    properties["spark.pyspark.driver.python"] = sys.executable
    wanted = expected(root)
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


READ = """
import sys
from pyspark_imap_wal.session import session

_, url, *words = sys.argv
spark = session(**dict(each.split("=", 1) for each in words))
print(spark.read.format("imap_wal").option("mode", "latest").load(url).count())
"""


@pytest.fixture
def drivers_python(tmp_path: Path) -> Path:
    """An interpreter with this one's packages that ends at once in an executor, as if the path did
    not exist there."""
    folder = tmp_path / "driver"
    packages = folder / Path(sysconfig.get_paths()["purelib"]).relative_to(sys.prefix)
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    for name in ("python", "python3"):
        (folder / "bin" / name).symlink_to(Path(sys.executable).resolve())
    (folder / "pyvenv.cfg").write_text((Path(sys.prefix) / "pyvenv.cfg").read_text())
    (packages / "guard.pth").write_text(
        'import os; "SPARK_EXECUTOR_DIRS" in os.environ and os._exit(1)\n'
        f"{sysconfig.get_paths()['purelib']}\n"
    )
    return folder / "bin" / "python"


def test_a_table_is_read_by_the_python_of_the_workers(
    running: SparkCluster,
    package: dict[str, str],
    root: Root,
    drivers_python: Path,
    tmp_path: Path,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(READ)
    properties = running.properties(**package)
    done = ended([str(drivers_python), str(program), root.url, *words(properties)])
    assert done.returncode == 0, done.stderr[-3000:]
    live = len(expected(root)["orders"]) + 1
    assert done.stdout.split() == [str(live)]


def test_workers_without_imap_wal_are_named(running: SparkCluster, root: Root) -> None:
    done = ended(
        command(root, *conf(running.properties())),
    )
    assert done.returncode == 1
    assert "imap-wal spark package" in done.stderr, done.stderr[-3000:]
    assert snapshot(root.open()) == {} and files(root.open()) == set()


def test_a_killed_python_worker_is_replaced(driver: Callable[..., Driver], place: Root) -> None:
    wanted = expected(place)
    job = driver("held")
    os.kill(job.attempts(2)[0], signal.SIGKILL)
    job.go()
    job.finish()
    check_swept(place, wanted, left_over=True)


def test_without_a_master_a_killed_python_worker_is_replaced(root: Root, tmp_path: Path) -> None:
    """On this machine, with no configuration of the master at all."""
    wanted = expected(root)
    job = Driver(root, tmp_path / "gate", "held", {"spark.sql.shuffle.partitions": "2"})
    try:
        os.kill(job.attempts(1)[0], signal.SIGKILL)
        job.go()
        job.finish()
    finally:
        job.process.kill()
        job.process.wait()
    check_swept(root, wanted, left_over=True)


def test_a_killed_executor_is_replaced(driver: Callable[..., Driver], place: Root) -> None:
    """Its part of the first step is lost with it: Spark tries that stage again, and its attempts
    are counted from 0 again."""
    wanted = expected(place)
    job = driver("held")
    worker = job.attempts(2)[0]
    os.kill(parent_of(parent_of(worker)), signal.SIGKILL)
    job.go()
    job.finish()
    check_swept(place, wanted, left_over=True)


def test_speculation_beside_a_slow_upload_takes_one_answer(
    driver: Callable[..., Driver], place: Root
) -> None:
    wanted = expected(place)
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
    check_swept(place, wanted, left_over=True)


def test_a_killed_driver_publishes_nothing(driver: Callable[..., Driver], place: Root) -> None:
    """The next rewrite is right, and what the first one wrote is swept."""
    wanted = expected(place)
    job = driver("held")
    job.attempts(2)
    job.process.kill()
    job.process.wait()
    store = place.open()
    assert snapshot(store) == {} and files(store)
    rewrite(cluster(store), LocalEngine(SMALL), skew_ms_max=2**60)
    job.go()
    check_swept(place, wanted, left_over=True)
