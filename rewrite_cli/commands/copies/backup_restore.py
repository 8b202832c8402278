"""`imap-wal backup-restore`."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import asdict, replace
from typing import Any

import click

from imap_wal.backup import catalogue
from imap_wal.backup.catalogue import Backup
from imap_wal.backup.restore import begun, check, restore_backup, unfinished
from imap_wal.errors import CorruptLog
from imap_wal.placement import open_place, open_store
from imap_wal.placement.opening import SegmentsPlace, record
from rewrite_cli.console import output as out
from rewrite_cli.console.failures import CLEAN, FINDINGS, Failed, opening
from rewrite_cli.console.progress import Reached, working
from rewrite_cli.console.selection import Url, open_empty, refuse_nested
from rewrite_cli.console.times import iso
from storage_backends import NotFound, SegmentStore
from storage_backends.location import Location


@click.command()
@click.argument("backups", metavar="TARGET", type=Url())
@click.argument("url", type=Url(), required=False)
@click.option("--wal-dir", type=Url(), help="Where to write the segments of the new log.")
@click.option(
    "--wal-dir-is-local",
    is_flag=True,
    help="For agents with this setting: each writes its new segments to its own disk.",
)
@click.option(
    "--backup",
    "number",
    type=click.IntRange(min=1),
    help="The number of the backup. Default: the newest. Needed if that is damaged, or if there "
    "are backups of several logs.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="First read all parts of the backup. If one is damaged, or the log was when it was "
    "copied, the exit code is 3, and nothing is written.",
)
@out.output_option
def command(
    backups: Location,
    url: Location | None,
    wal_dir: Location | None,
    wal_dir_is_local: bool,
    number: int | None,
    verify: bool,
    output: str,
) -> int:
    """Put a backup back as a log at URL, an empty place. TARGET is that of `imap-wal backup`.
    Without URL and --verify, list the backups in TARGET.

    The log is as it was at the moment of the backup, with all nodes and its history. Agents and
    programs open it as after a crash at that moment. If a restore was stopped, run it again.

    The list says how many files of each backup were damaged in the log. Such a backup is restored
    as it is, with exit code 3, if --backup names it.

    \b
    Examples:
      imap-wal backup-restore s3://backups/maps
      imap-wal backup-restore s3://backups/maps file:///var/lib/maps
      imap-wal backup-restore s3://backups/maps s3://bucket/maps --wal-dir-is-local
      imap-wal backup-restore s3://backups/maps --backup 12 --verify
    """
    if wal_dir is not None and wal_dir_is_local:
        raise click.UsageError("--wal-dir and --wal-dir-is-local exclude each other")
    if url is not None:
        refuse_nested(backups, url)
    with opening(backups):
        store = open_store(backups)
    with closing(store):
        numbers = catalogue.numbers(store)
        if not numbers:
            raise Failed(f"{backups}: there is no backup; `imap-wal backup URL TARGET` makes one")
        if url is None and not verify:
            _list([catalogue.read(store, number) for number in numbers], output)
            return CLEAN
        try:
            backup = (
                _newest(store, numbers, backups)
                if number is None and url is not None
                else catalogue.read(store, number or numbers[-1])
            )
        except NotFound as error:
            there = ", ".join(map(str, numbers))
            raise Failed(f"{backups}: there is no backup {number}; found: {there}") from error
        code = _verify(store, backup, output, is_last=url is None) if verify else CLEAN
        if url is not None and code == CLEAN:
            place = replace(url, wal_dir=wal_dir)
            _restore(store, backup, place, output, own_disks=wal_dir_is_local)
            code = FINDINGS if backup.damaged else CLEAN
        return code


def _newest(store: SegmentStore, numbers: list[int], place: Location) -> Backup:
    """The newest backup. Raises `Failed` if it is damaged, or if there are backups of several logs:
    then the user has to choose."""
    newest = catalogue.read(store, numbers[-1])
    whole = 0 if newest.damaged else newest.number
    other: Backup | None = None
    for number in reversed(numbers[:-1]):
        with suppress(CorruptLog, NotFound):
            backup = catalogue.read(store, number)
            if not backup.is_like(newest):
                other = other or backup
            elif not backup.damaged:
                whole = whole or number
    choose = "name one with --backup; without URL, this command lists them"
    if other is not None:
        raise Failed(
            f"{place} has backups of several logs: {newest.number} is of {_source(newest)}, "
            f"{other.number} is of {_source(other)}; {choose}"
        )
    if newest.damaged:
        older = f"the newest whole one is {whole}" if whole else "none of them is whole"
        raise Failed(
            f"{place}: backup {newest.number}, the newest, is of a damaged log "
            f"({out.count(len(newest.damaged), 'damaged file')}, such as "
            f"{newest.damaged[0].file}); {older}; {choose}"
        )
    return newest


def _source(backup: Backup) -> str:
    return " ".join((backup.source, *(backup.selection or ())))


def _list(backups: list[Backup], output: str) -> None:
    rows: list[dict[str, Any]] = [
        {
            "backup": backup.number,
            "time": iso(backup.ended_ms),
            "files": len(backup.files),
            "bytes": backup.bytes,
            "clusters": ", ".join(backup.clusters),
            "damaged": len(backup.damaged),
            "source": _source(backup),
        }
        for backup in backups
    ]
    if output == out.JSON:
        out.print_json({"backups": rows})
    else:
        out.print_table(list(rows[0]), [list(row.values()) for row in rows])


def _verify(store: SegmentStore, backup: Backup, output: str, *, is_last: bool) -> int:
    """Check the backup. `is_last`: no restore follows. Otherwise nothing is printed as JSON for a
    whole backup, because the output is one JSON document."""
    with working("reading") as tell:
        damaged = check(
            store, backup, lambda done: tell(Reached("reading", done.bytes, done.bytes_total))
        )
    damaged += [
        (file.file, f"it was damaged when it was copied, at byte {file.offset:,}: {file.what}")
        for file in backup.damaged
    ]
    if output == out.JSON and not damaged and not is_last:
        return CLEAN
    if output == out.JSON:
        files = [{"file": file, "what": problem} for file, problem in damaged]
        out.print_json({"backup": backup.number, "bytes": backup.bytes, "damaged": files})
    else:
        for file, problem in damaged:
            out.echo(f"damaged: {file}: {problem}")
        out.echo(
            f"backup {backup.number}: {out.size(backup.bytes)}, "
            f"{out.count(len(damaged), 'damaged file')}"
        )
    return FINDINGS if damaged else CLEAN


def _restore(
    store: SegmentStore, backup: Backup, url: Location, output: str, *, own_disks: bool
) -> None:
    with opening(url):
        placed = open_place(url)
    # A restore that was stopped may have recorded that each node has its own disk.
    root = placed.store if placed.own_disk is None else placed.own_disk.root
    with closing(placed.store), working("writing") as tell:
        if not unfinished(root, backup):
            other = begun(root)
            if other:
                raise Failed(
                    f"{url}: a restore of backup {other} into this place has not ended: name it "
                    f"with --backup {other} and its TARGET, or remove this folder"
                )
            open_empty(url)
        if own_disks:
            record(root, SegmentsPlace(own_disks=True))
        restore_backup(
            store,
            backup,
            root,
            lambda done: tell(Reached("writing", done.bytes, done.bytes_total)),
        )
    if output == out.JSON:
        out.print_json(
            {
                "backup": backup.number,
                "bytes": backup.bytes,
                "to": url.url,
                "damaged": [asdict(file) for file in backup.damaged],
            }
        )
    else:
        out.echo(f"backup {backup.number}, {out.size(backup.bytes)}, is now a log at {url}")
    for file in backup.damaged:
        out.note(f"damaged: {file}")
    if backup.damaged:
        out.note(
            "the log was damaged when it was copied: bring these files back from an earlier "
            "backup, or write a repaired log with `imap-wal repair`"
        )
