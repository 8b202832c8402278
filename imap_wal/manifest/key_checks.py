"""In a cluster, one key id has one key. The cluster's manifest has a check value of each key
that was ever used to write. A key is compared with it before it is used to write.

If two nodes had two keys under one id, each could read only its own entries, and no node could
restore.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from imap_wal.errors import EncryptionError
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.store import ManifestLog
from imap_wal.security.encryption import check_value
from imap_wal.security.encryption_keys import PLAIN, KeyRing


def differing(key_ring: KeyRing, check_values: Mapping[str, str]) -> list[str]:
    """Ids of `key_ring` under which the cluster has another key. `check_values`: those in
    its manifest."""
    both = key_ring.keys.keys() & check_values.keys()
    return sorted(name for name in both if check_values[name] != check_value(key_ring.keys[name]))


def demand_same(key_ring: KeyRing, check_values: Mapping[str, str], folder: str) -> None:
    """Raise `EncryptionError` if the cluster has another key under an id of `key_ring`. `folder`:
    the folder of the manifests with `check_values`."""
    wrong = differing(key_ring, check_values)
    if wrong:
        advice = f"bring back the key that had the id {wrong[0]!r}, or give the new key another id"
        raise EncryptionError(
            folder, wrong[0], what_differs(wrong), f"{advice}; nothing was changed"
        )


def all_given(key_ring: KeyRing, check_values: Mapping[str, str]) -> bool:
    """Whether `key_ring` has all keys that were ever used to write here. `check_values`: as above;
    without them, that is unknown. Call it after `demand_same`."""
    return bool(check_values) and check_values.keys() <= key_ring.keys.keys()


def what_differs(ids: list[str]) -> str:
    """The text about different keys, for errors and findings."""
    names = ", ".join(map(repr, ids))
    return f"the key given for id {names} is not the one that this cluster has"


def with_active(key_ring: KeyRing, check_values: Mapping[str, str]) -> dict[str, str]:
    """The check values, with that of the active key."""
    active = (
        {}
        if key_ring.active == PLAIN
        else {key_ring.active: check_value(key_ring.keys[key_ring.active])}
    )
    return {**check_values, **active}


def enter(key_ring: KeyRing, clusters: ManifestLog[ClusterManifest]) -> None:
    """Enter the active key into the cluster's manifest. It must be called before that key is first
    used to write. Raises `EncryptionError` if any key of the ring has the id of another one,
    `LostRace`, and StorageError."""
    if not key_ring.keys:
        return

    def change(manifest: ClusterManifest) -> ClusterManifest | None:
        demand_same(key_ring, manifest.keys, clusters.folder)
        check_values = with_active(key_ring, manifest.keys)
        return None if check_values == manifest.keys else replace(manifest, keys=check_values)

    clusters.update(change)
