"""The checks of `doctor`. Each is a function that yields `Check`s; a failed one has advice."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Generator, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from imap_wal.agent.access.keys import KeyPair
from imap_wal.clock import SystemRandomness
from imap_wal.disposal import ADVICE as LINK_ADVICE
from imap_wal.disposal import EFFECT as LINK_EFFECT
from imap_wal.errors import ImapWalError, LogError, NotAllowed
from imap_wal.inspect.advice import MISSING
from imap_wal.inspect.finding import CLEAN
from imap_wal.inspect.inventory import ClusterView, take_inventory
from imap_wal.inspect.own_disks import nodes_with_tails
from imap_wal.inspect.verify import plan
from imap_wal.inspect.writer import writer_of
from imap_wal.manifest.claims import CLOSED_ADVICE
from imap_wal.manifest.feature_level import NEWEST, FeatureLevel
from imap_wal.manifest.upgrade import Upgrade
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.newest.rivals import ADVICE
from imap_wal.retention.kept import kept_for_readers
from imap_wal.rewrite import conflicts
from imap_wal.security.encryption import open_store
from imap_wal.version import VERSION
from rewrite_cli.console import output
from rewrite_cli.console.check import OK, PROBLEM, WARNING, Check
from rewrite_cli.console.failures import Failed
from rewrite_cli.entries.own_disks import tail_check
from rewrite_cli.local_cluster import jars
from storage_backends import NotFound, SegmentStore, StorageError
from storage_backends.links import links, local_folder
from storage_backends.location import located
from storage_backends.ownership import doubts

DISK_FREE_MIN = 0.1
ORDER_BYTES_MAX = 1024**3
"""For a larger log, only `verify` looks for conflicts of order."""
EXTRAS = {
    "pyarrow": "archive",
    "pyzmq": "agent",
    "hazelcast-python-client": "hazelcast",
    "pyspark": "spark",
    "fsspec": "fsspec",
    "s3fs": "s3",
    "gcsfs": "gcs",
    "adlfs": "azure",
    "requests": "hdfs",
    "cryptography": "encryption",
    "duckdb": "duckdb",
    "opentelemetry-sdk": "otel",
}
"""The extra that installs each package."""


def environment() -> Iterator[Check]:
    """Python, and the packages of the extras."""
    found = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    yield Check(
        "python",
        OK if sys.version_info >= (3, 11) else PROBLEM,
        f"{found} at {sys.executable}",
        "" if sys.version_info >= (3, 11) else "use Python 3.11 or newer",
    )
    yield Check("imap-wal", OK, VERSION)
    absent = []
    for package, extra in EXTRAS.items():
        try:
            yield Check(package, OK, version(package))
        except PackageNotFoundError:
            absent.append(f"{package} [{extra}]")
    if absent:
        yield Check(
            "extras",
            OK,
            f"not installed, needed only for optional features: {', '.join(absent)}",
        )


def java_side() -> Iterator[Check]:
    """Java, the plug-in's jar, Hazelcast's jar: needed by members, not by embedded maps."""
    try:
        release = jars.java_version()
        yield Check(
            "java",
            OK if release >= 17 else WARNING,
            f"{release} at {jars.java()}",
            "" if release >= 17 else "members need Java 17 or newer",
        )
    except Failed as error:
        yield Check(
            "java", WARNING, error.message, "needed for members and Spark, not for embedded maps"
        )
    for name, find in (("plug-in jar", jars.plugin_jar), ("hazelcast jar", jars.hazelcast_jar)):
        try:
            yield Check(name, OK, str(find()))
        except Failed as error:
            yield Check(
                name,
                WARNING,
                error.message,
                "needed for `imap-wal node start`, not for embedded maps",
            )


NO_AGENT = "look who listens there: use agent and command of one release"


def agent(endpoint: str, key: KeyPair | None = None, agent_key: str = "") -> Iterator[Check]:
    """Whether an agent answers, and its own report. `key`, `agent_key`: as for `Client`."""
    from imap_wal.agent.transport.client import NoAgent
    from rewrite_cli.local_cluster.launcher import ask_stat

    try:
        health = ask_stat(endpoint, key=key, agent_key=agent_key)
    except NoAgent as error:
        yield Check("agent", PROBLEM, str(error), NO_AGENT)
        return
    except NotAllowed as error:
        yield Check(
            "agent",
            PROBLEM,
            str(error),
            "allow_uids, or key and clients in its configuration, decide who may connect; for "
            "an agent with keys, give --key-file and --agent-key",
        )
        return
    if health is None:
        yield Check(
            "agent",
            PROBLEM,
            f"no answer from {endpoint} within 2 s",
            "is it running (systemctl status imap-wal-agent), and is this the `endpoint` of "
            "its configuration?",
        )
        return
    try:
        yield from _statistics(endpoint, health)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        yield Check(
            "agent", PROBLEM, f"{endpoint}: its statistics have another form ({error})", NO_AGENT
        )


def _statistics(endpoint: str, health: Mapping[str, Any]) -> Iterator[Check]:
    """What an agent reports of itself. Raises errors of Python if it has another form."""
    where = (
        f"node {health.get('node')!r} at {endpoint}, epoch {health.get('epoch')}, durability "
        f"{health.get('durability')}, {health.get('appends')} appends"
    )
    if health.get("healthy"):
        yield Check("agent", OK, where)
    else:
        yield Check(
            "agent",
            PROBLEM,
            f"{where}: {health.get('failure')}",
            "correct what the text names; the agent then continues without a restart",
        )
    start = health.get("start") or {}
    if start.get("waiting"):
        what = (
            f"cluster {start['cluster_id']} waits; it asked first {start['waited_s']:.0f} s ago, "
            f"and last {start['asked_s_ago']:.0f} s ago: {start['waiting']}"
        )
        yield Check(
            "agent's start",
            PROBLEM if start["late"] else WARNING,
            what,
            "the wait ends when its cause is removed; `imap-wal claim` shows which "
            "agents gave a sign, also before a kill",
        )
    yield from _metrics(health)
    yield from _own_disk(health)
    if health.get("archive_error"):
        yield Check(
            "agent's archive",
            WARNING,
            str(health["archive_error"]),
            "segments stay until it works; nothing is lost",
        )
    if health.get("retention_error"):
        yield Check(
            "agent's retention",
            WARNING,
            str(health["retention_error"]),
            "covered files stay until it works; nothing is lost",
        )
    if health.get("compaction_error"):
        yield Check(
            "agent's compaction",
            WARNING,
            str(health["compaction_error"]),
            "the logs of the cluster grow until it works, or until `imap-wal rewrite` and "
            "`imap-wal prune` run; nothing is lost",
        )


def _own_disk(health: Mapping[str, Any]) -> Iterator[Check]:
    """What only the agent's own disk has; nothing if its segments are where all see them."""
    upload = health.get("upload")
    if upload:
        what = f"{upload['bytes']:,} bytes are on the own disk alone, for {upload['seconds']:.0f} s"
        if upload["error"]:
            text = f"{what}; {upload['error']}"
            yield Check("agent's uploads", WARNING, text, "it tries again; nothing is lost")
        else:
            yield Check("agent's uploads", OK, what)
    for node, why in (health.get("read_from_copies") or {}).items():
        yield Check(
            "agent's restore",
            WARNING,
            f"node {node!r} cannot be read, and other logs have its acknowledged changes: {why}",
            "start its agent, with its disk or an empty one: docs/how-to/local-disks.md",
        )
    for node, why in (health.get("left_out") or {}).items():
        yield Check(
            "agent's restore",
            PROBLEM,
            f"entries of node {node!r} are left out: {why}",
            "start the agent on the machine with that disk: its entries then count again; if the "
            "disk is lost: docs/how-to/local-disks.md",
        )


