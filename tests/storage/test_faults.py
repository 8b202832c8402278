"""The wrapper that fails on purpose does exactly what is in its plan."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from storage_backends import AlreadyExists, NoSpace, SegmentStore, Unavailable, open_store
from storage_backends.memory import forget
from storage_backends.testing import Fault, FaultyStore, Killed, Plan, PowerLoss


@pytest.fixture(params=["memory", "local"])
def inner(request: pytest.FixtureRequest, tmp_path: object) -> Iterator[SegmentStore]:
    yield open_store("memory://faults" if request.param == "memory" else f"file://{tmp_path}")
    forget("faults")


def plan(*faults: Fault, seed: int = 0, **more: object) -> Plan:
    return Plan(faults, seed, **more)  # type: ignore[arg-type]


def test_operations_are_counted_and_recorded(inner: SegmentStore) -> None:
    store = FaultyStore(inner)
    store.create("a", b"1")
    appender = store.open_append("b")
    appender.append(b"2")
    appender.sync()
    store.exists("a")
    assert [(op.number, op.kind, op.path) for op in store.operations] == [
        (1, "create", "a"),
        (2, "open_append", "b"),
        (3, "append", "b"),
        (4, "sync", "b"),
        (5, "exists", "a"),
    ]


def test_error_before_has_not_been_done_and_after_has(inner: SegmentStore) -> None:
    store = FaultyStore(
        inner,
        plan(
            Fault("error", kind="create"),
            Fault("error", kind="create", at=2, when="after", error=AlreadyExists),
        ),
    )
    with pytest.raises(Unavailable, match=r"before create \(operation 1\).*seed=0"):
        store.create("a", b"")
    assert not inner.exists("a")
    with pytest.raises(AlreadyExists, match="after create"):
        store.create("a", b"")
    assert inner.exists("a")
    store.create("b", b"")
    assert [fault.when for _, fault in store.fired] == ["before", "after"]


def test_fault_counts_only_what_its_globs_match(inner: SegmentStore) -> None:
    store = FaultyStore(
        inner, plan(Fault("error", at=2, kind="create|delete", path="nodes/*/manifest/*", times=2))
    )
    store.create("nodes/a/wal/1", b"")
    store.create("nodes/a/manifest/1", b"")
    store.read("nodes/a/manifest/1")
    for _ in range(2):
        with pytest.raises(Unavailable):
            store.delete("nodes/a/manifest/1")
    store.delete("nodes/a/manifest/1")


def test_fault_without_an_end(inner: SegmentStore) -> None:
    store = FaultyStore(inner, plan(Fault("error", kind="sync", at=2, times=0)))
    appender = store.open_append("1")
    appender.sync()
    for _ in range(5):
        with pytest.raises(Unavailable):
            appender.sync()


def test_bytes_of_a_short_write_are_overwritten(
    inner: SegmentStore,
) -> None:
    """They are beyond the size, and the next append writes over them."""
    store = FaultyStore(inner, plan(Fault("short-write", at=2), seed=3))
    appender = store.open_append("1")
    appender.append(b"good")
    with pytest.raises(NoSpace, match="seed=3"):
        appender.append(b"0123456789", b"0123456789")
    assert appender.size == 4
    assert 4 < inner.size("1") < 24
    appender.append(b"!")
    appender.close()
    assert inner.read("1") == b"good!"


def test_append_that_fails_after_it_was_done_leaves_its_bytes(inner: SegmentStore) -> None:
    store = FaultyStore(inner, plan(Fault("error", kind="append", when="after")))
    appender = store.open_append("1")
    with pytest.raises(Unavailable):
        appender.append(b"done")
    assert appender.size == 0
    assert inner.read("1") == b"done"


def test_killed_process_stays_dead_and_frees_its_lock(inner: SegmentStore) -> None:
    store = FaultyStore(inner, plan(Fault("kill", kind="sync")))
    lock = store.lock("writer.lock", "victim")
    appender = store.open_append("1")
    appender.append(b"written")
    with pytest.raises(Killed, match=r"before sync"):
        appender.sync()
    for operation in (
        lambda: store.list(""),
        lambda: store.create("2", b""),
        lambda: appender.append(b"x"),
        appender.sync,
    ):
        with pytest.raises(Killed):
            operation()
    lock.release()
    appender.close()
    assert store.dead
    assert inner.read("1") == b"written", "what a killed process wrote survives it"
    inner.lock("writer.lock", "successor").release()


def test_killed_is_not_caught_as_an_error() -> None:
    assert not issubclass(Killed, Exception)
    assert issubclass(PowerLoss, Killed)


@pytest.mark.parametrize("preallocate", [0, 8192])
@pytest.mark.parametrize("tear", ["prefix", "sectors"])
def test_power_loss_keeps_what_was_synced(inner: SegmentStore, tear: str, preallocate: int) -> None:
    """The seed decides what is kept of the rest."""
    rest = bytes(range(1, 256)) * 20
    seen = set()
    for seed in range(30):
        store = FaultyStore(
            inner, plan(Fault("power-loss", kind="sync", at=2), seed=seed, tear=tear)
        )
        appender = store.open_append("1", preallocate)
        appender.append(b"synced" * 100)
        appender.sync()
        appender.append(rest)
        with pytest.raises(PowerLoss, match=f"seed={seed}"):
            appender.sync()
        content = inner.read("1")
        assert content[:600] == b"synced" * 100, f"seed {seed}"
        assert len(content) <= max(600 + len(rest), preallocate)
        left = content[600 : 600 + len(rest)]
        if tear == "prefix":
            assert rest.startswith(left.rstrip(b"\0")), f"seed {seed}"
        else:
            assert all(byte in (0, rest[at]) for at, byte in enumerate(left)), f"seed {seed}"
        assert content[600 + len(rest) :].strip(b"\0") == b""
        seen.add(content)
        inner.delete("1")
    assert len(seen) > 20, "seeds differ"


def test_power_loss_of_one_seed_repeats() -> None:
    contents = []
    for _ in range(2):
        inner = open_store("memory://repeats")
        store = FaultyStore(inner, plan(Fault("power-loss", at=4), seed=11))
        appender = store.open_append("1")
        appender.append(b"0123456789" * 100)
        appender.append(b"0123456789" * 100)
        with pytest.raises(PowerLoss):
            appender.sync()
        contents.append(inner.read("1"))
        forget("repeats")
    assert contents[0] == contents[1]


def test_workload_can_be_killed_at_every_operation(inner: SegmentStore) -> None:
    def workload(store: SegmentStore) -> None:
        store.create("manifest/1", b"one")
        appender = store.open_append("wal/1")
        appender.append(b"frame")
        appender.sync()
        store.create("manifest/2", b"two")
        store.delete("manifest/1")

    counted = FaultyStore(open_store("memory://counted"))
    workload(counted)
    forget("counted")
    left = []
    for at in range(1, counted.count + 1):
        with pytest.raises(Killed):
            workload(FaultyStore(inner, plan(Fault("kill", at=at))))
        left.append(len(inner.list("")))
        for file in inner.list(""):
            inner.delete(file.path)
    assert left == [0, 1, 2, 2, 2, 3]


def test_an_appender_fails_after_its_store_was_killed(inner: SegmentStore) -> None:
    """In other threads, too."""
    store = FaultyStore(inner, plan(Fault("kill", kind="exists")))
    appenders = [store.open_append(str(number)) for number in range(3)]
    with pytest.raises(Killed):
        store.exists("0")
    for appender in appenders:
        with pytest.raises(Killed):
            appender.append(b"x")
    assert [file.size for file in inner.list("")] == [0, 0, 0]
