"""For tests of this project and of other backends. `check_segment_store` checks every promise of
the interface; `FaultyStore` (from `faults`) makes any store fail at a chosen operation."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from storage_backends.errors import AlreadyExists, Locked, NotFound, StorageError, Unsupported
from storage_backends.faults import Fault, FaultyStore, Killed, Operation, Plan, PowerLoss
from storage_backends.interface import Appender, SegmentStore

__all__ = [
    "Fault",
    "FaultyStore",
    "Killed",
    "Operation",
    "Plan",
    "PowerLoss",
    "check_segment_store",
]

ODD_NAMES = (
    "%2e%2e%2fa%20b",
    "%00",
    "a+b=c&d,e;f",
    "UPPER-lower_0",
    "%E2%82%AC",
    "x" * 200,
    "%25%32%65",
    "a.b.c",
)
"""One path component each: percent-encoded hostile names, and names that a listing or a URL may
mishandle."""


def check_segment_store(
    store: SegmentStore, *, reopen: Callable[[], SegmentStore] | None = None
) -> None:
    """Assert every promise of `storage_backends.interface` that `store.capabilities` declares. The
    `AssertionError` names the broken one.

    It works in its own folder with a random name, and removes it. `reopen` opens a second store on
    the same place, which must see what the first one wrote.
    """
    root = f"conformance-{secrets.token_hex(6)}"
    other = reopen() if reopen is not None else store
    checks: list[Callable[[SegmentStore, SegmentStore, str], None]] = [
        _contents,
        _create_is_exclusive,
        _create_from_is_exclusive,
        _replace,
        _listings_are_fresh,
        _odd_names,
        _paths_stay_inside,
        _missing_files,
        _held,
        _deletion,
        _lock,
    ]
    if store.capabilities.exclusive_create:
        checks.append(_one_of_many_creates_wins)
    checks += (
        [_append, _one_of_many_appenders_wins]
        if store.capabilities.durable_append
        else [_append_is_refused]
    )
    try:
        for check in checks:
            check(store, other, f"{root}/{check.__name__.strip('_')}")
    finally:
        for file in store.list(root):
            store.delete(file.path)
        if other is not store:
            other.close()
    _same(store.list(root), [], "the store is left empty")


def _same(actual: object, expected: object, promise: str) -> None:
    shown = f"{actual!r:.300}", f"{expected!r:.300}"
    assert actual == expected, f"{promise}: found {shown[0]}, expected {shown[1]}"


@contextlib.contextmanager
def _raises(kind: type[StorageError], promise: str) -> Iterator[None]:
    try:
        yield
    except kind:
        return
    except Exception as error:
        raise AssertionError(
            f"{promise}: {kind.__name__} expected, {type(error).__name__} raised: {error}"
        ) from error
    raise AssertionError(f"{promise}: {kind.__name__} expected, nothing raised")


def _contents(store: SegmentStore, other: SegmentStore, root: str) -> None:
    for name, data in (
        ("empty", b""),
        ("small", bytes(range(256))),
        ("big", secrets.token_bytes(5 * 1024 * 1024 + 1)),
    ):
        path = f"{root}/{name}"
        store.create(path, data)
        _same(other.read(path), data, f"read returns what create wrote ({name})")
        _same(other.size(path), len(data), f"size ({name})")
        assert other.exists(path), f"exists after create ({name})"
        for offset, length in (
            (0, 0),
            (0, 3),
            (1, 5),
            (250, 100),
            (len(data), 5),
            (len(data) + 10, 5),
            (len(data) + 10, None),
            (7, None),
        ):
            end = None if length is None else offset + length
            _same(
                other.read(path, offset, length),
                data[offset:end],
                f"read({name}, {offset}, {length})",
            )
        with other.open_input(path) as file:
            assert file.seekable(), "open_input is seekable"
            _same(file.read(), data, f"open_input reads all ({name})")
            file.seek(len(data) // 2)
            _same(file.read(10), data[len(data) // 2 :][:10], f"open_input after seek ({name})")
            _same(file.seek(0, os.SEEK_END), len(data), f"open_input knows its end ({name})")


def _held(store: SegmentStore, other: SegmentStore, root: str) -> None:
    path, elsewhere = f"{root}/1", f"{root}/2"
    with _raises(NotFound, "hold of a missing file"):
        store.hold(path)
    store.create(path, b"data")
    store.create(elsewhere, b"data")
    held = store.hold(path)
    assert held.is_there(), "a held file is there"
    _same(held.path, path, "the path of a held file")
    other.create(f"{root}/3", b"data")
    assert held.is_there(), "a held file is there, whatever happens beside it"
    other.delete(path)
    assert not held.is_there(), "a held file that was deleted is not there"
    if store.capabilities.durable_append:
        other.create(path, b"data")
        assert not held.is_there(), "another file of the same name and content is not the held one"
        appender = store.open_append(f"{root}/4")
        appender.append(b"data")
        appender.sync()
        assert appender.is_there(), "an open segment is there"
        other.delete(f"{root}/4")
        other.create(f"{root}/4", b"data")
        assert not appender.is_there(), "an open segment is another file than its successor"
        appender.close()
    held.close()
    held.close()
    assert not held.is_there(), "a file is not held after close"


def _create_is_exclusive(store: SegmentStore, other: SegmentStore, root: str) -> None:
    store.create(f"{root}/1", b"first")
    for second in (store, other):
        with _raises(AlreadyExists, "a second create"):
            second.create(f"{root}/1", b"second, and longer")
    _same(other.read(f"{root}/1"), b"first", "a refused create changes nothing")
    _same(
        [file.path for file in store.list(root)],
        [f"{root}/1"],
        "a refused create leaves no file",
    )


def _create_from_is_exclusive(store: SegmentStore, other: SegmentStore, root: str) -> None:
    data = secrets.token_bytes(3 * 1024 * 1024 + 7)
    with tempfile.TemporaryDirectory() as folder:
        local = os.path.join(folder, "source.parquet")
        Path(local).write_bytes(data)
        store.create_from(f"{root}/1", local)
        _same(other.read(f"{root}/1"), data, "create_from copies all")
        with _raises(AlreadyExists, "create_from onto a file"):
            other.create_from(f"{root}/1", local)
        with _raises(AlreadyExists, "create onto a file of create_from"):
            other.create(f"{root}/1", b"")
        assert os.path.getsize(local) == len(data), "create_from leaves the local file"
        with _raises(StorageError, "create_from of a missing local file"):
            store.create_from(f"{root}/2", os.path.join(folder, "missing"))
    assert not other.exists(f"{root}/2"), "a failed create_from publishes nothing"


def _one_of_many_creates_wins(store: SegmentStore, other: SegmentStore, root: str) -> None:
    for number in range(4):
        path = f"{root}/{number}"
        contents = [f"{writer}-{number}".encode() * 1000 for writer in range(8)]
        winners = _race(
            [partial((store, other)[at % 2].create, path, contents[at]) for at in range(8)]
        )
        assert len(winners) == 1, f"exclusive create: of 8 writers at once {len(winners)} won"
        _same(other.read(path), contents[winners[0]], "the content is the winner's")


def _one_of_many_appenders_wins(store: SegmentStore, other: SegmentStore, root: str) -> None:
    def open_(at: int) -> None:
        (store, other)[at % 2].open_append(f"{root}/1").close()

    winners = _race([partial(open_, at) for at in range(8)])
    assert len(winners) == 1, f"open_append is exclusive: of 8 at once {len(winners)} won"


def _race(actions: list[Callable[[], None]]) -> list[int]:
    """Which actions did not raise AlreadyExists. Raises any other error."""
    start = threading.Barrier(len(actions))
    winners: list[int] = []
    errors: list[BaseException] = []

    def run(at: int) -> None:
        start.wait()
        try:
            actions[at]()
        except AlreadyExists:
            pass
        except BaseException as error:  # noqa: BLE001  raised again after the join
            errors.append(error)
        else:
            winners.append(at)

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise AssertionError(
            f"a racing writer got {errors[0]!r} instead of AlreadyExists"
        ) from errors[0]
    return winners


def _replace(store: SegmentStore, other: SegmentStore, root: str) -> None:
    path = f"{root}/1"
    store.replace(path, b"new")
    _same(other.read(path), b"new", "replace makes a file")
    store.replace(path, b"longer than before")
    _same(other.read(path), b"longer than before", "replace with more")
    store.replace(path, b"")
    _same((other.read(path), other.size(path)), (b"", 0), "replace with nothing")
    _same([file.path for file in other.list(root)], [path], "replace leaves no other file")
    if not store.capabilities.atomic_replace:
        return
    contents = {bytes([letter]) * 200_000 for letter in b"abc"}
    store.replace(path, next(iter(contents)))
    stop = threading.Event()
    torn: list[bytes] = []

    def read() -> None:
        while not stop.is_set():
            if (seen := other.read(path)) not in contents:
                torn.append(seen)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for content in list(contents) * 5:
            store.replace(path, content)
    finally:
        stop.set()
        reader.join()
    assert not torn, (
        f"replace shows the old or the new content, whole: a reader saw {len(torn[0])} bytes "
        "of neither"
    )


def _listings_are_fresh(store: SegmentStore, other: SegmentStore, root: str) -> None:
    _same((other.list(root), other.folders(root)), ([], []), "a missing folder is empty")
    paths = [f"{root}/{name}" for name in ("b/1", "b/2", "a/deep/er/1", "z", "b.c")]
    for at, path in enumerate(paths):
        assert not other.exists(path), "exists before create"
        store.create(path, b"x" * at)
        assert other.exists(path), "exists sees a file at once"
        _same(
            {f.path: f.size for f in other.list(root)},
            {p: n for n, p in enumerate(paths[: at + 1])},
            "list sees a file at once",
        )
    _same(
        [file.path for file in other.list(root)],
        sorted(paths),
        "list is sorted by path and has files at any depth",
    )
    below = [file.path for file in other.list(f"{root}/b")]
    _same(
        below, [f"{root}/b/1", f"{root}/b/2"], "list of a folder is not one of a name's beginning"
    )
    _same(other.list(f"{root}/z"), [], "a file is not a folder")
    _same(other.folders(root), ["a", "b"], "folders are names, sorted, of one level")
    _same(other.folders(f"{root}/a"), ["deep"], "folders one level deeper")
    _same(other.folders(f"{root}/b"), [], "a folder of files has no folders")
    assert not other.exists(f"{root}/a"), "a folder is not a file"
    assert root.partition("/")[0] in other.folders(""), "folders of the root"
    assert set(paths) <= {file.path for file in other.list("")}, "list of the root"
    store.delete(paths[0])
    _same(
        [file.path for file in other.list(f"{root}/b")], [paths[1]], "list sees a deletion at once"
    )
    modified = {file.modified_ms for file in other.list(root)}
    assert all(time == 0 or time > 1_600_000_000_000 for time in modified), (
        f"modified_ms is Unix milliseconds or 0: {modified}"
    )


def _odd_names(store: SegmentStore, other: SegmentStore, root: str) -> None:
    for name in ODD_NAMES:
        store.create(f"{root}/{name}/{name}", name.encode())
    for name in ODD_NAMES:
        _same(
            other.read(f"{root}/{name}/{name}"),
            name.encode(),
            f"a store does not interpret names ({name})",
        )
        _same(
            [file.path for file in other.list(f"{root}/{name}")],
            [f"{root}/{name}/{name}"],
            f"list with an odd name ({name})",
        )
    _same(other.folders(root), sorted(ODD_NAMES), "folders with odd names")
    _same(
        [file.path for file in other.list(root)],
        sorted(f"{root}/{name}/{name}" for name in ODD_NAMES),
        "list with odd names",
    )
    for name in ODD_NAMES:
        store.delete(f"{root}/{name}/{name}")
        assert not other.exists(f"{root}/{name}/{name}"), f"delete with an odd name ({name})"


def _paths_stay_inside(store: SegmentStore, other: SegmentStore, root: str) -> None:
    for path in (f"{root}/../x", "../x", "/x", f"{root}//x", f"{root}/./x", f"{root}/x/", ""):
        with _raises(StorageError, f"a path outside the store is refused ({path})"):
            store.create(path, b"")


def _missing_files(store: SegmentStore, other: SegmentStore, root: str) -> None:
    path = f"{root}/missing"
    with _raises(NotFound, "size of a missing file"):
        store.size(path)
    with _raises(NotFound, "read of a missing file"):
        store.read(path)
    with _raises(NotFound, "read of a range of a missing file"):
        store.read(path, 5, 5)
    with _raises(NotFound, "read of nothing of a missing file"):
        store.read(path, 0, 0)
    with _raises(NotFound, "open_input of a missing file"):
        store.open_input(path).read()
    assert not store.exists(path), "a missing file does not exist"
    store.create(f"{root}/folder/1", b"")
    with _raises(NotFound, "size of a folder"):
        store.size(f"{root}/folder")
    if store.capabilities.durable_append:
        with _raises(NotFound, "truncate of a missing file"):
            store.truncate(path, 0)


def _deletion(store: SegmentStore, other: SegmentStore, root: str) -> None:
    store.delete(f"{root}/never/was")
    store.create(f"{root}/a/b/1", b"1")
    store.create(f"{root}/a/2", b"2")
    store.delete(f"{root}/a/b/1")
    assert not other.exists(f"{root}/a/b/1"), "a deleted file does not exist"
    store.delete(f"{root}/a/b/1")
    _same([file.path for file in other.list(root)], [f"{root}/a/2"], "delete removes one file")
    store.create(f"{root}/a/b/1", b"again")
    _same(other.read(f"{root}/a/b/1"), b"again", "a deleted name can be used again")
    for name in ("*", "x", "y", "z"):
        store.create(f"{root}/many/{name}", b"")
    gone = [f"{root}/many/x", f"{root}/many/never", f"{root}/many/y"]
    _same(store.discard_all(gone), [], "discard_all of files without links")
    _same(
        [file.path for file in other.list(f"{root}/many")],
        [f"{root}/many/*", f"{root}/many/z"],
        "discard_all removes the files that exist, and no others",
    )
    store.discard_all([f"{root}/many/*", f"{root}/many/never"])
    _same(
        [file.path for file in other.list(f"{root}/many")],
        [f"{root}/many/z"],
        "discard_all does not interpret names",
    )


def _append_is_refused(store: SegmentStore, other: SegmentStore, root: str) -> None:
    store.create(f"{root}/1", b"1234")
    with _raises(Unsupported, "open_append without durable_append"):
        store.open_append(f"{root}/2")
    with _raises(Unsupported, "truncate without durable_append"):
        store.truncate(f"{root}/1", 2)


def _append(store: SegmentStore, other: SegmentStore, root: str) -> None:
    for preallocate_bytes in (0, 65_536) if store.capabilities.preallocate else (0,):
        path = f"{root}/{preallocate_bytes}"
        appender = store.open_append(path, preallocate_bytes)
        try:
            _same(
                (appender.path, appender.size),
                (path, 0),
                "a new appender is at 0, preallocated or not",
            )
            _same(other.size(path), preallocate_bytes, "size counts preallocated space")
            with _raises(AlreadyExists, "open_append onto a file"):
                other.open_append(path)
            _append_is_seen(appender, other, preallocate_bytes)
            _appender_is_cut(appender, other)
        finally:
            appender.close()
            appender.close()
        _closed_appender(appender, store, other)


def _append_is_seen(appender: Appender, other: SegmentStore, preallocate_bytes: int) -> None:
    path = appender.path
    appender.append(b"one")
    appender.append(b"two", b"", b"three")
    appender.append()
    appender.append(b"")
    appender.sync()
    many = [bytes([at % 256]) * (at % 7) for at in range(3000)]
    appender.append(*many)
    appender.sync()
    expected = b"onetwothree" + b"".join(many)
    _same(appender.size, len(expected), "size counts what was appended")
    _same(
        other.read(path, 0, len(expected)),
        expected,
        "what was appended and synced is seen by others",
    )
    rest = other.read(path, len(expected))
    _same(
        rest,
        bytes(max(preallocate_bytes - len(expected), 0)),
        "preallocated space reads as zeros until written",
    )
    big = secrets.token_bytes(5 * 1024 * 1024)
    appender.append(big)
    appender.append(b"end")
    appender.sync()
    _same(
        other.read(path),
        expected + big + b"end",
        "appending continues after preallocated space",
    )


def _appender_is_cut(appender: Appender, other: SegmentStore) -> None:
    path = appender.path
    appender.truncate(5)
    _same(
        (appender.size, other.size(path), other.read(path)),
        (5, 5, b"onetw"),
        "truncate of an appender",
    )
    with _raises(StorageError, "an appender is not cut to more than it has"):
        appender.truncate(6)
    appender.append(b"O!")
    appender.sync()
    _same(other.read(path), b"onetwO!", "appending continues where the file was cut")


def _closed_appender(appender: Appender, store: SegmentStore, other: SegmentStore) -> None:
    path = appender.path
    with _raises(StorageError, "append after close"):
        appender.append(b"x")
    with _raises(StorageError, "sync after close"):
        appender.sync()
    with _raises(AlreadyExists, "open_append onto a closed file"):
        store.open_append(path)
    store.truncate(path, 3)
    _same(other.read(path), b"one", "truncate of a closed file")
    with _raises(StorageError, "a file is not cut to more than it has"):
        store.truncate(path, 4)
    store.truncate(path, 0)
    _same(other.size(path), 0, "truncate to nothing")


def _lock(store: SegmentStore, other: SegmentStore, root: str) -> None:
    path = f"{root}/node/writer.lock"
    lock = store.lock(path, "host 1,\n pid 2")
    for second in (store, other):
        try:
            second.lock(path, "somebody else").release()
        except Locked as error:
            _same(error.holder, "host 1, pid 2", "Locked names the holder on one line")
        else:
            raise AssertionError("a lock is exclusive: a second one was granted")
    other.lock(f"{root}/node/other.lock", "another lock").release()
    lock.release()
    lock.release()
    with other.lock(path, "second"), _raises(Locked, "a lock is exclusive after it changed hands"):
        store.lock(path, "third")
    first = store.lock(path, "first")
    taker = other.lock(path, "taker", take=True)
    try:
        store.lock(path, "third").release()
    except Locked as error:
        _same(error.holder, "taker", "Locked names the one who took the lock")
    else:
        raise AssertionError("a taken lock is exclusive: a second one was granted")
    first.release()
    with _raises(Locked, "the release of one whose lock was taken does not free it"):
        store.lock(path, "third")
    taker.release()
    store.lock(path, "third", take=True).release()
    store.lock(path, "fourth").release()
