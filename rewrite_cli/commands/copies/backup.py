"""`imap-wal backup`."""

from __future__ import annotations

import os
import socket
from dataclasses import asdict
from pathlib import Path

import click

from imap_wal.agent.access.keys import read_secret
from imap_wal.backup.catalogue import Backup
from imap_wal.backup.run import BackupReport, back_up
from imap_wal.clock import SystemClock
from imap_wal.context import Context
from imap_wal.errors import MissingNode
from imap_wal.inspect.inventory import take_inventory
from imap_wal.inspect.own_disks import own_disks
from imap_wal.placement import open_store
from imap_wal.read.cluster import ClusterLog
from rewrite_cli.console import output as out
from rewrite_cli.console.agent_keys import key_file_option
from rewrite_cli.console.audit import audit
from rewrite_cli.console.failures import CLEAN, FINDINGS, opening
from rewrite_cli.console.progress import Reached, working
from rewrite_cli.console.selection import (
    Selection,
    Url,
    refuse_nested,
    refuse_within_log,
    selection_options,
)
from rewrite_cli.console.times import iso
from rewrite_cli.entries.own_disks import tails_with
from storage_backends import Locked
from storage_backends.location import Location


@click.command()
@selection_options(maps=False, nodes=False)
@click.argument("target", type=Url())
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    help="Afterwards remove backups of these logs that are older than the newest N whole ones. "
    "Default: remove none.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Read all parts of the backup back, and write damaged ones again.",
)
@key_file_option("for agents that require keys.")
@out.output_option
def command(
    selection: Selection,
    target: Location,
    keep: int | None,
    verify: bool,
    key_file: Path | None,
    output: str,
) -> int:
    """Copy logs to TARGET as they are at one moment, while agents and programs write them: with
    archives, snapshots and history. `imap-wal backup-restore` puts a backup back.

    TARGET is a folder or URL of its own; it may have backups of several logs. Only content that is
    not there yet is copied. A backup becomes visible when it is complete. If a run was stopped, the
    next one copies the rest. If two run at once, one of them exits with code 4.

    Checksums are compared while files are copied. If a file is damaged, it is copied as it is: exit
    code 3, the backup is listed as damaged, and no earlier backup is removed.

    With local disks, what is only on the disk of a node is read from its agent, so agents with such
    segments must run.

    Encrypted logs stay encrypted, and their keys are not copied: keep them in another place.

    \b
    Examples:
      imap-wal backup /var/lib/maps s3://backups/maps --keep 14
      imap-wal backup /var/lib/maps /mnt/backup --verify -o json
      imap-wal backup s3://bucket/maps s3://backups/maps --key-file backup.key
    """
    refuse_nested(selection.url, target)
    refuse_within_log(target)
    clock = SystemClock()
    start = clock.monotonic()
    tails = tails_with(read_secret(key_file) if key_file else None)
    with working("reading") as tell, selection.open(tails=tails) as (context, clusters):
        with opening(target):
            place = open_store(target)
        try:
            report = back_up(
                [ClusterLog.of(context, view) for view in clusters],
                place,
                clock=clock,
                holder=f"imap-wal backup, process {os.getpid()} on {socket.gethostname()}",
                selection=_options(selection),
                keep=keep or 0,
                verify=verify,
                progress=lambda done: tell(Reached(str(done), done.bytes, done.bytes_total)),
            )
        except MissingNode:
            _note_disks(context, selection, clock.now_ms(), keyless=key_file is None)
            raise
        except Locked as error:
            raise Locked(target.url, error.holder) from error
        finally:
            place.close()
    if report.removed:
        audit("backups removed", backups=report.removed, url=target.url)
    _print(report, clock.monotonic() - start, output)
    if not report.backup.damaged:
        return CLEAN
    _say_damage(report.backup, removing=keep is not None)
    return FINDINGS


def _options(selection: Selection) -> tuple[str, ...]:
    """The options that select some of the logs."""
    return (
        *(f"--namespace {name}" for name in sorted(selection.namespaces)),
        *(f"--cluster {name}" for name in sorted(selection.clusters)),
    )


def _say_damage(backup: Backup, *, removing: bool) -> None:
    for file in backup.damaged:
        out.note(f"damaged: {file}")
    kept_too = "; no earlier backup was removed" if removing else ""
    out.note(
        f"the log is damaged, and so is this copy of it{kept_too}. `imap-wal verify "
        f"{backup.source}` shows all damage, with advice. Bring these files back from an earlier "
        "backup, or write a repaired log with `imap-wal repair`; then make a new backup"
    )


def _note_disks(context: Context, selection: Selection, now_ms: int, *, keyless: bool) -> None:
    """Print how much is only on own disks that cannot be read."""
    for view in take_inventory(context, selection.namespaces, selection.clusters):
        for disk in own_disks(view, now_ms):
            age = (
                "there was no upload yet"
                if disk.seconds is None
                else f"its last upload was {out.duration(disk.seconds)} ago"
            )
            hint = "; if its agent has a key, it answers only with --key-file" if keyless else ""
            out.note(
                f"cluster {view}: segments {disk.first} to {disk.last} of node {disk.node!r} are "
                f"on its own disk alone; {age}{hint}"
            )


def _print(report: BackupReport, seconds: float, output: str) -> None:
    backup = report.backup
    if output == out.JSON:
        out.print_json(
            {
                "backup": backup.number,
                "clusters": backup.clusters,
                "begun_ms": backup.begun_ms,
                "ended_ms": backup.ended_ms,
                "files": len(backup.files),
                "bytes": backup.bytes,
                "seconds": seconds,
                "damaged": [asdict(file) for file in backup.damaged],
                **{name: value for name, value in asdict(report).items() if name != "backup"},
            }
        )
        return
    has = (
        out.count(len(backup.damaged), "damaged file")
        if backup.damaged
        else f"It has every change that was acknowledged before {iso(backup.begun_ms)}"
    )
    out.prose(
        f"backup {backup.number}: {', '.join(backup.clusters)}, "
        f"{out.count(len(backup.files), 'file')}, "
        f"{out.size(backup.bytes)}; copied {out.size(report.copied_bytes)} in "
        f"{out.duration(seconds)}. {has}"
    )
    if report.replaced_chunks:
        out.note(f"damaged parts that were written again: {report.replaced_chunks:,}")
    if report.removed:
        out.prose(
            f"removed {out.count(len(report.removed), 'old backup')}, which frees "
            f"{out.size(report.freed_bytes)}"
        )
