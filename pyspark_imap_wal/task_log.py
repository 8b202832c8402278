"""The first steps of a task of a rewrite: it opens the log in its worker, and checks that the
worker can do the task."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from imap_wal.context import open_context
from imap_wal.errors import InvalidSetting, MissingNode
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.plan import RewritePlan
from imap_wal.version import VERSION
from pyspark_imap_wal.data_source import known
from storage_backends import StorageError
from storage_backends.metered import Meter


@contextmanager
def worker_log(plan: RewritePlan, version: str, meter: Meter | None = None) -> Iterator[ClusterLog]:
    """The log of a plan, opened with the driver's options and this worker's own credentials.

    Args:
        plan: The plan; its `place` has the options of the storages.
        version: The version of imap-wal in the driver.
        meter: Counts the bytes that are read and written.

    Raises:
        InvalidSetting: This worker has another version.
        MissingNode: This worker does not see the root, or the segments of a node.
        StorageError: The storage cannot be opened.
    """
    if version != VERSION:
        raise InvalidSetting(
            f"worker {socket.gethostname()} has imap-wal {VERSION}, the driver has {version}; "
            "install the same version, or make a new `imap-wal spark package`"
        )
    try:
        context = open_context(known(plan.place))
        context = context.on((meter or Meter()).on(context.store))
    except StorageError as error:
        if type(error) is not StorageError:  # the driver handles the subclasses
            raise
        raise StorageError(f"on worker {socket.gethostname()}: {error}") from error
    try:
        log = ClusterLog(context, plan.namespace, plan.cluster)
        if plan.state.number and not log.manifests.read()[0]:
            # Otherwise a task would write its part files into an empty folder of this machine.
            raise MissingNode(f"there is no {log.folder}/manifest in {plan.place}")
        yield log
    except MissingNode as error:
        raise MissingNode(
            f"on worker {socket.gethostname()}: {error.without_advice}",
            "root and wal_dir must be on a storage that every worker reaches, such as a shared "
            "folder that is mounted there; or use --engine local",
        ) from error
    finally:
        context.store.close()
