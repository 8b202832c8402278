"""Two S3 services. The gateway versitygw serves a folder of this machine; the first use builds it.
moto's server keeps objects in its memory, and asks for no credentials."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage_backends import SegmentStore
from storage_backends.objects import ObjectStore
from tests.kit.ports import free_port
from tests.storage.services import go_program, running


@dataclass(frozen=True)
class S3:
    """A running service. Its bucket is called `bucket`."""

    folder: Path
    options: dict[str, Any]

    def open(self, root: str = "bucket/some/root", **options: Any) -> SegmentStore:
        """The backend alone: `open_store` already reads whether the log has a `wal_dir`."""
        return ObjectStore(f"s3://{root}", {**self.options, **options})

    def url(self, root: str) -> str:
        """A URL that has the options."""
        options = "&".join(f"{key}={value}" for key, value in self.options.items())
        return f"s3://{root}?{options}&use_ssl=false"


@contextmanager
def running_s3(folder: Path) -> Iterator[S3]:
    """Start a gateway whose files are in `folder`."""
    program = go_program("versitygw", "github.com/versity/versitygw/cmd/versitygw@v1.8.0")
    (folder / "data" / "bucket").mkdir(parents=True)
    port = free_port()
    with running(
        [program, "--port", f"127.0.0.1:{port}", "posix", str(folder / "data")],
        port,
        folder / "log",
        environment={"ROOT_ACCESS_KEY": "access", "ROOT_SECRET_KEY": "secret-secret"},
    ):
        yield S3(folder, _options(port))


@contextmanager
def running_moto(folder: Path) -> Iterator[S3]:
    """Start moto's server; its log is in `folder`."""
    port = free_port()
    command = [sys.executable, "-m", "tests.storage.one_at_a_time", str(port)]
    path = {"PYTHONPATH": str(Path(__file__).parents[2])}
    with running(command, port, folder / "log", environment=path):
        service = S3(folder, _options(port))
        bucket = urllib.request.Request(f"{service.options['endpoint_url']}/bucket", method="PUT")
        urllib.request.urlopen(bucket).close()
        yield service


def _options(port: int) -> dict[str, Any]:
    return {
        "key": "access",
        "secret": "secret-secret",
        "endpoint_url": f"http://127.0.0.1:{port}",
    }
