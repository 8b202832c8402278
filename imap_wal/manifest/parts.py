"""The files of a snapshot, as manifests have them: in the manifest itself, or in list files
(docs/decisions/list-files.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Annotated, Any, Self, TypeAlias, TypeVar, overload

from msgspec import Meta

from imap_wal.errors import LogError
from imap_wal.manifest.document import Whole, fields_of


@dataclass(frozen=True, slots=True)
class Parts:
    """What a manifest or a list says about files in key order; see `Snapshot`. Each but `files` may
    be empty: unknown."""

    files: tuple[str, ...] = ()
    checksums: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    borders: tuple[str, ...] = ()
    expiries: tuple[int, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether each of them is known for all files or for none."""
        return all(len(getattr(self, name)) in (0, len(self.files)) for name in COLUMNS)

    def slice(self, start: int, end: int) -> Parts:
        return Parts(*(getattr(self, name)[start:end] for name in COLUMNS))

    @classmethod
    def joined(cls, parts: Sequence[Parts]) -> Self:
        """Those of several lists. What one of them does not know is unknown."""
        found = cls(
            *(tuple(chain.from_iterable(getattr(each, name) for each in parts)) for name in COLUMNS)
        )
        if found.whole:
            return found
        count = len(found.files)
        return replace(
            found, **{name: () for name in COLUMNS if len(getattr(found, name)) != count}
        )


COLUMNS = tuple(each.name for each in fields(Parts))


@dataclass(frozen=True, slots=True)
class PartList:
    """What a manifest says about a list file with files of a snapshot."""

    name: Annotated[str, Meta(pattern=r"\A[0-9]{10}-[0-9a-f]{1,64}\Z")]
    """The number of the manifest that named it first, and a nonce."""
    parts: Annotated[int, Meta(ge=1)]
    """How many it has."""
    bytes: Whole
    checksum: Whole
    """CRC-32C of the whole file."""

    @property
    def items(self) -> int:
        return self.parts

    def to_json(self) -> dict[str, Any]:
        return fields_of(self)


Read: TypeAlias = Callable[[PartList], Parts]


def unread(file: PartList) -> Parts:
    raise AssertionError(f"list {file.name} belongs to no log")


class ListedParts:
    """The files of one snapshot, in list files, in key order. They are read at first use."""

    __slots__ = ("_columns", "lists", "read")

    def __init__(self, lists: tuple[PartList, ...], read: Read = unread) -> None:
        self.lists, self.read = lists, read
        self._columns: Parts | None = None

    def __len__(self) -> int:
        return sum(each.parts for each in self.lists)

    @property
    def whole(self) -> Parts:
        """Raises `CorruptLog` and `ShortLog` for a list, and `NotFound` if a newer manifest names
        other lists."""
        if self._columns is None:
            self._columns = Parts.joined([self.read(each) for each in self.lists])
        return self._columns

    def readable(self, damaged: list[tuple[PartList, LogError]]) -> Parts:
        """The files of all lists that can be read. The others are added to `damaged`."""
        found = []
        for each in self.lists:
            try:
                found.append(self.read(each))
            except LogError as error:
                damaged.append((each, error))
        return Parts.joined(found)


V = TypeVar("V", bound=str | int)


class ListedColumn(Sequence[V]):
    """One of the fields of listed files, for example their checksums. Each use but `len` of the
    files can raise the errors of `ListedParts.whole`."""

    __slots__ = ("listed", "name")

    def __init__(self, listed: ListedParts, name: str) -> None:
        self.listed, self.name = listed, name

    @property
    def whole(self) -> tuple[V, ...]:
        found: tuple[V, ...] = getattr(self.listed.whole, self.name)
        return found

    def __len__(self) -> int:
        return len(self.listed) if self.name == "files" else len(self.whole)

    def __iter__(self) -> Iterator[V]:
        return iter(self.whole)

    def __contains__(self, value: object) -> bool:
        return value in self.whole

    @overload
    def __getitem__(self, index: int) -> V: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[V, ...]: ...
    def __getitem__(self, index: int | slice) -> V | tuple[V, ...]:
        return self.whole[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ListedColumn) and self.listed.lists == other.listed.lists:
            return self.name == other.name  # without reading lists, for the update of a manifest
        return isinstance(other, Sequence) and self.whole == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # a hash would have to read the lists

    def __repr__(self) -> str:
        return f"<{self.name} of {len(self.listed)} listed files>"

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self.whole,)  # another process may not have the storage
