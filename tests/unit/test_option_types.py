"""The options of `open`, `aopen`, `imap_wal.log` and `imap_wal.stream` are declared once, and a
type checker knows them."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from enum import EnumMeta
from pathlib import Path
from typing import Any, Literal, get_type_hints

import pytest

import imap_wal
import imap_wal.stream
from imap_wal import InvalidSetting, Settings
from imap_wal.embedded import opening
from imap_wal.settings import SettingsOptions
from imap_wal.stream.opening import StreamOpenOptions, StreamOptions
from imap_wal.stream.served import StreamConnectOptions
from tests.kit.effort import thorough

PROGRAM = """
import imap_wal
import imap_wal.stream

imap_wal.open("maps", durability="os", scratch="/tmp", segment_bytes=1 << 20)
imap_wal.aopen("maps", durability="os", node="n2")
imap_wal.log.open("log", durability=imap_wal.Durability.ALWAYS)
imap_wal.stream.aopen("s", partitions=1, durability="os")
imap_wal.stream.aconnect("s", partitions=1, timeout_s=1.0)
"""
MISTAKES = {
    "a misspelt name": ('imap_wal.open("maps", durabilty="os")', "durabilty"),
    "a misspelt name for asyncio": ('imap_wal.aopen("maps", durabilty="os")', "durabilty"),
    "a misspelt name of a log": ('imap_wal.log.create("log", durabilty="os")', "durabilty"),
    "a misspelt name of a stream": ('imap_wal.stream.aopen("s", partition=1)', "partition"),
    "a wrong type for a stream": ('imap_wal.stream.aconnect("s", serve="no")', "serve"),
    "an unknown value": ('imap_wal.open("maps", durability="sometimes")', "durability"),
    "text for a number": ('imap_wal.open("maps", segment_bytes="1")', "segment_bytes"),
}


def taken(field: Any) -> Any:
    """The type of the keyword for a field of `Settings` of this type."""
    if isinstance(field, EnumMeta):
        return field | Literal.__getitem__(tuple(each.value for each in list(field)))
    return str | os.PathLike[str] | None if field == Path | None else field


def test_the_options_have_the_names_and_types_of_the_settings() -> None:
    fields = get_type_hints(Settings)
    assert get_type_hints(SettingsOptions) == {name: taken(kind) for name, kind in fields.items()}


def test_the_options_passed_on_are_those_that_open_takes() -> None:
    parameters = inspect.signature(imap_wal.open).parameters.values()
    named = {each.name: each.annotation for each in parameters if each.kind is each.KEYWORD_ONLY}
    assert {
        name: str(kind)
        for name, kind in inspect.get_annotations(opening.OpenOptions).items()
        if name not in Settings.__annotations__
    } == {
        name: f"ForwardRef({kind!r}, module='imap_wal.embedded.opening')"
        for name, kind in named.items()
    }


@pytest.mark.parametrize(
    ("open", "options"),
    [
        (imap_wal.stream.open, StreamOpenOptions),
        (imap_wal.stream.connect, StreamConnectOptions),
    ],
    ids=["open", "connect"],
)
def test_the_options_of_streams_are_those_of_the_functions(open: Any, options: Any) -> None:
    """`aopen` and `aconnect` take them."""
    parameters = inspect.signature(open, eval_str=True).parameters.values()
    named = {each.name: each.annotation for each in parameters if each.kind is each.KEYWORD_ONLY}
    shared = get_type_hints(StreamOptions)
    assert get_type_hints(options) == shared | named


@thorough
def test_mypy_finds_a_misspelt_option(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    lines = [f"{line}  # {what}" for what, (line, _) in MISTAKES.items()]
    program.write_text("\n".join([PROGRAM, *lines, ""]))
    first = PROGRAM.count("\n") + 2
    root = str(Path(imap_wal.__file__).parents[1])
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-incremental", "--follow-imports=silent", str(program)],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": root},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    ).stdout.splitlines()
    errors = {int(line.split(":")[1]): line for line in found if "error:" in line}
    assert sorted(errors) == list(range(first, first + len(MISTAKES))), found
    for line, (_, name) in zip(sorted(errors), MISTAKES.values(), strict=True):
        assert name in errors[line]


@pytest.mark.parametrize("open", [imap_wal.open, imap_wal.log.open, imap_wal.log.create])
def test_a_misspelt_option_is_refused_with_the_right_name(open: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="did you mean durability"):
        open(tmp_path, durabilty="os")
    assert not list(tmp_path.iterdir()), "nothing was written"