def _metrics(health: Mapping[str, Any]) -> Iterator[Check]:
    """Where an agent answers for its metrics; nothing if it was not asked to."""
    address, thread = health.get("http_address"), health.get("threads", {}).get("imap-wal-http", {})
    if thread.get("error"):
        yield Check(
            "agent's metrics",
            WARNING,
            str(thread["error"]),
            "the agent works without them, and tries again; `http_address` in its configuration",
        )
    elif address:
        yield Check("agent's metrics", OK, f"http://{address}/metrics, /livez and /readyz")


def storage(url: str, key: KeyPair | None = None) -> Iterator[Check]:
    """Whether the storage answers, its capabilities, and each cluster on it. `key`: to ask
    agents what is only on their own disks."""
    try:
        store = open_store(url)
    except (StorageError, ImportError) as error:
        yield Check(
            "storage",
            PROBLEM,
            f"{url}: {error}",
            "remove the cause it names, or correct the URL",
        )
        return
    try:
        yield from _capabilities(store, url)
        yield from _writable(store, url)
        yield from _space(url)
        for doubt in doubts(url):
            yield Check(
                "owner", WARNING, doubt, "all agents and programs of a log must run as one user"
            )
        views = take_inventory(store)
        yield Check(
            "logs",
            OK if views else WARNING,
            ", ".join(map(str, views)) or f"none under {url}",
            "" if views else "nothing has written here yet, or the URL is not the root",
        )
        for view in views:
            yield from _cluster(store, view, key)
    except (StorageError, ImapWalError) as error:
        yield Check(
            "storage",
            PROBLEM,
            str(error),
            "see `imap-wal verify` for damage; for an unreachable storage its own logs",
        )
    finally:
        store.close()


