"""Small plans of two or three actors, for one long pause of each at every call of it."""

from __future__ import annotations

from typing import Any

from tests.simulation.actors import Op, Spec
from tests.simulation.explore import Order
from tests.simulation.medium import APPEND, HDFS, NFS, OBJECTS, SPLIT
from tests.simulation.runs import Plan

NODE = "default/embedded/nodes/n1/"


def _spec(name: str, *ops: Op, timer: tuple[Op, ...] = (), node: str = "n1", **more: Any) -> Spec:
    threads = (ops, timer) if timer else (ops,)
    return Spec(name, threads, node, **more)


_OPEN, _TAKE = ("open", False), ("open", True)
_REWRITE, _PRUNE, _ARCHIVE, _LIST = ("rewrite",), ("prune",), ("archive",), ("list",)

_WRITER = _spec("A", _OPEN, ("put", 0), ("put", 1))
_KEEPER = _spec("keeper", _REWRITE, _PRUNE)

DRILLS: dict[str, Plan] = {
    "a clear beside an archive and a rewrite": Plan(
        APPEND,
        "archived",
        (
            _spec("A", _OPEN, ("clear",), ("put", 1), timer=(_ARCHIVE, _ARCHIVE)),
            _KEEPER,
            _spec("reader", _LIST),
        ),
        acknowledged=5,
    ),
    "a reader beside a rewrite and a prune": Plan(
        APPEND,
        "archived",
        (_spec("reader", _LIST, _LIST), _KEEPER),
        acknowledged=0,
    ),
    "an open beside a rewrite and a prune": Plan(
        OBJECTS,
        "archived",
        (_spec("A", _OPEN, ("put", 0)), _KEEPER),
        acknowledged=1,
    ),
    "an archive of a writer that is replaced": Plan(
        APPEND,
        "some",
        (_spec("A", _OPEN, ("put", 0), _ARCHIVE), _spec("B", _TAKE, ("put", 1), _ARCHIVE)),
        acknowledged=2,
    ),
    "a timer of a writer that is replaced": Plan(
        OBJECTS,
        "some",
        (_spec("A", _OPEN, timer=(_ARCHIVE,)), _spec("B", _TAKE, ("put", 1), _ARCHIVE)),
        acknowledged=1,
    ),
    "a takeover beside an archive": Plan(
        APPEND,
        "some",
        (_spec("A", _OPEN, ("put", 0), _ARCHIVE, ("put", 1)), _spec("B", _TAKE, ("put", 2))),
        acknowledged=3,
    ),
    "a takeover of objects beside an archive": Plan(
        OBJECTS,
        "empty",
        (
            Spec("A", ((_OPEN, ("put", 0)), (_ARCHIVE,), (("put", 1), ("put", 0)))),
            _spec("B", _TAKE, ("put", 2)),
        ),
        acknowledged=4,
    ),
    "a takeover of objects": Plan(
        OBJECTS, "some", (_WRITER, _spec("B", _TAKE, ("put", 2))), acknowledged=3
    ),
    "an open that comes after two others": Plan(
        APPEND,
        "some",
        (
            _spec("late", _TAKE),
            Spec("A", ((_TAKE, ("put", 0)), (("put", 2),))),
            _spec("B", _TAKE, ("put", 1)),
        ),
        acknowledged=3,
    ),
    "the newest manifest of a node is removed": Plan(
        OBJECTS,
        "some",
        (_spec("A", _OPEN, _ARCHIVE, ("put", 3), ("put", 1), _ARCHIVE),),
        after=(("remove newest", f"{NODE}manifest/"),),
        acknowledged=2,
    ),
    "a drop beside a writer": Plan(
        APPEND,
        "archived",
        (_spec("operator", ("drop",)), _spec("A", _OPEN, ("put", 0))),
        acknowledged=5,
    ),
    "a node is forgotten beside its writer": Plan(
        APPEND,
        "two nodes",
        (
            _spec("operator", _REWRITE, ("forget", "n2")),
            _spec("gone", _OPEN, ("put", 1), ("put", 2), node="n2"),
        ),
        acknowledged=2,
    ),
    "a node on objects is forgotten beside its writer": Plan(
        OBJECTS,
        "two nodes",
        (
            _spec("operator", _REWRITE, ("forget", "n2")),
            _spec("gone", _OPEN, ("put", 1), ("put", 2), node="n2"),
        ),
        acknowledged=2,
    ),
    "a repaired copy of a whole log": Plan(
        APPEND,
        "snapshot",
        (_spec("A", _OPEN, ("put", 0)),),
        after=(("repair", "torn-tail"),),
        acknowledged=1,
    ),
    "a crash of a store that does not sync": Plan(
        APPEND,
        "some",
        (_spec("A", _OPEN, ("put", 0), ("put", 1), settings=(("durability", "os"),)),),
        acknowledged=2,
    ),
    "a power loss after a sync": Plan(
        APPEND,
        "some",
        (
            _spec(
                "A",
                _OPEN,
                ("put", 0),
                ("sync",),
                ("put", 1),
                settings=(("durability", "interval"),),
            ),
            _spec("B", _LIST),
        ),
        faults={("B", 1): "power"},
        acknowledged=2,
    ),
    "a takeover over NFS": Plan(
        NFS,
        "some",
        (
            Spec("A", ((_OPEN, ("put", 0)), (("put", 1),))),
            _spec("reader", *(_LIST,) * 12),  # until its cache has the files of A
            _spec("B", _TAKE, ("put", 2)),
        ),
        acknowledged=3,
    ),
    "a takeover of a file that is appended by path": Plan(
        HDFS,
        "some",
        (_WRITER, _spec("B", _TAKE, ("put", 2))),
        acknowledged=3,
    ),
    "a prune beside a long rewrite": Plan(
        APPEND,
        "archived",
        (_spec("keeper", _REWRITE), _spec("pruner", ("wait", 30), _PRUNE)),
        after=(_PRUNE,),
        acknowledged=0,
    ),
    "two host names": Plan(
        OBJECTS,
        "some",
        (_WRITER, _spec("B", _TAKE, ("delete", 0), ("put", 1), node="n2")),
        acknowledged=4,
    ),
    "two host names, append": Plan(
        APPEND,
        "some",
        (_WRITER, _spec("B", _TAKE, ("delete", 0), ("put", 1), node="n2")),
        acknowledged=4,
    ),
    "a machine without the segments": Plan(
        SPLIT,
        "some",
        (_WRITER, _spec("elsewhere", _LIST, _REWRITE, _PRUNE, machine="b")),
        acknowledged=2,
        refused=2,
    ),
    "manifests of a node restored": Plan(
        APPEND,
        "archived",
        (_spec("A", _OPEN, ("put", 0), _ARCHIVE, ("put", 1)),),
        after=(("restored", f"{NODE}manifest/", False),),
        acknowledged=2,
    ),
    "manifests of the cluster restored": Plan(
        APPEND,
        "archived",
        (_WRITER, _KEEPER),
        after=(("restored", "default/embedded/manifest/", False),),
        acknowledged=2,
    ),
    "a node's folder restored": Plan(
        APPEND,
        "archived",
        (_spec("A", _OPEN, ("put", 0)), _spec("keeper", _REWRITE)),
        after=(("restored", NODE, True),),
        acknowledged=1,
    ),
    "a copy of a live root": Plan(
        APPEND,
        "archived",
        (_spec("A", _OPEN, ("put", 0), _ARCHIVE, ("put", 1)), _spec("copier", ("copy", "sorted"))),
        acknowledged=2,
    ),
    "a task that runs twice": Plan(
        APPEND,
        "archived",
        (_spec("keeper", ("rewrite_twice", True), _PRUNE),),
        after=(_PRUNE,),
        acknowledged=0,
    ),
    "a rewrite by a machine whose clock is ahead": Plan(
        APPEND,
        "some",
        (
            _spec("A", _OPEN, ("put_for_hours", 0, 20), _ARCHIVE),
            _spec("keeper", _REWRITE, offset_ms=30 * 3_600_000),
        ),
        acknowledged=1,
        refused=1,
    ),
    "a change that comes after its partition has moved": Plan(
        APPEND,
        "empty",
        (
            Spec("agent 1", ((("serve",),),), "n1", role="agent"),
            Spec("member 1", ((("put", 0), ("put_and_leave", 0)),), "n1", role="member"),
            Spec("agent 2", ((("serve",),),), "n2", role="agent"),
            Spec("member 2", ((("take", 0), ("delete", 0)),), "n2", role="member"),
            _spec("keeper", ("wait", 2), _REWRITE, ("prune",)),
        ),
        acknowledged=2,
    ),
    "a folder that is replaced beside its writer": Plan(
        APPEND,
        "some",
        (
            _spec("A", _OPEN, ("put", 0), ("put", 1), _ARCHIVE, ("put", 0)),
            _spec("operator", ("replace_folder",)),
        ),
        acknowledged=3,
    ),
    "threads that change the same numbers": Plan(
        APPEND,
        "some",
        (Spec("A", ((_OPEN, ("add",), ("move",)), (("move",), ("add",)))),),
        acknowledged=4,
    ),
    "a listing through an agent": Plan(
        APPEND,
        "members",
        (
            Spec("agent", ((("serve",),),), role="agent", drops=(3, 6)),
            Spec("member", ((("put", 0),), (_LIST,)), role="member"),
        ),
        acknowledged=1,
    ),
}

_MOVED = "a change that comes after its partition has moved"
ORDERS: dict[str, tuple[Order, ...]] = {
    "an open that comes after two others": (((), 0, (1, 3)),),
    "a takeover over NFS": (((0, 2), 3, (1,)), ((0, 2), 1, (3,))),
    _MOVED: (((1,), 0, (2, 3, 4)), ((2, 1), 0, (3, 4))),
    "a takeover of objects beside an archive": (
        ((0,), 3, (1,)),
        ((0,), 3, (1, 2)),
        ((0,), 1, (3,)),
    ),
}
"""The orders to be tried, for drills with many tasks."""
