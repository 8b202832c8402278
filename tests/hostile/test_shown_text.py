"""Attack: names and values that control the terminal, or that are far larger printed than
stored."""

from __future__ import annotations

import json
import os
import pickle
import pty
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import pytest
from click.testing import CliRunner

import imap_wal
from imap_wal.decoder import Decoder, Opaque
from imap_wal.encoder import plain, text
from rewrite_cli.cli import group
from rewrite_cli.console import output as out
from tests.kit.effort import every

ESCAPES = "\x1b]0;title\x07\x1b[2J\x9b31m\x7f\r\u202egnp.exe\u2066\ud800"[:-1]


def controls(printed: str) -> set[str]:
    return {each for each in printed if not each.isprintable() and each != "\n"}


@pytest.fixture
def log(tmp_path: Path) -> str:
    url = f"file://{tmp_path}/log"
    with imap_wal.open(url) as store:
        store.map(f"orders{ESCAPES}").put(f"key{ESCAPES}", f"value{ESCAPES}\nsecond line")
    return url


@pytest.mark.parametrize(
    "words",
    [
        ("dump",),
        ("dump", "-o", "json"),
        ("stat",),
        ("stat", "-o", "json"),
        ("verify",),
        ("verify", "-o", "json"),
        ("ls",),
        ("prune", "--dry-run"),
        ("query",),
        ("query", "-o", "json"),
    ],
)
def test_a_log_with_escape_sequences_is_printed_without_them(
    log: str, words: tuple[str, ...]
) -> None:
    ended = CliRunner().invoke(group, [words[0], log, *words[1:]])
    assert ended.exit_code in (0, 2), ended.output
    assert controls(ended.output) == set()


def on_a_terminal(*words: str) -> tuple[str, int]:
    """What a real process writes to a real terminal, and its exit code."""
    main, other = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", "from rewrite_cli.cli import main; main()", *words],
        stdin=other,
        stdout=other,
        stderr=other,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "200"},
    )
    os.close(other)
    found = b""
    try:
        while some := os.read(main, 1 << 16):
            found += some
    except OSError:  # the process has ended
        pass
    os.close(main)
    return found.decode(), process.wait(60)


