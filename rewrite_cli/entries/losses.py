"""Notes which keys and values JSON does not show exactly: how many, and with --strict which."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from imap_wal import encoder
from imap_wal.decoder import Decoder
from imap_wal.entry import KEY, MAP, Row
from rewrite_cli.console import output as out
from rewrite_cli.console.failures import CLEAN, FINDINGS
from rewrite_cli.console.output import F


def strict_option(command: F) -> F:
    """`--strict`, as `strict`."""
    return click.option(
        "--strict",
        is_flag=True,
        help="Name each key and value that is not shown exactly, such as NaN; exit code 3 then.",
    )(command)


class Losses:
    """Counts them for one command. `strict`: names each as it is found."""

    def __init__(self, strict: bool = False) -> None:
        self._strict = strict
        self._counts: Counter[str] = Counter()

    def key(self, row: Row, decoder: Decoder) -> Any:
        """The key for `json.dumps`; None for a clear."""
        lost: set[str] = set()
        decoded = encoder.key_of(row, decoder, lost)
        return self._noted(row, "key", lost, decoded)

    def value(self, row: Row, decoder: Decoder) -> Any:
        """The value for `json.dumps`; None for a tombstone."""
        lost: set[str] = set()
        decoded = encoder.value_of(row, decoder, lost)
        return self._noted(row, "value", lost, decoded)

    def key_text(self, row: Row, decoder: Decoder) -> str:
        """The key for people."""
        lost: set[str] = set()
        shown = encoder.text(decoder.key(row), lost)
        return str(self._noted(row, "key", lost, shown))

    def value_text(self, row: Row, decoder: Decoder) -> str:
        """The value for people."""
        lost: set[str] = set()
        shown = encoder.text(decoder.value(row), lost)
        return str(self._noted(row, "value", lost, shown))

    def misfit(self, name: str, key: bytes | None, why: str) -> None:
        """A value of this map that does not fit the schema."""
        self._counts["it does not fit the schema, and is whole in _rescued"] += 1
        if self._strict:
            out.note(f"map {name!r}, value of hex:{(key or b'').hex()}: {out.shown(why)}")

    def _noted(self, row: Row, part: str, lost: set[str], decoded: Any) -> Any:
        for loss in sorted(lost):
            self._counts[loss] += 1
            if self._strict:
                data = (row[KEY] or b"").hex()
                out.note(f"map {row[MAP]!r}, {part} of hex:{data}: {loss}")
        return decoded

    def end(self) -> int:
        """Print the note. Returns the exit code: FINDINGS if there is one, and --strict."""
        for loss, count in sorted(self._counts.items()):
            more = "" if self._strict else "; --strict names them"
            out.note(f"{out.count(count, 'key or value', 'keys or values')}: {loss}{more}")
        return FINDINGS if self._counts and self._strict else CLEAN
