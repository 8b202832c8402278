"""Keys for tests of encryption at rest."""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
from pathlib import Path

from imap_wal.context import Context
from imap_wal.security.encryption_keys import KeyRing, Keys
from storage_backends import SegmentStore

_names = itertools.count(1)


def key(name: str) -> str:
    """The item of a key; the same name gives the same key."""
    return f"{name}:{base64.b64encode(hashlib.sha256(name.encode()).digest()).decode()}"


def key_ring(*items: str) -> KeyRing:
    """`key_ring("b", "a", "plain")`: b writes."""
    return KeyRing.parse(
        " ".join(item if item == "plain" or ":" in item else key(item) for item in items), "a test"
    )


def keyed(store: SegmentStore, *items: str) -> Context:
    """The store with those keys."""
    return Context(store, keys_of(*items))


def keys_of(*items: str) -> Keys:
    return Keys(key_ring=key_ring(*items))


def key_variable(*items: str) -> str:
    """A source of keys: a variable of the environment with them."""
    name = f"KEYS_{'_'.join(items)}"
    os.environ[name] = " ".join(item if item == "plain" else key(item) for item in items)
    return f"env:{name}"


def key_file(folder: Path, *items: str) -> str:
    """A source of keys: a new file with them."""
    path = folder / f"keys-{next(_names)}"
    path.touch(0o600)
    path.write_text(
        "\n".join(item if item == "plain" or ":" in item else key(item) for item in items)
    )
    return f"file:{path}"


def other(name: str) -> str:
    """Another key under the same id."""
    return f"{name}:{base64.b64encode(bytes(32)).decode()}"
