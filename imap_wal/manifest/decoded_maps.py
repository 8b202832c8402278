"""Which maps of a log have keys and values in readable form in their Parquet files. See
docs/decisions/0073-decoded-columns.md."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from imap_wal.errors import InvalidSetting
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.feature_level import FeatureLevel
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
        InvalidSetting: Releases that refuse such files may still read this log, or a name is empty.
        LostRace: Other processes changed the manifest too often.
    """
    wanted = tuple(sorted(set(maps)))
    if "" in wanted:
        raise InvalidSetting("the name of a map must not be empty")

    def change(manifest: ClusterManifest) -> ClusterManifest:
        if wanted and manifest.feature_level < FeatureLevel.PART_LISTS:
            raise InvalidSetting(
                f"this log has feature level {manifest.feature_level:d}, but files with readable "
                f"columns need {FeatureLevel.PART_LISTS:d}: run `imap-wal upgrade` first"
            )
        return replace(manifest, decoded=wanted)

    return manifests.update(change).decoded
