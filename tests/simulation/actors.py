"""What processes do: operations on the real code, each with its possible outcomes.

A `Spec` is one process: its threads, each a list of operations such as ("put", 3). The first thread
opens the store (or says hello); the others wait for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import imap_wal
from imap_wal.agent.membership.forget_node import forget_node
from imap_wal.context import Context
from imap_wal.entry import KEY, VALUE
from imap_wal.errors import (
    Closed,
    Fenced,
    ImapWalError,
    InvalidSetting,
    LogError,
    LostRace,
    MissingNode,
    NotAppended,
    OutcomeUnknown,
    StorageUnavailable,
    WriterLocked,
)
from imap_wal.inspect import verify as verifier
from imap_wal.inspect.finding import CLEAN, TORN, Deadline
from imap_wal.inspect.inventory import take_inventory
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.view import MaterializedView
from imap_wal.rewrite.drop import drop_map
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.security.encryption import keys_from
from imap_wal.settings import Settings
from storage_backends import NotFound, StorageError
from tests.simulation import history as outcomes
from tests.simulation.history import History, Write
from tests.simulation.medium import NFS, OBJECTS, STALE_STEPS, File, Medium, open_sim
from tests.simulation.threads import Event
from tests.simulation.world import Process, Violation, World

MAP, NUMBERS = "m", "numbers"
MEMBERS_CLASS = "java.lang.String"
"""Of keys and values of members, which are refused what only programs write."""
NAMESPACE, CLUSTER = "default", "embedded"
SETTINGS: dict[str, Any] = {
    "preallocate": False,
    "segment_bytes": 1 << 20,
    "ring_slots": 64,
    # It needs time that passes by itself, and another process. Rewrites are actors of their own.
    "auto_rewrite_percentage": 0,
}
MEMORY = Settings(**SETTINGS)
KEYS = 4

Op = tuple[Any, ...]


@dataclass(frozen=True)
class Spec:
    """One process. `settings`: of its store, over SETTINGS."""

    name: str
    threads: tuple[tuple[Op, ...], ...]
    node: str = "n1"
    machine: str = "a"
    offset_ms: int = 0
    settings: tuple[tuple[str, Any], ...] = ()
    role: str = "embedded"
    """embedded, agent or member."""
    cluster_id: str = "c1"
    """A member's: those of one lifetime of a Hazelcast cluster share it."""
    drops: tuple[int, ...] = ()
    """An agent's: answers that are lost, with the connection, by number."""


KEEPER_ERRORS = (Fenced, LostRace, NotAppended, NotFound, StorageUnavailable, Closed)
"""Errors that an archive or a removal may raise: it is tried again. (A failed one does no
damage.)"""


class Stop(Exception):
    """This process has nothing more to do."""


class Stage:
    """What all actors of a run share."""

    def __init__(self, world: World, kind: str, media: dict[str, Medium], past: History) -> None:
        self.world, self.kind, self.media, self.past = world, kind, media, past
        self.damaged = False
        """A manifest or a folder was restored to an older state: an open may refuse."""
        self.copies: list[tuple[str, float, float]] = []
        """(name of the medium, begun, done) of copies made while the log was written."""
        self.wires: Any = None
        """The connections of agents and members."""
        self.owners: dict[tuple[str, int], tuple[str, int]] = {}
        """For each key in a cluster: the member that owns its partition, and the partition's
        version."""
        self.left_out: dict[str, float] = {}
        """Members that were left out of a view: when it was answered first."""
        self.busy: dict[tuple[str, int], int] = {}
        """For each key in a cluster: changes under way. Hazelcast migrates no partition with
        any."""
        self.stale_steps = STALE_STEPS if kind == NFS else 0
        """How old a reader's view may be. An open never has an old view."""
        self.forgotten: set[str] = set()
        """Nodes that an operator has forgotten: their stores may be refused."""
        self.refused = 0
        """Operations that ended with an error that is allowed."""
        self.exclusive = True
        """Only one embedded store at a time under this root may acknowledge."""

    def spread(self, machine: str) -> bool:
        """Whether there are segments on a disk that this machine does not have."""
        mine = f"disk {machine}"
        return any(
            name.startswith("disk ") and name != mine and medium.files
            for name, medium in self.media.items()
        )


