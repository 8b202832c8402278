"""A lock for storage without locks: a lease that expires, kept in numbered objects.

    {path}/00000001.json    {"holder": "...", "expires_ms": 1767225600000, "nonce": "..."}
    {path}/00000002.json    the next holder; only the highest number counts

A process takes the lease by the exclusive create of the next number, so one of two loses. Only the
holder rewrites its own object, to renew or release it. So a holder that was stopped, replaced and
resumed overwrites nothing that counts.

Released objects stay, with an `expires_ms` of 0, and the last hundred are never deleted: a number
must not become free while a process may still take it for the next one. A listing is not a
snapshot. One that runs while number 2 appears and number 1 disappears may show neither, and its
reader would take number 1 although number 2 has a holder.

The taker compares the holder's `expires_ms` with its own clock. If the clocks differ by more than
the remaining time, a living holder is replaced. The log survives that, as it survives `take=True`:
the replaced writer finds its epoch fenced.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from typing import Any, cast

from storage_backends.errors import (
    AlreadyExists,
    Locked,
    NotFound,
    StorageError,
    Unavailable,
    Unsupported,
)
from storage_backends.interface import Appender, Lock, LockContext, SegmentStore
from storage_backends.paths import check_path, number_in, one_line

DEFAULT_LEASE_MS = 30_000
KEPT_OBJECTS = 100
_RACES_MAX = 20


def system_clock_ms() -> int:
    """Unix milliseconds. Tests pass another clock to the store."""
    return time.time_ns() // 1_000_000


class Lease(LockContext):
    """A lease that is held until `expires_ms`. Its holder must call `renew` well before that: there
    is no background renewal."""

    def __init__(
        self,
        store: SegmentStore,
        path: str,
        holder: str,
        number: int,
        nonce: str,
        expires_ms: int,
        clock_ms: Callable[[], int],
        lease_ms: int,
    ) -> None:
        self.path = path
        self.holder = holder
        self.number = number
        self.expires_ms = expires_ms
        self._nonce = nonce
        self._store = store
        self._clock_ms = clock_ms
        self._lease_ms = lease_ms
        self._released = False

    def renew(self) -> None:
        """Extend the lease by another term from now. `Locked` names the process that has taken the
        lease since. `Unavailable` if it could not be written: then it still expires at the old
        `expires_ms`."""
        if self._released:
            raise StorageError("the lease was released", self.path)
        expires_ms = self._clock_ms() + self._lease_ms
        self._store.replace(
            _object(self.path, self.number), _encode(self.holder, expires_ms, self._nonce)
        )
        self.check()
        self.expires_ms = expires_ms

    def check(self) -> None:
        """Raises `Locked` if a successor has taken the lease, whatever the clocks say."""
        numbers = _numbers(self._store, self.path)
        if numbers and numbers[-1] > self.number:
            raise Locked(self.path, _read(self._store, self.path, numbers[-1])["holder"])

    def release(self) -> None:
        """Release the lease; safe to call twice. If this raises, others must wait until
        `expires_ms`."""
        if not self._released:
            self._released = True
            self._store.replace(
                _object(self.path, self.number), _encode(self.holder, 0, self._nonce)
            )


class LeasedLocks:
    """`lock` for stores of storage without locks."""

    _clock_ms: Callable[[], int]
    _lease_ms: int

    def lock(self, path: str, holder: str, *, take: bool = False) -> Lock:
        """A `Lease`: it runs out unless its holder renews it. Raises the errors of `acquire`."""
        store = cast(SegmentStore, self)
        return acquire(
            store, path, holder, take=take, clock_ms=self._clock_ms, lease_ms=self._lease_ms
        )


class Immutable(LeasedLocks):
    """The part of a store whose files cannot grow: a lock that needs only creates and replaces."""

    def open_append(self, path: str, preallocate_bytes: int = 0) -> Appender:
        raise Unsupported("an object cannot grow", path)

    def truncate(self, path: str, size: int) -> None:
        raise Unsupported("an object cannot be cut", path)


def acquire(
    store: SegmentStore,
    path: str,
    holder: str,
    *,
    take: bool = False,
    clock_ms: Callable[[], int] = system_clock_ms,
    lease_ms: int = DEFAULT_LEASE_MS,
) -> Lease:
    """The lease at `path`, for `lease_ms` milliseconds from now. Raises `Locked` while another
    holds it, unless `take`, and `Unavailable` if it changes hands at each attempt."""
    check_path(path)
    holder = one_line(holder)
    for _ in range(_RACES_MAX):
        numbers = _numbers(store, path)
        newest = numbers[-1] if numbers else 0
        if newest and not take:
            try:
                present = _read(store, path, newest)
            except NotFound:
                continue  # the listing is older than a hundred successors
            if present["expires_ms"] > clock_ms():
                raise Locked(path, present["holder"])
        number, nonce, expires_ms = newest + 1, secrets.token_hex(16), clock_ms() + lease_ms
        try:
            store.create(_object(path, number), _encode(holder, expires_ms, nonce))
        except AlreadyExists:
            # Another process created it first; or our own create succeeded, but its answer was
            # lost, and the driver sent it again.
            if _read(store, path, number)["nonce"] != nonce:
                continue
        for old in numbers:
            if old <= number - KEPT_OBJECTS:
                store.delete(_object(path, old))
        return Lease(store, path, holder, number, nonce, expires_ms, clock_ms, lease_ms)
    raise Unavailable("another process took the lease at each attempt; try again", path)


def holder(store: SegmentStore, path: str) -> str:
    """How the holder of the lock or lease at `path` names itself; "" if it is free or the storage
    does not say. Raises `StorageError` if the storage fails."""
    numbers = _numbers(store, path)
    if numbers:
        return str(_read(store, path, numbers[-1])["holder"])
    try:
        return store.read(path, 0, 4096).partition(b"\n")[0].decode(errors="replace")
    except NotFound:
        return ""


def _object(path: str, number: int) -> str:
    return f"{path}/{number:08d}.json"


def _encode(holder: str, expires_ms: int, nonce: str) -> bytes:
    return json.dumps({"holder": holder, "expires_ms": expires_ms, "nonce": nonce}).encode()


def _numbers(store: SegmentStore, path: str) -> list[int]:
    """In rising order."""
    names = [file.path.rpartition("/")[2].removesuffix(".json") for file in store.list(path)]
    numbers = map(number_in, names)
    return sorted(number for number in numbers if number is not None)


def _read(store: SegmentStore, path: str, number: int) -> dict[str, Any]:
    content = store.read(_object(path, number))
    try:
        fields = json.loads(content)
        return {
            "holder": str(fields["holder"]),
            "expires_ms": int(fields["expires_ms"]),
            "nonce": str(fields["nonce"]),
        }
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise StorageError(f"not a lease: {error}", _object(path, number)) from error
