"""An adapter whose library is not installed names the extra."""

from __future__ import annotations

import importlib
import sys

import pytest

from storage_backends.extras import MissingExtra


@pytest.mark.parametrize(
    ("module", "library", "extra"),
    [
        ("dogpile", "dogpile", "dogpile"),
        ("key_value", "key_value", "key-value"),
        ("starlette", "starlette", "starlette"),
    ],
)
def test_import_without_the_library_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, module: str, library: str, extra: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"imap_wal.adapters.{module}", raising=False)
    with pytest.raises(MissingExtra, match=rf"the library {library} .* 'imap-wal\[{extra}\]'"):
        importlib.import_module(f"imap_wal.adapters.{module}")