def _capabilities(store: SegmentStore, url: str) -> Iterator[Check]:
    can = store.capabilities
    names = [name.replace("_", " ") for name in can.__dataclass_fields__ if getattr(can, name)]
    yield Check("storage", OK, f"{url}: {', '.join(names)}")
    if not can.durable_append:
        yield Check(
            "append",
            OK,
            "no: every commit becomes one object; commits are as slow as the storage's creates",
        )
    if not can.exclusive_create:
        yield Check(
            "exclusive create",
            PROBLEM,
            "no: two writers could overwrite each other",
            "use a storage with conditional creates, or one that enforces them",
        )
    if not can.locks:
        yield Check(
            "locks",
            WARNING,
            "no: a second writer of a node is only found by fencing",
            "start one writer for each node, an agent or an embedded store",
        )


def _writable(store: SegmentStore, url: str) -> Iterator[Check]:
    """Whether this user may write. Nothing is left on the storage, and nothing is created in a
    local folder or in a place without logs."""
    folder = _folder(url)
    if folder is not None and not folder.exists():
        yield Check(
            "writing",
            WARNING,
            f"not tried, there is no folder {folder}",
            "the first start of an agent or a program creates it; or the URL is wrong",
        )
        return
    if folder is not None:
        allowed = os.access(folder, os.W_OK | os.X_OK)
        wrong = "" if allowed else f"this user may not write to {folder}"
        what = f"this user may write to {folder}"
    elif not store.folders(""):
        yield Check("writing", OK, "not tried: nothing is here yet, and doctor creates nothing")
        return
    else:
        wrong, what = _tried(store), "a file was created and deleted"
    if wrong:
        advice = "the log is written here: run doctor as the user of the agent or program"
        yield Check("writing", PROBLEM, wrong, advice)
    else:
        yield Check("writing", OK, what)


def _tried(store: SegmentStore) -> str:
    """Create a file in the root, and delete it. The error, or ""."""
    path = f".imap-wal-doctor-{SystemRandomness().name()}"
    try:
        try:
            store.create(path, b"imap-wal doctor")
        finally:
            store.delete(path)
    except StorageError as error:
        return str(error)
    return ""


def _folder(url: str) -> Path | None:
    """The root as a folder of this machine, if it is one."""
    found = local_folder(located(url))
    return Path(found) if found else None


def _space(url: str) -> Iterator[Check]:
    path = _folder(url)
    if path is None:
        return
    while not path.exists():
        path = path.parent
    usage = shutil.disk_usage(path)
    share = usage.free / usage.total
    text = f"{output.size(usage.free)} free of {output.size(usage.total)}"
    yield Check(
        "disk",
        OK if share >= DISK_FREE_MIN else WARNING,
        text,
        ""
        if share >= DISK_FREE_MIN
        else "a full disk stops every write: archive, rewrite and prune, or free space",
    )


