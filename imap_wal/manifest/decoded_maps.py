"""Which maps of a log have keys and values in readable form in their Parquet files. See
docs/decisions/0073-decoded-columns.md."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from imap_wal.errors import InvalidSetting
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.store import ManifestLog


def set_decoded(manifests: ManifestLog[ClusterManifest], maps: Iterable[str]) -> tuple[str, ...]:
    """From now on, new files of these maps have the columns `key_text` and `value_json`, and those
    of other maps do not.

    Args:
        manifests: Those of the cluster.
        maps: Names, in which `*` and `?` match any text and any character.

    Returns:
        What is recorded.

    Raises:
        InvalidSetting: A name is empty.
        LostRace: Other processes changed the manifest too often.
    """
    wanted = tuple(sorted(set(maps)))
    if "" in wanted:
        raise InvalidSetting("the name of a map must not be empty")

    return manifests.update(lambda manifest: replace(manifest, decoded=wanted)).decoded
