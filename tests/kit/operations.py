"""Operations of a thread that is killed. The same numbers mean the same operations in the child and
in its parent."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

ACK = struct.Struct("<II")
"""(thread, number of the operation): written to the journal pipe after the operation returned; a
write of a few bytes is whole or not at all."""
KEYS = 12


def operation(seed: int, thread: int, number: int) -> tuple[str, list[tuple[str, Any]]]:
    """The `number`-th operation of a thread: ("set" or "delete", its keys and values). A pure
    function, so that the parent knows it too."""
    chance = Random(f"{seed}/{thread}/{number}")
    key = f"{thread}.{chance.randrange(KEYS)}"
    kind = chance.random()
    if kind < 0.2:
        return "delete", [(key, None)]
    if kind < 0.4:
        return "set", [
            (f"{thread}.{chance.randrange(KEYS)}", [number, each])
            for each in range(chance.randrange(1, 6))
        ]
    return "set", [(key, [number, "x" * chance.choice((0, 10, 200, 3000))])]


def apply(state: dict[str, Any], seed: int, thread: int, number: int) -> None:
    """The same in a dict."""
    kind, pairs = operation(seed, thread, number)
    for key, value in pairs:
        if kind == "delete":
            state.pop(key, None)
        else:
            state[key] = value