def _cluster(store: SegmentStore, view: ClusterView, key: KeyPair | None) -> Iterator[Check]:
    name = f"cluster {view}"
    without = {node.name for node in view.nodes if node.of_no_manifest}  # reported below
    tails = list(nodes_with_tails(view))
    elsewhere = without | {node.name for node in tails}
    away = [node for node in view.unreadable_nodes if node not in elsewhere]
    if away:
        nodes = ", ".join(map(repr, away))
        yield Check(
            name,
            PROBLEM,
            f"the log of {nodes} is missing: a restart refuses to continue without it",
            'bring its disk back, start with recovery_policy = "partial", or forget the '
            "node: `imap-wal forget-node`",
        )
    disks = [tail_check(store, view, node, key) for node in tails]
    yield from disks
    found = [
        each
        for each in plan(store, view, lambda _: True)[0]
        if each.status != CLEAN and each.advice != MISSING
    ]
    for finding in found:
        yield Check(name, PROBLEM, f"{finding.file}: {finding.what}", finding.advice)
    if view.claims.closed:
        what = (
            "this log is a repaired copy, and the repair did not find who may claim it: no "
            "Hazelcast cluster can claim it"
        )
        yield Check(name, PROBLEM, what, CLOSED_ADVICE)
    folders = [f"{node.folder}/{part}" for node in view.nodes for part in ("wal", "archive")]
    for link in sorted(set(links(store.url, folders).values())):
        yield Check(name, WARNING, f"{link} is a symbolic link: {LINK_EFFECT}", LINK_ADVICE)
    yield from _level(store, view)
    crashed = yield from _writers(store, view)
    total = sum(node.wal_bytes + node.archive_bytes for node in view.nodes)
    if len(conflicts.writers(view.manifest)) > 1:
        yield from _order(store, view, total + view.snapshot_bytes)
    yield from _readers(store, view)
    if total > 1024**3 and total > 10 * max(view.snapshot_bytes, 1):
        yield Check(
            name,
            WARNING,
            f"{output.size(total)} of log, {output.size(view.snapshot_bytes)} of snapshots",
            "`imap-wal stat` shows what is dead; `imap-wal rewrite`, then `prune`",
        )
    late = any(each.status != OK for each in disks)
    if not found and not away and not without and not late and not crashed:
        yield Check(
            name,
            OK,
            f"{len(view.nodes)} nodes, epochs "
            f"{', '.join(str(node.manifest.epoch) for node in view.nodes)}",
        )


def _level(store: SegmentStore, view: ClusterView) -> Iterator[Check]:
    """The feature level, and whether `imap-wal upgrade` can raise it."""
    log = ClusterLog(store, view.namespace, view.cluster)
    try:
        report = Upgrade(store, view.folder, log.clock, log.randomness).report()
    except LogError:
        return  # a damaged manifest, which is reported with the other files
    name = f"feature level of {view}"
    if report.level >= NEWEST:
        yield Check(name, OK, f"{report.level:d}, the newest that this release knows")
        return
    more = "; ".join(each.brings for each in FeatureLevel if each > report.level)
    if report.refused:
        yield Check(name, OK, f"{report.level:d} of {NEWEST:d}: {report.refused}")
        return
    yield Check(
        name,
        WARNING,
        f"{report.level:d}, and all nodes can read {NEWEST:d}, which brings {more}",
        "`imap-wal upgrade` raises it; earlier releases then refuse the log",
    )


def _writers(store: SegmentStore, view: ClusterView) -> Generator[Check, None, list[str]]:
    """Who writes the nodes' logs. Returns the nodes that were not closed and have no writer."""
    name = f"cluster {view}"
    crashed = []
    for node in view.nodes:
        if node.manifest.clean or not store.capabilities.locks:
            continue
        writer = writer_of(store, node.folder, "imap-wal doctor")
        if writer is None:
            crashed.append(node.name)
        else:
            yield Check(name, OK, f"node {node.name!r} is being written by {writer}")
    if crashed:
        yield Check(
            name,
            WARNING,
            f"no process writes {', '.join(map(repr, crashed))}, and they were not closed: a "
            "crash or kill",
            "the next start recovers them; nothing acknowledged is lost",
        )
    return crashed


def _readers(store: SegmentStore, view: ClusterView) -> Iterator[Check]:
    """Readers outside of the cluster, for which files are kept."""
    name = f"readers of {view}"
    try:
        kept = kept_for_readers(ClusterLog(store, view.namespace, view.cluster))
    except (LogError, NotFound):
        return  # reported above
    for each in kept:
        what = (
            f"reader {each.reader!r} keeps {output.size(each.log_bytes)} of log and "
            f"{output.size(each.snapshot_bytes)} of former snapshots"
        )
        yield Check(
            name, WARNING if each.is_stale else OK, what, each.advice if each.is_stale else ""
        )


def _order(store: SegmentStore, view: ClusterView, size: int) -> Iterator[Check]:
    """Keys that two nodes claim. To find them, all files are read."""
    name = f"order of {view}"
    if size > ORDER_BYTES_MAX:
        what = f"not checked: that would read {output.size(size)}"
        yield Check(name, OK, what, "`imap-wal verify` reads everything, and checks it")
        return
    try:
        texts = conflicts.found(ClusterLog(store, view.namespace, view.cluster))
    except (LogError, NotFound) as error:
        yield Check(
            name, WARNING, f"not checked: {error}", "run `imap-wal verify` to see what is damaged"
        )
        return
    for text in texts:
        yield Check(name, PROBLEM, text, ADVICE)
