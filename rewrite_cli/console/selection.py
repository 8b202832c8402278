"""Selects logs by a URL and any of namespace, cluster, node and map. A missing option selects
all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from imap_wal import layout
from imap_wal.checks import check_source, location
from imap_wal.context import Context, open_context
from imap_wal.errors import InvalidSetting, LogError
from imap_wal.inspect.inventory import take_inventory
from imap_wal.manifest.older import RESTORE_ADVICE, RESTORE_UNFINISHED
from imap_wal.manifest.roots import why_no_root
from imap_wal.placement import open_store
from imap_wal.placement.router import Tails, Unasked
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.map_names import why_no_map
from imap_wal.read.state import ClusterState
from imap_wal.security.credentials import Credentials
from rewrite_cli.console import output as out
from rewrite_cli.console.failures import Failed, opening
from rewrite_cli.console.param_type import ParamType
from storage_backends import SegmentStore, StorageError
from storage_backends.location import Location, Place
from storage_backends.ownership import doubts, mode_of
from storage_backends.paths import local_folder
from storage_backends.registry import backend_of
from storage_backends.reserve import reserves

GIVEN_UP = "taken again when there is enough free space; until then, appends leave that much free"


class Url(ParamType[Location]):
    """A folder or URL, with its options from the file of credentials. A blank one is a usage
    error."""

    name = "url"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Location:
        options = (ctx.find_root().obj if ctx is not None else None) or {}
        credentials: Path | None = options.get("credentials")
        try:
            place = location(value)
        except InvalidSetting as error:
            self.fail(str(error), param, ctx)
        try:
            place = location(place, file_mode=options.get("file_mode") or f"{mode_of(place):04o}")
            keys = options.get("encryption_keys") or ""
            check_source(keys)
            place = replace(place, encryption_keys=keys)
            return (
                Credentials.read(credentials).given_to(place) if credentials is not None else place
            )
        except InvalidSetting as error:  # of another option; its text names it
            raise click.UsageError(str(error), ctx) from error


class EndpointType(ParamType[str]):
    """The address on which an agent listens."""

    name = "endpoint"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            parts = urlsplit(str(value))
            whole = (
                bool(parts.path)
                if parts.scheme == "ipc"
                else parts.scheme == "tcp" and bool(parts.hostname and parts.port)
            )
        except ValueError:  # the port is not a number, or too large
            whole = False
        if not whole:
            self.fail(
                f"{value!r} is not an endpoint: it takes ipc:///path or tcp://host:port", param, ctx
            )
        return str(value)


_WAL_DIR = (
    "Where the segments are. Needed if they are on another kind of storage or another server "
    "than the root."
)


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected logs; empty tuples mean all."""

    url: Location
    namespaces: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    maps: tuple[str, ...] = ()

    def wants_node(self, node: str) -> bool:
        return not self.nodes or node in self.nodes

    def wants_map(self, name: str) -> bool:
        return not self.maps or name in self.maps

    @contextmanager
    def open(
        self,
        damaged: list[tuple[str, LogError]] | None = None,
        *,
        upkeep: bool = False,
        tails: Callable[[SegmentStore], Tails] = Unasked,
    ) -> Iterator[tuple[Context, list[ClusterState]]]:
        """The store and its clusters within the selection; `Failed` if there is none. `damaged`
        gets the names of clusters whose manifests cannot be read, unless all are damaged; without
        it, they are an error. `upkeep`: on a full disk, the command may use the reserve of the
        agents. `tails`: how to read the own disks of nodes."""
        with opening(self.url):
            context = open_context(self.url, tails=tails)
        store = context.store
        for doubt in doubts(self.url):
            out.note_once(f"warning: {doubt}")
        held_reserves = reserves(store) if upkeep else []
        for reserve in held_reserves:
            reserve.may_be_given_up = True
        try:
            if store.exists(layout.RESTORE_MARKER):
                out.note(
                    f"warning: {self.url}: {RESTORE_UNFINISHED} "
                    f"({layout.RESTORE_MARKER}): {RESTORE_ADVICE}"
                )
            views = take_inventory(context, self.namespaces, self.clusters, damaged)
            if damaged and not views:
                raise damaged[0][1]
            if not views:
                raise Failed(self.nothing(context))
            for kind, selected, present in (
                ("node", self.nodes, {node.name for view in views for node in view.all_nodes}),
            ):
                absent = set(selected) - present
                if absent:
                    raise Failed(
                        f"{self.url}: no {kind} {', '.join(sorted(map(repr, absent)))}; "
                        f"found: {out.names(sorted(present))}"
                    )
            if self.maps and not damaged:
                self._demand_maps(context, views)
            yield context, views
        finally:
            for reserve in held_reserves:
                size = reserve.given_up
                reserve.take_again()  # a former command may have given it up
                if size:
                    again = "taken again" if not reserve.given_up else GIVEN_UP
                    out.note(
                        f"the disk was full: its reserve of {out.size(size)} was given up for "
                        f"this run, and is {again}"
                    )
            store.close()

    def _demand_maps(self, context: Context, views: list[ClusterState]) -> None:
        """`Failed` for a map that none of the logs has: an empty result would look like an empty
        map. Damaged files may have it; then the command itself reports the damage."""
        logs = [ClusterLog.of(context, view) for view in views]
        why = why_no_map(logs, self.maps)
        if why:
            raise Failed(f"{self.url}: {why}")

    def note_empty(self, present: Iterable[str]) -> None:
        """Name the maps of the selection that have no entries. This is no error, because all
        entries of a map may have expired."""
        there = set(present)
        absent = [name for name in self.maps if name not in there]
        if absent:
            out.note(f"{self.url}: no entries of map {', '.join(map(repr, absent))}")

    def nothing(self, context: Context) -> str:
        """The text about an empty selection, for the user."""
        present = take_inventory(context)
        if present:
            present_names = out.names(present)
            return f"{self.url}: nothing in that namespace or cluster; found: {present_names}"
        why = why_no_root(context.store)
        if why:
            return f"{self.url} {why}"
        root = "the root that was passed to imap_wal.open, or `url` of the agents' configuration"
        return f"no log of imap-wal under {self.url}; pass {root}"


