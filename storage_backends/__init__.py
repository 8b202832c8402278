"""Where the bytes go: a small protocol (`interface`), its implementations, and a factory from a URL.

    interface   SegmentStore, Appender, Lock, Capabilities: imports nothing of ours
    errors      what a store raises
    local       a directory: fdatasync, directory fsync, link, flock
    objects     any fsspec file system of immutable objects: s3, gcs, abfs, …
    hdfs        WebHDFS
    memory      this process, for tests and trials
    testing     check_segment_store (conformance), FaultyStore (faults)
    factory     open_store(url)

The log is the only caller. fsspec is imported in this package and nowhere else.
"""

from storage_backends.errors import AlreadyExists, Locked, NoSpace, NotFound, StorageError, Unavailable, Unsupported
from storage_backends.factory import open_store
from storage_backends.interface import Appender, Capabilities, Lock, SegmentStore, StoredFile

__all__ = [
    "AlreadyExists",
    "Appender",
    "Capabilities",
    "Lock",
    "Locked",
    "NoSpace",
    "NotFound",
    "SegmentStore",
    "StorageError",
    "StoredFile",
    "Unavailable",
    "Unsupported",
    "open_store",
]
