"""A storage: whether it answers, what it can do, and whether this user may write to it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from imap_wal.agent.access.keys import KeyPair
from imap_wal.clock import SystemRandomness
from imap_wal.context import open_context
from imap_wal.errors import ImapWalError
from imap_wal.inspect.inventory import looks_at
from imap_wal.manifest.roots import why_no_root
from rewrite_cli.console import output
from rewrite_cli.console.check import OK, PROBLEM, WARNING, Check
from rewrite_cli.doctor.logs import log_checks
from storage_backends import SegmentStore, StorageError, with_url
from storage_backends.links import local_folder
from storage_backends.location import Location
from storage_backends.ownership import doubts

DISK_FREE_MIN = 0.1


def storage_checks(
    url: Location, key: KeyPair | None = None, failed: Collection[str] = ()
) -> Iterator[Check]:
    """Whether the storage answers, its capabilities, and each cluster on it. `key`: to ask
    agents what is only on their own disks. `failed`: nodes whose agents run although their logs
    have failed."""
    try:
        context = open_context(url)
    except (StorageError, ImportError) as error:
        yield Check(
            "storage",
            PROBLEM,
            with_url(url, error),
            "remove the cause that is named, or correct the URL",
        )
        return
    store = context.store
    try:
        yield from _capabilities(store, url)
        yield from _writable(store, url)
        yield from _space(url)
        for doubt in doubts(url):
            yield Check(
                "owner", WARNING, doubt, "all agents and programs of a log must run as one user"
            )
        views = list(looks_at(context))
        if views:
            yield Check("logs", OK, ", ".join(map(str, views)))
        else:
            why = why_no_root(store)
            advice = "nothing has written here yet, or the URL is not the root"
            yield Check("logs", WARNING, f"none under {url}", f"this {why}" if why else advice)
        for view in views:
            yield from log_checks(context, view, key, failed)
    except (StorageError, ImapWalError) as error:
        yield Check(
            "storage",
            PROBLEM,
            str(error),
            "for damage, see `imap-wal verify`; for an unreachable storage, see its own logs",
        )
    finally:
        store.close()


def _capabilities(store: SegmentStore, url: Location) -> Iterator[Check]:
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
            "no: a second writer of a node is only detected by fencing",
            "start one writer for each node, an agent or an embedded store",
        )


def _writable(store: SegmentStore, url: Location) -> Iterator[Check]:
    """Whether this user may write. Nothing is left on the storage, and nothing is created in a
    local folder or in a place without logs."""
    folder = _folder(url)
    if folder is not None and not folder.exists():
        yield Check(
            "writing",
            WARNING,
            f"not tried: there is no folder {folder}",
            "the first start of an agent or a program creates it; or the URL is wrong",
        )
        return
    if folder is not None:
        allowed = os.access(folder, os.W_OK | os.X_OK)
        wrong = "" if allowed else f"this user may not write to {folder}"
        summary = f"this user may write to {folder}"
    elif not store.folders(""):
        yield Check("writing", OK, "not tried: nothing is here yet, and doctor creates nothing")
        return
    else:
        wrong, summary = _tried(store), "a file was created and deleted"
    if wrong:
        advice = "the log is written here: run doctor as the user of the agent or program"
        yield Check("writing", PROBLEM, wrong, advice)
    else:
        yield Check("writing", OK, summary)


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


def _folder(url: Location) -> Path | None:
    """The root as a folder of this machine, if it is one."""
    folder = local_folder(url.url)
    return Path(folder) if folder else None


def _space(url: Location) -> Iterator[Check]:
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
