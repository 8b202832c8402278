"""A stream that the process of a test serves at a TCP address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import imap_wal.stream as stream
from imap_wal.stream import Certificates
from imap_wal.stream.served import serving_stream
from imap_wal.workers.network import NetworkEndpoint


@contextmanager
def served(folder: Path, url: str, certificates: Certificates | None) -> Iterator[None]:
    """By this process."""
    stream.open(folder / "log", partitions=2).close()
    election = serving_stream(folder / "log", NetworkEndpoint(url, certificates, serves=True))
    assert election.elect()
    try:
        yield
    finally:
        election.stop()
