"""The names that a package needs to add a storage (docs/how-to/storage-backend.md). Import them
from here: `storage_backends` is internal."""

from storage_backends import (
    AlreadyExists,
    Appender,
    Backend,
    Capabilities,
    Held,
    Linked,
    Lock,
    Locked,
    NoSpace,
    NotFound,
    Opening,
    SegmentStore,
    StorageError,
    StoredFile,
    Unavailable,
    Unsupported,
    open_store,
)
from storage_backends.gated import HeldByAnswer
from storage_backends.interface import discard_each
from storage_backends.lease import DEFAULT_LEASE_MS, Immutable, LeasedLocks
from storage_backends.paths import check_path, folder_prefix
from storage_backends.registry import FSSPEC
from storage_backends.testing import check_segment_store

__all__ = [
    "DEFAULT_LEASE_MS",
    "FSSPEC",
    "AlreadyExists",
    "Appender",
    "Backend",
    "Capabilities",
    "Held",
    "HeldByAnswer",
    "Immutable",
    "LeasedLocks",
    "Linked",
    "Lock",
    "Locked",
    "NoSpace",
    "NotFound",
    "Opening",
    "SegmentStore",
    "StorageError",
    "StoredFile",
    "Unavailable",
    "Unsupported",
    "check_path",
    "check_segment_store",
    "discard_each",
    "folder_prefix",
    "open_store",
]
