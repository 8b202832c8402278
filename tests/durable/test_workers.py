"""Several processes that share one store: `imap_wal.connect`."""

from __future__ import annotations

import os
import socket
import stat
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import imap_wal
from imap_wal.errors import (
    Closed,
    Fenced,
    ImapWalError,
    InvalidSetting,
    NotSerializable,
    OutcomeUnknown,
    StorageUnavailable,
    WriterLocked,
)
from imap_wal.serializer import MsgpackSerializer
from imap_wal.workers import messages
from imap_wal.workers.endpoint import LocalEndpoint
from imap_wal.workers.requests import REQUESTS
from imap_wal.workers.server import Server
from tests.kit.effort import share, thorough
from tests.kit.gate import first_sync_waits_until
from tests.kit.worker_faults import Cutting, run_workers
from tests.support import Threads

# ---- the same methods ----


def test_all_methods_of_a_map_work(stores: Callable[..., Any], tmp_path: Path) -> None:
    first, second = stores(), stores()
    assert first.is_serving and not second.is_serving
    m, same, other = second.map("m"), first.map("m"), second.map("other")
    m["a"], m[("a", 1)] = 1, {"x": [1, None]}
    assert same["a"] == 1 and dict(m.items()) == {"a": 1, ("a", 1): {"x": [1, None]}}
    del m[("a", 1)]
    with pytest.raises(KeyError):
        del m["b"]
    assert (m.add("n"), same.add("n", 2), m.get("b"), "n" in m, len(m)) == (1, 3, None, True, 2)
    assert m.replace("a", 1, 5) and not m.replace("a", 1, 6) and not m.replace("none", 1, 2)
    assert m.add_new("z", 1) and not m.add_new("z", 2) and m.setdefault("z", 3) == 1
    assert (m.pop("z"), m.pop("z", None), m.setdefault("z", 3)) == (1, None, 3)
    assert (m.change("a", lambda value: value + 1), m.touch("a", 60), m.touch("no", 1)) == (
        *(6, True),
        False,
    )
    assert 59 < m.ttl("a") <= 60 and m.ttl("n") is None
    m.update({"u": 1, "v": 2}, ttl=30)
    assert m.popitem() == ("v", 2) and set(m) == {"a", "n", "z", "u"}
    with second.batch() as batch:
        batch.put(m, "q", 1)
        batch.put(other, "q", 2)
        batch.delete(m, "u")

    @second.transaction
    def move(transaction: imap_wal.Transaction) -> int:
        transaction[m]["q"] -= 1
        transaction[other]["q"] += 1
        return int(transaction[other]["q"])

    assert move() == 3 and (m["q"], other["q"]) == (0, 3)
    other.clear()
    assert len(other) == 0 and first.maps() == ["m", "other"]
    second.sync()
    assert second.archive() > 0
    assert first.statistics.commits.records > 0
    with pytest.raises(InvalidSetting, match="in the process that serves"):
        second.statistics.commits  # noqa: B018
    first.close()
    second.close()
    with imap_wal.open(tmp_path / "log") as store:
        assert store.map("m")["z"] == 3 and REQUESTS in store.maps()


def test_reading_in_order_needs_the_log(stores: Callable[..., Any]) -> None:
    """A prefix and the first key are read from another process too."""
    stores()
    store = stores()
    m = store.map("m")
    m.update({"a1": 1, "b1": 2, "a2": 3})
    assert dict(m.items(prefix="a")) == {"a1": 1, "a2": 3} and len(m.keys(prefix="b")) == 1
    assert m.popitem(last=False) == ("a1", 1) and m.popitem() == ("a2", 3)
    for attempt in (
        lambda: store.map("m", sorted=True),
        lambda: store.queue("jobs"),
        m.watch,
        m.irange,
    ):
        with pytest.raises(InvalidSetting):
            attempt()
    assert repr(store).startswith("<ConnectedStore '") and store._repr_html_()


