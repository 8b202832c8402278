"""The sources of keys, and which keys encrypt and decrypt."""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path

import pytest

from imap_wal.errors import EncryptionError, InvalidSetting
from imap_wal.security.encryption_keys import KeyRing, Keys
from imap_wal.settings import Settings
from tests.encrypted import key, key_file, key_ring

SECRET = base64.b64encode(b"\x07" * 32).decode()


def test_the_first_of_a_list_writes_and_all_read() -> None:
    found = KeyRing.parse(f"# made in November\n{key('b')}  # active\n\n{key('a')} plain", "f")
    assert (found.active, list(found.keys), found.allows_plain) == ("b", ["b", "a"], True)
    assert not key_ring("a").allows_plain
    assert key_ring("plain", "a").active == "plain"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no keys"),
        ("# nothing", "has no keys"),
        (SECRET, "item 1 is not a key"),
        (f"a {SECRET}", "item 1 is not a key"),
        (f"plain:{SECRET}", "item 1 is not a key"),
        (f"a/b:{SECRET}", "item 1 is not a key"),
        (f"{'x' * 65}:{SECRET}", "item 1 is not a key"),
        (f"a:{SECRET} a:{SECRET}", "item 2: a is in the list twice"),
        ("plain plain", "item 2: plain is in the list twice"),
        ("a:" + base64.b64encode(b"short").decode(), "has 5 bytes; it must have 32"),
        (f"a:{SECRET}!", "is not base64"),
    ],
)
def test_a_list_that_is_wrong_is_refused_and_not_shown(text: str, said: str) -> None:
    with pytest.raises(InvalidSetting, match=said) as raised:
        KeyRing.parse(text, "the file")
    assert SECRET not in str(raised.value)


def test_neither_a_ring_nor_the_settings_show_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K", f"a:{SECRET}")
    shown = repr(Keys("env:K").key_ring) + repr(Settings(encryption_keys="env:K"))
    assert SECRET not in shown and "\\x07" not in shown
    with pytest.raises(InvalidSetting) as raised:
        Settings(encryption_keys=f"a:{SECRET}")  # the key itself in place of its source
    assert SECRET not in str(raised.value)


def test_keys_are_read_from_a_file_variable_or_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("K", key("a"))
    command = f"{sys.executable} -c 'print(\"{key('a')}\")'"
    for source in (key_file(tmp_path, "a"), "env:K", f"command:{command}"):
        assert Keys(source).find("f", "a") == key_ring("a").keys["a"]


@pytest.mark.parametrize(
    "source",
    [
        "file:/nowhere/keys",
        "env:IMAP_WAL_NO_SUCH_VARIABLE",
        "command:/nowhere/command",
        "command:false",
        "command:unbalanced '",
        "keys.txt",
        "file:",
        "vault:x",
    ],
)
def test_a_source_that_fails_is_named(source: str) -> None:
    with pytest.raises(InvalidSetting, match="encryption_keys"):
        Keys(source)


def test_a_file_that_other_users_can_read_is_refused(tmp_path: Path) -> None:
    source = key_file(tmp_path, "a")
    os.chmod(source.removeprefix("file:"), 0o644)
    with pytest.raises(InvalidSetting, match="other users may open it"):
        Keys(source)


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    source = key_file(tmp_path, "a")
    keys = Keys(source)
    path = Path(source.removeprefix("file:"))
    path.write_text(f"{key('b')}\n{key('a')}\n")
    assert keys.key_ring.active == "b"
    path.write_text("broken")
    assert keys.key_ring.active == "b"
    path.unlink()
    assert keys.key_ring.active == "b"


def test_keys_are_read_again_for_an_unknown_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K", key("a"))
    keys = Keys("env:K")
    with pytest.raises(
        EncryptionError, match="'b', but the keys given are a; add the key"
    ) as raised:
        keys.find("some/file", "b")
    assert (raised.value.file, raised.value.key_id) == ("some/file", "b")
    monkeypatch.setenv("K", f"{key('a')} {key('b')}")
    assert keys.find("some/file", "b") == key_ring("b").keys["b"]
