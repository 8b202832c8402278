"""Tables that every rewrite publishes at its end. The cluster's manifest has them, so that a
compacting service, a CronJob and Spark all publish them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from imap_wal.errors import ImapWalError, InvalidSetting
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.names import map_component
from imap_wal.read.cluster import ClusterLog
from storage_backends.location import without_secrets

if TYPE_CHECKING:  # it needs pyarrow
    from imap_wal.publish.lake_table import LakeTable


@dataclass(frozen=True, slots=True)
class RewrittenTable:
    """What a rewrite did with a table. `table`: as `text_of`. `version`: of the table now; -1 after
    an error. `error`: why it was not published; "" if it was. The snapshot was written all the
    same."""

    map: str
    table: str
    version: int
    error: str = ""
    is_new: bool = False
    """Whether this rewrite made the version."""


def text_of(log: ClusterLog, name: str, catalog: str | None = None, table: str = "") -> str:
    """A table of a map as it is recorded: `delta`, or `iceberg CATALOG.NAMESPACE.NAME`. Raises
    `InvalidSetting` for a name of a catalog that `table_of` could not find in it."""
    if catalog is None:
        return "delta"
    if "." in catalog or " " in catalog:
        raise InvalidSetting(
            f"the name of catalog {catalog!r} has a dot or a space: give it another name in the "
            "configuration of pyiceberg"
        )
    return f"iceberg {catalog}.{table or default_name(log, name)}"


def default_name(log: ClusterLog, name: str) -> str:
    """NAMESPACE.NAME of a map: the names of its cluster and its own, percent-encoded."""
    return f"{map_component(log.cluster)}.{map_component(name)}"


def table_of(log: ClusterLog, name: str, text: str) -> LakeTable:
    """The table of a text. Raises the errors of its class."""
    kind, _, place = text.partition(" ")
    if kind == "delta":
        from imap_wal.publish.delta import DeltaTable

        return DeltaTable(log, name)
    from imap_wal.publish.iceberg import IcebergTable

    catalog, _, table = place.partition(".")
    return IcebergTable(log, name, catalog, table)


def record(log: ClusterLog, name: str, text: str, keep: int) -> None:
    """From now on, each rewrite of this map publishes the table, and keeps the files of the last
    `keep` published snapshots. 0: no longer. `text`: see `text_of`. Raises `LostRace`, and
    `InvalidSetting` if a table that is to end is not recorded."""

    def change(manifest: ClusterManifest) -> ClusterManifest | None:
        tables = {**manifest.tables.get(name, {})}
        if keep:
            tables[text] = keep
        elif text in tables:
            del tables[text]
        else:
            others = ", ".join(sorted(tables)) or "none"
            raise InvalidSetting(
                f"rewrites of map {name!r} do not publish {text}; what they publish: {others}"
            )
        changed = {**manifest.tables, name: tables}
        if not tables:
            del changed[name]
        return None if changed == manifest.tables else replace(manifest, tables=changed)

    log.manifests.update(change)


def publish_recorded(
    log: ClusterLog, recorded: Mapping[str, Mapping[str, int]], maps: Collection[str]
) -> tuple[RewrittenTable, ...]:
    """Publish the recorded tables of these maps, which a rewrite has just written. No error of a
    table, not even a missing library, makes the rewrite fail: its snapshot is published, and the
    next rewrite tries again."""
    done = []
    for name, tables in recorded.items():
        for text, keep in tables.items() if name in maps else ():
            try:
                from imap_wal.publish.publication import publish

                table = publish(log, name, table_of(log, name, text), keep=keep, again=False)
                done.append(RewrittenTable(name, text, table.version, is_new=table.is_new))
            except Exception as error:  # noqa: BLE001  it is in the report
                kind = "" if isinstance(error, ImapWalError) else f"{type(error).__name__}: "
                why = f"{kind}{without_secrets(str(error))}"
                done.append(RewrittenTable(name, text, -1, why))
    return tuple(done)
