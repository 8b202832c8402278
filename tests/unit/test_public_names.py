"""`import imap_wal` imports a module when one of its names is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import imap_wal

SUBMODULES = {"errors", "log"}
SLOW = ("asyncio", "ssl", "importlib.metadata", "pyarrow", "imap_wal.workers", "imap_wal.stream")
"""What a program that opens a map in one process does not need."""


def for_type_checkers() -> dict[str, str]:
    """The names that a type checker sees → the modules that have them."""
    (block,) = (
        node
        for node in ast.parse(Path(imap_wal.__file__).read_text("utf-8")).body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name)
    )
    return {
        alias.name: str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_every_public_name_has_one_place() -> None:
    places = for_type_checkers()
    assert set(places) == set(imap_wal.__all__)
    for name in set(places) - SUBMODULES:
        assert f"imap_wal.{imap_wal._HOMES[name]}" == places[name]
        assert getattr(imap_wal, name) is getattr(sys.modules[places[name]], name)
    assert set(imap_wal._HOMES) == set(places) - SUBMODULES
    assert set(imap_wal.__all__) <= set(dir(imap_wal))
    for name in SUBMODULES:
        assert getattr(imap_wal, name) is sys.modules[f"imap_wal.{name}"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'imap_wal' has no attribute 'opne'"):
        # A comment that ignores nothing is an error: so a type checker refuses the name too.
        _ = imap_wal.opne  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'opne'"):
        exec("from imap_wal import opne")


def test_opening_a_map_imports_only_what_it_needs(tmp_path: Path) -> None:
    program = (
        "import sys, imap_wal\n"
        "assert 'imap_wal.embedded' not in sys.modules\n"
        f"with imap_wal.open({str(tmp_path)!r}) as store:\n"
        "    store.map('orders')['a'] = 1\n"
        f"print([name for name in {SLOW!r} if name in sys.modules])\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("[]\n", "")
