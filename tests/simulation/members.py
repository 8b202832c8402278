"""Members made of Python that resend what was not answered."""

from __future__ import annotations

import builtins
from typing import Any

from greenlet import getcurrent

from imap_wal import entry
from imap_wal.entry import DataEntry
from tests.simulation import history as outcomes
from tests.simulation.actors import MAP, MEMBERS_CLASS, Actor, Stop, key_of
from tests.simulation.agents import endpoint_of
from tests.simulation.history import Write
from tests.simulation.wires import Connection
from tests.simulation.world import BASE_MS, Killed, Violation

AGAIN = "sent again"
TRIES = 6
"""How often a member looks for its agent before it abandons a change."""
PATIENCE = 60
"""Steps between two tries: the agent opens a failed log again after a second."""


class MemberActor(Actor):
    """One plug-in: changes of the keys it owns, listings and loads."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._connection: Connection | None = None
        self._reading: dict[Any, Connection | None] = {}
        """Each thread that reads has its own connection."""
        self._former: dict[int, int] = {}
        """Session of an earlier view → the last request that counts."""
        self._lost: tuple[str, ...] = ()
        """Members without which this one has a view."""
        self._session = self._incarnation = self._request = 0
        self._opened.set()

    def _hello(self, purpose: str) -> tuple[Connection, dict[str, Any]] | None:
        """None: no agent answers; `Stop`: this cluster has been replaced."""
        world = self.world
        for attempt in range(TRIES):
            if attempt:
                world.sleep(PATIENCE, self.stage.wires)
            connection = self.stage.wires.connect(endpoint_of(self.spec.node))
            if connection is None:
                continue
            about = {
                "protocol": 1,
                "cluster_id": self.spec.cluster_id,
                "member_uuid": self.spec.name,
                "plugin_uuid": f"plugin of {self.spec.name}",
                "plugin_version": "0",
                "partition_count": 271,
                "purpose": purpose,
                "view": self._incarnation,
            }
            answer = connection.ask("hello", about)
            if answer is None:
                continue
            header, _ = answer
            if header[0] == "welcome":
                return connection, header[2]
            if header[2] == "void-incarnation":
                raise Stop
        return None

    def hello(self) -> bool:
        found = self._hello("write")
        if found is None:
            return False
        self._connection, welcome = found
        if welcome["session"] != self._session:
            self._session, self._request = welcome["session"], welcome["last_request"]
        self._incarnation, self._last = welcome["incarnation"], welcome["last_request"]
        self._former = dict(welcome["former"])
        return True

    def put(self, number: int) -> None:
        self._count += 1
        self._append(number, b"%s.%d" % (self.spec.name.encode(), self._count))

    def delete(self, number: int) -> None:
        self._append(number, None)

    def put_and_leave(self, number: int) -> None:
        """The member no longer waits for the answer: its time-out has passed, and the change may
        still be logged. (Its partition may migrate now.)"""
        place = self.spec.cluster_id, number
        owner, version = self.stage.owners.setdefault(place, (self.spec.name, 0))
        if owner != self.spec.name or (self._connection is None and not self.hello()):
            raise Stop
        self._count += 1
        self._request += 1
        value = b"%s.%d" % (self.spec.name.encode(), self._count)
        write = self.past.begin(key_of(number), value, self.spec.name, self.world.tick())
        write.order = (self._incarnation, version, self._session, self._request)
        row = self._row(number, value, write.order)
        assert self._connection is not None
        self._connection.post("append", self._session, self._request, 1, payload=entry.pack(row))
        raise Stop

    def take(self, number: int) -> None:
        """The partition of this key migrates to this member, if nothing is under way in it."""
        place = self.spec.cluster_id, number
        _, version = self.stage.owners.get(place, ("", 0))
        if not self.stage.busy.get(place):
            self.stage.owners[place] = self.spec.name, version + 1

    def _append(self, number: int, value: bytes | None) -> None:
        """A change of a key, if this member owns it."""
        place, version = self._place(number), 0
        owner, version = self.stage.owners.setdefault(place, (self.spec.name, self._gained(number)))
        if owner == self.spec.name:
            busy = self.stage.busy
            busy[place] = busy.get(place, 0) + 1
            try:
                self._append_own(number, version, value)
            finally:
                busy[place] -= 1

    def _place(self, number: int) -> tuple[str, int]:
        """A key, and the half of its cluster in which it has an owner: each half of a split network
        has its own opinion on keys whose owner it lost."""
        whole = self.spec.cluster_id, number
        owner, _ = self.stage.owners.get(whole, (self.spec.name, 0))
        return (f"{whole[0]} without {self._lost}", number) if owner in self._lost else whole

    def _gained(self, number: int) -> int:
        """The version of a partition that this member takes over from one that was lost."""
        return self.stage.owners.get((self.spec.cluster_id, number), ("", -1))[1] + 1

    def until(self, name: str) -> None:
        """Wait for the first acknowledged change of another member."""
        for _ in range(TRIES):
            writes = (write for writes in self.past.writes.values() for write in writes)
            if any(write.writer == name and write.outcome == outcomes.ACKED for write in writes):
                return
            self.world.sleep(PATIENCE, self.stage.wires)

    def lose(self, *names: str) -> None:
        """The network between this half and those members is cut: get a view without them, then
        read what they left."""
        gone = {*self._lost, *names}
        tasks = (task.process.memory["actor"].spec for task in self.world.tasks)
        members = sorted({each.name for each in tasks if each.role == "member"} - gone)
        about = {
            "cluster_id": self.spec.cluster_id,
            "member_uuid": self.spec.name,
            "members": members,
            "lost": list(names),
        }
        for _ in range(TRIES):
            if self._connection is None and not self.hello():
                raise Stop
            assert self._connection is not None
            answer = self._connection.ask("view", about)
            self._connection = None
            if answer is not None and answer[0][0] == "view":
                break
            if answer is not None and answer[0][2] == "void-incarnation":
                raise Stop
        else:
            raise Stop
        for name in names:
            self.stage.left_out.setdefault(name, self.world.tick())
        if not self.hello():
            raise Stop
        self._reading.clear()
        self._lost = (*self._lost, *names)

    def _append_own(self, number: int, version: int, value: bytes | None) -> None:
        past, world = self.past, self.world
        if self._connection is None and not self.hello():
            raise Stop
        write = past.begin(key_of(number), value, self.spec.name, world.tick())
        write.order = (self._incarnation, version, self._session, self._request + 1)
        try:
            outcome = self._send(number, version, value)
            while outcome == AGAIN:
                write.order = (self._incarnation, version, self._session, self._request + 1)
                outcome = self._send(number, version, value)
        except Stop:
            past.finish(write, outcomes.UNKNOWN, world.tick())
            raise
        except Killed:
            past.finish(write, outcomes.UNKNOWN, world.tick())
            raise
        past.finish(write, outcome, world.tick())
        if outcome == outcomes.ACKED:
            self._acknowledged(write)
            if write.start > self.stage.left_out.get(self.spec.name, write.start):
                what = f"{self.spec.name} was left out of a view, and then made {write}"
                raise Violation("two halves acknowledge", what)

    def _acknowledged(self, write: Write) -> None:
        """Nothing more is judged: the log itself decides which agent of a node may acknowledge."""

    def _send(self, number: int, version: int, value: bytes | None) -> str:
        self._request += 1
        request, session, incarnation = self._request, self._session, self._incarnation
        row = self._row(number, value, (incarnation, version, session, request))
        payload = entry.pack(row)
        for _ in range(TRIES):
            assert self._connection is not None
            answer = self._connection.ask("append", session, request, 1, payload=payload)
            if answer is not None:
                header, _ = answer
                if header[0] == "ack":
                    return outcomes.ACKED
                code = header[2]
                self._connection = None
                if not self.hello():
                    raise Stop
                if self._session != session and session in self._former:
                    return self._settled(session, request)
                if code == "outcome-unknown":
                    return outcomes.UNKNOWN
                if code in ("not-ready", "full", "superseded", "void-incarnation"):
                    return outcomes.FAILED
                raise Violation("an error without a cause", f"{self.spec.name}: {header}")
            if not self.hello():
                return outcomes.UNKNOWN
            if self._session != session:
                return self._settled(session, request)
            if self._last >= request:
                return outcomes.ACKED
        return outcomes.UNKNOWN

    def _settled(self, session: int, request: int) -> str:
        """The outcome of a request of an earlier view: it counts, or it is sent again in this
        view."""
        if session not in self._former:
            return outcomes.UNKNOWN
        return outcomes.ACKED if request <= self._former[session] else AGAIN

    def _row(self, number: int, value: bytes | None, order: tuple[int, ...]) -> DataEntry:
        now_ms = BASE_MS + self.world.elapsed_ms
        label, deleted = MEMBERS_CLASS, value is None
        key = key_of(number)
        place: Any = order
        return DataEntry(MAP, key, label, value, label, deleted, now_ms, 0, number, place)

    def list(self, page: int = 2) -> None:
        """Read all keys by cursor, page by page, and the values of each page."""
        start = self.world.tick() - self.stage.stale_steps
        values: dict[bytes, bytes] = {}
        cursor = None
        while True:
            answer = self._read("keys", MAP, cursor, page)
            if answer is None:
                return  # reported
            header, payload = answer
            cursor = header[2]
            if cursor is None:
                break
            keys = entry.values(payload)
            answer = self._read("load", MAP, len(keys), payload=payload)
            if answer is None:
                return
            values.update((row[0], row[1]) for row in entry.values(answer[1]))
        self.past.check(values, start, self.world.tick(), f"the listing of {self.spec.name}")

    def _read(
        self, kind: str, *fields: Any, payload: bytes = b""
    ) -> tuple[builtins.list[Any], bytes] | None:
        """The answer, asked for again on a new connection if one broke; None: it was an error."""
        for _ in range(TRIES):
            connection = self._reading.get(getcurrent())
            if connection is None:
                found = self._hello("read")
                if found is None:
                    return None
                connection = self._reading[getcurrent()] = found[0]
            answer = connection.ask(kind, *fields, payload=payload)
            if answer is not None:
                header = answer[0]
                if header[0] != "error":
                    return answer
                if header[2] == "bad-request":  # the listing would check nothing, always
                    raise Violation("an error without a cause", f"{self.spec.name}: {header}")
                return None
            self._reading[getcurrent()] = None
        return None