def test_errors_are_those_of_a_map(stores: Callable[..., Any]) -> None:
    store = stores(max_value_bytes=1000, serializer=None)
    m = store.map("m")
    m["text"] = "x"
    with pytest.raises(TypeError, match=r"m\['text'\] is of type str, which is not a number"):
        m.add("text")
    with pytest.raises(NotSerializable, match=r"m\['a'\]"):
        m["a"] = object()
    with pytest.raises(imap_wal.TooLarge):
        m["a"] = "x" * 1000
    with pytest.raises(InvalidSetting, match="written by serializer 'msgpack', not 'raw'"):
        store.map("m", raw=True)
    with pytest.raises(InvalidSetting, match="is for imap-wal"):
        store.map(REQUESTS)
    with pytest.raises(InvalidSetting):
        store.map("m", disable_wal=True)
    with pytest.raises(KeyError):
        store.map("none").popitem()
    assert dict(m.items()) == {"text": "x"}
    store.close()
    for use in (lambda: m["text"], lambda: m.put("a", 1), store.maps):
        with pytest.raises(Closed):
            use()


def test_a_serializer_that_only_the_clients_have(stores: Callable[..., Any]) -> None:
    class Named(MsgpackSerializer):
        name = "named"

    store = stores()
    m = store.map("m", serializer=Named())
    m["a"] = 1
    assert m.replace("a", 1, 2) and m.change("a", lambda value: value + 1) == 3
    with pytest.raises(InvalidSetting, match="does not know, so it cannot add"):
        m.add("a")
    assert m.pop("a") == 3
    m["b"] = 1
    with pytest.raises(InvalidSetting, match="pass it to map"):
        store.map("m")
    own = stores(serializer=Named())
    assert own.map("m")["b"] == 1


def test_a_large_map_and_a_large_change(stores: Callable[..., Any]) -> None:
    store = stores(ring_bytes=8 * 2**20)
    m = store.map("m")
    pairs = {f"k{number}": "x" * 10_000 for number in range(500)}
    m.update(pairs)
    assert dict(m.items()) == pairs and len(list(m)) == 500
    with pytest.raises(imap_wal.TooLarge, match="split it"):
        m.update({f"k{number}": "x" * 10_000 for number in range(1000)})
    assert dict(m.items()) == pairs


# ---- every request counts once ----


