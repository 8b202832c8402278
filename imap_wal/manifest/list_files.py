"""List files: immutable lists of archives that the manifests of one node's log name
(docs/decisions/0064-archives-in-list-files.md).

    write lists {number}-{nonce} ─▶ publish manifest {number} ─▶ delete what no manifest names

Only manifest {number} may be the first to name such a list. So after a manifest is published, lists
up to its number that it does not name are never named again.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import pairwise

import google_crc32c

from imap_wal import layout
from imap_wal.clock import Randomness
from imap_wal.disposal import discard
from imap_wal.errors import CorruptLog, ShortLog, UnsupportedVersion
from imap_wal.format import Position
from imap_wal.manifest.archives import Archive, ListedArchives, ListFile
from imap_wal.manifest.document import MANIFEST_ADVICE, checked, packed, unpacked, whole
from imap_wal.version import VERSION
from storage_backends import NotFound, SegmentStore, StorageError

FORMAT = 1
"""The format of a list file."""
NEWEST_MAX = 256
"""At most this many archives are in the manifest itself."""
LIST_MIN = 1000
"""A list with fewer archives is merged with the next ones; at most one has fewer."""
KNOWN_MAX = 200_000
"""At most this many archives of lists are kept in memory, or those of one list."""


class ListFiles:
    """The list files of one node's log. Thread-safe. `names`: the lists that the newest manifest
    names now; it is called when a list is missing."""

    def __init__(
        self,
        store: SegmentStore,
        node_folder: str,
        randomness: Randomness,
        names: Callable[[], Collection[str]],
    ) -> None:
        self._store, self._folder, self._randomness, self._names = (
            store,
            node_folder,
            randomness,
            names,
        )
        self._known: OrderedDict[ListFile, tuple[Archive, ...]] = OrderedDict()
        self._guard = threading.Lock()

    def read(self, file: ListFile) -> tuple[Archive, ...]:
        """The archives of a list. Raises `CorruptLog` if it is damaged, `ShortLog` if it is missing
        and the newest manifest names it, and `NotFound` if that names other lists."""
        with self._guard:
            found = self._known.get(file)
            if found is not None:
                self._known.move_to_end(file)
                return found
        found = self.read_again(file)
        self._keep(file, found)
        return found

    def read_again(self, file: ListFile) -> tuple[Archive, ...]:
        """The same from the storage, even if the list is in memory."""
        path = layout.list_path(self._folder, file.name)
        try:
            # One byte more shows that the file is larger, however large it is.
            text = self._store.read(path, length=file.bytes + 1)
        except NotFound:
            if file.name not in self._names():
                raise
            what = (
                f"this list of {file.archives} archives is missing, and with it the names of the "
                f"archives whose last entries are from {file.lowest} to {file.highest}"
            )
            raise ShortLog(path, 0, what, MANIFEST_ADVICE) from None
        if (len(text), google_crc32c.value(text)) != (file.bytes, file.checksum):
            what = (
                f"this list of {file.archives} archives does not match the size "
                f"({file.bytes} bytes) and the checksum in the manifest"
            )
            raise CorruptLog(path, 0, what, MANIFEST_ADVICE)
        with whole(path):
            document = json.loads(text)
            if document["format"] != FORMAT:
                what = f"list format {document['format']}; imap-wal {VERSION} reads {FORMAT}"
                raise UnsupportedVersion(path, 0, what, "upgrade imap-wal")
            archives = checked(unpacked(document["archives"]), tuple[Archive, ...])
            if len(archives) != file.archives:
                raise ValueError(f"it has {len(archives)} archives, not {file.archives}")
            if _ends(archives) != (file.lowest, file.highest):
                raise ValueError("its archives end at other positions than the manifest says")
            return archives

    def settled(
        self, number: int, wanted: ListedArchives, former: ListedArchives, floor: int
    ) -> ListedArchives:
        """What manifest `number` names: lists of its predecessor `former`, new ones, and few
        archives. Writes the new ones. `floor`: the lowest number of a manifest that is kept. Raises
        StorageError, and the errors of `read`."""
        known = {each.name for each in former.lists}
        lists = [each for each in wanted.lists if each.name in known]
        foreign = [each for each in wanted.lists if each.name not in known]
        newest = [archive for each in foreign for archive in wanted.read(each)]
        newest += wanted.newest
        if len(newest) > NEWEST_MAX:
            for each in [each for each in lists if each.archives < LIST_MIN]:
                lists.remove(each)
                newest += self.read(each)
            lists += self._written(number, newest)
            newest = []
        names = {each.name for each in lists}
        dropped = {**former.dropped, **dict.fromkeys(known - names, number)}
        dropped = {name: at for name, at in dropped.items() if at > floor}
        return ListedArchives(tuple(lists), tuple(newest), dropped, self.read)

    def sweep(self, number: int, kept: Collection[str]) -> None:
        """Delete lists that no manifest names any more. `number`: of a manifest that the caller has
        just published. `kept`: the lists that it names, and those of former manifests. Failures
        are left to the next sweep."""
        with suppress(StorageError):
            files = self._store.list(layout.lists_folder(self._folder))
            discard(
                self._store,
                [
                    file.path
                    for file in files
                    if 0 < layout.list_number(file.path) <= number
                    and layout.list_name_of(file.path) not in kept
                ],
            )

    def _written(self, number: int, archives: Sequence[Archive]) -> list[ListFile]:
        ordered = sorted(archives, key=lambda archive: (archive.last, archive.path))
        count = max(1, len(ordered) // LIST_MIN)
        ends = [len(ordered) * index // count for index in range(count + 1)]
        return [self._write(number, tuple(ordered[start:end])) for start, end in pairwise(ends)]

    def _write(self, number: int, archives: tuple[Archive, ...]) -> ListFile:
        name = layout.list_name(number, self._randomness.token().hex())
        path = layout.list_path(self._folder, name)
        document = {
            "format": FORMAT,
            "archives": packed([archive.to_json() for archive in archives]),
        }
        text = json.dumps(document).encode()
        try:
            self._store.create(path, text)
        except StorageError:
            # It may be there: the response was lost, or the request was sent twice. The nonce is
            # ours alone.
            with suppress(StorageError):
                if self._store.read(path) == text:
                    return self._entered(name, text, archives)
            raise
        return self._entered(name, text, archives)

    def _entered(self, name: str, text: bytes, archives: tuple[Archive, ...]) -> ListFile:
        checksum = google_crc32c.value(text)
        file = ListFile(name, len(archives), len(text), checksum, *_ends(archives))
        self._keep(file, archives)
        return file

    def _keep(self, file: ListFile, archives: tuple[Archive, ...]) -> None:
        with self._guard:
            self._known[file] = archives
            while len(self._known) > 1 and sum(each.archives for each in self._known) > KNOWN_MAX:
                self._known.popitem(last=False)


def _ends(archives: Sequence[Archive]) -> tuple[Position, Position]:
    lasts = [archive.last for archive in archives]
    return min(lasts), max(lasts)
