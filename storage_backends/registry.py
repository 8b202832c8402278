"""What is known about a storage from the scheme of its URL, in one place.

    /path, file:///path           one folder of this machine
    objects+file:///path          the same, as immutable objects: for trials and tests
    memory://name                 this process; without a name, each open has its own files
    webhdfs://host:port/path      HDFS, also as hdfs:// and swebhdfs://
    oss://bucket/path             Alibaba Cloud OSS
    s3://, gs://, abfs://, …      any driver of fsspec

Another package adds a scheme with an entry point (docs/how-to/storage-backend.md):

    [project.entry-points."imap_wal.storage"]
    sqlite = "my_package:SQLITE"            # a `Backend`

The schemes above cannot be replaced.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from storage_backends.errors import StorageError
from storage_backends.interface import SegmentStore

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "imap_wal.storage"
"""The group of entry points. The name of each is a scheme."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What a store is opened with. `url`: without options and passwords, which are in `options`; a
    store has it as its own `url`, unchanged if it can. `clock_ms`: Unix milliseconds, for leases.
    `file_mode`: of new files, if the storage has modes."""

    url: str
    options: Mapping[str, Any]
    clock_ms: Callable[[], int]
    file_mode: int


@dataclass(frozen=True, slots=True)
class Backend:
    """The facts of one kind of storage."""

    opener: str
    """`module:function`, imported at the first open. The function takes an `Opening`, reads and
    creates nothing, and returns the `SegmentStore`. It raises `StorageError`."""
    library: str = ""
    """The distribution that reaches the storage, if imap-wal installs it with an extra."""
    extra: str = ""
    """That extra of imap-wal."""
    is_folder: bool = False
    """The URL is a folder of this machine."""
    is_lasting: bool = True
    """The files outlive the process."""
    takes_options: bool = True
    """The URL may have options."""
    names_bucket: bool = False
    """The URL has a bucket after `://`, not a server: all buckets are on one service."""
    sync_advice: str = ""
    """How a user makes appends survive a power loss, if it depends on options."""
    conditional_create: bool = False
    """Of an `ObjectStore`: the driver turns `mode="create"` into one request
    with a condition that the service checks, in `pipe_file` and in `put_file`."""
    ignoring: str = ""
    """Of an `ObjectStore`: which places of this service ignore that condition."""
    deleted_at_once: int = 1
    """Of an `ObjectStore`: the most keys of one request that deletes objects."""


FSSPEC = "storage_backends.objects:opened"
"""The opener of storages that have a driver of fsspec."""
_FOLDER = Backend("storage_backends.local:opened", is_folder=True, takes_options=False)
_LOCAL_OBJECTS = Backend(
    "storage_backends.objects:opened_folder",
    library="fsspec",
    extra="fsspec",
    is_folder=True,
    takes_options=False,
)
_MEMORY = Backend("storage_backends.memory:opened", is_lasting=False, takes_options=False)
_HDFS = Backend(
    "storage_backends.hdfs:opened",
    library="requests",
    extra="hdfs",
    sync_advice="add ?sync_on_close=true where data nodes sync on close",
)
# Conditional creates: read in the source of s3fs 2025.5.0 and 2026.9.0, gcsfs 2025.5.0 and
# 2026.10.1, adlfs 2025.8.0 and 2026.8.0; observed with s3fs.
_S3 = Backend(
    FSSPEC, "s3fs", "s3", names_bucket=True, conditional_create=True, deleted_at_once=1_000
)
_GCS = Backend(
    FSSPEC,
    "gcsfs",
    "gcs",
    names_bucket=True,
    conditional_create=True,
    ignoring="a zonal bucket does so",
)
_AZURE = Backend(FSSPEC, "adlfs", "azure", conditional_create=True)
_AZURE_1 = Backend(FSSPEC, "adlfs", "azure")
_OSS = Backend(
    "storage_backends.oss:opened",
    "alibabacloud-oss-v2",
    "oss",
    names_bucket=True,
    conditional_create=True,
    ignoring="a bucket that has or had versioning does so",
    deleted_at_once=1_000,
)
_ANY = Backend(FSSPEC, "fsspec", "fsspec")

BACKENDS: dict[str, Backend] = {
    "file": _FOLDER,
    "objects+file": _LOCAL_OBJECTS,
    "memory": _MEMORY,
    "webhdfs": _HDFS,
    "swebhdfs": _HDFS,
    "hdfs": _HDFS,
    "s3": _S3,
    "s3a": _S3,
    "gs": _GCS,
    "gcs": _GCS,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "az": _AZURE,
    "adl": _AZURE_1,
    "oss": _OSS,
}
"""Scheme → backend, of this package."""


def scheme_of(url: str) -> str:
    """The scheme of a URL; `file` for a path."""
    protocol, separator, _ = url.partition("://")
    return "file" if not separator or protocol == "local" else protocol


def backend_of(url: str) -> Backend:
    """The backend of a URL, or of a path. Raises `StorageError` if an entry point for its scheme
    cannot be used."""
    scheme = scheme_of(url)
    return BACKENDS.get(scheme) or _of_other_package(scheme) or _ANY


def added() -> Iterable[EntryPoint]:
    """The entry points of other packages."""
    from importlib.metadata import entry_points  # slow to import, and rarely needed

    return (point for point in entry_points(group=ENTRY_POINTS) if point.name not in BACKENDS)


def open_backend(opening: Opening) -> SegmentStore:
    """The store of a URL. Raises what its opener raises."""
    opened: SegmentStore = pkgutil.resolve_name(backend_of(opening.url).opener)(opening)
    return opened


@cache
def _of_other_package(scheme: str) -> Backend | None:
    points = [point for point in added() if point.name == scheme]
    if not points:
        return None
    values = sorted({point.value for point in points})
    if len(values) > 1:
        raise StorageError(
            f"two packages have a storage for {scheme}:// ({' and '.join(values)}): remove one"
        )
    try:
        backend = points[0].load()
    except Exception as error:
        raise StorageError(
            f"the storage for {scheme}:// cannot be loaded from {values[0]}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(backend, Backend):
        raise StorageError(
            f"the storage for {scheme}:// cannot be used: {values[0]} is a "
            f"{type(backend).__name__}, not an imap_wal.storage.Backend"
        )
    return backend
