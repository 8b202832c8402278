"""The arguments of `open`: folders in all common forms, and names of nodes."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal.errors import (
    Fenced,
    ImapWalError,
    InvalidSetting,
    NotSerializable,
    OutcomeUnknown,
    StorageUnavailable,
    WriterLocked,
)
from imap_wal.log import LogReader
from storage_backends import Unavailable
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore, forget
from tests.kit import disks
from tests.support import contents, copy_files, embedded


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.mark.parametrize("url", ["~/maps", "file://~/maps", Path("~/maps"), Path("~") / "maps"])
def test_a_tilde_is_the_home_folder(home: Path, url: Any) -> None:
    with imap_wal.open(url) as store:
        store.map("m")["a"] = 1
    assert (home / "maps" / "default" / "embedded").is_dir()
    assert not (home.parent / "~").exists()
    with imap_wal.open(home / "maps") as store:
        assert store.map("m")["a"] == 1
    with imap_wal.open(f"file://{home}/maps") as store:
        assert store.map("m")["a"] == 1


def test_wal_dir_takes_a_path_and_root_records_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`wal_dir` takes a path, and the root records it with the home folder resolved."""
    with imap_wal.open(home / "root", wal_dir=Path("~/fast")) as store:
        store.map("m")["a"] = 1
    assert list((home / "fast").rglob("*.wal"))
    assert str(home / "fast") in (home / "root" / "wal_dir.json").read_text()
    with imap_wal.log.create(home / "log", wal_dir=home / "fast-log") as log:
        log.append("m", (b"k", b"v"))
    assert list((home / "fast-log").rglob("*.wal"))


def test_a_home_folder_that_is_not_there_is_refused(home: Path) -> None:
    with pytest.raises(StorageUnavailable, match="no such home folder"):
        imap_wal.open("~nobody-of-that-name/maps")
    assert not list(home.parent.glob("~*"))


def test_asyncio_and_the_log_take_a_path_too(home: Path) -> None:
    async def work() -> None:
        async with imap_wal.aopen(Path("~/maps")) as store:
            await store.map("m").set("a", 1)

    asyncio.run(work())
    with imap_wal.log.create(Path("~/log")) as log:
        log.append("m", (b"k", b"v"))
    with imap_wal.log.open(home / "log") as log:
        assert [record.entry.key for record in log.read()] == [b"k"]
    assert [record.entry.key for record in LogReader(home / "log").read()] == [b"k"]
    assert (home / "maps").is_dir()


def test_empty_url_is_refused_with_advice(home: Path) -> None:
    """An empty URL is refused, and the error says what to pass."""

    async def aopen() -> None:
        async with imap_wal.aopen(""):
            pass

    for use in (
        lambda: imap_wal.open(""),
        lambda: asyncio.run(aopen()),
        lambda: imap_wal.log.create(""),
        lambda: imap_wal.log.open(""),
        lambda: LogReader(""),
    ):
        with pytest.raises(InvalidSetting, match="pass a folder or a URL"):
            use()
    with pytest.raises(InvalidSetting, match=r"takes text or a pathlib\.Path"):
        imap_wal.open(b"maps")  # type: ignore[arg-type]
    assert not list(home.parent.iterdir())


def test_node_is_named_embedded_and_host_logs_are_read(
    memory: MemoryStore,
) -> None:
    """The node is called `embedded` on every host, and logs under a host name are still read."""
    options: dict[str, Any] = {"storage": memory, "preallocate": False}
    with imap_wal.open(
        memory.url, node="some-host", **options
    ) as store:  # as versions before this one named it
        store.map("m").update({"kept": 1, "changed": 1, "deleted": 1})
    for _ in range(2):
        with imap_wal.open(memory.url, **options) as store:
            m = store.map("m")
            m["changed"] = 2
            m.pop("deleted", None)
            assert dict(m) == {"kept": 1, "changed": 2}
    assert sorted(memory.folders("default/embedded/nodes")) == ["embedded", "some-host"]


