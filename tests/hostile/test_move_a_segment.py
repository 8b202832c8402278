"""Attack: with access to the storage, and without a key, put a segment of another place into an
encrypted log: with its header unchanged, damaged, or changed to fit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imap_wal import format, layout
from imap_wal.clock import SeededRandomness
from imap_wal.context import Context
from imap_wal.errors import EncryptionError, ImapWalError, LogError
from imap_wal.format import Frame, Home
from imap_wal.inspect.inventory import looks_at
from imap_wal.manifest import key_checks
from imap_wal.manifest.cluster import ClusterManifestLog
from imap_wal.manifest.node import NodeManifestLog
from imap_wal.repair.cluster import ClusterRepair
from imap_wal.repair.report import EMPTIED, POINT_IN_TIME, SALVAGE
from imap_wal.retention.archive import archive_sealed
from imap_wal.segment.reader import SegmentReader
from imap_wal.segment.salvage import scan_segment
from imap_wal.segment.verdict import CLEAN, Place, judge
from imap_wal.write.node_log import SegmentWriter
from storage_backends import SegmentStore
from storage_backends.memory import MemoryStore, forget
from tests.encrypted import key_ring, key_variable, keyed, keys_of
from tests.kit.effort import share
from tests.support import (
    IDENTITY,
    FakeClock,
    copy_files,
    embedded,
    header,
    node_log,
    overwrite,
    row,
    segments,
)

FORGED = "forged"
OTHER_LOG = "00000000-0000-4000-8000-000000000009"


def _flipped(at: int) -> Callable[[bytes, Home], bytes]:
    return lambda data, home: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _renamed(data: bytes, home: Home) -> bytes:
    """The segment with a header that names the place, and has the right checksum."""
    found, end = format.decode_header(data, "donor")
    return found._replace(**home._asdict()).encode() + data[end:]


def _without_end(data: bytes, home: Home) -> bytes:
    """The header's checksum and check value are zeros."""
    _, end = format.decode_header(data, "donor")
    return data[: end - 20] + bytes(20) + data[end:]


CHANGES: dict[str, Callable[[bytes, Home], bytes]] = {
    "as it was": lambda data, home: data,
    "magic": _flipped(3),
    "version": _flipped(8),
    "length": _flipped(10),
    "names": _flipped(34),
    "end of the header": _without_end,
    "names the place": _renamed,
}
VALUES = {
    "namespace": st.sampled_from(["other", "defaulu"]),
    "cluster": st.sampled_from(["other", "embedde"]),
    "node": st.sampled_from(["n2", "n10"]),
    "directory": st.sampled_from([OTHER_LOG, ""]),
    "epoch": st.integers(2, 300),
    "number": st.integers(4, 300),
}


def elsewhere() -> st.SearchStrategy[dict[str, object]]:
    """Fields of another place: one of them differs, or several, or all."""
    return st.sets(st.sampled_from(sorted(VALUES)), min_size=1).flatmap(
        lambda names: st.fixed_dictionaries({name: VALUES[name] for name in names})
    )


def donor(home: Home, key: str = "a") -> bytes:
    """A segment of that place, with two frames; `key`: the log's is "a"."""
    memory = MemoryStore("donor")
    try:
        writer = SegmentWriter(
            memory,
            "x",
            header(**home._asdict(), segment_id=b"\7" * 16),
            randomness=SeededRandomness(9),
            keys=key_ring(key),
        )
        for number in range(2):
            writer.append(format.ENTRIES, 1, [row(f"{FORGED}-{number}", "v", 100 + number)])
            writer.sync()
        writer.seal()
        return memory.read("x")
    finally:
        memory.close()
        forget("donor")


def victim() -> MemoryStore:
    """A log of three segments, whose writer was killed."""
    memory = MemoryStore("victim")
    log = node_log(memory, keys=keys_of("a"))
    for number in range(6):
        log.write(format.ENTRIES, 1, [row(f"own-{number}", "v", number + 1)])
        log.sync()
        if number % 2 and number < 5:
            log.rotate()
    left = copy_files(memory)
    forget("victim")
    return left


def contents_of(store: SegmentStore, recovery: str) -> set[str]:
    """Keys after an open with this recovery mode, in a copy."""
    keys = key_variable("a")
    with embedded(copy_files(store), recovery_mode=recovery, encryption_keys=keys) as opened:
        return {key.decode() for key in opened.map("m", raw=True)}


