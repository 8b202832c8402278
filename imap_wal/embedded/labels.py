"""The serializer that a map of the log has, by its label, and what takes its place if the program
does not have it."""

from __future__ import annotations

from typing import Any

from imap_wal.entry import MSGPACK, PICKLE, RAW, TYPED
from imap_wal.errors import InvalidSetting, NotAppended
from imap_wal.rules.valid import shows_classes, written
from imap_wal.serializer import Serializer


def missing(label: str) -> str:
    """The error for a map of this class that is opened without its serializer."""
    return f"it was written by serializer {label!r}; {how_to_open(label)}"


def how_to_open(label: str) -> str:
    """How to open a map of this class, for an error."""
    if label.startswith(TYPED):
        return f"pass these types to map() as key and value ({label[len(TYPED) : -1]})"
    return {
        MSGPACK: "open it without key, value and serializer",
        RAW: "open it with raw=True",
        PICKLE: 'pass serializer="pickle" to map()',
    }.get(label, "pass it to map()")


class Label:
    """Replaces a serializer that the log names and that was not passed."""

    def __init__(self, name: str) -> None:
        self.name = name

    def dump(self, value: Any) -> bytes:
        raise NotAppended(missing(self.name))

    def load(self, data: bytes) -> Any:
        raise InvalidSetting(missing(self.name))

    dump_key = dump
    load_key = load


class Mixed(Label):
    """Replaces the serializer of a map whose entries have several classes: no serializer can read
    all of them."""

    def __init__(self, classes: set[str]) -> None:
        super().__init__("")
        self.classes = classes

    def why(self, name: str) -> str:
        return (
            f"map {name!r} has entries of the classes {written(self.classes)}, so no serializer "
            f"can read all of them; {shows_classes(name)}; open the store with a wal_filter that "
            "skips the entries of one class, or delete the map with `imap-wal drop`"
        )


def how_to_change(logged: Serializer[Any, Any], wanted: Serializer[Any, Any]) -> str:
    """How a map gets another class, for an error."""
    text = "to change that, copy the entries into a map of another name (docs/how-to/typed.md)"
    if logged.name.startswith(TYPED) and wanted.name.startswith(TYPED):
        text = (
            "if the new types can read the entries, pass serializer=imap_wal.TypedSerializer("
            f"key, value, name={logged.name!r}); if not, {text.partition(', ')[2]}"
        )
    return f"{text}; "
