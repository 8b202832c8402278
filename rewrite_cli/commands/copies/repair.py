"""`imap-wal repair`."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import NamedTuple

import click

from imap_wal.context import Context, open_context
from imap_wal.errors import LogError, WriterLocked
from imap_wal.inspect.inventory import looks_at
from imap_wal.inspect.running_writer import writer_of
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.newest.rivals import ADVICE
from imap_wal.read.state import ClusterState
from imap_wal.repair.cluster import ClusterRepair
from imap_wal.repair.report import COPIED, LEFT_OUT, POINT_IN_TIME, SALVAGE, Extent, Item, summary
from imap_wal.rewrite import conflicts
from imap_wal.rewrite.conflicts import Resolution
from rewrite_cli.console import output as out
from rewrite_cli.console.failures import FINDINGS, Failed, opening
from rewrite_cli.console.progress import progress as progress_bar
from rewrite_cli.console.selection import Selection, Url, refuse_nested, selection_options
from storage_backends import NotFound, SegmentStore, StorageError
from storage_backends.location import Location


@dataclass(frozen=True, slots=True)
class Decided:
    """The number of keys of one map that were decided for a node, and the file in the copy with the
    losing changes; "" after a dry run."""

    cluster: str
    map: str
    keys: int
    set_aside: str


@click.command()
@selection_options(maps=False)
@click.option(
    "--to",
    "target_url",
    type=Url(),
    metavar="TARGET_URL",
    help="The place for the repaired copy, which must be empty. Not needed with --dry-run.",
)
@click.option(
    "--mode",
    type=click.Choice([SALVAGE, POINT_IN_TIME]),
    default=SALVAGE,
    show_default=True,
    help="salvage keeps every whole frame; point-in-time keeps what is before the first "
    "damage in a node's log.",
)
@click.option(
    "--prefer",
    metavar="NODE",
    help="In the copy, the change of this node counts for keys that it and others claim.",
)
@click.option(
    "--all",
    "show_all",
    is_flag=True,
    help="Also list the files that are copied as they are (JSON always does).",
)
@out.dry_run_option
@out.output_option
def command(
    selection: Selection,
    target_url: Location | None,
    mode: str,
    prefer: str | None,
    show_all: bool,
    dry_run: bool,
    output: str,
) -> int:
    """Write a repaired copy of a damaged log, and report what is kept and what is given up. The log
    itself is only read.

    Whole files are copied byte for byte; of a damaged one, the readable part is written to a new
    file. The copy opens and restores exactly what was kept. With --node it has the logs of those
    nodes only. It has no registered readers, so nothing is kept for streams and former moments
    (history_s). Exit code 3: something was given up, or two nodes claim the same change of a key;
    0: neither. Stop the services that write the log first.

    With --prefer, the change of that node counts for each key that it and others claim. The other
    changes are kept in a Parquet file in the copy, which the report names.

    \b
    Examples:
      imap-wal repair /var/lib/maps --dry-run
      imap-wal repair /var/lib/maps --to file:///srv/maps-repaired
      imap-wal repair s3://bucket/maps --to s3://bucket/repaired --mode point-in-time -o json
      imap-wal repair /var/lib/maps --to file:///srv/maps-decided --prefer n1
    """
    if target_url is None and not dry_run:
        raise click.UsageError(
            "name an empty place with --to, or see first what a repair would do: --dry-run"
        )
    items, in_conflict, decided = outcome = _repair(selection, target_url, mode, prefer, dry_run)
    totals = {
        "mode": mode,
        "dry_run": dry_run,
        "to": target_url and target_url.url,
        **summary(items),
        "conflicts": in_conflict,
        "preferred": [asdict(decision) for decision in decided],
    }
    if output == out.JSON:
        out.print_json({"summary": totals, "files": [item.to_json() for item in items]})
    else:
        _print(items, totals, show_all)
        _print_conflicts(outcome, prefer)
    return FINDINGS if totals["damaged"] or in_conflict else 0


class _Outcome(NamedTuple):
    """The files, the remaining conflicts, and the decided ones."""

    items: list[Item]
    in_conflict: list[str]
    decided: list[Decided]


def _repair(
    selection: Selection,
    target_url: Location | None,
    mode: str,
    prefer: str | None,
    dry_run: bool,
) -> _Outcome:
    target: SegmentStore | None = None
    if target_url is not None:
        with opening(target_url):
            target = open_context(target_url).store
    with opening(selection.url):
        context = open_context(selection.url)
    items: list[Item] = []
    in_conflict: list[str] = []
    decided: list[Decided] = []
    try:
        if target is not None and target_url is not None:
            _must_be_empty(target, target_url)
            refuse_nested(selection.url, target_url)
        views = list(looks_at(context, selection.namespaces, selection.clusters))
        _check_selection(context, views, selection)
        _check_preferred(views, prefer)
        for view in views:
            _must_be_idle(context, view, selection, dry_run)
        with progress_bar() as progress:
            task = progress.add_task("reading")

            def tell(words: str) -> None:
                progress.update(task, description=words)

            repairs = [
                ClusterRepair(context, view, mode, selection.wants_node, tell) for view in views
            ]
            for repair in repairs:
                repair.plan()
                items += repair.items
            where = context
            if target is not None and not dry_run:
                decided = [
                    Decided(str(repair.view), decision.map, decision.conflicts, decision.set_aside)
                    for repair in repairs
                    for decision in repair.write(target, prefer or "")
                ]
                where = context.on(target)
            elif prefer:
                decided = [
                    decision for view in views for decision in _would_decide(context, view, prefer)
                ]
            in_conflict = [text for view in views for text in _conflicts(where, view, prefer)]
    finally:
        context.store.close()
        if target is not None:
            target.close()
    return _Outcome(items, in_conflict, decided)


def _print_conflicts(outcome: _Outcome, prefer: str | None) -> None:
    for choice in outcome.decided:
        where_lost = f"; the losing changes are in {choice.set_aside}" if choice.set_aside else ""
        out.echo(
            f"{choice.cluster}, map {choice.map!r}: of {out.count(choice.keys, 'key')} in conflict "
            f"the change of node {prefer!r} counts{where_lost}"
        )
    for text in outcome.in_conflict:
        out.echo(
            out.styled("conflict of order", fg="red", bold=True) + f", copied as it is: {text}"
        )
    if outcome.in_conflict:
        out.echo(f"in the copy: {ADVICE}")


def _would_decide(context: Context, view: ClusterState, prefer: str) -> list[Decided]:
    resolution = Resolution(prefer, alone=True)
    with suppress(LogError, NotFound):  # `_conflicts` reports it
        in_conflict = conflicts.find(ClusterLog.of(context, view))
        keys = Counter(
            conflict.map
            for conflict in in_conflict
            if resolution.winner(conflict.claims) is not None
        )
        return [Decided(str(view), name, count, "") for name, count in keys.items()]
    return []


def _conflicts(context: Context, view: ClusterState, prefer: str | None) -> list[str]:
    """Keys that two nodes claim, without those that `prefer` decides: a repair keeps all claims."""
    resolution = Resolution(prefer, alone=True) if prefer else None
    try:
        return conflicts.found(ClusterLog.of(context, view), resolution=resolution)
    except (LogError, NotFound):
        out.note(f"{view}: damaged, so it was not checked for conflicts of order; verify the copy")
        return []


def _must_be_empty(target: SegmentStore, url: Location) -> None:
    files = target.list("")
    if any(file.path.endswith("/manifest/0000000000.json") for file in files):
        raise Failed(
            f"{url} has files of a repair that did not finish; remove them, or name "
            "another empty place"
        )
    if files or target.folders(""):
        raise Failed(
            f"{url} is not empty: {files[0].path if files else target.folders('')[0]} is "
            "there; a repair never writes into a log: name an empty place"
        )


def _check_selection(context: Context, views: list[ClusterState], selection: Selection) -> None:
    if not views:
        raise Failed(selection.nothing(context))
    absent = set(selection.nodes) - {node.name for view in views for node in view.all_nodes}
    if absent:
        raise Failed(f"{selection.url}: no node {', '.join(sorted(map(repr, absent)))}")


def _check_preferred(views: list[ClusterState], prefer: str | None) -> None:
    writers = {
        name
        for view in views
        for name in conflicts.writers(view.manifest) | {node.name for node in view.all_nodes}
    }
    if prefer is not None and prefer not in writers:
        raise click.UsageError(
            f"--prefer: there is no node {prefer!r}; found: {out.names(sorted(writers))}"
        )


def _must_be_idle(
    context: Context, view: ClusterState, selection: Selection, dry_run: bool
) -> None:
    """Refuse a log that is being written: its copy would be incomplete."""
    if not context.store.capabilities.locks:
        return
    for node in view.all_nodes:
        if (node.manifest.clean and node.number) or not selection.wants_node(node.name):
            continue
        try:
            writer = writer_of(context.store, node.folder, "imap-wal repair")
        except StorageError as error:
            out.note(f"node {node.name!r}: it is unknown whether it is being written ({error})")
            continue
        if writer is None:
            continue
        if not dry_run:
            raise WriterLocked(node.name, writer)
        out.note(f"node {node.name!r} is being written by {writer}: stop it before you repair")


def _print(items: list[Item], totals: dict[str, object], show_all: bool) -> None:
    shown = [
        item
        for item in items
        if show_all or item.action not in (COPIED, LEFT_OUT) or item.given_up is not None
    ]
    if shown:
        out.print_table(
            (
                "status",
                "file",
                "in the copy",
                "kept records",
                "lost records",
                "first lost",
                "last lost",
                "what",
            ),
            [
                (
                    item.status,
                    item.file,
                    item.action,
                    item.kept.records,
                    *_lost(item.given_up),
                    item.what,
                )
                for item in shown
            ],
        )
    for item in items:
        if item.action == LEFT_OUT and not show_all:
            out.note(f"left out: {item.file}: {item.what}")
    place = "dry run, nothing was written" if totals["dry_run"] else f"copied to {totals['to']}"
    lost = [item.given_up for item in items if item.given_up is not None]
    if not lost:
        verdict = out.styled("nothing was given up", fg="green", bold=True)
    else:
        verdict = out.styled(f"{out.count(len(lost), 'file')} lost something", fg="red", bold=True)
        verdict += f": {out.count(sum(item.records or 0 for item in lost), 'record')}"
        size = sum(item.bytes or 0 for item in lost)
        if size:
            least = "at least " if any(item.bytes is None for item in lost) else ""
            verdict += f", {least}{out.size(size)}"
        unknown = sum(item.records is None for item in lost)
        if unknown:
            verdict += f", and in {unknown} of them an unknown number"
    out.echo(verdict + f"; {out.count(int(str(totals['kept_records'])), 'record')} kept ({place})")


def _lost(extent: Extent | None) -> tuple[object, ...]:
    if extent is None:
        return "", "", ""
    return "unknown" if extent.records is None else extent.records, extent.first, extent.last
