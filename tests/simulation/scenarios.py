"""Which actors meet. Each scenario draws a plan: actors and operations, not an order of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from tests.simulation.actors import KEYS, Op, Spec
from tests.simulation.medium import APPEND, HDFS, NFS, OBJECTS, SPLIT
from tests.simulation.runs import Plan

HOUR_MS = 3_600_000
PAST = ("empty", "some", "crashed", "archived", "snapshot", "pruned")


def _changes(rng: Random, count: int) -> list[Op]:
    return [("delete" if rng.random() < 0.3 else "put", rng.randrange(KEYS)) for _ in range(count)]


def _writer(rng: Random, name: str, takeover: bool, node: str = "n1") -> Spec:
    """An embedded store with changes and archives."""
    ops: list[Op] = [("open", takeover)]
    ops += _changes(rng, rng.randint(0, 2))
    if rng.random() < 0.5:
        ops.append(("archive",))
    ops += _changes(rng, rng.randint(0, 2))
    if rng.random() < 0.3:
        ops.append(("close",))
    threads: tuple[tuple[Op, ...], ...] = (tuple(ops),)
    timers: list[Op] = []  # of maintenance
    if rng.random() < 0.3:
        timers.append(("archive",))
    settings: list[tuple[str, Any]] = []
    if rng.random() < 0.25:
        settings.append(("wal_ttl_seconds", 1))
        timers.append(("outlive",))
    if rng.random() < 0.15:
        settings.append(("segment_bytes", 200))
    if rng.random() < 0.2:
        settings.append(("durability", rng.choice(("interval", "os"))))
        timers.append(("sync",))
    if timers:
        threads = (*threads, tuple(timers))
    return Spec(name, threads, node, settings=tuple(settings))


def _kind(rng: Random) -> str:
    return rng.choice((APPEND, APPEND, OBJECTS, HDFS, SPLIT, NFS))


def _faults(rng: Random, plan: Plan) -> Plan:
    """The plan; in some plans, one or two calls fail."""
    if rng.random() < 0.25:
        plan = replace(plan, manifests_kept=2)
    if rng.random() < 0.6:
        return plan
    kinds: tuple[str, ...] = ("crash", "crash-after", "fails", "lost", "late", "late")
    if plan.kind == APPEND:
        kinds += ("power",)
    faults = {}
    for _ in range(rng.randint(1, 2)):
        spec = rng.choice(plan.specs)
        faults[spec.name, rng.randint(1, 60)] = rng.choice(kinds)
    return replace(plan, faults=faults)


def takeovers(rng: Random) -> Plan:
    """One node's log, opened by two or three processes, each of which assumes that it is the
    writer."""
    names = "BC" if rng.random() < 0.3 else "B"
    others = [_writer(rng, name, rng.random() < 0.85) for name in names]
    specs = (_writer(rng, "A", False), *others)
    return _faults(rng, Plan(_kind(rng), rng.choice(PAST), specs))


def maintenance(rng: Random) -> Plan:
    """A writer, a reader with a view, and processes that make the log smaller; clocks differ."""
    specs = [_writer(rng, "writer", False)]
    if rng.random() < 0.3:
        lasting = (*specs[0].threads[0][:1], ("put_for_hours", 0, 200), *specs[0].threads[0][1:])
        specs[0] = replace(specs[0], threads=(lasting, *specs[0].threads[1:]))
    if rng.random() < 0.7:
        specs.append(Spec("reader", ((("list",), *([("list",)] if rng.random() < 0.5 else [])),)))
    jobs: list[Op] = [("rewrite",), ("prune",)]
    if rng.random() < 0.3:
        jobs.append(("rewrite",))
    skew = rng.choice((0, 0, 0, 300 * HOUR_MS, -300 * HOUR_MS))
    specs.append(Spec("keeper", (tuple(jobs),), offset_ms=skew))
    if rng.random() < 0.4:
        skew = rng.choice((0, 0, 30 * HOUR_MS, -30 * HOUR_MS))
        others: list[Op] = [
            rng.choice((("rewrite",), ("prune",))) for _ in range(rng.randint(1, 2))
        ]
        if rng.random() < 0.5:
            others.insert(0, ("wait", 30))
        specs.append(Spec("keeper 2", (tuple(others),), offset_ms=skew))
    after: tuple[Op, ...] = (("prune",),) if rng.random() < 0.5 else ()
    past = rng.choice(PAST[1:])
    return _faults(rng, Plan(_kind(rng), past, tuple(specs), after=after))


def drops(rng: Random) -> Plan:
    """`maintenance` with a `drop` of the map at the same time."""
    plan = maintenance(rng)
    ops: list[Op] = [("drop",)]
    if rng.random() < 0.5:
        ops.append(("prune",))
    return replace(plan, specs=(*plan.specs, Spec("operator", (tuple(ops),))))


def clears(rng: Random) -> Plan:
    """`takeovers` or `maintenance` with writers that clear the map."""
    plan = takeovers(rng) if rng.random() < 0.5 else maintenance(rng)
    return replace(plan, specs=tuple(_clearing(rng, spec) for spec in plan.specs))


def _clearing(rng: Random, spec: Spec) -> Spec:
    ops = [("clear",) if op[0] == "delete" else op for op in spec.threads[0]]
    if ops[0][0] == "open" and rng.random() < 0.7:
        ops.insert(rng.randint(1, len(ops)), ("clear",))
    return replace(spec, threads=(tuple(ops), *spec.threads[1:]))


def replacements(rng: Random) -> Plan:
    """`takeovers` or `maintenance` while an operator replaces the folder by a copy."""
    plan = takeovers(rng) if rng.random() < 0.5 else maintenance(rng)
    ops: list[Op] = [("replace_folder",)] * rng.randint(1, 2)
    return replace(plan, kind=APPEND, specs=(*plan.specs, Spec("operator", (tuple(ops),))))


def counters(rng: Random) -> Plan:
    """`takeovers` or `maintenance` with writers whose threads change the same numbers."""
    plan = takeovers(rng) if rng.random() < 0.5 else maintenance(rng)
    return replace(plan, specs=tuple(_counting(rng, spec) for spec in plan.specs))


def _counting(rng: Random, spec: Spec) -> Spec:
    first, *others = spec.threads
    if first[0][0] != "open":
        return spec
    ops = [(rng.choice(("add", "move")),) if op[0] == "delete" else op for op in first]
    ops.insert(rng.randint(1, len(ops)), ("add",))
    more = [
        tuple((rng.choice(("add", "move")),) for _ in range(rng.randint(1, 2)))
        for _ in range(rng.randint(1, 2))
    ]
    return replace(spec, threads=(tuple(ops), *others, *more))


def forgetting(rng: Random) -> Plan:
    """A node is forgotten. Its store may still run, or be opened again."""
    jobs: list[Op] = [("forget", "n2")]
    if rng.random() < 0.7:
        jobs.insert(0, ("rewrite",))
    if rng.random() < 0.3:
        jobs.append(("prune",))
    specs = [Spec("operator", (tuple(jobs),))]
    if rng.random() < 0.6:
        specs.append(_writer(rng, "gone", rng.random() < 0.5, "n2"))
    if rng.random() < 0.3:  # a new log under that name, or the same one
        specs.append(_writer(rng, "back", rng.random() < 0.5, "n2"))
    if rng.random() < 0.5:
        specs.append(_writer(rng, "writer", False, "n1"))
    if rng.random() < 0.3:
        specs.append(Spec("reader", ((("list",),),)))
    return _faults(rng, Plan(rng.choice((APPEND, OBJECTS, HDFS, NFS)), "two nodes", tuple(specs)))


def hosts(rng: Random) -> Plan:
    """A rolling update: two machines, two node names, one root."""
    specs = [_writer(rng, "old", False, "n1"), _writer(rng, "new", rng.random() < 0.8, "n2")]
    if rng.random() < 0.3:
        specs.append(Spec("reader", ((("list",),),)))
    kind = rng.choice((APPEND, OBJECTS, HDFS, NFS))
    return _faults(rng, Plan(kind, rng.choice(("empty", "some", "snapshot")), tuple(specs)))


def machines(rng: Random) -> Plan:
    """Segments on the disk of one machine; others see the root alone."""
    specs = [_writer(rng, "writer", False)]
    ops: list[Op] = [
        rng.choice((("list",), ("rewrite",), ("prune",))) for _ in range(rng.randint(1, 2))
    ]
    if rng.random() < 0.4:
        ops = [("open", True), *_changes(rng, 1)]
    node = rng.choice(("n1", "n2"))
    specs.append(Spec("elsewhere", (tuple(ops),), node, machine="b"))
    return _faults(rng, Plan(SPLIT, rng.choice(PAST[1:]), tuple(specs)))


def backups(rng: Random) -> Plan:
    """Copies of a log that is being written, and folders restored to an older state."""
    specs = [_writer(rng, "writer", False)]
    after: list[Op] = []
    cluster = "default/embedded/manifest/"
    node = "default/embedded/nodes/n1/manifest/"
    if rng.random() < 0.5:
        order = rng.choice(("sorted", "reversed", "shuffled"))
        specs.append(Spec("copier", ((("copy", order, rng.randrange(100)),),)))
    else:
        choice = rng.choice(("cluster", "node", "node folder", "newest"))
        if choice == "newest":
            after.append(("remove newest", rng.choice((cluster, node))))
        elif choice == "node folder":
            after.append(("restored", "default/embedded/nodes/n1/", True))
        else:
            after.append(("restored", cluster if choice == "cluster" else node, False))
    if rng.random() < 0.7:
        specs.append(Spec("keeper", ((("rewrite",), ("prune",)),)))
    if rng.random() < 0.3:
        after.append(("repair", rng.choice(("torn-tail", "point-in-time"))))
    kind = rng.choice((APPEND, OBJECTS, HDFS))
    return Plan(kind, rng.choice(PAST[1:]), tuple(specs), after=tuple(after))


def attempts(rng: Random) -> Plan:
    """A rewrite whose last step runs twice at once, as Spark's speculation does."""
    specs = [Spec("keeper", ((("rewrite_twice", rng.random() < 0.7), ("prune",)),))]
    if rng.random() < 0.5:
        specs.append(_writer(rng, "writer", False))
    after: tuple[Op, ...] = (("prune",),) if rng.random() < 0.5 else ()
    return _faults(rng, Plan(_kind(rng), rng.choice(PAST[1:]), tuple(specs), after=after))


