"""Storage: a small protocol (`interface`), its implementations, and a factory from a URL.

    interface   SegmentStore, Appender, Held, Lock, Capabilities: imports no other module
    errors      what a store raises
    extras      libraries that only some installs have
    local       a directory: fdatasync, directory fsync, link, flock; its folders: `local_listing`
    descriptors open segments and held locks, for local
    reserve     space of a full disk that is kept for maintenance
    objects     any fsspec file system of immutable objects: s3, gcs, abfs, …
    oss         its driver for Alibaba Cloud OSS
    gated       stores that forward each call; files that are identified by an id of the storage
    metered     stores that count, or limit, how many bytes pass
    lease       the lock for storage without locks
    hdfs        WebHDFS
    memory      this process, for tests and trials
    testing     check_segment_store (conformance)
    faults      FaultyStore: any store, failing as planned
    paths       valid paths inside a store; temporary files of killed processes
    ownership   who owns a local folder
    location    a URL without its options, which are kept separately
    options     the options that a driver has
    veil        removes secrets from the errors of drivers
    registry    what is known about a storage from its URL's scheme; entry points
    factory     open_store(url)

Only the log calls it. No other package imports fsspec.
"""

from storage_backends.errors import (
    AlreadyExists,
    Linked,
    Locked,
    NoSpace,
    NotFound,
    StorageError,
    Unavailable,
    Unsupported,
    with_url,
)
from storage_backends.extras import MissingExtra
from storage_backends.factory import open_store
from storage_backends.interface import (
    Appender,
    Capabilities,
    Held,
    Lock,
    SegmentStore,
    StoredFile,
)
from storage_backends.lease import holder as lock_holder
from storage_backends.registry import Backend, Opening

__all__ = [
    "AlreadyExists",
    "Appender",
    "Backend",
    "Capabilities",
    "Held",
    "Linked",
    "Lock",
    "Locked",
    "MissingExtra",
    "NoSpace",
    "NotFound",
    "Opening",
    "SegmentStore",
    "StorageError",
    "StoredFile",
    "Unavailable",
    "Unsupported",
    "lock_holder",
    "open_store",
    "with_url",
]