@settings(max_examples=share(50, least=3))
@given(seed=st.integers(0, 2**32))
def test_a_request_that_is_sent_again_counts_once(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Answers are lost, and another process serves. The maps are those of a dict all the time."""
    folder = tmp_path_factory.mktemp("once")
    with pytest.MonkeyPatch.context() as patch:
        cutting = Cutting(seed, patch)
        options: dict[str, Any] = {"socket": folder / "s", "preallocate": False, "durability": "os"}
        one = imap_wal.connect(folder / "log", **options)
        two = imap_wal.connect(folder / "log", **options)
        model: dict[str, Any] = {}
        for number in range(25):
            m = cutting.random.choice((one, two)).map("m")
            key = cutting.random.choice("abc")
            match cutting.random.randrange(6):
                case 0:
                    model[key] = model.get(key, 0) + number
                    assert m.add(key, number) == model[key], seed
                case 1:
                    m[key] = model[key] = number
                case 2:
                    assert m.pop(key, None) == model.pop(key, None), seed
                case 3:
                    assert m.add_new(key, number) is (key not in model), seed
                    model.setdefault(key, number)
                case 4:
                    old = model.get(key)
                    assert m.replace(key, old, number) is (old is not None), seed
                    if old is not None:
                        model[key] = number
                case 5:
                    model[key] = model.get(key, 0) * 2 + 1
                    assert m.change(key, lambda value: (value or 0) * 2 + 1) == model[key], seed
            assert dict(m.items()) == model, seed
        two.close()
        one.close()


def test_no_change_is_lost_or_doubled_by_kills_of_workers(tmp_path: Path) -> None:
    run_workers(tmp_path, 4, 12, 2, seed=1)


@thorough
@pytest.mark.parametrize("seed", range(5))
def test_many_kills_of_workers(tmp_path: Path, seed: int) -> None:
    run_workers(tmp_path, 4, 100, 15, seed)


def test_threads_of_all_connections_share_commits(stores: Callable[..., Any]) -> None:
    one, two = stores(), stores()
    maps = [store.map("m") for store in (one, two) for _ in range(4)]
    before = one.statistics.commits.commits
    began: list[Any] = []

    def work(m: Any) -> None:
        began.append(m)
        for _ in range(25):
            m.add("n")

    with first_sync_waits_until(lambda: len(began) == len(maps)):
        Threads(*(lambda m=m: work(m) for m in maps)).join()
    assert one.map("m")["n"] == 200
    assert one.statistics.commits.commits - before < 200


# ---- who serves ----


def test_another_process_serves_after_a_close(stores: Callable[..., Any]) -> None:
    one, two = stores(), stores()
    one.map("m")["a"] = 1
    one.close()
    assert two.map("m")["a"] == 1 and two.is_serving


def test_a_writer_that_does_not_serve_is_named(stores: Callable[..., Any], tmp_path: Path) -> None:
    with (
        imap_wal.open(tmp_path / "log"),
        pytest.raises(WriterLocked, match=rf"imap_wal.open.*process {os.getpid()} "),
    ):
        stores()


def test_a_server_that_is_fenced_gives_way(stores: Callable[..., Any], tmp_path: Path) -> None:
    """What it was asked to change then is not in the log twice, and the error is clear."""
    store = stores()
    m = store.map("m")
    m["n"] = 1
    with imap_wal.open(tmp_path / "log", takeover=True) as other:
        other.map("m")["n"] = 5
        with pytest.raises((WriterLocked, OutcomeUnknown), match=r"imap_wal.open"):
            m.add("n")
    assert m.add("n") == 6


def test_a_client_that_may_not_serve_needs_a_server(stores: Callable[..., Any]) -> None:
    with pytest.raises(StorageUnavailable, match="no process serves at"):
        stores(serve=False, timeout_s=0.2)


def test_a_server_that_does_not_answer(stores: Callable[..., Any], tmp_path: Path) -> None:
    store = stores()
    client = stores(timeout_s=0.3)
    m = client.map("m")
    m["a"] = 1
    over = threading.Event()
    answer = Server._answer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Server, "_answer", lambda *rest: over.wait() and answer(*rest))
        with pytest.raises(StorageUnavailable, match=r"did not answer within 0.3 s; nothing"):
            m.get("a")
        with pytest.raises(OutcomeUnknown, match=r"did not answer.*may be in the log"):
            m.add("a")
        over.set()
    assert store.map("m")["a"] in (1, 2)


@pytest.mark.parametrize("option", ["read_only", "follow", "shared"])
def test_options_of_open_alone_are_refused(stores: Callable[..., Any], option: str) -> None:
    with pytest.raises(InvalidSetting, match=option):
        stores(**{option: True})


def test_a_storage_of_one_process_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="cannot see a memory://"):
        imap_wal.connect("memory://x")


# ---- who may connect ----


def test_the_socket_is_for_one_user(stores: Callable[..., Any], tmp_path: Path) -> None:
    stores(socket=tmp_path / "folder" / "s")
    folder = os.stat(tmp_path / "folder")
    assert stat.S_IMODE(folder.st_mode) == 0o700
    assert stat.S_IMODE(os.stat(tmp_path / "folder" / "s").st_mode) == 0o600


def test_a_folder_of_all_users_is_refused(stores: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(InvalidSetting, match="other users can write to its folder"):
        stores(socket=tmp_path / "open" / "s")
    with pytest.raises(InvalidSetting, match="takes at most 107"):
        stores(socket=tmp_path / ("x" * 100) / "s")


def test_a_file_at_the_path_is_not_removed(stores: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "socket").write_text("mine")
    with pytest.raises(ImapWalError, match="something other than a socket"):
        stores(timeout_s=0.5)
    assert (tmp_path / "socket").read_text() == "mine"


def test_a_process_whose_changes_are_all_there_continues(stores: Callable[..., Any]) -> None:
    """When another one serves; its last request has changed nothing, so the log has no record of
    it."""
    first, second = stores(), stores()
    m = second.map("m")
    m["a"] = 1
    assert not m.replace("a", 2, 3)
    first.close()
    assert m["a"] == 1 and second.is_serving


def test_a_socket_that_was_left_behind_is_replaced(
    stores: Callable[..., Any], tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "socket"))
    store = stores()
    store.map("m")["a"] = 1
    assert store.is_serving


RECORD = [0, b"x" * 16, 0]
NONSENSE: list[bytes] = [
    b"",
    b"GET / HTTP/1.1\r\n\r\n",
    struct.pack(">I", 2**32 - 1),
    struct.pack(">I", 5) + b"\xc1\xc1\xc1\xc1\xc1",
    *(
        struct.pack(">I", len(data)) + data
        for data in map(
            msgpack.packb,
            [
                *(
                    [],
                    7,
                    ["hello", 99, b"x" * 16, "maps", RECORD],
                    ["hello", 1, b"short", "maps", RECORD],
                ),
                *(
                    ["hello", 1],
                    ["hello", 1, b"x" * 16, "maps", 0],
                    ["welcome", 1, b"x" * 16, "maps", RECORD],
                ),
                *(
                    ["hello", 1, b"x" * 16, "maps", record]
                    for record in ([], [-1, b"x" * 16, 0], [0, b"", 0], [0, b"x" * 16, "0"])
                ),
            ],
        )
    ),
]
CHANGES: list[Any] = [
    [],
    ["set", 0, [b"a"], [], []],
    ["set", 0, ["a"], [b"1"], []],
    ["set", 0, [b"a"], [b"1"], [[5, 1]]],
    ["set", 1, [b"a"], [b"1"], []],
    ["set", "m", [b"a"], [b"1"], []],
    ["together", 0, [["pop", 0, b"a"]], []],
    ["together", 0, [], []],
    ["touch", 0, b"a", -1],
    ["drop", 0],
    None,
]
M = [["m", "msgpack"]]
REQUESTS_OF_OTHERS: list[Any] = [
    *(["change", M, [["set", 0, [b"b"], [b"1"], []], change]] for change in CHANGES),
    ["change", M, []],
    ["change", M, None],
    ["change", [["m", 5]], []],
    ["change", "m", []],
    *(["read", M, [read]] for read in ([], ["get", 0], ["get", 1, b"a"], ["get", 0, "a"], None)),
    ["read", M, 5],
]


def demand_end(raw: socket.socket) -> None:
    """The server closes the connection without an answer."""
    with suppress(ConnectionResetError):
        raw.shutdown(socket.SHUT_WR)
        assert raw.recv(100) == b""


def test_nonsense_ends_no_server(stores: Callable[..., Any], tmp_path: Path) -> None:
    store = stores()
    m = store.map("m")
    m["a"] = 1

    def connection() -> socket.socket:
        raw = socket.socket(socket.AF_UNIX)
        raw.settimeout(20)
        raw.connect(str(tmp_path / "socket"))
        return raw

    for data in NONSENSE:
        with connection() as raw:
            raw.sendall(data)
            demand_end(raw)
    for request in REQUESTS_OF_OTHERS:
        with connection() as raw:
            messages.send(raw, ["hello", 1, b"x" * 16, "maps", RECORD], 1000)
            messages.receive(raw, 1000)
            messages.send(raw, [1, *request], 1000)
            assert messages.receive(raw, 1000)[1:3] == ["error", "NotUnderstood"]
            demand_end(raw)
    assert dict(m.items()) == {"a": 1} and store.is_serving


def test_a_forked_child_gets_a_clear_error(stores: Callable[..., Any]) -> None:
    store = stores()
    m = store.map("m")
    m["a"] = 1
    pid = os.fork()
    if not pid:
        code = 1
        try:
            m.get("a")
        except Fenced as error:
            code = 0 if "in each process separately" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert m["a"] == 1 and store.is_serving


def test_a_folder_made_during_a_bind_can_be_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The umask is that of the whole process, also of a thread that begins an archive."""
    umask = os.umask

    def made(mask: int) -> int:
        before = umask(mask)
        (tmp_path / f"folder-{mask:o}").mkdir()
        return before

    monkeypatch.setattr(os, "umask", made)
    endpoint = LocalEndpoint(tmp_path / "s")
    endpoint.listen().close()
    monkeypatch.undo()
    folders = list(tmp_path.glob("folder-*"))
    assert len(folders) == 2
    assert all(stat.S_IMODE(folder.stat().st_mode) & 0o700 == 0o700 for folder in folders)
    assert stat.S_IMODE(os.stat(endpoint.path).st_mode) == 0o600
