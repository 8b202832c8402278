"""A mistake: one key id is used for two keys. Each node could read only its own entries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal import log
from imap_wal.clock import SystemRandomness
from imap_wal.context import Context, open_context
from imap_wal.errors import EncryptionError
from imap_wal.inspect.inventory import looks_at
from imap_wal.manifest.node import NodeManifestLog
from imap_wal.read.cluster import ClusterLog
from imap_wal.repair.cluster import ClusterRepair
from imap_wal.repair.report import SALVAGE
from imap_wal.retention.archive import archive_sealed
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.plan import Result, RewritePlan
from imap_wal.rewrite.run import rewrite
from imap_wal.security.encryption import check_value
from imap_wal.segment.reader import SegmentReader
from storage_backends import SegmentStore, open_store
from storage_backends.gated import GatedStore
from tests.agent.harness import config, plugin, serving
from tests.cli.conftest import Run, run
from tests.encrypted import key, key_file, key_ring, keyed, other
from tests.kit.encrypted_maps import content
from tests.support import IDENTITY, overwrite, segments

__all__ = ["run"]


@pytest.fixture
def place(tmp_path: Path) -> str:
    """One node has written, with the key a."""
    found = str(tmp_path / "root")
    with imap_wal.open(
        found, node="n1", encryption_keys=key_file(tmp_path, "a"), shared=True
    ) as store:
        store.map("orders")["k"] = "v"
    return found


def everything(place: str) -> dict[str, bytes]:
    store = open_store(place)
    return {file.path: store.read(file.path) for file in store.list("")}


OPENS: dict[str, Callable[[str, str], Any]] = {
    "the same node": lambda place, keys: imap_wal.open(
        place, node="n1", encryption_keys=keys, shared=True
    ),
    "another node": lambda place, keys: imap_wal.open(
        place, node="n2", encryption_keys=keys, shared=True
    ),
    "a log of records": lambda place, keys: log.create(
        place, cluster="embedded", node="n2", encryption_keys=keys
    ),
}


@pytest.mark.parametrize("opens", OPENS)
@pytest.mark.parametrize(
    "keys",
    [(other("a"),), ("b", other("a")), ("plain", other("a"))],
    ids=["writes", "reads", "reads beside plain"],
)
def test_an_open_with_another_key_writes_nothing(
    place: str, tmp_path: Path, opens: str, keys: tuple[str, ...]
) -> None:
    """The cluster knows the id with another key, so the open is refused."""
    before = everything(place)
    with pytest.raises(
        EncryptionError, match="key given for id 'a' is not the one that this cluster has"
    ) as raised:
        OPENS[opens](place, key_file(tmp_path, *keys))
    assert (raised.value.key_id, raised.value.file) == ("a", "default/embedded/manifest")
    assert everything(place) == before


def test_an_agent_with_another_key_does_not_start(tmp_path: Path) -> None:
    """The cluster knows the id with another key, and nothing is written."""
    first = config(tmp_path, encryption_keys=key_file(tmp_path, "a"))
    with serving(first), plugin(first) as member:
        assert member.put(a="1")[0] == "ack"
    before = everything(first.url)
    with (
        pytest.raises(EncryptionError, match="is not the one that this cluster has"),
        serving(config(tmp_path, node="n2", encryption_keys=key_file(tmp_path, other("a")))),
    ):
        pass
    assert everything(first.url) == before


def test_of_two_keys_with_one_id_one_wins(tmp_path: Path) -> None:
    """The cluster's manifest is published by compare-and-swap, so the second open sees the first
    key."""
    place = str(tmp_path / "root")
    opened = imap_wal.open(place, node="n1", encryption_keys=key_file(tmp_path, "a"), shared=True)
    with opened, pytest.raises(EncryptionError):
        imap_wal.open(place, node="n2", encryption_keys=key_file(tmp_path, other("a")), shared=True)


def test_an_open_log_keeps_its_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A new key under a known id is not used, and there is a warning."""
    place, source = str(tmp_path / "root"), key_file(tmp_path, "a")
    file = Path(source.removeprefix("file:"))
    with imap_wal.open(place, encryption_keys=source, segment_bytes=2048) as store:
        store.map("orders")["first"] = "v"
        file.write_text(f"{other('a')}")
        for number in range(50):
            store.map("orders")[str(number)] = "v" * 50
    assert (
        "continues to write with the earlier keys" in caplog.text
        and "the key given for id 'a'" in caplog.text
    )
    assert len(segments(open_store(place))) > 1
    file.write_text(key("a"))
    with imap_wal.open(place, encryption_keys=source) as store:
        assert len(store.map("orders")) == 51


def test_the_manifest_has_a_check_value_of_each_key(tmp_path: Path) -> None:
    """The key itself is not in it."""
    place, source = str(tmp_path / "root"), key_file(tmp_path, "a")
    with imap_wal.open(place, encryption_keys=source, segment_bytes=2048) as store:
        store.map("orders")["first"] = "v"
        Path(source.removeprefix("file:")).write_text(f"{key('b')}\n{key('a')}")
        for number in range(50):
            store.map("orders")[str(number)] = "v" * 50
    manifests = "".join(
        data.decode()
        for path, data in content(place).items()
        if path.startswith("default/embedded/manifest/")
    )
    for name in "ab":
        secret = key_ring(name).keys[name]
        assert check_value(secret) in manifests and secret.hex() not in manifests
    ids = {
        SegmentReader(open_store(place), path).header.key_id for path in segments(open_store(place))
    }
    assert ids == {"a", "b"}


