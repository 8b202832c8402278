"""The inventory of a storage on which manifests are damaged."""

from __future__ import annotations

from typing import Any

from imap_wal.errors import CorruptLog
from imap_wal.inspect.inventory import ClusterView, take_inventory
from imap_wal.manifest.store import manifest_number
from storage_backends import SegmentStore, StoredFile

FAR = 1_000_000


def tolerant_inventory(
    store: SegmentStore, namespaces: tuple[str, ...], clusters: tuple[str, ...]
) -> tuple[list[ClusterView], dict[str, int]]:
    """Like `take_inventory`, but uses an older manifest if the newest is damaged. Also returns, for
    each manifest folder, how many newer manifests cannot be read."""
    without = _Without(store)
    while True:
        try:
            views = take_inventory(without, namespaces, clusters)
            for view in views:  # the packed part of a manifest is parsed at its first use
                for manifest in (
                    view.manifest.snapshots,
                    *(node.archives for node in view.nodes),
                ):
                    len(manifest)
            break
        except CorruptLog as error:
            if (
                manifest_number(error.file.rpartition("/")[2]) is None
                or error.file in without.hidden
            ):
                raise  # without this file the next look would be the same
            without.hidden.add(error.file)
    lost: dict[str, int] = {}
    for view in views:
        claims = f"{view.folder}/claims", view.claims_number
        for folder, number in (
            (view.folder, view.manifest_number),
            claims,
            *((node.folder, node.manifest_number) for node in view.nodes),
        ):
            hidden = [
                manifest_number(path.rpartition("/")[2]) or 0
                for path in without.hidden
                if path.startswith(f"{folder}/manifest/")
            ]
            if hidden:
                lost[f"{folder}/manifest"] = _reached(number, hidden) - number
    return views, lost


def _reached(number: int, hidden: list[int]) -> int:
    """The highest number of a manifest that was published after `number`. Numbers grow by one and
    old manifests are kept, so a file with a number far above the others is not a manifest."""
    for each in sorted(hidden):
        if number and each > number + FAR:
            break
        number = max(number, each)
    return number


class _Without:
    """A store without some files."""

    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        self.hidden: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def list(self, folder: str) -> list[StoredFile]:
        return [file for file in self._store.list(folder) if file.path not in self.hidden]
