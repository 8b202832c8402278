"""Errors of imap-wal in Spark: one line, without the traceback of the Python worker.

Spark shows the traceback of a worker's error before its text, even for a misspelt option.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pyspark

from imap_wal.errors import ImapWalError
from storage_backends import StorageError

HIDE = "SPARK_HIDE_TRACEBACK"
"""A worker reads this variable when it sends an error, and ends after that. So the variable changes
no other error."""

_HIDES = not pyspark.__version__.startswith(("4.0.", "4.1."))
"""In these releases, an error of a stream causes another one in the worker, and only the traceback
shows the first one."""


@contextmanager
def plain_errors() -> Iterator[None]:
    """For a method that Spark calls, as a decorator or a context. Errors of imap-wal and of storage
    lose their traceback, because their text says what to do. All others keep it."""
    try:
        yield
    except (ImapWalError, StorageError):
        if _HIDES and _is_worker():
            os.environ[HIDE] = "1"
        raise


def _is_worker() -> bool:
    """Whether Spark started this process. In a driver, a JVM could inherit the variable."""
    module = getattr(sys.modules["__main__"], "__spec__", None)
    return module is not None and module.name.startswith("pyspark.")
