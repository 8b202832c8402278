"""What the process that serves does with requests about maps."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import astuple
from itertools import chain
from typing import Any

from imap_wal.embedded import decisions
from imap_wal.embedded.changes import MapState
from imap_wal.embedded.store import Store
from imap_wal.entry import is_msgpack
from imap_wal.errors import InvalidSetting
from imap_wal.serializer import MsgpackSerializer, known_serializers
from imap_wal.workers.map_messages import MAPS, MapName, RequestMaps, read_record
from imap_wal.workers.messages import VERSION, NotUnderstood
from imap_wal.workers.requests import REQUESTS, Requests
from imap_wal.workers.server import Parts


class ServedMaps:
    """The maps of an open store, as `Served`."""

    kind = MAPS

    def __init__(self, store: Store) -> None:
        self.store, self.url = store, store.url
        settings = store.writer.log.settings
        self.limits = settings.ring_bytes, settings.max_value_bytes
        self._clock = store.writer.log.clock
        self._requests = Requests(store)
        self._states: dict[MapName, MapState] = {}

    def lacks(self, acknowledged: Any) -> bool:
        return self._requests.lacks(read_record(acknowledged))

    def prepare(self) -> None:
        self._requests.forget_oldest()

    @property
    def failure(self) -> Exception | None:
        return self.store.committer.failure

    @property
    def closed(self) -> bool:
        return self.store.closed

    def end_waits(self) -> None:
        pass

    def close(self) -> None:
        self.store.close()

    def answer(self, client: bytes, number: int, request: list[Any], parts: Parts) -> Any:
        now = self._clock.now_ms()
        match request:
            case ["change", maps, changes]:
                known_only = not self.store.changes.knows_all
                steps = RequestMaps(maps, self._state).changes(changes, known_only=known_only)
                decision = self._requests.once(steps, client, number)
                self.store.changes.evaluate([decision])
                return decision.answer
            case ["read", maps, reads]:
                results = RequestMaps(maps, self._state).reads(reads, now)
                return parts(results)
            case ["keys", [str(name), str(label)]]:
                return parts(self._state((name, label)).rows(now)[0])
            case ["pairs", [str(name), str(label)]]:
                pairs = zip(*self._state((name, label)).rows(now), strict=True)
                return parts(chain.from_iterable(pairs))
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
        raise NotUnderstood(f"{request[0]!r} is not a request of version {VERSION}")

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