def agents(rng: Random) -> Plan:
    """Agents with members that resend, timers that archive, views with listings under way."""
    specs = []
    two = rng.random() < 0.4
    for node, own in (("n1", (0, 2, 4)), ("n2", (1, 3, 5)))[: 2 if two else 1]:
        threads: tuple[tuple[Op, ...], ...] = ((("serve",),),)
        if rng.random() < 0.6:
            threads = (*threads, (("archive",),) * rng.randint(1, 2))
        drops = tuple(rng.randint(1, 14) for _ in range(rng.randint(0, 2)))
        specs.append(Spec(f"agent {node}", threads, node, role="agent", drops=drops))
        if rng.random() < 0.3:
            takes = (("serve", rng.random() < 0.7),)
            specs.append(Spec(f"agent {node} again", (takes,), node, role="agent"))
        writes: list[Op] = []
        for _ in range(rng.randint(1, 3)):
            number = rng.choice(own)
            if two and rng.random() < 0.5:
                number = rng.randrange(2)
                writes.append(("take", number))
            writes.append(("delete" if rng.random() < 0.4 else "put", number))
        if rng.random() < 0.15:
            writes.append(("put_and_leave", rng.choice(own)))
        member: tuple[tuple[Op, ...], ...] = (tuple(writes),)
        if rng.random() < 0.6:
            member = (*member, (("list",),) * rng.randint(1, 2))
        if rng.random() < 0.2:
            member = (*member, (("list", 3),))
        specs.append(Spec(f"member {node}", member, node, role="member"))
    if rng.random() < 0.3:
        # The cluster is started again while members of the former one still run.
        late: tuple[Op, ...] = (("put", 0), ("list",)) if rng.random() < 0.5 else (("list",),)
        specs.append(Spec("member of the next", (late,), "n1", role="member", cluster_id="c2"))
    if rng.random() < 0.4:
        jobs: list[Op] = [("rewrite",), ("prune",)]
        if rng.random() < 0.3:
            jobs.insert(0, ("wait", 2))
        specs.append(Spec("keeper", (tuple(jobs),)))
    past = "empty" if two else rng.choice(("empty", "members", "members archived"))
    kind = rng.choice((APPEND, APPEND, OBJECTS, HDFS, NFS))
    return _faults(rng, Plan(kind, past, tuple(specs)))


