"""Keys as users type them: as `dump` prints them, as JSON, or their bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any

import click

from imap_wal.decoder import Decoder, plain, text
from imap_wal.entry import KEY, Row, is_clear
from rewrite_cli.console.output import shown
from rewrite_cli.console.param_type import ParamType

Matches = Callable[[Row, Decoder], bool]


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


def matcher(keys: Collection[str | bytes]) -> Matches:
    """A function that says whether a row has one of these keys. A clear has no key."""
    values = [value for key in keys if isinstance(key, str) for value in _as_json(key)]

    def matches(row: Row, decoder: Decoder) -> bool:
        if is_clear(row):
            return False
        if row[KEY] in keys:
            return True
        key = decoder.key(row)
        words = text(key)
        return words in keys or shown(words) in keys or (bool(values) and plain(key) in values)

    return matches


def _as_json(key: str) -> list[Any]:
    """The key as JSON, if that is a text or a structure: other JSON is the same as the text."""
    try:
        value = json.loads(key)
    except ValueError:
        return []
    return [value] if isinstance(value, str | list | dict) else []