@pytest.mark.parametrize("command", [("rewrite",), ("archive",), ("repair", "--to", "{copy}")])
def test_no_command_writes_with_another_key(
    place: str, tmp_path: Path, run: Run, command: tuple[str, ...]
) -> None:
    """The cluster knows the id with another key: the command ends with an error."""
    before = content(place)
    words = [word.format(copy=tmp_path / "copy") for word in command[1:]]
    done = run("--encryption-keys", key_file(tmp_path, "b", other("a")), command[0], place, *words)
    assert done.code == 1 and "is not the one that this cluster has" in done.err, done.err
    assert content(place) == before


def test_verify_and_doctor_name_an_id_with_another_key(
    place: str, tmp_path: Path, run: Run
) -> None:
    """They name the cluster's manifest."""
    given = ["--encryption-keys", key_file(tmp_path, other("a"))]
    done = run(*given, "verify", place, "-o", "json")
    assert done.code == 3
    found = [
        each
        for each in done.json["files"]
        if "the key given for id 'a' is not the one" in each["what"]
    ]
    assert [each["file"].rpartition("/")[0] for each in found] == ["default/embedded/manifest"]
    assert "the key given for id 'a' is not the one" in run(*given, "doctor", place).out.replace(
        "\n", " "
    ).replace("  ", " ")
    assert run("--encryption-keys", key_file(tmp_path, "a"), "verify", place).code == 0


def test_a_repaired_copy_knows_the_keys_of_the_log(place: str, tmp_path: Path, run: Run) -> None:
    copy = str(tmp_path / "copy")
    assert (
        run("--encryption-keys", key_file(tmp_path, "b", "a"), "repair", place, "--to", copy).code
        == 0
    )
    for name in "ab":
        with pytest.raises(EncryptionError, match=f"'{name}' is not the one"):
            imap_wal.open(copy, node="n2", encryption_keys=key_file(tmp_path, other(name)))


class Replacing(GatedStore):
    """A storage at which the file of keys is replaced when a segment or a Parquet file is read."""

    def __init__(self, inner: SegmentStore, keys: Path) -> None:
        super().__init__(inner)
        self._keys = keys

    def there(self, path: str = "") -> SegmentStore:
        if path.endswith((".wal", ".parquet")):
            self._keys.write_text(other("a"))
        return self.inner


def archive(context: Context) -> None:
    randomness = SystemRandomness()
    nodes = NodeManifestLog(Context(context.store, randomness=randomness), IDENTITY.node_folder)
    archive_sealed(context, IDENTITY.node_folder, "n1", nodes)


def rewrite_all(context: Context) -> None:
    rewrite(ClusterLog(context, "default", "embedded"), LocalEngine())


@pytest.mark.parametrize("run_it", [archive, rewrite_all])
def test_a_run_uses_the_keys_that_it_compared(
    tmp_path: Path, run_it: Callable[[Context], None]
) -> None:
    """The file of keys is replaced while an archive or a rewrite runs."""
    place, source = str(tmp_path / "root"), key_file(tmp_path, "a")
    with imap_wal.open(place, node="n1", encryption_keys=source) as store:
        store.map("orders")["k"] = "v"
    file = Path(source.removeprefix("file:"))
    context = open_context(place, keys=source)
    run_it(context.on(Replacing(context.store, file)))
    assert file.read_text() == other("a")
    file.write_text(key("a"))
    with imap_wal.open(place, node="n1", encryption_keys=source) as store:
        assert dict(store.map("orders")) == {"k": "v"}
    assert any(each.endswith(".parquet") for each in everything(place))


def test_a_copy_has_the_keys_that_the_repair_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of keys is replaced while a repair rewrites a damaged archive."""
    monkeypatch.setattr("imap_wal.parquet.archive_rows.GROUP_ROWS", 1)
    place, source = str(tmp_path / "root"), key_file(tmp_path, "a")
    with imap_wal.open(place, node="n1", encryption_keys=source) as opened:
        for name in "klm":
            opened.map("orders")[name] = "v"
    context = open_context(place, keys=source)
    store = context.store
    archive(context)
    (path,) = [each for each in everything(place) if each.endswith(".parquet")]
    content = store.read(path)
    overwrite(store, path, content[:40] + bytes([content[40] ^ 1]) + content[41:])
    file, copy = Path(source.removeprefix("file:")), str(tmp_path / "copy")
    (view,) = looks_at(Context(store))
    repair = ClusterRepair(context, view, SALVAGE, lambda _: True, lambda _: None)
    repair.plan()
    file.write_text(other("a"))
    repair.write(open_store(copy))
    file.write_text(key("a"))
    with imap_wal.open(copy, node="n1", encryption_keys=source) as opened:
        assert dict(opened.map("orders")) == {"l": "v", "m": "v"}


class OtherKeys(LocalEngine):
    """An engine whose workers read another file of keys."""

    def run(self, job: RewritePlan, log: ClusterLog) -> Result:
        context = keyed(log.store, "b", "a")
        return super().run(job, ClusterLog(context, log.namespace, log.cluster))


def test_files_of_workers_with_another_key_are_not_published(place: str, tmp_path: Path) -> None:
    """A worker of Spark may read another file of keys than the process that publishes."""
    context = open_context(place, keys=key_file(tmp_path, "a"))
    log_of_all = ClusterLog(context, "default", "embedded")
    with pytest.raises(EncryptionError, match="its key is missing"):
        rewrite(log_of_all, OtherKeys())
    assert not log_of_all.manifest().snapshots