def splits(rng: Random) -> Plan:
    """A split network: members with agents of their own lose each other, in any order. If they get
    a view, they continue with the keys of the members that they lost."""
    names = "ABC" if rng.random() < 0.4 else "AB"
    alone = rng.choice(names)
    specs = []
    for index, name in enumerate(names):
        node = f"n{index + 1}"
        threads: tuple[tuple[Op, ...], ...] = ((("serve",),),)
        if rng.random() < 0.3:
            threads = (*threads, (("archive",),))
        drops = tuple(rng.randint(1, 10) for _ in range(rng.randint(0, 2)))
        specs.append(Spec(f"agent {name}", threads, node, role="agent", drops=drops))
        if rng.random() < 0.2:
            takes = (("serve", rng.random() < 0.7),)
            specs.append(Spec(f"agent {name} again", (takes,), node, role="agent"))
        others = [each for each in names if each != name]
        lost = others if name == alone else [alone]
        ops: list[Op] = [("put", index)] * rng.randint(1, 2)
        if rng.random() < 0.8:
            ops.append(("lose", *lost))
            if rng.random() < 0.7:
                ops.append(("list",))
            ops += [("put", rng.randrange(len(names))) for _ in range(rng.randint(1, 2))]
            left = [each for each in others if each not in lost]
            if left and rng.random() < 0.3:
                ops += [("lose", *left), ("put", names.index(left[0]))]
        else:
            ops += [("put", index)] * rng.randint(0, 2)
        specs.append(Spec(name, (tuple(ops),), node, role="member"))
    if rng.random() < 0.2:
        specs.append(Spec("keeper", ((("rewrite",), ("prune",)),)))
    return _faults(
        rng, Plan(rng.choice((APPEND, APPEND, OBJECTS, HDFS, NFS)), "empty", tuple(specs))
    )


