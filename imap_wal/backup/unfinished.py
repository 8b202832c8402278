"""A place that is being filled with logs: until all of them are whole, none can be opened."""

from __future__ import annotations

import builtins

from imap_wal import layout
from storage_backends import AlreadyExists, SegmentStore, StoredFile
from storage_backends.gated import GatedStore


class UnfinishedStore(GatedStore):
    """Keeps the manifests of clusters in memory until `finish`: until then, `current_cluster`
    refuses the logs, because the marker of a restore is in the root. Raises `AlreadyExists` if
    there is a marker already."""

    def __init__(self, inner: SegmentStore) -> None:
        super().__init__(inner)
        self._manifests: dict[str, bytes] = {}
        inner.create(layout.RESTORE_MARKER, b"restore --to\n")

    def finish(self) -> None:
        """Write the manifests, and delete the marker."""
        for path, data in sorted(self._manifests.items()):
            self.inner.create(path, data)
        self.inner.delete(layout.RESTORE_MARKER)

    def list(self, folder: str) -> builtins.list[StoredFile]:
        manifests = [
            StoredFile(path, len(data))
            for path, data in self._manifests.items()
            if path.startswith(f"{folder}/")
        ]
        return sorted([*super().list(folder), *manifests], key=lambda file: file.path)

    def exists(self, path: str) -> bool:
        if path == layout.RESTORE_MARKER:
            return False  # for the writer of these logs, which opens them
        return path in self._manifests or super().exists(path)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        data = self._manifests.get(path)
        if data is None:
            return super().read(path, offset, length)
        return data[offset : None if length is None else offset + length]

    def create(self, path: str, data: bytes) -> None:
        if not layout.is_cluster_manifest(path):
            super().create(path, data)
        elif self.exists(path):
            raise AlreadyExists("it exists already", path)
        else:
            self._manifests[path] = data

    def delete(self, path: str) -> None:
        if self._manifests.pop(path, None) is None:
            super().delete(path)