def test_locked_log_error_does_not_advise_another_log(memory: MemoryStore) -> None:
    with (
        imap_wal.open(memory.url, storage=memory),
        pytest.raises(
            WriterLocked, match=r"'embedded'.*stop that process, or .*takeover=True"
        ) as refused,
    ):
        imap_wal.open(memory.url, storage=memory)
    assert "another node name" not in str(refused.value)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB: a quarter of a segment."""
    with disks.needed_disk(tmp_path / "disk", 16) as disk:
        yield disk


@pytest.mark.skipif(sys.platform != "linux", reason="tmpfs is of Linux")
def test_small_disk_takes_puts_and_is_freed_at_close(
    small_disk: Path,
) -> None:
    """A disk smaller than a segment accepts puts, and all reserved space is freed at the end."""
    with imap_wal.open(small_disk / "log") as store:  # segments of 64 MiB
        m = store.map("m", raw=True)
        m[b"first"] = b"1"
        (small_disk / "others").write_bytes(
            bytes(2 * 1024 * 1024)
        )  # other programs can still write to this disk
        for number in range(40):
            m[b"k"] = bytes(200 * 1024) + b"%d" % number
    used = sum(
        file.stat().st_blocks * 512 for file in (small_disk / "log").rglob("*") if file.is_file()
    )
    assert used < 9 * 1024 * 1024, "what was reserved and not written is free again"
    with imap_wal.open(small_disk / "log") as store:
        assert store.map("m", raw=True)[b"first"] == b"1"


@pytest.mark.parametrize("url", [None, 5, "  ", "\t", b"maps"])
def test_root_that_is_no_folder_or_url_is_refused(home: Path, url: Any) -> None:
    """A root that is no folder or URL is refused, and nothing is created."""
    for use in (imap_wal.open, imap_wal.log.create, imap_wal.log.open, LogReader):
        with pytest.raises(InvalidSetting, match="url is"):
            use(url)
    assert not list(home.parent.iterdir())


@pytest.mark.parametrize("below", ["", "/maps"])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_file_in_the_place_of_the_root_is_named(tmp_path: Path, below: str, scheme: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageUnavailable, match=rf"{tmp_path}/file is not a folder"):
        imap_wal.open(f"{scheme}{tmp_path}/file{below}")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"durabilty": "os"}, "did you mean durability?"),
        ({"namspace": "x"}, "did you mean namespace?"),
        ({"segment_size": 1}, "did you mean segment_bytes?"),
        ({"zzz": 1}, "the known names are archive_interval_s, "),
    ],
)
def test_the_error_for_a_mistyped_setting_has_the_nearest_name(
    memory: MemoryStore, given: dict[str, Any], meant: str
) -> None:
    for use in (imap_wal.open, imap_wal.log.create, imap_wal.log.open):
        with pytest.raises(InvalidSetting) as refused:
            use(memory.url, storage=memory, **given)
        assert f"there is no setting {next(iter(given))!r}; {meant}" in str(refused.value)


@pytest.mark.parametrize("ttl", ["5", True, 0, -1, float("nan"), float("inf"), 1e20, b"5"])
def test_an_invalid_ttl_is_refused_and_nothing_changes(memory: MemoryStore, ttl: Any) -> None:
    with imap_wal.open(memory.url, storage=memory, preallocate=False) as store:
        m = store.map("m")
        for change in (lambda: m.put("a", 1, ttl=ttl), lambda: m.update({"a": 1}, ttl=ttl)):
            with pytest.raises(InvalidSetting, match="it takes a number of seconds, more than 0"):
                change()
        assert dict(m) == {}


LONG = {"letters": "m" * 256, "dots": "a.b" * 52, "emoji": "🙂" * 22}


@pytest.mark.parametrize("name", LONG.values(), ids=LONG)
def test_a_name_that_cannot_be_a_folder_name_is_refused(
    memory: MemoryStore, tmp_path: Path, name: str
) -> None:
    too_long = name * 20
    with imap_wal.open(tmp_path) as store:
        with pytest.raises(
            InvalidSetting, match=r"the name of a map takes \d+ bytes of UTF-8; at most 1024"
        ):
            store.map(too_long)
        assert store.maps() == []
    for what in ("namespace", "cluster", "node"):
        named: dict[str, Any] = {what: name}
        for use in (imap_wal.open, imap_wal.log.create, imap_wal.log.open):
            with pytest.raises(InvalidSetting, match=f"the name of a {what} takes"):
                use(memory.url, storage=memory, **named)
    with (
        imap_wal.log.create(memory.url, storage=memory) as log,
        pytest.raises(InvalidSetting, match="the name of a map"),
    ):
        log.append(too_long, (b"k", b"v"))


def test_the_longest_names_are_archived_and_read_again(tmp_path: Path) -> None:
    names = ["m" * 1024, "." * 1024, "🙂" * 256]
    for _ in range(2):
        with imap_wal.open(
            tmp_path, namespace="n" * 255, cluster="c" * 255, node="o" * 255
        ) as store:
            for name in names:
                m = store.map(name)
                m["count"] = m.get("count", 0) + 1
            assert store.archive() == 3
    with imap_wal.open(tmp_path, namespace="n" * 255, cluster="c" * 255, node="o" * 255) as store:
        assert [store.map(name)["count"] for name in names] == [2, 2, 2]


@pytest.mark.parametrize("name", [5, b"m", ("m",)])
def test_a_map_name_that_is_no_text_is_refused(memory: MemoryStore, name: Any) -> None:
    with (
        imap_wal.open(memory.url, storage=memory, preallocate=False) as store,
        pytest.raises(InvalidSetting, match="it takes text"),
    ):
        store.map(name)


@pytest.mark.parametrize("given", ["json", 1, imap_wal.RawSerializer])
def test_what_is_not_a_serializer_is_refused(tmp_path: Path, given: Any) -> None:
    """Before an entry is read with it."""
    with imap_wal.open(tmp_path) as store:
        store.map("m")["a"] = 1
        with pytest.raises(InvalidSetting, match=r"serializer is .*; it takes an object"):
            store.map("other", serializer=given)
    with pytest.raises(InvalidSetting, match=r"serializer is .*; it takes an object"):
        imap_wal.open(tmp_path, serializer=given)
    with imap_wal.open(tmp_path, serializer=imap_wal.MsgpackSerializer()) as store:
        assert dict(store.map("m")) == {"a": 1}


@pytest.mark.parametrize("name", ["takeover", "shared"])
def test_text_flag_is_refused_without_a_takeover(tmp_path: Path, name: str) -> None:
    """A flag that is a text is refused, and fences no store."""
    with imap_wal.open(tmp_path) as store:
        store.map("m")["a"] = 1
        with pytest.raises(InvalidSetting, match=f"{name} is 'no'; it takes True or False"):
            flag: dict[str, Any] = {name: "no"}
            imap_wal.open(tmp_path, **flag)
        store.map("m")["b"] = 2


@pytest.mark.parametrize("begin", [imap_wal.open, imap_wal.log.create])
@pytest.mark.parametrize(
    "left", ["snapshots", "another node's segments", "its own segments", "its registration"]
)
def test_a_refused_open_leaves_no_file_or_folder(tmp_path: Path, left: str, begin: Any) -> None:
    """It left an empty folder of a node that never began."""
    where: dict[str, Any] = {"cluster": "c", "node": "n2"}
    with imap_wal.log.create(
        tmp_path, cluster="c", node="n1" if left == "another node's segments" else "n2"
    ) as log:
        log.append("m", (b"k", b"v"))
    cluster = tmp_path / "default/c"
    if left == "snapshots":
        (cluster / "snapshot/m/00000001").mkdir(parents=True)
        (cluster / "snapshot/m/00000001/part.parquet").write_bytes(b"")
        shutil.rmtree(cluster / "nodes")
    if left == "its registration":
        shutil.rmtree(cluster / "nodes")
    else:
        shutil.rmtree(cluster / "manifest")
        for folder in cluster.glob("nodes/*/manifest"):
            shutil.rmtree(folder)
    for lock in cluster.glob("nodes/*/writer.lock"):
        lock.unlink()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ImapWalError):
        begin(tmp_path, **where)
    assert sorted(tmp_path.rglob("*")) == before


LONE = "a\ud800b"


@pytest.mark.parametrize("begin", [imap_wal.open, imap_wal.log.create])
@pytest.mark.parametrize("name", ["namespace", "cluster", "node"])
def test_a_name_with_a_lone_surrogate_is_refused_and_named(
    tmp_path: Path, name: str, begin: Any
) -> None:
    with pytest.raises(InvalidSetting, match=rf"the name of a {name}: .*U\+D800, at character 1"):
        begin(tmp_path, **{name: LONE})
    for what, options in (("url", {}), ("wal_dir", {"wal_dir": f"{tmp_path}/{LONE}"})):
        with pytest.raises(InvalidSetting, match=rf"^{what}: .*U\+D800"):
            begin(tmp_path if options else f"{tmp_path}/{LONE}", **options)
    assert not list(tmp_path.iterdir())


def test_a_folder_whose_name_is_no_utf8_is_opened(tmp_path: Path) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    with imap_wal.open(folder) as store:
        store.map("m")["a"] = 1
    with imap_wal.open(folder) as store:
        assert dict(store.map("m")) == {"a": 1}


def test_lone_surrogate_is_an_error_of_the_library(
    tmp_path: Path,
) -> None:
    """A key, value or map name with a lone surrogate is an error of the library. It was a bare
    UnicodeEncodeError, or one that is no ValueError."""
    with imap_wal.open(tmp_path) as store, imap_wal.log.create(tmp_path / "log") as log:
        m = store.map("m")
        for named in (lambda: store.map(LONE), lambda: log.append(LONE, (b"k", b"v"))):
            with pytest.raises(
                InvalidSetting, match=r"the name of a map: .*U\+D800, at character 1"
            ):
                named()
        for change in (
            lambda: m.put(LONE, 1),
            lambda: m.put("a", LONE),
            lambda: m.put("a", {"b": [LONE]}),
            lambda: m.update({LONE: 1}),
            lambda: m.setdefault(LONE, 1),
        ):
            with pytest.raises(NotSerializable, match=r"U\+D800, at character 1") as refused:
                change()
            assert isinstance(refused.value, ValueError)
        for read in (lambda: m.pop(LONE), lambda: m[LONE]):
            with pytest.raises(KeyError):
                read()
        m["a"] = 1
        assert dict(m) == {"a": 1}

    async def work() -> None:
        async with imap_wal.aopen(tmp_path) as store:
            with pytest.raises(InvalidSetting, match=r"U\+D800"):
                store.map(LONE)
            m = store.map("m")
            for change in (
                lambda: m.set(LONE, 1),
                lambda: m.set("a", LONE),
                lambda: m.update({LONE: 1}),
            ):
                with pytest.raises(NotSerializable, match=r"U\+D800"):
                    await change()
            await m.delete(LONE)
            assert await m.pop(LONE, None) is None
            await m.set("b", 2)
            assert m.get("a") == 1

    asyncio.run(work())


@pytest.mark.parametrize(
    ("below", "what"),
    [
        ("default", "is the folder of one namespace; pass the root, one level up"),
        ("default/embedded", "is the folder of one cluster; pass the root, two levels up"),
        ("default/embedded/nodes/embedded", "is the folder of one node; pass the root, four"),
    ],
)
def test_a_folder_of_a_log_is_no_root(tmp_path: Path, below: str, what: str) -> None:
    """The map would look empty, and another log would begin inside of this one."""
    with imap_wal.open(tmp_path) as store:
        store.map("orders")["a"] = 1
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidSetting, match=f"{below} {what}"):
        imap_wal.open(tmp_path / below)
    assert sorted(tmp_path.rglob("*")) == before
    with imap_wal.open(tmp_path, node="another") as store:
        assert store.map("orders")["a"] == 1


def test_clusters_and_namespaces_may_have_names_of_folders(tmp_path: Path) -> None:
    for namespace, cluster in (("manifest", "wal"), ("wal", "archive"), ("nodes", "nodes")):
        with imap_wal.open(tmp_path, namespace=namespace, cluster=cluster) as store:
            store.map("orders")["a"] = namespace
    for node in ("embedded", "another"):
        with imap_wal.open(tmp_path, node=node, namespace="nodes", cluster="nodes") as store:
            assert store.map("orders")["a"] == "nodes"


def test_clusters_may_have_the_names_of_a_clusters_folders(tmp_path: Path) -> None:
    """Their namespace looked like a cluster, and no further log could begin in the root."""
    for cluster in ("nodes", "manifest", "another"):
        with imap_wal.open(tmp_path, cluster=cluster) as store:
            store.map("orders")["a"] = cluster
    with imap_wal.open(tmp_path, namespace="other", cluster="nodes"):
        pass


@pytest.mark.parametrize("url", ["file://{}/maps", "objects+file://{}/maps"])
def test_another_node_name_does_not_fence_a_running_writer(tmp_path: Path, url: str) -> None:
    url = url.format(tmp_path)
    with imap_wal.open(url) as store:
        m = store.map("m")
        m["a"] = 1
        for _ in range(2):
            with pytest.raises(
                WriterLocked, match=r"'embedded' is being written by .*takeover=True.*shared=True"
            ) as refused:
                imap_wal.open(url, node="other")
            who = rf"\(process {os.getpid()} on \S+, since 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ\)$"
            assert refused.value.node == "embedded" and re.search(who, refused.value.holder)
        m["a"] = 2
        with imap_wal.open(url, node="other", takeover=True) as other:
            assert other.map("m")["a"] == 2
            with pytest.raises((Fenced, OutcomeUnknown)):
                m["a"] = 3
        with suppress(Fenced):
            store.close()


def test_a_writer_that_died_does_not_refuse_another_node(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        store.map("m")["a"] = 1
        left = copy_files(memory)
    with imap_wal.open("memory://", storage=left, node="other") as other:
        assert other.map("m")["a"] == 1


def test_a_node_joins_a_log_that_is_inside_of_another(tmp_path: Path) -> None:
    with imap_wal.open(tmp_path / "default" / "embedded") as store:
        store.map("orders")["a"] = 1
    with imap_wal.open(tmp_path) as store:
        assert "a" not in store.map("orders")
    with imap_wal.open(tmp_path / "default" / "embedded", node="n2") as store:
        assert store.map("orders")["a"] == 1


@pytest.mark.parametrize("unreadable", ["", "private", "private/nodes"])
def test_a_root_may_have_folders_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unreadable: str
) -> None:
    """They are of other programs. Or an agent may list its own folder only."""
    (tmp_path / "private" / "nodes").mkdir(parents=True)
    folders = LocalStore.folders

    def refused(self: LocalStore, folder: str) -> list[str]:
        if folder == unreadable or folder.startswith(f"{unreadable}/"):
            raise Unavailable("Permission denied", folder)
        return folders(self, folder)

    monkeypatch.setattr(LocalStore, "folders", refused)
    with imap_wal.open(tmp_path) as store:
        store.map("orders")["a"] = 1


# ---- a store that was never closed ----


def test_a_store_that_was_never_closed_warns(memory: MemoryStore) -> None:
    store = embedded(memory)
    m = store.map("m")
    m["a"] = 1
    with pytest.warns(ResourceWarning, match="was never closed") as warned:
        del store
    assert memory.url in str(warned[0].message)
    m["b"] = 2  # the map still works
    assert contents(memory) == {"a": 1, "b": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with embedded(MemoryStore()) as store:
            pass
        del store
        gc.collect()


def test_memory_without_a_name_is_private() -> None:
    with imap_wal.open("memory://") as one, imap_wal.open("memory://") as other:
        one.map("m")["a"] = 1
        assert len(other.map("m")) == 0
    for number in range(2):
        with imap_wal.open("memory://test-shared-name") as store:
            assert len(store.map("m")) == number
            store.map("m")[number] = number
    forget("test-shared-name")
