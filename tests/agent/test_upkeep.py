"""An agent knows when its log was last compacted and backed up, by whichever process."""

from __future__ import annotations

from pathlib import Path

from imap_wal.backup.age import ended_ms
from imap_wal.context import open_context
from imap_wal.read.cluster import ClusterLog
from storage_backends import open_store
from tests.agent.harness import config, plugin, serving
from tests.cli.conftest import Run, run
from tests.support import eventually

__all__ = ["run"]


def test_an_agent_shows_the_age_of_snapshots_and_backups(run: Run, tmp_path: Path) -> None:
    settings = config(tmp_path, lifetime_timeout_s=1)
    with serving(settings) as agent, plugin(settings) as member:
        assert member.put(a="1")[0] == "ack"
        now = agent.snapshot()
        assert (now.compaction_age_s, now.backup_age_s) == (None, None)
        assert run("rewrite", settings.url).code == 0
        assert run("backup", settings.url, str(tmp_path / "backups")).code == 0
        eventually(lambda: agent.snapshot().backup_age_s is not None, "the backup is seen")
        ages = agent.snapshot()
        assert ages.compaction_age_s is not None and ages.backup_age_s is not None
        assert 0 <= ages.backup_age_s <= ages.compaction_age_s < 600


def test_only_the_newest_whole_backup_is_recorded(run: Run, tmp_path: Path) -> None:
    """A user who may only read the log makes backups too."""
    settings = config(tmp_path)
    log = ClusterLog(open_context(settings.url), "default", "c")
    with serving(settings), plugin(settings) as member:
        assert member.put(a="1")[0] == "ack"
    target = str(tmp_path / "backups")
    assert run("backup", settings.url, target).code == 0
    first = ended_ms(log)
    assert run("backup", settings.url, target).code == 0
    newest = ended_ms(log)
    assert newest > first > 0
    assert len(open_store(settings.url).list("default/c/backed-up")) == 1
    (segment,) = (tmp_path / "log/default/c/nodes/n1/wal").glob("*.wal")
    data = bytearray(segment.read_bytes())
    data[-9] ^= 1
    segment.write_bytes(data)
    damaged = run("backup", settings.url, target)
    assert (damaged.code, ended_ms(log)) == (3, newest)
