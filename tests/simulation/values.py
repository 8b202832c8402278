"""Frozen dataclasses that are made quickly. Python sets each field of a frozen one by a call, and
`dataclasses.replace` walks over all fields: together a fifth of the time of a run. In simulations
the same classes have an `__init__` that assigns, and a `replace` of their own. Field values,
defaults, `__post_init__`, comparison and hash stay as they are.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator
from functools import cache
from types import ModuleType
from typing import Any

_SAME = object()
_REPLACES: dict[type, Any] = {}


def frozen_classes(modules: Iterable[ModuleType]) -> list[type]:
    """The frozen dataclasses that are defined in these modules."""
    found = {
        value: None
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type)
        and "__dataclass_params__" in vars(value)
        and vars(value)["__dataclass_params__"].frozen
        and all(field.init for field in dataclasses.fields(value))
    }
    return list(found)


@cache
def quick_init(kind: type) -> Any:
    """An `__init__` like the class's own, which assigns the fields."""
    signature = inspect.signature(kind.__init__)
    names: dict[str, Any] = {"_MISSING": dataclasses._HAS_DEFAULT_FACTORY}  # type: ignore[attr-defined]
    parameters, body = [], []
    star = False
    for field in dataclasses.fields(kind):
        name, parameter = field.name, signature.parameters[field.name]
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            parameters.append("*")
            star = True
        if parameter.default is not parameter.empty:
            names[f"_default_{name}"] = parameter.default
            parameters.append(f"{name}=_default_{name}")
        else:
            parameters.append(name)
        if field.default_factory is not dataclasses.MISSING:
            names[f"_make_{name}"] = field.default_factory
            body.append(f"self.{name} = _make_{name}() if {name} is _MISSING else {name}")
        else:
            body.append(f"self.{name} = {name}")
    if hasattr(kind, "__post_init__"):
        body.append("self.__post_init__()")
    return _function(f"__init__(self, {', '.join(parameters)})", body, names)


def _quick_replace(kind: type) -> Any:
    given = [field.name for field in dataclasses.fields(kind) if field.init]
    parameters = ", ".join(f"{name}=_SAME" for name in given)
    same = ", ".join(f"{name}=self.{name} if {name} is _SAME else {name}" for name in given)
    names = {"_SAME": _SAME, "_kind": kind}
    return _function(f"replace(self, *, {parameters})", [f"return _kind({same})"], names)


def _function(head: str, body: list[str], names: dict[str, Any]) -> Any:
    lines = "\n    ".join(body) or "pass"
    made: dict[str, Any] = {}
    exec(f"def {head}:\n    {lines}", names, made)
    return next(iter(made.values()))


def replace(value: Any, /, **changes: Any) -> Any:
    """Does what `dataclasses.replace` does."""
    kind = type(value)
    found = _REPLACES.get(kind)
    if found is None:
        found = _REPLACES[kind] = _quick_replace(kind)
    return found(value, **changes)


def patches(modules: Iterable[ModuleType]) -> Iterator[tuple[Any, str, Any]]:
    """Replacements in these modules. `None`: remove it."""
    for kind in frozen_classes(modules):
        yield kind, "__init__", quick_init(kind)
        yield kind, "__setattr__", object.__setattr__
        yield kind, "__delattr__", object.__delattr__
    for module in modules:
        if vars(module).get("replace") is dataclasses.replace:
            yield module, "replace", replace