def repaired(store: SegmentStore, mode: str, key: str = "a") -> MemoryStore:
    (view,) = looks_at(Context(store))
    repair = ClusterRepair(keyed(store, key), view, mode, lambda _: True, lambda _: None)
    repair.plan()
    forget("repaired")
    copy = MemoryStore("repaired")
    repair.write(copy)
    return copy


def keys_after_repair(store: SegmentStore, mode: str) -> set[str]:
    copy = repaired(store, mode)
    found: set[str] = set()
    for path in segments(copy):
        for frame in SegmentReader(copy, path).frames(keys_of("a")):
            if frame.kind == format.ENTRIES:
                found |= {
                    name
                    for name in (*(f"own-{n}" for n in range(6)), f"{FORGED}-0", f"{FORGED}-1")
                    if name.encode() in frame.payload
                }
    return found


@settings(deadline=None)
@given(elsewhere(), st.sampled_from(sorted(CHANGES)))
def test_no_frame_of_another_place_is_read(changes: dict[str, object], change: str) -> None:
    """Neither by a check nor by a salvage."""
    home = header().home
    assert home._replace(**changes) != home  # type: ignore[arg-type]
    forget("moved")
    store = MemoryStore("moved")
    path = "default/embedded/nodes/n1/wal/00000001-00000001.wal"
    store.create(path, CHANGES[change](donor(home._replace(**changes)), home))  # type: ignore[arg-type]
    read: list[Frame] = []
    status = ""
    try:
        status = judge(
            store,
            Place(path, home.directory, home.epoch, home.number),
            read.append,
            keys=keys_of("a"),
        )[0].status
    except EncryptionError:
        pass
    assert not read and status != CLEAN
    try:
        assert not scan_segment(keyed(store, "a"), path, home).frames
    except EncryptionError:
        pass


@settings(max_examples=share(60), deadline=None)
@given(
    elsewhere(),
    st.sampled_from(sorted(CHANGES)),
    st.integers(0, 2),
    st.sampled_from([SALVAGE, POINT_IN_TIME]),
)
def test_a_segment_of_another_place_is_never_used(
    changes: dict[str, object], change: str, which: int, mode: str
) -> None:
    """Restore, archive and repair refuse it."""
    store = victim()
    path = segments(store)[which]
    home = SegmentReader(store, path).header.home
    overwrite(store, path, CHANGES[change](donor(home._replace(**changes)), home))  # type: ignore[arg-type]
    with pytest.raises(ImapWalError):
        archive_sealed(
            keyed(store, "a"),
            IDENTITY.node_folder,
            "n1",
            NodeManifestLog(
                Context(store, clock=FakeClock(), randomness=SeededRandomness(1)),
                IDENTITY.node_folder,
            ),
        )
    for recovery in ("absolute", "torn-tail", "point-in-time"):
        try:
            found = contents_of(store, recovery)
        except (LogError, EncryptionError):
            continue
        assert not any(key.startswith(FORGED) for key in found)
    try:
        kept = keys_after_repair(store, mode)
    except EncryptionError:
        return
    assert not any(key.startswith(FORGED) for key in kept)


@pytest.mark.parametrize(
    "change", [each for each in CHANGES if each not in ("as it was", "names the place")]
)
def test_repair_reads_a_segment_with_a_damaged_header(change: str) -> None:
    """The segment belongs to this place, so its frames count."""
    store = victim()
    path = segments(store)[1]
    home = SegmentReader(store, path).header.home
    overwrite(store, path, CHANGES[change](store.read(path), home))
    assert keys_after_repair(store, SALVAGE) == {f"own-{number}" for number in range(6)}


def test_a_segment_of_a_former_log_does_not_open() -> None:
    """Names, key and numbers are the same; only the log directory differs."""
    store = victim()
    path = segments(store)[2]
    own = SegmentReader(store, path).header.home
    former = donor(own._replace(directory=OTHER_LOG))
    overwrite(store, path, former)
    with pytest.raises(LogError, match="this log has the directory"):
        contents_of(store, "torn-tail")
    overwrite(store, path, CHANGES["names"](former, own))
    copy = repaired(store, SALVAGE)
    assert aside_of(copy) == CHANGES["names"](former, own)
    with embedded(copy, encryption_keys=key_variable("a")) as opened:
        assert sorted(opened.map("m", raw=True)) == [b"own-0", b"own-1", b"own-2", b"own-3"]


