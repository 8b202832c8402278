"""One run of a class of Hazelcast's tests, in a JVM of its own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rewrite_cli.local_cluster import jars

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "hazelcast_plugin" / "map_tests"
FLAGS = (
    "-Xmx2g",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:+EnableDynamicAgentLoading",
    "-Djdk.attach.allowAttachSelf=true",
    "-Djava.net.preferIPv4Stack=true",
    "-Dhazelcast.phone.home.enabled=false",
    "-Dhazelcast.logging.type=jdk",
    # Hazelcast's runner otherwise starts a test of a class for each of 4 processors at once.
    "-DmultipleJVM=true",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.management/sun.management=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)


@dataclass(frozen=True, slots=True)
class Result:
    """What one test did. `maps`: how many maps of members got the map store meanwhile; tests of one
    class may run at once, and each then counts the maps of all."""

    test: str
    outcome: str
    milliseconds: int = 0
    maps: int = 0
    failure: str = ""


def build(folder: Path) -> str:
    """The class path. Our jars are copies in `folder`: a build must not replace those of a JVM that
    runs."""
    subprocess.run(["mvn", "-q", "-B", "-f", str(PROJECT), "package"], check=True)
    ours = [PROJECT / "target" / "map-tests.jar", jars.plugin_jar()]
    copies = [shutil.copy(each, folder) for each in ours]
    return ":".join([*map(str, copies), f"{PROJECT}/target/lib/*"])


def run(
    name: str,
    store: str,
    class_path: str,
    socket: Path,
    folder: Path,
    *,
    limit_s: float,
    without: Sequence[str] = (),
) -> list[Result]:
    """The results of a class, in the order of their ends. A test that the time limit has ended is
    one of them, with the outcome "unfinished". The methods `without` do not run."""
    results, output = folder / f"{name}.{store}.tsv", folder / f"{name}.{store}.log"
    command = [jars.java(), *FLAGS, "-cp", class_path, "io.imapwal.maptests.Main"]
    with output.open("wb") as log:
        process = subprocess.Popen(
            [*command, f"com.hazelcast.{name}", str(results), store, str(socket), *without],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            process.kill()
            process.wait()
    return list(_read(name, results.read_text("utf-8") if results.exists() else ""))


def _read(name: str, text: str) -> Iterator[Result]:
    open_tests: dict[str, None] = {}
    done = False
    for line in text.splitlines():
        outcome, test, *more = line.split("\t")
        test = test.removeprefix("com.hazelcast.")
        done = done or outcome == "done"
        if outcome == "started":
            open_tests[test] = None
        elif outcome != "done":
            open_tests.pop(test, None)
            if more:
                yield Result(test, outcome, int(more[0]), int(more[1]), more[2])
            else:
                yield Result(test, outcome)
    yield from (Result(test, "unfinished") for test in open_tests)
    if not done and not open_tests:
        yield Result(name, "unfinished")