def url_argument(command: Callable[..., Any], *, required: bool = True) -> Callable[..., Any]:
    """The root of the logs, as `url`, with the value of --wal-dir."""

    @wraps(command)
    def wrapper(url: Location | None, wal_dir: Location | None, **rest: Any) -> Any:
        return command(url=url if url is None else replace(url, wal_dir=wal_dir), **rest)

    with_option = click.option("--wal-dir", type=Url(), envvar="IMAP_WAL_WAL_DIR", help=_WAL_DIR)(
        wrapper
    )
    return click.argument("url", type=Url(), envvar="IMAP_WAL_URL", required=required)(with_option)


def selection_options(
    *, maps: bool = True, nodes: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """URL, --namespace, --cluster, --node, --map: passed to the command as `selection`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def wrapper(
            url: Location,
            namespace: tuple[str, ...],
            cluster: tuple[str, ...],
            node: tuple[str, ...] = (),
            map: tuple[str, ...] = (),
            **rest: Any,
        ) -> Any:
            return command(selection=Selection(url, namespace, cluster, node, map), **rest)

        names = [("cluster", "cluster"), ("namespace", "namespace")]
        if nodes:
            names.insert(0, ("node", "node"))
        if maps:
            names.insert(0, ("map", "map"))
        decorated: Callable[..., Any] = wrapper
        for name, noun in names:
            text = f"Only this {noun}; may be repeated."
            decorated = click.option(
                f"--{name}", name, multiple=True, envvar=f"IMAP_WAL_{name.upper()}", help=text
            )(decorated)
        return url_argument(decorated)

    return decorate


def refuse_nested(source: Location, target: Location) -> None:
    """Raises `Failed` if a copy of a log would be written into the log, or around it."""
    inside, around = _place(target), _place(source)
    if inside[0] != around[0]:
        return
    if inside[1][: len(around[1])] == around[1]:
        raise Failed(f"{target} is inside {source}, which is read: name a place outside of it")
    if around[1][: len(inside[1])] == inside[1]:
        raise Failed(
            f"{target} is a folder above {source}, which is read: name an empty place outside of it"
        )


FOLDERS_MAX = 100
"""At most this many folders of each place are looked at: a bucket may have many."""


def refuse_within_log(target: Location) -> None:
    """Raises `Failed` if a target is the root of any log, or inside one: what removes that log
    would remove the target too."""
    for place in _upwards(target):
        try:
            with closing(open_store(place)) as store:
                folders = [cluster for cluster in islice(_clusters(store), FOLDERS_MAX) if cluster]
        except (StorageError, ImportError):
            continue  # this user may not read it
        if folders:
            where = "" if place.url == target.url else f"inside {place}, which is "
            raise Failed(f"{target} is {where}the root of log {folders[0]}: name a place outside")


def _clusters(store: SegmentStore) -> Iterator[str]:
    """The folders of clusters under a root, and "" for each other folder that was looked at."""
    top = store.folders("")
    for namespace in top if not {"backups", "chunks"} <= {*top} else ():
        yield ""
        for cluster in store.folders(namespace):
            nodes = f"{namespace}/{cluster}/nodes"
            node_folders = (store.folders(f"{nodes}/{node}") for node in store.folders(nodes))
            is_log = any({"wal", "manifest"} & {*inside} for inside in node_folders)
            yield f"{namespace}/{cluster}" if is_log else ""


def _upwards(place: Location) -> Iterator[Location]:
    """A place and those above it, but not the root of a file system."""
    yield place
    protocol, parts = _place(place)
    root = "/" if protocol == "file" else f"{protocol}://"
    for end in range(len(parts) - 1, 0, -1):
        yield replace(place, url=root + "/".join(parts[:end]))


def _place(place: Location) -> tuple[str, tuple[str, ...]]:
    """Storage, and the components of the path on it."""
    if backend_of(place.url).is_folder:
        return "file", Path(local_folder(place.url) or "/").resolve().parts[1:]
    return place.scheme, tuple(filter(None, place.url.partition("://")[2].split("/")))


def open_empty(url: Place) -> None:
    """Refuse a place that already has logs: the demo and trials must not mix their data with a
    user's. Raises `Failed` then, and if the storage fails."""
    with opening(url):
        store = open_store(url)
        present, begun = take_inventory(Context(store)), store.exists(layout.RESTORE_MARKER)
        store.close()
    if begun:
        raise Failed(f"{url}: {RESTORE_UNFINISHED} ({layout.RESTORE_MARKER}): {RESTORE_ADVICE}")
    if present:
        raise Failed(f"{url} already has {out.names(present)}; name an empty place")