def key_of(number: int) -> bytes:
    return b"k%d" % number


def verify(context: Context) -> None:
    """`imap-wal verify` finds no damage where there is none; otherwise `Violation`."""
    for view in take_inventory(context):
        findings, units = verifier.plan(context, view, lambda node: True)
        read, _ = verifier.check(units, lambda text: None, Deadline(context.clock, None))
        for finding in (*findings, *read):
            if finding.status not in (CLEAN, TORN):
                what = f"{finding.file}: {finding.what}"
                raise Violation("verify reports damage where there is none", what)


class Actor:
    """Runs the operations of one process."""

    def __init__(self, stage: Stage, process: Process, spec: Spec) -> None:
        self.stage, self.process, self.spec = stage, process, spec
        self.world, self.past = stage.world, stage.past
        process.memory["actor"] = self
        self._store: Any = None
        self._view: MaterializedView | None = None
        self._opened = Event()
        self._failed = False
        self._writer: Any = None
        self._count = 0
        self._unsafe: list[Write] = []
        """Acknowledged changes that may be in the page cache only."""

    def start(self) -> None:
        for index, ops in enumerate(self.spec.threads):
            name = self.spec.name if index == 0 else f"{self.spec.name}/{index}"
            self.world.spawn(self.process, name, self._work(ops, index))

    def _work(self, ops: tuple[Op, ...], index: int) -> Callable[[], None]:
        def work() -> None:
            if index:
                self._opened.wait()
            try:
                for op in ops:
                    if self._failed:
                        return
                    getattr(self, op[0])(*op[1:])
            except Stop:
                self._failed = True
            finally:
                if index == 0:
                    self._opened.set()

        return work

    # ---- parts ----

    def storage(self) -> Any:
        return open_sim(self.world, self.process, self.stage.media, self.stage.kind)

    def context(self) -> Context:
        return Context(
            self.storage(),
            keys_from(self.world.keys),
            self.process.clock,
            self.process.randomness,
        )

    def cluster(self) -> ClusterLog:
        return ClusterLog(
            self.context(),
            NAMESPACE,
            CLUSTER,
        )

    def _refused(self, error: Exception, *allowed: type[Exception]) -> None:
        """Raise `Violation` unless the error is allowed."""
        self.stage.refused += 1
        if isinstance(error, MissingNode) and (
            self.stage.spread(self.process.machine) or self.stage.forgotten
        ):
            return
        if isinstance(error, LogError | MissingNode) and not isinstance(error, allowed):
            if self.stage.damaged or self.stage.kind == NFS:
                # An old listing and a new manifest: this read is refused, the next succeeds.
                return
            raise Violation(
                "damage is reported where there is none", f"{self.spec.name}: {error}"
            ) from error
        if isinstance(error, allowed) or self.process.hurt:
            return
        raise Violation("an error without a cause", f"{self.spec.name}: {error!r}") from error

    # ---- an embedded store ----

    def open(self, takeover: bool = False) -> None:
        start = self.world.tick()
        settings = {**SETTINGS, **dict(self.spec.settings)}
        if self.stage.kind == OBJECTS and settings.get("durability") == "interval":
            # There, `interval` keeps changes in memory: a crash loses them.
            settings["durability"] = "os"
        self._syncs = settings.get("durability", "always") == "always"
        try:
            self._store = imap_wal.open(
                "sim://", namespace=NAMESPACE, cluster=CLUSTER, node=self.spec.node,
                takeover=takeover, clock=self.process.clock, randomness=self.process.randomness,
                storage=self.storage(), encryption_keys=self.world.keys, **settings,
            )  # fmt: skip
            self._map, self._numbers = self._store.map(MAP, raw=True), self._store.map(NUMBERS)
        except InvalidSetting as error:
            if self.stage.exclusive:
                raise
            raise Stop from error  # log or map belongs to Hazelcast members
        except (ImapWalError, StorageError) as error:
            if not isinstance(error.__cause__, NotFound):  # another process took over
                self._refused(error, WriterLocked, Fenced, LostRace)
            raise Stop from error
        now = self.world.tick()
        self._writer = self.past.opened(self.spec.name, now)
        where = f"the memory of {self.spec.name} after open"
        self.past.check(self.memory(), start, now, where)
        self.past.check_numbers(dict(self._numbers), start, now, where)
        self._opened.set()

    def memory(self) -> dict[bytes, bytes]:
        return {key: self._map[key] for key in self._map}

    def put(self, number: int) -> None:
        self._count += 1
        value = b"%s.%d" % (self.spec.name.encode(), self._count)
        self._change((key_of(number),), value, lambda key: self._map.put(key, value))

    def put_for_hours(self, number: int, hours: int) -> None:
        """Put with a time to live that is longer than any run."""
        self._count += 1
        value = b"%s.%d" % (self.spec.name.encode(), self._count)
        self._change(
            (key_of(number),), value, lambda key: self._map.put(key, value, ttl=hours * 3600)
        )

    def delete(self, number: int) -> None:
        if key_of(number) in self._map:
            self._change((key_of(number),), None, self._map.__delitem__)

    def clear(self) -> None:
        """Clear the map: as if each key were deleted, by one entry. For an empty map nothing is
        written."""
        if self._map:
            keys = [key_of(number) for number in range(KEYS)]
            self._change(keys, None, lambda _: self._map.clear())

    def add(self) -> None:
        """Count, beside other threads of this store that do."""
        addition = self.past.begin_addition("hits", self.spec.name, self.world.tick())
        self._commit([addition], lambda: self._numbers.add("hits"))

    def move(self) -> None:
        """A transaction of two numbers that depend on their values."""

        def work(transaction: Any) -> None:
            numbers = transaction[self._numbers]
            for key, amount in ("out", -1), ("in", 1):
                numbers[key] = numbers.get(key, 0) + amount

        addition = self.past.begin_addition("in", self.spec.name, self.world.tick())
        self._commit([addition], self._store.transaction(work))

    def _change(
        self, keys: Sequence[bytes], value: bytes | None, do: Callable[[bytes], None]
    ) -> None:
        """One commit. `do` gets the first of the keys."""
        start = self.world.tick()
        writes = [self.past.begin(key, value, self.spec.name, start) for key in keys]
        self._commit(writes, lambda: do(keys[0]))

    def _commit(self, writes: list[Write], do: Callable[[], object]) -> None:
        start, outcome = writes[0].start, outcomes.UNKNOWN
        for write in writes:
            write.safe = self._syncs
        self._unsafe += writes
        try:
            do()
            outcome = outcomes.ACKED
        except KeyError:
            outcome = outcomes.FAILED
        except (NotAppended, Closed):
            outcome = outcomes.FAILED
            raise Stop from None
        except (OutcomeUnknown, Fenced):
            raise Stop from None
        finally:
            now = self.world.tick()
            for write in writes:
                self.past.finish(write, outcome, now)
        if outcome == outcomes.ACKED and self.stage.exclusive:
            self.past.acknowledged(self._writer, start)

    def sync(self) -> None:
        unsafe = self._acked()
        try:
            self._store.sync()
        except (ImapWalError, StorageError) as error:
            self._refused(error, Fenced, NotAppended, StorageUnavailable, Closed)
            raise Stop from error
        self._are_safe(unsafe)

    def _acked(self) -> list[Write]:
        return [write for write in self._unsafe if write.outcome == outcomes.ACKED]

    def _are_safe(self, writes: list[Write]) -> None:
        for write in writes:
            write.safe = True

    def archive(self) -> None:
        try:
            self._store.writer.archive()
        except (ImapWalError, StorageError) as error:
            self._refused(error, *KEEPER_ERRORS)

    def outlive(self) -> None:
        try:
            self._store.writer.remove_covered()
        except (ImapWalError, StorageError) as error:
            self._refused(error, *KEEPER_ERRORS)

    def close(self) -> None:
        unsafe = self._acked()
        try:
            self._store.close()
        except (ImapWalError, StorageError) as error:
            self._refused(error, Fenced, LostRace, NotAppended, StorageUnavailable)
        else:
            if self._store.committer.failure is None:
                self._are_safe(unsafe)
        raise Stop

    # ---- readers ----

    def list(self, page: int = 2) -> None:
        """A listing, page by page, as the agent serves it; the view is kept for the next one."""
        start = self.world.tick() - self.stage.stale_steps
        if self._view is None:
            self._view = MaterializedView(self.cluster(), MEMORY)
        view = self._view
        found: dict[bytes, bytes] = {}
        try:
            view.catch_up()
            for keys in view.keys(MAP, page):
                self.world.enter(self.process, "page", "")
                found.update((row[KEY], row[VALUE]) for row in view.load(MAP, keys))
        except (ImapWalError, StorageError) as error:
            self._refused(error, NotFound, LostRace)
            return
        self.past.check(found, start, self.world.tick(), f"the listing of {self.spec.name}")

    def copy(self, order: str, seed: int = 0) -> None:
        """A copy of the whole root, file by file, as a copy tool makes it."""
        start = self.world.tick()
        name = f"copy of {self.spec.name}"
        source = self.storage()
        target = Medium()
        paths = [file.path for file in source.list("")]
        if order == "reversed":
            paths.reverse()
        elif order == "shuffled":
            Random(seed).shuffle(paths)
        for path in paths:
            try:
                data = source.read(path)
            except NotFound:
                if self.stage.kind == OBJECTS:
                    return  # the tool reports that a file vanished, and its user discards the copy
                continue
            except StorageError as error:
                self._refused(error)
                return
            target.files[path] = File(data, 0)
        self.stage.media[name] = target
        self.stage.copies.append((name, start, self.world.tick()))

    def verify(self) -> None:
        """At the same time as all other actors."""
        try:
            verify(self.context())
        except Violation:
            if self.stage.kind != NFS:
                raise
        except (ImapWalError, StorageError) as error:
            self._refused(error, NotFound)

    # ---- maintenance ----

    def rewrite(self) -> None:
        try:
            rewrite(self.cluster(), LocalEngine(MEMORY))
        except (ImapWalError, StorageError) as error:
            self._refused(error, *self._rewrite_errors())

    def _rewrite_errors(self) -> tuple[type[Exception], ...]:
        wrong_clock = (InvalidSetting,) if self.spec.offset_ms else ()
        return (LostRace, NotFound, *wrong_clock)

    def rewrite_twice(self, kills: bool = True) -> None:
        """Rewrite with an engine that runs its last step twice, as Spark may; the second is killed
        when the first is done, or continues."""
        from tests.simulation.attempts import TwoAttempts

        try:
            rewrite(self.cluster(), TwoAttempts(self, kills))
        except (ImapWalError, StorageError) as error:
            self._refused(error, *self._rewrite_errors())

    def drop(self) -> None:
        """Drop the map, with all that is in the logs now: as if each key were deleted."""
        world, past, name = self.world, self.past, self.spec.name
        deletions = [past.begin(key_of(n), None, name, world.tick()) for n in range(KEYS)]
        outcome = outcomes.UNKNOWN
        try:
            drop_map(self.cluster(), MAP)
            outcome = outcomes.ACKED
        except (ImapWalError, StorageError) as error:
            self._refused(error, LostRace, NotFound)
        finally:
            for write in deletions:
                past.finish(write, outcome, world.tick())

    def forget(self, node: str) -> None:
        """Forget a node that is lost, or seems to be."""
        self.stage.forgotten.add(node)
        try:
            forget_node(self.cluster(), node)
        except (ImapWalError, StorageError) as error:
            refusals = (InvalidSetting, MissingNode, WriterLocked, Fenced)
            self._refused(error, LostRace, NotFound, *refusals)

    def replace_folder(self) -> None:
        """An operator puts a copy of the folder in its place."""
        self.world.enter(self.process, "replace", "the folder")
        self.stage.media["root"].replaced()

    def wait(self, hours: int) -> None:
        """Time passes for all processes."""
        self.world.extra_ms += hours * 3_600_000

    def prune(self) -> None:
        try:
            prune(self.cluster())
        except (ImapWalError, StorageError) as error:
            self._refused(error, LostRace, NotFound)


__all__ = ["Actor", "Op", "Spec", "Stage", "Write"]
