"""A real member under load, with our plug-in and agent and without: 64 callers, one caller, and the
restore of a million entries."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rewrite_cli.local_cluster.jars import hazelcast_jar, java, plugin_jar
from rewrite_cli.local_cluster.launcher import die_with_parent

LOAD = Path(__file__).with_name("MemberLoad.java")
OPERATION_THREADS = 64  # as in the output of `imap-wal plugin config`
TIMEOUT_S = 300


@contextmanager
def agent(
    folder: Path,
    durability: str = "always",
    *,
    endpoint: str = "",
    node: str = "n1",
    **settings: str,
) -> Iterator[str]:
    """An agent in its own process; yields its endpoint: a Unix socket in `folder`, unless one is
    given."""
    endpoint = endpoint or f"ipc://{folder}/agent.sock"
    more = "".join(f'{name} = "{value}"\n' for name, value in settings.items())
    config = folder / f"{node}.toml"
    config.write_text(
        f'url = "{(folder / "log").as_uri()}"\nnode = "{node}"\nendpoint = '
        f'"{endpoint}"\n{more}[log]\ndurability = "{durability}"\n'
    )
    command = [sys.executable, "-m", "rewrite_cli.cli", "agent", "--config", str(config)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent)
    try:
        yield endpoint
    finally:
        process.terminate()
        process.wait(60)


def member(classpath: str = "", **options: Any) -> dict[str, Any]:
    """Run one member in its own JVM; returns the output of MemberLoad."""
    words = [
        f"{key.replace('__', '.')}={value}"
        for key, value in {"operationThreads": OPERATION_THREADS, **options}.items()
    ]
    command = [
        java(),
        "-Xms1g",
        "-Xmx2g",
        "-cp",
        f"{hazelcast_jar()}:{classpath or plugin_jar()}",
        str(LOAD),
        *words,
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        preexec_fn=die_with_parent,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"the member printed no result: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def sets(rounds: int, seconds: int) -> list[dict[str, Any]]:
    """`set` by members in their own JVMs, alternately: without a map store, with one that does
    nothing, with ours, and with SeaTunnel's (which never syncs files)."""
    rates: dict[str, list[float]] = {}
    notes: dict[str, str] = {}
    hung = errors = 0
    for _ in range(rounds):
        for load, options in LOADS.items():
            for store in STORES:
                with tempfile.TemporaryDirectory() as name:
                    found = _run(
                        store,
                        Path(name),
                        {"mode": "set", "seconds": seconds, "warmup": seconds, **options},
                    )
                label = f"{load}, {store}"
                rates.setdefault(label, []).append(found["sets_per_second"])
                notes[label] = (
                    f"p50 {found['p50_ms']} ms, p99 {found['p99_ms']} ms, max {found['max_ms']} ms"
                )
                if found["hung"] or found["errors"]:
                    notes[label] += (
                        f"; {found['hung']} callers never returned, {found['errors']} errors"
                    )
                if store in OURS:
                    hung += found["hung"]
                    errors += found["errors"]
    rows = []
    for label, seen in rates.items():
        bare = rates[f"{label.rpartition(', ')[0]}, no map store"]
        ratio = statistics.median(rate / other for rate, other in zip(seen, bare, strict=True))
        target = 0.22 if label == "64 callers of 100 B, always" else None
        rows.append(
            _row(
                f"member set, {label}", seen, "sets/s", ratio, "no map store", target, notes[label]
            )
        )
    rows.append(
        _row(
            "member set, ours: callers that never returned, and errors",
            [hung + errors],
            "callers",
            float(hung + errors),
            "none",
            0.0,
            "",
        )
    )
    return rows


OURS = ("always", "os")
STORES = ("no map store", "no-op", *OURS, "SeaTunnel 2.3.8")
LOADS: dict[str, dict[str, Any]] = {
    "64 callers of 100 B": {"callers": 64, "bytes": 100},
    "1 caller of 100 B": {"callers": 1, "bytes": 100},
    "2 callers of 1 MB": {"callers": 2, "bytes": 1_000_000, "keys": 100},
}


def _run(store: str, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    if store in OURS:
        with agent(folder, store) as endpoint:
            return member(**options, store="wal", property__agent=endpoint)
    if store.startswith("SeaTunnel"):
        files = {
            "type": "hdfs",
            "namespace": str(folder),
            "clusterName": "c1",
            "storage.type": "hdfs",
            "fs.defaultFS": "file:///",
        }
        properties = {f"property.{key}": value for key, value in files.items()}
        return member(**options, **properties, store=SEATUNNEL, values="string", classpath=_peers())
    return member(**options, store={"no map store": "none", "no-op": "noop"}[store])


SEATUNNEL = "org.apache.seatunnel.engine.server.persistence.FileMapStoreFactory"


def _peers() -> str:
    """SeaTunnel's classes, through Maven."""
    folder = LOAD.parent / "peers"
    if not (folder / "target" / "lib").is_dir():
        subprocess.run(["mvn", "-q", "-B", "-f", str(folder), "package"], check=True)
    return f"{folder}/target/classes:{folder}/target/lib/*"


def restore(rounds: int, entries: int) -> list[dict[str, Any]]:
    """Time to load a map of this many entries of 100 bytes: from the log (with a new agent), and
    from a loader that generates the entries."""
    ours: list[float] = []
    made_up: list[float] = []
    filled: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with agent(folder) as endpoint:
            member(mode="fill", store="wal", entries=entries, property__agent=endpoint)
        for _ in range(rounds):
            filled.append(member(mode="fill", store="none", entries=entries)["seconds"])
            made_up.append(_loaded(member(mode="load", store="madeup", entries=entries)))
            with agent(folder) as endpoint:
                ours.append(
                    _loaded(
                        member(mode="load", store="wal", entries=entries, property__agent=endpoint)
                    )
                )
    ratio = statistics.median(mine / other for mine, other in zip(ours, made_up, strict=True))
    return [
        _row(
            f"putAll of {entries:,} without a map store",
            filled,
            "s",
            statistics.median(filled) / statistics.median(made_up),
            "made-up loader",
            None,
            "",
        ),
        _row(f"load of {entries:,} from a made-up loader", made_up, "s", 1.0, "itself", None, ""),
        _row(
            f"restore of {entries:,} from the log",
            ours,
            "s",
            ratio,
            "made-up loader",
            2.0,
            "agent and member restarted",
            at_most=True,
        ),
    ]


def _loaded(found: dict[str, Any]) -> float:
    if not found["right"]:
        raise RuntimeError(f"the restored map differs: {found}")
    return float(found["seconds"])


def _row(
    label: str,
    seen: list[float],
    unit: str,
    ratio: float,
    to: str,
    target: float | None,
    note: str,
    *,
    at_most: bool = False,
) -> dict[str, Any]:
    digits = 2 if unit == "s" else 0
    return {
        "measurement": label,
        "median": round(statistics.median(seen), digits),
        "least": round(min(seen), digits),
        "most": round(max(seen), digits),
        "unit": unit,
        "ratio": round(ratio, 3),
        "to": to,
        "target": target,
        "at_most": at_most or target == 0.0,
        "note": note,
    }
