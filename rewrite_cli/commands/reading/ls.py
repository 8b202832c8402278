"""`imap-wal ls`."""

from __future__ import annotations

import click

from imap_wal import layout
from imap_wal.context import Context
from imap_wal.read.state import ClusterState, NodeState
from rewrite_cli.console import output as out
from rewrite_cli.console.selection import Selection, selection_options

NODE_COLUMNS = (
    *("namespace", "cluster", "node", "state", "epoch", "segments", "log bytes"),
    *("archives", "archived records", "archive bytes"),
)
SNAPSHOT_COLUMNS = (
    *("namespace", "cluster", "map", "generation", "live", "tombstones", "snapshot bytes"),
)


@click.command()
@selection_options(maps=False)
@click.option("--files", is_flag=True, help="Every file instead of a line per node.")
@out.output_option
def command(selection: Selection, files: bool, output: str) -> None:
    """List clusters, nodes and snapshots under URL, from listings and manifests alone. The state
    "own disk": a part of the node's log is only on its own disk.

    \b
    Examples:
      imap-wal ls /var/lib/maps
      imap-wal ls s3://bucket/maps --cluster eu --files
    """
    with selection.open() as (context, clusters):
        rows: list[dict[str, object]] = [
            row
            for view in clusters
            for row in (
                _files(context, view, selection)
                if files
                else [
                    *(
                        _node(view, node)
                        for node in view.all_nodes
                        if selection.wants_node(node.name)
                    ),
                    *_missing(view),
                ]
            )
        ]
        snapshots = [row for view in clusters for row in _snapshots(view)]
    if output == out.JSON:
        out.print_json({"files": rows} if files else {"nodes": rows, "snapshots": snapshots})
    elif files:
        out.print_table(
            ("kind", "bytes", "file"), [(row["kind"], row["bytes"], row["file"]) for row in rows]
        )
    else:
        out.print_table(NODE_COLUMNS, [tuple(row.values())[: len(NODE_COLUMNS)] for row in rows])
        for row in rows:
            if row["state"] == "own disk":
                out.prose(
                    f"{row['namespace']}/{row['cluster']}: segments of node {row['node']!r} are "
                    f"only on its own disk; the address of its agent is {row['address']}, and "
                    "`imap-wal doctor` asks it"
                )
        if snapshots:
            out.print_table(SNAPSHOT_COLUMNS, [tuple(row.values()) for row in snapshots])


def _node(view: ClusterState, node: NodeState) -> dict[str, object]:
    return {
        "namespace": view.namespace,
        "cluster": view.cluster,
        "node": node.name,
        "state": view.state_of(node.name),
        "epoch": node.manifest.epoch,
        "segments": len(node.all_segments),
        "log_bytes": node.wal_bytes,
        "archives": len(node.manifest.archives),
        "archived_records": sum(archive.records for archive in node.manifest.archives),
        "archive_bytes": node.archive_bytes,
        "address": (node.manifest.address or None) if node.is_on_own_disk else None,
    }


def _missing(view: ClusterState) -> list[dict[str, object]]:
    return [
        {
            "namespace": view.namespace,
            "cluster": view.cluster,
            "node": name,
            "state": "MISSING",
            "epoch": None,
            "segments": 0,
            "log_bytes": 0,
            "archives": 0,
            "archived_records": 0,
            "archive_bytes": 0,
            "address": None,
        }
        for name in view.missing_nodes
        if name not in {node.name for node in view.all_nodes}  # those have a line already
    ]


def _snapshots(view: ClusterState) -> list[dict[str, object]]:
    return [
        {
            "namespace": view.namespace,
            "cluster": view.cluster,
            "map": name,
            "generation": snapshot.generation,
            "live": snapshot.live,
            "tombstones": snapshot.tombstones,
            "snapshot_bytes": snapshot.bytes,
        }
        for name, snapshot in sorted(view.manifest.snapshots.items())
    ]


def _files(context: Context, view: ClusterState, selection: Selection) -> list[dict[str, object]]:
    manifests = [
        file
        for folder in (f"{view.folder}/manifest", view.claims_folder)
        for file in context.store.list(folder)
    ]
    rows: list[dict[str, object]] = [
        {"kind": "manifest", "bytes": file.size, "file": file.path} for file in manifests
    ]
    rows += [
        {"kind": "list", "bytes": file.size, "file": file.path}
        for file in context.store.list(layout.lists_folder(view.folder))
    ]
    for node in view.all_nodes:
        if selection.wants_node(node.name):
            rows += [
                {"kind": _kind(file.path, node.folder), "bytes": file.size, "file": file.path}
                for file in node.files
            ]
    rows += [
        {"kind": "snapshot", "bytes": file.size, "file": file.path}
        for snapshot in view.manifest.snapshots.values()
        for file in snapshot.files
    ]
    return rows


def _kind(path: str, folder: str) -> str:
    top = path.removeprefix(f"{folder}/").partition("/")[0]
    if top == "wal":
        return {"wal": "segment", "writer": "permit", "log": "log id"}.get(
            path.rpartition(".")[2], "foreign"
        )
    kinds = {"archive": "archive", "manifest": "manifest", "lists": "list", layout.LOCK: "lock"}
    return kinds.get(top, "foreign")
