"""Archives the log of a node that no process is writing."""

from __future__ import annotations

from functools import partial

from imap_wal.context import Context
from imap_wal.errors import WriterLocked
from imap_wal.layout import Identity
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.proof import prove_keys
from imap_wal.retention.archive import Archived, archive_sealed
from imap_wal.settings import Settings
from imap_wal.write.context import LogContext
from imap_wal.write.opening import open_node_log

ARCHIVES_BY_ITSELF = (
    "an agent or embedded store archives automatically if archive_interval_s, max_total_wal_size "
    "or archive_objects is set; to archive now, stop that process and run the command again"
)


def archive_offline(context: Context, identity: Identity, node_folder: str) -> Archived:
    """Turn all segments of a node's log into archives. Raises `WriterLocked` if another process is
    writing it, and the errors of `open_node_log` and `archive_sealed`."""
    # Opening the log cuts off a torn tail, and locks the log while the segments are removed.
    logs = ClusterLog(context, identity.namespace, identity.cluster)
    try:
        log = open_node_log(
            LogContext(context, identity, Settings()),
            holder="imap-wal archive",
            also=partial(prove_keys, logs, identity.node),
        )
    except WriterLocked as error:
        raise WriterLocked(error.node, error.holder, ARCHIVES_BY_ITSELF) from error
    try:
        return archive_sealed(context, node_folder, identity.node, log.manifests, epoch=log.epoch)
    finally:
        log.close()