@every(20)
@pytest.mark.parametrize(
    "words", [["query", "SHOW TABLES"], ["verify"], ["stat"], ["restore"], ["rewrite"], ["repair"]]
)
@pytest.mark.parametrize("name", ["[/b]", "[link=https://x.test]x", "\x9b31m\u202ex"])
def test_progress_shows_names_as_they_are(tmp_path: Path, words: list[str], name: str) -> None:
    """They are neither markup of the library that draws, nor control characters. Only a terminal
    has this line."""
    url = f"file://{tmp_path}/log"
    with imap_wal.open(url) as store:
        for number in range(30):
            store.map(f"{name}{number}")["a"] = "b"
    more = ["--dry-run"] if words == ["repair"] else []
    printed, code = on_a_terminal(words[0], url, *words[1:], *more)
    assert code == 0, printed
    assert "\x1b]8" not in printed
    assert controls(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", printed)) == set()


def test_dump_finds_a_key_by_either_form(log: str) -> None:
    """As the key is, and as it is printed."""
    printed = json.loads(CliRunner().invoke(group, ["dump", log, "-o", "json"]).output)
    assert printed["key"] == f"key{ESCAPES}", "JSON has the same text"
    for key in (f"key{ESCAPES}", out.shown(f"key{ESCAPES}")):
        assert "= value" in CliRunner().invoke(group, ["dump", log, "--key", key]).output


def test_an_error_shows_no_escape_sequences_of_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from rewrite_cli.console.failures import Failed, report

    report(Failed(f"no map {ESCAPES}"))
    assert controls(capsys.readouterr().err) == set()


def member_row(data: bytes) -> tuple[Any, ...]:
    return ("m", b"", "", data, "pickle", False, 0, 0, 0, (1, 1, 1, 1))


def pickled(data: bytes) -> bytes:
    text = data.decode("latin-1").encode()
    return struct.pack(">iii", 0, -120, len(text)) + text


def shared(levels: int, kind: type) -> Any:
    value: Any = kind()
    for _ in range(levels):
        value = kind((value, value))
    return value


def in_itself() -> Any:
    value: dict[str, Any] = {}
    value["a"] = value["b"] = value
    return value


@pytest.mark.timeout(20)
@pytest.mark.parametrize("protocol", [0, 1])
@pytest.mark.parametrize(
    "value", [shared(200, list), shared(200, tuple), in_itself(), ["x" * 100_000] * 1_000]
)
def test_an_endless_value_is_shown_as_bytes(value: Any, protocol: int) -> None:
    """Its printed form would never end."""
    data = pickled(pickle.dumps(value, protocol))
    assert isinstance(Decoder().value(member_row(data)), Opaque)


@pytest.mark.timeout(20)
def test_a_key_of_shared_tuples_is_shown_as_bytes() -> None:
    """Each level is a pair of the one before, so its printed form would never end."""
    tree = b")" + b"".join(
        b"q%c0(h%ch%ct" % (level, level, level) for level in range(60)
    )  # each level is a pair of the one before
    data = b"(" + tree + b"I1\n" + tree + b"I2\nd."
    assert isinstance(Decoder().value(member_row(pickled(data))), Opaque)


@pytest.mark.timeout(20)
def test_values_of_many_levels_are_shown_as_bytes() -> None:
    value: Any = []
    for _ in range(900):
        value = [value]
    row = ("m", b"", "", msgpack.packb(value), "msgpack", False, 0, 0, 0, (1, 0, 1, 1))
    decoded = Decoder().value(row)
    assert isinstance(decoded, Opaque)
    json.dumps(plain(decoded))
    text(decoded)


@pytest.mark.parametrize(
    "number",
    [10**5000, -(10**5000), {10**5000: [10**5000]}],
    ids=["positive", "negative", "inside"],
)
def test_a_number_of_thousands_of_digits_is_hexadecimal(number: Any) -> None:
    """Python refuses to print it in decimal digits, so it would end `dump`, `export` and
    `query`."""
    assert hex(10**5000) in text(number)
    assert hex(10**5000) in json.dumps(plain(number))


def test_large_plain_values_are_still_shown() -> None:
    value = [{"name": "x" * 1000, "numbers": list(range(100))} for _ in range(1000)]
    row = ("m", b"", "", msgpack.packb(value), "msgpack", False, 0, 0, 0, (1, 0, 1, 1))
    assert Decoder().value(row) == value
    same = ("a", 1)
    assert Decoder().value(
        member_row(pickled(pickle.dumps([{"k": "v"}, {"k": "v"}, same], 0)))
    ) == [{"k": "v"}, {"k": "v"}, same]


@every(13)
@pytest.mark.parametrize(
    "content", [b"a = " + b"[" * 100_000, b"a = " + b"9" * 5000, b"\xff\x1b[2J"], ids=len
)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("imap-wal.toml", ["ls", "."]),
        ("c.toml", ["agent", "--config", "c.toml"]),
        ("c.toml", ["--credentials", "c.toml", "ls", "."]),
    ],
)
def test_a_file_that_cannot_be_parsed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: list[str], content: bytes
) -> None:
    """For example settings of the current folder with 100,000 levels."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).touch(0o600)
    (tmp_path / name).write_bytes(content)
    printed, code = on_a_terminal(*words)
    assert code == 2 and name in printed, printed
    assert "not TOML" in printed or "not UTF-8" in printed, printed


def test_settings_of_the_current_folder_are_announced(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert "imap-wal.toml" not in CliRunner().invoke(group, ["ls", log]).stderr
    (tmp_path / "imap-wal.toml").write_text(f'url = "{log}"\n')
    ended = CliRunner().invoke(group, ["ls"])
    assert ended.exit_code == 0
    assert "settings from imap-wal.toml of the current folder" in ended.stderr
    assert (
        "settings from" not in CliRunner().invoke(group, ["--config", "imap-wal.toml", "ls"]).stderr
    )