def programs(rng: Random) -> Plan:
    """A program has an embedded store open when the first members start: they fence it."""
    specs = []
    for node in ("n1", "n2") if rng.random() < 0.2 else ("n1",):
        threads: tuple[tuple[Op, ...], ...] = ((("serve",),),)
        drops = tuple(rng.randint(1, 14) for _ in range(rng.randint(0, 1)))
        specs.append(Spec(f"agent {node}", threads, node, role="agent", drops=drops))
        number = int(node[1])
        writes = tuple(("put", number) for _ in range(rng.randint(1, 2)))
        specs.append(Spec(f"member {node}", (writes,), node, role="member"))
    ops: list[Op] = [("open", False), ("put", 6)]
    ops += [rng.choice((("put", 6), ("put", 7), ("delete", 6))) for _ in range(rng.randint(0, 3))]
    specs.append(Spec("program", (tuple(ops),), "n3", settings=(("shared", True),)))
    if rng.random() < 0.2:
        specs.append(Spec("keeper", ((("rewrite",), ("prune",)),)))
    kind = rng.choice((APPEND, APPEND, OBJECTS, HDFS, NFS))
    return _faults(rng, Plan(kind, "empty", tuple(specs), exclusive=False))


def verifying(rng: Random) -> Plan:
    """`maintenance` with a `verify` at the same time."""
    plan = maintenance(rng)
    return replace(plan, specs=(*plan.specs, Spec("verifier", ((("verify",),),))))


SCENARIOS: dict[str, Callable[[Random], Plan]] = {
    "takeovers": takeovers,
    "maintenance": maintenance,
    "hosts": hosts,
    "machines": machines,
    "backups": backups,
    "attempts": attempts,
    "agents": agents,
    "verifying": verifying,
    "drops": drops,
    "forgetting": forgetting,
    "programs": programs,
    "splits": splits,
    "clears": clears,
    "counters": counters,
    "replacements": replacements,
}

OPEN: tuple[str, ...] = ()
"""Scenarios that find faults not fixed yet; the tests leave them out."""
