"""Keys as users type them: as `dump` prints them, as JSON, or their bytes."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import click

from imap_wal.decoder import Decoder, Opaque
from imap_wal.encoder import key_of, plain, text
from imap_wal.entry import KEY, KEY_CLASS, Row, is_clear
from rewrite_cli.console.output import names, note, shown
from rewrite_cli.console.param_type import ParamType


class KeyType(ParamType[str | bytes]):
    """A key's text, or its bytes."""

    name = "key"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes:
        if isinstance(value, bytes) or not str(value).startswith("hex:"):
            return value if isinstance(value, bytes) else str(value)
        try:
            return bytes.fromhex(str(value)[4:])
        except ValueError:
            self.fail(
                f"{value!r} is not a key in bytes: after hex: it takes pairs of hexadecimal "
                "digits, as in hex:a3343231",
                param,
                ctx,
            )


class Matcher:
    """Says whether a row has one of some keys. A clear has no key."""

    def __init__(self, keys: Collection[str | bytes]) -> None:
        self._keys = keys
        self._values = [value for key in keys if isinstance(key, str) for value in _as_json(key)]
        self._by_text = any(isinstance(key, str) for key in keys)
        self.unreadable: set[str] = set()
        """Classes of keys that have no text: it is unknown whether one of them was asked for."""

    def __call__(self, row: Row, decoder: Decoder) -> bool:
        if is_clear(row):
            return False
        if row[KEY] in self._keys:
            return True
        if not self._by_text:
            return False
        key = decoder.key(row)
        words = text(key)
        if words in self._keys or shown(words) in self._keys:
            return True
        json_form = plain(key)
        if isinstance(json_form, str) and json_form in self._keys:
            return True  # a date, a UUID: `dump` prints it in quotation marks
        if self._values and (json_form in self._values or key_of(row, decoder) in self._values):
            return True
        if isinstance(key, Opaque):
            self.unreadable.add(row[KEY_CLASS])
        return False

    def why_unreadable(self) -> str:
        """How to name a key that has no text."""
        return (
            f"keys of class {names(sorted(self.unreadable))} cannot be written as text; name the "
            "key by its bytes, such as hex:a3343231; `dump -o json` prints them as key_bytes"
        )

    def note_unreadable(self) -> None:
        """Print `why_unreadable`, if there were such keys."""
        if self.unreadable:
            note(self.why_unreadable())


def matcher(keys: Collection[str | bytes]) -> Matcher:
    """A function that says whether a row has one of these keys."""
    return Matcher(keys)


def _as_json(key: str) -> list[Any]:
    """The key as JSON, if that is a text or a structure: other JSON is the same as the text."""
    try:
        value = json.loads(key)
    except ValueError:
        return []
    return [value] if isinstance(value, str | list | dict) else []
