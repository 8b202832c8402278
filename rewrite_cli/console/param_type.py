"""`click.ParamType` with a type parameter, which it has by itself since click 8.4."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import click

if TYPE_CHECKING:
    from click import ParamType
else:
    T = TypeVar("T")

    class ParamType(click.ParamType, Generic[T]):
        """Converts the text of an option or argument to a value of type `T`."""


__all__ = ["ParamType"]
