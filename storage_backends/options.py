"""Options of drivers, as their constructors name them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from difflib import get_close_matches

from storage_backends.errors import StorageError

_CLOSE = 0.8


def demand_spelt(driver: type, options: Iterable[str], own: Iterable[str] = ()) -> None:
    """Raises `StorageError` for an option that the driver does not name, if it has one with almost
    the same name. Most drivers ignore an option that they do not know: with a misspelt
    `endpoint_url`, they use another service. Others take options that they do not name, so an
    option that is like none is left to the driver. `own`: those that the store takes itself."""
    named = set(own)
    for base in driver.__mro__:
        constructor = vars(base).get("__init__")
        if inspect.isfunction(constructor):
            named |= inspect.signature(constructor).parameters.keys()
    for option in sorted({*options} - named):
        for meant in get_close_matches(option, named, 1, _CLOSE):
            raise StorageError(
                f"the driver {driver.__module__}.{driver.__qualname__} has no option {option!r}; "
                f"it has {meant!r}"
            )
