"""`imap-wal serve`."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from imap_wal.errors import Fenced, LostRace, StorageUnavailable, WriterLocked
from rewrite_cli.console import output as out
from rewrite_cli.console.selection import Url
from storage_backends.location import Location

if TYPE_CHECKING:
    from imap_wal.embedded.opening import OpenOptions
    from imap_wal.workers.election import Election

LOOK_S = 1.0


@click.command()
@click.argument("url", type=Url())
@click.option("--namespace", default="default", show_default=True, help="Namespace of the cluster.")
@click.option("--cluster", default="embedded", show_default=True, help="Cluster of the maps.")
@click.option("--node", default="embedded", show_default=True, help="Name of this writer's log.")
@click.option(
    "--socket",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where to listen; the same in all processes that connect. Otherwise it is derived from "
    "the URL.",
)
def command(url: Location, namespace: str, cluster: str, node: str, socket: Path | None) -> None:
    """Serve the maps of a Python program to the processes of this user on this machine that call
    imap_wal.connect.

    Without this command, one of these processes serves the others. SIGTERM or SIGINT closes the log
    and exits with 0. If another process has the log or serves it, the exit code is 4.

    \b
    Examples:
      imap-wal serve /var/lib/maps
      imap-wal serve s3://bucket/maps --socket /run/app/maps.sock
    """
    from imap_wal.workers.endpoint import LocalEndpoint, default_path
    from imap_wal.workers.store import serving_maps

    endpoint = LocalEndpoint(socket or default_path(url, namespace, cluster))
    options: OpenOptions = {"namespace": namespace, "cluster": cluster, "node": node}
    serve(serving_maps(url, endpoint, options), node, endpoint.name)


def serve(serving: Election, node: str, name: str, *, waits: bool = False) -> None:
    """Serve at this endpoint until a signal. `node`: whose log another process may have; `waits`:
    wait until that process has ended."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        if not _is_elected(serving, stop, waits=waits):
            if stop.is_set():
                return
            holder = f"another process, which serves at {name}"
            raise WriterLocked(node, holder, "stop that process")
        out.note(f"serving {serving.url} at {name}")
        while serving.is_serving and not stop.wait(LOOK_S):
            pass
        if serving.failure is not None:
            raise serving.failure
    finally:
        serving.stop()


def _is_elected(serving: Election, stop: threading.Event, *, waits: bool) -> bool:
    """Whether this process serves now."""
    before = ""
    while not stop.is_set():
        try:
            return serving.elect()
        except (WriterLocked, LostRace, Fenced, StorageUnavailable) as error:
            if not waits:
                raise
            reason = f"{error.holder} has it" if isinstance(error, WriterLocked) else str(error)
            if reason != before:
                before = reason
                out.note(f"waiting for the log: {reason}")
        stop.wait(LOOK_S)
    return False
