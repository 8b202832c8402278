"""pyarrow, imported at its first use: a plain install has the rules for rows, and no pyarrow."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from storage_backends.extras import needs


class _Late:
    """A module that is imported when one of its names is used."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        with needs("archive"):
            value = getattr(import_module(self._module), name)
        setattr(self, name, value)
        return value


pa: Any = _Late("pyarrow")
pc: Any = _Late("pyarrow.compute")
