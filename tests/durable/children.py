"""What runs in processes that are killed. Imported by a fork server, so that a child starts warm."""

from __future__ import annotations

import os
import struct
import threading
from random import Random
from typing import Any

import imap_wal

ACK = struct.Struct("<II")
"""(thread, number of the operation): written to the journal pipe after the operation returned; a write of a few bytes is whole or not at all."""
KEYS = 12


def operation(seed: int, thread: int, number: int) -> tuple[str, list[tuple[str, Any]]]:
    """The `number`-th operation of a thread: ("set" or "delete", its keys and values). A pure function, so that the parent knows it too."""
    chance = Random(f"{seed}/{thread}/{number}")
    key = f"{thread}.{chance.randrange(KEYS)}"
    kind = chance.random()
    if kind < 0.2:
        return "delete", [(key, None)]
    if kind < 0.4:
        return "set", [(f"{thread}.{chance.randrange(KEYS)}", [number, each]) for each in range(chance.randrange(1, 6))]
    return "set", [(key, [number, "x" * chance.choice((0, 10, 200, 3000))])]


def apply(state: dict[str, Any], seed: int, thread: int, number: int) -> None:
    """The same in a dict."""
    kind, pairs = operation(seed, thread, number)
    for key, value in pairs:
        if kind == "delete":
            state.pop(key, None)
        else:
            state[key] = value


def write_until_killed(url: str, durability: str, seed: int, starts: list[int], journal: Any) -> None:
    """One thread for each of `starts`, from that operation on; archives now and then."""
    store = imap_wal.open(url, node="n", durability=durability, segment_bytes=16 * 1024)
    m = store.map("m")
    pipe = journal.fileno()

    def work(thread: int, number: int) -> None:
        while True:
            kind, pairs = operation(seed, thread, number)
            if kind == "delete":
                try:
                    del m[pairs[0][0]]
                except KeyError:
                    pass
            else:
                m.update(pairs)
            os.write(pipe, ACK.pack(thread, number))
            number += 1

    for thread, number in enumerate(starts):
        threading.Thread(target=work, args=(thread, number), daemon=True).start()
    while True:
        threading.Event().wait(0.02 + Random(f"{seed}/{starts}").random() / 20)
        store.archive()
