"""A file that is read again when it has changed."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from imap_wal.agent.access import keys
from imap_wal.errors import EncryptionError, InvalidSetting
from imap_wal.security.encryption_keys import Keys
from imap_wal.worker import Watched
from tests.support import FakeClock


class Source:
    """A file whose reading can fail or wait."""

    def __init__(self, path: Path) -> None:
        self.path, self.fails, self.reads = path, False, 0
        self.errors: list[str] = []
        self.entered, self.leave = threading.Event(), threading.Event()
        self.leave.set()

    def read(self) -> str:
        self.reads += 1
        self.entered.set()
        assert self.leave.wait(20)
        if self.fails:
            raise InvalidSetting("too many open files")
        return self.path.read_text()

    def watched(self) -> Watched[str]:
        return Watched(self.path, self.read, lambda error: self.errors.append(str(error)))


@pytest.fixture
def source(tmp_path: Path) -> Source:
    path = tmp_path / "file"
    path.write_text("one")
    return Source(path)


def test_a_file_is_read_again_only_when_it_has_changed(source: Source) -> None:
    watched = source.watched()
    assert [watched.look(), watched.look(), source.reads] == ["one", "one", 1]
    source.path.write_text("another")
    assert (watched.last, watched.look(), watched.last) == ("one", "another", "another")


def test_failed_read_is_reported_once_and_retried(
    source: Source,
) -> None:
    """A failed read is reported once, and tried again although the file does not change."""
    watched = source.watched()
    source.path.write_text("another")
    source.fails = True
    assert [watched.look(), watched.look()] == ["one", "one"]
    assert source.errors == ["too many open files"]
    source.fails = False
    assert watched.look() == "another"


def test_a_look_does_not_wait_for_a_slow_read(source: Source) -> None:
    watched = source.watched()
    source.path.write_text("another")
    source.entered.clear()
    source.leave.clear()
    reader = threading.Thread(target=watched.read_again)
    reader.start()
    assert source.entered.wait(20)
    assert watched.look() == "one"
    source.leave.set()
    reader.join()
    assert watched.look() == "another"


def test_a_slow_key_command_does_not_stop_writing(tmp_path: Path) -> None:
    text = "k1:" + "A" * 43 + "="
    fast, pipe = tmp_path / "fast", tmp_path / "pipe"
    fast.write_text(text)
    found = Keys(f"command:cat {fast}")
    fast.unlink()
    os.mkfifo(pipe)
    fast.symlink_to(pipe)  # from now on, the command ends when this test writes the key
    errors: list[EncryptionError] = []

    def find_unknown() -> None:
        try:
            found.find("a file", "k2")
        except EncryptionError as error:
            errors.append(error)

    unknown = threading.Thread(target=find_unknown)
    unknown.start()
    with pipe.open("w") as output:  # opened when the command has begun to read
        assert found.key_ring.active == "k1"
        output.write(text)
    unknown.join()
    assert [error.key_id for error in errors] == ["k2"]


def test_number_of_thousands_of_digits_is_refused(tmp_path: Path) -> None:
    """A file of clients with a number of thousands of digits is refused."""
    path = tmp_path / "clients.toml"
    path.write_text("")
    path.chmod(0o644)
    clients = keys.Clients(str(path), clock := FakeClock())
    path.write_text(f"a = {'9' * 5000}")
    clock.advance(10_000)
    assert "00" not in clients.known()
    with pytest.raises(InvalidSetting, match="not TOML"):
        keys.read_clients(path)
