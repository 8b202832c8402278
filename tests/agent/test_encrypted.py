"""An agent whose log is encrypted."""

from __future__ import annotations

from pathlib import Path

import pytest

from imap_wal.errors import EncryptionError, InvalidSetting
from imap_wal.retention import archiver
from storage_backends import open_store
from tests.agent.harness import config, plugin, serving
from tests.encrypted import key_file, other
from tests.kit.effort import every
from tests.support import eventually

SECRET = "a-value-that-nobody-may-read"


@every(2)
@pytest.mark.parametrize("where", ["this process", "another process"])
def test_members_write_archive_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The agent reads its keys from their source, and so does the process that archives."""
    monkeypatch.setattr(archiver, "HERE_BYTES_MAX", 2**40 if where == "this process" else 0)
    settings = config(tmp_path, encryption_keys=key_file(tmp_path, "a"), archive_interval_s=0.2)
    disk = open_store(str(tmp_path / "log"))

    def archived() -> bool:
        return any(file.path.endswith(".parquet") for file in disk.list(""))

    with serving(settings), plugin(settings) as member:
        for number in range(50):
            member.put(**{f"k{number}": SECRET})
        eventually(archived, "an archive")
    for file in disk.list(""):
        assert SECRET.encode() not in disk.read(file.path), file.path
    again = config(tmp_path, encryption_keys=key_file(tmp_path, "b", "a"))
    with serving(again), plugin(again, cluster_id="cluster-2", uuid="plugin-2") as member:
        assert member.values() == {f"k{number}": SECRET for number in range(50)}
        member.put(more=SECRET)
    for file in disk.list(""):
        assert SECRET.encode() not in disk.read(file.path), file.path


@pytest.mark.parametrize("keys", [("b",), (other("a"),)], ids=["missing", "wrong"])
def test_an_agent_with_the_wrong_keys_does_not_start(tmp_path: Path, keys: tuple[str, ...]) -> None:
    settings = config(tmp_path, encryption_keys=key_file(tmp_path, "a"))
    with serving(settings), plugin(settings) as member:
        member.put(k=SECRET)
    with (
        pytest.raises(EncryptionError, match="'a'"),
        serving(config(tmp_path, encryption_keys=key_file(tmp_path, *keys))),
    ):
        pass
    with pytest.raises(EncryptionError, match="no keys are given"), serving(config(tmp_path)):
        pass
    with (
        pytest.raises(InvalidSetting, match="encryption_keys"),
        serving(config(tmp_path, encryption_keys="file:/nowhere")),
    ):
        pass
    with serving(settings):
        pass
