"""What is installed on this machine: packages, and what members need."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from imap_wal.version import VERSION
from rewrite_cli.console.check import OK, PROBLEM, WARNING, Check
from rewrite_cli.console.failures import Failed
from rewrite_cli.local_cluster import jars
from storage_backends.registry import BACKENDS, added

EXTRAS = {
    "pyarrow": "archive",
    "pyzmq": "agent",
    "hazelcast-python-client": "hazelcast",
    "pyspark": "spark",
    **{backend.library: backend.extra for backend in BACKENDS.values() if backend.library},
    "cryptography": "encryption",
    "duckdb": "duckdb",
    "opentelemetry-sdk": "otel",
}
"""The extra that installs each package."""


def environment_checks() -> Iterator[Check]:
    """Python, and the packages of the extras."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    yield Check(
        "python",
        OK if sys.version_info >= (3, 11) else PROBLEM,
        f"{running} at {sys.executable}",
        "" if sys.version_info >= (3, 11) else "use Python 3.11 or newer",
    )
    yield Check("imap-wal", OK, VERSION)
    absent = []
    for package, extra in EXTRAS.items():
        try:
            yield Check(package, OK, version(package))
        except PackageNotFoundError:
            absent.append(f"{package} [{extra}]")
    for point in added():
        yield Check(f"{point.name}://", OK, f"a storage of another package, {point.value}")
    if absent:
        yield Check(
            "extras",
            OK,
            f"not installed, needed only for optional features: {', '.join(absent)}",
        )


def java_checks() -> Iterator[Check]:
    """Java, the plug-in's jar, Hazelcast's jar: needed by members, not by embedded maps."""
    try:
        release = jars.java_version()
        yield Check(
            "java",
            OK if release >= 17 else WARNING,
            f"{release} at {jars.java()}",
            "" if release >= 17 else "members need Java 17 or newer",
        )
    except Failed as error:
        yield Check(
            "java", WARNING, error.message, "needed for members and Spark, not for embedded maps"
        )
    for name, find in (("plug-in jar", jars.plugin_jar), ("hazelcast jar", jars.hazelcast_jar)):
        try:
            yield Check(name, OK, str(find()))
        except Failed as error:
            yield Check(
                name,
                WARNING,
                error.message,
                "needed for `imap-wal node start`, not for embedded maps",
            )
