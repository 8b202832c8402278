"""A log as users have: three nodes, three maps, keys by Zipf's law, values of 100 to 2,048 bytes,
deletes, and entries that expire. Everything is archived.

`python -m benchmarks.realistic_log FOLDER RECORDS KEYS` prints a JSON object: the records, and the
seconds of all archive runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import imap_wal.log

MAPS = ("orders", "sessions", "items")
SHARES = (0.6, 0.25, 0.15)
"""The share of the changes of each map."""
NODES = 3
SKEW = 0.9
"""The exponent of Zipf's law."""
DELETED, EXPIRED, EXPIRING = 0.04, 0.06, 0.06
VALUE_MIN, VALUE_MAX, POOL = 100, 2048, 20_000
BATCH = 15_000
ARCHIVE_EACH = 1_000_000
"""Records between two archive runs."""
DAY_MS = 86_400_000
SEED = 7


def values(chance: np.random.Generator) -> list[bytes]:
    """JSON texts of words that repeat. The sizes are log-uniform: about 640 bytes on average."""
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)
    words = [
        letters[chance.integers(0, 26, size)].tobytes() for size in chance.integers(3, 11, 3000)
    ]
    found = []
    for size in np.exp(chance.uniform(np.log(VALUE_MIN), np.log(VALUE_MAX), POOL)).astype(int):
        text = b""
        while len(text) < size - 40:
            name, one, two = (words[place] for place in chance.integers(0, len(words), 3))
            text += b'"%s":"%s %s %d",' % (name, one, two, chance.integers(0, 10**9))
        found.append(b'{"id":"%s",' + text[: size - 40] + b"}")
    return found


def changes(
    keys: int, records: int, chance: np.random.Generator, now_ms: int
) -> Iterator[list[tuple[int, int, tuple[bytes, bytes | None, int]]]]:
    """Batches of (map, node, change)."""
    pool = values(chance)
    shares = np.cumsum(1.0 / np.arange(1, keys + 1) ** SKEW)
    shares /= shares[-1]
    places = chance.permutation(keys)
    for done in range(0, records, BATCH):
        count = min(BATCH, records - done)
        chosen = places[np.searchsorted(shares, chance.random(count))].tolist()
        maps = chance.choice(len(MAPS), count, p=SHARES).tolist()
        kinds, bodies = chance.random(count).tolist(), chance.integers(0, POOL, count).tolist()
        batch = []
        for key, name, kind, body in zip(chosen, maps, kinds, bodies, strict=True):
            value, expires = pool[body].replace(b"%s", chance.bytes(16).hex().encode(), 1), 0
            if kind < DELETED:
                value = None
            elif kind < DELETED + EXPIRED:
                expires = now_ms - DAY_MS
            elif kind < DELETED + EXPIRED + EXPIRING:
                expires = now_ms + 365 * DAY_MS
            batch.append(
                (name, key % NODES, (b"%s:%012d" % (MAPS[name][:3].encode(), key), value, expires))
            )
        yield batch


def write(folder: Path, records: int, keys: int) -> dict[str, float]:
    """Fill the log of cluster `log`. Returns the archived records, and the seconds of that."""
    chance, now_ms = np.random.default_rng(SEED), round(time.time() * 1000)
    archived, seconds, written = 0, 0.0, 0
    logs = _opened(folder)
    for batch in changes(keys, records, chance, now_ms):
        parts: dict[tuple[int, int], list[tuple[bytes, bytes | None, int]]] = {}
        for name, node, change in batch:
            parts.setdefault((name, node), []).append(change)
        for (name, node), some in parts.items():
            logs[node].append(MAPS[name], *some)
        before, written = written, written + len(batch)
        if before // ARCHIVE_EACH < written // ARCHIVE_EACH or written == records:
            for log in logs:
                log.close()
            start = time.perf_counter()
            archived += archive(folder)
            seconds += time.perf_counter() - start
            logs = _opened(folder)
    for log in logs:
        log.close()
    return {"archived": archived, "seconds": seconds}


def _opened(folder: Path) -> list[imap_wal.log.Log]:
    nodes = [f"n{number}" for number in range(1, NODES + 1)]
    return [
        imap_wal.log.create(folder.as_uri(), node=node, durability="os", exist_ok=True)
        for node in nodes
    ]


def archive(folder: Path) -> int:
    """Archive by the command. Returns the number of records."""
    answer = subprocess.run(
        [sys.executable, "-m", "rewrite_cli.cli", "archive", str(folder), "-o", "json"],
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    return sum(node["records"] for node in json.loads(answer)["nodes"])


if __name__ == "__main__":
    print(json.dumps(write(Path(sys.argv[1]).resolve(), int(sys.argv[2]), int(sys.argv[3]))))