@pytest.mark.parametrize("key", ["a", "b"])
@pytest.mark.parametrize("change", ["names", "end of the header", "as it was"])
def test_a_segment_that_was_put_there_stops_no_repair(key: str, change: str) -> None:
    """It comes after the newest one; it was written with the log's key for another place, or with
    the key of another log."""
    store = victim()
    home = SegmentReader(store, segments(store)[-1]).header.home
    home = home._replace(number=home.number + 1)
    strange = CHANGES[change](
        donor(home if key == "b" else home._replace(directory=OTHER_LOG), key), home
    )
    path = layout.wal_path(IDENTITY.node_folder, home.epoch, home.number)
    store.create(path, strange)
    (view,) = looks_at(Context(store))
    repair = ClusterRepair(keyed(store, "a"), view, SALVAGE, lambda _: True, lambda _: None)
    repair.plan()
    (item,) = [each for each in repair.items if each.file == path]
    assert item.action == EMPTIED and item.given_up is not None, item
    assert keys_after_repair(store, SALVAGE) == {f"own-{number}" for number in range(6)}
    if (key, change) != ("a", "as it was"):  # its header says where it is from
        assert "not of this log" in item.what
        assert aside_of(repaired(store, SALVAGE)) == strange


@pytest.mark.parametrize("where", ["after", "far above", "in a later epoch", "in its place"])
@pytest.mark.parametrize("directory", ["", OTHER_LOG])
def test_a_segment_without_encryption_stops_no_repair(where: str, directory: str) -> None:
    """It has the names of this log, and the checksums of its frames are right."""
    store = victim()
    home = SegmentReader(store, segments(store)[-1]).header.home
    home = {
        "after": home._replace(number=home.number + 1),
        "far above": home._replace(number=home.number + 20_000),
        "in a later epoch": home._replace(number=1, epoch=home.epoch + 1),
        "in its place": home._replace(number=2),
    }[where]
    memory = MemoryStore("donor")
    writer = SegmentWriter(
        memory,
        "x",
        header(**home._replace(directory=directory or home.directory)._asdict()),
        randomness=SeededRandomness(9),
    )
    writer.append(format.ENTRIES, 1, [row(f"{FORGED}-0", "v", 100)])
    writer.sync()
    strange = memory.read("x")
    memory.close()
    forget("donor")
    path = layout.wal_path(IDENTITY.node_folder, home.epoch, home.number)
    overwrite(store, path, strange)
    gone = {"own-2", "own-3"} if where == "in its place" else set[str]()
    assert keys_after_repair(store, SALVAGE) == {f"own-{number}" for number in range(6)} - gone
    (view,) = looks_at(Context(store))
    repair = ClusterRepair(keyed(store, "a"), view, SALVAGE, lambda _: True, lambda _: None)
    repair.plan()
    (item,) = [each for each in repair.items if each.file == path]
    assert item.given_up is not None and item.what
    if not directory:
        assert aside_of(repaired(store, SALVAGE)) == strange


def test_a_repair_with_keys_of_a_log_without_encryption_stops() -> None:
    """The keys are the mistake: all segments would be set aside, one after the other."""
    memory = MemoryStore("victim")
    log = node_log(memory)
    log.write(format.ENTRIES, 1, [row("own", "v", 1)])
    log.sync()
    left = copy_files(memory)
    forget("victim")
    clusters = ClusterManifestLog(
        Context(left, clock=FakeClock(), randomness=SeededRandomness(2)), IDENTITY.cluster_folder
    )
    key_checks.enter(key_ring("a"), clusters)
    with pytest.raises(EncryptionError, match="not encrypted"):
        repaired(left, SALVAGE)


def test_a_repair_without_a_key_of_the_log_stops() -> None:
    """The segment that no key opens may be one of the log's own."""
    store = victim()
    path = segments(store)[1]
    overwrite(store, path, CHANGES["names"](store.read(path), header().home))
    with pytest.raises(EncryptionError, match="the keys given are b"):
        repaired(store, SALVAGE, "b")


def aside_of(copy: SegmentStore) -> bytes:
    """The one file that the repair set aside."""
    (file,) = copy.list(f"{IDENTITY.node_folder}/lost")
    return copy.read(file.path)
