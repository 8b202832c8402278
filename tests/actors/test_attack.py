"""Sequences of crashes and put-back files that were found by attacking the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storage_backends import SegmentStore
from storage_backends.memory import MemoryStore
from storage_backends.objects import LocalObjects
from tests.actors.test_named_cases import NODE, embedded


class Died(BaseException):
    """The process ended at this call."""


class Dying:
    """A storage of a process that ends at its first call that `when` chooses. Locks are not kept."""

    def __init__(self, inner: SegmentStore, when: Any) -> None:
        self._inner, self._when = inner, when
        self.capabilities, self.url = inner.capabilities, inner.url
        self._dead = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if not callable(method):
            return method

        def call(*args: Any, **options: Any) -> Any:
            self._dead |= self._when(name, args[0] if args and isinstance(args[0], str) else "")
            if self._dead:
                raise Died(name)
            return method(*args, **options)

        return call


def test_a_new_log_whose_first_two_opens_died_is_opened_by_the_third(tmp_path: Path) -> None:
    """On objects, the second one created an empty segment that shuts the first one out. It was
    taken for a segment of another log, which is refused."""
    store = LocalObjects(str(tmp_path))
    with embedded(store, "n2", shared=True) as other, embedded(store, "n1", shared=True) as lost:
        other.map("m")["kept"] = lost.map("m")["lost"] = 1
    for file in store.list(NODE):
        store.delete(file.path)
    options = {"shared": True, "takeover": True, "recovery_policy": "partial"}
    for _ in range(2):
        registers = Dying(store, lambda name, path: name == "create" and path.startswith("default/embedded/manifest/"))
        with pytest.raises(Died):
            embedded(registers, "n1", **options)
    with embedded(store, "n1", **options) as again:
        assert dict(again.map("m")) == {"kept": 1}
        again.map("m")["new"] = 1
    with embedded(store, "n1", shared=True) as again:
        assert dict(again.map("m")) == {"kept": 1, "new": 1}
