"""Serves the maps of an open store to other processes: a thread for each connection, so all changes
that wait share a commit."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple
from itertools import chain
from typing import Any

from imap_wal.embedded import decisions
from imap_wal.embedded.changes import MapState
from imap_wal.embedded.store import Store
from imap_wal.entry import is_msgpack
from imap_wal.errors import ImapWalError, InvalidSetting
from imap_wal.serializer import MsgpackSerializer, known_serializers
from imap_wal.workers.endpoint import Endpoint, Sockets, is_same_user
from imap_wal.workers.messages import (
    ANSWER_BYTES_MAX,
    HELLO_BYTES_MAX,
    PART_BYTES,
    SMALL_BYTES,
    VERSION,
    MapName,
    NotUnderstood,
    RequestMaps,
    error_fields,
    read_hello,
    receive,
    send,
)
from imap_wal.workers.requests import REQUESTS, Requests
from storage_backends import Lock

CONNECTIONS_MAX = 1000
"""A connection takes a thread, and a process one connection for each of its threads that wait."""
SLOW_S = 30.0
"""A connection that does not send or take the rest of a message in this time is closed."""
STOP_S = 5.0
"""How long a stop waits for requests that are being served."""

_log = logging.getLogger("imap_wal")


class Server:
    """Serves a store at an endpoint whose lock it has, until `stop`, which also closes the store.
    It stops by itself when the store can write no more: then another process may serve."""

    def __init__(self, store: Store, endpoint: Endpoint, lock: Lock) -> None:
        """Raises `InvalidSetting` if it cannot listen there."""
        self.store, self._endpoint, self._lock = store, endpoint, lock
        self._settings = store.writer.log.settings
        self._clock = store.writer.log.clock
        self._requests = Requests(store)
        self._states: dict[MapName, MapState] = {}
        self._room = _Room(self._settings.ring_bytes)
        self._connections: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._mutex = threading.Lock()
        self._stopping: bool = False
        self.stopped = threading.Event()
        """Set when the store is closed."""
        self._listening = endpoint.listen()
        self._accepting = threading.Thread(target=self._accept, name="imap-wal-serve", daemon=True)
        self._accepting.start()

    @property
    def is_serving(self) -> bool:
        return not self._stopping

    def stop(self, *, wait: bool = True) -> None:
        """Answer the requests that are being served, close the store, and let another process
        serve. Safe to call twice, and from any thread; `wait`: for another thread that does it.
        Raises the errors of `Store.close`."""
        with self._mutex:
            first, self._stopping = not self._stopping, True
        if not first:
            if wait:
                self.stopped.wait()
            return
        try:
            self._endpoint.remove()
            with suppress(OSError):
                self._listening.shutdown(socket.SHUT_RDWR)
            self._listening.close()
            with self._mutex:
                connections, threads = list(self._connections), list(self._threads)
            for connection in connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RD)  # after the answer, it reads the end
            end = time.monotonic() + STOP_S
            for thread in threads:
                if thread is not threading.current_thread():
                    thread.join(max(0.0, end - time.monotonic()))
            self.store.close()
        finally:
            with suppress(Exception):
                self._lock.release()
            self.stopped.set()

    # ---- connections ----

    def _accept(self) -> None:
        while self.is_serving:
            try:
                connection = Sockets.kept(self._listening.accept()[0])
            except OSError:
                self.stopped.wait(0.1)  # too many open files, or it stops
                continue
            thread = threading.Thread(
                target=self._serve, args=(connection,), name="imap-wal-client", daemon=True
            )
            with self._mutex:
                full = self._stopping or len(self._connections) >= CONNECTIONS_MAX
                accepted = not full and is_same_user(connection)
                if accepted:
                    self._connections.add(connection)
                    self._threads.add(thread)
                    thread.start()  # with the lock: `stop` cannot join a thread before its start
            if not accepted:
                connection.close()

    def _forget(self, connection: socket.socket, thread: threading.Thread) -> None:
        connection.close()
        with self._mutex:
            self._connections.discard(connection)
            self._threads.discard(thread)

    def _serve(self, connection: socket.socket) -> None:
        try:
            self._converse(connection)
        except (OSError, NotUnderstood) as error:
            if isinstance(error, NotUnderstood):
                _log.warning("a connection was closed: %s", error)
        except Exception:  # noqa: BLE001  # it must not end the thread without a trace
            _log.exception("a connection was closed after an error that was not expected")
        finally:
            self._forget(connection, threading.current_thread())
            if self.store.committer.failure is not None:
                self._give_up()

    def _give_up(self) -> None:
        """The store can write no more. Another process opens the log again."""
        _log.error(
            "this process serves %s no longer: %s", self.store.url, self.store.committer.failure
        )
        with suppress(Exception):
            self.stop(wait=False)  # who stops it waits for this thread

    def _converse(self, connection: socket.socket) -> None:
        connection.settimeout(SLOW_S)
        client, acknowledged = read_hello(receive(connection, HELLO_BYTES_MAX))
        largest = self._settings.ring_bytes
        limits = largest, self._settings.max_value_bytes
        if self._requests.lacks(acknowledged):
            text = (
                f"the log at {self.store.url} lacks changes that it acknowledged to this "
                "process: its folder was replaced by an older copy. Stop all processes, and bring "
                "the former folder back; or close this store, and connect again to continue "
                "without these changes"
            )
            send(connection, ["replaced", text], ANSWER_BYTES_MAX)
            return
        try:
            self._requests.forget_oldest()
        except ImapWalError as error:  # reads are served without it
            _log.warning("old records of requests were not removed: %s", error)
        send(connection, ["welcome", VERSION, os.getpid(), *limits], ANSWER_BYTES_MAX)
        while self.is_serving:
            connection.settimeout(None)  # it may be idle
            with self._room.entered() as enter:

                def begun(size: int) -> None:
                    connection.settimeout(SLOW_S)
                    enter(size)

                request = receive(connection, largest, begun)
                connection.settimeout(SLOW_S)
                if not self._answer(connection, client, request):
                    return

    def _answer(self, connection: socket.socket, client: bytes, request: list[Any]) -> bool:
        """Whether the connection continues."""
        number, fields = request[0], request[1:]
        if type(number) is not int or not fields:
            raise NotUnderstood("a request does not begin with its number and kind")
        try:
            answer = self._do(connection, client, number, fields)
        except NotUnderstood:
            raise
        except Exception as error:  # noqa: BLE001  # the client gets it
            if self.store.committer.failure is not None or self.store.closed:
                return False  # whether it is in the log is decided by the next open
            send(connection, [number, "error", *error_fields(error)], ANSWER_BYTES_MAX)
        else:
            send(connection, [number, "ok", answer], ANSWER_BYTES_MAX)
        return True

    # ---- requests ----

    def _do(self, connection: socket.socket, client: bytes, number: int, fields: list[Any]) -> Any:
        now = self._clock.now_ms()
        match fields:
            case ["change", maps, changes]:
                known_only = not self.store.changes.knows_all
                steps = RequestMaps(maps, self._state).changes(changes, known_only=known_only)
                decision = self._requests.once(steps, client, number)
                self.store.changes.evaluate([decision])
                return decision.answer
            case ["read", maps, reads]:
                results = RequestMaps(maps, self._state).reads(reads, now)
                return self._in_parts(connection, number, results)
            case ["keys", [str(name), str(label)]]:
                return self._in_parts(connection, number, self._state((name, label)).rows(now)[0])
            case ["pairs", [str(name), str(label)]]:
                pairs = zip(*self._state((name, label)).rows(now), strict=True)
                return self._in_parts(connection, number, chain.from_iterable(pairs))
            case ["label", [str(name), str(label)]]:
                return self._state((name, label)).serializer.name
            case ["maps"]:
                return [name for name in self.store.maps() if name != REQUESTS]
            case ["forget", [*clients]]:
                return self._requests.forget([name for name in clients if type(name) is bytes])
            case ["sync"]:
                return self.store.sync()
            case ["archive"]:
                return self.store.archive()
            case ["compact"]:
                return astuple(self.store.compact())
        raise NotUnderstood(f"{fields[0]!r} is not a request of version {VERSION}")

    def _in_parts(
        self, connection: socket.socket, number: int, values: Iterable[bytes | int | None]
    ) -> list[Any]:
        """Send the values, except the last part of them, which is returned."""
        part: list[Any] = []
        size = 0
        for value in values:
            if size >= PART_BYTES:
                send(connection, [number, "part", part], ANSWER_BYTES_MAX)
                part, size = [], 0
            part.append(value)
            size += 16 + (len(value) if isinstance(value, bytes) else 0)
        return part

    def _state(self, name: MapName) -> MapState:
        state = self._states.get(name)
        if state is None:
            of, label = name
            if of == REQUESTS:
                raise InvalidSetting(f"map {REQUESTS!r} is for imap-wal; choose another name")
            other = _Numbers(label) if is_msgpack(label) else _Opaque(label)
            known = known_serializers(self.store.serializer)
            serializer = known.get(label, other) if label else None
            state = self._states[name] = self.store.map(of, serializer=serializer)._state
        return state


class _Room:
    """Limits the memory of large requests of all connections together."""

    def __init__(self, bytes_max: int) -> None:
        self._free = bytes_max
        self._changed = threading.Condition()

    @contextmanager
    def entered(self) -> Iterator[Any]:
        """Within this, a request may be read, when there is room for it."""
        taken = 0

        def enter(size: int) -> None:
            nonlocal taken
            if size <= SMALL_BYTES:
                return
            with self._changed:
                self._changed.wait_for(lambda: self._free >= size)
                self._free -= size
            taken = size

        try:
            yield enter
        finally:
            if taken:
                with self._changed:
                    self._free += taken
                    self._changed.notify_all()


class _Opaque:
    """Takes the place of a serializer that only the clients have: a value is its bytes."""

    def __init__(self, name: str) -> None:
        self.name = name

    def load(self, data: bytes) -> Any:
        return data

    dump = load_key = dump_key = load


class _Numbers(_Opaque):
    """The same for a map with types, where numbers are numbers: `add` adds them."""

    def load(self, data: bytes) -> Any:
        with suppress(ValueError):
            value = _msgpack.load(data)
            return value if decisions.is_number(value) else data
        return data

    def dump(self, value: Any) -> bytes:
        return value if type(value) is bytes else _msgpack.dump(value)


_msgpack = MsgpackSerializer()
