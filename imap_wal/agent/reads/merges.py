"""Decides when an agent merges the logs into its MaterializedView, and keeps facts from all the
logs: the names of maps, schemas, nodes that cannot be read.

    at start        all logs, again and again until it succeeds
    for a request   what was acknowledged before it arrived
    without one     when this node has appended much since the last merge, or that failed

After a time without reads, what was merged leaves the memory (`MaterializedView.release`).

All methods except the properties are called on the thread of reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from imap_wal import tracing
from imap_wal.clock import Clock
from imap_wal.errors import ImapWalError, MissingNode, StorageUnavailable
from imap_wal.read.view import MaterializedView
from imap_wal.schemas import Schema, sound_schemas
from storage_backends import StorageError

AGAIN_S, AGAIN_S_MAX = 1.0, 600.0
"""The pause before a failed merge is tried again without a request. It doubles each time, up to
the maximum, because a merge may read all logs. Requests that fail meanwhile do not extend it."""

TAIL_LOOK_S = 0.25
"""The pause before a merge looks again for disks of other nodes that could not be read."""

FRESH_BYTES = 2 * 1024 * 1024
"""When this node has appended this much since the last merge, the next merge runs without a
request; 0: never. So less is left to merge when a member is lost and its partitions wait."""
RELEASE_S = 60.0
"""When no client has read for this time, the rows are moved to scratch. That may take several
attempts; this time is between two of them, and AGAIN_S_MAX after a failed one."""
FRESH_LOOK_S, FRESH_SHARE = 1.0, 20
"""The interval of that check. Such merges take at most 1/FRESH_SHARE of the time."""

_log = structlog.get_logger("imap_wal.agent")


class Merges:
    """Merges all nodes' logs into `view` once, and then only what was appended.

    `appended` returns how many bytes this node has appended. `tail_timeout_s`: how long a merge
    waits for disks of other nodes that cannot be read now, while `waits` returns True. `at_once`:
    merge all logs now, without waiting for a request."""

    def __init__(
        self,
        view: MaterializedView,
        appended: Callable[[], int],
        clock: Clock,
        *,
        tail_timeout_s: float,
        waits: Callable[[], bool],
        at_once: bool,
    ) -> None:
        self.view, self._appended, self._clock = view, appended, clock
        self._tail_timeout_s, self._waits = tail_timeout_s, waits
        self._covered = (0, 0)
        """The view's version, and the last request that arrived before the last catch-up began: the
        view has what was acknowledged before this request."""
        self._restore_at: float | None = clock.monotonic() if at_once else None
        """When to merge all logs without a request; None: not needed any more."""
        self._pause, self._again_at = AGAIN_S, 0.0
        """The next pause after a failure, and the end of the last one."""
        self._fresh_at = clock.monotonic()
        """When to check next how much was appended."""
        self._release_at = 0.0
        """When the next attempt at a release may begin."""
        self._release_after(RELEASE_S)
        self._merged_bytes = 0
        """Bytes that this node had appended before the last merge."""
        self.partition_count = 0
        """The number of partitions, from the first request of a member on: after a loss, partitions
        wait while keys are hashed."""
        self.schemas: dict[int, Schema] = {}
        """The valid schemas of all logs by their ids, from the last merge for a request. The dict
        is replaced, never changed, so that other threads may read it."""
        self.maps: frozenset[str] | None = None
        self.clear_counts: frozenset[int] | None = None
        """The names of all maps in the logs, and the partition counts of their clears, from the
        last merge; None: there was none yet."""
        self.missing: dict[str, str] = {}
        """Nodes whose entries, or a part of them, the last merge left out, with the reason: only
        with `recovery_policy` partial."""
        self.copied: dict[str, str] = {}
        """Nodes that the last merge could not read, with the reason: other logs have their
        acknowledged changes."""
        self.error = ""
        """Why the last merge failed; "" if it succeeded, or if there was none. Until a merge
        succeeds, members cannot load their maps."""
        self._metadata = 0
        self._named: set[str] = set()

    @property
    def unmerged_bytes(self) -> int:
        """Bytes that this node has appended since the last merge. The next merge reads these, and
        about as many of each other node. Safe to read from any thread."""
        return abs(self._appended() - self._merged_bytes)

    def catch_up(self, arrived: int, newest: int, stopping: threading.Event) -> None:
        """After this, the view has everything that was acknowledged before request number `arrived`
        came. Requests that waited together share one catch-up: `newest` is the last one that has
        arrived. Raises the errors of `MaterializedView.catch_up`."""
        version, covered = self._covered
        if arrived > covered or version != self.view.version:
            appended = self._appended()
            self._merge(stopping)
            self._merged_bytes = appended
            self._covered = self.view.version, newest
            self._gather_schemas()

    def due_in_s(self, *, is_read: bool) -> float | None:
        """Seconds until a merge without a request is due; None: none is planned. `is_read`: clients
        read here."""
        until = self._restore_at
        if until is None and is_read and FRESH_BYTES:
            until = max(self._fresh_at, self._again_at) if self.error else self._fresh_at
        if self._is_releasable:
            until = self._release_at if until is None else min(until, self._release_at)
        return None if until is None else max(0.0, until - self._clock.monotonic())

    def was_read(self) -> None:
        """A request was answered."""
        self._release_after(RELEASE_S)

    def without_request(
        self, stopping: threading.Event, *, is_read: bool, pause: Callable[[], bool] = bool
    ) -> bool:
        """The merge or the release that is due. Returns whether a merge was done: after a release,
        the error of a read stays. `pause`: see `MaterializedView.release`."""
        if self._restore_at is not None:
            return self._restore(stopping)
        if self._is_releasable and self._clock.monotonic() >= self._release_at:
            self._release(pause)
            return False
        return self._refresh(stopping, is_read=is_read)

    @property
    def _is_releasable(self) -> bool:
        """Also whether a member has said how many partitions there are."""
        count = self.partition_count
        return self._restore_at is None and bool(count) and self.view.is_releasable(count)

    def _release(self, pause: Callable[[], bool]) -> None:
        again_s = AGAIN_S_MAX
        try:
            self.view.release(self.partition_count, pause)
            again_s = RELEASE_S
        except StorageUnavailable as error:
            _log.warning("what was merged stays in memory", error=str(error))
        finally:
            self._release_after(again_s)

    def _release_after(self, seconds: float) -> None:
        """No release begins for this time."""
        self._release_at = max(self._release_at, self._clock.monotonic() + seconds)

    def _merge(self, stopping: threading.Event) -> None:
        """Merge the logs; a span if there was something to read."""
        began, before = self._clock.monotonic(), self.view.merged
        error = "merge failed"
        try:
            self._merge_all(stopping)
            error = self.error = ""
            self._pause, self._again_at = AGAIN_S, 0.0
        except Exception as raised:
            error, self.error = type(raised).__name__, str(raised) or type(raised).__name__
            raise
        finally:
            if error and (at := self._clock.monotonic()) >= self._again_at:
                self._again_at = at + self._pause
                self._pause = min(2 * self._pause, AGAIN_S_MAX)
            tracer, now = tracing.current(), self.view.merged
            if tracer is not None and (error or now.merges > before.merges):
                tracer.ended(
                    "merge" if before.merges else "restore",
                    self._clock.monotonic() - began,
                    {"records": now.records - before.records, "bytes": now.bytes - before.bytes},
                    error=error,
                )

    def _merge_all(self, stopping: threading.Event) -> None:
        until = self._clock.monotonic() + self._tail_timeout_s
        while True:
            try:
                self.view.catch_up()
                break
            except MissingNode:
                if not self._waits() or self._clock.monotonic() >= until:
                    raise
                if stopping.wait(TAIL_LOOK_S):
                    raise
        self._log_missing()
        self.maps = frozenset(self.view.names())
        self.clear_counts = frozenset(self.view.clear_counts())

    def _log_missing(self) -> None:
        """Log which entries are left out, once for each node and reason."""
        missing = dict(self.view.missing)
        for node, why in missing.items():
            if self.missing.get(node) != why:
                _log.error("a restore leaves out entries of a node", node=node, reason=why)
        copied = dict(self.view.covered)
        for node, why in copied.items():
            if node not in self.copied:
                _log.warning(
                    "a node cannot be read; other logs have its acknowledged changes",
                    node=node,
                    reason=why,
                )
        self.missing, self.copied = missing, copied

    def _restore(self, stopping: threading.Event) -> bool:
        """The merge at start. Requests that arrive meanwhile wait. Returns whether it succeeded; if
        not, it is tried again later."""
        done = False
        try:
            self._merge(stopping)
            done = True
        except (ImapWalError, StorageError) as error:
            _log.warning("restore at start failed", error=str(error))
        finally:
            self._restore_at = None if done else self._again_at
        return done

    def _refresh(self, stopping: threading.Event, *, is_read: bool) -> bool:
        """Merge what was appended, if that is enough, or if the last merge failed, and members read
        here. Returns whether it was done."""
        began, appended = self._clock.monotonic(), self._appended()
        self._fresh_at = began + FRESH_LOOK_S
        if not is_read or (self.unmerged_bytes < FRESH_BYTES and not self.error):
            return False
        try:
            self._merge(stopping)
            if self.partition_count:
                self.view.hash_keys(self.partition_count)
        except (ImapWalError, StorageError) as error:
            _log.warning("a merge without a request failed", error=str(error))
            return False
        finally:
            self._merged_bytes, now = appended, self._clock.monotonic()
            self._fresh_at = now + max(FRESH_LOOK_S, FRESH_SHARE * (now - began))
        return True

    def _gather_schemas(self) -> None:
        """Set `schemas` to the valid schemas of all logs. Log each of the others once."""
        metadata = self.view.metadata()
        if len(metadata) == self._metadata:
            return
        self.schemas, bad = sound_schemas(metadata)
        self._metadata = len(metadata)
        for reason in bad:
            if reason not in self._named:
                self._named.add(reason)
                _log.error(
                    "a schema in the log is not used; values that need it cannot be read",
                    schema=reason,
                )
